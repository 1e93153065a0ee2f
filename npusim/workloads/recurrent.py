"""Recurrent layers as products and functions of elements, for every source of networks.

The product of the input is one of all steps. What is left of a step, the cell, follows the step
before: the first stands for itself, as it reads the initial state, and those behind it are one with
a count, or ``unrolled`` one each, for a run that computes numbers. Equations are those of PyTorch's
``LSTM``, ``GRU`` and ``RNN``; the order of gates within the matrices is the source's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import Edge, GraphBuilder
from npusim.workloads.layers import LinearLayer

#: Gates of each kind of cell, in the order in which PyTorch's matrices have them; ONNX has the
#: orders "iofc" of an LSTM, where c is the cell's own input, and "zrh" of a GRU.
GATES = {"lstm": "ifgo", "gru": "rzn", "rnn_tanh": "h", "rnn_relu": "h"}


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """One direction of one recurrent layer: sizes and the names of its parameters.

    It reads ``steps`` times ``batch`` rows of ``width`` elements, and has a state of ``hidden``
    ones. ``parameters`` are those noted in the builder, (gates x hidden, width) "w_ih",
    (gates x hidden, hidden) "w_hh", vectors "b_ih" and "b_hh", and where an LSTM projects its
    output, (projected, hidden) "w_hr"; vectors and "w_hr" may be missing. ``gates`` is the order of
    gates in them, one letter each as in ``GATES``. Steps of one that runs in ``reverse`` begin at
    the last. A GRU that is ``reset_before`` multiplies what it resets, as ONNX has it unless told
    otherwise; the usual one resets what it has multiplied. Its "w_hh" and "b_hh" are those of the
    gates r and z alone, and "w_hn" and "b_hn" those of the new state.
    """

    kind: str
    steps: int
    batch: int
    width: int
    hidden: int
    parameters: Mapping[str, str]
    projected: int = 0
    gates: str = ""
    reverse: bool = False
    reset_before: bool = False

    @property
    def order(self) -> str:
        """The order of gates in its matrices."""
        return self.gates or GATES[self.kind]

    @property
    def out(self) -> int:
        """Elements of its output, and of the state that its product reads."""
        return self.projected or self.hidden


class States(NamedTuple):
    """Results of a recurrent layer: names of values.

    ``output`` is of all steps, (steps x batch, out), in the order of the steps. ``last`` and
    ``last_cell`` are those of its last step, as (value, repetitions, which one): the values have
    so many states one behind the other. An LSTM alone has a cell.
    """

    output: str
    last: tuple[str, int, int]
    last_cell: tuple[str, int, int] | None


def recurrent(
    builder: GraphBuilder,
    name: str,
    layer: Recurrent,
    x: Edge,
    state: Edge,
    cell: Edge | None = None,
    *,
    unrolled: bool = False,
    place: str = "",
) -> States:
    """Note a layer that reads ``x``, (steps, batch, width), from its initial ``state``.

    ``state`` is (batch, out) and ``cell``, of an LSTM, (batch, hidden). Nodes are called after
    ``name``. Raises ``ArgumentError`` for another kind of cell.
    """
    if layer.kind not in GATES:
        raise ArgumentError(f"{name} is a {layer.kind}; recurrent layers are {', '.join(GATES)}")
    return _Writer(builder, name, layer, place).written(x, state, cell, unrolled=unrolled)


class _Writer:
    """The nodes of one layer while they are written."""

    def __init__(self, builder: GraphBuilder, name: str, layer: Recurrent, place: str) -> None:
        self.builder = builder
        self.name = name
        self.layer = layer
        self.place = place
        self.count = 1

    def written(self, x: Edge, state: Edge, cell: Edge | None, *, unrolled: bool) -> States:
        layer = self.layer
        inputs = self._product("input", x, layer.width, layer.steps, "w_ih", "b_ih")
        states: list[Edge] = []
        cells: list[Edge | None] = []
        counts = [1] * layer.steps if unrolled or layer.steps < 3 else [1, layer.steps - 1]
        first = 0
        for self.count in counts:
            part = self._part(inputs, first)
            state, cell = self._cell(part, state, cell)
            states.append(state)
            cells.append(cell)
            first += self.count
            # What follows reads the last of its states; of a count only the sizes are known.
        self.count = 1
        output = self._output(states)
        last = states[-1]
        last_cell = cells[-1]
        return States(
            output,
            (last.value, counts[-1], counts[-1] - 1),
            None if last_cell is None else (last_cell.value, counts[-1], counts[-1] - 1),
        )

    def _output(self, states: Sequence[Edge]) -> str:
        """The states of all steps, one behind the other in the order of the steps."""
        if len(states) == 1:
            return states[0].value
        ordered = states[::-1] if self.layer.reverse else states
        reads = [Edge(edge.value, self.builder.shapes[edge.value]) for edge in ordered]
        shape = (self.layer.steps * self.layer.batch, self.layer.out)
        return self._add("output", ElementwiseLayer(kind="concat", shape=shape), *reads)

    def _part(self, inputs: str, first: int) -> Edge:
        """The part of the product of all steps, or the whole, that steps from ``first`` on read."""
        layer = self.layer
        width = len(layer.order) * layer.hidden
        full = (layer.steps * layer.batch, width)
        if self.count > 1 or layer.steps == 1:
            return Edge(inputs, full)
        step = layer.steps - 1 - first if layer.reverse else first
        before = step * layer.batch
        sliced = ElementwiseLayer(
            kind="slice",
            shape=full,
            out=(layer.batch, width),
            padding=((-before, before + layer.batch - full[0]), (0, 0)),
        )
        return Edge(self._add("input.slice", sliced, Edge(inputs, full)), sliced.out)

    def _product(
        self, what: str, x: Edge, width: int, rows: int, weight: str, bias: str, size: int = 0
    ) -> str:
        """The product of rows with one of the matrices, and its bias."""
        layer = self.layer
        parameters = {"w": self.layer.parameters[weight]}
        if bias in layer.parameters:
            parameters["b"] = layer.parameters[bias]
        product = LinearLayer(
            name="",
            cin=width,
            cout=size or len(layer.order) * layer.hidden,
            n=layer.batch,
            rows=rows,
            bias="b" in parameters,
        )
        return self.builder.add(
            f"{self.name}.{what}", product, [x], parameters=parameters, count=self.count,
            place=self.place,
        )  # fmt: skip

    def _cell(self, part: Edge, state: Edge, cell: Edge | None) -> tuple[Edge, Edge | None]:
        if self.layer.kind == "lstm":
            assert cell is not None
            return self._lstm(part, state, cell)
        if self.layer.kind == "gru":
            return self._gru(part, state), None
        hidden = self._hidden(state)
        total = self._of("add", "sum", part, hidden)
        return self._of(self.layer.kind.removeprefix("rnn_"), "state", total), None

    def _hidden(self, state: Edge) -> Edge:
        """The product of the state before, of all gates."""
        name = self._product("hidden", state, self.layer.out, 1, "w_hh", "b_hh")
        return self._edge(name, len(self.layer.order) * self.layer.hidden)

    def _lstm(self, part: Edge, state: Edge, cell: Edge) -> tuple[Edge, Edge]:
        gates = self._of("add", "gates", part, self._hidden(state))
        letters = self.layer.order.replace("c", "g")
        parts = {
            letter: self._gate(gates, letters.index(letter), letter)
            for letter in ("i", "f", "g", "o")
        }
        input_gate = self._of("sigmoid", "gate", parts["i"])
        forget_gate = self._of("sigmoid", "gate", parts["f"])
        output_gate = self._of("sigmoid", "gate", parts["o"])
        candidate = self._of("tanh", "gate", parts["g"])
        remembered = self._of("mul", "kept", forget_gate, cell)
        added = self._of("mul", "added", input_gate, candidate)
        cell = self._of("add", "cell", remembered, added)
        state = self._of("mul", "state", output_gate, self._of("tanh", "shown", cell))
        if self.layer.projected:
            name = self._product(
                "projection", state, self.layer.hidden, 1, "w_hr", "", self.layer.projected
            )
            state = self._edge(name, self.layer.projected)
        return state, cell

    def _gru(self, part: Edge, state: Edge) -> Edge:
        if self.layer.reset_before:
            return self._gru_reset_before(part, state)
        hidden = self._hidden(state)
        letters = self.layer.order.replace("h", "n")
        parts = {
            letter: [self._gate(value, letters.index(letter), letter) for value in (part, hidden)]
            for letter in "rzn"
        }
        reset = self._of("sigmoid", "gate", self._of("add", "gates", *parts["r"]))
        update = self._of("sigmoid", "gate", self._of("add", "gates", *parts["z"]))
        new, old = parts["n"]
        new = self._of("add", "new", new, self._of("mul", "reset", reset, old))
        new = self._of("tanh", "new", new)
        return self._between(new, state, update)

    def _gru_reset_before(self, part: Edge, state: Edge) -> Edge:
        size = self.layer.hidden
        letters = self.layer.order.replace("h", "n")
        name = self._product("hidden", state, size, 1, "w_hh", "b_hh", 2 * size)
        hidden = self._edge(name, 2 * size)
        both = letters.replace("n", "")
        gates = {}
        for letter in ("r", "z"):
            from_input = self._gate(part, letters.index(letter), letter)
            from_state = self._gate(hidden, both.index(letter), letter, 2 * size)
            total = self._of("add", "gates", from_input, from_state)
            gates[letter] = self._of("sigmoid", "gate", total)
        again = self._of("mul", "reset", gates["r"], state)
        name = self._product("new", again, size, 1, "w_hn", "b_hn", size)
        new = self._gate(part, letters.index("n"), "n")
        new = self._of("tanh", "new", self._of("add", "new", new, self._edge(name, size)))
        return self._between(new, state, gates["z"])

    def _between(self, new: Edge, state: Edge, update: Edge) -> Edge:
        """z h + (1 - z) n, with one product less."""
        change = self._of("sub", "change", state, new)
        return self._of("add", "state", new, self._of("mul", "kept", update, change))

    def _gate(self, gates: Edge, place: int, letter: str, width: int = 0) -> Edge:
        """The elements of one gate, of all those ``width`` of a step."""
        size = self.layer.hidden
        width = width or len(self.layer.order) * size
        layer = ElementwiseLayer(
            kind="slice",
            shape=(self.layer.batch, width),
            out=(self.layer.batch, size),
            padding=((0, 0), (-place * size, (place + 1) * size - width)),
        )
        return self._edge(self._add(f"gate_{letter}", layer, gates), size)

    def _of(self, kind: str, what: str, *reads: Edge) -> Edge:
        """A function of elements of one step."""
        width = reads[0].shape[-1]
        name = self._add(what, ElementwiseLayer(kind=kind, shape=(self.layer.batch, width)), *reads)
        return self._edge(name, width)

    def _edge(self, name: str, width: int) -> Edge:
        """The edge by which a node reads the value of the same steps."""
        return Edge(name, (self.count * self.layer.batch, width))

    def _add(self, what: str, layer: ElementwiseLayer, *reads: Edge) -> str:
        return self.builder.add(
            f"{self.name}.{what}", layer, reads, parameters={}, count=self.count,
            place=self.place,
        )  # fmt: skip
