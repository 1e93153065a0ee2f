"""Filter gradient of a transposed convolution on a DSP: im2row of dy, then GEMM.

dw[g, (oc*KH + kh)*KW + kw, ic] = sum over b, ih, iw of dy[b, r, c, g*OCG + oc] * x[b, ih, iw, ...]
with r = ih*sh - pad_u + kh*dh, c = iw*sw - pad_l + kw*dw; dy outside its rows and columns is 0.

    x (B, H, W, IC)   dy (B, OH, OW, OC)   dw (G, OCG*KH*KW, ICG)             NHWC, in GM
    A (positions, taps, channels) in SM    B (positions, columns) in AM       one chunk
    acc (taps, channels, columns) fp32 in AM

for tile (channels of a group, taps, columns of the group's input) of this core:
    for image b:
        for chunk of whole input rows (pieces of a row where one does not fit):   # one *unit*
            B <- x                                                       # DMA
            A <- 0 where the tap falls outside dy                        # S, scalar stores
            A <- dy, per tap: a frame of channels for every position     # DMA, strided
            acc (+)= A^T @ B                                             # VPU
    dw <- acc, through a cast for fp16                                   # VPU, DMA

Channels of dy are innermost, so a frame is contiguous and im2row needs no transposition: A is
kept with the positions outside, an order the micro-kernel reads as fast, and the axes of dw are
put right as it is stored. A core owns whole output channels: no element is added to by two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.device.spec import Device
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Slot, Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

#: Largest count of frames, and of 32-bit words in a frame, of one DMA descriptor.
DMA_FIELD = 65535

#: Positions of a chunk worth having: 6 cycles each, they bury the micro-kernel's overhead.
GOOD_CHUNK, FULL_CHUNK = 64, 512

#: Chunks of a tile worth having: the first is loaded before anything is multiplied.
MANY_CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class DeconvShape:
    """Sizes of the problem, all counts of elements; pairs are (height, width)."""

    batch: int
    in_size: tuple[int, int]
    in_c: int
    out_size: tuple[int, int]
    out_c: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]  # above and left; out_size says where dy ends
    dilation: tuple[int, int]
    group: int

    @property
    def icg(self) -> int:
        """Input channels of a group."""
        return self.in_c // self.group

    @property
    def ocg(self) -> int:
        """Output channels of a group."""
        return self.out_c // self.group

    @property
    def taps(self) -> int:
        """Positions of the filter."""
        return self.kernel[0] * self.kernel[1]

    @property
    def macs(self) -> int:
        """Multiply-adds, those included that fall beyond the output."""
        positions = self.in_size[0] * self.in_size[1]
        return self.batch * positions * self.in_c * self.ocg * self.taps


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A tile is ``channels`` x ``taps`` rows by ``columns``; a chunk is ``rows`` x ``width``.

    ``width`` less than the input's goes with one row, so that positions run in one order.
    """

    channels: int
    taps: int
    columns: int
    rows: int
    width: int

    def __post_init__(self) -> None:
        for name in ("channels", "taps", "columns", "rows", "width"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"tiling {name} is {getattr(self, name)}; it must be >= 1")

    def __str__(self) -> str:
        return (
            f"tile {self.channels} channels x {self.taps} taps x {self.columns}, "
            f"chunk {self.rows}x{self.width}, 2 slots"
        )


