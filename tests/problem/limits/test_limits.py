"""How products inherit documented limits, the form of their tables, and what refusals say."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.compiled import FORMS, derived_facts
from npusim.problem.limits.facts import PARAM
from npusim.problem.limits.table import STAGES, documented_operators, load_rules
from tests.problem.limits.entrances import able, refused
from tests.problem.limits.right_calls import call, on
from tests.tables import rows

INVALID = 161002


def im2col(**changes: Any) -> dict[str, Any]:
    return call("im2col_backward", "usual", changes)


def tbe_filter(**changes: Any) -> dict[str, Any]:
    return call("conv2d_backprop_filter", "usual", changes)


def tbe_input(**changes: Any) -> dict[str, Any]:
    return call("conv3d_backprop_input", "usual", changes)


def test_half_exists_on_the_mt7004_only() -> None:
    half = call("deconv_grad_filter", "usual", {"dtype": "fp16"})
    assert CARDS["deconv_grad_filter"].check(half, on("tiny of mt7004")) == []
    with pytest.raises(RuleError, match="dtype is fp16; FT78NE permits fp32"):
        CARDS["deconv_grad_filter"].check(half, on("tiny of ft78ne"))


def test_what_is_assumed_of_depthwise_gradients_says_so() -> None:
    facts = call("depthwise_conv2d_backprop_filter", "usual", {"strides": (64, 1)})
    with pytest.raises(RuleError, match="by an assumption"):
        CARDS["depthwise_conv2d_backprop_filter"].check(facts, load_device("ascend910"))


@rows("tests/data/rows/limits.yaml", "the_nearest_relative_stands_in", "device, operator, product")
def test_the_nearest_relative_stands_in(device: str, operator: str, product: str) -> None:
    loaded = load_device(device)
    table = load_rules(loaded.product, operator)
    assert table.product == product
    assert bool(table.note) == (loaded.product != product)
    if table.note:
        assert table.product_title in table.note


def test_inherited_limits_are_noted() -> None:
    device = load_device("ascend950pr")
    (note,) = CARDS["im2col_backward"].check(im2col(), device)
    assert note == (
        "ascend950pr: the documentation of Ascend 950 products does not list im2col_backward; the "
        "limits of Atlas A2 training and inference products (910B) were applied"
    )
    (note,) = CARDS["im2col_backward"].check(im2col(), load_device("tiny"))
    assert note.startswith("tiny: the device names no product; the limits of Atlas A2")
    assert CARDS["im2col_backward"].check(im2col(), device, rules="hardware") == []


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
    assert CARDS["im2col_backward"].check(im2col(), own, rules="strict") == []
    with pytest.raises(RuleError, match="dilation"):
        CARDS["im2col_backward"].check(im2col(dilation=(0, 1)), own, rules="strict")


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
def test_misuse_is_told(operator: str, facts: dict[str, Any], rules: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        CARDS[operator].check(facts, load_device("ascend910"), rules)
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
    **{name: set(derived_facts(tbe_input())) for name in FORMS},
}


def test_every_table_is_well_formed() -> None:
    products = ("310", "310p", "910", "a2", "a3", "950", "ft78ne", "mt7004", "")
    for product in products:
        for operator in documented_operators():
            table = load_rules(product, operator)
            stages = [STAGES.index(rule.stage) for rule in table.rules]
            assert stages == sorted(stages)
            assert all(rule.permitted and len(rule.basis) > 10 for rule in table.rules)
            facts = CARDS[operator].facts
            assert facts is not None
            stated = {*facts.required, *facts.optional}
            derived = {*facts.derive({}), *SPREAD.get(operator, ())}
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
    wrong = call("deconv_grad_filter", "usual", {"core_mask": 0})
    assert able("deconv_grad_filter", wrong, "ft78ne") == {"npusim.ops", "ftdsp"}
