"""Constraint tables of convolution_backward: every documented refusal, and what passes."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.errors import RuleError
from npusim.device.catalog import load_device
from npusim.limits.table import check, load_rules
from tests.limits.entrances import able, refused

Facts = dict[str, Any]

INVALID, NULL = 161002, 161001


def convolution(dims: int = 2, /, **changes: Any) -> Facts:
    """A valid call: 8 -> 16 channels, kernel 3, input and output 9 wide, everything wanted."""
    facts: Facts = {
        "grad_output.shape": (2, 16, *(9,) * dims),
        "input.shape": (2, 8, *(9,) * dims),
        "weight.shape": (16, 8, *(3,) * dims),
        **{f"{name}.dtype": "fp16" for name in ("grad_output", "input", "weight")},
        "stride": (1,) * dims,
        "padding": (1,) * dims,
        "dilation": (1,) * dims,
        "output_padding": (0,) * dims,
        "groups": 1,
        "transposed": False,
        "output_mask": (True, True, True),
        "cube_math_type": 0,
    }
    return facts | changes


def depthwise(groups: int, kind: str = "bf16", /, **changes: Any) -> Facts:
    """A 3-D call of 8 channels in ``groups`` groups."""
    return convolution(
        3,
        **{
            "grad_output.shape": (2, 8, 9, 9, 9),
            "weight.shape": (8, 8 // groups, 3, 3, 3),
            "groups": groups,
            **{f"{name}.dtype": kind for name in ("grad_output", "input", "weight")},
        }
        | changes,
    )


def transposed(dims: int = 2, /, **changes: Any) -> Facts:
    """A valid transposed call: 8 -> 16 channels, stride 2, 9 -> 18."""
    facts = convolution(dims)
    facts |= {
        "weight.shape": (8, 16, *(3,) * dims),
        "grad_output.shape": (2, 16, *(18,) * dims),
        "stride": (2,) * dims,
        "output_padding": (1,) * dims,
        "transposed": True,
    }
    return facts | changes


@pytest.mark.parametrize("device", ["ascend310p", "ascend910", "ascend910b", "ascend910c", "tiny"])
@pytest.mark.parametrize("rules", ["documented", "hardware"])
def test_valid_convolutions_pass(device: str, rules: str) -> None:
    for dims in (1, 2):
        check("convolution_backward", convolution(dims), load_device(device), rules)
        check("convolution_backward", transposed(dims), load_device(device), rules)
    # an output padding of stride or more is PyTorch's to allow where the dilation exceeds it
    far = {"dilation": (2, 2), "output_padding": (2, 2), "grad_output.shape": (2, 16, 21, 21)}
    check("convolution_backward", transposed(**far), load_device(device), rules)
    four = convolution(padding=(1, 1, 0, 2))
    check("convolution_backward", four, load_device(device), rules)


def test_3d_runs_on_a2() -> None:
    for facts in (convolution(3), transposed(3), depthwise(8), depthwise(2, "fp16")):
        assert check("convolution_backward", facts, load_device("ascend910b")) == []


#: change of a valid call -> parameter, status; on every product with the documentation
ANYWHERE: list[tuple[Facts, str, int]] = [
    *(({name: None}, name, NULL) for name in ("stride", "padding", "dilation")),
    *(({f"{name}.shape": None}, f"{name}.shape", NULL) for name in ("grad_output", "input")),
    ({"weight.shape": None}, "weight.shape", NULL),
    ({"output_padding": None}, "output_padding", NULL),
    ({"output_mask": None}, "output_mask", NULL),
    ({"output_mask": (True, True)}, "output_mask", NULL),
    *(({f"grad_{name}.shape": None}, f"grad_{name}.shape", NULL) for name in ("input", "weight")),
    ({"grad_bias.shape": None}, "grad_bias.shape", NULL),
    *(({f"{n}.dtype": "int8"}, f"{n}.dtype", INVALID) for n in ("grad_output", "input", "weight")),
    *(({f"grad_{n}.dtype": "fp32"}, f"grad_{n}.dtype", INVALID) for n in ("input", "weight")),
    ({"grad_bias.dtype": "fp32"}, "grad_bias.dtype", INVALID),
    ({"input.format": "NHWC"}, "input.format", INVALID),
    ({"grad_weight.format": "ND"}, "grad_weight.format", INVALID),
    ({"weight.shape": (16, 8, 3)}, "weight.shape", INVALID),
    ({"stride": (0, 1)}, "stride", INVALID),
    ({"padding": (-1, 1)}, "padding", INVALID),
    ({"dilation": (1, 0)}, "dilation", INVALID),
    ({"output_padding": (1, 0)}, "output_padding", INVALID),
    ({"groups": 0}, "groups", INVALID),
    ({"cube_math_type": 4}, "cube_math_type", INVALID),
    ({"cube_math_type": -1}, "cube_math_type", INVALID),
    ({"stride": (1,)}, "stride", INVALID),
    ({"stride": (1, 1, 1, 1)}, "stride", INVALID),
    ({"dilation": (1, 1, 1)}, "dilation", INVALID),
    ({"padding": (1, 1, 1)}, "padding", INVALID),
    ({"output_padding": (0,)}, "output_padding", INVALID),
    ({"grad_output.shape": (2, 17, 9, 9)}, "groups", INVALID),
    ({"groups": 2}, "groups", INVALID),
    ({"grad_output.shape": (3, 16, 9, 9)}, "grad_output.shape", INVALID),
    ({"grad_output.shape": (2, 16, 9, 8)}, "grad_output.shape", INVALID),
    ({"dilation": (1, 7)}, "grad_output.shape", INVALID),
    ({"grad_input.shape": (2, 8, 9, 8)}, "grad_input.shape", INVALID),
    ({"grad_weight.shape": (8, 16, 3, 3)}, "grad_weight.shape", INVALID),
    ({"grad_bias.shape": (8,)}, "grad_bias.shape", INVALID),
    ({"grad_output.shape": (2, 0, 9, 9)}, "grad_output.shape", INVALID),
    ({"weight.shape": (0, 8, 3, 3)}, "weight.shape", INVALID),
    ({"input.shape": (2, 8, 0, 9)}, "input.shape", INVALID),
]


@pytest.mark.parametrize("device", ["ascend310p", "ascend910", "ascend910b"])
@pytest.mark.parametrize(("change", "parameter", "status"), ANYWHERE)
def test_refused_anywhere(device: str, change: Facts, parameter: str, status: int) -> None:
    refused("convolution_backward", convolution(**change), device, parameter, status)


SEVENTEEN = {"weight.shape": (17, 4, 3, 3), "grad_output.shape": (2, 17, 9, 9)}  # channels


@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        (convolution(1, **{"input.format": "NCHW"}), "input.format"),
        (convolution(1, padding=(1, 1)), "padding"),
        (transposed(output_padding=(-1, 0)), "output_padding"),
        (transposed(**{"grad_output.shape": (2, 8, 18, 18)}), "groups"),
        (transposed(**{"grad_output.shape": (2, 16, 16, 18)}), "grad_output.shape"),
        (convolution(groups=2, **SEVENTEEN), "groups"),
    ],
)
def test_refused_in_other_forms(facts: Facts, parameter: str) -> None:
    for device in ("ascend910", "ascend910b"):
        refused("convolution_backward", facts, device, parameter, INVALID)


def test_one_channel_per_group_needs_whole_groups_except_on_the_950() -> None:
    facts = transposed(
        groups=16,
        **{"input.shape": (2, 8, 9, 9), "weight.shape": (8, 1, 3, 3)},
        **{"grad_output.shape": (2, 16, 18, 18)},
    )
    named = {rule.check for rule in load_rules("a2", "convolution_backward").rules}
    assert "one_channel_per_group" in named
    others = {rule.check for rule in load_rules("950", "convolution_backward").rules}
    assert named - others == {"one_channel_per_group"}
    refused("convolution_backward", facts, "ascend910b", "groups", INVALID)


@pytest.mark.parametrize("mask", [(False, True, True), (True, False, True), (True, True, False)])
def test_what_is_not_wanted_may_be_null(mask: tuple[bool, ...]) -> None:
    name = ("grad_input", "grad_weight", "grad_bias")[mask.index(False)]
    facts = convolution(output_mask=mask, **{f"{name}.shape": None, f"{name}.dtype": None})
    assert check("convolution_backward", facts, load_device("ascend910")) == []


@pytest.mark.parametrize("device", ["ascend310p", "ascend910"])
class TestTheFirst910AndThe310P:
    def test_no_3d(self, device: str) -> None:
        refused("convolution_backward", convolution(3), device, "weight.shape", INVALID)

    @pytest.mark.parametrize("name", ["grad_output", "input", "weight"])
    def test_no_bf16(self, device: str, name: str) -> None:
        facts = convolution(**{f"{name}.dtype": "bf16"})
        refused("convolution_backward", facts, device, f"{name}.dtype", INVALID)

    def test_fp32_is_computed_in_fp16_or_not_at_all(self, device: str) -> None:
        for math in range(4):
            facts = convolution(**{"input.dtype": "fp32"}, cube_math_type=math)
            if math in (1, 2):
                assert check("convolution_backward", facts, load_device(device)) == []
            else:
                refused("convolution_backward", facts, device, "cube_math_type", INVALID)
            narrow = convolution(cube_math_type=math)
            assert check("convolution_backward", narrow, load_device(device)) == []

    @pytest.mark.parametrize(
        ("sizes", "parameter"),
        [
            ({"kernel": 256, "in": 600}, "weight.shape"),
            ({"stride": 64, "in": 600}, "stride"),
            ({"padding": 256, "in": 600}, "padding"),
            ({"dilation": 256, "in": 600}, "dilation"),
            ({"in": 4097}, "grad_output.shape"),
            ({"h": 200_001}, "grad_output.shape"),
        ],
    )
    def test_ranges_are_those_of_the_kernels(
        self, device: str, sizes: dict[str, int], parameter: str
    ) -> None:
        refused("convolution_backward", wide(sizes), device, parameter, None)

    def test_one_row_may_be_wide(self, device: str) -> None:
        facts = wide({"in": 5000, "h": 1})
        assert check("convolution_backward", facts, load_device(device)) == []

    def test_empty_calls_are_noted(self, device: str) -> None:
        (note,) = check("convolution_backward", empty("N"), load_device(device))
        assert "accepted" in note


def wide(sizes: dict[str, int]) -> Facts:
    """A 2-D call of one channel; the numbers are for W, and ``h`` rows of kernel 1."""
    w, h = sizes.get("in", 9), sizes.get("h", 3)
    k, s = sizes.get("kernel", 3), sizes.get("stride", 1)
    p, d = sizes.get("padding", 1), sizes.get("dilation", 1)
    out = (w + 2 * p - d * (k - 1) - 1) // s + 1
    return convolution(
        **{
            "input.shape": (1, 8, h, w),
            "weight.shape": (16, 8, 1, k),
            "grad_output.shape": (1, 16, h, out),
        },
        stride=(1, s),
        padding=(0, p),
        dilation=(1, d),
    )


class TestA2:
    @pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32"])
    @pytest.mark.parametrize("math", range(4))
    def test_every_math_type_runs(self, kind: str, math: int) -> None:
        names = ("grad_output", "input", "weight")
        facts = convolution(cube_math_type=math, **{f"{name}.dtype": kind for name in names})
        notes = check("convolution_backward", facts, load_device("ascend910b"))
        assert len(notes) == (kind == "bf16" and math == 2)

    def test_the_bias_gradient_is_nd(self) -> None:
        facts = convolution(**{"grad_bias.format": "NCL"})
        refused("convolution_backward", facts, "ascend910b", "grad_bias.format", INVALID)
        assert check("convolution_backward", facts, load_device("ascend910")) == []

    @pytest.mark.parametrize(
        ("sizes", "parameter", "bad"),
        [
            ({"kernel": 255, "in": 600}, "weight.shape", {"kernel": 256}),
            ({"padding": 255, "in": 600}, "padding", {"padding": 256}),
            ({"dilation": 255, "in": 600}, "dilation", {"dilation": 256}),
            ({"stride": 2**31 - 2}, "stride", {"stride": 2**31 - 1}),
            ({"in": 2**31 - 4}, "input.shape", {"in": 2**31 - 1}),
        ],
    )
    def test_ranges_in_2d(self, sizes: dict[str, int], parameter: str, bad: Any) -> None:
        assert check("convolution_backward", wide(sizes), load_device("ascend910b")) == []
        if parameter == "input.shape":  # the gradient's own limit comes first
            parameter = "grad_output.shape"
        refused("convolution_backward", wide(sizes | bad), "ascend910b", parameter, INVALID)

    @pytest.mark.parametrize(
        ("change", "parameter"),
        [
            ({"weight.shape": (16, 8, 3, 256, 3)}, "weight.shape"),
            ({"weight.shape": (16, 8, 2**31 - 1, 3, 3)}, "weight.shape"),
            ({"stride": (1, 64, 1)}, "stride"),
            ({"stride": (2**31 - 1, 1, 1)}, "stride"),
            ({"padding": (1, 1, 256)}, "padding"),
            ({"padding": (2**31 - 1, 1, 1)}, "padding"),
            ({"dilation": (256, 1, 1)}, "dilation"),
            ({"weight.format": "NDHWC"}, "weight.format"),
        ],
    )
    def test_refused_in_3d(self, change: Facts, parameter: str) -> None:
        refused("convolution_backward", convolution(3, **change), "ascend910b", parameter, INVALID)

    @pytest.mark.parametrize(
        ("change", "parameter"),
        [
            ({"stride": (256, 1, 1), "grad_output.shape": (2, 16, 1, 9, 9)}, "stride"),
            ({"padding": (256, 1, 1), "grad_output.shape": (2, 16, 519, 9, 9)}, "padding"),
            (
                {"input.shape": (2, 8, 9, 9, 4097), "grad_output.shape": (2, 16, 9, 9, 4097)},
                "input.shape",
            ),
            (  # the last column starts within input, the zeros after it do not count as read
                {
                    "input.shape": (2, 8, 9, 9, 4094),
                    "grad_output.shape": (2, 16, 9, 9, 1366),
                    "stride": (1, 1, 3),
                    "padding": (1, 1, 2),
                },
                "input.shape",
            ),
        ],
    )
    def test_the_kernel_of_3d_input_gradients_has_limits(
        self, change: Facts, parameter: str
    ) -> None:
        facts = convolution(3, **change)
        refused("convolution_backward", facts, "ascend910b", parameter, 561103)
        others = facts | {"output_mask": (False, True, True)}
        assert check("convolution_backward", others, load_device("ascend910b")) == []

    @pytest.mark.parametrize("device", ["ascend910", "ascend310p"])
    def test_a_map_may_be_4096_wide_and_no_wider(self, device: str) -> None:
        for width in (4096, 4097):
            facts = convolution(
                **{"input.shape": (2, 8, 9, width), "grad_output.shape": (2, 16, 9, width)}
            )
            if width == 4096:
                check("convolution_backward", facts, load_device(device))
            else:
                with pytest.raises(RuleError, match="wider for maps of one row"):
                    check("convolution_backward", facts, load_device(device))

    def test_the_kernel_of_3d_input_gradients_takes_its_limits(self) -> None:
        strides = {"stride": (255, 1, 1), "grad_output.shape": (2, 16, 1, 9, 9)}
        pads = {"padding": (255, 1, 1), "grad_output.shape": (2, 16, 517, 9, 9)}
        wide = {"input.shape": (2, 8, 9, 9, 4096), "grad_output.shape": (2, 16, 9, 9, 4096)}
        for change in (strides, pads, wide):
            facts = convolution(3, **change)
            assert check("convolution_backward", facts, load_device("ascend910b")) == []

    def test_ranges_in_1d_and_of_groups(self) -> None:
        facts = convolution(1, **{"weight.shape": (16, 8, 256)})
        refused("convolution_backward", facts, "ascend910b", "weight.shape", INVALID)
        many = {"groups": 65536, "input.shape": (2, 65536, 9, 9), "weight.shape": (65536, 1, 3, 3)}
        facts = convolution(**many, **{"grad_output.shape": (2, 65536, 9, 9)})
        refused("convolution_backward", facts, "ascend910b", "groups", INVALID)

    def test_channels_have_a_range(self) -> None:
        big = {"weight.shape": (2**31 - 1, 8, 3, 3), "grad_output.shape": (2, 2**31 - 1, 9, 9)}
        refused(
            "convolution_backward",
            convolution(**big),
            "ascend910b",
            *("grad_output.shape", INVALID),
        )
        rows = load_rules("a2", "convolution_backward").rules
        assert [r.most for r in rows if r.positions == (0, 1)] == [2**31 - 2]

    def test_ranges_do_not_hold_for_transposed_calls(self) -> None:
        facts = transposed(
            **{"weight.shape": (8, 16, 1, 256), "grad_output.shape": (2, 16, 17, 270)},
            stride=(2, 1),
            padding=(0, 0),
            output_padding=(0, 0),
        )
        facts["input.shape"] = (2, 8, 9, 15)
        assert check("convolution_backward", facts, load_device("ascend910b")) == []

    def test_output_padding_in_3d_stays_below_the_stride(self) -> None:
        facts = transposed(3, output_padding=(1, 2, 1))
        refused("convolution_backward", facts, "ascend910b", "output_padding", INVALID)

    def test_grouped_3d(self) -> None:
        refused("convolution_backward", depthwise(2), "ascend910b", "groups", INVALID)
        fp32 = depthwise(8, "fp32", cube_math_type=2)
        refused("convolution_backward", fp32, "ascend910b", "groups", INVALID)
        assert check("convolution_backward", depthwise(8, "fp32"), load_device("ascend910b")) == []
        # an fp32 gradient of bf16 operands is not even the right type
        out = depthwise(8, **{"grad_weight.dtype": "fp32"})
        refused("convolution_backward", out, "ascend910b", "grad_weight.dtype", INVALID)


def empty(axis: str, **changes: Any) -> Facts:
    """A valid call without images ("N") or without input channels ("C")."""
    if axis == "N":
        sizes: Facts = {"input.shape": (0, 8, 9, 9), "grad_output.shape": (0, 16, 9, 9)}
    else:
        sizes = {"input.shape": (2, 0, 9, 9), "weight.shape": (16, 0, 3, 3)}
    return convolution(**sizes, **({"bias_sizes": (16,)} | changes))


class TestEmptyInput:
    @pytest.mark.parametrize("axis", ["N", "C"])
    def test_it_passes_and_skips_the_rest(self, axis: str) -> None:
        facts = empty(axis, stride=(1, 1, 1, 1))  # a length nobody looks at any more
        assert check("convolution_backward", facts, load_device("ascend910b")) == []

    @pytest.mark.parametrize("sizes", [None, (16, 1), (8,)])
    def test_the_bias_must_be_stated_then(self, sizes: Any) -> None:
        facts = empty("C", bias_sizes=sizes)
        refused("convolution_backward", facts, "ascend910b", "bias_sizes", INVALID)
        facts["output_mask"] = (True, True, False)
        assert check("convolution_backward", facts, load_device("ascend910b")) == []

    def test_the_bias_is_never_read_otherwise(self) -> None:
        facts = convolution(bias_sizes=(1,))
        assert check("convolution_backward", facts, load_device("ascend910b")) == []

    def test_transposed_bias(self) -> None:
        facts = transposed(**{"input.shape": (0, 8, 9, 9), "grad_output.shape": (0, 16, 18, 18)})
        check("convolution_backward", facts | {"bias_sizes": (16,)}, load_device("ascend910b"))
        wrong = facts | {"bias_sizes": (8,)}
        refused("convolution_backward", wrong, "ascend910b", "bias_sizes", INVALID)


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
            check("convolution_backward", facts, device)
        assert check("convolution_backward", facts, device, rules="hardware") == []
    with pytest.raises(RuleError, match="grad_output"):
        check("convolution_backward", convolution(dilation=(2, 1)), device, rules="hardware")


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
    assert able("convolution_backward", wide({"stride": 64, "in": 600}), "ascend910") == everywhere
    null = convolution(stride=None)
    assert able("convolution_backward", null, "ascend910") == {"npusim.ops", "aclnn"}
