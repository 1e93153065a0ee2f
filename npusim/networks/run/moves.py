"""Operations that move, repeat or add up elements, on plain tensors of any rank.

Each function launches the kernels of one operation in a call, which read ``source`` and write
``target``, both row-major. With arrays the kernels compute numbers; a call that only times takes
shapes alone. Each raises ``ArgumentError`` for shapes or types that do not fit each other.

Where several kernels can do the work, those with the least simulated time are launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from npusim.base.dtypes import FP32, DType
from npusim.base.errors import ArgumentError
from npusim.base.integers import round_up
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.tilings.choice import fastest
from npusim.kernels.layout.concat import Concat
from npusim.kernels.layout.copy_boxes import Box, CopyBoxes, rolled
from npusim.kernels.layout.every_nth import EveryNth
from npusim.kernels.layout.rearrangement import dense_strides
from npusim.kernels.layout.strided_copy import Contiguous, ViewCopy
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.layout.transpose import Transpose
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.networks.run.chains import WIDEST

Sizes = tuple[int, ...]

#: Channels of a block on the way of a matrix that is turned.
_C0 = 16

#: Most elements of a row that the vector unit adds at once; longer rows are added in parts.
_ROW = 2048

#: Least bytes of a row that moves between global memory and UB at more than the rate of single
#: elements: a block.
_BLOCK_BYTES = 32

#: Bytes of a repeated row from which a move has full bandwidth.
_LOAD_BYTES = 32 * 1024


# -- permutations ----------------------------------------------------------------------------------


def permute(call: Call, source: Tensor, target: Tensor, axes: Sequence[int]) -> None:
    """Launch ``target`` = ``source`` with its axes in the order ``axes``, as ``numpy.transpose``.

    ``axes`` name each axis of the source once; negative ones count from the last. Rows that stay
    rows are moved as they are, or turned in UB as other elements are. A matrix whose rows are no
    whole blocks of 32 B turns slowly (``vector.odd_tile``): it is brought into blocks of 16
    channels on the way, where one of its sizes is a multiple of that.
    """
    rank = len(source.shape)
    transpose = Transpose(tuple(axis % rank if rank else axis for axis in axes), source, target)
    plans: list[list[Kernel]] = [[transpose]]
    if transpose.axes.keeps_rows:
        plans.append([replace(transpose, turns=True)])
    _launch(call, [*plans, *_through_blocks(call, transpose)])


def _through_blocks(call: Call, transpose: Transpose) -> list[list[Kernel]]:
    """The ways of an odd matrix, or a batch of them, through blocks of 16 channels.

    The channels are the rows of the source, or those of the target; both ways have two kernels.
    """
    axes = transpose.axes
    source = transpose.x
    target = transpose.y
    if axes.perm not in ((1, 0), (0, 2, 1)) or source.dtype.bytes == 1:
        return []
    if not axes.ragged(source.dtype.bytes):
        return []
    batch, rows, columns = (1, *axes.sizes)[-3:]
    order = (0, 2, 1, 3)  # blocks and positions change places
    plans: list[list[Kernel]] = []
    if rows % _C0 == 0:
        plain = replace(source, shape=(batch, rows, columns))
        blocks = _between(call, target, (batch, rows // _C0, columns, _C0))
        to_blocked = Conversion(kind="to_blocked", c0=_C0)
        turned = replace(target, shape=(batch, columns, rows // _C0, _C0))
        plans.append(
            [TransData(to_blocked, plain, blocks), Transpose(order, blocks, turned, turns=True)]
        )
    if columns % _C0 == 0:
        plain = replace(target, shape=(batch, columns, rows))
        blocks = _between(call, target, (batch, columns // _C0, rows, _C0))
        from_blocked = Conversion(kind="from_blocked", c0=_C0)
        turned = replace(source, shape=(batch, rows, columns // _C0, _C0))
        plans.append(
            [Transpose(order, turned, blocks, turns=True), TransData(from_blocked, blocks, plain)]
        )
    return plans


# -- parts -----------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Where the elements of a part lie in a whole: first, step and number along each axis."""

    whole: Sizes
    begin: Sizes
    step: Sizes
    sizes: Sizes

    @property
    def is_box(self) -> bool:
        """Return whether the elements of the part are neighbours along each axis."""
        return all(step == 1 for step in self.step)

    @property
    def last(self) -> int:
        """The last axis along which the part has more than one element."""
        return max((axis for axis, size in enumerate(self.sizes) if size > 1), default=0)

    @property
    def row(self) -> int:
        """Elements that lie side by side in the whole."""
        return 1 if self.step[self.last] > 1 else self.sizes[self.last]

    @property
    def rows(self) -> Sizes:
        """The sizes of the part with the elements between those along the last axis."""
        return self._with_last(self.sizes[self.last] * self.step[self.last])

    def with_gaps(self) -> _Part:
        """The part with the elements between those along the last axis, as far as there are any.

        It begins at the first element; the whole may end before the last of ``rows`` does.
        """
        last = self.last
        inside = min(self.rows[last], self.whole[last] - self.begin[last])
        step = (*self.step[:last], 1, *self.step[last + 1 :])
        return self._replace(step=step, sizes=self._with_last(inside))

    def _with_last(self, size: int) -> Sizes:
        """The sizes of the part, with another along its last axis."""
        return (*self.sizes[: self.last], size, *self.sizes[self.last + 1 :])

    @property
    def strides(self) -> Sizes:
        """Elements of the whole between neighbours of the part, along each axis."""
        dense = dense_strides(self.whole, range(len(self.whole)))
        return tuple(stride * step for stride, step in zip(dense, self.step, strict=True))

    @property
    def first(self) -> int:
        """The first element of the part in the whole."""
        dense = dense_strides(self.whole, range(len(self.whole)))
        return sum(begin * stride for begin, stride in zip(self.begin, dense, strict=True))


