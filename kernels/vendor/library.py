"""``tiling="library"``: the vendor's own rules where they are known, else a plain choice.

The rules are those of chips whose device file says so (``Device.library_rules``), for the layers of
``library_910.COVERAGE``. Elsewhere it is the tiling whose busiest pipe or memory has least to do,
among the forms of kernel that the vendor's library has, with zeros inserted wherever a load can. As
such a rule it counts bytes and products, and not what img2col fetches for them, nor that each core
takes time to launch: published rules of the vendor keep as many cores busy as they can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from npusim.base.records import replace
from npusim.kernels.estimate.fit import no_filter, no_product
from npusim.kernels.estimate.pipeline import chosen, records, table
from npusim.kernels.estimate.tile import busy_cycles
from npusim.kernels.filter_gradient.space import Space as Filters
from npusim.kernels.implicit_gemm.geometry import Geometry
from npusim.kernels.implicit_gemm.space import Products
from npusim.kernels.vendor.library_910 import COVERAGE, other_form
from npusim.kernels.vendor.library_910_filter import filter_tiling
from npusim.kernels.vendor.library_910_forward import forward_tiling
from npusim.kernels.vendor.library_910_input import input_tiling
from npusim.language import Device, DType
from npusim.problem.convolution import Convolution


class LibraryTiling(NamedTuple):
    """A tiling, and ``beyond``, why it is extrapolated, "" where it is not.

    It is the published rule's (``by_rule``), or a choice in its place: ``instead`` says which.
    """

    tiling: Any
    by_rule: bool = False
    instead: str = ""
    beyond: str = ""

    @property
    def remark(self) -> str:
        """A note on the rule that tiled a layer, for reports; "" where there is none to tell of."""
        if self.by_rule and not self.beyond:
            return "tiled by the rule of the vendor's library"
        if self.by_rule:
            return (
                "tiled by the rule of the vendor's library beyond what it covers "
                f"(extrapolated): {self.beyond}"
            )
        if self.beyond:
            return (
                f"tiled {self.instead}, as the rule of the vendor's library has nothing for it "
                f"(extrapolated): {self.beyond}"
            )
        return ""


def tiled(kernel: Any, c: Convolution, device: Device, cores: int, dtype: DType) -> LibraryTiling:
    """The tiling of a ``kernel`` class for the 3-D ``c``, and which rule it is.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    filters = kernel.computes == "weight"
    beyond = ""
    if device.library_rules:
        beyond = other_form(c)
        if not (beyond or filters or kernel.rotated):
            forward = forward_tiling(c, device, cores)
            return LibraryTiling(forward.tiling, forward.by_rule, "by default", forward.beyond)
        beyond = beyond or COVERAGE["weight" if filters else "input"].missed(c)
        if not beyond:
            rule = filter_tiling if filters else input_tiling
            tiling = rule(c, device, cores)
            if tiling is not None:
                return LibraryTiling(tiling, by_rule=True)
            beyond = "no tile of the rule fits"
    if filters:
        plainest = _filters(c, device, cores, dtype)
    else:
        plainest = _products(kernel.geometry_of(c), device, cores, dtype, rotated=kernel.rotated)
    return LibraryTiling(plainest, instead="by a plain choice", beyond=beyond)


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