def auto_tiling(s: DeconvShape, dtype: DType, device: Device, cores: int) -> Tiling:
    """Tiles that fill SM with two chunks of A, and AM with two of B and the accumulator."""
    slot = device.memories["SM"].size_bytes // 2 // dtype.bytes  # elements of one chunk of A
    height, wide = s.in_size
    most = max(1, slot // min(height * wide, GOOD_CHUNK))  # rows of the tile
    taps = min(s.taps, most)
    own = min(ceil_div(s.out_c, cores), s.ocg)
    channels = min(own, most // taps)
    channels = ceil_div(own, ceil_div(own, channels))  # equal tiles
    wanted = min(FULL_CHUNK, max(GOOD_CHUNK, s.batch * height * wide // MANY_CHUNKS))
    room = min(wanted, slot // (taps * channels))  # positions of a chunk
    rows, width = (min(height, room // wide), wide) if room >= wide else (1, room)
    per_column = taps * channels * (FP32.bytes + (dtype.bytes if dtype is not FP32 else 0))
    per_column += 2 * rows * width * dtype.bytes
    # Buffers are rounded up to the alignment of AM: leave one such piece to each of the four.
    am = device.memories["AM"]
    fit = max(1, (am.size_bytes - 4 * am.align_bytes) // per_column)
    block = device.gemm.rates[dtype.name].n if device.gemm else 1
    if fit < s.icg and fit > block:
        fit -= fit % block
    columns = min(s.icg, fit, DMA_FIELD * 4 // dtype.bytes)
    return Tiling(channels=channels, taps=taps, columns=columns, rows=rows, width=width)


class DeconvGradFilter(Kernel):
    """The kernel for ``x``, ``dy`` and ``dw`` in the layouts above."""

    name: ClassVar[str] = "deconv_grad_filter"
    role: ClassVar[str] = "dsp"

    def __init__(
        self, shape: DeconvShape, tiling: Tiling, x: Tensor, dy: Tensor, dw: Tensor
    ) -> None:
        wide = shape.in_size[1]
        if tiling.width < wide and tiling.rows > 1:
            raise ArgumentError(
                f"tiling has {tiling.rows} rows of width {tiling.width}; the input is {wide} wide, "
                "use one row or the full width"
            )
        self.shape, self.tiling = shape, tiling
        self.x, self.dy, self.dw = x, dy, dw
        self.dtype = x.dtype
        self.tiling_text = str(tiling)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.dy, self.dw)

    # -- who computes what -----------------------------------------------------------------

    def units(self, cores: int) -> Units:
        s, e = self.shape, self.dtype.bytes
        tiles, chunks = list(self._tiles(cores)), list(self._chunks())
        tile = _columns(tiles, ("core", "group", "oc0", "oc", "t0", "taps", "n0", "n"))
        chunk = _columns(chunks, ("x", "dy", "rows", "cols", "above", "below", "left", "right"))
        t, b, c = (
            grid.reshape(-1)
            for grid in np.meshgrid(*map(np.arange, (len(tiles), s.batch, len(chunks))),
                                    indexing="ij")
        )  # fmt: skip
        signature = {name: tile[name][t] for name in ("oc", "t0", "taps", "n")}
        borders = ("rows", "cols", "above", "below", "left", "right")
        signature |= {name: chunk[name][c] for name in borders}
        signature["first"] = ((b == 0) & (c == 0)).astype(np.int64)
        signature["last"] = ((b == s.batch - 1) & (c == len(chunks) - 1)).astype(np.int64)
        channel = tile["group"] * s.ocg + tile["oc0"]
        image_x, image_dy = (
            h * w * n for (h, w), n in ((s.in_size, s.in_c), (s.out_size, s.out_c))
        )
        x = (b * image_x + chunk["x"][c]) + (tile["group"] * s.icg + tile["n0"])[t]
        dy = (b * image_dy + chunk["dy"][c]) + channel[t]
        dw = ((channel * s.taps + tile["t0"]) * s.icg + tile["n0"])[t]
        return Units(tile["core"][t], signature, {"x": x * e, "dy": dy * e, "dw": dw * e})

    def _tiles(self, cores: int) -> Iterator[tuple[int, ...]]:
        """(core, group, first and count of channels, of taps, of columns), core by core."""
        s, t = self.shape, self.tiling
        for core in range(cores):
            first, end = s.out_c * core // cores, s.out_c * (core + 1) // cores
            for group in range(first // s.ocg, ceil_div(end, s.ocg)):
                low, high = max(first - group * s.ocg, 0), min(end - group * s.ocg, s.ocg)
                channels, taps, columns = (
                    [(i, min(step, stop - i)) for i in range(start, stop, step)]
                    for start, stop, step in (
                        (low, high, t.channels),
                        (0, s.taps, t.taps),
                        (0, s.icg, t.columns),
                    )
                )
                for (oc0, oc), (t0, tn), (n0, n) in product(channels, taps, columns):
                    yield core, group, oc0, oc, t0, tn, n0, n

    def _chunks(self) -> Iterator[tuple[int, ...]]:
        """(offsets in an image of x and dy, extents, border distances), in order of positions.

        ``above`` and ``below`` bound the rows of dy that exist, ``left`` and ``right`` the
        columns, both counted from where tap (0, 0) of the chunk's first position falls and cut
        to the chunk's reach: chunks inside dy are alike.
        """
        s, t = self.shape, self.tiling
        (height, wide), (oh, ow) = s.in_size, s.out_size
        for ih, iw in product(range(0, height, t.rows), range(0, wide, t.width)):
            rows, cols = min(t.rows, height - ih), min(t.width, wide - iw)
            r, c = (i * st - p for i, st, p in zip((ih, iw), s.stride, s.pad, strict=True))
            reach = [
                (count - 1) * st + (k - 1) * d + 1
                for count, st, k, d in zip(
                    (rows, cols), s.stride, s.kernel, s.dilation, strict=True
                )
            ]
            above, below = _inside(r, oh, reach[0])
            left, right = _inside(c, ow, reach[1])
            seen = above < below and left < right
            dy = (r * ow + c) * s.out_c if seen else 0
            yield (ih * wide + iw) * s.in_c, dy, rows, cols, above, below, left, right

    # -- one unit --------------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        s, t = self.shape, self.tiling
        positions = min(t.rows, s.in_size[0]) * min(t.width, s.in_size[1])
        rows, columns = min(t.taps, s.taps) * min(t.channels, s.ocg), min(t.columns, s.icg)
        self.a = k.buffer("SM", (positions, rows), self.dtype, slots=2, name="im2row")
        self.b = k.buffer("AM", (positions, columns), self.dtype, slots=2, name="x_am")
        self.acc = k.buffer("AM", (rows, columns), FP32, name="acc")
        if self.dtype is not FP32:
            self.out = k.buffer("AM", (rows, columns), self.dtype, name="dw_am")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        m, positions, e = unit.taps * unit.oc, unit.rows * unit.cols, self.dtype.bytes
        a, b = self.a.next(), self.b.next()
        self._load_x(k, b, unit)
        self._im2row(k, a, unit)
        acc = self.acc.next() if unit.first else self.acc.last()
        k.dsp_gemm(
            acc.at(0, m * unit.n * FP32.bytes),
            a.at(0, positions * m * e),
            b.at(0, positions * unit.n * e),
            m,
            positions,
            unit.n,
            self.dtype,
            init=bool(unit.first),
            transpose_a=True,
        )
        if unit.last:
            self._store(k, acc, unit)

    def _load_x(self, k: Language, b: Slot, unit: SimpleNamespace) -> None:
        """A chunk of x: a frame of columns per position, or one piece where that is contiguous."""
        e, positions = self.dtype.bytes, unit.rows * unit.cols
        pitch, size = self.shape.in_c * e, unit.n * e
        whole = size == pitch and positions * size <= DMA_FIELD * 4
        source = (
            self.x.at(0, positions * size, base="x")
            if whole
            else self.x.at(0, size, base="x", rows=positions, pitch=pitch)
        )
        k.data_move(b.at(0, positions * size), source, self.dtype)

    def _im2row(self, k: Language, a: Slot, unit: SimpleNamespace) -> None:
        """A chunk of im2row(dy): per tap, frames of channels, and zeros outside dy."""
        e, s = self.dtype.bytes, self.shape
        frame, row = unit.oc * e, unit.taps * unit.oc * e
        pitch = s.stride[1] * s.out_c * e
        loads = []
        # Zeros first: a scalar store after a DMA into the same slot would wait for it.
        for tap in range(unit.taps):
            inside = self._frames(unit, unit.t0 + tap)
            for first, count in _gaps(inside, unit.rows * unit.cols):
                k.fill(a.at(first * row + tap * frame, frame, rows=count, pitch=row), 0, self.dtype)
            loads += [(tap, *run) for run in inside]
        for tap, first, count, offset in loads:
            k.data_move(
                a.at(first * row + tap * frame, frame, rows=count, pitch=row),
                self.dy.at(offset * e, frame, base="dy", rows=count, pitch=pitch),
                self.dtype,
            )

    def _frames(self, unit: SimpleNamespace, tap: int) -> list[tuple[int, int, int]]:
        """Runs of positions that ``tap`` finds in dy: (first, count, element offset in dy)."""
        s = self.shape
        (sh, sw), out_w = s.stride, s.out_size[1]
        dr, dc = tap // s.kernel[1] * s.dilation[0], tap % s.kernel[1] * s.dilation[1]
        low = min(max(ceil_div(unit.left - dc, sw), 0), unit.cols)
        high = min(max(ceil_div(unit.right - dc, sw), low), unit.cols)
        runs: list[tuple[int, int, int]] = []
        for i in range(unit.rows):
            if not unit.above <= i * sh + dr < unit.below or low == high:
                continue
            first, count = i * unit.cols + low, high - low
            offset = ((i * sh + dr) * out_w + low * sw + dc) * s.out_c
            if runs:
                start, length, begin = runs[-1]
                if start + length == first and begin + length * sw * s.out_c == offset:
                    runs[-1] = (start, length + count, begin)
                    continue
            runs.append((first, count, offset))
        return runs

    def _store(self, k: Language, acc: Slot, unit: SimpleNamespace) -> None:
        """acc (taps, channels, columns) to dw, where channels are outside the taps."""
        s, e = self.shape, self.dtype.bytes
        done = acc
        if self.dtype is not FP32:
            done, count = self.out.next(), unit.taps * unit.oc * unit.n
            k.dsp_cast(done.at(0, count * e), acc.at(0, count * FP32.bytes), FP32, self.dtype)
        row, frame = s.icg * e, unit.n * e
        for tap in range(unit.taps):
            k.data_move(
                self.dw.at(tap * row, frame, base="dw", rows=unit.oc, pitch=s.taps * row),
                done.at(tap * unit.oc * frame, unit.oc * frame),
                self.dtype,
            )


def _columns(rows: list[tuple[int, ...]], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """A table as named columns."""
    return dict(zip(names, np.array(rows, np.int64).T, strict=True))


def _inside(start: int, size: int, reach: int) -> tuple[int, int]:
    """Which of ``reach`` places from ``start`` on lie in 0..size-1: from, to (excluded)."""
    return min(max(-start, 0), reach), min(max(size - start, 0), reach)


def _gaps(runs: list[tuple[int, int, int]], total: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the positions below ``total`` that no run covers."""
    at = 0
    for first, count, _ in (*runs, (total, 0, 0)):
        if first > at:
            yield at, first - at
        at = first + count
