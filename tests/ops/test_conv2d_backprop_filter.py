"""The filter gradient against the float64 reference: random problems, tilings, devices, cores.

Operands are small integers, so every sum is exact in fp32 and results must be equal, not close.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import npusim
from npusim.base.errors import CapacityError
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.kernels.conv_backprop_filter import Tiling
from npusim.layout import fracz_grouped_to_oihw, to_5hd
from npusim.results import Result
from npusim.shapes.reference import conv_filter_grad, relative_error
from tests.drawn import examples

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]
DEVICES = {name: load_device(name) for name in ("tiny", "ascend910", "ascend910b2")}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One convolution: channels, map, window; ``pads`` are (up, down, left, right)."""

    n: int = 1
    cin: int = 16
    cout: int = 16
    groups: int = 1
    spatial: Pair = (7, 7)
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def out(self) -> Pair:
        up, down, left, right = self.pads
        h, w = (
            (size + pad - dil * (k - 1) - 1) // s + 1
            for size, pad, dil, k, s in zip(
                self.spatial, (up + down, left + right), self.dilation, self.kernel, self.stride,
                strict=True,
            )
        )  # fmt: skip
        return h, w

    @property
    def arguments(self) -> tuple[list[int], dict[str, Any]]:
        """filter_sizes and para_dict."""
        return [self.cout, self.cin // self.groups, *self.kernel], {
            "strides": list(self.stride),
            "padding": list(self.pads),
            "dilations": [1, 1, *self.dilation],
            "groups": self.groups,
        }

    def operands(self, *, whole: bool = True) -> tuple[Array, Array]:
        """NCHW x and dy in fp16, small integers or normally distributed."""
        rng = np.random.default_rng(11)
        shapes = (self.n, self.cin, *self.spatial), (self.n, self.cout, *self.out)
        if whole:
            return tuple(rng.integers(-3, 4, s).astype(np.float16) for s in shapes)  # type: ignore[return-value]
        return tuple(rng.normal(size=s).astype(np.float16) for s in shapes)  # type: ignore[return-value]

    def want(self, x: Array, dy: Array) -> Array:
        up, down, left, right = self.pads
        pads = ((up, down), (left, right))
        return conv_filter_grad(x, dy, self.kernel, self.stride, pads, self.dilation, self.groups)


def poisoned_5hd(a: Array, value: float) -> Array:
    """5HD with ``value`` in the channels that only fill up the last block."""
    five = to_5hd(a, 16)
    used = a.shape[1] % 16
    if used:
        five[:, -1, :, :, used:] = value
    return five


def run(p: Problem, x: Any, dy: Any, device: Device | str, **options: Any) -> Result:
    return npusim.ops.conv2d_backprop_filter(x, dy, *p.arguments, device=device, **options)


