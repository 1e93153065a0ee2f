"""Constraint tables of the smaller operators, how products inherit them, and their form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.device.catalog import load_device
from npusim.layout.groups import group_dict, group_plan
from npusim.limits.facts import DERIVE, FACTS, PARAM
from npusim.limits.forms import FORMS, derive
from npusim.limits.table import STAGES, check, documented_operators, load_rules
from tests.limits.entrances import able, refused

Facts = dict[str, Any]

INVALID, NULL = 161002, 161001


def im2col(**changes: Any) -> Facts:
    """The worked example: 2x2 windows of a 3x3 image, four columns of four."""
    facts: Facts = {
        "grad_output.shape": (1, 4, 4),
        "grad_output.dtype": "fp16",
        "input_size": (3, 3),
        "kernel_size": (2, 2),
        "dilation": (1, 1),
        "padding": (0, 0),
        "stride": (1, 1),
    }
    return facts | changes


def tbe_filter(**changes: Any) -> Facts:
    """The example of the documentation: a 1x1 filter of 16 channels over a 7x7 map."""
    facts: Facts = {
        "input_x.shape": (1, 1, 7, 7, 16),
        "out_backprop.shape": (1, 1, 7, 7, 16),
        "input_x.dtype": "fp16",
        "out_backprop.dtype": "fp16",
        "filter_sizes": (16, 16, 1, 1),
        "strides": (1, 1),
        "padding": (0, 0, 0, 0),
        "dilations": (1, 1, 1, 1),
        "groups": 1,
        "res_dtype": "fp32",
    }
    return facts | changes


def tbe_input(**changes: Any) -> Facts:
    """The example of the documentation: 256 -> 128 channels, kernel and stride 2."""
    facts: Facts = {
        "filter.shape": (64, 16, 16, 16),
        "filter.dtype": "fp16",
        "out_backprop.shape": (1, 2, 16, 15, 22, 16),
        "out_backprop.dtype": "fp16",
        "filter_size": (256, 128, 2, 2, 2),
        "input_size": (1, 4, 30, 44, 128),
        "strides": (1, 2, 2, 2, 1),
        "pads": (0, 0, 0, 0, 0, 0),
        "dilations": (1, 1, 1, 1, 1),
        "res_dtype": "fp16",
        "group_dict": group_dict(group_plan(128, 256, 1, 16)),
    }
    return facts | changes


def small_input(size: tuple[int, int, int], kernel: Any, strides: Any, /, **changes: Any) -> Facts:
    """A call of 16 -> 16 channels without padding whose sizes fit together."""
    out = [(x - k) // s + 1 for x, k, s in zip(size, kernel, strides, strict=True)]
    return tbe_input(
        **{
            "filter.shape": (kernel[0] * kernel[1] * kernel[2], 1, 16, 16),
            "out_backprop.shape": (1, out[0], 1, out[1], out[2], 16),
            "filter_size": (16, 16, *kernel),
            "input_size": (1, *size, 16),
            "strides": (1, *strides, 1),
            "group_dict": group_dict(group_plan(16, 16, 1, 16)),
        }
        | changes,
    )


def deconv(entries: dict[int, int] | None = None, /, **changes: Any) -> Facts:
    """The example of the documentation: 4x4 maps and filter, 16 images, four channels."""
    param = [16, 4, 4, 4, 16, 4, 4, 4, 4, 4, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    for position, value in (entries or {}).items():
        param[position] = value
    facts: Facts = {
        "dtype": "fp32",
        "x.shape": tuple(param[:4]),
        "dy.shape": tuple(param[4:8]),
        "param": tuple(param),
        "storage": "shared",
        "core_mask": 1,
    }
    return facts | changes


@pytest.mark.parametrize("device", ["ascend910", "ascend910b"])
@pytest.mark.parametrize(
    ("change", "parameter", "status"),
    [
        *(
            ({name: None}, name, NULL)
            for name in ("input_size", "kernel_size", "dilation", "padding", "stride")
        ),
        ({"grad_output.shape": None}, "grad_output.shape", NULL),
        ({"out.shape": None}, "out.shape", NULL),
        *(
            ({name: (1, 1, 1)}, name, INVALID)
            for name in ("input_size", "kernel_size", "dilation", "padding", "stride")
        ),
        *(
            ({name: (0, 1)}, name, INVALID)
            for name in ("input_size", "kernel_size", "dilation", "stride")
        ),
        ({"padding": (-1, 0)}, "padding", INVALID),
        ({"grad_output.dtype": "bf16"}, "grad_output.dtype", INVALID),
        ({"out.dtype": "int32"}, "out.dtype", INVALID),
        ({"grad_output.shape": (4,)}, "grad_output.shape", INVALID),
        ({"grad_output.shape": (1, 5, 4)}, "grad_output.shape", INVALID),
        ({"grad_output.shape": (1, 4, 5)}, "grad_output.shape", INVALID),
        ({"dilation": (3, 1)}, "grad_output.shape", INVALID),
        ({"out.shape": (1, 1, 3, 4)}, "out.shape", INVALID),
    ],
)
def test_im2col_refusals(device: str, change: Facts, parameter: str, status: int) -> None:
    refused("im2col_backward", im2col(**change), device, parameter, status)


def test_im2col_passes() -> None:
    device = load_device("ascend910")
    passing: list[Facts] = [
        {},
        {"out.shape": (1, 1, 3, 3), "out.dtype": "fp32"},
        {"grad_output.shape": (4, 4), "out.shape": (1, 3, 3)},
        {"grad_output.shape": (0, 5, 7)},  # empty: nothing is written
        {"stride": (2, 2), "padding": (1, 1)},
    ]
    for change in passing:
        assert check("im2col_backward", im2col(**change), device) == []


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"input_x.dtype": "fp32"}, "input_x.dtype"),
        ({"out_backprop.dtype": "bf16"}, "out_backprop.dtype"),
        ({"res_dtype": "fp16"}, "res_dtype"),
        ({"input_x.shape": (1, 16, 7, 7)}, "input_x.shape"),
        ({"input_x.shape": (1, 2, 7, 7, 8)}, "input_x.shape"),
        ({"out_backprop.shape": (2, 1, 7, 7, 16)}, "out_backprop.shape"),
        ({"filter_sizes": (16, 16, 1)}, "filter_sizes"),
        ({"filter_sizes": (16, 16, 256, 1)}, "filter_sizes"),
        ({"filter_sizes": (16, 16, 0, 1)}, "filter_sizes"),
        ({"strides": (1, 64)}, "strides"),
        ({"strides": (0, 1)}, "strides"),
        ({"strides": (1,)}, "strides"),
        ({"padding": (0, 0)}, "padding"),
        ({"padding": (0, 0, 0, 256)}, "padding"),
        ({"padding": (0, -1, 0, 0)}, "padding"),
        ({"dilations": (1, 2, 1, 1)}, "dilations"),
        ({"dilations": (1, 1, 256, 1)}, "dilations"),
        ({"dilations": (1, 1)}, "dilations"),
        ({"input_x.shape": (1, 1, 200_001, 7, 16)}, "input_x.shape"),
        ({"input_x.shape": (1, 1, 2, 4097, 16)}, "input_x.shape"),
        ({"groups": 3}, "groups"),
        ({"groups": 0}, "groups"),
        ({"groups": 2}, "input_x.shape"),
        ({"out_backprop.shape": (1, 1, 7, 6, 16)}, "out_backprop.shape"),
        ({"filter_sizes": (16, 16, 8, 1)}, "out_backprop.shape"),
    ],
)
def test_filter_refusals(device: str, change: Facts, parameter: str) -> None:
    refused("conv2d_backprop_filter", tbe_filter(**change), device, parameter, None)


def test_filter_maps_of_one_row_may_be_wide() -> None:
    sizes = {"input_x.shape": (1, 1, 1, 5000, 16), "out_backprop.shape": (1, 1, 1, 5000, 16)}
    assert check("conv2d_backprop_filter", tbe_filter(**sizes), load_device("ascend910")) == []
    assert check("conv2d_backprop_filter", tbe_filter(), load_device("ascend310")) == []


WRONG_GROUPS = {**group_dict(group_plan(128, 256, 1, 16)), "cin1_g": 9}


@pytest.mark.parametrize("device", ["ascend310", "ascend910"])
@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        (tbe_input(**{"filter.dtype": "fp32"}), "filter.dtype"),
        (tbe_input(**{"out_backprop.dtype": "fp32"}), "out_backprop.dtype"),
        (tbe_input(res_dtype="bf16"), "res_dtype"),
        (tbe_input(**{"out_backprop.shape": (2, 16, 15, 22, 16)}), "out_backprop.shape"),
        (tbe_input(**{"out_backprop.shape": (1, 2, 32, 15, 22, 8)}), "out_backprop.shape"),
        (tbe_input(**{"out_backprop.shape": (2, 2, 16, 15, 22, 16)}), "out_backprop.shape"),
        (tbe_input(**{"out_backprop.shape": (1, 2, 16, 15, 21, 16)}), "out_backprop.shape"),
        (tbe_input(**{"out_backprop.shape": (1, 2, 8, 15, 22, 16)}), "filter_size"),
        (tbe_input(**{"filter.shape": (64, 16, 16)}), "filter.shape"),
        (tbe_input(**{"filter.shape": (32, 32, 16, 16)}), "filter.shape"),
        (tbe_input(filter_size=(256, 128, 2, 2)), "filter_size"),
        (tbe_input(filter_size=(256, 100, 2, 2, 2)), "filter_size"),
        (tbe_input(input_size=(1, 4, 30, 44)), "input_size"),
        (tbe_input(strides=(2, 2, 2)), "strides"),
        (tbe_input(strides=(2, 2, 2, 2, 1)), "strides"),
        (tbe_input(strides=(1, 0, 2, 2, 1)), "strides"),
        (tbe_input(pads=(0, 0, 0, 0)), "pads"),
        (tbe_input(pads=(0, 0, -1, 0, 0, 0)), "pads"),
        (tbe_input(dilations=(1, 2, 1, 1, 1)), "dilations"),
        (tbe_input(dilations=(1, 1, 256, 1, 1)), "dilations"),
        (tbe_input(dilations=(1, 1, 1, 1, 2)), "dilations"),
        (tbe_input(group_dict=None), "group_dict"),
        (tbe_input(group_dict={"real_g": 1}), "group_dict"),
        (tbe_input(group_dict=WRONG_GROUPS), "group_dict"),
        (small_input((4, 64, 30), (1, 1, 1), (1, 64, 1)), "strides"),
        (small_input((4, 40, 40), (1, 1, 1), (1, 16, 17)), "strides"),
        (small_input((9, 40, 40), (1, 1, 1), (3, 11, 11)), "strides"),
        (small_input((129, 4, 4), (129, 1, 1), (1, 1, 1)), "filter_size"),
        (small_input((4, 256, 4), (1, 256, 1), (1, 1, 1)), "filter_size"),
        (small_input((4, 20, 20), (1, 16, 17), (1, 1, 1)), "filter_size"),
        (small_input((4, 20, 20), (3, 11, 11), (1, 1, 1)), "filter_size"),
        (small_input((1, 1, 4097), (1, 1, 1), (1, 1, 1)), "input_size"),
        (small_input((1, 1, 4096), (1, 1, 1), (1, 1, 3)), "out_backprop.shape"),
        (small_input((1, 9, 9), (1, 1, 1), (1, 1, 1), **{
            "pads": (0, 0, 1, 0, 0, 0), "out_backprop.shape": (1, 1, 1, 10, 9, 16)}), "pads"),
    ],
)  # fmt: skip
def test_input_refusals(device: str, facts: Facts, parameter: str) -> None:
    refused("conv3d_backprop_input", facts, device, parameter, None)


def test_input_example_passes() -> None:
    for device in ("ascend310", "ascend910"):
        assert check("conv3d_backprop_input", tbe_input(), load_device(device)) == []
    good = small_input((4, 20, 20), (1, 16, 16), (1, 1, 1))
    assert check("conv3d_backprop_input", good, load_device("ascend910")) == []


def deconv_on(product: str, facts: Facts, rules: str = "documented") -> list[str]:
    """Hold a DeconvGradFilter call against a product's table on any device (4 cores)."""
    return check("deconv_grad_filter", facts, replace(load_device("tiny"), product=product), rules)


