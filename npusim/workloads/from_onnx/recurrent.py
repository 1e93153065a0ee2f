"""Recurrent layers in an ONNX file: ``LSTM``, ``GRU``, ``RNN``, one direction after the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.moves import cut, whole
from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.graph import MULTIPLIES, Edge
from npusim.workloads.recurrent import Recurrent, States, recurrent

#: The order of gates in ONNX's matrices, and the functions that they have unless told otherwise.
_GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def recurrent_layer(values: Values, step: Step) -> None:
    """Note a recurrent layer; one of unusual functions is known by name only."""
    directions = values.sized.shape(step, step.inputs[1])[0]
    stated = [
        name.decode() if isinstance(name, bytes) else str(name)
        for name in step.attributes.get("activations") or _USUAL[step.kind] * directions
    ]
    kinds = _kinds(step.kind, stated, directions)
    if not kinds:
        values.unknown(step, f"{MULTIPLIES}{step.kind}")
        return
    if step.operand(4):
        values.sized.notes.append(f"{step.name}: lengths of sequences count as the longest")
    if step.operand(7):
        values.sized.notes.append(f"{step.name}: its peepholes are left out")
    by_images = bool(step.attributes.get("layout", 0))
    x = values.value(step.inputs[0])
    x = values.laid(x.transposed((1, 0, 2)) if by_images else x, step)
    states = [_direction(values, step, x, kind, place) for place, kind in enumerate(kinds)]
    _results(values, step, x.shape, states, by_images=by_images)


def _kinds(operator: str, stated: Sequence[str], directions: int) -> list[str]:
    """The kind of cell of each direction, none where a function is another than the usual."""
    size = len(_USUAL[operator])
    kinds = []
    for place in range(directions):
        names = [name.lower() for name in stated[place * size : (place + 1) * size]]
        if operator == "RNN" and names in (["tanh"], ["relu"]):
            kinds.append(f"rnn_{names[0]}")
        elif names == [name.lower() for name in _USUAL[operator]]:
            kinds.append(operator.lower())
    return kinds if len(kinds) == directions else []


def _direction(values: Values, step: Step, x: OnnxValue, kind: str, place: int) -> States:
    """The nodes of one direction."""
    steps, batch, width = x.shape
    hidden = values.sized.shape(step, step.inputs[2])[-1]
    forward = step.attributes.get("direction", "forward") != "reverse"
    reset_before = step.kind == "GRU" and not step.attributes.get("linear_before_reset", 0)
    layer = Recurrent(
        kind=kind,
        steps=steps,
        batch=batch,
        width=width,
        hidden=hidden,
        parameters=_parameters(values, step, place, hidden, reset_before=reset_before),
        gates=_GATES[step.kind],
        reverse=not forward or place == 1,
        reset_before=reset_before,
    )
    state = _state(values, step, 5, place, (batch, hidden))
    cell = _state(values, step, 6, place, (batch, hidden)) if step.kind == "LSTM" else None
    directions = values.sized.shape(step, step.inputs[1])[0]
    name = f"{step.name}.{('forward', 'backward')[place]}" if directions > 1 else step.name
    return recurrent(
        values.builder,
        name,
        layer,
        Edge(x.name, x.shape),
        state,
        cell,
        unrolled=values.unrolled,
        place=step.name,
    )


def _parameters(
    values: Values, step: Step, place: int, hidden: int, *, reset_before: bool
) -> dict[str, str]:
    """The matrices and biases of one direction, noted as parameters of their own."""
    directions, rows, width = values.sized.shape(step, step.inputs[1])
    end = f".{place}" if directions > 1 else ""
    builder = values.builder
    weight, state = step.inputs[1:3]
    parameters = {"w_ih": builder.parameter(f"{weight}{end}", (rows, width))}
    gates = 2 * hidden
    if reset_before:
        parameters["w_hh"] = builder.parameter(f"{state}{end}.gates", (gates, hidden))
        parameters["w_hn"] = builder.parameter(f"{state}{end}.new", (hidden, hidden))
    else:
        parameters["w_hh"] = builder.parameter(f"{state}{end}", (rows, hidden))
    if step.operand(3):
        bias = step.operand(3)
        parameters["b_ih"] = builder.parameter(f"{bias}{end}.input", (rows,))
        if reset_before:
            parameters["b_hh"] = builder.parameter(f"{bias}{end}.gates", (gates,))
            parameters["b_hn"] = builder.parameter(f"{bias}{end}.new", (hidden,))
        else:
            parameters["b_hh"] = builder.parameter(f"{bias}{end}.hidden", (rows,))
    return parameters


def _state(values: Values, step: Step, operand: int, place: int, shape: tuple[int, int]) -> Edge:
    """The first state of a direction: zeros, a constant, or a part of a value."""
    name = step.operand(operand)
    is_stated = name in values.sized.numbers or name in values.sized.constants
    if not name or is_stated:
        array = values.constant(name)
        data = np.zeros(shape, np.float32)
        if array is not None:
            many = np.asarray(array, np.float32)
            many = many.swapaxes(0, 1) if step.attributes.get("layout", 0) else many
            data = np.broadcast_to(many[place], shape)
        called = f"{step.name}.{'cell' if operand == 6 else 'state'}.{place}"
        return Edge(values.builder.parameter(called, shape, trained=False, data=data), shape)
    value = values.value(name)
    if step.attributes.get("layout", 0):
        value = value.transposed((1, 0, 2))
    parts = whole(value.shape)
    parts[0] = (place, 1, 1)
    state = values.laid(cut(values, step, value, parts, part="state"), step)
    if prod(state.shape) != prod(shape):
        state = values.expanded(state.seen((1, shape[1])), step, shape)
    return Edge(state.name, shape)


def _results(
    values: Values, step: Step, x: tuple[int, ...], states: Sequence[States], *, by_images: bool
) -> None:
    """Note the states of all steps, and the last ones where something reads them.

    Both directions lie side by side for each step and image; ONNX has their axis before that of
    the images.
    """
    steps, batch, _ = x
    names = [*step.outputs, "", ""]
    directions = len(states)
    hidden = values.builder.shapes[states[0].output][-1]
    if _wanted(values, names[0]):
        lies = (steps, batch, directions, hidden)
        edges = [Edge(states_of_one.output, (steps, batch, 1, hidden)) for states_of_one in states]
        value = _joined(values, step, edges, lies, "directions")
        values.put(names[0], value.transposed((1, 0, 2, 3) if by_images else (0, 2, 1, 3)))
    for name, lasts in (
        (names[1], [states_of_one.last for states_of_one in states]),
        (names[2], [states_of_one.last_cell for states_of_one in states]),
    ):
        if not _wanted(values, name):
            continue
        edges = []
        for last in lasts:
            assert last is not None
            called, times, which = last
            rows = OnnxValue(called, (times * batch, hidden))
            taken = cut(
                values, step, rows, [(which * batch, batch, 1), (0, hidden, 1)], part="last"
            )
            edges.append(Edge(taken.name, (1, batch, hidden)))
        value = _joined(values, step, edges, (directions, batch, hidden), "last")
        values.put(name, value.transposed((1, 0, 2)) if by_images else value)


def _wanted(values: Values, name: str) -> bool:
    return bool(name) and bool(values.readers.get(name) or values.outputs[name])


def _joined(
    values: Values, step: Step, edges: Sequence[Edge], shape: tuple[int, ...], part: str
) -> OnnxValue:
    """Values of both directions as one; the value itself where there is one direction."""
    if len(edges) == 1:
        return OnnxValue(edges[0].value, shape)
    layer = ElementwiseLayer(kind="concat", shape=shape, out=shape)
    return values.add(step, layer, edges, part=part)
