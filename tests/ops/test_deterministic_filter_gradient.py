"""The filter gradient with its split accumulation reduced in fixed order, and orders of K."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError
from npusim.kernels.filter_gradient.filter_gradient import Tiling
from npusim.problem.layouts import fracz_grouped_to_oihw, to_5hd
from npusim.problem.reference import conv_filter_grad, relative_error
from tests.sampled import examples

SIZES: dict[str, Any] = {"base_m": 16, "base_n": 48, "base_k": 32, "slab_k": 33}


def gradient(
    *, groups: int = 2, batch: int = 3, device: str = "tiny", tiling: Any = "auto", **options: Any
) -> tuple[npusim.Result, float]:
    """(result, error against float64) of a 3x3 layer of 40 -> 24 channels on 9 x 11."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((batch, 40, 9, 11)).astype(np.float16)
    dy = rng.standard_normal((batch, 24, 9, 11)).astype(np.float16)
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4, "groups": groups}
    sizes = [24, 40 // groups, 3, 3]
    r = npusim.ops.conv2d_backprop_filter(
        to_5hd(x, 16), to_5hd(dy, 16), sizes, para, device=device, tiling=tiling, **options
    )
    assert r.grad_weight is not None
    got = fracz_grouped_to_oihw(r.grad_weight, 24, 40 // groups, (3, 3), groups, 16)
    pads = ((1, 1), (1, 1))
    want = conv_filter_grad(x, dy, (3, 3), (1, 1), pads, (1, 1), groups)
    return r, relative_error(got, want)


@pytest.mark.parametrize("device", ["tiny", "ascend910", "ascend910b2"])
def test_parts_are_summed_by_a_kernel_of_their_own(device: str) -> None:
    tiling = Tiling(**SIZES, k_parts=4)
    atomic, _ = gradient(device=device, tiling=tiling)
    fixed, error = gradient(device=device, tiling=tiling, deterministic=True)
    assert [run.name for run in atomic.runs] == [
        *("mem_set", "conv_backprop_filter", "clear_blocks")
    ]
    assert [run.name for run in fixed.runs] == [
        *("conv_backprop_filter", "sum_parts", "clear_blocks")
    ]
    assert error < 1e-6
    assert fixed.grad_weight is not None
    assert fixed.workspace_bytes == 4 * fixed.grad_weight.nbytes
    # Parts are read once each on top of what the product reads.
    read = sum(row.bytes for row in fixed.runs[1].traffic if row.src == "GM")
    assert read == fixed.workspace_bytes


@examples(25)
@given(
    st.integers(1, 6), st.booleans(), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3),
    st.sampled_from(["0", "0-2", "0-3"]),
)  # fmt: skip
def test_any_split_matches_float64(
    parts: int, fixed: bool, groups: int, batch: int, cores: str
) -> None:
    tiling = Tiling(**SIZES, k_parts=parts, deterministic=fixed)
    _, error = gradient(groups=groups, batch=batch, tiling=tiling, cores=cores)
    assert error < 1e-5


def test_the_cores_do_not_change_a_bit_of_a_fixed_order() -> None:
    tiling = Tiling(**SIZES, k_parts=5, deterministic=True)
    one, four = (gradient(tiling=tiling, cores=cores)[0].grad_weight for cores in ("0", "0-3"))
    assert one is not None
    assert four is not None
    assert np.array_equal(one, four)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ArgumentError, match="keeps is 'dw'; it is 'dy' or 'x'"):
        Tiling(**SIZES, keeps="dw")


def test_a_search_is_not_made_and_that_is_said() -> None:
    x = npusim.spec((2, 1, 8, 8, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    result = npusim.ops.conv2d_backprop_filter(
        x, x, [16, 16, 3, 3], para, device="tiny", tiling="tuned", deterministic=True
    )
    assert any("deterministic, so its tiling is 'auto'" in note for note in result.notes)
