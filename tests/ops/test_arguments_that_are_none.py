"""An explicit None for every optional argument of every operator: as if left out, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.compat.tbe import dsl, tvm
from npusim.limits.forms import FORMS
from npusim.ops import CARDS, OPERATORS

pytestmark = pytest.mark.compiled


def spec(*shape: int, dtype: str = "fp16") -> Spec:
    return npusim.spec(shape, dtype)


PLANE = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
VOLUME = {"strides": [1, 1, 1], "pads": [1] * 6, "dilations": [1] * 5}
MAP, MAP3 = spec(1, 1, 6, 6, 16), spec(1, 3, 1, 6, 6, 16)
W, W3 = spec(9, 1, 16, 16), spec(27, 1, 16, 16)
SIZES, SIZES3, DEEP = [16, 16, 3, 3], [16, 16, 3, 3, 3], [16, 1, 3, 3]
PARAM = [1, 6, 6, 16, 1, 4, 4, 16, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
NHWC, SMALL = spec(1, 6, 6, 16, dtype="fp32"), spec(1, 4, 4, 16, dtype="fp32")
IMAGE = spec(1, 16, 6, 6)

#: A small call of every operator.
CALLS: dict[str, tuple[Any, ...]] = {
    "conv2d_backprop_filter": (MAP, MAP, SIZES, PLANE),
    "conv2d_backprop_input": (W, MAP, SIZES, [1, 16, 6, 6], PLANE),
    "conv3d_backprop_filter": (MAP3, MAP3, SIZES3, VOLUME),
    "conv3d_backprop_input": (W3, MAP3, SIZES3, [1, 3, 6, 6, 16], VOLUME | {"strides": [1] * 5}),
    "conv_grad_filter": (SMALL, NHWC, PARAM),
    "conv_grad_input": (SMALL, spec(1, 144, 16, dtype="fp32"), PARAM),
    "conv_tbc_backward": (spec(4, 2, 16), spec(6, 2, 16), spec(3, 16, 16), spec(16)),
    "convolution": (IMAGE, spec(16, 16, 3, 3)),
    "convolution_backward": (spec(1, 16, 4, 4), IMAGE, spec(16, 16, 3, 3)),
    "deconv_grad_filter": (spec(1, 8, 8, 16, dtype="fp32"), NHWC, [*PARAM[:5], 8, 8, *PARAM[7:]]),
    "deconv_grad_input": (
        *(spec(1, 8, 8, 16, dtype="fp32"), spec(1, 144, 16, dtype="fp32")),
        [*PARAM[:5], 8, 8, *PARAM[7:]],
    ),
    "depthwise_conv2d_backprop_filter": (MAP, MAP, DEEP, PLANE),
    "depthwise_conv2d_backprop_input": (W, MAP, DEEP, [1, 16, 6, 6], PLANE),
    "im2col": (IMAGE, [3, 3], [1, 1], [0, 0], [1, 1]),
    "im2col_backward": (spec(1, 144, 16), [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]),
    "matmul": (spec(16, 16), spec(16, 16)),
}

#: Keywords whose None means something of its own, which their documentation says.
NONE_IS_A_VALUE = {"cores", "core_mask", "timeline", "progress", "bias", "bias_sizes", "out_dtype"}


def called(name: str, *changed: Any, **options: Any) -> npusim.Result:
    device = CARDS[name].device or "ascend910"
    return OPERATORS[name](*(changed or CALLS[name]), **({"device": device} | options))  # type: ignore[no-any-return]


def test_every_operator_has_a_call() -> None:
    assert set(CALLS) == set(OPERATORS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_keywords(name: str) -> None:
    """None is the default, or is refused with the name of the keyword."""
    own = inspect.signature(OPERATORS[name]).parameters.values()
    keywords = {one.name for one in own if one.default is not one.empty}
    keywords |= {one.name for one in fields(Options)} - set(CARDS[name].without)
    usual = called(name, timeline=False).cycles
    for keyword in sorted(keywords):
        given = {"timeline": False} | {keyword: None}
        if keyword in NONE_IS_A_VALUE:
            assert called(name, **given).cycles == usual, keyword
        else:
            with pytest.raises(ArgumentError, match=rf"\b{keyword}\b.* (None|null)"):
                called(name, **given)


PARA_DICTS = sorted(name for name in CALLS if isinstance(CALLS[name][-1], dict))


def optional_of(name: str) -> list[str]:
    form = FORMS[name]
    return ["res_dtype", "kernel_name", *form.optional]


@pytest.mark.parametrize("name", PARA_DICTS)
def test_parts_of_a_para_dict(name: str) -> None:
    """Optional parts are as if left out; the others are refused by name."""
    *lists, para = CALLS[name]
    usual = called(name, timeline=False).cycles
    for part in optional_of(name):
        given = para | {part: None}
        assert called(name, *lists, given, timeline=False).cycles == usual, part
    for part in para:
        with pytest.raises(ArgumentError, match=f"{name}: {part} is (null|None); "):
            called(name, *lists, para | {part: None})


@pytest.mark.parametrize("name", PARA_DICTS)
def test_lists_beside_a_para_dict(name: str) -> None:
    call = CALLS[name]
    for place, value in enumerate(call):
        if isinstance(value, list):
            with pytest.raises(ArgumentError, match=r"_sizes? is (null|None); "):
                called(name, *call[:place], None, *call[place + 1 :])


@pytest.mark.parametrize("name", PARA_DICTS)
def test_the_tensor_compilers_own_functions(name: str) -> None:
    function: Callable[..., Any] = getattr(dsl, name)
    (one, other), (*lists, para) = CALLS[name][:2], CALLS[name][2:]
    read = [
        tvm.placeholder(x.shape, name=n, dtype="float16") for x, n in ((one, "a"), (other, "b"))
    ]
    group_dict: dict[str, Any] = {}
    if name == "conv3d_backprop_input":  # the one function that must be told
        with pytest.raises(ArgumentError, match="group_dict is null; "):
            function(*read, *lists, para | {"group_dict": None})
        keys = ("real_g", "cin1_g", "cout_g", "cin_ori", "cout_ori", "groups", "mag_factor")
        group_dict = {"group_dict": dict.fromkeys(keys, 1) | {"cin_ori": 16, "cout_ori": 16}}
        group_dict["group_dict"]["cout_g"] = 16
    usual = function(*read, *lists, para | group_dict)
    for part in optional_of(name):
        if part not in group_dict:
            same = function(*read, *lists, para | group_dict | {part: None})
            assert (same.shape, same.dtype, same.name) == (usual.shape, usual.dtype, usual.name)
