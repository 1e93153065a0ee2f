"""Which operations of a step one kernel computes together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod

from npusim.base.dtypes import DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.machine.device.spec import Device
from npusim.networks.rules.table import ENGINE, Fusion, tables
from npusim.networks.rules.values import Operation, Training
from npusim.workloads import ConvLayer


def chosen(fusions: str | Collection[str]) -> tuple[Fusion, ...]:
    """The rows of a word or of names; ``ArgumentError`` for an unknown name.

    Words are "usual" (what a framework's own passes make), "graph_engine" (what the vendor's graph
    engine makes), "all" and "none".
    """
    rows = tables().fusions
    if fusions == "none":
        return ()
    if fusions == "all":
        return rows
    if fusions == "usual":
        return tuple(fusion for fusion in rows if fusion.usual)
    if fusions == ENGINE:
        return tuple(fusion for fusion in rows if fusion.engine)
    names = fusions.split(",") if isinstance(fusions, str) else list(fusions)
    for name in names:
        words = ("usual", ENGINE, "all", "none", *(fusion.name for fusion in rows))
        if name not in words:
            raise ArgumentError(
                f"fusions: unknown name {name!r}{suggest(name, words)}; known are "
                f"{', '.join(words)}"
            )
    return tuple(fusion for fusion in rows if fusion.name in names)


#: Tells whether plain operands of an operation, of this type, are multiplied as matrices.
AsProduct = Callable[[Operation, DType], bool]


def fused(
    step: Training, fusions: Collection[Fusion], device: Device, as_product: AsProduct
) -> dict[str, int]:
    """Rewrite the operations of a step; returns how often each fusion was made."""
    through_ub = not device.has_path("L0C", "GM")
    joining = _Joining(step, as_product, through_ub=through_ub)
    counts = {fusion.name: joining.passes(fusion) for fusion in fusions}
    step.operations = joining.left()
    return {name: count for name, count in counts.items() if count}


class _Joining:
    """The operations of a step while some become part of others, and leave their places empty.

    Places stay as they are, so that who writes a value is known by its place.
    """

    def __init__(self, step: Training, as_product: AsProduct, *, through_ub: bool) -> None:
        self.values = step.values
        self.as_product = as_product
        self.readers = step.readers()
        self.through_ub = through_ub
        self.places: list[Operation | None] = [*step.operations]
        self.writers: dict[str, int] = {}
        for place, operation in enumerate(step.operations):
            self.writers |= dict.fromkeys(operation.writes, place)

    def left(self) -> list[Operation]:
        """The operations that are left, in order."""
        return [operation for operation in self.places if operation is not None]

    def passes(self, fusion: Fusion) -> int:
        """Make a fusion wherever it applies, the last operations first; returns how often."""
        count = 0
        while True:
            joined = sum(self._join(fusion, place) for place in reversed(range(len(self.places))))
            if joined == 0:
                return count
            count += joined

    def _join(self, fusion: Fusion, last: int) -> bool:
        """Make the operation at this place part of one before it, if the fusion applies."""
        second = self.places[last]
        if second is None or second.kind != fusion.second or second.chain is None:
            return False
        reads = second.reads
        values = [self.values[name] for name in (*reads, *second.writes)]
        if len({value.shape for value in values if value.kind in ("map", "rows")}) > 1:
            return False  # blocks of other axes hold other elements
        before = {self.writers[name] for name in reads if name in self.writers}
        for place in sorted((place for place in before if place < last), reverse=True):
            first = self.places[place]
            assert first is not None
            alike = first.kind in fusion.first and first.count == second.count
            if not alike or (first.core and not self.through_ub):
                continue
            inner = next(name for name in first.writes if name in reads)
            if not ((fusion.kept or self.readers[inner] == 1) and self._dense(first)):
                continue
            if not fusion.kept and self._read_between(first, place, last):
                continue
            joined = _joined(fusion, first, second, inner)
            self.readers.subtract((*first.reads, *reads))
            self.readers.update(joined.reads)
            self.places[place] = None
            self.places[last] = None
            where = place if fusion.kept else last
            self.places[where] = joined
            self.writers |= dict.fromkeys(joined.writes, where)
            return True
        return False

    def _dense(self, operation: Operation) -> bool:
        """Return whether a product leaves its result in one piece, of blocks of channels.

        Chains without a product do. A strided gradient does so by phases; where a product of plain
        matrices takes the place of a convolution, it takes less time by more than what comes after
        it.
        """
        layer = operation.layer
        if not operation.core or not isinstance(layer, ConvLayer):
            return True
        dtype = self.values[operation.inputs[0]].dtype
        if prod(layer.kernel) > 1 and self.as_product(operation, dtype):
            return False
        strided = set(layer.stride) != {1}
        return not (strided and operation.core == "convolution.input")

    def _read_between(self, first: Operation, place: int, last: int) -> bool:
        """Return whether an operation between two places reads a result of the first of them."""
        results = {*first.writes}
        return any(
            operation is not None and not results.isdisjoint(operation.reads)
            for operation in self.places[place + 1 : last]
        )


def _joined(fusion: Fusion, first: Operation, second: Operation, inner: str) -> Operation:
    """The operation that computes both, of which the second reads the result ``inner``."""
    assert second.chain is not None
    chain = second.chain
    if first.chain is not None:
        chain = first.chain.then(second.chain, inner, kept=fusion.kept)
    kind = f"{first.kind} + {second.kind}"
    stored = first.stored and fusion.kept
    return replace(first, name=second.name, kind=kind, chain=chain, stored=stored)