@pytest.mark.parametrize("product", ["ft78ne", "mt7004"])
@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        (deconv(dtype="bf16"), "dtype"),
        (deconv(param=(1, 2, 3)), "param"),
        *((deconv({i: 0}), "param") for i in (*range(12), 14, 15, 16)),
        *((deconv({i: -1}), "param") for i in (12, 13)),
        (deconv({4: 8}), "param"),
        (deconv({16: 3}), "param"),
        (deconv({3: 6, 16: 4}), "param"),
        (deconv(**{"x.shape": (16, 4, 4, 5)}), "x.shape"),
        (deconv(**{"dy.shape": (16, 7, 7, 4)}), "dy.shape"),
        (deconv(core_mask=0), "core_mask"),
        (deconv(core_mask=0b10000), "core_mask"),
        (deconv(core_mask=1, storage="private"), "core_mask"),
    ],
)
def test_deconv_refusals(product: str, facts: Facts, parameter: str) -> None:
    device = replace(load_device("tiny"), product=product)
    refused("deconv_grad_filter", facts, device, parameter, None)


def test_half_exists_on_the_mt7004_only() -> None:
    assert deconv_on("mt7004", deconv(dtype="fp16")) == []
    with pytest.raises(RuleError, match="dtype is fp16; FT78NE permits fp32"):
        deconv_on("ft78ne", deconv(dtype="fp16"))
    assert deconv_on("ft78ne", deconv(core_mask=None)) == []  # all cores
    # any output size is taken as given, and a private call takes no mask
    assert deconv_on("ft78ne", deconv({5: 9, 6: 1})) == []
    assert deconv_on("ft78ne", deconv(storage="private", core_mask=None)) == []


