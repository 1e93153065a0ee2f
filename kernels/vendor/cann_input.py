"""The vendor's tiling of an input gradient, and any CANN tiling of one as ours.

M = pixels of dx, N = input channels, K = (kh, kw, output channels) of one filter depth; A is
img2col of dy, B the weights. The rule is that of CANN's conv3d_backprop_input_v2 for 910B,
fp16 and bf16, one real group (hicann/ops-nn at e5c3fa9, conv/conv3d_backprop_input_v2), retold;
``configs/silicon/golden_tilings_input.csv`` has its published results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from npusim.base.records import replace
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.vendor.cann import CannTiling, check_fits
from npusim.kernels.vendor.cann_rule import HALF, SUMS, Product, common_reason, refuse, rows_of
from npusim.language import ArgumentError, Device, DType, ceil_div, round_down, round_up
from npusim.problem.convolution import Convolution

#: Bytes of operands and result that the rule lets the cores have in L2 at once.
_L2_SHARE = 144 * 2**20


def production_tiling(shape: Convolution, device: Device, cores: int, dtype: DType) -> CannTiling:
    """The tiling that the library would choose on so many cube cores.

    Raises ``ArgumentError`` outside the rule.
    """
    reason = common_reason(shape, device, dtype)
    if reason:
        raise refuse(reason)
    problem = _Product(shape, dtype.bytes)
    chosen = _stepped(problem, device, _base(problem))
    if chosen is None:
        raise refuse("no tile fits L1 however small")
    return replace(chosen, single_core_m=_single_m(problem, chosen, cores))


def kernel_tiling(
    tiling: CannTiling, shape: Convolution, device: Device, dtype: DType
) -> tuple[Tiling, list[str]]:
    """A CANN tiling as the kernel's, and notes on what differs.

    Raises ``CapacityError`` where it does not fit the device and ``ArgumentError`` where the
    loop nest cannot follow it.
    """
    p = _Product(shape, dtype.bytes)
    t = tiling
    c0 = shape.c0
    check_fits(t, device, dtype.bytes, (p.slot_a(t), p.slot_b(t)))
    for name, step in (("stepKa", t.step_ka), ("stepKb", t.step_kb)):
        if step * t.base_k % p.line:
            raise ArgumentError(
                f"CANN tiling: {name} x baseK is {step * t.base_k}; it must be whole channel "
                f"blocks of the filter, multiples of {p.line}"
            )
    if t.step_m > 1 or t.step_n > 1:
        raise ArgumentError(
            f"CANN tiling: stepM is {t.step_m}, stepN {t.step_n}; the input gradient holds one "
            "block of either in L1"
        )
    if t.single_core_m % p.wi or t.single_core_n > t.base_n:
        raise ArgumentError(
            f"CANN tiling: singleCoreM is {t.single_core_m}, singleCoreN {t.single_core_n}; shares "
            f"are whole rows of dx ({p.wi} positions) by one baseN ({t.base_n})"
        )
    notes = []
    if t.single_core_m > t.base_m and p.wi % t.base_m and t.base_m % p.wi:
        notes.append(
            f"M tiles are whole rows of dx or parts of one, where the library's of {t.base_m} run "
            f"on across rows of {p.wi}"
        )
    return (
        Tiling(
            **t.shared,
            step_planes=t.step_ka * t.base_k // p.line,
            step_columns=t.step_kb * t.base_k // c0,
            l1_slots=t.al1,
            weight_slots=t.bl1,
            resident=t.bl1 == 1 and t.step_kb * t.base_k >= p.k,
        ),
        notes,
    )


class _Product(Product):
    """Sizes of the product as the rule has them; rows of dy have zeros inserted between them."""

    def __init__(self, c: Convolution, element: int) -> None:
        super().__init__(c, element)
        self.wi = c.spatial[2]  # width of dx
        self.images = c.n * c.spatial[0]  # batch times depth
        self.m = c.spatial[1] * self.wi
        self.n = round_up(c.cin1 * c.c0, 16)
        self.line = c.taps * c.c0  # K of one block of output channels
        self.k = self.line * c.cout1

    def rows(self, m: int) -> int:
        """Rows of dy, zeros inserted, that ``m`` positions of dx are given room for."""
        reach = rows_of(m, self.wi) + (self.c.kernel[1] - 1) * self.c.dilation[1]
        return min(reach, (self.c.out[1] - 1) * self.c.stride[1] + 1)

    def row_a(self, m: int) -> int:
        """Bytes of dy in L1 for one element of channel depth."""
        return self.rows(m) * self.c.out[2] * self.c.stride[2] * self.element

    def slot_a(self, t: CannTiling) -> int:
        """Bytes of one slot of A in L1."""
        return self.row_a(t.base_m) * t.step_ka * t.base_k // self.c.taps

    def slot_b(self, t: CannTiling) -> int:
        """Bytes of one slot of B in L1."""
        return t.step_n * t.base_n * t.step_kb * t.base_k * self.element

    def whole(self, t: CannTiling) -> bool:
        """True if both steps are whole blocks of output channels, the larger a multiple."""
        small, large = sorted((t.step_ka, t.step_kb))
        steps = (small * t.base_k % self.line, large * t.base_k % self.line, large % small)
        return not any(steps)

    def first(self, device: Device, tilings: Iterable[CannTiling]) -> CannTiling | None:
        """The first of the tilings that is legal; None where none is."""
        return next((t for t in tilings if self.whole(t) and self.fits(t, device)), None)

    def depth_k(self, k: int) -> int:
        """``k`` lowered by 16 until it divides a block's K or is a multiple of it."""
        k = max(16, min(round_down(k, 16), round_up(self.k, 16)))
        while self.line % k and k % self.line:
            k -= 16
        return k


