"""Flags between cores: which cores one reaches, and when it counts there.

A flag for all cores counts whenever another core sets it. A flag for the group counts once every
other core of the group that sets it has done so once more: documented flags hold a core until all
cores of the other side have set them, both vector cores of a group for instance, and one that runs
ahead does not stand in for the other.
"""

from __future__ import annotations

from npusim.machine.isa.base import Signal
from npusim.machine.program.program import Program


class Flags:
    """The flags that cores have set, while a program runs."""

    def __init__(self, program: Program) -> None:
        self.program, self.setters = program, setters(program)
        self._sets: dict[tuple[int, int], int] = {}  # times that a core has set an event

    def set(self, sender: int, signal: Signal) -> list[int]:
        """Numbers of the cores on which the flag counts one more once ``sender`` has set it."""
        self._sets[sender, signal.event] = nth = self._sets.get((sender, signal.event), 0) + 1
        found = reached(self.program, sender, signal)
        if signal.scope == "all":
            return found
        near = {sender, *found} & self.setters[signal.event]
        late = {one for one in near if self._sets.get((one, signal.event), 0) < nth}
        return [core for core in found if not late - {core}]


def reached(program: Program, sender: int, signal: Signal) -> list[int]:
    """Numbers of the cores that a flag is for."""
    group = program.cores[sender].group
    return [
        core
        for core, one in enumerate(program.cores)
        if core != sender and (signal.scope == "all" or one.group == group)
    ]


def setters(program: Program) -> dict[int, frozenset[int]]:
    """Numbers of the cores that set each event of their groups."""
    found: dict[int, frozenset[int]] = {}
    for number, template in enumerate(program.templates):
        signals = {one.signals for one in template.instructions if one.between_cores}
        for signal in signals:
            if signal is not None and signal.scope == "group":
                cores = program.core_counts[:, number].nonzero()[0].tolist()
                found[signal.event] = found.get(signal.event, frozenset()).union(cores)
    return found