def _part(
    kind: str, whole: Tensor, part: Tensor, begin: Sequence[int], step: Sequence[int] | None
) -> _Part:
    """The place of a part; raises ``ArgumentError`` where it does not lie in the whole."""
    rank = len(whole.shape)
    steps = tuple(step) if step is not None else (1,) * rank
    if not len(begin) == len(steps) == len(part.shape) == rank:
        raise ArgumentError(
            f"{kind}: {whole.name} has shape {whole.shape}, {part.name} {part.shape}, begin is "
            f"{tuple(begin)} and step {steps}; give one number for each axis"
        )
    if whole.dtype != part.dtype or not part.size_bytes:
        raise ArgumentError(
            f"{kind}: {whole.name} is {whole.dtype} of shape {whole.shape}, {part.name} "
            f"{part.dtype} of shape {part.shape}; both need one type, and the part an element"
        )
    for axis, size in enumerate(part.shape):
        first = begin[axis]
        apart = steps[axis]
        end = whole.shape[axis]
        if first < 0 or apart < 1 or first + (size - 1) * apart >= end:
            raise ArgumentError(
                f"{kind}: along axis {axis} the {size} elements of {part.name} begin at {first} "
                f"with step {apart}, and {whole.name} has {end}; begin at 0 or later, with a step "
                f"of at least 1, and end before {end}"
            )
    # The step to a single element says nothing.
    steps = tuple(1 if size == 1 else step for size, step in zip(part.shape, steps, strict=True))
    return _Part(whole.shape, tuple(begin), steps, part.shape)


def crop(
    call: Call,
    source: Tensor,
    target: Tensor,
    begin: Sequence[int],
    step: Sequence[int] | None = None,
) -> None:
    """Launch ``target`` = the part of ``source`` from ``begin`` on, every ``step``-th element.

    Both have a number for each axis; how many elements the part has says the shape of the target.
    Without ``step`` it is 1 along all axes.
    """
    source = replace(source, role="in")
    target = replace(target, role="out")
    part = _part("crop", source, target, begin, step)
    if part.is_box:
        _launch(call, [[Concat((target,), source, 1, part.begin)]])
        return
    moved = Contiguous(part.sizes, part.strides, source, target, part.first)
    plans: list[list[Kernel]] = [[moved]]
    if _single_elements(part, source.dtype):
        plans.append(_picked(call, source, target, part))
    _launch(call, plans)


def _single_elements(part: _Part, dtype: DType) -> bool:
    """Return whether elements lie alone in the whole, so that each moves as slowly as a block."""
    return part.row == 1 and part.step[part.last] > 1 and dtype.bytes in (2, 4)


def _picked(call: Call, source: Tensor, target: Tensor, part: _Part) -> list[Kernel]:
    """Kernels that pick elements along the last axis: from rows of the whole, turned in UB."""
    step = part.step[part.last]
    if part.rows == part.whole:
        return [EveryNth(source, target, step, part.begin[part.last])]
    box = part.with_gaps()
    cut = _between(call, target, box.sizes, "cut")
    kernels: list[Kernel] = [Contiguous(box.sizes, box.strides, source, cut, box.first)]
    read = replace(cut, role="in")
    if box.sizes != part.rows:
        filled = _between(call, target, part.rows, "filled")
        origin = (0,) * len(part.rows)
        kernels.append(CopyBoxes(read, filled, (Box(origin, origin, box.sizes),)))
        read = replace(filled, role="in")
    return [*kernels, EveryNth(read, target, step)]


