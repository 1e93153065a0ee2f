"""Maps whose axes get other sizes by weighted sums, axis after axis: enlarging, and means."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npusim.call.call import Call
from npusim.isa.operands import Tensor
from npusim.kernels.blend import Blend
from npusim.networks.rules.training import Operation
from npusim.workloads import ElementwiseLayer

#: The inputs that each output rests on, with their weights.
Terms = tuple[tuple[tuple[int, float], ...], ...]

#: Axes of blocks of channels (N, D, C1, H, W, C0) that are places, the last first.
_PLACES = (4, 3, 1)


def launch(call: Call, one: Operation, tensors: Mapping[str, Tensor]) -> None:
    """Launch a kernel for each axis that changes, the last axis first, in gradients last."""
    layer, back = one.layer, one.core.endswith("gradient")
    assert isinstance(layer, ElementwiseLayer)
    now, target = tensors[one.inputs[0]], tensors[one.outputs[0]]
    x, y = (target.shape, now.shape) if back else (now.shape, target.shape)
    todo = []
    for number, axis in enumerate(_PLACES):
        terms = _terms(layer, number, x[axis], y[axis])
        if terms != tuple(((at, 1.0),) for at in range(x[axis])):
            todo.append((axis, _transposed(terms, x[axis]) if back else terms))
    for left, (axis, terms) in enumerate(todo[::-1] if back else todo, 1 - len(todo)):
        shape = (*now.shape[:axis], len(terms), *now.shape[axis + 1 :])
        made = call.workspace(f"axis{axis}", shape, now.dtype) if left else target
        planes, row = prod(shape[:axis]), prod(shape[axis + 1 :])
        ends = [call.view(end, (planes, end.shape[axis], row)) for end in (now, made)]
        call.launch_spread(Blend(ends[0], ends[1], terms, saturate=call.device.saturates))
        now = made


def _terms(layer: ElementwiseLayer, number: int, inputs: int, outputs: int) -> Terms:
    """What the outputs of a layer are of the inputs, along the last axis or so many before it.

    Between neighbours the centres of pixels lie evenly, or the corners of both maps are one; a mean
    is that of what a window has inside the map, or of equal shares of it.
    """
    if layer.kind == "upsample":
        return tuple(((at * inputs // outputs, 1.0),) for at in range(outputs))
    if layer.kind == "interpolate":
        places = [max(0.0, (at + 0.5) * inputs / outputs - 0.5) for at in range(outputs)]
        if layer.numbers:  # corners are aligned
            places = [at * (inputs - 1) / max(1, outputs - 1) for at in range(outputs)]
        return tuple(_between(place, inputs) for place in places)
    ends = [(at * inputs // outputs, -(-(at + 1) * inputs // outputs)) for at in range(outputs)]
    if number < len(layer.kernel):
        size, step = layer.kernel[-1 - number], layer.stride[-1 - number]
        begins = [at * step - layer.padding[-1 - number][0] for at in range(outputs)]
        ends = [(max(0, begin), min(inputs, begin + size)) for begin in begins]
        if layer.numbers:  # of all that a window has, zeros around the map too
            return tuple(tuple((at, 1 / size) for at in range(a, b)) for a, b in ends)
    elif layer.kernel:
        ends = [(at, at + 1) for at in range(outputs)]
    return tuple(tuple((at, 1 / (b - a)) for at in range(a, b)) for a, b in ends)


def _between(place: float, inputs: int) -> tuple[tuple[int, float], ...]:
    """The one or two inputs beside a place, with their shares of it."""
    first = min(int(place), inputs - 1)
    share = round(place - first, 9)
    terms = (first, 1 - share), (first + 1, share)
    return terms if share and first + 1 < inputs else ((first, 1.0),)


def _transposed(terms: Terms, inputs: int) -> Terms:
    """What the gradients of inputs are of those of outputs."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(inputs)]
    for output, own in enumerate(terms):
        for at, weight in own:
            found[at].append((output, weight))
    return tuple(map(tuple, found))
