"""The passes of a network, layer by layer: where a training step's time goes.

Every layer is a timing-only ``convolution_backward``, going forward ``convolution``, on framework
layouts, so conversions, clearing and casts are in its time. Layers of one shape are simulated once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from npusim.base.dtypes import DType
from npusim.base.dtypes import dtype as element_type
from npusim.base.errors import ArgumentError
from npusim.base.records import collecting_seldom, replace
from npusim.base.workers import check_jobs, job_count
from npusim.call.call import Call
from npusim.call.in_turn import notes_of
from npusim.call.options import Options
from npusim.machine.device.spec import Device
from npusim.networks.timed import Timed
from npusim.ops.network_layers import LayerRuns
from npusim.results.facts import network_rows
from npusim.results.facts.advice import WORTH_A_LINE, slow_kernels
from npusim.results.facts.energy import (
    ENERGY_MISSING,
    ENERGY_ROWS,
    TOTAL_ENERGY,
    Energy,
    Spending,
    energy_of,
)
from npusim.results.facts.fact import Fact, row_of
from npusim.results.facts.number_text import counts, us_text
from npusim.results.facts.other_chips import other_chips_of
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Reported
from npusim.results.shown import network_words
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.progress import in_notebooks, of_layers
from npusim.results.writers.text import report_text
from npusim.reuse.answers import answers_in
from npusim.version import __version__
from npusim.workloads import Layer, Workload, read_network

#: What can be asked for, in the order of ``output_mask``.
GRADIENTS = ("input", "weight", "bias")

#: What a layer computes: its output going forward, and gradients going backward.
RESULTS = ("output", *GRADIENTS)

#: The passes that can be timed; "training" is both.
PASSES = ("forward", "backward", "training")

Row = dict[str, Any]


class LayerTime(Timed, frozen=True, kw_only=True):
    """A layer and its simulated passes, those of one; ``cycles`` are of all ``layer.count``."""

    layer: Layer

    def __repr__(self) -> str:
        """One line: the layer, and its time or why there is none."""
        return f"<LayerTime {self.layer.name}: {self.result or self.error}>"

    @property
    def cycles(self) -> int:
        """Cycles of all ``count`` layers of this kind, 0 where there is no result."""
        return self.layer.count * super().cycles


class NetworkResult(Reported, Spending, Struct, frozen=True, kw_only=True, dict=True):
    """The backward pass of a network; layers that could not be simulated are in no total.

    ``untrained`` are the layers whose input has no gradient, because nothing trained is before it,
    ``frozen`` those whose weight has none.
    """

    workload: Workload
    device: Device
    batch: int
    dtype: DType
    gradients: tuple[str, ...]
    timed: tuple[LayerTime, ...]
    passes: str = "backward"
    untrained: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line: network, device, time, and how much of it is missing."""
        missing = "" if self.complete else f", {network_words.missing_text(self.to_json())}"
        return (
            f"<NetworkResult {self.workload.name} on {self.device.name}: {self.time_us:.3f} us, "
            f"{self.cycles} cycles{missing}>"
        )

    @property
    def results(self) -> tuple[str, ...]:
        """What is computed of each layer: "output" going forward, and the gradients."""
        return (*(() if self.passes == "backward" else RESULTS[:1]), *self.gradients)

    @property
    def failed(self) -> tuple[LayerTime, ...]:
        """Layers that could not be simulated; the totals are partial where there are any."""
        return tuple(one for one in self.timed if one.result is None)

    @property
    def complete(self) -> bool:
        """Whether the totals lack no layer, and no unknown operation that multiplies."""
        return not self.failed and not self.workload.unknown_products

    @property
    def cycles(self) -> int:
        """Cycles of the device clock over all layers, repetitions and launches included."""
        return sum(one.cycles for one in self.timed)

    @property
    def time_us(self) -> float:
        """``cycles`` in microseconds."""
        return self.device.time_us(self.cycles)

    @cached_property
    def spent(self) -> Energy:
        """The energy of all layers by figure of the device, repetitions included."""
        runs = (run for one in self.timed for run in one.layer.count * one.runs)
        return energy_of(self.device, runs, self.time_us)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the layers' results, each once, and one on what all their times rest on."""
        notes, figures = notes_of(self.device, [one.result for one in self.timed if one.result])
        notes = [*self._without, *notes]
        notes = [*self.workload.notes, *notes]
        return (*notes, *self._slow_kernels, *network_words.left_out(self.workload), *figures)

    @property
    def _without(self) -> list[str]:
        """Notes on gradients that a training step does without."""
        notes = []
        if self.untrained:
            names = ", ".join(self.untrained)
            notes.append(
                f"without the input gradient of {names}, before which nothing is trained "
                "(every_input=True, --every-input: with it)"
            )
        if self.frozen:
            notes.append(f"without the weight gradient of {', '.join(self.frozen)}: frozen")
        return notes

    @cached_property
    def _slow_kernels(self) -> tuple[str, ...]:
        """Why kernels that matter are far from their bounds; their layers are simulated again."""
        return tuple(
            f"{one.layer.name}: {text}"
            for one in self.timed
            if one.result is not None
            for text in slow_kernels(one.result, int(WORTH_A_LINE * self.cycles / one.layer.count))
        )

    @cached_property
    def layers(self) -> DataFrame:
        """One row per layer: ``total_us`` of all ``count``, every other time of one of them.

        ``n`` are the images of one call: those of the batch, times the frames or patches that the
        network folds into each. ``rows`` and ``products`` are those of one of these.

        ``total_us`` adds up to the network's ``time_us``; ``one_us`` is its ``count``th part.
        ``input_us``, ``weight_us`` and ``bias_us`` are the kernels that compute this gradient,
        ``other_us`` layout conversions, clearing and casts, launches included. ``launch_us`` are
        all launches, ``layout_us`` is ``other_us`` without them; ``bottleneck`` is the largest of
        these and of the kernels of each gradient. ``share`` is of the network's time.
        ``problem_us`` is the least time of any programs for one layer, and ``problem_bound`` by
        what. The layer's own kernels are those that multiply: ``own_us`` is their time without
        launches, ``own_bound_us`` and ``own_bound`` the least of these programs,
        ``own_problem_us`` and ``own_problem_bound`` that of any for their problems. Where
        ``error`` says why there is no time, figures are missing.
        """
        return frame(self.layer_rows(), network_rows.LAYER_COLUMNS)

    @cached_property
    def kernels(self) -> DataFrame:
        """One row per kind of kernel, longest first, repetitions of layers included.

        ``time_us`` includes ``launch_us``; ``cycles`` does not. ``macs`` are executed, padding
        included; ``useful_macs`` are those the layers need. ``problem_us`` is the least time of
        any programs for the same problems.
        """
        return frame(self.kernel_rows(), network_rows.KERNEL_COLUMNS)

    @cached_property
    def split(self) -> dict[str, float]:
        """Microseconds of launches, of layouts and of the kernels of each result, most first.

        They add up to ``time_us``, so that the first, the ``bottleneck``, is what saves most if it
        takes half as long.
        """
        cycles = Counter[str]()
        for one in self.timed:
            cycles.update(network_rows.split(one.runs, one.layer.count))
        return {name: self.device.time_us(n) for name, n in cycles.most_common()}

    @property
    def bottleneck(self) -> str:
        """The largest part of the ``split``, "" where nothing was timed."""
        return next(iter(self.split), "")

    def layer_rows(self) -> list[Row]:
        """``layers`` as plain values."""
        return [
            network_rows.layer_row(
                network_rows.LayerColumns(
                    device=self.device,
                    layer=part.layer,
                    runs=None if part.result is None else part.result.runs,
                    error=part.error,
                    cycles=part.cycles,
                    network_cycles=self.cycles,
                    problem_bounds=() if part.result is None else part.result.problem_bounds,
                )
            )
            for part in self.timed
        ]

    def kernel_rows(self) -> list[Row]:
        """``kernels`` as plain values."""
        runs = ((one.layer.count, run) for one in self.timed for run in one.runs)
        return network_rows.kernel_rows(self.device, runs, self.cycles)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, ready for ``json.dumps``; missing figures are null."""
        return row_of(NETWORK, self)

    # -- views -------------------------------------------------------------------------------

    def time_us_on(self, device: Device) -> float:
        """``time_us`` on a variant of the device, with the tilings of this result.

        Layers without a result are in neither. Raises as ``Result.time_us_on`` does.
        """
        known = [(one.layer.count, one.result) for one in self.timed if one.result is not None]
        return float(sum(count * result.time_us_on(device) for count, result in known))

    @property
    def time_range_us(self) -> tuple[float, float]:
        """Ends of ``time_us``: those of its layers summed, for what is wrong is so in all of them.

        Every layer is timed again as for ``Result.time_range``; reports show it from then on.
        """
        ranges = [(one.layer.count, one.result.time_range) for one in self.timed if one.result]
        return sum(n * r.low_us for n, r in ranges), sum(n * r.high_us for n, r in ranges)

    def known_range_us(self) -> list[float] | None:
        """``time_range_us`` if it has been computed."""
        known = [one.result.known_time_range for one in self.timed if one.result]
        return list(self.time_range_us) if known and all(known) else None

    def text(self) -> str:
        """The report for people: totals, layers, kernels, and what could not be simulated."""
        return report_text(self.as_report())

    @property
    def table(self) -> DataFrame:
        """The layers."""
        return self.layers

    def write(self, path: str | Path) -> None:
        """Write ``layers`` as CSV, where lists of sizes read ``3x3``, or as Parquet."""
        if Path(path).suffix.lower() == ".parquet":
            super().write(path)
            return
        rows = self.layer_rows()
        network_rows.write_csv(Path(path), tuple(rows[0]), rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the time of every layer by what it computes, repetitions included."""
        from npusim.results.shown.figures import stacks  # noqa: PLC0415 - drawn when asked for

        return draw(stacks.layers(self.to_json()), ax)

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        from npusim.results.shown import network  # noqa: PLC0415 - made when asked for

        return network.report(self.to_json(), self.device, self.timed)


