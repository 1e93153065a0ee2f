"""Gradient of a bias as the vendor's library runs it on a 910: its operator BiasAddGrad.

    db[q] = sum over images n and positions p of dy[n, q, p]

Layouts: dy (N, C, positions), a plain map in fp16 or fp32, and db (C) in fp32. A *picture* is one
channel of one image. Sums are fp32. The library knows three ways:

by channels   a core has ``unit`` channels, 8 or more, for which its results are whole blocks of
              32 B; so few channels leave cores idle. A step is one channel and some images, or
              some channels and all images, or a piece of a picture that is larger than a step.
              Steps follow one another: each is loaded, widened and summed before the next.
atomic        where pictures are whole blocks in fp32 (or larger than a step) and there are at most
              as many channels on each core as images: a core has some images, or a part of the
              positions of one, and all channels, and adds its sums to db, which is cleared before.
              The next step is loaded while one is summed.
vectors       of one position, such as the rows of a linear layer: atomic, and a step adds row to
              row, where the other ways reduce pictures.

for step (images x channels x positions) of this core:
    UB dy <- GM                                                       # MTE2
    UB wide <- dy, if it is fp16                                      # V
    UB acc += the sum of each picture of every image, or each vector  # V
    db <- acc, or db += acc atomically, behind the last of a channel  # MTE3

One move loads rows that are whole blocks of 32 B and begin whole blocks apart. Other rows are
moves of their own, so that each pays the start-up of a load: pictures of 13 x 13 take 0.21 us each
in a published profile, whatever else.

Source: the schedules of reductions of the library's tensor compiler (CANN 8.1, tbe/dsl,
static_schedule: reduce_atomic_schedule.py and elewise_schedule.py) and its operator
(impl/bias_add_grad.py), retold. Not public, and chosen here: the instructions that sum a row; that
the pieces of a picture follow one another; on how many images a step of the atomic way works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.ub_room import library_step
from npusim.language import (
    BLOCK_BYTES,
    FP16,
    FP32,
    ArgumentError,
    Device,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_pieces,
    round_up,
)

#: Numbers of fp32 in a block of 32 B: the results of a core, and the grain of a picture in UB.
_GRAIN = BLOCK_BYTES // FP32.bytes
#: Numbers of 16 bits that an element of a step takes in UB: a sum and a widened value of fp32.
_WIDTH = 4


class Schedule(NamedTuple):
    """The cores that work, and the largest step: so many images, channels and positions.

    By channels a core has ``unit`` channels. An ``atomic`` core has ``unit`` images, or one of the
    parts of so many positions (``part``) that an image is cut into. ``slots`` steps are in UB.
    """

    atomic: bool
    cores: int
    unit: int
    part: int
    images: int
    channels: int
    columns: int
    slots: int


def schedule(shape: tuple[int, int, int], cores: int, elements: int) -> Schedule:
    """The library's schedule for dy of ``shape`` (N, C, positions) on so many ``cores``.

    A step has at most so many ``elements``, each picture rounded up to whole blocks of fp32.
    """
    images, channels, positions = shape
    if positions == 1:
        return _of_vectors(images, channels, cores, elements)
    picture = round_up(positions, _GRAIN)
    in_blocks = picture == positions or picture > elements
    if in_blocks and channels <= cores * images:
        return _atomic(shape, cores, elements)
    return _by_channels(shape, cores, elements)


def _by_channels(shape: tuple[int, int, int], cores: int, elements: int) -> Schedule:
    """The schedule whose cores share the channels."""
    images, channels, positions = shape
    picture = round_up(positions, _GRAIN)
    unit = max(_GRAIN, ceil_div(channels, cores))
    used = ceil_div(channels, unit)
    fit = elements // (images * picture)
    if fit >= unit:
        return Schedule(False, used, unit, positions, images, unit, positions, 1)
    if fit:
        few = min(fit, unit // 2)
        return Schedule(False, used, unit, positions, images, few, positions, 1)
    run = max(1, min(elements // picture, images // 2))
    return Schedule(False, used, unit, positions, run, 1, min(positions, elements), 1)


def _atomic(shape: tuple[int, int, int], cores: int, elements: int) -> Schedule:
    """The schedule whose cores share the images, then their positions, and add to memory."""
    images, channels, positions = shape
    unit = ceil_div(images, cores)
    part = positions
    if images < cores:
        part = min(positions, round_up(ceil_div(positions, cores // images), 2 * _GRAIN))
    used = ceil_div(images, unit) * ceil_div(positions, part)
    columns = min(part, elements)
    together = min(channels, elements // round_up(columns, _GRAIN))
    run = 1
    if together == channels and columns == positions:
        run = min(unit, elements // (channels * columns))
    steps = ceil_div(unit, run) * ceil_div(channels, together) * ceil_div(part, columns)
    return Schedule(True, used, unit, part, run, together, columns, 2 if steps > 2 else 1)


def _of_vectors(rows: int, channels: int, cores: int, elements: int) -> Schedule:
    """The schedule whose cores share rows of one position, and add to memory."""
    unit = ceil_div(rows, cores)
    together = min(channels, elements)
    run = min(unit, elements // round_up(together, _GRAIN))
    steps = ceil_div(unit, run) * ceil_div(channels, together)
    return Schedule(True, ceil_div(rows, unit), unit, 1, run, together, 1, 2 if steps > 2 else 1)


class Step(NamedTuple):
    """``columns`` positions of some channels of some images.

    ``first`` and ``last`` are whether the sums of these channels begin and end on the core.
    """

    images: int
    channels: int
    columns: int
    first: bool
    last: bool


@dataclass(frozen=True)
class LibraryBiasGrad(Kernel):
    """Sum ``dy`` (N, C, positions) into ``db`` (C,) fp32 as a schedule has it.

    Launch what is ``before`` it first. Raises ``ArgumentError`` for other shapes and types.
    """

    dy: Tensor
    db: Tensor
    schedule: Schedule

    name: ClassVar[str] = "bias_add_grad"
    library: ClassVar[tuple[str, ...]] = ("BiasAddGrad",)
    role: ClassVar[str] = "vector"
    computes: ClassVar[str] = "bias"
    #: The product whose schedule and times were published.
    known_for: ClassVar[str] = "910"

    def __post_init__(self) -> None:
        dy = self.dy
        db = self.db
        if len(dy.shape) != 3 or min(dy.shape) < 1 or dy.dtype not in (FP16, FP32):
            raise ArgumentError(
                f"bias_add_grad: {dy.name} is {dy.dtype} of shape {dy.shape}; it must be fp16 or "
                "fp32 (N, C, positions) with every size at least 1"
            )
        if db.shape != dy.shape[1:2] or db.dtype != FP32:
            raise ArgumentError(
                f"bias_add_grad: {db.name} is {db.dtype} of shape {db.shape}; {dy.name} makes it "
                f"fp32 of shape {dy.shape[1:2]}"
            )

    @classmethod
    def on(cls, device: Device, cores: int, dy: Tensor, db: Tensor) -> LibraryBiasGrad:
        """The kernel with the schedule of a device, for so many of its vector cores."""
        elements = library_step(device.memory("UB").size_bytes, _WIDTH)
        images, channels, positions = dy.shape
        return cls(dy, db, schedule((images, channels, positions), cores, elements))

    @property
    def tiling_text(self) -> str:
        s = self.schedule
        way = "parts added atomically" if s.atomic else "by channels"
        size = f"{s.images} images x {s.channels} channels x {s.columns} positions"
        return f"library, {way}, a step of {size}"

    def used(self, cores: int) -> int:
        return min(cores, self.schedule.cores)

    def idle(self, cores: int) -> str:
        used = self.used(cores)
        if used == cores:
            return ""
        if self.schedule.atomic:
            return f"{used} of {cores} cores work: there are no more images or positions to share"
        return f"{used} of {cores} cores work: the library gives a core {_GRAIN} channels or more"

    @property
    def before(self) -> tuple[Kernel, ...]:
        """The clearing of ``db`` where cores add to it."""
        return (MemSet(self.db),) if self.schedule.atomic else ()

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, cores: int) -> Tasks[Step]:
        """Steps core by core; the sums of some channels of a core are consecutive."""
        pieces = self._atomic_pieces() if self.schedule.atomic else self._channel_pieces()
        core, image, channel, position, images, channels, columns = pieces
        _, all_channels, positions = self.dy.shape
        begins = (np.diff(core, prepend=-1) != 0) | (np.diff(channel, prepend=-1) != 0)
        table = {
            "images": images,
            "channels": channels,
            "columns": columns,
            "first": begins,
            "last": np.append(begins[1:], True),
        }
        bases = {
            "dy": ((image * all_channels + channel) * positions + position) * self.dy.dtype.bytes,
            "db": channel * FP32.bytes,
        }
        if self.schedule.cores > cores:
            core = core * cores // self.schedule.cores
        return Tasks(core, Step, table, bases)

    def _channel_pieces(self) -> tuple[IntArray, ...]:
        """Core, first image, channel and position, and the extents of every step."""
        s = self.schedule
        images, channels, positions = self.dy.shape
        core, within, image, position = grid(
            np.arange(s.cores),
            np.arange(0, s.unit, s.channels),
            np.arange(0, images, s.images),
            np.arange(0, positions, s.columns),
        )
        channel = core * s.unit + within
        exists = channel < channels
        core, within, image, position, channel = (
            column[exists] for column in (core, within, image, position, channel)
        )
        extent = np.minimum(np.minimum(s.channels, s.unit - within), channels - channel)
        return (
            core,
            image,
            channel,
            position,
            np.minimum(s.images, images - image),
            extent,
            np.minimum(s.columns, positions - position),
        )

    def _atomic_pieces(self) -> tuple[IntArray, ...]:
        """Core, first image, channel and position, and the extents of every step."""
        s = self.schedule
        images, channels, positions = self.dy.shape
        (image, position), (share, part) = in_pieces((images, s.unit), (positions, s.part))
        # A core does all of its images and positions for some channels, then for the next ones.
        core, channel, more, further = grid(
            np.arange(len(image)),
            np.arange(0, channels, s.channels),
            np.arange(0, s.unit, s.images),
            np.arange(0, s.part, s.columns),
        )
        exists = (more < share[core]) & (further < part[core])
        core, channel, more, further = (
            numbers[exists] for numbers in (core, channel, more, further)
        )
        return (
            core,
            image[core] + more,
            channel,
            position[core] + further,
            np.minimum(s.images, share[core] - more),
            np.minimum(s.channels, channels - channel),
            np.minimum(s.columns, part[core] - further),
        )


class _Lines(NamedTuple):
    """What lies without gaps in GM and in UB: so many lines of so many elements.

    They are pictures, or all pictures of an image where these are whole blocks, or the whole step;
    of vectors each is one.
    """

    number: int
    length: int

    @property
    def widened(self) -> int:
        """Elements from one line to the next in fp32."""
        return round_up(self.length, _GRAIN)

    def loaded(self, element: int) -> int:
        """Elements of so many bytes from one line to the next as they are loaded."""
        return round_up(self.length, BLOCK_BYTES // element)


class _Move(NamedTuple):
    """A load of ``rows`` lines from ``line`` on, ``offset`` and ``pitch`` bytes in dy."""

    line: int
    rows: int
    offset: int
    pitch: int


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: LibraryBiasGrad, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        s = kernel.schedule
        dtype = kernel.dy.dtype
        lines = self._lines(s.images, s.channels, s.columns)
        loaded = lines.number * lines.loaded(dtype.bytes)
        self.dy = k.buffer("UB", (loaded,), dtype, slots=s.slots, name="dy_ub")
        self.wide = None
        if dtype != FP32:
            self.wide = k.buffer("UB", (lines.number * lines.widened,), FP32, name="fp32_ub")
        self.acc = k.buffer("UB", (s.channels,), FP32, name="acc_ub")
        self.rows = None
        if kernel.dy.shape[2] > 1:
            self.rows = k.buffer("UB", (s.channels,), FP32, name="row_ub")

    def _lines(self, images: int, channels: int, columns: int) -> _Lines:
        _, all_channels, positions = self.kernel.dy.shape
        if positions == 1:
            return _Lines(images, channels)
        if columns < positions or positions % _GRAIN:
            return _Lines(images * channels, columns)
        if channels < all_channels:
            return _Lines(images, channels * columns)
        return _Lines(1, images * channels * columns)

    def emit(self, u: Step) -> None:
        """Add a step's pictures to the sums of its channels, and store these behind the last."""
        k = self.k
        acc = self.acc.next() if u.first else self.acc.last()
        sums = acc.at(0, u.channels * FP32.bytes)
        if u.first:
            k.vec_dup(sums, 0.0, FP32)
        wide = self._load(u)
        if self.rows is None:
            self._add_vectors(u, sums, wide)
        else:
            self._add_pictures(u, sums, wide, self.rows.next())
        if u.last:
            target = self.kernel.db.at(0, u.channels * FP32.bytes, base="db")
            k.data_move(target, sums, FP32, atomic=self.kernel.schedule.atomic)
        if self.kernel.schedule.slots == 1:
            k.pipe_barrier()

    def _add_vectors(self, u: Step, sums: SlotRegion, wide: Slot) -> None:
        """Add the rows of a step to the sums, one after another."""
        size = u.channels * FP32.bytes
        pitch = round_up(u.channels, _GRAIN) * FP32.bytes
        for row in range(u.images):
            self.k.vec_binary("add", sums, sums, wide.at(row * pitch, size), FP32)

    def _add_pictures(self, u: Step, sums: SlotRegion, wide: Slot, rows: Slot) -> None:
        """Add the sum of each picture of a step, image by image."""
        k = self.k
        row = round_up(u.columns, _GRAIN) * FP32.bytes
        totals = rows.at(0, u.channels * FP32.bytes)
        for image in range(u.images):
            pictures = wide.at(
                image * u.channels * row, u.columns * FP32.bytes, rows=u.channels, pitch=row
            )
            k.vec_reduce("add", totals, pictures, u.channels, u.columns, FP32)
            k.vec_binary("add", sums, sums, totals, FP32)

    def _load(self, u: Step) -> Slot:
        """The step's part of dy as fp32."""
        dtype = self.kernel.dy.dtype
        lines = self._lines(u.images, u.channels, u.columns)
        slot = self.dy.next()
        pitch = lines.loaded(dtype.bytes) * dtype.bytes
        size = lines.length * dtype.bytes
        odd = size % BLOCK_BYTES != 0 and self.k.has_path("GM", "UB", "odd_row")
        variant = "odd_row" if odd else ""
        for move in self._moves(u, lines):
            target = slot.at(move.line * pitch, size, rows=move.rows, pitch=pitch)
            source = self.kernel.dy.at(
                move.offset, size, base="dy", rows=move.rows, pitch=move.pitch
            )
            self.k.data_move(target, source, dtype, variant=variant)
        if self.wide is None:
            return slot
        wide = self.wide.next()
        self.k.vec_cast(
            _rows(wide, lines, lines.widened * FP32.bytes, FP32.bytes),
            _rows(slot, lines, pitch, dtype.bytes),
            dtype,
            FP32,
        )
        return wide

    def _moves(self, u: Step, lines: _Lines) -> Iterator[_Move]:
        """The loads of a step: one for rows that are whole blocks apart, else one for each row."""
        _, channels, positions = self.kernel.dy.shape
        element = self.kernel.dy.dtype.bytes
        picture = positions * element
        image = channels * picture
        in_image = max(1, lines.number // u.images)
        pitch = picture if in_image > 1 else image
        rows = 1
        if lines.length * element % BLOCK_BYTES == 0 and pitch % BLOCK_BYTES == 0:
            rows = in_image if in_image > 1 else lines.number
        for line in range(0, lines.number, rows):
            offset = line // in_image * image + line % in_image * picture
            yield _Move(line, rows, offset, pitch)


def _rows(slot: Slot, lines: _Lines, pitch: int, element: int) -> SlotRegion:
    """The lines in a slot, each so many bytes behind the one before it."""
    return slot.at(0, lines.length * element, rows=lines.number, pitch=pitch)
