"""The base of all conversions between a plain tensor and one in blocks of C0.

A *change* says as data where the elements go, the *work* cuts it into tiles and moves one of them.

    for tile of this core:                             # one task, cores take runs of them
        UB <- tile as it lies in GM (zeros around it)  # MTE2, and V for the zeros
        UB <- tile in the other order                  # V
        GM <- tile in the other layout                 # MTE3

Tiles fill a quarter of UB: two are loaded or turned while two others are turned or stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol

from npusim.base.records import Abstract
from npusim.kernels.estimate.streams import Stream
from npusim.kernels.layout.conversion import Pieces, move, unit_counts
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import piece
from npusim.language import (
    FRACTAL_BYTES,
    ArgumentError,
    Device,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    in_runs,
    round_down,
    round_up,
)
from npusim.problem.work import LAYOUT


class Change(Protocol):
    """The places of a plain tensor's elements in blocks of ``c0``, and the way they go.

    As text it is what reports say of it.
    """

    @property
    def c0(self) -> int:
        """Elements of a block."""

    @property
    def loads_plain(self) -> bool:
        """True if the source is the plain tensor."""

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the blocked tensor of a plain one; ``ArgumentError`` where there is none."""


class ChangeWork(Abstract):
    """Tiles of a ``change`` between two tensors, and what is done with one."""

    #: Bytes of UB that a slot must and can have; the most is all there is where this is 0.
    least = FRACTAL_BYTES
    most = 0

    def __init__(self, change: Any, plain: Tensor, blocked: Tensor) -> None:
        self.change = change
        self.plain = plain
        self.blocked = blocked
        self.load = change.loads_plain
        self.c0 = change.c0
        self.e = plain.dtype.bytes
        self.lane = self.c0 * self.e

    def streamed(self, device: Device, cores: int) -> dict[str, Any]:
        """Tasks and vector instructions as fields of ``Stream``: one transposition of all."""
        size = self.blocked.size_bytes
        tasks = unit_counts(size, device.memory("UB").size_bytes // 4, cores)
        return {"tasks": tasks, "vector": (("transpose", size),)}

    @abstractmethod
    def tasks(self, slot_bytes: int, cores: int) -> Tasks[Any]:
        """The tiles, none larger than a slot, in runs for each core."""

    @abstractmethod
    def emit(self, k: Language, first: Slot, second: Slot, tile: Any) -> None:
        """The program of a tile."""

    def in_runs(
        self,
        cores: int,
        record: type[Any],
        columns: dict[str, IntArray],
        places: tuple[IntArray, IntArray],
    ) -> Tasks[Any]:
        """Tiles in equal runs for each core; ``places`` are elements of plain, lanes of blocked."""
        plain, blocked = places
        bases = {self.plain.name: plain * self.e, self.blocked.name: blocked * self.lane}
        return Tasks(in_runs(len(plain), cores), record, columns, bases)


class Turning(ChangeWork):
    """Work whose tiles are pieces of both tensors, turned once between them."""

    def emit(self, k: Language, first: Slot, second: Slot, tile: Any) -> None:
        """Load the pieces of one side, turn them, store those of the other."""
        sides = (self.plain, self.of_plain), (self.blocked, self.of_blocked)
        (source, loaded), (target, stored) = sides if self.load else sides[::-1]
        self.clear(k, first, second, tile)
        for pieces in loaded(tile):
            move(k, source, first, pieces, store=False)
        slot = self.turn(k, first, second, tile)
        for pieces in stored(tile):
            move(k, target, slot, pieces, store=True)

    def clear(self, k: Language, first: Slot, second: Slot, tile: Any) -> None:
        """Zeros that slots must hold before the tile is loaded into the first, if any."""

    @abstractmethod
    def turn(self, k: Language, first: Slot, second: Slot, tile: Any) -> Slot:
        """Turn what was loaded into the first slot; returns the slot that is stored."""

    @abstractmethod
    def of_plain(self, tile: Any) -> Iterable[Pieces]:
        """Moves of the plain tensor."""

    @abstractmethod
    def of_blocked(self, tile: Any) -> Iterable[Pieces]:
        """Moves of the blocked tensor."""


@dataclass(frozen=True)
class LayoutChange(Spread):
    """Convert ``src`` into ``dst``; the plain one of them says the sizes.

    Elements have 2 or 4 bytes. Raises ``ArgumentError`` where types or shapes do not belong
    together.
    """

    change: Change
    src: Tensor
    dst: Tensor

    role: ClassVar[str] = "vector"
    works: ClassVar[type[ChangeWork]]
    #: Names of the tile as it is loaded and of what is made of it.
    buffers: ClassVar[tuple[str, str]] = ("as_loaded", "turned")

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        src = self.src
        dst = self.dst
        plain = self.plain
        blocked = self.blocked
        want = self.change.blocked_shape(plain.shape)
        if src.dtype != dst.dtype or src.dtype.bytes not in (2, 4):
            raise ArgumentError(
                f"{self.name} {self.change}: {src.name} is {src.dtype}, {dst.name} is "
                f"{dst.dtype}; both must be the same type of 2 or 4 bytes, cast before or after"
            )
        if prod(blocked.shape) != prod(want):
            raise ArgumentError(
                f"{self.name} {self.change}: {blocked.name} has shape {blocked.shape}, {want} "
                f"belongs to {plain.name} of shape {plain.shape}"
            )

    @property
    def plain(self) -> Tensor:
        """The tensor in framework layout."""
        return self.src if self.change.loads_plain else self.dst

    @property
    def blocked(self) -> Tensor:
        """The tensor in blocks of C0."""
        return self.dst if self.change.loads_plain else self.src

    @property
    def clears(self) -> bool:
        """True if ``dst`` must be cleared before."""
        return False

    @property
    def tiling_text(self) -> str:
        return str(self.change)

    @property
    def work(self) -> ChangeWork:
        """Its tiles, and what is done with one."""
        return self.works(self.change, self.plain, self.blocked)

    def fits(self, device: Device) -> bool:
        """True if the UB of a device holds what a task has at once."""
        return self.work.least <= slot_room(device)

    def stream(self, device: Device, cores: int) -> Stream:
        return Stream(
            read=self.src.size_bytes,
            written=self.dst.size_bytes,
            cold=self.change.loads_plain,
            **self.work.streamed(device, cores),
        )

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        ub = k.memory("UB")
        work = self.work
        most = round_up(work.most, ub.align_bytes) or ub.size_bytes
        size = piece(k, self.name, most, 4, multiple=ub.align_bytes, least=work.least)
        as_loaded, turned = self.buffers
        first = k.buffer("UB", (size,), None, slots=2, name=as_loaded)
        second = k.buffer("UB", (size,), None, slots=2, name=turned)
        return Plan(
            work.tasks(size, cores),
            lambda tile: work.emit(k, first.next(), second.next(), tile),
        )


def slot_room(device: Device) -> int:
    """Bytes of a quarter of UB, whole steps of its addresses."""
    ub = device.memory("UB")
    return round_down(ub.size_bytes // 4, ub.align_bytes)


def plain_sizes(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """N, C, H and W of a plain map of planes; ``ArgumentError`` where it has depth."""
    n, c, *spatial = shape
    if len(spatial) == 3 and spatial[0] != 1:
        raise ArgumentError(f"the plain map has shape {shape}; depth must be 1")
    h, w = (1, 1, *spatial)[-2:]
    return n, c, h, w