#: A network in JSON.
NETWORK: tuple[Fact[NetworkResult], ...] = (
    Fact("workload", "network", "", str, lambda net: net.workload.name),
    Fact("description", "description", "", str, lambda net: net.workload.description),
    Fact("npusim_version", "npusim", "", str, lambda _: __version__),
    Fact("device", "device", "", str, lambda net: net.device.name),
    Fact("device_digest", "digest", "", str, lambda net: net.device.digest()),
    other_chips_of(lambda net: net.device),
    Fact("launch", "launch mode", "", str, lambda net: net.device.launch_mode),
    Fact("clock_hz", "clock", "Hz", counts, lambda net: net.device.clock_hz),
    Fact("batch", "batch", "", counts, lambda net: net.batch),
    Fact("dtype", "type of operands", "", str, lambda net: net.dtype.name),
    Fact("pass", "pass", "", str, lambda net: net.passes),
    Fact("gradients", "gradients", "", ", ".join, lambda net: list(net.gradients)),
    Fact("results", "results", "", ", ".join, lambda net: list(net.results)),
    Fact("complete", "complete", "", str, lambda net: net.complete),
    Fact("untimed", "not timed", "", str, lambda net: dict(net.workload.untimed)),
    Fact(
        "unknown_products",
        "unknown products",
        "",
        str,
        lambda net: dict(net.workload.unknown_products),
    ),
    Fact("cycles", "cycles", "", counts, lambda net: net.cycles),
    Fact("time_us", "time", "\u00b5s", us_text, lambda net: net.time_us),
    Fact("time_range_us", "range of the time", "\u00b5s", str, lambda net: net.known_range_us()),
    Fact("split", "time by part", "", str, lambda net: net.split),
    Fact("bottleneck", "bottleneck", "", str, lambda net: net.bottleneck),
    TOTAL_ENERGY,
    ENERGY_ROWS,
    ENERGY_MISSING,
    Fact("notes", "notes", "", str, lambda net: list(net.notes)),
    Fact("layers", "layers", "", str, lambda net: net.layer_rows()),
    Fact("kernels", "kernels", "", str, lambda net: net.kernel_rows()),
)


