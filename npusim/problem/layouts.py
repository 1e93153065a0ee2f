"""Memory layouts of tensors as pure functions with exact inverses.

``C0`` (elements per channel block) is an argument everywhere: for fp32 it is 8 or 16 depending
on who reads the tensor. Padding is zeros. Results are new contiguous arrays of the same dtype.

Feature maps are NCHW or NHWC, 5HD (NC1HWC0) and 6HD (NDC1HWC0): axes cut into equal blocks.
FRACTAL_NZ is the matrix layout of cube operands in L1 and of results in L0C.

FRACTAL_Z and FRACTAL_Z_3D are the layouts of weights. A ``GroupPlan`` says how the groups of a
convolution are packed so that their channels fill fractals: E neighbouring groups form one *real
group*, and each owns a diagonal block of its weight matrix. Every real group is one dense matrix
per tap, cut into fractals of 16 output channels x C0 input channels; places of it that belong to no
group are zero. FRACTAL_Z is FRACTAL_Z_3D with KD = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div

__all__ = [
    "FILTERS",
    "MAPS",
    "GroupPlan",
    "fracz_grouped_to_oihw",
    "from_5hd",
    "from_6hd",
    "from_fracz",
    "from_fracz_3d",
    "from_nz",
    "group_dict",
    "group_plan",
    "nchw_to_nhwc",
    "nhwc_to_nchw",
    "to_5hd",
    "to_6hd",
    "to_fracz",
    "to_fracz_3d",
    "to_nz",
]

Array = npt.NDArray[Any]

#: Side of a fractal that is not C0; the same for every dtype.
FRACTAL = 16


def split_axis(x: Array, axis: int, size: int) -> Array:
    """Cut ``axis`` (not negative) into (blocks, ``size``), filling the last block with zeros."""
    length = x.shape[axis]
    blocks = ceil_div(length, size)
    if blocks * size != length:
        shape = (*x.shape[:axis], blocks * size, *x.shape[axis + 1 :])
        padded = np.zeros(shape, x.dtype)
        padded[(slice(None),) * axis + (slice(length),)] = x
        x = padded
    return x.reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def join_axis(x: Array, axis: int, length: int) -> Array:
    """Undo ``split_axis``: join ``axis`` and the next, keep the first ``length`` elements."""
    length_joined = x.shape[axis] * x.shape[axis + 1]
    joined = x.reshape(*x.shape[:axis], length_joined, *x.shape[axis + 2 :])
    return joined[(slice(None),) * axis + (slice(length),)]


def fresh(x: Array) -> Array:
    """Return a contiguous copy, never a view of the caller's array."""
    return np.array(x, order="C")


def check_rank(function: str, x: Array, axes: str) -> None:
    """Raise unless ``x`` has as many axes as ``axes`` (comma-separated names) says, or behind
    ``...`` at least so many."""
    has_ellipsis = axes.startswith("...")
    rank = axes.count(",") + (not has_ellipsis)
    if x.ndim < rank or (x.ndim > rank and not has_ellipsis):
        want = f"({axes})" if has_ellipsis else f"{rank} axes ({axes})"
        raise ArgumentError(
            f"{function}: the array has shape {x.shape}, expected {want}; reshape it"
        )


def check_shape(function: str, x: Array, want: tuple[int, ...], why: str) -> None:
    """Raise unless ``x`` has exactly the shape ``want``, which follows from ``why``."""
    if x.shape != want:
        raise ArgumentError(
            f"{function}: the array has shape {x.shape}, expected {want} for {why}; "
            "correct the array or the sizes"
        )


def check_positive(function: str, names: str, values: Sequence[int]) -> None:
    """Raise unless all ``values``, named in ``names`` (blank-separated), are integers above 0."""
    for name, value in zip(names.split(), values, strict=True):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise ArgumentError(f"{function}: {name} is {value!r}, it must be an integer above 0")


# -- feature maps ------------------------------------------------------------------------------


def to_5hd(x: Array, c0: int) -> Array:
    """Turn (N, C, H, W) into (N, C1, H, W, C0): channel c goes to block c div C0, place c mod C0.

    A 1-D feature map is one with H = 1.
    """
    return _blocked("to_5hd", x, "N, C, H, W", c0)


