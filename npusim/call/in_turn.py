"""Several calls one after another, as one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from npusim.base.integers import IntArray
from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.bounds import longest_first
from npusim.machine.timing.trace import Bound, Trace
from npusim.results import Result
from npusim.results.facts.replay import Replay
from npusim.reuse.launches import notes_on_figures


def in_turn(results: Sequence[Result]) -> Result:
    """Timing-only calls of one device as one; each begins with the L2 as if it were alone.

    Bounds of the problem are those of all, added up by resource.
    """
    bounds: dict[str, Bound] = {}
    for bound in (bound for one in results for bound in one.problem_bounds):
        before = bounds.get(bound.resource)
        bounds[bound.resource] = bound if before is None else before.plus(bound)
    device = results[0].device
    again = [one for one in results if one.replay is not None]
    replay = InTurn(
        tuple(cast(Replay, one.replay) for one in again),
        tuple(len(one.runs) for one in again),
        device,
    )
    notes, figures = notes_of(device, results)
    return replace(
        results[0],
        operator=" + ".join(one.operator for one in results),
        runs=tuple(run for one in results for run in one.runs),
        notes=(*notes, *figures),
        problem="; ".join(one.problem for one in results),
        workspace_bytes=max(one.workspace_bytes for one in results),
        problem_bounds=longest_first(bounds.values()),
        tilings={name: tiling for one in results for name, tiling in one.tilings.items()},
        replay=replay,
    )


def notes_of(device: Device, results: Iterable[Result]) -> tuple[list[str], tuple[str, ...]]:
    """The notes of results, each once, and those on the figures that all of them rest on."""
    notes: dict[str, None] = {}
    figures: dict[str, None] = {}
    for one in results:
        behind = one.replay.figures if one.replay is not None else ()
        usual = notes_on_figures(device, behind)
        notes |= dict.fromkeys(note for note in one.notes if note not in usual)
        figures |= dict.fromkeys(behind)
    return [*notes], notes_on_figures(device, figures)


class InTurn:
    """Times calls one after another, each of so many ``kernels``, on variants of their device."""

    def __init__(self, parts: tuple[Replay, ...], kernels: tuple[int, ...], device: Device) -> None:
        self.parts, self.kernels, self.device = parts, kernels, device
        self.figures = tuple(dict.fromkeys(name for one in parts for name in one.figures))

    def time_us(self, device: Device) -> float:
        """Microseconds of all on ``device``."""
        return sum(one.time_us(device) for one in self.parts)

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """What the time of every kernel rests on."""
        return tuple(trace for one in self.parts for trace in one.traces(device))

    def programs(self, device: Device) -> tuple[Program, ...]:
        """The program of every kernel."""
        return tuple(program for one in self.parts for program in one.programs(device))

    def spread_us(self, device: Device) -> float | None:
        """Microseconds with vector kernels on the cores that ``device`` favours; None as of one."""
        times = [one.spread_us(device) for one in self.parts]
        if all(us is None for us in times):
            return None
        pairs = zip(self.parts, times, strict=True)
        return sum(one.time_us(device) if us is None else us for one, us in pairs)

    def on_all_cores_us(self, place: int) -> float | None:
        """Microseconds with kernel ``place`` on all its cores; None where nothing limits them."""
        part, within, others_us = self._part_of(place)
        us = part.on_all_cores_us(within)
        return None if us is None else others_us + us

    def evenly_us(self, place: int) -> float | None:
        """Microseconds with the tasks of kernel ``place`` dealt out evenly; None as of a call."""
        part, within, others_us = self._part_of(place)
        us = part.evenly_us(within)
        return None if us is None else others_us + us

    def _part_of(self, place: int) -> tuple[Replay, int, float]:
        """The call that kernel ``place`` is of, its place there, and the time of the others."""
        for part, count in zip(self.parts, self.kernels, strict=True):
            if place < count:
                others = (one.time_us(self.device) for one in self.parts if one is not part)
                return part, place, sum(others)
            place -= count
        raise IndexError(place)

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """What every instruction of every kernel waited for, by rows of its timeline."""
        return tuple(rows for one in self.parts for rows in one.causes(device))
