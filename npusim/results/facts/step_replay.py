"""Timing a step again: each of its distinct calls once, on a variant of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import ceil

from msgspec import Struct

from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts.metrics import main_memory_cycles
from npusim.results.facts.replay import Replay

#: Microseconds that exchanging gradients between cards adds to a step on a device, given those of
#: every launch in order.
Exchange = Callable[[Device, Sequence[float]], float]


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
        """Microseconds of one call on ``device``; of a ``place`` below 0, as it was simulated."""
        return self.calls[~place].us if place < 0 else self.calls[place].replay.time_us(device)

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
        for launch in self.launches:
            us = 0.0
            if launch is not None:
                moved = launch.fetched_bytes, launch.written_back_bytes
                least_us = device.time_us(ceil(main_memory_cycles(device, *moved)))
                us = max(launch.count * times[launch.call], least_us)
            launches.append(us)
        return launches

    def launched_us(self, device: Device, times: Sequence[float]) -> float:
        """Microseconds of the step on ``device``, whose launches take so long each."""
        return sum(times) + self.exchange(device, times)


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