def from_5hd(x: Array, channels: int) -> Array:
    """Turn (N, C1, H, W, C0) into (N, ``channels``, H, W), dropping the padding."""
    return _plain("from_5hd", x, "N, C1, H, W, C0", channels)


def to_6hd(x: Array, c0: int) -> Array:
    """Turn (N, C, D, H, W) into (N, D, C1, H, W, C0); channels go where ``to_5hd`` puts them."""
    return _blocked("to_6hd", x, "N, C, D, H, W", c0)


def from_6hd(x: Array, channels: int) -> Array:
    """Turn (N, D, C1, H, W, C0) into (N, ``channels``, D, H, W), dropping the padding."""
    return _plain("from_6hd", x, "N, D, C1, H, W, C0", channels)


def _blocked(function: str, x: Array, axes: str, c0: int) -> Array:
    """Channels in blocks of ``c0``: C1 goes before H, C0 to the end."""
    check_rank(function, x, axes)
    check_positive(function, "c0", (c0,))
    return fresh(np.moveaxis(split_axis(x, 1, c0), (1, 2), (-4, -1)))


def _plain(function: str, x: Array, axes: str, channels: int) -> Array:
    """The other way round."""
    check_rank(function, x, axes)
    check_positive(function, "channels C0", (channels, x.shape[-1]))
    *lead, _, h, w, c0 = x.shape
    why = f"{channels} channels in blocks of {c0}"
    check_shape(function, x, (*lead, ceil_div(channels, c0), h, w, c0), why)
    return fresh(join_axis(np.moveaxis(x, (-4, -1), (1, 2)), 1, channels))


def nchw_to_nhwc(x: Array) -> Array:
    """Turn (N, C, H, W) into (N, H, W, C)."""
    check_rank("nchw_to_nhwc", x, "N, C, H, W")
    return fresh(x.transpose(0, 2, 3, 1))


def nhwc_to_nchw(x: Array) -> Array:
    """Turn (N, H, W, C) into (N, C, H, W)."""
    check_rank("nhwc_to_nchw", x, "N, H, W, C")
    return fresh(x.transpose(0, 3, 1, 2))


# -- matrices ----------------------------------------------------------------------------------


def to_nz(m: Array, c0: int) -> Array:
    """Turn (..., H, W) into (..., W1, H1, 16, C0): columns of fractals, row-major inside."""
    check_rank("to_nz", m, "..., H, W")
    check_positive("to_nz", "c0", (c0,))
    lead = m.ndim - 2
    blocks = split_axis(split_axis(m, lead + 1, c0), lead, FRACTAL)  # ..., H1, 16, W1, C0
    return fresh(blocks.swapaxes(lead + 1, lead + 2).swapaxes(lead, lead + 1))


def from_nz(z: Array, rows: int, columns: int) -> Array:
    """Turn (..., W1, H1, 16, C0) into (..., ``rows``, ``columns``), dropping the padding."""
    check_rank("from_nz", z, "..., W1, H1, 16, C0")
    c0 = z.shape[-1]
    check_positive("from_nz", "rows columns C0", (rows, columns, c0))
    lead = z.ndim - 4
    want = (*z.shape[:lead], ceil_div(columns, c0), ceil_div(rows, FRACTAL), FRACTAL, c0)
    check_shape("from_nz", z, want, f"a {rows} x {columns} matrix with C0 = {c0}")
    blocks = z.swapaxes(lead, lead + 1).swapaxes(lead + 1, lead + 2)  # ..., H1, 16, W1, C0
    return fresh(join_axis(join_axis(blocks, lead, rows), lead + 1, columns))


# -- groups --------------------------------------------------------------------------------------


class GroupPlan(Struct, frozen=True, kw_only=True, dict=True):
    """The packing of one convolution's groups.

    ``cin1_g`` counts C0 blocks of input channels per real group, ``cout_g`` output channels per
    real group rounded up to 16. The last real group may hold fewer than ``mag_factor`` groups.
    """

    groups: int
    c0: int
    cin_per_group: int
    cout_per_group: int
    mag_factor: int
    real_groups: int
    cin1_g: int
    cout_g: int

    @cached_property
    def cin(self) -> int:
        """Input channels of the whole convolution."""
        return self.groups * self.cin_per_group

    @cached_property
    def cout(self) -> int:
        """Output channels of the whole convolution."""
        return self.groups * self.cout_per_group


