"""An operation of a step as it was launched: the values it uses, and its simulated kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil

from msgspec import Struct

from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.networks.plan.l2_lines import L2Traffic
from npusim.networks.plan.tasks import StoredValue
from npusim.networks.timed import Timed
from npusim.results.facts.metrics import main_memory_bytes, main_memory_cycles

#: What the kernels that clear are counted as, and those that change layouts.
CLEARING, CONVERSIONS = "clearing", "layouts"


class LaunchedOperation(Struct, frozen=True, kw_only=True, dict=True):
    """An operation of a step, or a conversion of ``value`` to ``format``, as it was launched.

    It reads and writes values as they are stored, whose bytes are ``sizes``; ``l2`` is what these
    move between the L2 and main memory after the launches before it. It runs ``count``
    times in a row, each time on other numbers; ``timed`` is one of them, and lacks that dirty lines
    of others leave the L2 meanwhile. ``label`` is what the kind of its layer is called.
    """

    name: str
    kind: str
    phase: str
    layer: str
    timed: Timed
    reads: tuple[StoredValue, ...]
    writes: tuple[StoredValue, ...]
    sizes: Mapping[StoredValue, int]
    l2: L2Traffic
    value: str = ""
    format: str = ""
    count: int = 1
    label: str = ""

    @property
    def cycles(self) -> int:
        """Cycles of all times that it runs, with launches and ``waiting_cycles``."""
        return self.count * self.timed.cycles + self.waiting_cycles

    @property
    def us(self) -> float:
        """Microseconds of all times that it runs, with launches and ``waiting_us``."""
        return self.us_of(self.timed)

    def us_of(self, timed: Timed) -> float:
        """Microseconds of all times that it runs where one of them takes as long as ``timed``."""
        return max(self.count * timed.us, self.main_memory_us)

    @cached_property
    def waiting_cycles(self) -> int:
        """Cycles that main memory needs for its bytes beyond those of its kernels and launches.

        That is for dirty lines of other launches, whose room it takes in the L2.
        """
        return max(0, self.main_memory_cycles - self.count * self.timed.cycles)

    @property
    def waiting_us(self) -> float:
        """Microseconds of ``waiting_cycles``."""
        return self.us - self.count * self.timed.us

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """The kernels of all times that it runs."""
        return self.count * self.timed.runs

    @property
    def least(self) -> Bound | None:
        """What any programs need for all times that it runs; None where it has no time."""
        result = self.timed.result
        if result is None or not result.problem_bounds:
            return None
        longest = result.problem_bounds[0]
        return longest._replace(
            cycles=self.count * longest.cycles, least=self.count * longest.least
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of all values that it reads."""
        return sum(self.sizes[stored] for stored in self.reads)

    @property
    def written_bytes(self) -> int:
        """Bytes of all values that it writes."""
        return sum(self.sizes[stored] for stored in self.writes)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that main memory sends: what its kernels fetched when they were simulated.

        Where that is not known of all of them, at least what the L2 lacks of its operands.
        """
        read, _ = self._simulated_bytes
        known = self.timed.runs and all(run.traffic for run in self.timed.runs)
        return read if known else max(read, self.l2.fetched)

    @property
    def written_back_bytes(self) -> int:
        """Bytes that go to main memory: dirty lines, of whatever launch, whose room it takes.

        A kernel by itself writes its results back as far as the L2 cannot hold them. They are among
        these lines, but for what it writes back more than once.
        """
        _, written = self._simulated_bytes
        return self.l2.written_back + max(0, written - self.written_bytes)

    @cached_property
    def main_memory_cycles(self) -> int:
        """Cycles that main memory needs for the bytes it sends and takes, 0 without a time.

        A kernel's own cycles have what it fetches, and of what it writes back its results beyond
        the L2. They lack the dirty lines of others.
        """
        result = self.timed.result
        if result is None:
            return 0
        read, written = self.fetched_bytes, self.written_back_bytes
        return ceil(main_memory_cycles(result.device, read, written))

    @property
    def main_memory_us(self) -> float:
        """Microseconds of ``main_memory_cycles``."""
        result = self.timed.result
        return 0.0 if result is None else result.device.time_us(self.main_memory_cycles)

    @property
    def _simulated_bytes(self) -> tuple[int, int]:
        """Bytes that all its kernels, each by itself, read from main memory and write to it."""
        moved = [main_memory_bytes(run) for run in self.timed.runs]
        return self.count * sum(read for read, _ in moved), self.count * sum(n for _, n in moved)

    @property
    def parts(self) -> Iterator[tuple[str, KernelRun]]:
        """Its kernels by kind: what clears is counted apart."""
        for run in self.runs:
            yield (CLEARING if run.name in (MemSet.name, ClearBlocks.name) else self.kind), run

    @property
    def waiting_kind(self) -> str:
        """The kind among ``parts`` that ``waiting_cycles`` are counted as."""
        kinds = dict.fromkeys(kind for kind, _ in self.parts)
        return self.kind if self.kind in kinds or not kinds else next(iter(kinds))

    @property
    def kernel_names(self) -> list[str]:
        """The kernels of one time that it runs."""
        return [run.name for run in self.timed.runs]

    @property
    def error(self) -> str:
        """Why it has no time, "" where it has one."""
        return self.timed.error
