"""conv2d and conv3d of the tensor compiler: random layers against float64, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError, RuleError
from npusim.compat.tbe import dsl, tvm
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.layout import from_5hd, from_6hd, to_5hd, to_6hd, to_fracz, to_fracz_3d
from npusim.shapes.convolution import Convolution
from npusim.shapes.reference import conv_forward, relative_error
from tests.drawn import examples

Array = np.ndarray[Any, Any]


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


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"strides": [1, 64]}, "strides"),
        ({"padding": [1, 1]}, "padding"),
        ({"padding": [0, 0, 0, 256]}, "padding"),
        ({"dilations": [2, 1, 1, 1]}, "dilations"),
        ({"groups": 5}, "groups"),
        ({"groups": 2}, "input_x.shape"),
        ({"res_dtype": "int8"}, "res_dtype"),
    ],
)
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
