"""Filters of folded convolutions: made of the layer's, and a gradient of them taken apart.

    to_folded       w[q, c, kh, kw] -> [q div C0, taps of the folded gradient, channels, q mod C0]
    from_folded     [blocks of folded channels, taps, q, channel] -> dw[q, c, kh, kw]

Layouts: plain is (Cout, C, [1, [KH,]] KW), the other one FRACTAL_Z of ``parts/folding.py``'s
convolutions, in which a folded channel has another place of the filter in each tap, or none and
then zeros. Between them a row has the same place of a number of output channels, so that rows are
copied within UB.

    for output channels, and in to_folded row of taps:     # one task, cores take runs of them
        UB <- filters or fractals                          # MTE2
        UB <- a row for each place, output channels in it  # V: transposed
        UB <- rows in the other order, zeros between       # V
        UB <- output channels by rows                      # V: transposed, in from_folded
        GM <- fractals or filters                          # MTE3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.folding import FoldedConvolution
from npusim.kernels.parts.room import piece
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FRACTAL_BYTES,
    ArgumentError,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_runs,
    round_up,
)


class Rows(NamedTuple):
    """``number`` of rows to copy: the first ones and how far apart they are on either side."""

    number: int
    place: int
    place_pitch: int
    fold: int
    fold_pitch: int


class WeightTile(NamedTuple):
    """``filters`` that exist of one task, and the row of taps that it makes."""

    filters: int
    row: int


@dataclass(frozen=True)
class FoldWeights(Spread):
    """Convert ``src`` into ``dst`` for the folded ``shape``.

    Of one that computes an input gradient that is the filter to its weights; of one over the folded
    input, its filter gradient to the filter's.
    """

    shape: FoldedConvolution
    src: Tensor
    dst: Tensor

    name: ClassVar[str] = "fold_weights"
    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        plain, folded, whole = self.plain, self.folded, self.shape.whole
        if prod(plain.shape) != prod(whole.w_shape) or plain.shape[:2] != whole.w_shape[:2]:
            raise ArgumentError(
                f"fold_weights: {plain.name} has shape {plain.shape}, that of the layer is "
                f"{whole.w_shape}"
            )
        want = folded_weights_shape(self.shape)
        if folded.shape != want or folded.dtype != plain.dtype:
            raise ArgumentError(
                f"fold_weights: {folded.name} is {folded.dtype} of {folded.shape}; {plain.dtype} "
                f"of {want} belongs to {plain.name}"
            )

    @property
    def folds(self) -> bool:
        """Whether the source is the layer's filter."""
        return self.shape.gradient

    @property
    def plain(self) -> Tensor:
        """The filter or its gradient in framework layout."""
        return self.src if self.folds else self.dst

    @property
    def folded(self) -> Tensor:
        """The same of the folded convolution, in fractals."""
        return self.dst if self.folds else self.src

    @property
    def tiling_text(self) -> str:
        fold = self.shape.fold
        return f"{'to' if self.folds else 'from'} {fold.h}x{fold.w} pixels a position"

    def stream(self, device: Device, cores: int) -> Stream:
        tasks = _Work(self).task_count
        return Stream(
            read=self.src.size_bytes,
            written=self.dst.size_bytes,
            tasks=np.full(cores, tasks),
            vector=(("transpose", self.src.size_bytes),),
            cold=self.folds,
        )

    def plan(self, k: Language, cores: int) -> Plan[WeightTile]:
        work, align = _Work(self), k.memory("UB").align_bytes
        size = ceil_div(max(work.sizes), align) * align
        piece(k, self.name, size, 4, multiple=align, least=max(size, FRACTAL_BYTES))
        first = k.buffer("UB", (size,), None, slots=2, name="as_loaded")
        second = k.buffer("UB", (size,), None, slots=2, name="by_place")
        emit = work.emit_folded if self.folds else work.emit_plain
        return Plan(work.tasks(cores), lambda tile: emit(k, first.next(), second.next(), tile))