def uncrop(
    call: Call,
    source: Tensor,
    target: Tensor,
    begin: Sequence[int],
    step: Sequence[int] | None = None,
) -> None:
    """Launch the gradient of ``crop``: ``source`` is that part of ``target``, 0 is elsewhere."""
    source = replace(source, role="in")
    target = replace(target, role="out")
    part = _part("uncrop", target, source, begin, step)
    _launch(call, _placed(call, source, target, part))


def _placed(call: Call, source: Tensor, target: Tensor, part: _Part) -> list[list[Kernel]]:
    """The ways of a part into a whole of zeros."""
    clear = MemSet(target, few=True)
    if part.is_box:
        plans: list[list[Kernel]] = [[Concat((source,), target, 1, part.begin)]]
        if part.sizes != part.whole:
            place = Box((0,) * len(part.sizes), part.begin, part.sizes)
            plans.append([clear, CopyBoxes(source, target, (place,))])
        return plans
    plans = [[clear, ViewCopy(part.sizes, part.strides, source, target, part.first)]]
    if _single_elements(part, source.dtype):
        plans.append(_spread(call, source, target, part, clear))
    return plans


def _spread(call: Call, source: Tensor, target: Tensor, part: _Part, clear: MemSet) -> list[Kernel]:
    """Kernels that spread elements along the last axis, with zeros between them, turned in UB."""
    step = part.step[part.last]
    if part.rows == part.whole:
        return [EveryNth(target, source, step, part.begin[part.last])]
    spread = _between(call, target, part.rows, "spread")
    box = part.with_gaps()
    kernels: list[Kernel] = [EveryNth(spread, source, step)]
    read = replace(spread, role="in")
    if box.sizes != part.rows:
        cut = _between(call, target, box.sizes, "cut")
        kernels.append(Concat((cut,), read, 1, (0,) * len(part.rows)))
        read = replace(cut, role="in")
    if box.sizes != box.whole:
        kernels.append(clear)
    kernels.append(ViewCopy(box.sizes, box.strides, read, target, box.first))
    return kernels


def join(call: Call, parts: Sequence[Tensor], target: Tensor, axis: int) -> None:
    """Launch ``target`` = ``parts`` side by side along ``axis``; a part may be there twice."""
    whole = replace(target, role="out")
    read = tuple(replace(part, role="in") for part in parts)
    _require_side_by_side("join", read, whole, axis)
    _launch(call, [[Concat(read, whole, axis % len(whole.shape))]])


def split(call: Call, source: Tensor, parts: Sequence[Tensor], axis: int) -> None:
    """Launch ``parts`` = ``source`` cut along ``axis`` into their sizes, in order."""
    whole = replace(source, role="in")
    written = tuple(replace(part, role="out") for part in parts)
    _require_side_by_side("split", written, whole, axis)
    _launch(call, [[Concat(written, whole, axis % len(whole.shape))]])


def _require_side_by_side(kind: str, parts: Sequence[Tensor], whole: Tensor, axis: int) -> None:
    """Raise ``ArgumentError`` unless parts of these shapes are all of the whole along the axis."""
    rank = len(whole.shape)
    if not -rank <= axis < rank:
        raise ArgumentError(
            f"{kind}: axis is {axis}, and {whole.name} has shape {whole.shape}; it is one of "
            f"{-rank} to {rank - 1}"
        )
    axis %= rank
    others = whole.shape[:axis] + whole.shape[axis + 1 :]
    for part in parts:
        if len(part.shape) != rank or part.shape[:axis] + part.shape[axis + 1 :] != others:
            raise ArgumentError(
                f"{kind}: {part.name} has shape {part.shape}, {whole.name} {whole.shape}; they may "
                f"differ along axis {axis} alone"
            )
    total = sum(part.shape[axis] for part in parts)
    if total != whole.shape[axis]:
        raise ArgumentError(
            f"{kind}: along axis {axis} the {len(parts)} parts have {total} elements, {whole.name} "
            f"of shape {whole.shape} has {whole.shape[axis]}; they must have as many"
        )


# -- shifts and repeats ----------------------------------------------------------------------------


