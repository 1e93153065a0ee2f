"""Our tilings of gradients in the vendor's words: the reverse of what reads a ``CannTiling``."""

from __future__ import annotations

from typing import Any

from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.vendor.cann import CannTiling
from npusim.language import ArgumentError, Kernel


def cann_of(kernel: Kernel) -> CannTiling:
    """The tiling of a gradient kernel as the vendor's library would state it.

    ``CannTiling.words`` of it has the vendor's names. Raises ``ArgumentError`` for kernels without
    such words, and for what the words cannot say.
    """
    if isinstance(kernel, ConvBackpropFilter):
        return _filter(kernel)
    if isinstance(kernel, ConvBackpropInput):
        return _input(kernel)
    raise ArgumentError(
        f"kernel {kernel.name} has no words of the vendor; gradients of filter and input have"
    )


def _filter(kernel: ConvBackpropFilter) -> CannTiling:
    t = kernel.tiling
    _plain(t.form, t.cores)
    if not t.single_core_k:
        raise ArgumentError(
            "this tiling shares out parts of K of single tiles; the vendor's kernel shares out "
            "blocks for rows of an image: set single_core_m, single_core_n and single_core_k"
        )
    blocks, rest = divmod(t.slab_k, t.base_k)
    uneven = t.slots_of_dy % t.dy_slabs or t.slots_of_x % t.x_slabs
    if rest or uneven or min(t.dy_slabs, t.x_slabs) > 1:
        raise ArgumentError(
            f"slabs of {t.slab_k} positions, of which {t.dy_slabs} of dy and {t.x_slabs} of x stay "
            f"in {t.slots_of_dy} and {t.slots_of_x} slots, are no whole steps of base_k, {t.base_k}"
        )
    return _words(
        t,
        single_core_n=t.single_core_n,
        single_core_k=t.single_core_k,
        step_ka=t.dy_slabs * blocks,
        step_kb=t.x_slabs * blocks,
        step_m=t.step_m,
        step_n=t.step_n,
        al1=t.slots_of_dy // t.dy_slabs,
        bl1=t.slots_of_x // t.x_slabs,
        iterate_order=1 if t.keeps == "x" else 0,
    )


def _input(kernel: ConvBackpropInput) -> CannTiling:
    t = kernel.tiling
    s = kernel.shape
    _plain(t.form, t.cores)
    line = s.taps * s.c0
    width = s.spatial[2]
    depth_a = t.step_planes * line
    depth_b = t.step_columns * s.c0
    if depth_a % t.base_k or depth_b % t.base_k or depth_b % line:
        raise ArgumentError(
            f"loads of {depth_a} and {depth_b} along K are no whole steps of base_k = {t.base_k} "
            f"and of channel blocks of the filter, {line}"
        )
    single = t.single_core_m or t.base_m
    if single % width or t.images > 1 or t.even_n:
        raise ArgumentError(
            f"shares of {single} positions are not whole rows of dx ({width} positions), not of "
            "one image, or of channels that are cut evenly"
        )
    stays = t.weight_slots == 1 and depth_b >= line * s.cout1
    if t.resident != stays or t.resident_input:
        raise ArgumentError(
            "which operand stays in L1 follows from its slots and steps in the vendor's words: "
            f"here weights {'stay' if stays else 'do not stay'}, and dy does not"
        )
    return _words(
        t,
        step_ka=depth_a // t.base_k,
        step_kb=depth_b // t.base_k,
        al1=t.l1_slots,
        bl1=t.weight_slots,
        single_core_m=single,
        iterate_order=1,
    )


def _words(t: Any, **more: int) -> CannTiling:
    """The reverse of ``CannTiling.shared``, with what only one of the kernels says."""
    shared = {
        "single_core_m": t.single_core_m,
        "al0": t.l0_slots,
        "bl0": t.l0_slots,
        "cl0": t.l0c_slots,
    }
    return CannTiling.of_base(t.base_m, t.base_n, t.base_k, **{**shared, **more})


def _plain(form: str, cores: int) -> None:
    """Raise for forms that the vendor's kernels do not have."""
    if form != "window" or cores:
        what = f"form {form!r}" if form != "window" else f"{cores} cores"
        raise ArgumentError(
            f"the vendor's words cannot say {what}: its kernels slide the filter over the whole "
            "input on all cores; tilings 'library' and 'production' can be said"
        )
