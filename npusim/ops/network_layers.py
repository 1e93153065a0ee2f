"""The calls of operators that a network's passes make for each of its layers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from npusim import ops
from npusim.base.dtypes import DType
from npusim.base.errors import NpusimError, StoreError, naming
from npusim.base.records import replace
from npusim.base.workers import Workers
from npusim.call.in_turn import in_turn
from npusim.call.options import Options
from npusim.call.spec import spec
from npusim.ops.conv_backward import GRADIENTS, arguments
from npusim.ops.linear import linear_layer
from npusim.results import Result
from npusim.reuse.answers import answers_in
from npusim.workloads import Layer, LinearLayer

#: The phase that ``progress`` is told of where layers are done in other processes.
LAYERS_DONE = "layers"


class LayerRuns(Struct, frozen=True, kw_only=True):
    """Simulates layers of a network, with what is the same for all of them.

    Runs of kernels are kept in the file ``store`` ("": one of the user's cache), None in none.
    """

    options: Options
    dtype: DType
    passes: str
    gradients: tuple[str, ...]
    cube_math_type: int | str
    store: str | Path | None = None

    def of(self, layer: Layer) -> tuple[str, ...]:
        """The results that are computed of a layer: only gradients that something trained needs."""
        has = {
            "input": layer.input_gradient,
            "weight": layer.weight_gradient,
            "bias": layer.bias and layer.bias_gradient,
        }
        wanted = tuple(name for name in self.gradients if has[name])
        return wanted if self.passes == "backward" else ("output", *wanted)

    def attempt(self, work: tuple[Layer, str]) -> tuple[Result | None, str]:
        """The result of a layer with this label, or the reason why there is none.

        Raises ``StoreError``, and ``TaskError`` for code that is wrong; both name the layer.
        """
        with naming(partial(_labelled, work)):
            try:
                with answers_in(self.store):
                    return self.run(*work), ""
            except StoreError:
                raise
            except NpusimError as error:
                return None, str(error)

    def at_once(
        self, work: Sequence[tuple[Layer, str]], jobs: int | None
    ) -> list[tuple[Result | None, str]]:
        """``attempt`` in processes, the largest first; what is done is reported here."""
        quiet = replace(self, options=replace(self.options, progress=None))
        results: dict[int, tuple[Result | None, str]] = {}
        order = sorted(range(len(work)), key=lambda place: -_effort(work[place][0]))
        listed = [work[place] for place in order]
        devices = (quiet.options.machine,)
        with Workers(jobs) as workers:
            answers = workers.each(quiet.attempt, listed, _labelled, kind=_maps, shared=devices)
            for number, result in answers:
                place = order[number]
                results[place] = result
                if self.options.progress is not None:
                    self.options.progress(work[place][1], LAYERS_DONE, len(results), len(work))
        return [results[place] for place in range(len(work))]

    def run(self, layer: Layer, label: str) -> Result:
        """Simulate one layer; ``label`` says in reports of progress which it is."""

        def labelled(kernel: str, phase: str, done: int, total: int) -> None:
            if self.options.progress is not None:
                self.options.progress(f"{label} {kernel}", phase, done, total)

        options = replace(self.options, progress=labelled)
        wanted = self.of(layer)
        if isinstance(layer, LinearLayer):
            if options.tiling == "library":  # no rule is public of products of matrices
                options = replace(options, tiling="auto")
            return linear_layer(layer, self.dtype, wanted, options, self.cube_math_type)
        x = spec(layer.x_shape, self.dtype)
        w = spec(layer.w_shape, self.dtype)
        common: dict[str, Any] = {
            **arguments(layer),
            "cube_math_type": self.cube_math_type,
            **vars(options),
        }
        calls: list[Result] = []
        if "output" in wanted:
            forward = {name: value for name, value in common.items() if name != "deterministic"}
            if forward["rules"] == "strict":  # it would refuse each forward pass, without a page
                forward["rules"] = "documented"
            bias = spec((layer.cout,), self.dtype) if layer.bias else None
            calls.append(ops.convolution(x, w, bias, **forward))
        mask = tuple(name.removeprefix("grad_") in wanted for name in GRADIENTS)
        if any(mask):
            _, _, bias_wanted = mask
            sizes = (layer.cout,) if bias_wanted else None
            dy = spec(layer.dy_shape, self.dtype)
            calls.append(ops.convolution_backward(dy, x, w, sizes, output_mask=mask, **common))
        return calls[0] if len(calls) == 1 else in_turn(calls)


def _effort(layer: Layer) -> int:
    """Roughly the instructions of a layer: 16x16x16 multiply-adds, and 16 elements that move."""
    if isinstance(layer, LinearLayer):
        moved = layer.stack * layer.cin * layer.cout + layer.all_rows * (layer.cin + layer.cout)
    else:
        moved = sum(map(math.prod, (layer.x_shape, layer.dy_shape, layer.w_shape)))
    return layer.macs // 16**3 + moved // 16


def _maps(work: tuple[Layer, str]) -> Hashable:
    """What layers have in common whose maps are converted by the same kernels: sizes of maps."""
    layer, _ = work
    return layer.rows if isinstance(layer, LinearLayer) else layer.dy_shape[2:]


def _labelled(work: tuple[Layer, str]) -> str:
    """The name of a layer's simulation in errors."""
    _, label = work
    return f"layer {label}"
