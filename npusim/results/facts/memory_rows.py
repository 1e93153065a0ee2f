"""Facts of the memory of a training step: how many bytes of what there are at each launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from npusim.results.facts.fact import Fact, names_of
from npusim.results.facts.number_text import bytes_text, us_text

#: What takes memory, in the order in which pictures stack it: parameters, buffers and constants;
#: what the optimizer keeps; images, indices and labels; what the forward pass computes; what the
#: backward pass does; the same numbers in other formats and types; and what kernels of one
#: operation have between them.
HOLDS = ("weights", "state", "data", "activations", "gradients", "copies", "workspace")


class MemoryColumns(NamedTuple):
    """Memory while a launch runs: its place, when it begins and how long it takes, bytes by class.

    ``after_bytes`` are left of all once it is done.
    """

    operation: str
    kind: str
    phase: str
    layer: str
    start_us: float
    us: float
    bytes: Mapping[str, int]
    after_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all classes."""
        return sum(self.bytes.values())


def _bytes_of(holds: str, row: MemoryColumns) -> int:
    """Bytes of a class."""
    return row.bytes.get(holds, 0)


def _fact_of(holds: str) -> Fact[MemoryColumns]:
    """The fact of the bytes of a class."""
    return Fact(f"{holds}_bytes", holds, "", bytes_text, partial(_bytes_of, holds))


#: Memory while an operation or a conversion runs.
MEMORY: tuple[Fact[MemoryColumns], ...] = (
    Fact("operation", "operation", "", str, lambda row: row.operation),
    Fact("kind", "kind", "", str, lambda row: row.kind),
    Fact("phase", "phase", "", str, lambda row: row.phase),
    Fact("layer", "layer", "", str, lambda row: row.layer),
    Fact("start_us", "start", "\u00b5s", us_text, lambda row: row.start_us),
    Fact("us", "time", "\u00b5s", us_text, lambda row: row.us),
    Fact("bytes", "memory", "", bytes_text, lambda row: row.total_bytes),
    *map(_fact_of, HOLDS),
    Fact("after_bytes", "memory after it", "", bytes_text, lambda row: row.after_bytes),
)

#: Columns of ``StepResult.memory``; a promise to users.
MEMORY_COLUMNS = names_of(MEMORY)


class HeldValue(NamedTuple):
    """A value in memory: the layer and operation that made it ("" where it was there before)."""

    value: str
    format: str
    holds: str
    layer: str
    operation: str
    bytes: int


#: A value that is there when a step takes the most memory.
HELD: tuple[Fact[HeldValue], ...] = (
    Fact("value", "value", "", str, lambda row: row.value),
    Fact("format", "format", "", str, lambda row: row.format),
    Fact("holds", "what", "", str, lambda row: row.holds),
    Fact("layer", "layer", "", str, lambda row: row.layer),
    Fact("operation", "made by", "", str, lambda row: row.operation),
    Fact("bytes", "bytes", "", bytes_text, lambda row: row.bytes),
)

#: Columns of ``StepResult.held``; a promise to users.
HELD_COLUMNS = names_of(HELD)

#: Values at the peak that JSON and pages list.
MAX_HELD = 12


def shares_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by class of a row of memory, the most first, without classes of nothing."""
    shares = {holds: row[f"{holds}_bytes"] for holds in HOLDS if row[f"{holds}_bytes"]}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
