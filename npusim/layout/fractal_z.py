"""FRACTAL_Z and FRACTAL_Z_3D, the weight layouts, with groups packed by a ``GroupPlan``.

Every real group is one dense matrix per tap, cut into fractals of 16 output channels x C0 input
channels; places of it that belong to no group are zero. FRACTAL_Z is FRACTAL_Z_3D with KD = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.layout.blocks import FRACTAL, Array, check_positive, check_rank, check_shape
from npusim.layout.groups import GroupPlan, group_plan


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
