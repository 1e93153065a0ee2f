"""An operation of a step as it was launched: the values it uses, and its simulated kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.machine.timing.trace import KernelRun
from npusim.networks.plan.tasks import StoredValue
from npusim.networks.timed import Timed

#: What the kernels that clear are counted as, and those that change layouts.
CLEARING, CONVERSIONS = "clearing", "layouts"


class LaunchedOperation(Struct, frozen=True, kw_only=True):
    """An operation of a step, or a conversion of ``value`` to ``format``, as it was launched.

    It reads and writes values as they are stored, whose bytes are ``sizes``. It runs ``count``
    times in a row, each time on other numbers; ``timed`` is one of them. ``label`` is what the kind
    of its layer is called.
    """

    name: str
    kind: str
    phase: str
    layer: str
    timed: Timed
    reads: tuple[StoredValue, ...]
    writes: tuple[StoredValue, ...]
    sizes: Mapping[StoredValue, int]
    value: str = ""
    format: str = ""
    count: int = 1
    label: str = ""

    @property
    def cycles(self) -> int:
        """Cycles of all times that it runs, with launches."""
        return self.count * self.timed.cycles

    @property
    def us(self) -> float:
        """Microseconds of all times that it runs, with launches."""
        return self.count * self.timed.us

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """The kernels of all times that it runs."""
        return self.count * self.timed.runs

    @property
    def read_bytes(self) -> int:
        """Bytes of all values that it reads."""
        return sum(self.sizes[stored] for stored in self.reads)

    @property
    def written_bytes(self) -> int:
        """Bytes of all values that it writes."""
        return sum(self.sizes[stored] for stored in self.writes)

    @property
    def parts(self) -> Iterator[tuple[str, KernelRun]]:
        """Its kernels by kind: what clears is counted apart."""
        for run in self.runs:
            yield (CLEARING if run.name in (MemSet.name, ClearBlocks.name) else self.kind), run

    @property
    def kernel_names(self) -> list[str]:
        """The kernels of one time that it runs."""
        return [run.name for run in self.timed.runs]

    @property
    def error(self) -> str:
        """Why it has no time, "" where it has one."""
        return self.timed.error
