"""The layout conversions, executed as programs, against the layout functions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from npusim.base.errors import ArgumentError
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.numerics.executor import POISON, execute
from npusim.machine.program.build import build
from npusim.machine.program.program import Program
from npusim.problem.layouts import (
    from_6hd,
    from_fracz_3d,
    to_6hd,
    to_fracz_3d,
)
from tests.problem.layouts.exchanged import to_fracz_3d_transposed
from tests.sampled import examples
from tests.tables import rows

Array = np.ndarray[Any, Any]

DEVICES = {name: load_device(name) for name in ("tiny", "ascend910", "ascend910b2")}
TYPES = (FP16, BF16, FP32, INT32)


def plan_program(
    conversion: Conversion,
    plain: tuple[int, ...],
    dtype: DType,
    device: str,
    groups: Any = None,
    kernel: type[TransData] = TransData,
) -> tuple[Program, Tensor, Tensor]:
    """The program, its source and its target."""
    blocked = conversion.blocked_shape(plain)
    shapes = (plain, blocked) if conversion.loads_plain else (blocked, plain)
    src, dst = Tensor("src", shapes[0], dtype), Tensor("dst", shapes[1], dtype, "out")
    chip = DEVICES[device]
    cores = tuple(groups or range(chip.groups))
    return build(kernel(conversion, src, dst), chip, cores), src, dst


def convert(
    conversion: Conversion,
    source: Array,
    plain: tuple[int, ...],
    dtype: DType,
    device: str,
    kernel: type[TransData] = TransData,
) -> Array:
    """What the program makes of ``source``, in fresh (poisoned) memory, as unsigned integers."""
    program, src, dst = plan_program(conversion, plain, dtype, device, kernel=kernel)
    word = np.dtype(f"u{dtype.bytes}")
    raw = np.full(dst.size_bytes, POISON, np.uint8).view(word).reshape(dst.shape)
    arrays = {
        "src": np.ascontiguousarray(source).view(dtype.numpy).reshape(src.shape),
        "dst": raw.view(dtype.numpy),
    }
    execute(program, arrays)
    return raw


def patterns(shape: tuple[int, ...], dtype: DType) -> Array:
    """Arbitrary bit patterns, all different as long as the type has enough, none of them 0."""
    word = np.dtype(f"u{dtype.bytes}")
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.uint64) * 40503 % 65521 + 1).astype(word).reshape(shape)


def plain_5d(x: Array) -> Array:
    """Insert the missing spatial axes of size 1."""
    return x.reshape(*x.shape[:2], *(1,) * (5 - x.ndim), *x.shape[2:])


def check_map(plain: tuple[int, ...], c0: int, dtype: DType, device: str) -> None:
    x = patterns(plain, dtype)
    blocked = to_6hd(plain_5d(x), c0)
    there = Conversion(kind="to_blocked", c0=c0)
    np.testing.assert_array_equal(convert(there, x, plain, dtype, device), blocked)
    noisy = np.where(blocked == 0, 77, blocked).astype(blocked.dtype)  # padding is not read
    back = convert(Conversion(kind="from_blocked", c0=c0), noisy, plain, dtype, device)
    np.testing.assert_array_equal(back, from_6hd(noisy, plain[1]).reshape(plain))
    np.testing.assert_array_equal(back, x)


def check_weight(plain: tuple[int, ...], groups: int, c0: int, dtype: DType, device: str) -> None:
    w = patterns(plain, dtype)
    w5 = plain_5d(w)
    z, zt = to_fracz_3d(w5, groups, c0), to_fracz_3d_transposed(w5, groups, c0)

    def run(kind: str, source: Array) -> Array:
        return convert(Conversion(kind=kind, c0=c0, groups=groups), source, plain, dtype, device)

    np.testing.assert_array_equal(run("to_fracz", w), z)
    turned = run("to_fracz_transposed", w)
    np.testing.assert_array_equal(turned, zt)
    noisy = np.where(z == 0, 99, z).astype(z.dtype)  # sums between groups mean nothing
    back = run("from_fracz", noisy)
    np.testing.assert_array_equal(back, from_fracz_3d(noisy, w5.shape, groups, c0).reshape(plain))
    np.testing.assert_array_equal(back, w)


# -- numbers -----------------------------------------------------------------------------------


@examples(60)
@given(
    n=st.integers(1, 3),
    c=st.integers(1, 40),
    spatial=st.one_of(
        st.tuples(st.integers(1, 700)),
        st.tuples(st.integers(1, 30), st.integers(1, 40)),
        st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 12)),
    ),
    c0=st.sampled_from([8, 16]),
    dtype=st.sampled_from(TYPES),
    device=st.sampled_from(sorted(DEVICES)),
)
def test_feature_maps_of_any_shape(
    n: int, c: int, spatial: tuple[int, ...], c0: int, dtype: DType, device: str
) -> None:
    c0 = max(c0, 32 // dtype.bytes)  # a block is 32 B at least
    check_map((n, c, *spatial), c0, dtype, device)


@examples(60)
@given(
    og=st.integers(1, 40),
    cg=st.integers(1, 40),
    kernel=st.one_of(
        st.tuples(st.integers(1, 9)),
        st.tuples(st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    ),
    groups=st.one_of(st.just(1), st.integers(1, 6), st.just(35)),
    c0=st.sampled_from([8, 16]),
    dtype=st.sampled_from(TYPES),
    device=st.sampled_from(sorted(DEVICES)),
)
def test_weights_of_any_shape(
    og: int,
    cg: int,
    kernel: tuple[int, ...],
    groups: int,
    c0: int,
    dtype: DType,
    device: str,
) -> None:
    check_weight((og * groups, cg, *kernel), groups, c0, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("plain", "c0", "dtype"),
    [
        ((1, 3, 1, 70001), 16, FP16),  # one row longer than any UB
        ((1, 3, 1, 70001), 16, FP32),
        ((2, 16, 300, 301), 8, FP32),
        ((2, 33, 7, 40, 50), 16, FP32),  # planes that fit one by one
        ((3, 32, 9, 4, 4), 8, FP32),  # many depths, few blocks
        ((2, 160, 2, 3, 3), 16, FP16),  # few depths, many blocks
        ((4, 64, 1, 1), 16, FP16),  # already in order
        ((5, 20, 1, 1), 16, BF16),
    ],
)
def test_feature_maps_at_the_edges(
    plain: tuple[int, ...], c0: int, dtype: DType, device: str
) -> None:
    check_map(plain, c0, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("plain", "groups", "c0", "dtype"),
    [
        ((256, 128, 2, 2, 2), 1, 16, FP16),
        ((56, 5, 2, 1, 2), 4, 16, FP16),  # the worked example with groups
        ((72, 1, 3, 3), 72, 16, FP16),  # depthwise; the last real group is half full
        ((75, 1, 3, 3), 25, 16, FP32),  # three channels out of each
        ((72, 1, 3, 3, 3), 72, 8, FP32),
        ((136, 17, 3, 3), 8, 16, FP32),  # groups across tile borders
        ((120, 100, 1, 3), 3, 8, FP32),
        ((2, 3, 60, 70), 1, 16, FP32),  # more taps than fit, one plane
        ((2, 3, 5, 25, 26), 1, 8, FP32),  # and several
        ((6, 2, 40, 40), 3, 16, FP16),
        ((300, 200, 1, 1), 1, 16, FP16),  # no taps to turn
    ],
)
def test_weights_at_the_edges(
    plain: tuple[int, ...], groups: int, c0: int, dtype: DType, device: str
) -> None:
    check_weight(plain, groups, c0, dtype, device)


# -- how it is cut -----------------------------------------------------------------------------


def gm_bytes(program: Program) -> dict[str, int]:
    """Bytes moved from and to global memory per tensor."""
    total = {"src": 0, "dst": 0}
    for core in program.cores:
        for variant in core.variants:
            template = program.templates[program.variants[variant].template]
            for (_, _, operand), size in template.moves.items():
                if operand:
                    total[operand] += size
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["to_blocked", "from_blocked"])
@pytest.mark.parametrize("plain", [(8, 64, 56, 56), (2, 20, 5, 30, 31), (1, 3, 224, 224)])
def test_feature_maps_move_every_byte_once(kind: str, plain: tuple[int, ...], device: str) -> None:
    program, src, dst = plan_program(Conversion(kind=kind, c0=16), plain, FP16, device)
    assert gm_bytes(program) == {"src": src.size_bytes, "dst": dst.size_bytes}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 4])
def test_weights_move_every_byte_once(groups: int, device: str) -> None:
    plain = (128, 40, 3, 3)
    for kind in ("to_fracz", "to_fracz_transposed"):
        conversion = Conversion(kind=kind, c0=16, groups=groups)
        program, src, dst = plan_program(conversion, tuple(plain), FP16, device)
        assert gm_bytes(program) == {"src": src.size_bytes, "dst": dst.size_bytes}
    conversion = Conversion(kind="from_fracz", c0=16, groups=groups)
    program, src, dst = plan_program(conversion, plain, FP32, device)
    moved = gm_bytes(program)
    assert moved["dst"] == dst.size_bytes
    assert moved["src"] <= src.size_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_read_near_the_diagonal_only(device: str) -> None:
    """Of 4 groups' 200 x 200 channels only a fourth lies on the diagonal; tiles overlap it."""
    conversion = Conversion(kind="from_fracz", c0=16, groups=4)
    program, src, dst = plan_program(conversion, (200, 50, 3, 3), FP32, device)
    moved = gm_bytes(program)
    assert moved["dst"] == dst.size_bytes
    assert moved["src"] < 0.65 * src.size_bytes


