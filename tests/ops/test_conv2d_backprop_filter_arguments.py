"""What conv2d_backprop_filter refuses, and what it says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError, CapacityError
from npusim.kernels.filter_gradient.filter_gradient import Tiling
from npusim.kernels.matmul.matmul import Tiling as MatmulTiling
from npusim.machine.device.catalog import load_device
from tests.tables import rows

#: A good call: a 3x3 filter on a 6x6 map of 20 -> 36 channels in 4 groups.
X, DY = np.zeros((2, 2, 6, 6, 16), np.float16), np.zeros((2, 3, 6, 6, 16), np.float16)
SIZES = [36, 5, 3, 3]
PARA: dict[str, Any] = {
    "strides": [1, 1],
    "padding": [1, 1, 1, 1],
    "dilations": [1, 1, 1, 1],
    "groups": 4,
}


def call(
    x: Any = X, dy: Any = DY, sizes: Any = SIZES, drop: str = "", device: Any = "tiny",
    options: dict[str, Any] | None = None, **para: Any,
) -> npusim.Result:  # fmt: skip
    changed = {k: v for k, v in {**PARA, **para}.items() if k != drop}
    return npusim.ops.conv2d_backprop_filter(
        x, dy, sizes, changed, device=device, **(options or {})
    )


def test_the_good_call_is_good() -> None:
    assert call(res_dtype="float32", kernel_name="anything").output_names == ("grad_weight",)
    assert call(res_dtype=None, kernel_name=None).cycles == call().cycles
    assert call(x=npusim.spec(X.shape, "fp16")).outputs is None
    assert call(dy=npusim.spec(DY.shape, "fp16")).outputs is None


#: Forms of arguments that only Python has, which no entry of tests/problem/limits covers.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown dtype": ({"x": X.astype(np.float64)}, "input_x.dtype is float64; "),
    "sizes float": ({"sizes": [36, 5, 3.0, 3]}, "filter_sizes is (36, 5, 3.0, 3), no integer; "),
    "sizes text": ({"sizes": "36533"}, "filter_sizes is 36533; "),
    "null strides": ({"strides": None}, "strides is null; "),
    "null sizes": ({"sizes": None}, "filter_sizes is null; "),
    "groups as bool": ({"groups": True}, "groups is yes; "),
    "unknown key": (
        {"stride": [1, 1]}, "para_dict has the unknown key 'stride'; did you mean 'strides'?"
    ),
    "missing strides": ({"drop": "strides"}, "para_dict lacks ['strides']; it needs strides, pa"),
    "missing padding": ({"drop": "padding"}, "para_dict lacks ['padding']"),
    "missing dilations": ({"drop": "dilations"}, "para_dict lacks ['dilations']"),
    "tiling": (
        {"options": {"tiling": "best"}},
        "tiling is 'best'; it must be 'auto', 'library', 'production', a "
        "npusim.kernels.vendor.cann.CannTiling or a npusim.kernels.filter_gradient.tiling.Tiling",
    ),
    "another kernel's tiling": (
        {"options": {"tiling": MatmulTiling(base_m=16, base_n=16, base_k=16)}},
        "it must be 'auto', 'library', 'production', a npusim.kernels.vendor.cann.CannTiling or a "
        "npusim.kernels.filter_gradient.tiling.Tiling",
    ),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED)
def test_bad_arguments_are_refused_by_name(refused: str) -> None:
    changes, message = REFUSED[refused]
    with pytest.raises(ArgumentError, match=re.escape(message)):
        call(**changes)


@rows("tests/data/mistakes/ops.yaml", "bad_tilings_are_refused", "field, value, message")
def test_bad_tilings_are_refused(field: str, value: int, message: str) -> None:
    sizes: dict[str, Any] = {"base_m": 16, "base_n": 16, "base_k": 16, "slab_k": 16, field: value}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        Tiling(**sizes)


def test_a_tiling_that_does_not_fit_shows_the_arithmetic_and_the_kernel_line() -> None:
    tiling = Tiling(base_m=64, base_n=144, base_k=256, slab_k=4096)
    match = r"^filter_gradient\.py:\d+: tiny: buffer dy_l0a: L0A holds 8192 B but dy_l0a 2x"
    with pytest.raises(CapacityError, match=match):
        call(options={"tiling": tiling})


def test_a_map_no_tiling_fits_says_what_it_needs() -> None:
    small = load_device("tiny").replace("memories.L1.size", "64B")
    with pytest.raises(CapacityError, match=r"tiny: L1 holds 64 B, .* no tiling fits"):
        call(device=small)
