"""Recurrent layers and cells of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch import moves
from npusim.workloads.from_torch.reader import AtenCall, Reader
from npusim.workloads.from_torch.values import TracedValue
from npusim.workloads.recurrent import GATES, Recurrent, States, recurrent


def layer(reader: Reader, call: AtenCall) -> tuple[Any, ...]:
    """An LSTM, GRU or RNN of any number of layers and directions; its output and last states."""
    kind = call.name
    if "batch_sizes" in call._arguments:
        return _packed(reader, call)
    x = call["input"]
    hx = call["hx"]
    if x.is_complex:
        raise ArgumentError(f"{reader.builder.title}: {kind} of complex values")
    firsts = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    if call["batch_first"]:
        x = x.seen(x.view.transpose(0, 1))
    outputs, lasts = _stacked(reader, call, kind, x, firsts)
    if call["batch_first"]:
        outputs = outputs.seen(outputs.view.transpose(0, 1))
    return (outputs, *lasts)


def _packed(reader: Reader, call: AtenCall) -> tuple[Any, ...]:
    """The same of packed sequences, whose batch differs from step to step."""
    raise ArgumentError(
        f"{reader.builder.title}: {call.name} ({reader.place}) of packed sequences has other sizes "
        "for each batch; read the module on padded ones"
    )


def _stacked(
    reader: Reader, call: AtenCall, kind: str, x: TracedValue, firsts: Sequence[TracedValue]
) -> tuple[TracedValue, list[Any]]:
    """All layers, one behind the other; ``x`` is (steps, batch, width)."""
    directions = 2 if call["bidirectional"] else 1
    layers = int(call["num_layers"])
    parameters = list(call["params"])
    each = len(parameters) // (layers * directions)
    states: list[States] = []
    for number in range(layers):
        outputs = []
        for direction in range(directions):
            place = number * directions + direction
            parameters_of_layer = parameters[place * each : (place + 1) * each]
            initial = [moves._selected(reader, first, 0, place) for first in firsts]
            suffix = f"l{number}" + ("_reverse" if direction else "")
            result, output = _one(
                reader, kind, x, initial, parameters_of_layer, bool(call["has_biases"]), suffix,
                reverse=bool(direction),
            )  # fmt: skip
            states.append(result)
            outputs.append(output)
        x = moves.joined(reader, outputs, 2)
        if call["train"] and call["dropout"] and number < layers - 1:
            dropped = ElementwiseLayer(kind="dropout", shape=x.shape)
            x = reader.value(reader.add("dropout", dropped, [reader.read(x)]), x.shape)
    return x, _last_states(reader, call, states, x.shape[1])


def _one(
    reader: Reader,
    kind: str,
    x: TracedValue,
    initial: Sequence[TracedValue],
    parameters: Sequence[TracedValue],
    biased: bool,  # as PyTorch has it
    suffix: str,
    *,
    reverse: bool = False,
) -> tuple[States, TracedValue]:
    """One direction of one layer, and its output (steps, batch, out)."""
    symbols = ["w_ih", "w_hh"] + (["b_ih", "b_hh"] if biased else [])
    if len(parameters) > len(symbols):
        symbols.append("w_hr")
    names = {}
    for symbol, value in zip(symbols, parameters, strict=True):
        name = reader.parameter(value)
        if name is None:
            raise ArgumentError(
                f"{reader.builder.title}: {reader.name(kind)} ({reader.place}) has weights that "
                "are computed; make them parameters, for example by "
                "torch.nn.utils.parametrize.remove_parametrizations"
            )
        names[symbol] = name
    steps, batch, width = x.shape
    out = initial[0].shape[-1]
    described = Recurrent(
        kind=kind,
        steps=steps,
        batch=batch,
        width=width,
        hidden=parameters[1].shape[0] // len(GATES[kind]),
        projected=out if "w_hr" in names else 0,
        parameters=names,
        reverse=reverse,
    )
    reads = [reader.read(state) for state in initial]
    word = reader.name(kind) + (f".{suffix}" if suffix else "")
    states = recurrent(
        reader.builder,
        word,
        described,
        reader.read(x),
        reads[0],
        reads[1] if len(reads) > 1 else None,
        unrolled=reader.unrolled,
        place=reader.place,
    )
    return states, reader.value(states.output, (steps, batch, out))


def _last_states(
    reader: Reader, call: AtenCall, states: Sequence[States], batch: int
) -> list[TracedValue]:
    """The last state of all layers, and the last cell; made when something reads them."""
    from npusim.workloads.from_torch.values import Later  # noqa: PLC0415

    results = []
    for place, result in enumerate(call.results[1:]):
        shape = tuple(int(size) for size in result.shape)

        def noted(place: int = place, shape: tuple[int, ...] = shape) -> str:
            parts = []
            for state in states:
                last = state.last_cell if place else state.last
                assert last is not None
                value, count, number = last
                noted_value = reader.value(value, (count * batch, shape[-1]))
                parts.append(
                    moves.part(reader, noted_value, 0, number * batch, (number + 1) * batch)
                )
            return reader.read(moves.joined(reader, parts, 0)).value

        results.append(reader.value(Later(noted), shape))
    return results


def cell(reader: Reader, call: AtenCall) -> Any:
    """One step of a recurrent layer."""
    kind = call.name.removesuffix("_cell")
    x = call["input"]
    hx = call["hx"]
    initial = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    single = len(x.shape) == 1
    if single:
        x = x.seen(x.view.unsqueeze(0))
        initial = [initial_state.seen(initial_state.view.unsqueeze(0)) for initial_state in initial]
    parameters = [call[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
    biased = parameters[2] is not None
    states, output = _one(
        reader,
        kind,
        x.seen(x.view.unsqueeze(0)),
        initial,
        parameters if biased else parameters[:2],
        biased,
        "",
    )
    shape = (x.shape[0], output.shape[-1])
    out = (shape[-1],) if single else shape
    state = moves.reshaped(reader, output, out)
    if kind != "lstm" or states.last_cell is None:
        return state
    return state, reader.value(states.last_cell[0], out)
