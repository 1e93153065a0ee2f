"""Training on simulated kernels: the numbers of every step, in the chip's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.notebook_html import Shown
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.call.spec import Array
from npusim.networks.plan.launch_order import PlannedLaunch
from npusim.networks.plan.tasks import PLAIN, Placed, conversion_task
from npusim.networks.rules.values import Value
from npusim.networks.run.step import options_of, prepared, setting
from npusim.networks.run.step_result import StepResult
from npusim.networks.timed import Timed
from npusim.results import Result
from npusim.workloads import read_network


class Trainer(Shown):
    """A network whose steps are computed by the kernels that are timed.

    ``workload``, ``input_shape`` and the keywords are those of ``npusim.step``; ``settings`` are
    numbers of the optimizer (``rate``, ``momentum``, ``decay``, ...). Parameters are trained in
    fp32 and go by name, weights as frameworks have them, "conv1.w" for example, scales of
    normalisations "NAME.gamma", shifts "NAME.beta", biases "NAME.b". They begin as He et al. (2015)
    proposed, by ``seed``, and may be read and set: ``trainer["conv1.w"] = array``.
    """

    def __init__(
        self,
        workload: Any,
        input_shape: Any = None,
        *,
        inputs: Any = None,
        device: Any,
        batch: int,
        mode: str = "graph",
        layouts: str | None = None,
        fusions: Any = None,
        optimizer: str = "momentum",
        dtype: Any = "fp16",
        normalisation: Any = None,
        settings: Mapping[str, float] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        net = read_network(workload, input_shape, inputs=inputs, batch=batch, unrolled=True)
        machine_options = options_of(type(self), mode, {**options, "device": device})
        how = setting(
            machine_options.machine,
            mode=mode,
            layouts=layouts,
            fusions=fusions,
            optimizer=optimizer,
            passes="training",
            dtype=dtype,
            norm=normalisation,
            cards=1,
        )
        self._ready = prepared(net, machine_options, how, settings=settings)
        if "labels" not in self._ready.step.values:
            raise ArgumentError(
                f"{net.name} ends in a map; a Trainer needs a linear layer last, whose rows are "
                "classes"
            )
        self._require_kernels()
        self._homes = dict(self._given())
        self._kept: dict[tuple[str, str], Array] = {}
        self.steps: list[StepResult] = []  # what every step took
        self.losses: list[float] = []  # the mean of each batch, before its step
        generator = np.random.default_rng(seed)
        step = self._ready.step
        for name in (*step.parameters, *step.fixed):
            if name in self._homes:
                parameter = net.parameters.get(name)
                data = parameter.data if parameter is not None else None
                if data is None:
                    data = _begun(step.values[name], generator, scale=name in step.scales)
                self[name] = data.reshape(self._shape(name, step.values[name]))

    def __repr__(self) -> str:
        """One line: the network, how far it is, and what a step takes."""
        text = f"<Trainer of {self._ready.workload.name}: {len(self.steps)} steps"
        if self.steps:
            text += f" of {self.steps[-1].time_us:.3f} us, loss {self.losses[-1]:.4f}"
        return f"{text}>"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what is trained."""
        return tuple(self._ready.step.parameters)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of frozen parameters, buffers and constants, which may be read and set too."""
        return tuple(name for name in self._ready.step.fixed if name in self._homes)

    def __getitem__(self, name: str) -> Array:
        """A parameter as it is now, in the shape that the network has for it.

        Raises ``ArgumentError`` for an unknown name.
        """
        format, value = self._home(name)
        array = self._kept[name, format]
        shape = self._shape(name, value)
        if value.kind == "channels":
            return array[: value.shape[0]].reshape(shape)
        plain = array if format == PLAIN else self._converted(name, PLAIN, array)
        return plain.reshape(shape)

    def __setitem__(self, name: str, array: Any) -> None:
        """Set a parameter; ``ArgumentError`` for an unknown name or another shape."""
        format, value = self._home(name)
        plain = np.asarray(array, np.float32)
        shape = self._shape(name, value)
        if plain.shape != shape:
            raise ArgumentError(f"{name} has shape {shape}, got {plain.shape}")
        plain = plain.reshape(value.shape)
        if value.kind == "channels":
            blocked = np.zeros(Placed(value, PLAIN, self._c0).shape, np.float32)
            blocked[: len(plain)] = plain
            plain = blocked
        self._kept[name, format] = (
            plain if format == PLAIN else self._converted(name, format, plain)
        )

    def _shape(self, name: str, value: Value) -> tuple[int, ...]:
        """The shape of a parameter: the framework's, or that of its value for a file of layers."""
        parameter = self._ready.workload.parameters.get(name)
        return value.shape if parameter is None else parameter.shape

    def step(self, images: Any, labels: Any) -> float:
        """Train on one batch: ``images`` (batch, ...) and the classes of each; returns the loss.

        A network of several inputs takes a sequence of arrays, in their order.
        The loss is the mean over the batch, before the step. ``steps`` has what the step took.
        """
        ready = self._ready
        values = self._ready.step.values
        now = dict(self._kept)
        now.update(self._inputs(images))
        classes = np.asarray(labels)
        hot = np.zeros(values["labels"].shape, values["labels"].dtype.numpy)
        by_class = classes.shape == hot.shape[:1] and classes.dtype.kind in "iu"
        if not by_class or not 0 <= classes.min() <= classes.max() < hot.shape[1]:
            raise ArgumentError(
                f"labels are {hot.shape[0]} integers from 0 to {hot.shape[1] - 1}, one for each row"
            )
        hot[np.arange(len(hot)), classes] = 1
        now["labels", PLAIN] = hot
        for name, format in self._homes.items():  # the optimizer's state begins with zeros
            if (name, format) not in now:
                placed = self._placed(name, format)
                now[name, format] = np.zeros(placed.shape, placed.value.dtype.numpy)
        timed: dict[Any, Timed] = {}
        for launch, what, *_ in ready.todo:
            timed[what] = self._run(launch, what, now)
        updates = ready.step.updates
        self._kept |= {
            (updates[name], format): array
            for (name, format), array in now.items()
            if name in updates
        }
        self.steps.append(ready.result(timed))
        self.losses.append(float(now["loss", PLAIN].mean()))
        return self.losses[-1]

    def _require_kernels(self) -> None:
        """Raise ``ArgumentError`` for a layer whose numbers no kernel computes."""
        way_out = "npusim.step times it; to train it, write it as operations that have kernels"
        for launch, *_ in self._ready.todo:
            operation = launch.operation
            if operation is not None and operation.core == "traffic":
                layer = operation.layer
                called = getattr(layer, "called", "") or getattr(layer, "kind", "")
                raise ArgumentError(
                    f"{operation.name}: no kernel computes the numbers of {called} with these "
                    f"sizes ({getattr(layer, 'shape', ())}); {way_out}"
                )
        for name in sorted(self._ready.step.repeated):
            sizes = self._ready.workload.parameters[name].shape
            raise ArgumentError(
                f"{name} has {prod(sizes)} of the {prod(self._ready.step.values[name].shape)} "
                f"numbers that its kernel takes; give each channel a number, or use npusim.step"
            )

    # -- values ------------------------------------------------------------------------------

    def _inputs(self, images: Any) -> dict[tuple[str, str], Array]:
        """The arrays of a batch by the names of the network's inputs."""
        names = self._ready.step.inputs
        values = self._ready.step.values
        arrays = [images] if len(names) == 1 else list(images)
        if len(arrays) != len(names):
            raise ArgumentError(f"the network takes {len(names)} inputs, got {len(arrays)}")
        for name, array in zip(names, arrays, strict=True):
            if np.shape(array) != values[name].shape:
                label = "images have" if len(names) == 1 else f"{name} has"
                raise ArgumentError(f"{label} shape {values[name].shape}, got {np.shape(array)}")
        return {
            (name, PLAIN): np.ascontiguousarray(array, dtype=values[name].dtype.numpy)
            for name, array in zip(names, arrays, strict=True)
        }

    @property
    def _c0(self) -> int:
        return self._ready.times.launcher.c0

    def _placed(self, name: str, format: str) -> Placed:
        return self._placed_value(self._ready.step.values[name], format)

    def _placed_value(self, value: Value, format: str) -> Placed:
        return Placed(value, format, self._c0)

    def _given(self) -> Iterator[tuple[str, str]]:
        """Values that are there before a step, with the format in which they are."""
        written: set[str] = set()
        for launch, *_ in self._ready.todo:
            for name, format in launch.reads:
                if name not in written:
                    yield name, format
                written.add(name)
            written |= {name for name, _ in launch.writes}

    def _home(self, name: str) -> tuple[str, Value]:
        if name not in self._homes or name not in (*self.parameters, *self.fixed):
            names = (*self.parameters, *self.fixed)
            raise ArgumentError(f"there is no parameter {name!r}{suggest(name, names)}")
        return self._homes[name], self._ready.step.values[name]

    def _converted(self, name: str, format: str, array: Array) -> Array:
        """A value in another format, by the kernel that converts it."""
        formats = self._ready.formats
        what = conversion_task(formats.step.values[name], format)
        result = self._ready.times.launcher.run(what, {"v0": array})
        return _outputs(result)[0]

    def _run(self, launch: PlannedLaunch, what: Any, now: dict[tuple[str, str], Array]) -> Timed:
        """Launch what is next on the values as they are now."""
        arrays = {
            value.name: now[key].reshape(self._placed_value(value, format).shape)
            for value, format, key in zip(what.values, what.formats, launch.reads, strict=False)
        }
        try:
            result = self._ready.times.launcher.run(what, arrays)
        except ArgumentError as error:
            raise ArgumentError(f"{launch.name}: {error}") from error
        now.update(zip(launch.writes, _outputs(result), strict=True))
        return Timed(replace(result, outputs=None))


def _outputs(result: Result) -> list[Array]:
    """The arrays that a call computed."""
    return [array for array in result.outputs or () if array is not None]


def _begun(value: Value, generator: np.random.Generator, *, scale: bool) -> Array:
    """The first numbers of a parameter, by the size of what they are multiplied with."""
    if value.kind in ("weight", "matrix"):
        width = prod(value.shape[1:])
        numbers = generator.standard_normal(value.shape) * (2 / width) ** 0.5
        begun: Array = numbers.astype(np.float32)
        return begun
    if value.kind in ("map", "rows"):
        small: Array = (0.02 * generator.standard_normal(value.shape)).astype(np.float32)
        return small
    return np.full(value.shape, float(scale), np.float32)