def folded_weights_shape(shape: FoldedConvolution) -> tuple[int, ...]:
    """Shape of the fractals of a folded convolution's weights or filter gradient."""
    plan = shape.plan
    return (plan.cin1_g * shape.taps, plan.cout_g // 16, 16, shape.c0)


def folded_weights_room(shape: FoldedConvolution, device: Device) -> bool:
    """Whether a device's UB holds what a task of the conversion has at once."""
    ub, element = device.memory("UB"), 32 // shape.c0 if shape.gradient else 4
    return 4 * round_up(element * max(_sizes(shape)), ub.align_bytes) <= ub.size_bytes


def _sizes(shape: FoldedConvolution) -> tuple[int, int]:
    """Elements that a task has: by place of the filter, and of the folded one."""
    whole, plan = shape.whole, shape.plan
    places = prod(whole.w_shape[1:])
    if shape.gradient:
        return places * shape.c0, shape.kernel[2] * plan.cout_g * shape.c0
    return places * 16, plan.cin1_g * shape.taps * 16 * shape.c0


class _Work:
    """Tasks of a conversion, and what is done in one."""

    def __init__(self, kernel: FoldWeights) -> None:
        self.shape, self.plain, self.folded = kernel.shape, kernel.plain, kernel.folded
        self.e, self.gradient = self.plain.dtype.bytes, kernel.shape.gradient
        self.c0, self.plan = kernel.shape.c0, kernel.shape.plan
        self.cout, self.c, *_ = kernel.shape.whole.w_shape
        self.kh, self.kw = kernel.shape.whole.kernel[1:]
        self.places = self.c * self.kh * self.kw
        # Output channels of a task: a block of the gradient's weights, rows of a fractal.
        self.width = self.c0 if self.gradient else 16
        self.row = self.width * self.e  # bytes of a row of either
        self.sizes = tuple(self.e * some for some in _sizes(kernel.shape))

    @property
    def task_count(self) -> int:
        """Number of tasks."""
        return ceil_div(self.cout, self.width) * (self.shape.kernel[1] if self.gradient else 1)

    def tasks(self, cores: int) -> Tasks[WeightTile]:
        """A block of output channels each, and a row of taps where these are made."""
        taps = self.shape.kernel[1]
        q, row = grid(
            np.arange(ceil_div(self.cout, self.width)), np.arange(taps if self.gradient else 1)
        )
        if self.gradient:  # [q div C0][row of taps][tap][channel][q mod C0]
            folded = (q * taps + row) * self.shape.kernel[2] * self.plan.cout_g * self.row
        else:  # [block][tap][q][channel]
            folded = q * self.width * self.c0 * self.e
        return Tasks(
            in_runs(len(q), cores),
            WeightTile,
            {"filters": np.minimum(self.width, self.cout - q * self.width), "row": row},
            {self.plain.name: q * self.width * self.places * self.e, self.folded.name: folded},
        )

    def emit_folded(self, k: Language, first: Slot, second: Slot, u: WeightTile) -> None:
        """Weights of a row of taps, for a block of output channels."""
        dtype, size = self.plain.dtype, u.filters * self.places * self.e
        if u.filters < self.width:
            k.vec_dup(second.at(0, self.places * self.row), 0.0, dtype)
        k.data_move(first.at(0, size), self.plain.at(0, size, base=self.plain.name), dtype)
        rows = second.at(0, u.filters * self.e, rows=self.places, pitch=self.row)
        k.vec_transpose(rows, first.at(0, size), u.filters, self.places, dtype)
        size = self.shape.kernel[2] * self.plan.cout_g * self.row
        k.vec_dup(first.at(0, size), 0.0, dtype)
        for one in self._rows_of_taps(u.row):
            self._copy(
                k,
                (first, one.fold, one.fold_pitch),
                (second, one.place, one.place_pitch),
                one.number,
            )
        k.data_move(self.folded.at(0, size, base=self.folded.name), first.at(0, size), dtype)

    def emit_plain(self, k: Language, first: Slot, second: Slot, u: WeightTile) -> None:
        """The gradient of some filters."""
        dtype, count = self.plain.dtype, self.plan.cin1_g * self.shape.taps
        fractal = self.width * self.c0 * self.e
        pitch = self.plan.cout_g * self.c0 * self.e
        source = self.folded.at(0, fractal, base=self.folded.name, rows=count, pitch=pitch)
        k.data_move(first.at(0, fractal, rows=count, pitch=fractal), source, dtype)
        turned, loaded = second.at(0, count * fractal), first.at(0, count * fractal)
        k.vec_transpose(turned, loaded, self.width, self.c0, dtype, count=count)
        for one in self._rows_of_places():
            self._copy(
                k,
                (first, one.place, one.place_pitch),
                (second, one.fold, one.fold_pitch),
                one.number,
            )
        size = self.places * self.row
        k.vec_transpose(second.at(0, size), first.at(0, size), self.places, self.width, dtype)
        size = u.filters * self.places * self.e
        k.data_move(self.plain.at(0, size, base=self.plain.name), second.at(0, size), dtype)

    def _copy(
        self, k: Language, to: tuple[Slot, int, int], source: tuple[Slot, int, int], count: int
    ) -> None:
        """Rows of one slot to another: (slot, first row, rows from one to the next)."""
        (target, first, apart), (held, start, between) = to, source
        size = self.row
        into = target.at(first * size, size, rows=count, pitch=apart * size)
        out = held.at(start * size, size, rows=count, pitch=between * size)
        k.data_move(into, out, self.plain.dtype)

    def _rows_of_taps(self, m: int) -> Iterator[Rows]:
        """Places of the filter that the taps of row ``m`` have for folded channels.

        Rows of weights are (tap, channel).
        """
        s, fold = self.shape, self.shape.fold
        first = s.tap(1, m, 0)  # the place of the first row of pixels; the others follow
        low, high = max(0, -first), min(fold.h, self.kh - first)
        for n in range(s.kernel[2] if low < high else 0):
            for b in range(fold.w):
                column = s.tap(2, n, b)
                if not 0 <= column < self.kw:
                    continue
                for c in range(self.c):
                    for row, count in fold.runs(c * fold.h + low, high - low, self.c0):
                        block, channel = fold.place(row, b, self.c0)
                        place = c * self.kh + first + row - c * fold.h
                        at = n * self.plan.cout_g + block * self.c0 + channel
                        yield Rows(count, place * self.kw + column, self.kw, at, 1)

    def _rows_of_places(self) -> Iterator[Rows]:
        """Where each place of the filter is in the folded one.

        Rows of that are (block, tap, channel). Places ``fold.w`` columns apart are neighbours.
        """
        s, fold = self.shape, self.shape.fold
        taps = s.kernel[2]
        for c in range(self.c):
            for kh in range(self.kh):
                m, a = divmod(kh - s.tap(1, 0, 0), fold.h)
                for kw in range(min(fold.w, self.kw)):
                    n, b = divmod(kw - s.tap(2, 0, 0), fold.w)
                    block, channel = fold.place(c * fold.h + a, b, self.c0)
                    at = ((block * s.kernel[1] + m) * taps + n) * self.c0 + channel
                    place = (c * self.kh + kh) * self.kw + kw
                    yield Rows(ceil_div(self.kw - kw, fold.w), place, fold.w, at, self.c0)
