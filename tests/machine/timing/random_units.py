"""Random instructions of one unit of work, legal on the core that runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from npusim.base.dtypes import FP16, FP32
from npusim.base.records import replace
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import FRACTAL_BYTES, GmRegion, Region, Slot, Tensor
from npusim.machine.program.fixpipe import Line
from npusim.machine.program.language import BufferHandle, Language

#: Rows of the largest tile that is drained.
DRAIN_ROWS = 32

#: Bytes of the largest move; half of a tensor holds as many.
MOST_BYTES = 4096

#: The id of flags from one unit to the next; those inside a unit have higher ones.
CARRIED = 0


@dataclass(frozen=True)
class Buffers:
    """The buffers of a kernel by memory, and the one that drains of L0C go through, if any."""

    by_memory: dict[str, list[BufferHandle]]
    staging: BufferHandle | None


def declare(k: Language, rng: Random) -> Buffers:
    """One or two buffers of 1 to 4 slots in every memory, in half of it at most.

    Those of L0C have the unit flag or not, where the cube has it.
    """
    by_memory = {}
    cube = k.device.cube
    for name in k.kind.memories:
        memory = k.device.memories[name]
        slots = [rng.randint(1, 4) for _ in range(rng.randint(1, 2))]
        size = min(memory.size_bytes // 2 // sum(slots), rng.choice((512, 1024, 2048, 8192)))
        size = max(1, size // memory.align_bytes) * memory.align_bytes
        can_flag = name == "L0C" and cube is not None and cube.unit_flag
        by_memory[name] = [
            k.buffer(name, (size,), None, slots=n, unit_flag=can_flag and rng.random() < 0.7)
            for n in slots
        ]
    staging = None
    if "L0C" in by_memory:
        depth, columns = rng.randint(1, 4), rng.randint(1, 4)
        staging = k.fixpipe_staging(DRAIN_ROWS, FP16, slots=depth, columns=columns)
    return Buffers(by_memory, staging)


class Instructions:
    """Issues random instructions one at a time: ``issue`` any, ``close`` what is open.

    A method per kind of instruction; the constructor's table says what a core needs for each. A
    new instruction is a new method and row.
    """

    def __init__(
        self, k: Language, rng: Random, buffers: Buffers, tensors: tuple[Tensor, ...]
    ) -> None:
        self.k, self.rng, self.buffers, self.tensors = k, rng, buffers, tensors
        self.open: list[tuple[str, str, int]] = []  # flags that are up
        places = {*k.kind.memories, "GM", "IMM"}
        paths = [
            path
            for path in k.device.paths.values()
            if path.pipe in k.kind.pipes and {path.src, path.dst} <= places
        ]
        plain = [path for path in paths if not path.variant]
        self.fills = [path.dst for path in plain if path.src == "IMM"]
        self.moves = [(path.src, path.dst) for path in plain if path.src != "IMM"]
        self.moves += [move for move in self.moves if "GM" in move] * 2
        table: list[tuple[Callable[[], None], bool]] = [
            (self.move, True),
            (self.flag, True),
            (self.barrier, True),
            (self.fill, bool(self.fills)),
            (self.nd2nz, any(path.variant == "nd2nz" for path in paths)),
            (self.vector, "V" in k.kind.pipes),
            (self.feed, "MTE1" in k.kind.pipes),
            (self.mmad, "M" in k.kind.pipes),
            (self.drain, "M" in k.kind.pipes),
            (self.tile, "M" in k.kind.pipes),
            (self.gemm, "VPU" in k.kind.pipes),
            (self.cast, "VPU" in k.kind.pipes),
        ]
        self.kinds = [method for method, possible in table if possible]
        self.weights = [1, *(rng.choice((0, 1, 1, 4)) for _ in self.kinds[1:])]

    def issue(self) -> None:
        """One instruction, or the few that compute or drain a tile."""
        self.rng.choices(self.kinds, self.weights)[0]()

    def close(self) -> None:
        """Wait for the flags that are up, so that the next unit may raise them."""
        while self.open:
            self.k.wait_flag(*self.open.pop())

    # -- operands --------------------------------------------------------------------------

    def slot(self, memory: str, *, write: bool = False) -> Slot:
        """A slot of a memory: a new turn or one still held, perhaps by an earlier unit.

        Ask for the slot to write first: a new turn may take away one that is read.
        """
        handle = self.rng.choice(self.buffers.by_memory[memory])
        if write and self.rng.random() < 0.7:
            return handle.next()
        return handle.last(self.rng.randrange(handle.buffer.slots))

    def gm(self, rows: int, row: int) -> GmRegion:
        """Rows of a tensor's first half from a base or none, often across blocks or overlapping.

        Bases lie in the first half too, so that nothing leaves the tensor.
        """
        tensor = self.rng.choice(self.tensors)
        half = tensor.size_bytes // 2
        pitch = self.rng.choice((0, row // 2, row, row, row + 36, 512, 1500))
        pitch = min(pitch, (half - row) // max(1, rows - 1))
        last = half - (rows - 1) * pitch - row
        offset = self.rng.choice((0, 0, self.rng.randint(0, last), min(512, last), last))
        return tensor.at(offset, row, base=self.rng.choice(("", "p", "q")), rows=rows, pitch=pitch)

    def side(self, slot: Slot | None, rows: int, row: int) -> Region:
        """One end of a move: rows of a tensor, or the same bytes of a slot in one piece."""
        return self.gm(rows, row) if slot is None else slot.at(0, rows * row)

    def bytes_in(self, *slots: Slot) -> int:
        """A number of bytes, whole fp32 elements, that each slot holds; often all of one."""
        room = min(MOST_BYTES, *(slot.buffer.slot_bytes for slot in slots))
        return self.rng.choice((room, min(256, room), self.rng.randint(1, room // 4) * 4))

    # -- kinds of instruction --------------------------------------------------------------

    def move(self) -> None:
        src, dst = self.rng.choice(self.moves)
        target = None if dst == "GM" else self.slot(dst, write=True)
        source = None if src == "GM" else self.slot(src)
        slots = [slot for slot in (target, source) if slot is not None]
        size, block = self.bytes_in(*slots), max(slot.buffer.align for slot in slots)
        rows = max(1, min(self.rng.choice((1, 1, 2, 7)), size // block))
        row = size if rows == 1 else size // rows // block * block  # rows begin at whole blocks
        atomic = dst == "GM" and self.rng.random() < 0.4
        self.k.data_move(
            self.side(target, rows, row), self.side(source, rows, row), FP16, atomic=atomic
        )

    def fill(self) -> None:
        target = self.slot(self.rng.choice(self.fills), write=True)
        self.k.fill(target.at(0, self.bytes_in(target)), 1.0, FP16)

    def nd2nz(self) -> None:
        target = self.slot("L1", write=True)
        columns = self.rng.randint(1, min(8, target.buffer.slot_bytes // FRACTAL_BYTES))
        source = self.gm(self.rng.randint(1, 16), columns * 32 - self.rng.choice((0, 2, 30)))
        self.k.nd2nz(target.at(0, columns * FRACTAL_BYTES), source, FP16)

    def vector(self) -> None:
        target, a, b = self.slot("UB", write=True), self.slot("UB"), self.slot("UB")
        size = self.bytes_in(target, a, b)
        to, left, right = (slot.at(0, size) for slot in (target, a, b))
        kind = self.rng.randrange(7)
        if kind == 0:
            self.k.vec_dup(to, 0.0, FP16)
        elif kind == 1:
            self.k.vec_scalar("muls", to, left, 2.0, FP16)
        elif kind == 2:
            self.k.vec_binary("add", to, left, right, FP16)
        elif kind == 3:
            self.k.vec_unary("abs", to, left, FP16)
        elif kind == 4:
            size = max(16, size // 16 * 16)
            mask, left = target.at(0, size // 16), a.at(0, size)
            self.k.vec_compare("lt", mask, left, b.at(0, size), FP16)
            self.k.vec_select(left, mask, left, 0, FP16)
        elif kind == 5:
            self.k.vec_reduce("max", target.at(0, 2), left, 1, size // 2, FP16)
        else:
            self.add_back(target, a, size // 512)

    def add_back(self, image: Slot, positions: Slot, most: int) -> None:
        """Pixels of a row of at most so many fractals, added to those that a tap reads."""
        if most < 1 or "col2img" not in self.k.device.vector.ops:
            return
        window = Window(1, 16 * self.rng.randint(1, most), kernel_w=2, stride_w=2)
        tap = self.rng.randrange(2)
        self.k.col2img(image.at(0, window.w * 32), positions, window, tap, FP16)

    def feed(self) -> None:
        """L1 to L0, fractal by fractal or as img2col of one plane of 4 x 4 positions.

        Where there is a path, some planes go to UB.
        """
        to_ub = ("UB",) if self.k.has_path("L1", "UB", "load3d") else ()
        place = self.rng.choice(("L0A", "L0B", *to_ub))
        forms: tuple[str, ...] = ("", "transpose", "load3d", "load3d_transpose")
        if place == "UB":
            forms = ("load3d",)
        form = self.rng.choice([f for f in forms if self.k.has_path("L1", place, f)])
        target, source = self.slot(place, write=True), self.slot("L1")
        room, held = (slot.buffer.slot_bytes // FRACTAL_BYTES for slot in (target, source))
        if not form.startswith("load3d"):
            repeat = self.rng.randint(1, min(room, held))
            start, stride = self.rng.randint(0, held - repeat), self.rng.choice((0, 1))
            turned = form == "transpose"
            fractals = source.fractals(start, repeat, stride=stride)
            self.k.load2d(target, fractals, FP16, transpose=turned)
            return
        step, columns = self.rng.choice((1, 2, 3)), self.rng.randint(1, min(room, 9))
        self.k.load3d(
            target.at(0, columns * FRACTAL_BYTES),
            source.at(0, 16 * 32),
            Window(4, 4, 1, 1, 1, 1, 3, 3, step, step),
            FP16,
            m=(0, self.rng.randint(1, 16)),
            k=(0, columns * 16),
            transpose=form == "load3d_transpose",
        )

    def mmad(self) -> None:
        c = self.slot("L0C", write=self.rng.random() < 0.5)
        self.multiply(c, init=self.rng.random() < 0.5)

    def drain(self) -> None:
        self.drain_of(self.slot("L0C"))

    def tile(self) -> None:
        """A tile summed up in a few steps of k and drained; the next one may take its slot."""
        c = self.slot("L0C", write=True)
        for step in range(self.rng.randint(1, 5)):
            if self.rng.random() < 0.3:
                self.feed()
            self.multiply(c, init=step == 0)
        self.drain_of(c)

    def multiply(self, c: Slot, *, init: bool) -> None:
        a, b = self.slot("L0A"), self.slot("L0B")
        in_a, in_b = (slot.buffer.slot_bytes // FRACTAL_BYTES for slot in (a, b))
        in_c = c.buffer.slot_bytes // 1024
        m = self.rng.randint(1, min(in_a, in_c))
        n = self.rng.randint(1, min(in_b, in_c // m))
        k = self.rng.randint(1, min(in_a // m, in_b // n))
        self.k.mmad(c, a, b, m * 16 - self.rng.choice((0, 3)), k * 16, n * 16, FP16, init=init)

    def drain_of(self, c: Slot) -> None:
        tiles = c.buffer.slot_bytes // 1024
        m1 = self.rng.randint(1, min(tiles, DRAIN_ROWS // 16))
        n1 = self.rng.randint(1, min(tiles // m1, 4))
        m, n = m1 * 16 - self.rng.choice((0, 3)), n1 * 16
        staging = self.buffers.staging
        rows = staging is not None or self.k.has_path("L0C", "GM", "nz2nd")
        if rows and self.rng.random() < 0.2:  # every second place of the rows in GM
            places = self.gm(n1, m * 64)
            places = replace(places, row_bytes=32, pitch=places.pitch // 2 * 2)  # whole elements
            lines = [Line(0, m, 0, 64)]
            self.k.fixpipe_scatter(places, lines, c, m, n, FP16, staging=staging)
            return
        nd, atomic = rows and self.rng.random() < 0.4, self.rng.random() < 0.4
        target = self.gm(m, n * 2) if nd else self.gm(n1, m * 32)
        self.k.fixpipe(target, c, m, n, FP16, staging=staging, nd=nd, atomic=atomic)

    def gemm(self) -> None:
        acc, b = self.slot("AM", write=True), self.slot("AM")
        a = self.slot(self.rng.choice(("SM", "AM")))
        m, k, n = (self.rng.randint(1, 11) for _ in "mkn")  # 11 x 11 fp32 fit any slot
        init = self.rng.random() < 0.5
        self.k.dsp_gemm(
            acc.at(0, m * n * 4), a.at(0, m * k * 4), b.at(0, k * n * 4), m, k, n, FP32, init=init
        )

    def cast(self) -> None:
        target, source = self.slot("AM", write=True), self.slot("AM")
        size = self.bytes_in(target, source)
        self.k.dsp_cast(target.at(0, size // 2), source.at(0, size), FP32, FP16)

    def flag(self) -> None:
        """Raise a flag that is down, or wait for one that is up."""
        if self.open and self.rng.random() < 0.6:
            self.k.wait_flag(*self.open.pop(self.rng.randrange(len(self.open))))
            return
        src, dst = self.rng.sample(self.k.kind.pipes, 2)
        flag = (src, dst, self.rng.randrange(CARRIED + 1, self.k.device.sync.event_ids))
        if flag not in self.open:
            self.open.append(flag)
            self.k.set_flag(*flag)

    def barrier(self) -> None:
        self.k.pipe_barrier(self.rng.choice((*self.k.kind.pipes, "ALL")))