@pytest.mark.parametrize("device", DEVICES)
@rows(
    "tests/data/rows/kernels.yaml",
    "work_is_spread_over_cores_in_few_signatures",
    "kind, plain, groups",
)
def test_work_is_spread_over_cores_in_few_signatures(
    kind: str, plain: list[int], groups: int, device: str
) -> None:
    conversion = Conversion(kind=kind, c0=16, groups=groups)
    program, _, _ = plan_program(conversion, tuple(plain), FP16, device)
    assert len(program.templates) <= 100
    units = [len(core.variants) for core in program.cores]
    chip = DEVICES[device]
    assert len(units) == chip.groups * chip.core_kind("vector").per_group
    assert min(units) >= 1
    assert max(units) - min(units) <= 1


def test_large_tiles_do_not_read_between_groups() -> None:
    """One core with a UB that would hold a whole real group of 16 groups of 17 channels."""
    conversion = Conversion(kind="from_fracz", c0=16, groups=16)
    program, src, dst = plan_program(conversion, (272, 17, 1, 1), FP32, "ascend910b2", [0])
    moved = gm_bytes(program)
    assert moved["dst"] == dst.size_bytes
    assert moved["src"] == 49 / 289 * src.size_bytes  # 17 fractals and 32 beside them


# -- refusals ----------------------------------------------------------------------------------


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ArgumentError, match=r"kind is 'to_nhwc'; it is one of to_blocked, "):
        Conversion(kind="to_nhwc", c0=16)
    with pytest.raises(ArgumentError, match="c0 is 32; it must be 8 or 16"):
        Conversion(kind="to_blocked", c0=32)
    to_blocked = Conversion(kind="to_blocked", c0=16)
    with pytest.raises(ArgumentError, match=r"has shape \(4,\); it needs 3 to 5 axes"):
        to_blocked.blocked_shape((4,))
    with pytest.raises(ArgumentError, match=r"has shape \(4, 16\); it needs 3 to 5 axes"):
        to_blocked.blocked_shape((4, 16))
    with pytest.raises(ArgumentError, match=r"has shape \(4, 0, 2, 2\); it needs 3 to 5 axes"):
        to_blocked.blocked_shape((4, 0, 2, 2))
    x = Tensor("x", (1, 16, 4, 4), FP16)
    with pytest.raises(ArgumentError, match="x is fp16, y is fp32; both must be the same type"):
        TransData(to_blocked, x, Tensor("y", (1, 1, 1, 4, 4, 16), FP32, "out"))
    with pytest.raises(ArgumentError, match="x is int8, y is int8; both must be the same type of"):
        TransData(
            to_blocked, Tensor("x", x.shape, INT8), Tensor("y", (1, 1, 4, 4, 16), INT8, "out")
        )
    with pytest.raises(ArgumentError, match=r"y has shape \(1, 2, 4, 4, 16\), \(1, 1, 1, 4, 4, 16"):
        TransData(to_blocked, x, Tensor("y", (1, 2, 4, 4, 16), FP16, "out"))
