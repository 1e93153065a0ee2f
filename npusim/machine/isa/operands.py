"""Operands of instructions: global tensors, buffers with slots, and regions of either."""

from __future__ import annotations

from functools import cached_property
from math import prod

from msgspec import Struct

from npusim.base.dtypes import DType
from npusim.base.errors import ProgramError
from npusim.base.records import replace

FRACTAL_BYTES = 512  # 16 rows of 32 B, the piece of L0 and of load2d


#: What a tensor is to a kernel.
ROLES = ("in", "out", "inout")


class Tensor(Struct, frozen=True, dict=True):
    """A tensor in global memory (GM). ``role`` is one of ``ROLES``, or it is a ``ProgramError``.

    ``same`` names the operand of the call that it is once more, as B in ``a @ a``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: str = "in"
    same: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ProgramError(
                f"tensor {self.name} has role {self.role!r}; it is one of {', '.join(ROLES)}"
            )

    @cached_property
    def size_bytes(self) -> int:
        """Bytes the tensor occupies, contiguous."""
        return prod(self.shape) * self.dtype.bytes

    def at(
        self, offset: int, size: int, *, base: str = "", rows: int = 1, pitch: int = 0
    ) -> GmRegion:
        """``rows`` pieces of ``size`` bytes, ``pitch`` apart, from ``offset`` + task base.

        ``base`` names the task-table column (in bytes) added to ``offset`` at run time.
        """
        return GmRegion(self, base, offset, rows, size, pitch)


class GmRegion(Struct, frozen=True):
    """Strided bytes of a tensor: ``rows`` pieces of ``row_bytes``, starts ``pitch`` apart.

    Without any bytes, or with a negative pitch, it is a ``ProgramError``.
    """

    tensor: Tensor
    base: str
    offset: int
    rows: int
    row_bytes: int
    pitch: int

    memory = "GM"

    def __post_init__(self) -> None:
        if self.row_bytes < 1 or self.rows < 1:
            raise ProgramError(f"{self} names no bytes; rows and bytes per row must be at least 1")
        if self.pitch < 0:
            raise ProgramError(f"{self} has a pitch of {self.pitch} B; it cannot be negative")

    @property
    def size(self) -> int:
        """Bytes touched."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        base = f"{self.base}+" if self.base else ""
        rows = f" x{self.rows}/{self.pitch}" if self.rows > 1 else ""
        return f"{self.tensor.name}[{base}{self.offset}:{self.row_bytes}B{rows}]"


class Buffer(Struct, frozen=True):
    """``slots`` equal pieces of ``slot_bytes`` in a private memory, used in turns.

    With ``unit_flag`` its writers and readers follow each other by pieces. With ``own_banks`` each
    slot lies in banks of its own, so that one is read while another is written without conflict.
    Slots hold elements of ``dtype`` (None: bytes, of any type); operands in them begin at multiples
    of ``align`` bytes.
    """

    name: str
    memory: str
    slot_bytes: int
    slots: int
    index: int
    unit_flag: bool = False
    own_banks: bool = False
    dtype: DType | None = None
    align: int = 1


class Slot(Struct, frozen=True):
    """One turn of a buffer; ``turn`` counts from 0 in this task, negative is before it.

    Offsets into it count from byte ``first``. ``task`` is the number of the task, as emitted.
    """

    buffer: Buffer
    turn: int
    first: int = 0
    task: int = 0

    @property
    def memory(self) -> str:
        """Name of the memory the buffer lives in."""
        return self.buffer.memory

    def behind(self, size: int) -> Slot:
        """The same slot without its first ``size`` bytes, for a second operand in it."""
        return Slot(self.buffer, self.turn, self.first + size, self.task)

    def at(
        self, offset: int = 0, size: int | None = None, *, rows: int = 1, pitch: int = 0
    ) -> SlotRegion:
        """Bytes of the slot: ``rows`` pieces of ``size``, ``pitch`` apart, from ``offset``.

        Without ``size`` it is the rest of the slot. Leaving the slot is a ``ProgramError``.
        """
        buffer, first = self.buffer, self.first
        offset += first
        if size is None:
            size = buffer.slot_bytes - offset
        end = offset + (rows - 1) * pitch + size
        if offset < first or pitch < 0 or size < 1 or rows < 1 or end > buffer.slot_bytes:
            raise ProgramError(
                f"bytes {offset}..{end} of {buffer.name} lie outside its slot of "
                f"{buffer.slot_bytes} B in {buffer.memory}; declare a larger buffer or "
                f"touch less ({rows} rows of {size} B, pitch {pitch} B)"
            )
        return SlotRegion(self, offset, rows, size, pitch)

    def fractals(self, first: int, count: int, *, stride: int = 1) -> SlotRegion:
        """``count`` fractals of 512 B from fractal ``first`` on, every ``stride``-th."""
        size = FRACTAL_BYTES
        return self.at(first * size, size, rows=count, pitch=stride * size)


class SlotRegion(Struct, frozen=True):
    """Strided bytes of one buffer slot."""

    slot: Slot
    offset: int
    rows: int
    row_bytes: int
    pitch: int

    @property
    def memory(self) -> str:
        """Name of the memory the buffer lives in."""
        return self.slot.buffer.memory

    @property
    def size(self) -> int:
        """Bytes touched."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        rows = f" x{self.rows}/{self.pitch}" if self.rows > 1 else ""
        return f"{self.slot.buffer.name}#{self.slot.turn}[{self.offset}:{self.row_bytes}B{rows}]"


Region = GmRegion | SlotRegion

#: An operand as kernels name it. A slot stands for as many of its bytes, from the first on, as
#: the instruction needs; where nothing says how many, for all of them.
Place = Slot | Region

_PLACES = (Slot, GmRegion, SlotRegion)


def require_operands(*places: object) -> None:
    """Raise ``ProgramError`` for what is no operand, such as a buffer or a tensor as a whole."""
    for place in places:
        if not isinstance(place, _PLACES):
            what = f"{type(place).__name__} {place!r}"
            raise ProgramError(
                f"a {what} is no operand; an operand is a slot (buffer.next() or last()) or a "
                "region (at() of a slot or tensor)"
            )


def region_of(place: Place, size: int | None = None) -> Region:
    """The region behind an operand: of a slot its first ``size`` bytes, or all."""
    if isinstance(place, Slot):
        return place.at(0, size)
    require_operands(place)
    return place


def private(place: Place, size: int | None = None) -> SlotRegion:
    """The region behind an operand that cannot lie in GM."""
    if isinstance(place, SlotRegion):
        return place
    region = region_of(place, size)
    if isinstance(region, GmRegion):
        raise ProgramError(
            f"{region} lies in GM, this operand must be in a buffer; bring it there with "
            "data_move first"
        )
    return region


def moved(region: Region, offset: int) -> Region:
    """The region that lies ``offset`` bytes behind a region of the same shape."""
    return replace(region, offset=region.offset + offset)
