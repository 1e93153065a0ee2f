"""Timing a call again: on a variant of its device, on other cores, with other figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from npusim.base.errors import NpusimError
from npusim.base.integers import IntArray
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.trace import Trace


class Retimed(Protocol):
    """A call or a step that can be timed on variants of its device."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Dotted paths of the figures its time rests on."""

    def time_us(self, device: Device) -> float:
        """The time of the same kernels, tiled as they were, on the same cores of a variant."""


class Replay(Retimed, Protocol):
    """How to time a call again, and look into its kernels."""

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """Traces of these kernels: what the time of each rests on, in the order of launches."""

    def programs(self, device: Device) -> tuple[Program, ...]:
        """The programs of these kernels, in the order of launches."""

    def spread_us(self, device: Device) -> float | None:
        """The time with vector kernels on the cores that ``device`` favours.

        None where these are those they run on.
        """

    def on_all_cores_us(self, place: int) -> float | None:
        """The time with kernel ``place`` on all the cores of its groups.

        None where nothing but its own plan limits them.
        """

    def evenly_us(self, place: int) -> float | None:
        """The time with the tasks of kernel ``place`` dealt out evenly to its cores.

        None where cores of several kinds work together, or a tiling limits them.
        """

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """By kernel, the row that each row of its timeline waited for, -1 where it did not."""


def time_with(device: Device, changed: Mapping[str, str], replay: Retimed) -> float | None:
    """The time with other figures, in microseconds; None where the device cannot have them."""
    try:
        variant = device.origin.rebuild(device, changed)
    except NpusimError:  # a figure that others bound
        return None
    return time_on(variant, replay)


def time_on(variant: Device, replay: Retimed) -> float | None:
    """The time on a variant in microseconds; None where a program needs the device as it was."""
    try:
        return replay.time_us(variant)
    except NpusimError:
        return None
