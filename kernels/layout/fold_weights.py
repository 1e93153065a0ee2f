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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from npusim.kernels.layout.folding import FoldedConvolution
from npusim.kernels.layout.layout_change import ChangeWork, LayoutChange
from npusim.language import ArgumentError, Device, Language, Slot, Tasks, Tensor, ceil_div, grid


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


class FoldedFilters(Struct, frozen=True):
    """The filters of a folded convolution.

    Of one that computes an input gradient the layer's filter becomes its weights; of one over the
    folded input, its filter gradient that of the layer.
    """

    shape: FoldedConvolution

    @property
    def c0(self) -> int:
        """Channels of a block."""
        return self.shape.c0

    @property
    def loads_plain(self) -> bool:
        """True if the source is the layer's filter."""
        return self.shape.gradient

    def __str__(self) -> str:
        return self.shape.fold.text(loads_plain=self.loads_plain)

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the fractals of weights or filter gradient."""
        plan = self.shape.plan
        want = self.shape.whole.w_shape
        if prod(plain) != prod(want) or plain[:2] != want[:2]:
            raise ArgumentError(
                f"fold_weights: the filter has shape {plain}, that of the layer is {want}"
            )
        return (plan.cin1_g * self.shape.taps, plan.cout_g // 16, 16, self.c0)


class FilterWork(ChangeWork):
    """Tasks of a conversion, and what is done in one."""

    def __init__(self, change: FoldedFilters, plain: Tensor, blocked: Tensor) -> None:
        super().__init__(change, plain, blocked)
        self.shape = change.shape
        self.plan = change.shape.plan
        self.cout, self.c, *_ = self.shape.whole.w_shape
        self.kh, self.kw = self.shape.whole.kernel[1:]
        self.places = self.c * self.kh * self.kw
        # Output channels of a task: a block of the gradient's weights, rows of a fractal.
        self.width = self.c0 if self.load else 16
        self.row = self.width * self.e  # bytes of a row of either
        across = self.plan.cout_g * self.shape.kernel[2]
        taps = self.plan.cin1_g * self.shape.taps
        folded = across if self.load else taps * self.c0  # rows
        self.least = self.most = max(self.places, folded) * self.row

    def streamed(self, device: Device, cores: int) -> dict[str, Any]:
        source = self.plain if self.load else self.blocked
        count = ceil_div(self.cout, self.width) * (self.shape.kernel[1] if self.load else 1)
        return {
            "tasks": np.full(cores, count),
            "vector": (("transpose", source.size_bytes),),
        }

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[WeightTile]:
        """A block of output channels each, and a row of taps where these are made."""
        taps = self.shape.kernel[1]
        q, row = grid(
            np.arange(ceil_div(self.cout, self.width)), np.arange(taps if self.load else 1)
        )
        if self.load:  # [q div C0][row of taps][tap][channel][q mod C0]
            lane = (q * taps + row) * self.shape.kernel[2] * self.plan.cout_g
        else:  # [block][tap][q][channel]
            lane = q * self.width
        filters = np.minimum(self.width, self.cout - q * self.width)
        columns = {"filters": filters, "row": row}
        return self.in_runs(cores, WeightTile, columns, (q * self.width * self.places, lane))

    def emit(self, k: Language, first: Slot, second: Slot, u: WeightTile) -> None:
        """Weights of a row of taps for a block of output channels, or gradients of filters."""
        convert = self._to_folded if self.load else self._from_folded
        convert(k, first, second, u)

    def _to_folded(self, k: Language, first: Slot, second: Slot, u: WeightTile) -> None:
        """Weights of a row of taps, for a block of output channels."""
        dtype = self.plain.dtype
        size = u.filters * self.places * self.e
        if u.filters < self.width:
            k.vec_dup(second.at(0, self.places * self.row), 0.0, dtype)
        k.data_move(first.at(0, size), self.plain.at(0, size, base=self.plain.name), dtype)
        rows = second.at(0, u.filters * self.e, rows=self.places, pitch=self.row)
        k.vec_transpose(rows, first.at(0, size), u.filters, self.places, dtype)
        size = self.shape.kernel[2] * self.plan.cout_g * self.row
        k.vec_dup(first.at(0, size), 0.0, dtype)
        self._copy(k, first, second, self._rows_of_taps(u.row))
        k.data_move(self.blocked.at(0, size, base=self.blocked.name), first.at(0, size), dtype)

    def _from_folded(self, k: Language, first: Slot, second: Slot, u: WeightTile) -> None:
        """The gradient of some filters."""
        dtype = self.plain.dtype
        count = self.plan.cin1_g * self.shape.taps
        fractal = self.width * self.c0 * self.e
        pitch = self.plan.cout_g * self.c0 * self.e
        source = self.blocked.at(0, fractal, base=self.blocked.name, rows=count, pitch=pitch)
        k.data_move(first.at(0, fractal, rows=count, pitch=fractal), source, dtype)
        turned = second.at(0, count * fractal)
        loaded = first.at(0, count * fractal)
        k.vec_transpose(turned, loaded, self.width, self.c0, dtype, count=count)
        self._copy(k, first, second, self._rows_of_places())
        by_place = first.at(0, self.places * self.row)
        by_filter = second.at(0, self.places * self.row)
        k.vec_transpose(by_filter, by_place, self.places, self.width, dtype)
        size = u.filters * self.places * self.e
        k.data_move(self.plain.at(0, size, base=self.plain.name), second.at(0, size), dtype)

    def _copy(self, k: Language, target: Slot, source: Slot, moves: Iterable[Rows]) -> None:
        """Rows of one slot to another."""
        size = self.row
        for rows in moves:
            folded = rows.fold * size
            folded_pitch = rows.fold_pitch * size
            place = rows.place * size
            place_pitch = rows.place_pitch * size
            if self.load:
                into = target.at(folded, size, rows=rows.number, pitch=folded_pitch)
                out = source.at(place, size, rows=rows.number, pitch=place_pitch)
            else:
                into = target.at(place, size, rows=rows.number, pitch=place_pitch)
                out = source.at(folded, size, rows=rows.number, pitch=folded_pitch)
            k.data_move(into, out, self.plain.dtype)

    def _rows_of_taps(self, m: int) -> Iterator[Rows]:
        """Places of the filter that the taps of row ``m`` have for folded channels.

        Rows of weights are (tap, channel).
        """
        s = self.shape
        fold = s.fold
        first = s.tap(1, m, 0)  # the place of the first row of pixels; the others follow
        low = max(0, -first)
        high = min(fold.h, self.kh - first)
        if low >= high:
            return
        for n, b, c in product(range(s.kernel[2]), range(fold.w), range(self.c)):
            column = s.tap(2, n, b)
            if not 0 <= column < self.kw:
                continue
            for row, count in fold.runs(c * fold.h + low, high - low, self.c0):
                block, channel = fold.place(row, b, self.c0)
                place = c * self.kh + first + row - c * fold.h
                weight = n * self.plan.cout_g + block * self.c0 + channel
                yield Rows(count, place * self.kw + column, self.kw, weight, 1)

    def _rows_of_places(self) -> Iterator[Rows]:
        """The places of the filter in the folded one.

        Rows of that are (block, tap, channel). Places ``fold.w`` columns apart are neighbours.
        """
        s = self.shape
        fold = s.fold
        columns = range(min(fold.w, self.kw))
        for c, kh, kw in product(range(self.c), range(self.kh), columns):
            m, a = divmod(kh - s.tap(1, 0, 0), fold.h)
            n, b = divmod(kw - s.tap(2, 0, 0), fold.w)
            block, channel = fold.place(c * fold.h + a, b, self.c0)
            tap = (block * s.kernel[1] + m) * s.kernel[2] + n
            place = (c * self.kh + kh) * self.kw + kw
            count = ceil_div(self.kw - kw, fold.w)
            yield Rows(count, place, fold.w, tap * self.c0 + channel, self.c0)


@dataclass(frozen=True)
class FoldWeights(LayoutChange):
    """The conversion of filters as ``FoldedFilters`` says."""

    name: ClassVar[str] = "fold_weights"
    works: ClassVar[type[ChangeWork]] = FilterWork
    buffers: ClassVar[tuple[str, str]] = ("as_loaded", "by_place")