def _base(p: _Product) -> tuple[int, int, int]:
    """baseM, baseN, baseK before L1 is looked at."""
    m, n = (256, 128) if p.m >= p.n else (128, 256)
    m = min(m, round_up(p.m, 16))
    n = min(n, p.n)
    k = p.depth_k(64)
    if n < 256 and k < 64:
        m = min(round_down(HALF // k, 16), round_down(SUMS // n, 16), round_up(p.m, 16))
    if m < 256 and k < 64:
        n = min(round_down(HALF // k, 16), round_down(SUMS // m, 16), p.n)
    return m, n, p.depth_k(HALF // max(m, n))


def _stepped(p: _Product, device: Device, base: tuple[int, int, int]) -> CannTiling | None:
    """The tiling with its L1 steps, its base shrunk where L1 demands; None if nothing fits."""
    resident = _resident(p, device, _tiling(base)) if p.c.kernel[0] == 1 else None
    last = (16, 16, p.depth_k(16))
    tilings = chain(
        (_tiling(smaller, (2, 2)) for smaller in _shrinking(p, base)),
        (_tiling(last, slots) for slots in ((2, 1), (1, 2), (1, 1))),
    )
    stepped = (_doubled(p, device, t) for t in tilings)
    return resident or next(filter(None, stepped), None)


def _tiling(base: tuple[int, int, int], slots: tuple[int, int] = (2, 1)) -> CannTiling:
    al1, bl1 = slots
    return CannTiling.of_base(*base, step_ka=1, step_kb=1, al1=al1, bl1=bl1, iterate_order=1)


def _resident(p: _Product, device: Device, t: CannTiling) -> CannTiling | None:
    """All of B in one slot, and as much of A beside it as fits."""
    count = ceil_div(p.k, t.base_k)
    steps = (step for step in range(count, 0, -1) if count % step == 0)
    return p.first(device, (replace(t, step_ka=step, step_kb=count) for step in steps))


def _doubled(p: _Product, device: Device, t: CannTiling) -> CannTiling | None:
    """Steps of A and B: each half of L1, or both the same; the larger sum that is legal."""
    proposals = [_equal(p, device, t), _halves(p, device, t)]
    legal = [tiling for tiling in proposals if tiling is not None]
    return max(legal, key=lambda tiling: tiling.step_ka + tiling.step_kb, default=None)


def _halves(p: _Product, device: Device, t: CannTiling) -> CannTiling | None:
    """As many blocks of channels of each operand as fit its half of L1."""
    half = device.memory("L1").size_bytes // 2
    row = p.row_a(t.base_m) * 32 // p.element
    block = t.base_n * p.line * p.element
    unit = max(1, t.base_k // p.line)  # blocks in the smallest step
    most = ceil_div(p.k, max(t.base_k, p.line))
    a = min(half // t.al1 // row // unit, most)
    b = min(half // t.bl1 // block // unit, most)
    if min(a, b) < 1:
        return None
    small = next(c for c in range(min(a, b), 0, -1) if max(a, b) % c == 0)
    if a < b:
        a = small
    else:
        b = small
    scale = max(1, p.line // t.base_k)
    return p.first(device, [replace(t, step_ka=a * scale, step_kb=b * scale)])


def _equal(p: _Product, device: Device, t: CannTiling) -> CannTiling | None:
    """The same step for both, from the filter's taps downwards."""
    first = min(ceil_div(p.k, t.base_k), p.c.taps)
    return p.first(device, (replace(t, step_ka=s, step_kb=s) for s in range(first, 0, -1)))


def _shrinking(p: _Product, base: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """The base, then smaller ones: the larger of M and N by 16 each time, last K."""
    m, n, k = base
    least = max(p.wi, 16)
    yield m, n, k
    while m - 16 >= least or n > 16:
        if m - 16 >= least and (m >= n or n == 16):
            m -= 16
        else:
            n -= 16
        yield m, n, k
    while k > 16:
        k = p.depth_k(k - 16)
        yield m, n, k


def _single_m(p: _Product, t: CannTiling, cores: int) -> int:
    """Positions of one share: whole rows, more of them where that does not starve the cores."""
    rows = max(t.base_m // p.wi, 1)
    height = p.c.spatial[1]
    if p.wi > 64 and p.wi % t.base_m and t.base_m % p.wi:
        for pieces in range(1, height + 1):
            each = ceil_div(height, pieces)
            shares = p.images * pieces * ceil_div(p.n, t.single_core_n)
            if (shares % cores == 0 or shares >= cores**2) and _in_l2(p, t, each * p.wi, cores):
                return each * p.wi
    best = rows
    if p.images % cores == 0:
        for more in range(rows, height + 1, rows):
            if not _in_l2(p, t, more * p.wi, cores):
                break
            if height % more == 0:
                best = more
    return best * p.wi


def _in_l2(p: _Product, t: CannTiling, m: int, cores: int) -> bool:
    """True if what all cores touch in one share of ``m`` positions fits the share of L2."""
    depths = max(p.c.kernel[0] // p.c.stride[0], 1)
    channels = p.k // p.c.taps
    numbers = p.rows(m) * p.c.out[2] * depths * channels + t.single_core_n * p.k * depths
    numbers += m * t.single_core_n + t.base_m * t.base_n
    return cores * p.element * numbers <= _L2_SHARE
