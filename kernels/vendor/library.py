"""``tiling="library"``: the vendor's own rules where they are known, else a plain choice.

The rules are those of chips whose device file says so (``Device.library_rules``), for layers
without depth. Elsewhere it is the tiling whose busiest pipe or memory has least to do, among the
forms of kernel that the vendor's library has, with zeros inserted wherever a load can. As such a
rule it counts bytes and products, and not what img2col fetches for them, nor that each core takes
time to launch: published rules of the vendor keep as many cores busy as they can.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.base.records import replace
from npusim.kernels.estimate.fit import no_filter, no_product
from npusim.kernels.estimate.pipeline import chosen, records, table
from npusim.kernels.estimate.tile import busy_cycles
from npusim.kernels.filter_gradient.space import Space as Filters
from npusim.kernels.implicit_gemm.geometry import Geometry
from npusim.kernels.implicit_gemm.space import Products
from npusim.kernels.vendor.library_910 import knows
from npusim.kernels.vendor.library_910_filter import filter_tiling
from npusim.kernels.vendor.library_910_forward import forward_tiling
from npusim.kernels.vendor.library_910_input import input_tiling
from npusim.language import Device, DType
from npusim.problem.convolution import Convolution

#: Notes on the rule that tiled a layer, for reports.
_RULE = "tiled by the rule of the vendor's library"
_DEFAULT = "tiled by default, as the rule of the vendor's library has nothing for it"


def tiled(kernel: Any, c: Convolution, device: Device, cores: int, dtype: DType) -> tuple[Any, str]:
    """The tiling of a ``kernel`` class for the 3-D ``c``, and a note on which rule it is.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    filters = kernel.computes == "weight"
    gradient = filters or kernel.rotated
    if knows(device, c, gradient=gradient):
        if not gradient:
            tiling, by_rule = forward_tiling(c, device, cores)
            return tiling, _RULE if by_rule else _DEFAULT
        rule = filter_tiling if filters else input_tiling
        gradient_tiling = rule(c, device, cores)
        if gradient_tiling is not None:
            return gradient_tiling, _RULE
    if filters:
        return _filters(c, device, cores, dtype), ""
    return _products(kernel.geometry_of(c), device, cores, dtype, rotated=kernel.rotated), ""


def _filters(c: Convolution, device: Device, cores: int, dtype: DType) -> Any:
    """The plain choice for a filter gradient: single taps where no img2col load can do."""
    forms = ["taps"]
    if all(c.axis(i).fits_window(whole=True) for i in (1, 2)):
        forms = ["window", "taps"]
    for form in forms:
        ordered = False
        space = Filters(device, cores, (False, False), c, dtype.name, dtype.bytes, ordered, form)
        tiling = _plainest(space, space.rows["group"] == 1)
        if tiling is not None:
            return tiling
    raise no_filter(device, c.c0)


def _products(g: Geometry, device: Device, cores: int, dtype: DType, *, rotated: bool) -> Any:
    """The plain choice for a forward pass or an input gradient: the first form that fits."""
    forms = ["taps"]
    if "phases" in g.forms:
        forms.insert(0, "phases")
    if all(axis.fits_window() for axis in (g.h, g.w)):
        forms.insert(0, "window")
    for form in forms:
        space = Products(device, cores, (False, False), g, dtype, dtype.name, rotated, (form,))
        stays = space.rows["resident"] + space.rows["resident_input"] > 0
        tiling = _plainest(space, ~stays)
        if tiling is not None:
            return tiling
    raise no_product(device, g.c0, dtype)


def _plainest(space: Filters | Products, plain: Any) -> Any:
    """The least bound among rows that are ``plain``, of one image each; None where nothing fits.

    Two slots of L0, no unit flag, all cores.
    """
    of = space.of_cut
    rows = space.rows
    for name in ("fetch", "dy_fetch"):
        if name in of:
            of[name] = 0 * of[name]
    single_images = of["images"][rows["cut"]] == 1
    t = space.spread(chosen(rows, np.flatnonzero(plain & single_images)))
    t = chosen(t, np.flatnonzero(t["l0_slots"] == 2))
    if not len(t["items"]):
        return None
    t["unit_flag"] = 0 * t["unit_flag"]
    t["cores"] = np.minimum(t["items"], space.cores)
    best = np.array([np.argmin(_weighed(table(space.estimate(t)), space.device))])
    return replace(space.tiling(records(chosen(t, best))[0]), cores=0)


def _weighed(work: Any, device: Device) -> Any:
    """Cycles, less what cores take to launch: no published rule of the vendor weighs that."""
    return busy_cycles(work) + work.beside - work.cores * device.launch.core_cycles
