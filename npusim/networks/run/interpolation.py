"""Maps whose axes get other sizes by weighted sums, axis after axis: enlarging, and means."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import gcd, prod

import numpy as np
from msgspec import Struct

from npusim.base.integers import IntArray
from npusim.call.call import Call
from npusim.kernels.estimate.work import Floats
from npusim.kernels.vector.blend import Blend, widest_step
from npusim.kernels.vector.blend_periods import BlendPeriods, Periods, Terms
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.networks.rules.values import Operation
from npusim.workloads import ElementwiseLayer

#: Axes of blocks of channels (N, D, C1, H, W, C0) that are places, the last first.
_PLACES = (4, 3, 1)


class Weights(Struct, frozen=True):
    """Weighted sums that give ``outputs`` places of an axis from its ``inputs``, term by term.

    Terms are those of the first output first, by rising number of the input.
    """

    inputs: int
    outputs: int
    output: IntArray
    input: IntArray
    weight: Floats

    @property
    def is_identity(self) -> bool:
        """Return whether every place stays as it is."""
        every = np.arange(self.inputs)
        return (
            self.inputs == self.outputs == len(self.weight)
            and np.array_equal(self.output, every)
            and np.array_equal(self.input, every)
            and bool((self.weight == 1).all())
        )

    def transposed(self) -> Weights:
        """The weights of the gradients of outputs in those of inputs."""
        order = np.lexsort((self.output, self.input))
        return Weights(
            self.outputs, self.inputs, self.input[order], self.output[order], self.weight[order]
        )

    def terms(self, first: int = 0, end: int | None = None) -> Terms:
        """The terms of the outputs from ``first`` to ``end``: (input, weight) each."""
        end = self.outputs if end is None else end
        begins = np.searchsorted(self.output, np.arange(first, end + 1)).tolist()
        inputs = self.input.tolist()
        weights = self.weight.tolist()
        return tuple(
            tuple(zip(inputs[begin:stop], weights[begin:stop], strict=True))
            for begin, stop in pairwise(begins)
        )

    def periods(self) -> Periods | None:
        """The periods with which fewest terms have to be listed; None if no weights repeat.

        Places that lie evenly repeat after the smallest whole ratio of the sizes; where the corners
        of both maps are one, of the sizes less one.
        """
        periods = []
        for less in (0, 1):
            outputs = self.outputs - less
            inputs = self.inputs - less
            common = gcd(outputs, inputs)
            if common > 1:
                periods.append(self._repeated(outputs // common, inputs // common))
        possible = (period for period in periods if period)
        return min(possible, key=lambda period: period.listed, default=None)

    def _repeated(self, period: int, apart: int) -> Periods | None:
        """The longest run of periods of so many outputs, each with inputs so far apart."""
        begins = np.searchsorted(self.output, np.arange(self.outputs + 1))
        counts = np.diff(begins)
        shift = begins[period:-1] - begins[: -period - 1]  # from a term to that a period later
        terms = np.arange(begins[self.outputs - period])
        later = np.minimum(terms + shift[self.output[terms]], len(self.weight) - 1)
        alike = (self.input[terms] + apart == self.input[later]) & (
            self.weight[terms] == self.weight[later]
        )
        other = np.bincount(self.output[terms][~alike], minlength=self.outputs - period)
        repeats = (counts[:-period] == counts[period:]) & (other == 0)
        edges = np.flatnonzero(np.diff(np.r_[False, repeats, False]))
        if not len(edges):
            return None
        runs = edges.reshape(-1, 2)
        first, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
        count = (end - first) // period + 1
        behind = first + count * period
        return Periods(
            self.terms(first, first + period),
            count,
            apart,
            self.terms(0, first),
            self.terms(behind),
        )


def launch(call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
    """Launch a kernel for each axis that changes, the last axis first, in gradients last."""
    layer = operation.layer
    back = operation.core.endswith("gradient")
    assert isinstance(layer, ElementwiseLayer)
    now = tensors[operation.inputs[0]]
    target = tensors[operation.outputs[0]]
    x, y = (target.shape, now.shape) if back else (now.shape, target.shape)
    todo = []
    for number, axis in enumerate(_PLACES):
        weights = weights_of(layer, number, x[axis], y[axis])
        if not weights.is_identity:
            todo.append((axis, weights.transposed() if back else weights))
    if back:
        todo.reverse()
    for number, (axis, weights) in enumerate(todo, 1):
        result = target
        if number < len(todo):
            shape = (*now.shape[:axis], weights.outputs, *now.shape[axis + 1 :])
            result = call.workspace(f"axis{axis}", shape, now.dtype)
        _launch_axis(call, now, result, axis, weights)
        now = result


def _launch_axis(call: Call, source: Tensor, target: Tensor, axis: int, weights: Weights) -> None:
    """Launch the kernel of one axis."""
    planes = prod(target.shape[:axis])
    row = prod(target.shape[axis + 1 :])
    read = call.view(source, (planes, source.shape[axis], row))
    written = call.view(target, (planes, target.shape[axis], row))
    call.launch_spread(_kernel(call, read, written, weights))


def _kernel(call: Call, read: Tensor, written: Tensor, weights: Weights) -> Kernel:
    """The kernel of an axis: with a term of an output in many planes, or in many periods.

    Where all of the planes that UB holds are less than a repeat of the vector unit, a term of each
    output would take an instruction, which is as many as there are outputs.
    """
    saturate = call.device.saturates
    row = read.shape[2]
    together = widest_step(call.device, call.vector_cores, read, weights.outputs)
    if together * row * 4 < call.device.vector.repeat_bytes:
        periods = weights.periods()
        if periods is not None:
            return BlendPeriods(read, written, periods, saturate=saturate)
    return Blend(read, written, weights.terms(), saturate=saturate)


def weights_of(layer: ElementwiseLayer, number: int, inputs: int, outputs: int) -> Weights:
    """The weights of a layer's inputs in its outputs, along the last axis or so many before it.

    Between neighbours the centres of pixels lie evenly, or the corners of both maps are one; a mean
    is that of what a window has inside the map, or of equal shares of it.
    """
    place = np.arange(outputs)
    if layer.kind == "upsample":
        return Weights(inputs, outputs, place, place * inputs // outputs, np.ones(outputs))
    if layer.kind == "interpolate":
        # Places as whole numbers of parts, so that those that repeat have equal weights.
        parts = max(1, outputs - 1) if layer.numbers else 2 * outputs
        number_of_parts = (
            place * (inputs - 1) if layer.numbers else (2 * place + 1) * inputs - outputs
        )
        return _between(np.maximum(0, number_of_parts), parts, inputs)
    begins = place * inputs // outputs
    ends = -(-(place + 1) * inputs // outputs)
    share = 0.0  # of an input: one over the inputs of the window inside the map
    if number < len(layer.kernel):
        size = layer.kernel[-1 - number]
        step = layer.stride[-1 - number]
        first = place * step - layer.padding[-1 - number][0]
        begins = np.maximum(0, first)
        ends = np.minimum(inputs, first + size)
        if layer.numbers:  # of all that a window has, zeros around the map too
            share = 1 / size
    elif layer.kernel:
        begins = place
        ends = place + 1
    sizes = np.maximum(0, ends - begins)
    output = np.repeat(place, sizes)
    firsts = np.cumsum(sizes) - sizes
    within = np.arange(len(output)) - firsts[output]
    weight = np.full(len(output), share) if share else 1 / sizes[output]
    return Weights(inputs, outputs, output, begins[output] + within, weight)


def _between(place: IntArray, parts: int, inputs: int) -> Weights:
    """The one or two inputs beside each place, with their shares of it; places are in parts."""
    outputs = len(place)
    first = np.minimum(place // parts, inputs - 1)
    share = (place - first * parts) / parts
    two = (share > 0) & (first + 1 < inputs)
    output = np.r_[np.arange(outputs), np.flatnonzero(two)]
    weight = np.r_[np.where(two, 1 - share, 1.0), share[two]]
    order = np.argsort(output, kind="stable")
    return Weights(
        inputs, outputs, output[order], np.r_[first, first[two] + 1][order], weight[order]
    )
