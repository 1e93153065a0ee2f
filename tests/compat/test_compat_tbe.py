"""The tensor compiler's call form: documented examples, lazy tensors, feeds and refusals.

conv2d and conv3d of the tensor compiler: random layers against float64, and what is refused.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat.tbe import dsl, tvm
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import from_5hd, from_6hd, to_5hd, to_6hd, to_fracz, to_fracz_3d
from npusim.problem.reference import conv_filter_grad, conv_forward, relative_error
from tests.sampled import examples
from tests.tables import rows

Array = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).parent / "examples"


def integers(seed: int, *shape: int, top: int = 4) -> Array:
    """Small whole numbers: their sums are exact in fp16 and fp32."""
    return np.random.default_rng(seed).integers(-top, top, shape).astype(np.float16)


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# -- the documented examples ---------------------------------------------------------------


def test_the_documented_filter_example_runs_unchanged() -> None:
    names = example("tbe_conv2d_backprop_filter")
    lazy = names["filter_backprop"]
    assert (lazy.shape, lazy.dtype) == ((1, 1, 16, 16), "float32")
    assert lazy.name == names["kernel_name"]
    x, dy = integers(1, 1, 16, 7, 7), integers(2, 1, 16, 7, 7)
    result = lazy.run({"fmap": to_5hd(x, 16), "out_backprop": to_5hd(dy, 16)}, device="ascend910")
    assert result.grad_weight.shape == lazy.shape
    want = conv_filter_grad(x, dy, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    np.testing.assert_array_equal(result.grad_weight.reshape(16, 16), want.reshape(16, 16))


def test_the_documented_input_example_runs_unchanged() -> None:
    names = example("tbe_conv3d_backprop_input")
    lazy = names["dedx"]
    assert (lazy.shape, lazy.dtype) == ((1, 4, 8, 30 * 44, 16), "float16")
    assert names["input_sizes"] == [1, 4, 30, 44, 128]  # not written to
    result = lazy.run(
        {
            "filter": npusim.spec(names["shape_filter_frac"], "fp16"),
            names["dedy"]: npusim.spec(names["shape_dedy"], "fp16"),
        },
        device="ascend910",
        timeline=False,
    )
    assert result.outputs is None
    assert [run.name for run in result.runs] == ["conv_backprop_input"]


# -- other problems ------------------------------------------------------------------------

#: A 3x3 filter on a 6x5 map of 20 -> 36 channels in 4 groups: groups share fractals.
FILTER: dict[str, Any] = {
    "strides": [2, 1],
    "padding": [1, 0, 1, 1],
    "dilations": [1, 1, 1, 1],
    "groups": 4,
}
FILTER_X, FILTER_DY, FILTER_SIZES = (2, 2, 6, 5, 16), (2, 3, 3, 5, 16), [36, 5, 3, 3]


def filter_call(
    x: Any = FILTER_X, dy: Any = FILTER_DY, sizes: Any = FILTER_SIZES, kind: str = "float16",
    drop: str = "", **para: Any,
) -> Lazy:  # fmt: skip
    given = {k: v for k, v in {**FILTER, **para}.items() if k != drop}
    return dsl.conv2d_backprop_filter(
        input_x=tvm.placeholder(x, name="x", dtype=kind) if isinstance(x, tuple) else x,
        out_backprop=tvm.placeholder(dy, name="dy", dtype="float16"),
        filter_sizes=sizes,
        para_dict=given,
    )


INPUT: dict[str, Any] = {
    "strides": [1, 1, 2, 1, 1],
    "pads": [1, 0, 1, 0, 0, 1],
    "dilations": [1, 1, 1, 1, 1],
    "res_dtype": "float16",
    "group_dict": {
        "real_g": 1, "mag_factor": 1, "cin1_g": 2, "cout_g": 16, "cin_ori": 20, "cout_ori": 8
    },
}  # fmt: skip
INPUT_W, INPUT_DY = (2 * 2 * 2 * 2, 1, 16, 16), (1, 3, 1, 2, 4, 16)
INPUT_FILTER, INPUT_SIZE = [8, 20, 2, 2, 2], [1, 3, 4, 4, 20]


def input_call(
    w: Any = INPUT_W, size: Any = INPUT_SIZE, bias: Any = None, drop: str = "", **para: Any
) -> Lazy:
    given = {k: v for k, v in {**INPUT, **para}.items() if k != drop}
    if bias is not None:
        given["tensor_bias"] = bias
    return dsl.conv3d_backprop_input(
        filter=tvm.placeholder(w, name="filter", dtype="float16"),
        out_backprop=tvm.placeholder(INPUT_DY, name="dedy", dtype="float16"),
        filter_size=INPUT_FILTER,
        input_size=size,
        para_dict=given,
    )


def test_numpy_numbers_and_arrays_are_numbers_and_lists() -> None:
    plain = filter_call()
    arrays: dict[str, Any] = {key: np.array(value) for key, value in FILTER.items()}
    assert filter_call(sizes=np.array(FILTER_SIZES), **arrays).shape == plain.shape
    numbers: dict[str, Any] = {
        key: [np.int32(n) for n in FILTER[key]] for key in FILTER if key != "groups"
    }
    lazy = filter_call(sizes=tuple(map(np.int64, FILTER_SIZES)), groups=np.int8(4), **numbers)
    assert lazy.shape == plain.shape
    feeds = {"x": npusim.spec(FILTER_X, "fp16"), "dy": npusim.spec(FILTER_DY, "fp16")}
    assert lazy.run(feeds, device="tiny").cycles == plain.run(feeds, device="tiny").cycles
    grouped = {key: np.int64(value) for key, value in INPUT["group_dict"].items()}
    given = input_call(size=np.array(INPUT_SIZE), pads=np.array(INPUT["pads"]), group_dict=grouped)
    assert given.shape == input_call().shape


def test_the_filter_has_the_names_of_prototype_and_parameter_list() -> None:
    x = tvm.placeholder(FILTER_X, name="x", dtype="float16")
    dy = tvm.placeholder(FILTER_DY, name="dy", dtype="float16")
    lazy = dsl.conv2d_backprop_filter(x, dy, filter_size=FILTER_SIZES, para_dict=FILTER)
    assert lazy.shape == dsl.conv2d_backprop_filter(x, dy, FILTER_SIZES, FILTER).shape
    for wrong in ({}, {"filter_size": FILTER_SIZES, "filter_sizes": FILTER_SIZES}):
        with pytest.raises(ArgumentError, match="needs filter_sizes, by this name or filter_size"):
            dsl.conv2d_backprop_filter(x, dy, para_dict=FILTER, **wrong)


def test_kernel_name_names_the_tensor_and_its_errors() -> None:
    lazy = filter_call(kernel_name="dw_of_layer_3")
    assert lazy.name == "dw_of_layer_3"
    with pytest.raises(ArgumentError, match=r"^dw_of_layer_3: no array was fed"):
        lazy.run({})


def test_later_changes_of_the_lists_do_not_reach_the_call() -> None:
    para = {**FILTER, "strides": [2, 1]}
    sizes = [36, 5, 3, 3]
    x = tvm.placeholder(FILTER_X, name="x", dtype="float16")
    dy = tvm.placeholder(FILTER_DY, name="dy", dtype="float16")
    lazy = dsl.conv2d_backprop_filter(x, dy, sizes, para)
    para["strides"][0] = 1
    sizes[0] = 1
    feeds = {x: npusim.spec(FILTER_X, "fp16"), dy: npusim.spec(FILTER_DY, "fp16")}
    assert lazy.run(feeds, device="tiny").cycles > 0


def test_one_placeholder_may_serve_twice() -> None:
    same = tvm.placeholder((1, 1, 4, 4, 16), name="same", dtype="float16")
    para = {"strides": [1, 1], "padding": [0] * 4, "dilations": [1] * 4}
    lazy = dsl.conv2d_backprop_filter(same, same, (16, 16, 1, 1), para)
    x = integers(10, 1, 16, 4, 4)
    got = lazy.run({"same": to_5hd(x, 16)}, device="tiny").grad_weight
    assert got is not None
    rows = x.astype(np.float64).reshape(16, 16)
    np.testing.assert_array_equal(got.reshape(16, 16), rows @ rows.T)


# -- refusals at build time ----------------------------------------------------------------

BUILD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown dtype": ({"kind": "float8"}, "input_x.dtype is float8; "),
    "missing": ({"drop": "strides"}, "para_dict lacks ['strides']; it needs strides, padding"),
    "unknown key": ({"stride": [1, 1]}, "para_dict has the unknown key 'stride'"),
    "array": ({"x": np.zeros(3)}, "input_x is a ndarray; it must be a tvm.placeholder"),
}


@pytest.mark.parametrize("case", BUILD)
def test_a_bad_filter_call_is_refused_when_it_is_built(case: str) -> None:
    changes, message = BUILD[case]
    with pytest.raises(ArgumentError, match=re.escape(message)):
        filter_call(**changes)


INPUT_BUILD: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"kernel_name": 7}, "kernel_name is 7; it must be text, such as 'conv3d_backprop_in"),
    "missing": ({"drop": "pads"}, "para_dict lacks ['pads']; it needs strides, pads, dilations"),
    "bias shape": (
        {"bias": Placeholder((16,), "float16", "bias")},
        "tensor_bias is float16 of shape (16,); it must be float16 of (20,)",
    ),
    "bias dtype": (
        {"bias": Placeholder((20,), "float32", "bias")},
        "tensor_bias is float32 of shape (20,); it must be float16 of (20,)",
    ),
    "bias array": ({"bias": np.zeros(20)}, "tensor_bias is a ndarray; it must be a tvm.placeho"),
}


@pytest.mark.parametrize("case", INPUT_BUILD)
def test_a_bad_input_call_is_refused_when_it_is_built(case: str) -> None:
    changes, message = INPUT_BUILD[case]
    with pytest.raises(ArgumentError, match=re.escape(message)):
        input_call(**changes)


def test_results_cannot_be_combined() -> None:
    with pytest.raises(ArgumentError, match="these functions cannot be combined: run that one"):
        filter_call(x=input_call())


@pytest.mark.parametrize("shape", [(), (1, 0), (1, 2.0), "12", 5, (True, 2)])
def test_placeholders_have_shapes(shape: Any) -> None:
    with pytest.raises(ArgumentError, match=r"placeholder 'a' has shape .* integers >= 1"):
        tvm.placeholder(shape, name="a")


# -- refusals of feeds ---------------------------------------------------------------------

GOOD: dict[Any, Any] = {
    "x": npusim.spec(FILTER_X, "fp16"),
    "dy": npusim.spec(FILTER_DY, "fp16"),
}
OTHER = tvm.placeholder((1,), name="other")

FEEDS: dict[str, tuple[dict[Any, Any], str]] = {
    "missing": (
        {"x": GOOD["x"]},
        "conv2d_backprop_filter: no array was fed for placeholder 'dy' (2, 3, 3, 5, 16) float16",
    ),
    "unknown name": ({**GOOD, "z": GOOD["x"]}, "name 'z' is none of its inputs"),
    "near name": ({"x": GOOD["x"], "dyy": GOOD["dy"]}, "did you mean 'dy'"),
    "other placeholder": ({**GOOD, OTHER: 1}, "placeholder 'other' is none of its inputs"),
    "shape": (
        {**GOOD, "x": np.zeros((2, 2, 5, 5, 16), np.float16)},
        "fed for 'x' has shape (2, 2, 5, 5, 16); its placeholder has (2, 2, 6, 5, 16)",
    ),
    "dtype": (
        {**GOOD, "x": np.zeros(FILTER_X, np.float32)},
        "fed for 'x' is fp32; its placeholder is fp16: convert it with .astype('float16')",
    ),
}


@pytest.mark.parametrize("case", FEEDS)
def test_feeds_must_fit(case: str) -> None:
    feeds, message = FEEDS[case]
    with pytest.raises(ArgumentError, match=re.escape(message)):
        filter_call().run(feeds, device="tiny")


def test_a_placeholder_is_fed_once() -> None:
    lazy = filter_call()
    with pytest.raises(ArgumentError, match="placeholder 'x' is fed twice"):
        lazy.run({**GOOD, lazy.inputs[0]: GOOD["x"]}, device="tiny")


def test_placeholders_of_one_name_are_fed_as_themselves() -> None:
    x, dy = tvm.placeholder(FILTER_X, "float16"), tvm.placeholder(FILTER_DY, "float16")
    lazy = dsl.conv2d_backprop_filter(x, dy, FILTER_SIZES, FILTER)
    assert lazy.run({x: GOOD["x"], dy: GOOD["dy"]}, device="tiny").outputs is None
    with pytest.raises(ArgumentError, match="2 placeholders are called 'placeholder'; feed by"):
        lazy.run({"placeholder": GOOD["x"]}, device="tiny")


def test_the_device_and_the_options_are_passed_on() -> None:
    result = filter_call().run(GOOD, device="ascend910", cores=0b1)
    assert result.device.name == "ascend910"
    assert {run.cores for run in result.runs} == {1}


def para_of(c: Convolution, **more: Any) -> dict[str, Any]:
    pads = {2: "padding", 3: "pads"}[c.dims]
    return {
        "strides": list(c.stride),
        pads: list(c.sides),
        "dilations": [1, 1, *c.dilation],
        "groups": c.groups,
        **more,
    }


def blocked(c: Convolution, x: Array, w: Array) -> tuple[Array, Array]:
    if c.dims == 2:
        return to_5hd(x, 16), to_fracz(w, c.groups, 16)
    return to_6hd(x, 16), to_fracz_3d(w, c.groups, 16)


def planned(c: Convolution, **more: Any) -> tuple[Lazy, dict[str, Array], tuple[Array, Array]]:
    """The lazy output of a layer of random numbers, its feeds, and the plain operands."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in (c.x_shape, c.w_shape))
    feeds = dict(zip(("x", "w"), blocked(c, x, w), strict=True))
    x_gm, w_gm = (tvm.placeholder(a.shape, name=n, dtype="float16") for n, a in feeds.items())
    function = dsl.conv2d if c.dims == 2 else dsl.conv3d
    return function(x_gm, w_gm, list(c.w_shape), para_of(c, **more)), feeds, (x, w)