@pytest.mark.parametrize(
    ("device", "operator", "product"),
    [
        ("ascend310", "convolution_backward", "310p"),
        ("ascend310", "conv2d_backprop_filter", "310"),
        ("ascend310", "im2col_backward", "910"),
        ("ascend310p", "convolution_backward", "310p"),
        ("ascend310p", "conv3d_backprop_input", "310"),
        ("ascend310p", "im2col_backward", "910"),
        ("ascend910", "conv3d_backprop_input", "910"),
        ("ascend910b3", "im2col_backward", "a2"),
        ("ascend910b4", "conv2d_backprop_filter", "910"),
        ("ascend910c", "convolution_backward", "a2"),
        ("ascend950pr", "convolution_backward", "a2"),
        ("ascend950pr", "conv3d_backprop_input", "910"),
        ("ascend910b", "deconv_grad_filter", "mt7004"),
        ("tiny", "convolution_backward", "a2"),
        ("ft78ne", "deconv_grad_filter", "ft78ne"),
        ("mt7004", "deconv_grad_filter", "mt7004"),
        ("ft78ne", "convolution_backward", "a2"),
    ],
)
def test_the_nearest_relative_stands_in(device: str, operator: str, product: str) -> None:
    loaded = load_device(device)
    table = load_rules(loaded.product, operator)
    assert table.product == product
    assert bool(table.note) == (loaded.product != product)
    if table.note:
        assert table.product_title in table.note