@lru_cache(maxsize=256, typed=True)
def group_plan(cin: int, cout: int, groups: int, c0: int) -> GroupPlan:
    """Return how ``groups`` groups of a ``cin`` -> ``cout`` convolution share real groups."""
    check_positive("group_plan", "cin cout groups c0", (cin, cout, groups, c0))
    for name, channels in (("cin", cin), ("cout", cout)):
        if channels % groups:
            raise ArgumentError(
                f"group_plan: {name} = {channels} is not a multiple of groups = {groups}; "
                "every group needs the same number of channels"
            )
    cg, og = cin // groups, cout // groups
    fills_both = lcm(lcm(cg, c0) // cg, lcm(og, FRACTAL) // og)
    mag_factor = min(fills_both, groups)
    return GroupPlan(
        groups=groups,
        c0=c0,
        cin_per_group=cg,
        cout_per_group=og,
        mag_factor=mag_factor,
        real_groups=ceil_div(groups, mag_factor),
        cin1_g=ceil_div(mag_factor * cg, c0),
        cout_g=FRACTAL * ceil_div(mag_factor * og, FRACTAL),
    )


def group_dict(plan: GroupPlan) -> dict[str, int]:
    """Return the plan as the ``group_dict`` entry of a TBE operator's ``para_dict``."""
    return {
        "real_g": plan.real_groups,
        "mag_factor": plan.mag_factor,
        "cin1_g": plan.cin1_g,
        "cout_g": plan.cout_g,
        "cin_ori": plan.cin,
        "cout_ori": plan.cout,
    }


# -- weights -------------------------------------------------------------------------------------


def to_fracz(w: Array, groups: int, c0: int) -> Array:
    """Turn weights (Cout, Cin/groups, KH, KW) into (real_g*cin1_g*KH*KW, cout_g/16, 16, C0)."""
    check_rank("to_fracz", w, "Cout, Cin/groups, KH, KW")
    return _pack(w[:, :, None], _plan("to_fracz", w.shape, groups, c0))


def from_fracz(z: Array, shape: Sequence[int], groups: int, c0: int) -> Array:
    """Undo ``to_fracz``; ``shape`` is the result's (Cout, Cin/groups, KH, KW).

    What stands in places of no weight (padding, off-diagonal blocks) is ignored.
    """
    cout, cg, kh, kw = _sizes("from_fracz", shape, "Cout, Cin/groups, KH, KW")
    plan = _plan("from_fracz", (cout, cg, kh, kw), groups, c0)
    return _unpack("from_fracz", z, (1, kh, kw), plan)[:, :, 0]


def to_fracz_3d(w: Array, groups: int, c0: int) -> Array:
    """Turn (Cout, Cin/groups, KD, KH, KW) into (real_g*KD*cin1_g*KH*KW, cout_g/16, 16, C0)."""
    check_rank("to_fracz_3d", w, "Cout, Cin/groups, KD, KH, KW")
    return _pack(w, _plan("to_fracz_3d", w.shape, groups, c0))


def from_fracz_3d(z: Array, shape: Sequence[int], groups: int, c0: int) -> Array:
    """Undo ``to_fracz_3d``; ``shape`` is the result's (Cout, Cin/groups, KD, KH, KW)."""
    cout, cg, *kernel = _sizes("from_fracz_3d", shape, "Cout, Cin/groups, KD, KH, KW")
    plan = _plan("from_fracz_3d", (cout, cg, *kernel), groups, c0)
    return _unpack("from_fracz_3d", z, tuple(kernel), plan)


def fracz_grouped_to_oihw(
    result: Array, cout: int, cin_per_group: int, kernel: Sequence[int], groups: int, c0: int
) -> Array:
    """Turn a filter gradient (real_g, cin1_g*KH*KW, cout_g, C0) into (Cout, Cin/groups, KH, KW).

    The bytes are those of FRACTAL_Z; only the axes are grouped differently.
    """
    name = "fracz_grouped_to_oihw"
    kh, kw = _sizes(name, kernel, "KH, KW")
    plan = _plan(name, (cout, cin_per_group, kh, kw), groups, c0)
    want = (plan.real_groups, plan.cin1_g * kh * kw, plan.cout_g, c0)
    check_shape(name, result, want, _words(plan, (kh, kw)))
    z = result.reshape(want[0] * want[1], plan.cout_g // FRACTAL, FRACTAL, c0)
    return _unpack(name, z, (1, kh, kw), plan)[:, :, 0]


def _diagonal(plan: GroupPlan) -> Iterator[tuple[slice, tuple[int, slice, slice]]]:
    """Yield per group its output channels and its (real group, rows, columns) block."""
    cg, og = plan.cin_per_group, plan.cout_per_group
    for group in range(plan.groups):
        real, e = divmod(group, plan.mag_factor)
        block = (real, slice(e * og, (e + 1) * og), slice(e * cg, (e + 1) * cg))
        yield slice(group * og, (group + 1) * og), block


def _pack(w: Array, plan: GroupPlan) -> Array:
    """Turn (Cout, Cin/groups, KD, KH, KW) into FRACTAL_Z_3D."""
    kernel = w.shape[2:]
    dense = np.zeros((plan.real_groups, plan.cout_g, plan.cin1_g * plan.c0, *kernel), w.dtype)
    for channels, block in _diagonal(plan):
        dense[block] = w[channels]
    cout1 = plan.cout_g // FRACTAL
    split = dense.reshape(plan.real_groups, cout1, FRACTAL, plan.cin1_g, plan.c0, *kernel)
    fractals = split.transpose(0, 5, 3, 6, 7, 1, 2, 4)  # real_g, KD, cin1_g, KH, KW, ...
    return np.ascontiguousarray(fractals.reshape(-1, cout1, FRACTAL, plan.c0))


def _unpack(name: str, z: Array, kernel: tuple[int, ...], plan: GroupPlan) -> Array:
    """Turn FRACTAL_Z_3D into (Cout, Cin/groups, KD, KH, KW), reading the diagonal blocks only."""
    kd, kh, kw = kernel
    cout1 = plan.cout_g // FRACTAL
    rows = plan.real_groups * kd * plan.cin1_g * kh * kw
    check_shape(name, z, (rows, cout1, FRACTAL, plan.c0), _words(plan, kernel))
    split = z.reshape(plan.real_groups, kd, plan.cin1_g, kh, kw, cout1, FRACTAL, plan.c0)
    axes = split.transpose(0, 5, 6, 2, 7, 1, 3, 4)  # real_g, cout1, 16, cin1_g, C0, KD, KH, KW
    dense = axes.reshape(plan.real_groups, plan.cout_g, plan.cin1_g * plan.c0, *kernel)
    w = np.empty((plan.cout, plan.cin_per_group, *kernel), dense.dtype)
    for channels, block in _diagonal(plan):
        w[channels] = dense[block]
    return w


def _plan(name: str, shape: Sequence[int], groups: int, c0: int) -> GroupPlan:
    """Return the plan of weights of ``shape``, refusing an output channel count that is wrong."""
    check_positive(name, "groups c0", (groups, c0))
    cout, cg = shape[:2]
    if cout % groups:
        raise ArgumentError(
            f"{name}: weights of shape {tuple(shape)} have {cout} output channels, "
            f"not a multiple of groups = {groups}"
        )
    return group_plan(cg * groups, cout, groups, c0)


def _sizes(name: str, values: Sequence[int], axes: str) -> list[int]:
    """Return ``values`` as a list after checking there is one above 0 per axis name."""
    names = axes.replace(",", "")
    if len(values) != len(names.split()):
        raise ArgumentError(f"{name}: expected the sizes ({axes}), got {tuple(values)}")
    check_positive(name, names, values)
    return [int(value) for value in values]


def _words(plan: GroupPlan, kernel: Sequence[int]) -> str:
    """Return the problem in words for an error message."""
    taps = "x".join(map(str, kernel))
    return (
        f"{plan.cin} -> {plan.cout} channels in {plan.groups} group(s), C0 = {plan.c0}, {taps} taps"
    )


#: What packs and unpacks maps, and filters, by the number of spatial dimensions.
MAPS = {2: (to_5hd, from_5hd), 3: (to_6hd, from_6hd)}
FILTERS = {2: (to_fracz, from_fracz), 3: (to_fracz_3d, from_fracz_3d)}
