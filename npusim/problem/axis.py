"""One axis of a convolution: which outputs read which inputs through which taps.

A kernel may take an axis as it is, or as parts that are axes themselves: the residues of strided
outputs, bands of a filter that is too wide for a load, or single taps.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from npusim.base.integers import IntArray, ceil_div
from npusim.base.records import replace

#: What fields of an img2col load hold: strides, and padding on one side, filter and dilation.
_STRIDE_FIELD, _PAD_FIELD = 63, 255

#: Taps of the widest filter that such a load slides; wider ones are cut into bands.
WIDEST_FILTER = _PAD_FIELD

#: Inputs between the first and the last tap from which taps are worth taking one by one.
_WIDE = 128


class Reading(NamedTuple):
    """Way in which some outputs of an axis read inputs, wherever on the axis they are.

    ``outputs`` read ``size`` virtual inputs and padding ``before`` and ``after`` them; of the
    virtual ones ``real`` are real, the first after ``skip``. The first output is the one that
    ``offset`` outputs of these inputs precede. The rest is said of the outputs' own axis, but how
    far apart outputs, inputs and taps are on the whole one.
    """

    outputs: int
    size: int
    before: int
    after: int
    real: int
    skip: int
    offset: int
    kernel: int
    stride: int
    dilation: int
    insert: int
    outputs_apart: int
    inputs_apart: int
    taps_apart: int


class Runs(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Runs of outputs of an axis and what they read, one entry of each column per run.

    ``first`` output, ``first_real`` input and ``tap`` are those of the whole axis, ``start`` is a
    virtual input of its ``part``; the rest is as in ``Reading``.
    """

    first: IntArray
    count: IntArray
    start: IntArray
    size: IntArray
    before: IntArray
    after: IntArray
    first_real: IntArray
    real: IntArray
    skip: IntArray
    offset: IntArray
    tap: IntArray
    kernel: IntArray
    part: IntArray
    parts: tuple[AxisPart, ...]

    def __len__(self) -> int:
        return len(self.first)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Runs:
        """Some of the runs."""
        if chosen.all():
            return self
        return Runs(**{name: getattr(self, name)[chosen] for name in _COLUMNS}, parts=self.parts)

    def most(self, name: str) -> int:
        """The largest entry of a column, 0 without runs."""
        return int(getattr(self, name).max(initial=0))

    @cached_property
    def sums(self) -> IntArray:
        """Number of the sum that each run belongs to, from 0: runs of the same outputs add up."""
        return np.cumsum(np.diff(self.first, prepend=-1) != 0) - 1

    @property
    def slabs(self) -> int:
        """Number of sums."""
        return int(self.sums[-1]) + 1 if len(self) else 0

    @cached_property
    def begins(self) -> IntArray:
        """The first output of each sum."""
        begins: IntArray = self.first[np.diff(self.first, prepend=-1) != 0]
        return begins

    @cached_property
    def outputs(self) -> int:
        """Outputs of all runs, those of one sum once."""
        return int(self.count[np.diff(self.first, prepend=-1) != 0].sum())

    @cached_property
    def readings(self) -> tuple[tuple[Reading, ...], IntArray]:
        """The distinct ways of reading, and which of them is each run's."""
        names = ("count", "size", "before", "after", "real", "skip", "offset", "kernel", "part")
        rows = [*zip(*(getattr(self, name).tolist() for name in names), strict=True)]
        numbered: dict[Reading, int] = {}
        numbers = {}
        for row in sorted(set(rows)):
            outputs, size, before, after, real, skip, offset, kernel, number = row
            part = self.parts[number]
            reading = Reading(
                outputs,
                size,
                before,
                after,
                real,
                skip,
                offset,
                kernel,
                part.axis.stride,
                part.axis.dilation,
                part.axis.insert,
                part.outputs[1],
                part.inputs[1],
                part.taps[1],
            )
            numbers[row] = numbered.setdefault(reading, len(numbered))
        return tuple(numbered), np.array([numbers[row] for row in rows], np.int64)


_COLUMNS = tuple(name for name in Runs.__struct_fields__ if name != "parts")


class Use(NamedTuple):
    """Part of an axis that is used: pairs of an output and a tap that read a real input.

    ``inputs`` are read by any output, ``outputs`` read any input, and ``taps`` are of use anywhere.
    """

    pairs: int
    inputs: int
    outputs: int
    taps: int