def plain(c: Convolution, array: Array) -> Array:
    depth, plane = c.out[:-2], c.out[-2:]
    whole = array.reshape(c.n, *depth, c.cout1, *plane, 16)
    return (from_5hd if c.dims == 2 else from_6hd)(whole, c.cout)


@examples(16)
@given(st.data())
def test_any_layer_matches_float64(data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from((2, 3)))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(dims))

    groups = data.draw(st.sampled_from((1, 1, 2, 3)))
    size, kernel, stride, dilation = each(1, 6), each(1, 3), each(1, 3), each(1, 2)
    if dims == 3:
        dilation = (1, *dilation[1:])  # as the sister's limits have it
    pads = tuple(zip(each(0, 2), each(0, 2), strict=True))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    assume(all(n + sum(p) >= r for n, p, r in zip(size, pads, reach, strict=True)))
    c = Convolution(
        n=data.draw(st.integers(1, 2)),
        cin=groups * data.draw(st.integers(1, 40 // groups)),
        cout=groups * data.draw(st.integers(1, 40 // groups)),
        spatial=size, kernel=kernel, stride=stride, padding=pads, dilation=dilation, groups=groups,
    )  # fmt: skip
    kind = data.draw(st.sampled_from(("float16", "float32")))
    lazy, feeds, (x, w) = planned(c, res_dtype=kind)
    result = lazy.run(feeds, device="ascend910", timeline=False)
    (y,) = result.outputs or ()
    assert y is not None
    assert (y.shape, y.dtype.name) == (lazy.shape, kind)
    want = conv_forward(x, w, c.stride, c.padding, c.dilation, c.groups)
    assert relative_error(plain(c, y), want) < (1e-3 if kind == "float16" else 1e-5)
    assert result.operator == "convolution"


PLANE = Convolution(cin=32, cout=48, spatial=(9, 8), kernel=(3, 3), padding=((1, 1), (1, 1)))


def test_a_bias_is_added_to_every_channel() -> None:
    bias = np.arange(48).astype(np.float16)
    given = tvm.placeholder((48,), name="bias", dtype="float16")
    lazy, feeds, (x, w) = planned(PLANE, tensor_bias=given, kernel_name="y")
    (y,) = lazy.run({**feeds, "bias": bias}, device="ascend910").outputs or ()
    assert (lazy.name, len(lazy.inputs)) == ("y", 3)
    assert y is not None
    want = conv_forward(x, w, (1, 1), PLANE.padding, (1, 1), 1)
    want = want + np.arange(48.0)[:, None, None]
    assert relative_error(plain(PLANE, y), want) < 1e-3


X, W = (Placeholder(shape, "float16", name) for name, shape in
        (("x", (1, 2, 9, 8, 16)), ("w", (18, 3, 16, 16))))  # fmt: skip


@rows("tests/data/mistakes/compat.yaml", "refusals", "changes, parameter")
def test_refusals(changes: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RuleError) as caught:
        dsl.conv2d(X, W, [48, 32, 3, 3], para_of(PLANE, **changes))
    assert caught.value.parameter == parameter
    assert str(caught.value).startswith("conv2d")


def test_operands_that_do_not_fit() -> None:
    sizes, para = [48, 32, 3, 3], para_of(PLANE)
    with pytest.raises(ArgumentError, match="output H would be -7: the filter reaches 19"):
        dsl.conv2d(X, W, sizes, para_of(PLANE, dilations=[1, 1, 9, 1]))
    thin = Placeholder((17, 3, 16, 16), "float16", "w")
    with pytest.raises(RuleError, match=r"filters is .* it must be float16 of \(18, 3, 16, 16\)"):
        dsl.conv2d(X, thin, sizes, para)
    with pytest.raises(RuleError, match=r"input_x.shape"):
        dsl.conv2d(Placeholder((1, 2, 9, 8), "float16", "x"), W, sizes, para)
    with pytest.raises(ArgumentError, match=r"must be float16 of \(48,\), one value per channel"):
        dsl.conv2d(X, W, sizes, para | {"tensor_bias": Placeholder((4,), "float16", "b")})
    with pytest.raises(ArgumentError, match=r"filters is a ndarray; it must be a tvm\.place"):
        dsl.conv2d(X, np.zeros(3), sizes, para)  # type: ignore[arg-type]