@collecting_seldom()
def network(
    workload: Any,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Any = None,
    loss: Any = None,
    targets: Any = None,
    batch: int = 1,
    dtype: Any = "fp16",
    passes: str = "backward",
    gradients: Iterable[str] = ("input", "weight"),
    cube_math_type: int | str = "keep_dtype",
    every_input: bool = False,
    jobs: int | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> NetworkResult:
    """Time the layers of ``workload``, for ``batch`` images.

    ``passes`` is "forward", "backward" or "training", which is both.

    ``workload`` is the name of one that ships, a path to a YAML file or a ``Workload``; or a path
    to an ONNX file or a ``torch.nn.Module``, whose layers are found without data. A module needs
    ``input_shape``, that of one image without the batch, or ``inputs``, one for each that it takes,
    an ONNX file where it leaves sizes open; ``loss`` and ``targets`` are those of a module
    (``npusim.workloads.read_network``).
    ``gradients`` are those computed, of "input", "weight" and "bias". As in training, the input of
    a layer before which nothing is trained has no gradient, unless ``every_input`` asks for it, and
    frozen weights and biases have none.
    Layers with a bias add it going forward, and have its gradient where that is asked for.
    Different layers are simulated in ``jobs`` processes (None: one per processor, where the work is
    worth their start), with the same result; with several ``progress`` is told of layers that are
    done.
    Runs of kernels and automatic tilings are kept in ``store`` ("": a file of the user's cache;
    None: in memory alone) by the figures they rest on: on a changed device only what the change
    touches is simulated. The keywords left are those of ``npusim.call.Options`` except
    ``timeline``, which is never kept: ``device`` is required.

    A layer that the device refuses does not stop the others: see ``NetworkResult.failed``.
    Raises ``ArgumentError`` where no layer can be simulated.
    """
    if batch < 1:
        raise ArgumentError(f"batch is {batch}; it must be at least 1 image")
    check_jobs(jobs)
    net = read_network(
        workload, input_shape, inputs=inputs, batch=batch, loss=loss, targets=targets
    )
    wanted = replace(
        Options.of(network, options, without=("timeline", "check", "layouts")), timeline=False
    )
    probe = Call("convolution_backward", wanted, True)  # wrong options fail here, not per layer
    if every_input:
        net = replace(net, layers=tuple(replace(one, input_gradient=True) for one in net.layers))
    backward = LayerRuns(
        options=replace(wanted, device=probe.device, cores=probe.groups),
        dtype=element_type(dtype),
        passes=_passes(passes),
        gradients=() if passes == "forward" else _gradients(gradients),
        cube_math_type=cube_math_type,
        store=store,
    )
    with answers_in(store), in_notebooks(wanted.progress, of_layers) as report:
        told = replace(backward.options, progress=report)
        timed = _timed(net, replace(backward, options=told), jobs)
    if not timed:
        raise ArgumentError(
            f"no layer of {net.name} has a gradient among {', '.join(backward.gradients)}: an "
            "input has one behind a trained layer, or with every_input=True (--every-input), a "
            "bias in a layer that has one (bias: yes)"
        )
    if all(one.result is None for one in timed):
        raise ArgumentError(
            f"no layer of {net.name} can be simulated; {timed[0].layer.name}: {timed[0].error}"
        )
    return NetworkResult(
        workload=net,
        device=probe.device,
        batch=batch,
        dtype=backward.dtype,
        gradients=backward.gradients,
        passes=backward.passes,
        timed=timed,
        untrained=tuple(
            one.name
            for one in net.layers
            if "input" in backward.gradients and not one.input_gradient
        ),
        frozen=tuple(
            one.name
            for one in net.layers
            if "weight" in backward.gradients and not one.weight_gradient
        ),
    )


def _timed(net: Workload, backward: LayerRuns, jobs: int | None) -> tuple[LayerTime, ...]:
    """Every layer with its result or the reason why it has none; equal shapes share theirs."""
    layers = [layer for layer in net.layers if backward.of(layer)]
    shapes = [replace(layer, name="", count=1) for layer in layers]
    first = dict(zip(reversed(shapes), reversed(layers), strict=True))
    distinct = tuple(dict.fromkeys(shapes))
    labels = [f"{first[shape].name} ({n}/{len(distinct)})" for n, shape in enumerate(distinct, 1)]
    work = list(zip([first[shape] for shape in distinct], labels, strict=True))
    several = min(job_count(jobs), len(work)) > 1
    found = backward.at_once(work, jobs) if several else map(backward.attempt, work)
    known = dict(zip(distinct, found, strict=True))
    return tuple(
        LayerTime(*known[shape], layer=layer) for layer, shape in zip(layers, shapes, strict=True)
    )


def _passes(name: str) -> str:
    if name not in PASSES:
        raise ArgumentError(f"passes is {name!r}; it is one of {', '.join(PASSES)}")
    return name


def _gradients(names: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(names)
    if not wanted or not set(wanted) <= set(GRADIENTS):
        raise ArgumentError(
            f"gradients are {wanted}; they must be one or more of {', '.join(GRADIENTS)}"
        )
    return tuple(name for name in GRADIENTS if name in wanted)