def test_inherited_limits_are_noted() -> None:
    device = load_device("ascend950pr")
    (note,) = check("im2col_backward", im2col(), device)
    assert note == (
        "ascend950pr: the documentation of Ascend 950 products does not list im2col_backward; the "
        "limits of Atlas A2 training and inference products (910B) were applied"
    )
    (note,) = check("im2col_backward", im2col(), load_device("tiny"))
    assert note.startswith("tiny: the device names no product; the limits of Atlas A2")
    assert check("im2col_backward", im2col(), device, rules="hardware") == []


def test_strict_rules_refuse_what_the_products_own_documentation_does_not_list() -> None:
    device = load_device("ascend950pr")
    with pytest.raises(RuleError) as error:
        npusim.ops.im2col_backward(
            npusim.spec((1, 4, 4), "fp16"),
            (3, 3),
            (2, 2),
            (1, 1),
            (0, 0),
            (1, 1),
            device=device,
            rules="strict",
        )
    assert (error.value.parameter, error.value.status) == ("device", None)
    assert str(error.value) == (
        "im2col_backward on ascend950pr: the documentation of Ascend 950 products does not list "
        "im2col_backward; rules='strict' takes no other product's limits, rules='documented' "
        "those of Atlas A2 training and inference products (910B)"
    )
    own = load_device("ascend910b")
    assert check("im2col_backward", im2col(), own, rules="strict") == []
    with pytest.raises(RuleError, match="dilation"):
        check("im2col_backward", im2col(dilation=(0, 1)), own, rules="strict")


