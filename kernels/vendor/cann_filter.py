"""The vendor's tiling of a filter gradient, and any CANN tiling of one as ours.

M = output channels, N = (kd, input channels, kh, kw), K = pixels of dy; A is dy, B is img2col of
x. Every share adds its sums into dw. The rule is that of CANN's conv3d_backprop_filter_v2 for
910B, fp16 and bf16, one real group (hicann/ops-nn at e5c3fa9,
conv/conv3d_backprop_filter_v2), retold; ``configs/silicon/golden_tilings_filter.csv`` has its
published results.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from npusim.base.records import replace
from npusim.kernels.filter_gradient.tiling import Tiling
from npusim.kernels.vendor.cann import CannTiling, check_fits
from npusim.kernels.vendor.cann_rule import HALF, Product, common_reason, refuse, rows_of
from npusim.language import Device, DType, ceil_div, round_down, round_up
from npusim.problem.convolution import Convolution


def reason_outside(shape: Convolution, device: Device, dtype: DType) -> str:
    """Why the rule does not apply to this filter gradient; empty where it does."""
    reason = common_reason(shape, device, dtype)
    if reason:
        return reason
    (_, kh, kw) = shape.kernel
    plan = shape.plan
    m = plan.cout_g
    n = shape.kernel[0] * shape.taps * plan.cin1_g * shape.c0
    if shape.dilation[0] > 1:
        return f"the rule is for a depth dilation of 1, this has {shape.dilation[0]}"
    if (kh, kw) not in ((1, 1), (2, 2), (3, 3), (4, 4)):
        return f"the rule is for filters of 1x1 to 4x4 in the plane, this has {kh}x{kw}"
    if (kh, kw) != (1, 1) and min(m, n) < 128:
        return (
            f"the rule is for M and N of 128 or more unless the filter is 1x1, these are {m}, {n}"
        )
    return ""


def production_tiling(shape: Convolution, device: Device, cores: int, dtype: DType) -> CannTiling:
    """The tiling that the library would choose on so many cube cores.

    Raises ``ArgumentError`` outside the rule.
    """
    reason = reason_outside(shape, device, dtype)
    if reason:
        raise refuse(reason)
    p = FilterProduct(shape, dtype.bytes)
    taps = shape.taps
    strided = shape.stride[1] * shape.stride[2] > 1
    if strided and (taps % 16 == 0 or 16 % taps == 0):
        shared = _deepest(p, "MN", device, cores)
        if p.unit_count(shared) >= cores:
            return shared
    return _deepest(p, "NK" if p.m > p.n else "MK", device, cores)


def kernel_tiling(
    tiling: CannTiling, shape: Convolution, device: Device, dtype: DType
) -> tuple[Tiling, list[str]]:
    """A CANN tiling as the kernel's, and notes on what differs.

    Raises ``CapacityError`` where it does not fit the device and ``ArgumentError`` where the
    loop nest cannot follow it.
    """
    p = FilterProduct(shape, dtype.bytes)
    t = tiling
    check_fits(t, device, dtype.bytes, (p.slot_a(t), p.slot_b(t)))
    small = min(t.step_ka, t.step_kb)
    slab = small * t.base_k
    notes = []
    if slab % p.wo and p.wo % slab and slab < p.k:
        notes.append(
            f"L1 loads are whole rows of dy or parts of one, where the library's of {slab} "
            f"positions run on across rows of {p.wo}"
        )
    if shape.kernel[0] > 1 and (p.n // shape.kernel[0]) % t.base_n:
        notes.append(f"N tiles of {t.base_n} end with the filter depth they are of")
    return (
        Tiling(
            **t.shared,
            slab_k=slab,
            single_core_n=t.single_core_n,
            single_core_k=t.single_core_k,
            step_m=t.step_m,
            step_n=t.step_n,
            dy_slots=t.al1 * t.step_ka // small,
            x_slots=t.bl1 * t.step_kb // small,
            dy_slabs=t.step_ka // small,
            x_slabs=t.step_kb // small,
            keeps="x" if t.iterate_order else "dy",
        ),
        notes,
    )


class FilterProduct(Product):
    """Sizes of the product as the rule has them."""

    def __init__(self, c: Convolution, element: int) -> None:
        super().__init__(c, element)
        self.m = c.plan.cout_g  # output channels of a real group
        self.n = c.kernel[0] * c.taps * c.plan.cin1_g * c.c0  # input channels of one, times taps
        self.k = c.out[1] * c.out[2]  # positions of an image of dy
        self.wo = c.out[2]  # its width

    def bound_b(self, t: CannTiling) -> int:
        """Elements of x that one L1 slot is given room for: whole rows of every plane touched."""
        c = self.c
        rows = rows_of(t.step_kb * t.base_k, self.wo)
        high = (rows - 1) * c.stride[1] + (c.kernel[1] - 1) * c.dilation[1] + 1
        blocks = ceil_div(t.step_n * t.base_n, c.c0)
        planes = ceil_div(blocks, c.taps)
        if c.taps % blocks if c.taps > blocks else 2 * blocks % c.taps:
            planes += 1
        return high * c.spatial[2] * planes * c.c0

    def slot_a(self, t: CannTiling) -> int:
        """Bytes of one slot of dy in L1."""
        return t.step_m * t.base_m * t.step_ka * t.base_k * self.element

    def slot_b(self, t: CannTiling) -> int:
        """Bytes of one slot of x in L1."""
        return self.bound_b(t) * self.element

    def unit_count(self, t: CannTiling) -> int:
        """Pieces of work that cores share."""
        along_m = ceil_div(self.m, t.single_core_m)
        along_n = ceil_div(self.n, t.single_core_n)
        return self.c.n * self.c.out[0] * along_m * along_n * ceil_div(self.k, t.single_core_k)


class _Base(Struct, frozen=True):
    """The base tile and what each L0 slot may hold, in elements; ``mode`` is what cores share."""

    mode: str
    m: int
    n: int
    k: int
    cl0: int


def _base(p: FilterProduct, mode: str) -> _Base:
    m = 128
    n = 128
    k = 128
    cl0 = 2
    if mode == "MN":
        m, n, k, cl0 = (256, 128, 64, 1) if p.m > 128 else (128, 256, 64, 1)
    small_m = min(m, round_up(p.m, 16))
    small_n = min(n, round_up(p.n, 16))
    return _Base(mode, small_m, small_n, _base_k(p, m * k // small_m, n * k // small_n), cl0)


def _base_k(p: FilterProduct, *limits: int) -> int:
    """The largest K step within limits; whole rows of dy where those are short and aligned."""
    k = round_down(min(*limits, round_up(p.k, 16)), 16)
    return k // p.wo * p.wo if p.wo < k and p.wo % 16 == 0 else k


def _ladder(mode: str) -> Iterator[tuple[int, int]]:
    """Depths of A and B in L1, in base blocks, slots included; deepest first."""
    if mode == "MN":
        yield from ((depth, depth) for depth in (*range(16, 0, -2), 1))
        return
    a = b = 8
    yield a, b
    while max(a, b) > 1:  # the deeper side is halved; of equals the one that streams
        if a > b or (a == b and mode == "NK"):
            a //= 2
        else:
            b //= 2
        yield a, b


def _deepest(p: FilterProduct, mode: str, device: Device, cores: int) -> CannTiling:
    """The first rung of the ladder that fits L1 and, where K is split, busies the cores."""
    base = _base(p, mode)
    last = None
    for depths in _ladder(mode):
        t = _steps(p, base, depths)
        if p.fits(t, device):
            last = t
            if mode == "MN" or p.unit_count(t) >= cores:
                return t
    return last or _shrunk(p, base, device)


def _steps(p: FilterProduct, base: _Base, depths: tuple[int, int]) -> CannTiling:
    """The tiling that holds so many base blocks of A and B in L1.

    What is not shared between cores a core takes whole.
    """
    depth_a, depth_b = depths
    count = ceil_div(p.k, base.k)
    line = p.c.taps * p.c.c0
    al1 = min(2, depth_a)
    bl1 = min(2, depth_b)
    ka = min(depth_a // al1, count)
    kb = min(depth_b // bl1, count)
    if ka > kb:
        ka = ka // kb * kb
    else:
        kb = kb // ka * ka
    step_m = 1
    step_n = 1
    if base.mode == "MK":
        step_m = min(depth_a // al1 // ka, ceil_div(p.m, base.m))
    if base.mode == "NK":
        step_n = min(depth_b // bl1 // kb, ceil_div(p.n, base.n))
    n = max(step_n * base.n // line, 1) * line
    k = max(max(ka, kb) * base.k // p.wo, 1) * p.wo
    return CannTiling(
        base_m=base.m,
        base_n=base.n,
        base_k=base.k,
        single_core_m=p.m if base.mode == "NK" else step_m * base.m,
        single_core_n=p.n if base.mode == "MK" else n,
        single_core_k=round_up(p.k, p.c.c0) if base.mode == "MN" else k,
        step_ka=ka,
        step_kb=kb,
        step_m=step_m,
        step_n=step_n,
        al1=al1,
        bl1=bl1,
        cl0=base.cl0,
        iterate_order=1 if base.mode == "NK" else 0,
    )


def _shrunk(p: FilterProduct, base: _Base, device: Device) -> CannTiling:
    """The least of steps with a base that fits: K first, then M and N, then K as L0 allows.

    The order in which M and N shrink is inferred from two published tilings: the side that
    takes more of L1.
    """
    limit = base.k
    while True:
        for k in range(limit, 0, -16):
            t = _steps(p, replace(base, k=k), (1, 1))
            if p.fits(t, device):
                return t
        least = _steps(p, replace(base, k=16), (1, 1))
        wide = p.slot_b(least) > p.slot_a(least)
        if wide and base.n > 16:
            base = replace(base, n=base.n - 16)
        elif base.m > 16:
            base = replace(base, m=base.m - 16)
        else:
            raise refuse("no tile fits L1 however small")
        limit = _base_k(p, HALF // base.m, HALF // base.n)
