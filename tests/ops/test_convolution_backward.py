"""convolution_backward against float64, worked examples, and the documented launch sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError, RuleError
from npusim.base.rounding import round_hf32
from npusim.call.spec import spec
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.ops.conv_backward import convolution_backward
from tests.sampled import examples
from tests.tables import rows

Array = np.ndarray[Any, Any]
NAMES = ("grad_input", "grad_weight", "grad_bias")

#: Documented arithmetic per product, type all operands have (or are promoted to) and
#: cubeMathType 0 to 3; None is an error.
HF32 = "hf32"
MATH: dict[str, dict[str, tuple[DType | str | None, ...]]] = {
    "ascend910": {
        "fp16": (FP16, FP16, FP16, FP16),
        "fp32": (None, FP16, FP16, None),
        "bf16": (None, None, None, None),
    },
    "ascend910b2": {
        "fp16": (FP16, FP16, FP16, FP16),
        "fp32": (FP32, HF32, FP16, HF32),
        "bf16": (BF16, BF16, FP16, BF16),
    },
}
MATH["ascend310p"], MATH["ascend950pr"] = MATH["ascend910"], MATH["ascend910b2"]
HF32_BITS = {"ascend910b2": 11, "ascend950pr": 10}  # of the mantissa, explicit


def computed(array: Array, math: DType | str | None, device: str) -> Array:
    """An operand as the cube sees it."""
    if math == HF32:
        return round_hf32(array.astype(np.float32), HF32_BITS[device])
    assert isinstance(math, DType)
    return array.astype(math.numpy)


def check(layer: Any, device: str, kinds: Any, number: int, close: Any, **options: Any) -> Any:
    """Run one call and compare all that was asked for; return its result."""
    promoted = kinds[0] if len(set(kinds)) == 1 else FP32
    math = MATH[device][promoted.name][number]
    stored = FP32 if math == HF32 else math
    mask = options.pop("output_mask", (True, True, True))
    dy, x, w = layer.operands(kinds)
    r: Any = convolution_backward(
        dy, x, w, **layer.arguments, output_mask=mask, cube_math_type=number, device=device,
        timeline=False, **options,
    )  # fmt: skip
    dx, dw = layer.reference(*(computed(a, math, device) for a in (dy, x, w)))
    db = layer.bias_reference(dy)
    wide = [a if a is kinds[0] else FP32 for a in kinds]
    rounded = ((stored, wide[1]), (wide[2],), (kinds[0],))
    wanted = zip(NAMES, mask, (dx, dw, db), rounded, (wide[1], wide[2], kinds[0]), strict=True)
    for name, on, want, steps, kind in wanted:
        got = getattr(r, name)
        if on and name == "grad_bias" and kind is FP32:  # summands of either sign may cancel
            summed = layer.bias_reference(np.abs(dy))
            assert (got.dtype, got.shape) == (np.float32, want.shape)
            assert (np.abs(got - want) <= 1e-5 * summed).all(), name
        elif on:
            close(name, got, want, steps, kind)
        else:
            assert got is None
    return r


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a ``Layer`` that fits itself, transposed or not."""
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 4, 8, 17)))
    kernel, stride, dilation = each(1, 4), each(1, 3), each(1, 2)
    pads = tuple((p, p) for p in each(0, 2))
    if dims == 2 and draw(st.booleans()):
        pads = tuple((before, after) for before, after in zip(each(0, 3), each(0, 3), strict=True))
    transposed = draw(st.booleans())
    room = [max(s, d) - 1 if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    extra = tuple(draw(st.integers(0, most)) for most in room)
    return {
        "n": draw(st.integers(1, 3)),
        "cin": groups * draw(st.integers(1, 40 // groups)),
        "cout": groups * draw(st.integers(1, 40 // groups)),
        "spatial": each(1, 10 if dims < 3 else 5),
        "kernel": kernel,
        "stride": stride,
        "pads": pads,
        "dilation": dilation,
        "groups": groups,
        "transposed": transposed,
        "output_padding": extra,
    }


@examples(100)
@given(
    layers(),
    st.sampled_from(("ascend910", "ascend310p", "ascend910b2", "ascend950pr")),
    st.lists(st.sampled_from((FP16, BF16, FP32)), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([(True, True, True), (True, False, False), (False, True, True)]),
    st.sampled_from([None, 1, "1-2"]),
)
def test_any_layer_matches_float64(
    layer: Any,
    close: Any,
    sizes: dict[str, Any],
    device: str,
    kinds: list[DType],
    number: int,
    mask: tuple[bool, bool, bool],
    cores: Any,
) -> None:
    case = layer(**sizes)
    assume(min(case.out) >= 1)
    three = tuple(kinds[i % len(kinds)] for i in range(3))
    promoted = three[0] if len(set(three)) == 1 else FP32
    assume(MATH[device][promoted.name][number] is not None)
    if device in {"ascend910", "ascend310p"}:
        assume(len(case.spatial) < 3 and BF16 not in three)
    check(case, device, three, number, close, output_mask=mask, cores=cores, rules="hardware")


# -- worked examples -----------------------------------------------------------------------

BOTH = pytest.mark.parametrize(("device", "number"), [("ascend910", 1), ("ascend910b2", 0)])


def one_channel(rows: Any) -> Array:
    return np.array(rows, np.float32)[None, None]


@BOTH
def test_worked_example_with_uneven_padding(device: str, number: int) -> None:
    x = np.arange(1, 17).reshape(4, 4)
    r: Any = convolution_backward(
        one_channel([[1, 2], [3, 4]]), one_channel(x), one_channel([[1, 2], [3, 4]]), (1,),
        stride=2, padding=[1, 0, 0, 1], cube_math_type=number, device=device,
    )  # fmt: skip
    assert r.grad_input[0, 0].tolist() == [[3, 4, 6, 8], [3, 6, 4, 8], [9, 12, 12, 16], [0] * 4]
    assert r.grad_weight[0, 0].tolist() == [[43, 50], [78, 88]]
    assert r.grad_bias.tolist() == [10]


@BOTH
def test_worked_example_transposed(device: str, number: int) -> None:
    r: Any = convolution_backward(
        one_channel(np.arange(1, 17).reshape(4, 4)), one_channel([[1, 2], [3, 4]]),
        one_channel(np.arange(1, 10).reshape(3, 3)), (1,), stride=2, padding=1, transposed=True,
        output_padding=1, cube_math_type=number, device=device,
    )  # fmt: skip
    assert r.grad_input[0, 0].tolist() == [[111, 217], [363, 573]]
    assert r.grad_weight[0, 0].tolist() == [[24, 43, 50], [44, 78, 88], [68, 118, 128]]
    assert r.grad_bias.tolist() == [136]


# -- empty operands ------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_an_empty_batch_gives_zeros(device: str) -> None:
    dy, x = np.zeros((0, 4, 5, 5), np.float16), np.zeros((0, 3, 5, 5), np.float16)
    r: Any = convolution_backward(dy, x, np.ones((4, 3, 1, 1), np.float16), (4,), device=device)
    assert r.grad_input.shape == (0, 3, 5, 5)
    np.testing.assert_array_equal(r.grad_weight, np.zeros((4, 3, 1, 1), np.float16))
    np.testing.assert_array_equal(r.grad_bias, np.zeros(4, np.float16))


def test_without_input_channels_the_bias_gradient_is_zero() -> None:
    dy, x = np.ones((2, 4, 5, 5), np.float32), np.zeros((2, 0, 5, 5), np.float32)
    w = np.zeros((4, 0, 1, 1), np.float32)
    r: Any = convolution_backward(dy, x, w, (4,), device="ascend910b2")
    assert r.grad_input.shape == x.shape
    assert r.grad_weight.shape == w.shape
    np.testing.assert_array_equal(r.grad_bias, np.zeros(4, np.float32))
    assert [run.name for run in r.runs] == ["mem_set"]
    assert any(note.startswith("grad_bias is zero, as the library returns") for note in r.notes)
    empty: Any = convolution_backward(
        dy[:0],
        np.zeros((0, 3, 5, 5), np.float32),
        np.ones((4, 3, 1, 1), np.float32),
        (4,),
        device="ascend910b2",
    )
    assert not any("grad_bias" in note for note in empty.notes)


# -- what is launched ----------------------------------------------------------------------


def launched(r: Any) -> list[str]:
    return list(r.kernels["name"])


def test_masked_gradients_launch_nothing(layer: Any) -> None:
    case = layer(spatial=(6, 6))
    dy, x, w = case.operands((FP16,) * 3)
    kernels = ("conv_backprop_input", "conv_backprop_filter", "bias_grad")
    for i, kernel in enumerate(kernels):
        mask = (i == 0, i == 1, i == 2)
        r: Any = convolution_backward(
            dy, x, w, **case.arguments, output_mask=mask, device="ascend910"
        )
        assert [name for name in launched(r) if name in kernels] == [kernel]
        assert [out is not None for out in r.outputs] == list(mask)
    none = convolution_backward(
        dy, x, w, **case.arguments, output_mask=(False,) * 3, device="ascend910"
    )
    assert (none.runs, none.workspace_bytes) == ((), 0)


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_the_filter_gradient_launches_the_documented_sequence(device: str, layer: Any) -> None:
    case = layer(n=2, cin=32, cout=32, spatial=(20, 20), kernel=(3, 3))
    dy, x, w = case.operands((FP16,) * 3)
    r: Any = convolution_backward(
        dy, x, w.astype(np.float16), **case.arguments, output_mask=(False, True, False),
        device=device, tiling={"conv_backprop_filter": FilterTiling(
            base_m=32, base_n=48, base_k=32, slab_k=64, k_parts=2)},
    )  # fmt: skip
    body = ["trans_data", "trans_data", "mem_set", "conv_backprop_filter", "trans_data"]
    assert launched(r) == [*body, "cast"]  # the gradient leaves as fp16, it was fp32
    blocked = 2 * (x.size + dy.size)  # 32 channels fill their blocks
    assert r.workspace_bytes == blocked + 4 * w.size * 2  # and dw twice in fp32


def test_each_operand_is_converted_once(layer: Any) -> None:
    case = layer(spatial=(6, 6), kernel=(3, 3))
    dy, x, w = case.operands((FP32,) * 3)
    r: Any = convolution_backward(dy, x, w, **case.arguments, cube_math_type=1, device="ascend910")
    assert launched(r) == [
        *("cast", "trans_data", "cast", "trans_data"),  # grad_output and weight as fp16
        *("conv_backprop_input", "trans_data", "cast"),
        *("cast", "trans_data"),  # input; grad_output is there already
        *("conv_backprop_filter", "trans_data"),
        "bias_grad",
    ]


# -- traffic -------------------------------------------------------------------------------


# -- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["ascend910", "ascend310p", "ascend910b2"])
@pytest.mark.parametrize("kind", [FP16, FP32, BF16])
@pytest.mark.parametrize("number", range(4))
def test_cube_math_types_per_product(
    layer: Any, close: Any, device: str, kind: DType, number: int
) -> None:
    case = layer(spatial=(3, 3))
    if MATH[device][kind.name][number] is not None:
        check(case, device, (kind,) * 3, number, close)
        return
    dy, x, w = case.operands((kind,) * 3)
    for rules, error in (("documented", RuleError), ("hardware", ArgumentError)):
        with pytest.raises(error, match=r"cube_math_type|dtype"):
            convolution_backward(
                dy, x, w, **case.arguments, cube_math_type=number, device=device, rules=rules
            )


@rows("tests/data/mistakes/ops.yaml", "arguments_that_do_not_fit", "change, words")
def test_arguments_that_do_not_fit(layer: Any, change: dict[str, Any], words: str) -> None:
    case = layer()
    with pytest.raises(ArgumentError, match=words):
        convolution_backward(
            *case.operands((FP16,) * 3), **case.arguments | change, device="ascend910b2"
        )


@pytest.mark.parametrize(
    ("extra", "size", "told"),
    [
        (0, 6, None),
        (1, 7, None),
        (1, 6, "makes grad_output (7, 7); it is (6, 6), and"),
        (0, 7, "makes grad_output (6, 6); it is (7, 7), and"),
        (5, 6, "makes grad_output (11, 11); it is (6, 6), and"),
    ],
)
def test_an_output_padding_that_does_not_fit_has_a_note(
    extra: int, size: int, told: str | None
) -> None:
    """Of an input of 3, filter 2, stride 2: gradOutput counts, as in the library."""
    x, w = spec((1, 8, 3, 3), "fp16"), spec((8, 8, 2, 2), "fp16")
    dy = spec((1, 8, size, size), "fp16")
    for padding in (extra, [extra] * 4):
        result = convolution_backward(
            dy, x, w, stride=2, transposed=True, output_padding=padding, device="ascend910b2"
        )
        notes = [note for note in result.notes if "which makes grad_output" in note]
        if told is None:
            assert not notes
        else:
            assert told in notes[0]


def test_what_pytorch_says_of_an_output_padding() -> None:
    """It refuses 1 at stride 1 and dilation 1, and takes it at dilation 2; the library does not."""
    dy, w = spec((1, 8, 5), "fp16"), spec((8, 8, 2), "fp16")
    x = spec((1, 8, 3), "fp16")
    usual: dict[str, Any] = {"transposed": True, "device": "ascend910b2", "output_padding": 1}
    result = convolution_backward(dy, x, w, **usual)
    assert any("PyTorch takes values below stride (1,) or" in note for note in result.notes)
    deep_dy, deep_x = spec((1, 8, 6, 6, 6), "fp16"), spec((1, 8, 3, 3, 3), "fp16")
    usual["dilation"] = 2
    filters = spec((8, 8, 2, 2, 2), "fp16")
    with pytest.raises(RuleError, match=r"values below the dilation \(2, 2, 2\) alone, which PyT"):
        convolution_backward(deep_dy, deep_x, filters, **usual)
    result = convolution_backward(deep_dy, deep_x, filters, rules="hardware", **usual)
    assert not any("PyTorch takes" in note for note in result.notes)