def oihw(p: Problem, result: Result) -> Array:
    assert result.outputs is not None
    (dw,) = result.outputs
    assert dw is not None
    return fracz_grouped_to_oihw(dw, p.cout, p.cin // p.groups, p.kernel, p.groups, 16)


def check_account(result: Result) -> None:
    """What holds for every run: no cycle without a reason, no time below a bound."""
    for kernel in result.runs:
        assert all(sum(row.cycles) == kernel.cycles for row in kernel.pipes)
        assert all(min(row.cycles) >= 0 for row in kernel.pipes)
        assert all(bound.cycles <= kernel.cycles for bound in kernel.bounds)


# -- the property ------------------------------------------------------------------------------

CHANNELS = st.one_of(
    st.tuples(st.integers(1, 70), st.integers(1, 70), st.just(1)),
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(2, 7)),
    st.tuples(st.just(1), st.integers(1, 2), st.integers(2, 40)),  # depthwise
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    cin_g, cout_g, groups = draw(CHANNELS)
    kernel = tuple(draw(st.sampled_from([1, 1, 2, 3, 3, 4, 7])) for _ in "hw")
    dilation = tuple(draw(st.integers(1, 3)) for _ in "hw")
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    pads, spatial = [], []
    for axis in range(2):
        # Up to two more than the window reaches: outputs that see nothing but padding.
        before, after = (draw(st.integers(0, reach[axis] + 2)) for _ in "ba")
        least = max(1, reach[axis] - before - after)
        spatial.append(draw(st.integers(least, least + 12)))
        pads += [before, after]
    return Problem(
        n=draw(st.integers(1, 3)),
        cin=cin_g * groups,
        cout=cout_g * groups,
        groups=groups,
        spatial=(spatial[0], spatial[1]),
        kernel=(kernel[0], kernel[1]),
        stride=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        dilation=(dilation[0], dilation[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
    )


TILINGS = st.builds(
    Tiling,
    base_m=st.sampled_from([16, 32, 48, 64]),
    base_n=st.sampled_from([16, 32, 48, 144]),
    base_k=st.sampled_from([16, 32, 64, 256]),
    slab_k=st.sampled_from([1, 16, 40, 100, 4096]),
    k_parts=st.integers(1, 5),
    l1_slots=st.integers(1, 3),
    l0_slots=st.integers(1, 3),
    l0c_slots=st.integers(1, 2),
)


@examples(350)
@given(
    problems(), st.sampled_from(sorted(DEVICES)), st.one_of(st.just("auto"), TILINGS),
    st.one_of(st.none(), st.integers(1, 15)), st.sampled_from([0.0, np.nan, np.inf]),
)  # fmt: skip
def test_every_problem_gives_the_reference_exactly(
    problem: Problem, device: str, tiling: Any, cores: int | None, unused: float
) -> None:
    x, dy = problem.operands()
    five = poisoned_5hd(x, unused), poisoned_5hd(dy, unused)
    try:
        result = run(problem, *five, DEVICES[device], tiling=tiling, cores=cores)
    except CapacityError:
        if tiling == "auto":
            raise
        reject()
    np.testing.assert_array_equal(oihw(problem, result), problem.want(x, dy))
    check_account(result)


@examples(25)
@given(
    st.integers(300, 3000), st.sampled_from([1, 3, 7]), st.integers(1, 3), st.integers(1, 2),
    st.sampled_from(sorted(DEVICES)), st.integers(1, 2),
)  # fmt: skip
def test_rows_wider_than_l1_are_split_into_columns(
    width: int, taps: int, stride: int, dilation: int, device: str, height: int
) -> None:
    problem = Problem(
        cin=20, cout=8, spatial=(height, width), kernel=(1, taps), stride=(1, stride),
        dilation=(1, dilation), pads=(0, 0, taps // 2, taps // 2),
    )  # fmt: skip
    small = DEVICES[device].replace("memories.L1.size", "12KiB")
    x, dy = problem.operands()
    result = run(problem, to_5hd(x, 16), to_5hd(dy, 16), small)
    assert width * 2 * 32 > 12 * 1024  # neither operand's rows fit
    np.testing.assert_array_equal(oihw(problem, result), problem.want(x, dy))
    check_account(result)


# -- particular cases --------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_the_documented_example_has_the_documented_shape(device: str) -> None:
    x, dy = Problem().operands()
    result = run(Problem(), to_5hd(x, 16), to_5hd(dy, 16), device)
    assert result.outputs is not None
    assert result.grad_weight is result.outputs[0]
    assert result.outputs[0] is not None
    assert result.outputs[0].shape == (1, 1, 16, 16)
    assert result.outputs[0].dtype == np.float32
    assert [kernel.name for kernel in result.runs] == ["conv_backprop_filter"]


def test_a_filter_that_only_ever_sees_padding_has_a_zero_gradient() -> None:
    problem = Problem(spatial=(1, 1), pads=(2, 2, 0, 0), stride=(2, 1), kernel=(1, 1), cout=3)
    seen = Problem(spatial=(1, 1), pads=(3, 0, 0, 0), stride=(5, 1), kernel=(2, 1), cout=3)
    for case in (problem, seen):
        x, dy = case.operands()
        result = run(case, to_5hd(x, 16), to_5hd(dy, 16), "tiny")
        np.testing.assert_array_equal(oihw(case, result), case.want(x, dy))
    assert [kernel.name for kernel in result.runs] == ["mem_set"]
    assert not oihw(seen, result).any()


# -- cores, timing only, traffic ---------------------------------------------------------------

WORK = Problem(n=4, cin=48, cout=48, spatial=(12, 12), kernel=(3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_more_cores_are_faster_and_give_the_same_numbers(device: str) -> None:
    x, dy = (to_5hd(a, 16) for a in WORK.operands(whole=False))
    one = run(WORK, x, dy, device, cores=0b1)
    four = run(WORK, x, dy, device, cores=0b1111)
    assert relative_error(oihw(WORK, four), oihw(WORK, one)) <= 1e-6
    assert four.cycles < one.cycles
    assert {row.core for row in four.runs[-1].pipes} > {row.core for row in one.runs[-1].pipes}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_timing_only_run_gives_the_same_rows(device: str, start: str) -> None:
    x, dy = (to_5hd(a, 16) for a in WORK.operands())
    full = run(WORK, x, dy, device, start=start)
    specs = npusim.spec(x.shape, "fp16"), npusim.spec(dy.shape, "fp16")
    timed = run(WORK, *specs, device, start=start)
    assert timed.outputs is None
    assert (timed.cycles, timed.notes) == (full.cycles, full.notes)
    for a, b in zip(full.runs, timed.runs, strict=True):
        assert (a.pipes, a.traffic, a.bounds) == (b.pipes, b.traffic, b.bounds)
        assert a.timeline is not None
        assert b.timeline is not None
        for name, column in vars(a.timeline).items():
            np.testing.assert_array_equal(column, getattr(b.timeline, name))


@pytest.mark.parametrize("device", DEVICES)
def test_cores_read_at_least_what_the_gradient_needs(device: str) -> None:
    x, dy = (to_5hd(a, 16) for a in WORK.operands())
    result = run(WORK, x, dy, device)
    kernel = result.runs[-1]
    read = {row.operand: row for row in kernel.traffic if row.src == "GM"}
    assert read["x"].bytes >= x.nbytes
    assert read["dy"].bytes >= dy.nbytes
    for row in read.values():
        assert row.hit_bytes + row.miss_bytes == row.bytes
    # Cold: every byte comes from main memory once at least. Here all of it fits the L2. Rows that
    # share a sector hit what came with others.
    fetched = next(row for row in kernel.traffic if row.dst == "L2" and not row.operand)
    assert fetched.bytes >= x.nbytes + dy.nbytes
    warm = run(WORK, x, dy, device, start="warm")
    assert sum(row.miss_bytes for row in warm.runs[-1].traffic) == 0
    assert warm.cycles <= result.cycles
    written = sum(row.bytes for row in kernel.traffic if row.dst == "GM")
    assert written >= WORK.cin * WORK.cout * 9 * 4
    assert kernel.macs >= WORK.n * WORK.cin * WORK.cout * 144 * 9
