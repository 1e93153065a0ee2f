"""The DSP library's call form: the documented programs, arrays in place, devices, refusals."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.compat.ftdsp import (
    fp_conv_grad_filter_p,
    fp_deconv_grad_filter_p,
    fp_deconv_grad_filter_s,
    hp_deconv_grad_filter_s,
    using,
)
from npusim.problem.reference import conv_filter_grad, relative_error

Array = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).parent / "examples"

#: A transposed convolution of 6 -> 4 channels in 2 groups, 3x2 kernel: 4x3 in, 9x5 out.
PARAM = [2, 4, 3, 6, 2, 9, 5, 4, 3, 2, 2, 2, 0, 1, 1, 2, 2, 0x10050000, 0, 0]
X_SHAPE, DY_SHAPE, DW_SHAPE = (2, 4, 3, 6), (2, 9, 5, 4), (2, 2 * 3 * 2, 3)


def operands(kind: Any, seed: int = 1) -> tuple[Array, Array, Array]:
    """dy, x (small whole numbers, so that sums are exact) and a dw that holds something else."""
    rng = np.random.default_rng(seed)
    dy, x = (rng.integers(-3, 4, shape).astype(kind) for shape in (DY_SHAPE, X_SHAPE))
    return dy, x, np.full(DW_SHAPE, 77, kind)


def reference(dy: Array, x: Array) -> Array:
    """dw of ``PARAM``: of the convolution from dy to x, with dy as its feature map."""
    feature, grad = dy.transpose(0, 3, 1, 2), x.transpose(0, 3, 1, 2)
    dw = conv_filter_grad(feature, grad, (3, 2), (2, 2), ((0, 0), (1, 1)), (1, 2), 2)
    in_c, ocg, kh, kw = dw.shape  # (in_c, out_c / group, ...)
    return dw.reshape(2, in_c // 2, ocg * kh * kw).transpose(0, 2, 1)


def example(form: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"ftdsp_deconv_grad_filter_{form}.py"))


@pytest.mark.parametrize(("form", "cores"), [("s", 4), ("p", 1)])
def test_the_documented_programs_run(form: str, cores: int) -> None:
    names = example(form)
    x = names["x"].reshape(16, 4, 4, 4).transpose(0, 3, 1, 2)
    dy = names["dy"].reshape(16, 4, 4, 4).transpose(0, 3, 1, 2)
    beyond = np.pad(dy, ((0, 0), (0, 0), (0, 3), (0, 3)))  # reads past dy are zero
    dw = conv_filter_grad(beyond, x, (4, 4), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    want = dw.reshape(4, 64).T  # rows (oc, kh, kw), columns ic
    assert relative_error(names["dw"].reshape(64, 4), want) < 1e-6
    assert names["result"].device.name == "ft78ne"
    assert [run.cores for run in names["result"].runs] == [cores]


@pytest.mark.parametrize("entries", [18, 19])
def test_the_entries_that_nothing_reads_may_be_missing(entries: int) -> None:
    dy, x, dw = operands(np.float32)
    fp_deconv_grad_filter_p(dy, x, dw, list(np.array(PARAM[:entries])))
    np.testing.assert_array_equal(dw, reference(dy, x))


def test_a_strided_dw_is_written_too() -> None:
    dy, x, _ = operands(np.float32)
    wide = np.zeros((*DW_SHAPE[:2], 6), np.float32)
    fp_deconv_grad_filter_s(dy, x, wide[:, :, ::2], PARAM, 0b1)
    np.testing.assert_array_equal(wide[:, :, ::2], reference(dy, x))
    assert not wide[:, :, 1::2].any()


def test_the_device_is_chosen_by_block_or_keyword() -> None:
    dy, x, dw = operands(np.float32)
    with using("mt7004"):
        assert fp_deconv_grad_filter_s(dy, x, dw, PARAM, 1).device.name == "mt7004"
        named = fp_deconv_grad_filter_s(dy, x, dw, PARAM, 1, device="ft78ne")
        assert named.device.name == "ft78ne"
        with using(npusim.load_device("ft78ne")):
            assert fp_deconv_grad_filter_s(dy, x, dw, PARAM, 1).device.name == "ft78ne"
    assert fp_deconv_grad_filter_s(dy, x, dw, PARAM, 1).device.name == "ft78ne"


def test_specs_make_it_timing_only() -> None:
    dy, x, dw = operands(np.float32)
    timed = fp_deconv_grad_filter_s(dy, npusim.spec((X_SHAPE), "fp32"), None, PARAM, 0b11)
    full = fp_deconv_grad_filter_s(dy, x, dw, PARAM, 0b11)
    assert timed.outputs is None
    assert timed.cycles == full.cycles


def changed(index: int, value: Any) -> list[Any]:
    param: list[Any] = list(PARAM)
    param[index] = value
    return param


DY, X, DW = operands(np.float32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "half for fp": ({"dy": DY.astype(np.float16)}, "dy is fp16; fp_ takes float32: convert it"),
    "dw type": ({"dw": DW.astype(np.float16)}, "dw is fp16; fp_ takes float32"),
    "x shape": ({"x": X.reshape(2, 3, 4, 6)}, "x.shape is (2, 3, 4, 6): param[0] to param[3]"),
    "dw shape": ({"dw": DW.reshape(12, 2, 3)}, "dw has shape (12, 2, 3); param makes it (2, 12"),
    "dw is a list": ({"dw": [0.0] * 72}, "dw is a list; it must be a NumPy array that can be"),
    "no dw": ({"dw": None}, "dw is a NoneType; it must be a NumPy array"),
    "flat": ({"param": changed(1, 0), "x": X.reshape(-1)}, "param[1] in_h is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_calls_are_refused_before_dw_is_touched(case: str) -> None:
    changes, message = REFUSED[case]
    given = {"dy": DY, "x": X, "dw": DW, "param": PARAM, "mask": 0b1, **changes}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        fp_deconv_grad_filter_s(*given.values())
    assert (DW == 77).all()


def test_a_read_only_dw_is_refused() -> None:
    dy, x, dw = operands(np.float32)
    dw.flags.writeable = False
    with pytest.raises(ArgumentError, match="dw is a read-only array; it must be a NumPy array"):
        fp_deconv_grad_filter_p(dy, x, dw, PARAM)


def test_the_half_form_does_not_exist_on_ft78ne() -> None:
    dy, x, dw = operands(np.float16)
    with pytest.raises(ArgumentError, match="ft78ne"), using("ft78ne"):
        hp_deconv_grad_filter_s(dy, x, dw, PARAM, 0b1)
    assert hp_deconv_grad_filter_s(dy, x, dw, PARAM, 0b1).device.name == "mt7004"  # block left


def test_a_mask_of_the_private_form_and_an_address_are_refused_by_name() -> None:
    arrays: list[Any] = [np.zeros((1, 4, 4, 4), np.float32) for _ in range(3)]
    told = r"fp_conv_grad_filter_p: too many positional .* the private form has no core_mask"
    mask: Any = [[], 0b1]
    with pytest.raises(ArgumentError, match=told):
        fp_conv_grad_filter_p(arrays[0], arrays[1], arrays[2], *mask)
    address: Any = 0x10010000
    with pytest.raises(ArgumentError, match="dy is the number 0x10010000; pass the NumPy array"):
        fp_conv_grad_filter_p(address, arrays[1], arrays[2], [])