def test_messages_of_the_operation_itself_only_ask_for_a_correction() -> None:
    text = refused("im2col_backward", im2col(dilation=(3, 1)), "ascend910",
                   "grad_output.shape", INVALID)  # fmt: skip
    assert "the dilated kernel is larger than the padded image (3, 3)" in text
    assert text.endswith("; correct it")


@pytest.mark.parametrize(
    ("operator", "facts", "rules", "message"),
    [
        ("im2col_backward", im2col(strid=(1, 1)), "documented", "unknown fact 'strid'; did you"),
        (
            "im2col_backward",
            {},
            "documented",
            "fact 'grad_output.shape' is missing; state it, None for",
        ),
        ("matmul", {}, "documented", "operator 'matmul' has no documented limits; known:"),
    ],
)
def test_misuse_is_told(operator: str, facts: Facts, rules: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        check(operator, facts, load_device("ascend910"), rules)
    assert not isinstance(caught.value, RuleError)


def test_an_unknown_product_is_told() -> None:
    with pytest.raises(ArgumentError, match="no table of limits for product '911'; did you mean"):
        load_rules("911", "im2col_backward")


#: Facts that are derived only from arguments of the right length.
SPREAD = {
    **{
        f"{layer}_grad_{what}": {f"param[{i}] {name}" for i, name in enumerate(PARAM)}
        for layer in ("conv", "deconv")
        for what in ("filter", "input")
    },
    **{name: set(derive(tbe_input())) for name in FORMS},
}


def test_every_table_is_well_formed() -> None:
    products = ("310", "310p", "910", "a2", "a3", "950", "ft78ne", "mt7004", "")
    for product in products:
        for operator in documented_operators():
            table = load_rules(product, operator)
            stages = [STAGES.index(rule.stage) for rule in table.rules]
            assert stages == sorted(stages)
            assert all(rule.permitted and len(rule.basis) > 10 for rule in table.rules)
            stated = {*FACTS[operator][0], *FACTS[operator][1]}
            derived = {*DERIVE[operator]({}), *SPREAD.get(operator, ())}
            for rule in table.rules:
                assert rule.parameter in stated | derived
                assert {rule.fact, *rule.when} <= stated | derived, rule.fact


def test_every_entrance_takes_part_in_these_refusals() -> None:
    assert able("im2col_backward", im2col(stride=(0, 1)), "ascend910") == {"npusim.ops", "aclnn"}
    wide = {"input_x.shape": (1, 1, 2, 4097, 16), "out_backprop.shape": (1, 1, 2, 4097, 16)}
    entrances = {"npusim.ops", "tbe", "run"}
    assert able("conv2d_backprop_filter", tbe_filter(**wide), "ascend910") == entrances
    facts = tbe_input(pads=(0, 0, 0, 0))
    assert able("conv3d_backprop_input", facts, "ascend910") == {"npusim.ops", "tbe"}
    assert able("deconv_grad_filter", deconv({4: 8}), "ft78ne") == {"npusim.ops", "ftdsp"}
