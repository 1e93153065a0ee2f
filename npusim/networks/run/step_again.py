"""A step as it can be timed again, and its operations that are one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate

from npusim.machine.device.spec import Device
from npusim.networks.run.all_reduce import exchanged
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.results.facts.step_losses import AlikeOperations
from npusim.results.facts.step_replay import StepCall, StepLaunch, StepReplay


def replay_of(
    device: Device,
    launched: Sequence[LaunchedOperation],
    cards: int,
    parameters: Collection[str],
) -> StepReplay | None:
    """How to time a step again; None where one of its results does not know how.

    Gradients of ``parameters`` are exchanged between ``cards``. Operations without a result take no
    time here either.
    """
    by_result = _calls(launched)
    if by_result is None:
        return None
    places = {key: place for place, key in enumerate(by_result)}
    calls = tuple(by_result.values())
    launches = tuple(
        None if operation.timed.result is None
        else StepLaunch(
            places[id(operation.timed.result)], operation.count,
            operation.fetched_bytes, operation.written_back_bytes,
        )
        for operation in launched
    )  # fmt: skip
    if cards == 1:
        return StepReplay(device, calls, launches, _no_exchange)
    exchange = partial(_exchange, cards, parameters, launched)
    figures = tuple(path for path in device.provenance if path.startswith("cards."))
    return StepReplay(device, calls, launches, exchange, figures)


def alike_operations(launched: Sequence[LaunchedOperation]) -> Iterator[AlikeOperations]:
    """Operations with a time, those that are one call together."""
    by_result: dict[int, list[LaunchedOperation]] = {}
    for operation in launched:
        if operation.timed.result is not None:
            by_result.setdefault(id(operation.timed.result), []).append(operation)
    for operations in by_result.values():
        first = operations[0]
        result = first.timed.result
        assert result is not None
        if result.replay is None or not result.problem_bounds:
            continue
        count = sum(operation.count for operation in operations)
        yield AlikeOperations(
            names=tuple(operation.name for operation in operations),
            kind=first.kind,
            phase=first.phase,
            call=StepCall(first.kind, result.runs, result.replay, result.time_us, count),
            least=result.problem_bounds[0],
        )


def _calls(launched: Sequence[LaunchedOperation]) -> dict[int, StepCall] | None:
    """The calls of a step by the identity of their results; None if one cannot be timed again."""
    calls: dict[int, StepCall] = {}
    for operation in launched:
        result = operation.timed.result
        if result is None:
            continue
        if result.replay is None:
            return None
        count = operation.count
        if id(result) in calls:
            count += calls[id(result)].count
        calls[id(result)] = StepCall(
            operation.kind, result.runs, result.replay, result.time_us, count
        )
    return calls


def _no_exchange(device: Device, times: Sequence[float]) -> float:
    """Nothing: one card has all gradients."""
    return 0.0


def _exchange(
    cards: int,
    parameters: Collection[str],
    launched: Sequence[LaunchedOperation],
    device: Device,
    times: Sequence[float],
) -> float:
    """Microseconds that exchanging gradients adds to operations that take so long each."""
    return exchanged(device, cards, parameters, launched, [*accumulate(times)]).added_us
