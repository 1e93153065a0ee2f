"""Operators without a page of limits say so, and what the limits of a sister do not permit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS, operators
from npusim.problem.limits.table import documented_operators, load_rules, sister_rules

Capture = pytest.CaptureFixture[str]

NO_PAGE = "no page of the limits of convolution (aclnnConvolution) is at hand"
DEEP = {"x": (1, 16, 4, 8, 8), "w": (16, 16, 3, 3, 3)}
FLAT = {"x": (1, 16, 8, 8), "w": (16, 16, 3, 3)}


def forward(device: str, shapes: dict[str, Any], dtype: str = "fp16", **more: Any) -> npusim.Result:
    x, w = (npusim.spec(shapes[name], dtype) for name in "xw")
    return npusim.ops.convolution(x, w, device=device, **more)


def of_limits(result: npusim.Result) -> list[str]:
    return [note for note in result.notes if "no page" in note]


def test_every_operator_has_limits_or_is_known_to_have_none() -> None:
    with_facts = [name for name in operators() if CARDS[name].facts is not None]
    undocumented = [name for name in operators() if CARDS[name].undocumented is not None]
    assert with_facts == documented_operators()
    assert sorted((*with_facts, *undocumented)) == operators()


def test_a_forward_pass_that_the_gradients_limits_permit_says_so() -> None:
    for rules in ("documented", None):
        given = {} if rules is None else {"rules": rules}
        (note,) = of_limits(forward("ascend910b2", DEEP, **given))
        assert note.startswith(f"{NO_PAGE}: what the kernels can compute is permitted; the limits")
        assert note.endswith("permit such a layer")
    assert of_limits(forward("ascend910b2", DEEP, rules="hardware")) == []


def test_a_three_dimensional_forward_pass_on_a_310p_is_no_longer_silent() -> None:
    """Its gradients are refused there, by their page."""
    (note,) = of_limits(forward("ascend310p", DEEP))
    assert note == (
        f"{NO_PAGE}: the call is simulated, but the limits of aclnnConvolutionBackward do not "
        "permit such a layer: convolution_backward: weight.shape: dims is 3; Atlas inference "
        "products (310P) permit 1-D and 2-D convolutions, rank 3 or 4 (status 161002, by the "
        "operator's documentation page)"
    )
    x, w = (npusim.spec(DEEP[name], "fp16") for name in "xw")
    with pytest.raises(RuleError, match="dims is 3"):
        npusim.ops.convolution_backward(x, x, w, padding=1, device="ascend310p")
    assert "permit such a layer" in of_limits(forward("ascend310p", FLAT))[0]


@pytest.mark.parametrize(
    ("shapes", "more", "said"),
    [
        ({"x": (1, 16, 8, 300), "w": (16, 16, 1, 257)}, {}, "permit 1 to 255 for H and W"),
        ({"x": (1, 16, 200, 8), "w": (16, 16, 3, 3)}, {"padding": (300, 1)}, "padding is (300, 1)"),
    ],
)
def test_ranges_of_the_gradients_are_noted_and_computed(
    shapes: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    result = forward("ascend910b2", shapes, **more)
    assert result.cycles > 0
    (note,) = of_limits(result)
    assert "do not permit such a layer" in note
    assert said in note


def test_rows_about_gradients_say_nothing_of_a_forward_pass() -> None:
    parameters = {rule.parameter for rule in sister_rules(load_rules("a2", "convolution_backward"))}
    assert {"weight.shape", "stride", "groups", "cube_math_type"} <= parameters
    assert not any(name.startswith(("grad_input", "grad_weight", "bias")) for name in parameters)


def test_strict_takes_no_other_operators_limits() -> None:
    with pytest.raises(RuleError) as refused:
        forward("ascend910b2", FLAT, rules="strict")
    assert str(refused.value).startswith(f"convolution on ascend910b2: {NO_PAGE}; rules='strict'")
    net = npusim.network("dcgan", device="tiny", passes="forward", rules="strict")
    assert all(one.result is not None for one in net.timed), "it is about gradients there"
    x = npusim.spec((16, 16), "fp16")
    with pytest.raises(ArgumentError, match="rules='hardware' has no meaning: no limits are docum"):
        npusim.ops.matmul(x, x, device="tiny", rules="hardware")


def test_the_command_takes_rules(capsys: Capture) -> None:
    words = "run convolution --device ascend310p --cin 16 --cout 16 --size 4x8x8 --kernel 3"
    assert main([*words.split(), "--timing-only"]) == 0
    assert "do not permit such a layer" in " ".join(capsys.readouterr().out.split())
    assert main([*words.split(), "--timing-only", "--rules", "hardware"]) == 0
    assert "no page" not in capsys.readouterr().out
    assert main([*words.split(), "--timing-only", "--rules", "strict"]) == 2
    assert "rules='strict' takes no other operator's limits" in capsys.readouterr().err


def test_ops_show_says_that_there_is_no_page(capsys: Capture) -> None:
    assert main(["ops", "show", "convolution", "--device", "ascend310p"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"note: {NO_PAGE}: what the kernels of ascend310p can compute is permitted" in told
    assert "a result says so where the limits of aclnnConvolutionBackward (grad_output" in told
    assert "310p: Atlas inference products (310P) (ascend310p)" in told
    assert "weight.shape: dims 1-D and 2-D convolutions, rank 3" in told
    assert main(["ops", "show", "convolution", "--device", "ascend310p", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rules"] == []
    assert facts["sister"] == "convolution_backward"
    rows = load_rules(load_device("ascend310p").product, "convolution_backward")
    (listed,) = facts["sister_products"]
    assert len(listed["rules"]) == len(sister_rules(rows)) > 20
    assert main(["ops", "show", "convolution"]) == 0
    every = " ".join(capsys.readouterr().out.split())
    assert "1-D and 2-D convolutions, rank 3 161002 PAGE or 4 [310p, 910]" in every
    assert main(["ops", "show", "matmul", "--device", "tiny"]) == 0
    assert "no page of the limits of matmul (aclnnMatmul) is at hand" in " ".join(
        capsys.readouterr().out.split()
    )
