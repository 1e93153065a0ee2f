"""Conversions as the vendor's library tiles them: numbers, cores, tiles and moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import FP16, FP32, DType
from npusim.kernels.layout.library_maps import LibraryMaps
from npusim.kernels.layout.library_trans_data import LibraryGroups, LibraryTransData, split
from npusim.kernels.layout.trans_data import Conversion
from npusim.problem.layouts import from_fracz_3d, to_6hd, to_fracz_3d
from tests.kernels.test_trans_data import convert, patterns, plan_program
from tests.sampled import examples

DEVICES = ("tiny", "ascend910", "ascend910b2")


@examples(60)
@given(
    plain=st.tuples(
        *(st.integers(1, 20), st.integers(1, 40)),
        *(st.integers(1, 6), st.integers(1, 30), st.integers(1, 30)),
    ),
    c0=st.sampled_from((8, 16)),
    dtype=st.sampled_from((FP16, FP32)),
)
def test_maps_of_any_shape(plain: tuple[int, ...], c0: int, dtype: DType) -> None:
    if c0 == 8 and dtype is FP16:
        c0 = 16  # a block of 16-bit numbers has 16
    x = patterns(plain, dtype)
    blocked = to_6hd(x, c0)

    def run(kind: str, source: np.ndarray) -> np.ndarray:
        conversion = Conversion(kind=kind, c0=c0)
        return convert(conversion, source, plain, dtype, "ascend910b2", LibraryTransData)

    np.testing.assert_array_equal(run("to_blocked", x), blocked)
    np.testing.assert_array_equal(run("from_blocked", blocked), x)


@examples(60)
@given(
    plain=st.tuples(
        *(st.integers(1, 5), st.integers(1, 40)), *(st.integers(1, 60), st.integers(1, 60))
    ),
    c0=st.sampled_from((8, 16)),
    dtype=st.sampled_from((FP16, FP32)),
    device=st.sampled_from(DEVICES),
)
def test_images_of_any_shape(plain: tuple[int, ...], c0: int, dtype: DType, device: str) -> None:
    if c0 == 8 and dtype is FP16:
        c0 = 16  # a block of 16-bit numbers has 16
    n, c, h, w = plain
    deep = (n, c, 1, h, w)
    x = patterns(deep, dtype)
    blocked = to_6hd(x, c0)

    def run(kind: str, source: np.ndarray) -> np.ndarray:
        conversion = Conversion(kind=kind, c0=c0)
        return convert(conversion, source, deep, dtype, device, LibraryMaps)

    np.testing.assert_array_equal(run("to_blocked", x), blocked)
    np.testing.assert_array_equal(run("from_blocked", blocked), x)


def test_an_image_is_turned_twice_with_a_move_of_pieces_between() -> None:
    """One tile of 16 channels of 16x16 positions: 16 moves of 16 pieces of 32 B."""
    conversion = Conversion(kind="to_blocked", c0=16)
    plain = (1, 16, 1, 16, 16)
    program, *_ = plan_program(conversion, plain, FP16, "ascend910b2", kernel=LibraryMaps)
    (variant,) = program.variants
    names = [type(one).__name__ for one in program.templates[variant.template].instructions]
    moves = [name for name in names if name == "DataMove"]
    turns = [name for name in names if name == "VecTranspose"]
    assert len(moves) == 16 + 2
    assert len(turns) == 2


@examples(60)
@given(
    plain=st.tuples(
        *(st.integers(1, 70), st.integers(1, 40)),
        *(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    ),
    dtype=st.sampled_from((FP16, FP32)),
)
def test_weights_of_any_shape(plain: tuple[int, ...], dtype: DType) -> None:
    w = patterns(plain, dtype)
    fractals = to_fracz_3d(w, 1, 16)

    def run(kind: str, source: np.ndarray) -> np.ndarray:
        conversion = Conversion(kind=kind, c0=16)
        return convert(conversion, source, plain, dtype, "ascend910b2", LibraryTransData)

    back = run("from_fracz", fractals)
    np.testing.assert_array_equal(back, from_fracz_3d(fractals, w.shape, 1, 16))
    np.testing.assert_array_equal(back, w)
    made = run("to_fracz", w)  # into cleared memory in a call: filters that are missing stay
    np.testing.assert_array_equal(np.where(fractals != 0, made, 0), fractals)


@examples(60)
@given(
    groups=st.integers(1, 40),
    og=st.integers(1, 20),
    cg=st.integers(1, 20),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    dtype=st.sampled_from((FP16, FP32)),
)
def test_weights_in_groups(
    groups: int, og: int, cg: int, kernel: tuple[int, ...], dtype: DType
) -> None:
    plain = (groups * og, cg, *kernel)
    w = patterns(plain, dtype)
    fractals = to_fracz_3d(w, groups, 16)

    def run(kind: str, source: np.ndarray) -> np.ndarray:
        conversion = Conversion(kind=kind, c0=16, groups=groups)
        return convert(conversion, source, plain, dtype, "ascend910b2", LibraryGroups)

    np.testing.assert_array_equal(run("to_fracz", w), fractals)
    np.testing.assert_array_equal(run("from_fracz", fractals), w)


def test_depth_wise_weights_go_group_by_group() -> None:
    """64 groups of 9 taps: 576 steps there, 64 back."""
    plain = (64, 1, 3, 3)
    for kind, dtype, steps in (("to_fracz", FP16, 576), ("from_fracz", FP32, 64)):
        conversion = Conversion(kind=kind, c0=16, groups=64)
        program, *_ = plan_program(conversion, plain, dtype, "ascend910b2", kernel=LibraryGroups)
        assert sum(len(core.variants) for core in program.cores) == steps


def test_the_axis_that_fills_cores_best_is_split() -> None:
    assert split((2, 4, 3), 48) == (1, 1)
    assert split((2, 3, 7), 48) == (2, 1)
    assert split((47, 48, 49), 48) == (1, 1)
    assert split((96, 48, 1), 48) == (0, 2)
    assert split((3, 3, 3), 48) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "plain", "dtype", "cores", "tiles", "stores"),
    [
        ("to_blocked", (2, 64, 8, 32, 32), FP16, 4, 6, 56),
        ("to_blocked", (2, 33, 17, 33, 33), FP16, 7, 6, 108),
        ("to_blocked", (2, 128, 16, 64, 64), FP16, 22, 16, 592),
        ("from_blocked", (2, 128, 16, 64, 64), FP16, 22, 16, 352),
        ("from_fracz", (128, 64, 3, 3, 3), FP32, 8, 2, 16),
        ("from_fracz", (256, 128, 5, 5, 5), FP32, 16, 16, 256 * 16),
    ],
)
def test_cores_tiles_and_stores_are_those_of_the_rule(
    kind: str, plain: tuple[int, ...], dtype: DType, cores: int, tiles: int, stores: int
) -> None:
    """Worked by hand from the vendor's tiling functions, with 48 cores, all of them launched."""
    conversion = Conversion(kind=kind, c0=16)
    program, *_ = plan_program(conversion, plain, dtype, "ascend910b2", kernel=LibraryTransData)
    written = [
        sum(
            any(region.memory == "GM" for region in one.writes())
            for one in program.templates[variant.template].instructions
        )
        for variant in program.variants
    ]
    stored = [[written[variant] for variant in core.variants] for core in program.cores]
    busy = [core for core in stored if any(core)]
    assert (len(program.working), len(busy)) == (48, cores)
    assert max(len(core) for core in busy) == tiles
    assert sum(map(sum, stored)) == stores
