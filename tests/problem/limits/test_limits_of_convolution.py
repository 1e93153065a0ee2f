"""Limits of convolution_backward that no row of ``tests/data/refusals.yaml`` can say."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.errors import RuleError
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.problem.limits.table import load_rules
from tests.problem.limits.entrances import able, refused
from tests.problem.limits.right_calls import call

INVALID, NULL = 161002, 161001

KINDS = {1: "row", 2: "plane", 3: "volume"}


def convolution(dims: int = 2, /, **changes: Any) -> dict[str, Any]:
    return call("convolution_backward", KINDS[dims], changes)


def held(facts: dict[str, Any], device: str) -> list[str]:
    """The notes of a call within the limits."""
    return CARDS["convolution_backward"].check(facts, load_device(device))


@pytest.mark.parametrize("device", ["ascend310p", "ascend910", "ascend910b", "ascend910c", "tiny"])
@pytest.mark.parametrize("rules", ["documented", "hardware"])
def test_valid_convolutions_pass(device: str, rules: str) -> None:
    # an output padding of stride or more is PyTorch's to allow where the dilation exceeds it
    far = {"dilation": (2, 2), "output_padding": (2, 2), "grad_output.shape": (2, 16, 21, 21)}
    valid = [convolution(1), convolution(), convolution(padding=(1, 1, 0, 2))]
    valid += [call("convolution_backward", "transposed", change) for change in ({}, far)]
    for facts in valid:
        CARDS["convolution_backward"].check(facts, load_device(device), rules)


def test_the_first_failing_check_decides() -> None:
    """Null pointers, then types, then formats, then values, then cube_math_type, then sizes."""
    facts = convolution(
        **{"grad_output.shape": (2, 16, 9, 8), "weight.dtype": "int8", "input.format": "NHWC"},
        **{"stride": (0, 1), "cube_math_type": 9, "output_mask": None},
    )
    repairs: list[tuple[str, Any]] = [
        ("output_mask", (True, True, True)),
        ("weight.dtype", "fp16"),
        ("input.format", "NCHW"),
        ("stride", (1, 1)),
        ("cube_math_type", 0),
    ]
    for parameter, repaired in repairs:
        status = NULL if parameter == "output_mask" else INVALID
        refused("convolution_backward", facts, "ascend910b", parameter, status)
        facts[parameter] = repaired
    refused("convolution_backward", facts, "ascend910b", "grad_output.shape", INVALID)


def test_hardware_rules_keep_only_what_the_operation_is() -> None:
    device = load_device("ascend910")
    for facts in (convolution(3), convolution(cube_math_type=0, **{"input.dtype": "bf16"})):
        with pytest.raises(RuleError):
            CARDS["convolution_backward"].check(facts, device)
        assert CARDS["convolution_backward"].check(facts, device, rules="hardware") == []
    with pytest.raises(RuleError, match="grad_output"):
        CARDS["convolution_backward"].check(convolution(dilation=(2, 1)), device, rules="hardware")


def test_messages_say_what_where_limit_and_way_out() -> None:
    facts = convolution(3, stride=(1, 64, 1))
    assert refused("convolution_backward", facts, "ascend910b", "stride", INVALID) == (
        "convolution_backward: stride is (1, 64, 1); Atlas A2 training and inference products "
        "(910B) permit 1 to 63 for H and W (when transposed = no, dims = 3) (status 161002, by "
        "the operator's documentation page); choose such a value, or rules='hardware' for what "
        "ascend910b2 itself can do"
    )


def test_every_entrance_takes_part_in_these_refusals() -> None:
    everywhere = {"npusim.ops", "aclnn", "network", "torch", "run"}
    assert able("convolution_backward", convolution(3), "ascend910") == everywhere
    far = {"input.shape": (1, 8, 3, 600), "grad_output.shape": (1, 16, 3, 10), "stride": (1, 64)}
    wide = call("convolution_backward", "wide", far)
    assert able("convolution_backward", wide, "ascend910") == everywhere
    null = convolution(stride=None)
    assert able("convolution_backward", null, "ascend910") == {"npusim.ops", "aclnn"}


def test_one_channel_per_group_needs_whole_groups_except_on_the_950() -> None:
    named = {rule.check for rule in load_rules("a2", "convolution_backward").rules}
    others = {rule.check for rule in load_rules("950", "convolution_backward").rules}
    assert named - others == {"one_channel_per_group"}


def test_channels_have_a_range() -> None:
    rows = load_rules("a2", "convolution_backward").rules
    assert [r.most for r in rows if r.positions == (0, 1)] == [2**31 - 2]


@pytest.mark.parametrize("device", ["ascend310p", "ascend910"])
def test_a_map_may_be_4096_wide_and_no_wider(device: str) -> None:
    for width in (4096, 4097):
        shapes = {"input.shape": (2, 8, 9, width), "grad_output.shape": (2, 16, 9, width)}
        if width == 4096:
            held(convolution(**shapes), device)
        else:
            with pytest.raises(RuleError, match="wider for maps of one row"):
                held(convolution(**shapes), device)