def roll(
    call: Call, source: Tensor, target: Tensor, shifts: Sequence[int], axes: Sequence[int]
) -> None:
    """Launch ``target`` = ``source`` shifted cyclically, as ``numpy.roll``.

    ``shifts`` has a number for each of ``axes``; the gradient is the shift by their negatives.
    """
    rank = len(source.shape)
    if source.shape != target.shape or not source.size_bytes:
        raise ArgumentError(
            f"roll: {source.name} has shape {source.shape}, {target.name} {target.shape}; they "
            "must be alike, with at least one element"
        )
    if len(shifts) != len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise ArgumentError(
            f"roll: shifts are {tuple(shifts)} along axes {tuple(axes)} of a tensor of shape "
            f"{source.shape}; give a shift for each axis, which is one of {-rank} to {rank - 1}"
        )
    _launch(call, [[rolled(source, target, shifts, [axis % rank for axis in axes])]])


def expand(call: Call, source: Tensor, target: Tensor) -> None:
    """Launch ``target`` = ``source`` repeated along its axes of size 1, as ``numpy.broadcast_to``.

    A source with fewer axes has those in front of size 1.
    """
    shape = _beside("expand", source, target)
    dense = dense_strides(shape, range(len(shape)))
    strides = tuple(0 if size == 1 else apart for size, apart in zip(shape, dense, strict=True))
    plans: list[list[Kernel]] = [[Contiguous(target.shape, strides, source, target)]]
    size = prod(shape)
    times = prod(target.shape) // size
    in_front = len(shape) - len(_without_front(shape))
    if times > 1 and target.shape[in_front:] == shape[in_front:]:  # the whole, again and again
        few = _divisor(times, max(1, _LOAD_BYTES // source.size_bytes))
        if 1 < few < times:
            again = _between(call, target, (few, size))
            plans.append(
                [
                    Contiguous((few, size), (0, 1), source, again),
                    Contiguous((times // few, few * size), (0, 1), again, target),
                ]
            )
    _launch(call, plans)


def _without_front(shape: Sizes) -> Sizes:
    """The shape without the axes of size 1 in front."""
    first = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    return shape[first:]


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most ``most``."""
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)


def _beside(kind: str, small: Tensor, large: Tensor) -> Sizes:
    """The shape of the small one with as many axes as the large one has.

    Raises ``ArgumentError`` unless each of its sizes is 1 or that of the large one.
    """
    shape = (1,) * (len(large.shape) - len(small.shape)) + small.shape
    alike = len(shape) == len(large.shape) and all(
        size in (1, full) for size, full in zip(shape, large.shape, strict=True)
    )
    if not alike or not large.size_bytes:
        raise ArgumentError(
            f"{kind}: {small.name} has shape {small.shape}, {large.name} {large.shape}; each size "
            "of the former must be 1 or that of the latter, which needs an element"
        )
    return shape


# -- sums ------------------------------------------------------------------------------------------


def reduce_expanded(call: Call, source: Tensor, target: Tensor) -> None:
    """Launch the gradient of ``expand``: ``target`` = the sums over what its axes repeat.

    Sums are in fp32 and rounded once, to the type of the target.
    """
    shape = _beside("reduce_expanded", target, source)
    axes = [axis for axis, size in enumerate(shape) if size == 1]
    sum_axes(call, source, target, axes)


def sum_axes(
    call: Call, source: Tensor, target: Tensor, axes: Sequence[int], factor: float = 1.0
) -> None:
    """Launch ``target`` = ``factor`` times the sums of ``source`` over ``axes``.

    The target has the axes that are left, with or without those of size 1; a factor of one over the
    elements that are added gives means. Sums are in fp32 and rounded once.
    """
    rank = len(source.shape)
    if any(not -rank <= axis < rank for axis in axes):
        raise ArgumentError(
            f"sum_axes: axes are {tuple(axes)}, and {source.name} has shape {source.shape}; each "
            f"is one of {-rank} to {rank - 1}"
        )
    summed = {axis % rank for axis in axes}
    sizes = [size for axis, size in enumerate(source.shape) if axis not in summed and size > 1]
    floats = source.dtype.kind == target.dtype.kind == "float"
    if [size for size in target.shape if size > 1] != sizes or not source.size_bytes or not floats:
        raise ArgumentError(
            f"sum_axes: {source.name} is {source.dtype} of shape {source.shape}, {target.name} "
            f"{target.dtype} of {target.shape}; over axes {tuple(axes)} floats of {tuple(sizes)} "
            "are left of at least one element"
        )
    groups = [(size, axis in summed) for axis, size in enumerate(source.shape) if size > 1]
    now = source
    while any(over for _, over in groups):
        groups = [
            (prod(size for size, _ in group), over)
            for over, group in groupby(groups, key=lambda group: group[1])
        ]
        place = max(i for i, (_, over) in enumerate(groups) if over)
        before = prod(size for size, _ in groups[:place])
        behind = prod(size for size, _ in groups[place + 1 :])
        now = _summed(call, now, (before, groups[place][0], behind), target)
        del groups[place]
    _as_target(call, now, target, factor)


def _summed(call: Call, source: Tensor, sizes: tuple[int, int, int], target: Tensor) -> Tensor:
    """Launch the sums over the middle one of three axes; returns them, in fp32.

    Rows are reduced by the vector unit; columns are added, or turned into rows.
    """
    planes, count, behind = sizes
    if behind > 1 and behind % 8 == 0:
        sums = replace(_between(call, target, (planes * behind,), "sums"), dtype=FP32)
        kernel = _column_sums(source, sizes, sums)
        _launch(call, [[*kernel.before, kernel]])
        return replace(kernel.sums[0], role="in")
    if behind > 1:
        turned = _between(call, source, (planes, behind, count), "turned")
        permute(call, replace(source, shape=sizes), turned, (0, 2, 1))
        source = turned
    rows = planes * behind
    while count > 1:
        width = _divisor(count, _ROW)
        if count > _ROW > 8 * width:  # too few at a time: with zeros behind a whole number of parts
            filled = _between(call, source, (rows, round_up(count, _ROW)), "filled")
            uncrop(call, replace(source, shape=(rows, count)), filled, (0, 0))
            source = filled
            count = round_up(count, _ROW)
            width = _ROW
        count //= width
        source = _row_sums(call, source, rows * count, width)
    return source


def _row_sums(call: Call, source: Tensor, rows: int, width: int) -> Tensor:
    """Launch the sums of rows of ``width`` elements; returns them, in fp32."""
    sums = replace(_between(call, source, (rows,), "rows"), dtype=FP32)
    read = replace(source, shape=(rows, width), role="in")
    step = Step(sums.name, "row_sum", read.name, width)
    kernel = Elementwise(called="row_sums", steps=(step,), reads=(read,), rows=(sums,))
    _launch(call, [[kernel]])
    return replace(sums, role="in")


def _column_sums(source: Tensor, sizes: tuple[int, int, int], sums: Tensor) -> Elementwise:
    """The kernel that adds the rows of each plane."""
    planes, count, behind = sizes
    c0 = 8 * _divisor(behind // 8, WIDEST // 8)
    shape = (planes, 1, count, c0) if c0 == behind else (planes * count, behind // c0, 1, c0)
    read = replace(source, shape=shape, role="in")
    return Elementwise(
        called="column_sums",
        steps=(),
        reads=(read,),
        sums=(replace(sums, role="inout"),),
        summed=(read.name,),
    )


def _as_target(call: Call, source: Tensor, target: Tensor, factor: float) -> None:
    """Launch the copy of a tensor into another type, times a factor."""
    flat = (prod(source.shape),)
    read = replace(source, shape=flat, role="in")
    written = replace(target, shape=flat, role="out")
    if source.dtype == target.dtype and factor == 1:
        _launch(call, [[Contiguous(flat, (1,), read, written)]])
        return
    step = Step(written.name, "muls", read.name, factor)
    kernel = Elementwise(
        called="scale",
        steps=(step,),
        reads=(read,),
        writes=(written,),
        saturate=call.device.saturates,
    )
    _launch(call, [[kernel]])


# -- launches --------------------------------------------------------------------------------------


def _between(call: Call, beside: Tensor, shape: Sizes, word: str = "between") -> Tensor:
    """A tensor between kernels, which is reserved when a kernel that has it is launched."""
    name = f"{beside.name}_{word}"
    number = 2
    while name in call.held:
        name = f"{beside.name}_{word}{number}"
        number += 1
    return Tensor(name, shape, beside.dtype, "out")


def _launch(call: Call, plans: Sequence[Sequence[Kernel]]) -> None:
    """Launch the kernels of the plan that takes the least time, with room for what they leave."""
    best = plans[0] if len(plans) == 1 else fastest(plans, call.device, call.groups)
    for kernel in best:
        for tensor in kernel.tensors:
            if tensor.name not in call.held:
                call.workspace(tensor.name, tensor.shape, tensor.dtype)
        call.launch_spread(kernel)