class Axis(Struct, frozen=True, kw_only=True, dict=True):
    """Output ``o`` reads virtual input ``o * stride - before + tap * dilation`` through a tap.

    Virtual inputs are the real ones with ``insert - 1`` zeros between neighbours. ``before`` may
    be negative: reading then starts later.
    """

    size: int
    out: int
    kernel: int
    stride: int = 1
    before: int = 0
    dilation: int = 1
    insert: int = 1

    @property
    def virtual(self) -> int:
        """Number of virtual inputs."""
        return (self.size - 1) * self.insert + 1

    @property
    def pads(self) -> int:
        """The most padding on one side that any output reads."""
        reach = (self.out - 1) * self.stride - self.before + (self.kernel - 1) * self.dilation + 1
        return max(self.before, reach - self.virtual)

    @property
    def sparse(self) -> bool:
        """True if most taps read padding wherever the filter is."""
        return self.insert == 1 and (self.kernel > self.size or self.lone)

    @property
    def reached(self) -> tuple[int, int] | None:
        """First and last output (excluded) that read any input, where they are less than half."""
        first = max(0, ceil_div(self.before - (self.kernel - 1) * self.dilation, self.stride))
        stop = min(self.out, (self.virtual - 1 + self.before) // self.stride + 1)
        return (first, stop) if 2 * (stop - first) < self.out else None

    @property
    def wide(self) -> bool:
        """True if a window reads far more inputs than it has taps."""
        return self.insert == 1 and self.dilation > 1 and self.dilation * (self.kernel - 1) >= _WIDE

    @property
    def lone(self) -> bool:
        """True if an output reads one input at most: there are no more than taps lie apart."""
        return self.size <= self.dilation and self.out > 1 == self.stride

    def fits_window(self, *, whole: bool = False) -> bool:
        """True if img2col loads can slide the filter over all virtual inputs.

        Wide filters slide band by band, and taps may be left out where padding is wide; ``whole``
        asks for all taps everywhere.
        """
        fields = self.stride <= _STRIDE_FIELD and self.dilation <= _PAD_FIELD
        fields = fields and (self.kernel <= WIDEST_FILTER or not whole)
        return fields and (self.pads <= _PAD_FIELD or (self.insert == 1 and not whole))

    @property
    def fits_bands(self) -> bool:
        """True if img2col loads can slide bands of the filter over all virtual inputs."""
        return self.stride <= _STRIDE_FIELD and max(self.dilation, self.pads) <= _PAD_FIELD

    @property
    def reads_any(self) -> bool:
        """True if any output reads any real input through any tap."""
        shift = self.before - np.arange(self.kernel) * self.dilation  # o * stride - shift is read
        first = np.maximum(0, -(-shift // self.stride))
        last = np.minimum(self.out - 1, ((self.size - 1) * self.insert + shift) // self.stride)
        if self.insert > 1:  # the stride is 1 then: the next output that meets no inserted zero
            first += (shift - first) % self.insert
        return self.size > 0 and bool((first <= last).any())

    def real(self, output: int, tap: int) -> int | None:
        """The real input that an output reads through a tap; None for zeros and padding."""
        place, rest = divmod(output * self.stride - self.before + tap * self.dilation, self.insert)
        return place if not rest and 0 <= place < self.size else None

    @cached_property
    def use(self) -> Use:
        """Used part of the axis where no zeros are inserted."""
        assert self.insert == 1
        shift = np.arange(self.kernel) * self.dilation - self.before
        low = np.maximum(0, ceil_div(-shift, self.stride))
        high = np.minimum(self.out, (self.size - 1 - shift) // self.stride + 1)
        live = high > low
        low = low[live]
        high = high[live]
        shift = shift[live]
        # Inputs by their residue modulo the stride, one residue behind the other.
        residue = shift % self.stride
        start = shift // self.stride + residue * (self.size + self.out)
        return Use(
            pairs=int((high - low).sum()),
            inputs=_covered(low + start, high + start),
            outputs=_covered(low, high),
            taps=int(live.sum()),
        )

    def parts(self, form: str, widest: int = WIDEST_FILTER) -> tuple[tuple[AxisPart, ...], ...]:
        """The axis as sums over disjoint sets of outputs, each the sum of parts.

        ``form`` "window" is the axis as it is. "phases" has a part for each residue of the outputs
        modulo ``insert`` that any tap reaches: its taps read neighbouring inputs, without zeros
        between them, and of more taps than inputs only those that read any. Of both more taps than
        the ``widest`` filter has are equal bands, which add up. "taps" are the phases tap by tap,
        inputs ``stride`` apart.
        """
        if form == "window":
            return (AxisPart(self).bands(widest),)
        phases = self.phases()
        if form == "single":
            phases = tuple(part_alone for part in phases for part_alone in part.apart())
        if form != "taps":
            every = (replace(part, trimmed=part.axis.sparse) for part in phases)
            return tuple(part.bands(widest) for part in every)
        single = (tuple(_single(part, tap) for tap in range(part.axis.kernel)) for part in phases)
        return tuple(tuple(p for p in parts if p.axis.size > 0) for parts in single)

    def phases(self) -> tuple[AxisPart, ...]:
        """A part for each residue of the outputs modulo ``insert`` that any tap reaches."""
        phases = self._phases() if self.insert > 1 else (AxisPart(self),)
        return tuple(replace(part, within=part.axis.reached) for part in phases)

    def terms(self, form: str) -> int:
        """The most parts that add up to a sum."""
        if form == "taps":
            return self.kernel
        if self.kernel <= WIDEST_FILTER:
            return 1
        return max((len(parts) for parts in self.parts(form)), default=1)

    def longest(self, form: str) -> int:
        """The most outputs of a part that may be one run."""
        if form == "single" and any(part.single for sums in self.parts(form) for part in sums):
            return 1
        return -(-self.out // self.insert) if form != "window" else self.out

    def _phases(self) -> tuple[AxisPart, ...]:
        """Outputs by their residue modulo ``insert``; of stride 1, as gradients are."""
        step = self.insert // gcd(self.insert, self.dilation)
        phases = []
        for tap in range(min(step, self.kernel)):
            phase = (self.before - tap * self.dilation) % self.insert
            if phase < self.out:
                axis = Axis(
                    size=self.size,
                    out=ceil_div(self.out - phase, self.insert),
                    kernel=ceil_div(self.kernel - tap, step),
                    before=(self.before - tap * self.dilation - phase) // self.insert,
                    dilation=self.dilation * step // self.insert,
                )
                phases.append(AxisPart(axis, outputs=(phase, self.insert), taps=(tap, step)))
        return tuple(sorted(phases, key=lambda part: part.outputs))

    @lru_cache(maxsize=64)  # noqa: B019 - an axis is a few numbers, known by its value
    def runs(
        self,
        step: int,
        block: int = 0,
        form: str = "window",
        widest: int = WIDEST_FILTER,
        *,
        whole: bool = False,
    ) -> Runs:
        """All outputs in runs of ``step``, none across a multiple of ``block`` (0: no blocks).

        Runs of the same outputs, whose sums are one, follow each other. With ``whole`` each run
        reads all inputs of the axis, of which its outputs take a part; this is only for form
        "window" of an axis that ``fits_window`` as a whole and is read from its beginning.
        """
        every: list[AxisPart] = []
        pieces = [np.zeros((len(_COLUMNS), 0), np.int64)]
        for parts in filter(None, self.parts(form, widest)):
            pads = max(part.axis.pads for part in parts)
            first, count = parts[0].cut(step, block, pads)
            together = [
                part.reach(first, count, i, whole=whole) for i, part in enumerate(parts, len(every))
            ]
            # [part][column][run] -> [column][run of each part in turn]
            pieces.append(np.stack(together, 2).reshape(len(_COLUMNS), -1))
            every += parts
        columns = zip(_COLUMNS, np.concatenate(pieces, axis=1), strict=True)
        return Runs(**dict(columns), parts=tuple(every))


class AxisPart(Struct, frozen=True):
    """Some outputs, inputs and taps of a whole axis that are an ``axis`` themselves.

    Of each the first, and how far apart they are on the whole axis. ``trimmed`` leaves out taps
    that read nothing but padding; ``single`` outputs are runs of their own, as each has another
    tap. Outputs are those ``within`` some of the part's axis (None: all).
    """

    axis: Axis
    outputs: tuple[int, int] = (0, 1)
    inputs: tuple[int, int] = (0, 1)
    taps: tuple[int, int] = (0, 1)
    trimmed: bool = False
    single: bool = False
    within: tuple[int, int] | None = None

    def apart(self) -> tuple[AxisPart, ...]:
        """The part, or where each output reads one input at most, the outputs of each input."""
        a = self.axis
        if not a.lone:
            return (self,)
        (output, step), (place, pitch) = self.outputs, self.inputs
        parts = []
        for i in range(a.size):
            first = (i + a.before) % a.dilation
            if first < a.out:
                before = (a.before + i - first) // a.dilation
                out = ceil_div(a.out - first, a.dilation)
                axis = Axis(size=1, out=out, kernel=a.kernel, before=before)
                part = AxisPart(
                    axis,
                    outputs=(output + first * step, step * a.dilation),
                    inputs=(place + i * pitch, pitch),
                    taps=self.taps,
                    single=True,
                    within=axis.reached,
                )
                parts.append(part)
        return tuple(parts)

    def bands(self, widest: int) -> tuple[AxisPart, ...]:
        """The part, in as few equal bands as have at most the ``widest`` filter's taps."""
        a, (tap, apart) = self.axis, self.taps
        count = ceil_div(a.kernel, widest)
        if count < 2:
            return (self,)
        ends = [i * a.kernel // count for i in range(count + 1)]
        return tuple(
            replace(
                self,
                axis=replace(a, kernel=end - first, before=a.before - first * a.dilation),
                taps=(tap + first * apart, apart),
            )
            for first, end in pairwise(ends)
        )

    def cut(self, step: int, block: int, pads: int) -> tuple[IntArray, IntArray]:
        """First and number of the part's outputs in runs of ``step``, few where padding is wide.

        ``pads`` is the most padding on one side of any part of the sum.
        """
        step = 1 if self.single else step
        begin, out = self.within or (0, self.axis.out)
        if pads > _PAD_FIELD and self.axis.insert == 1:
            step = min(step, _PAD_FIELD // self.axis.stride + 1)
        if not block:
            first = np.arange(begin, out, step)
            return first, np.minimum(step, out - first)
        first = np.concatenate(
            [np.arange(start, min(start + block, out), step) for start in range(0, out, block)]
        )
        stop = np.minimum(first // block * block + block, out)
        return first, np.minimum(step, stop - first)

    def reach(
        self, first: IntArray, count: IntArray, number: int = 0, *, whole: bool = False
    ) -> tuple[IntArray, ...]:
        """Reads of ``count`` outputs from the part's ``first`` on: the columns of ``Runs``.

        Taps that read nothing but padding are left out where there is more padding than the
        field of a load holds. ``number`` is the part's own. With ``whole`` all inputs are read.
        """
        if whole:
            return self._reach_all(first, count, number)
        a = self.axis
        low = first * a.stride - a.before
        tap = np.zeros_like(first)
        kernel = np.full_like(first, a.kernel)
        if self.trimmed or (a.pads > _PAD_FIELD and a.insert == 1):
            high = low + (count - 1) * a.stride
            begin = np.clip(ceil_div(-high, a.dilation), 0, a.kernel - 1)
            end = np.clip((a.size - 1 - low) // a.dilation, begin, a.kernel - 1)
            over = high + (a.kernel - 1) * a.dilation + 1 - a.size
            allowed = 0 if self.trimmed else _PAD_FIELD
            wide = np.maximum(-low, over) > allowed
            tap = np.where(wide, begin, 0)
            kernel = np.where(wide, end - begin + 1, a.kernel)
            low = low + tap * a.dilation
        high = low + (count - 1) * a.stride + (kernel - 1) * a.dilation + 1
        start = np.maximum(low, 0)
        stop = np.minimum(high, a.virtual)
        # Inputs behind the last one read that no output steps onto: with them it is a whole row.
        over = (a.insert == 1) & (stop > start) & (a.virtual - stop < a.stride)
        stop = np.where(over, a.virtual, stop)
        size = np.maximum(0, stop - start)
        after = np.maximum(0, high - np.maximum(stop, start))
        first_real = ceil_div(start, a.insert)
        real = np.maximum(0, (start + size - 1) // a.insert - first_real + 1)
        first_output, output_step = self.outputs
        first_input, input_step = self.inputs
        first_tap, tap_step = self.taps
        return (
            first_output + first * output_step,
            count,
            start,
            size,
            start - low,
            after,
            first_input + first_real * input_step,
            real,
            first_real * a.insert - start,
            np.zeros_like(first),
            first_tap + tap * tap_step,
            kernel,
            np.full_like(first, number),
        )

    def _reach_all(self, first: IntArray, count: IntArray, number: int) -> tuple[IntArray, ...]:
        """The columns of ``Runs`` where each run reads every input, from the first on."""
        a = self.axis
        reach = (a.out - 1) * a.stride - a.before + (a.kernel - 1) * a.dilation + 1
        zero = np.zeros_like(first)
        return (
            self.outputs[0] + first * self.outputs[1],
            count,
            zero,
            zero + a.virtual,
            zero + a.before,
            zero + max(0, reach - a.virtual),
            zero + self.inputs[0],
            zero + a.size,
            zero,
            first,
            zero + self.taps[0],
            zero + a.kernel,
            zero + number,
        )


def _covered(low: IntArray, high: IntArray) -> int:
    """Number of integers that lie in any of the ranges from ``low`` to before ``high``."""
    if not len(low):
        return 0
    order = np.argsort(low)
    low = low[order]
    high = high[order]
    reached = np.maximum.accumulate(np.concatenate([low[:1], high[:-1]]))
    return int(np.maximum(0, high - np.maximum(low, reached)).sum())


def _single(part: AxisPart, tap: int) -> AxisPart:
    """One tap of a part, with just the inputs it reads as inputs."""
    axis = part.axis
    place, rest = divmod(tap * axis.dilation - axis.before, axis.stride)
    return AxisPart(
        Axis(size=ceil_div(axis.size - rest, axis.stride), out=axis.out, kernel=1, before=-place),
        outputs=part.outputs,
        inputs=(rest, axis.stride),
        taps=(part.taps[0] + tap * part.taps[1], 1),
        within=part.within,
    )
