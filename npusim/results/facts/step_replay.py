"""Timing a step again: each of its distinct calls once, on a variant of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from math import ceil

from msgspec import Struct

from npusim.base.records import collecting_seldom
from npusim.base.workers import Workers
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts.metrics import main_memory_cycles
from npusim.results.facts.replay import Replay, time_on

#: Microseconds that exchanging gradients between cards adds to a step on a device, given those of
#: every launch in order.
Exchange = Callable[[Device, Sequence[float]], float]


#: Called with the distinct calls of a step that were simulated so far, and how many there are.
Progress = Callable[[int, int], None]


class StepCall(Struct, frozen=True):
    """A call that launches of a step share: equal operations are simulated once.

    ``kind`` is that of the operations, ``us`` its time as it was simulated, ``count`` how often the
    step runs it.
    """

    kind: str
    runs: tuple[KernelRun, ...]
    replay: Replay
    us: float
    count: int


class StepLaunch(Struct, frozen=True):
    """A launch of a step: the place of its call, and how often that runs in a row.

    Main memory sends and takes so many bytes meanwhile.
    """

    call: int
    count: int
    fetched_bytes: int = 0
    written_back_bytes: int = 0


class StepReplay(Struct, frozen=True, dict=True):
    """Times a step on variants of its ``device``, with the tilings and the formats that it had.

    Which operands each operation finds in the L2 stays as it was, too, and what main memory sends
    and takes meanwhile. ``launches`` are None where
    an operation could not be simulated. ``exchange`` rests on ``exchange_figures``, none of one
    card.
    """

    device: Device
    calls: tuple[StepCall, ...]
    launches: tuple[StepLaunch | None, ...]
    exchange: Exchange
    exchange_figures: tuple[str, ...] = ()

    @cached_property
    def figures(self) -> tuple[str, ...]:
        """Dotted paths of the figures its time rests on."""
        of_calls = (name for call in self.calls for name in call.replay.figures)
        return tuple(dict.fromkeys((*of_calls, *self.exchange_figures)))

    @cached_property
    def _rest_on(self) -> tuple[frozenset[str], ...]:
        """Figures that each call rests on."""
        return tuple(frozenset(call.replay.figures) for call in self.calls)

    def time_us(self, device: Device) -> float:
        """Microseconds of the step on ``device``.

        Raises ``ConfigError``, ``CapacityError`` or ``ProgramError`` where it lacks what a kernel
        needs.
        """
        return self.total_us(device, [self.call_us(call, device) for call in self._touched(device)])

    def spread_us(self, device: Device) -> float:
        """Microseconds of the step with vector kernels on the cores that ``device`` favours."""
        times = []
        for place, touched in enumerate(self._touched(device)):
            us = self.calls[place].replay.spread_us(device)
            times.append(self.call_us(touched, device) if us is None else us)
        return self.total_us(device, times)

    def call_us(self, place: int, device: Device) -> float:
        """Microseconds of one call on ``device``; of a ``place`` below 0, as it was simulated.

        On each variant a call is simulated once, whatever asks for it.
        """
        if place < 0:
            return self.calls[~place].us
        key = place, device.digest()
        if key not in self.known_us:
            self.known_us[key] = self.calls[place].replay.time_us(device)
        return self.known_us[key]

    @cached_property
    def known_us(self) -> dict[tuple[int, str], float]:
        """Microseconds simulated so far, by place of the call and digest of the variant."""
        return {}

    @collecting_seldom()
    def simulate(
        self,
        devices: Sequence[Device],
        jobs: int | None = 1,
        progress: Progress | None = None,
    ) -> None:
        """Have the times of all calls known on variants, each call in one of ``jobs`` processes.

        Those that fail are not known afterwards: they fail again when they are asked for.
        """
        wanted: dict[int, list[int]] = {}
        for number, device in enumerate(devices):
            for place in self._touched(device):
                if place >= 0 and (place, device.digest()) not in self.known_us:
                    wanted.setdefault(place, []).append(number)
        items = sorted(wanted.items(), key=lambda item: -self._instructions(item[0]))
        calls = [call.replay for call in self.calls]
        if progress is not None and items:
            progress(0, len(items))
        with Workers(jobs) as workers:
            times = workers.each(partial(_times_on, calls, devices), items, self._name)
            for done, (row, times_us) in enumerate(times, 1):
                place, numbers = items[row]
                for number, us in zip(numbers, times_us, strict=True):
                    if us is not None:
                        self.known_us[place, devices[number].digest()] = us
                if progress is not None and done < len(items):
                    progress(done, len(items))

    def _instructions(self, place: int) -> int:
        """Instructions of a call."""
        return sum(run.instructions for run in self.calls[place].runs)

    def _name(self, item: tuple[int, object]) -> str:
        """The name of a call in errors."""
        return f"call {item[0] + 1} of the step ({self.calls[item[0]].kind})"

    def _touched(self, device: Device) -> list[int]:
        """The place of each call; inverted, so that it is below 0, where its time stays."""
        changed = changed_figures(self.device, device)
        if changed is None or not changed <= {*self.figures}:
            return list(range(len(self.calls)))
        return [
            ~place if names.isdisjoint(changed) else place
            for place, names in enumerate(self._rest_on)
        ]

    def total_us(self, device: Device, times: Sequence[float]) -> float:
        """Microseconds of the step on ``device``, of whose calls one takes so long each."""
        return self.launched_us(device, self.launch_times(device, times))

    def launch_times(self, device: Device, times: Sequence[float]) -> list[float]:
        """Microseconds of every launch on ``device``, of whose calls one takes so long each.

        None is shorter than main memory takes for its bytes.
        """
        launches = []
        by_bytes: dict[tuple[int, int], float] = {}  # many launches move as much
        for launch in self.launches:
            us = 0.0
            if launch is not None:
                moved = launch.fetched_bytes, launch.written_back_bytes
                if moved not in by_bytes:
                    by_bytes[moved] = device.time_us(ceil(main_memory_cycles(device, *moved)))
                us = max(launch.count * times[launch.call], by_bytes[moved])
            launches.append(us)
        return launches

    def launched_us(self, device: Device, times: Sequence[float]) -> float:
        """Microseconds of the step on ``device``, whose launches take so long each."""
        return sum(times) + self.exchange(device, times)


def _times_on(
    calls: Sequence[Replay], devices: Sequence[Device], item: tuple[int, Sequence[int]]
) -> list[float | None]:
    """Microseconds of a call, by its place, on some variants; None where it fails."""
    place, numbers = item
    return [time_on(devices[number], calls[place]) for number in numbers]


def changed_figures(before: Device, after: Device) -> set[str] | None:
    """Paths of the figures in which two variants differ; None where they differ in more."""
    if before.launch_mode != after.launch_mode:
        return None
    figures_before = figures(before)
    figures_after = figures(after)
    if figures_before.keys() != figures_after.keys():
        return None
    return {
        path for path, figure in figures_before.items() if figure.value != figures_after[path].value
    }
