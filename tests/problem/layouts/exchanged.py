"""FRACTAL_Z_3D with its channel axes exchanged, element by element, for tests of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.problem.layouts import group_plan

Array = np.ndarray[Any, Any]


def to_fracz_3d_transposed(w: Array, groups: int, c0: int) -> Array:
    """Turn (Cout, Cin/groups, KD, KH, KW) into (real_g*KD*(cout_g/C0)*KH*KW, cin_g/16, 16, C0).

    ``cin_g`` is cin1_g*C0 rounded up to 16: blocks of C0 output channels, fractals of 16 inputs.
    """
    cout, cg, kd, kh, kw = w.shape
    plan = group_plan(cg * groups, cout, groups, c0)
    og, cout1, cin1 = cout // groups, plan.cout_g // c0, -(-plan.cin1_g * c0 // 16)
    z = np.zeros((plan.real_groups * kd * cout1 * kh * kw, cin1, 16, c0), w.dtype)
    q, c, d, h, x = np.indices(w.shape)
    real, e = np.divmod(q // og, plan.mag_factor)
    ci, co = e * cg + c, e * og + q % og
    row = (((real * kd + d) * cout1 + co // c0) * kh + h) * kw + x
    z[row, ci // 16, ci % 16, co % c0] = w
    return z
