"""A step as it can be timed again, and its operations that are one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate

from npusim.machine.device.spec import Device
from npusim.networks.run.all_reduce import exchanged
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.results import Result
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
    calls = _calls(launched)
    if calls is None:
        return None
    places = {id(result): place for place, result in enumerate(_results(launched))}
    launches = tuple(
        None if operation.timed.result is None
        else StepLaunch(places[id(operation.timed.result)], operation.count)
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
            call=StepCall(result.runs, result.replay, result.time_us, count),
            least=result.problem_bounds[0],
        )


def _results(launched: Sequence[LaunchedOperation]) -> list[Result]:
    """The results of operations, each once."""
    results = (operation.timed.result for operation in launched)
    return [*{id(result): result for result in results if result is not None}.values()]


def _calls(launched: Sequence[LaunchedOperation]) -> tuple[StepCall, ...] | None:
    """The calls of a step in the order of ``_results``; None where one cannot be timed again."""
    counts: dict[int, int] = {}
    for operation in launched:
        key = id(operation.timed.result)
        counts[key] = counts.get(key, 0) + operation.count
    calls = []
    for result in _results(launched):
        if result.replay is None:
            return None
        calls.append(StepCall(result.runs, result.replay, result.time_us, counts[id(result)]))
    return tuple(calls)


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
