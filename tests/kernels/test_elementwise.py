"""Element-wise expressions against float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, INT8
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.machine.isa.operands import Tensor
from tests.kernels.expressions import (
    FLAT,
    MAPS,
    Array,
    Row,
    bits,
    kernel_of,
    operands,
    wanted,
)

DEVICES = ("ascend910", "ascend910b2", "ascend950pr")
#: Images, blocks, positions and C0: tails, odd positions, one image and several, tiny and large.
SHAPES = ((1, 2, 49, 16), (3, 3, 225, 16), (2, 1, 2501, 16), (1, 1, 1, 8))


def outputs(kernel: Elementwise, device: str, given: dict[str, Array], **options: Any) -> Any:
    arrays = [given[one.name] for one in kernel.tensors if one.role != "out"]
    result = npusim.simulate(kernel, device, *arrays, timeline=False, **options)
    names = [one.name for one in kernel.tensors if one.role != "in"]
    assert result.outputs is not None
    return dict(zip(names, result.outputs, strict=True))


def compare(row: Row, kernel: Elementwise, device: str) -> None:
    given = operands(kernel)
    got, want = outputs(kernel, device, given), wanted(row, kernel, given)
    assert set(got) == set(want)
    for name, values in want.items():
        if name == "m":  # numbers around zero may round to it
            wrong = (bits(got[name], kernel) == 1) != (values > 0)
            assert (np.abs(values[wrong]) < 1e-6).all()
            continue
        narrow = got[name].dtype == np.float16
        np.testing.assert_allclose(
            got[name].astype(np.float64), values, rtol=6e-4 if narrow else 2e-5, atol=2e-3
        )


@pytest.mark.parametrize(
    ("device", "shape"),
    [
        *((device, shape) for device in DEVICES for shape in SHAPES[1:2]),
        *((device, shape) for device in DEVICES[:1] for shape in SHAPES[:1] + SHAPES[2:]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MAPS)
def test_expressions_of_maps_match_float64(name: str, shape: tuple[int, ...], device: str) -> None:
    compare(MAPS[name], kernel_of(MAPS[name], shape, FP16), device)


@pytest.mark.parametrize(
    ("device", "count"),
    [*((device, 40_001) for device in DEVICES), *(("ascend910", n) for n in (1, 255))],
)
@pytest.mark.parametrize("name", FLAT)
def test_flat_expressions_match_float64(name: str, count: int, device: str) -> None:
    compare(FLAT[name], kernel_of(FLAT[name], (count,), FP32), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(6, 2, 49, 16), (4, 1, 2501, 16), (4, 3, 1, 8)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4, 6])
def test_vectors_of_groups_of_images(groups: int, shape: tuple[int, ...], device: str) -> None:
    """A factor for each group and channel in fp16, and its gradient beside that of the map.

    Numbers for each channel alone go with them, and races are searched for.
    """
    images, blocks, _, c0 = shape
    if images % groups:
        groups = images
    x, dy = (Tensor(name, shape, FP16) for name in ("x", "dy"))
    own = groups * blocks * c0
    kernel = Elementwise(
        "factor",
        (
            *(Step("p", "mul", "dy", "s"), Step("dx", "add", "p", "b")),
            Step("part", "mul", "dy", "x"),
        ),
        (x, dy),
        (Tensor("dx", shape, FP16, "out"),),
        (Tensor("s", (own,), FP16), Tensor("b", (blocks * c0,), FP32)),
        (Tensor("ds", (own,), FP32, "inout"), Tensor("db", (own,), FP32, "inout")),
        ("part", "dy"),
    )
    given = operands(kernel)
    got = outputs(kernel, device, given)
    wide = {name: values.astype(np.float64) for name, values in given.items()}
    grouped = (groups, images // groups, blocks, -1, c0)
    s, b = wide["s"].reshape(groups, 1, blocks, 1, c0), wide["b"].reshape(blocks, 1, c0)
    dx = (wide["dy"].reshape(grouped) * s + b).reshape(shape)
    np.testing.assert_allclose(got["dx"].astype(np.float64), dx, rtol=6e-4, atol=2e-3)
    for name, values in (("ds", wide["dy"] * wide["x"]), ("db", wide["dy"])):
        want = values.reshape(grouped).sum((1, 3)).reshape(-1)
        np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-3)


def test_other_types_of_maps() -> None:
    for dtype in (BF16, FP32):
        row = MAPS["update"]
        kernel = kernel_of(row, (2, 2, 49, 16), dtype)
        given = operands(kernel)
        got = outputs(kernel, "ascend910b2", given)["y"]
        want = wanted(row, kernel, given)["y"]
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=5e-3, atol=5e-3)


def test_values_are_rounded_once() -> None:
    """The sum is fp32 until it is stored, unless the step says fp16."""
    shape = (1, 1, 16, 16)
    x = np.full(shape, 2048.0, np.float16)
    one = np.ones(shape, np.float16)
    steps = (Step("y", "add", "x", "z"), Step("y", "add", "y", "z"))
    for dtype, want in ((None, 2050.0), (FP16, 2048.0)):
        row = Row(tuple(step._replace(dtype=dtype) for step in steps), "x z", "y")
        kernel = kernel_of(row, shape, FP16)
        assert (outputs(kernel, "ascend910", {"x": x, "z": one})["y"] == want).all()


def test_overflow_follows_the_device() -> None:
    kernel = kernel_of(MAPS["mul"], (1, 1, 16, 16), FP16, saturate=True)
    given = {name: np.full((1, 1, 16, 16), 60_000.0, np.float16) for name in "xz"}
    assert (outputs(kernel, "ascend910", given)["y"] == 65504).all()
    assert np.isinf(outputs(replace(kernel, saturate=False), "ascend910b2", given)["y"]).all()


@pytest.mark.parametrize("name", ["sums", "gradient_sums"])
def test_sums_repeat_bit_for_bit(name: str) -> None:
    kernel = kernel_of(MAPS[name], (3, 2, 2501, 16), FP16)
    given = operands(kernel)
    first, second = (outputs(kernel, "ascend910", given) for _ in range(2))
    few = outputs(kernel, "ascend910", given, cores="0-4")
    for one, array in first.items():
        np.testing.assert_array_equal(array, second[one])
        np.testing.assert_allclose(few[one], array, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_rows_in_blocks_that_no_256_elements_divide(device: str) -> None:
    # Images lie 1,024 elements apart in UB: halved by rows of 1,000, elements of others were added.
    shape = (64, 3, 1, 1000)
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float16)
    dy, db = Tensor("dy", shape, FP16), Tensor("db", (3000,), FP32, "inout")
    kernel = Elementwise("row_sums", (), (dy,), sums=(db,), summed=("dy",))
    result = npusim.simulate(kernel, device, x, np.zeros(3000, np.float32), timeline=False)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    want = x.astype(np.float64).sum(0).reshape(3000)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-5, atol=1e-4)


def test_sums_are_cleared_before() -> None:
    kernel = kernel_of(MAPS["sums"], (1, 2, 49, 16), FP16)
    assert kernel.before == (MemSet(kernel.sums[0], few=True, more=kernel.sums[1:]),)
    assert kernel_of(MAPS["relu"], (1, 2, 49, 16), FP16).before == ()


def test_half_precision_takes_less_time_on_the_vector_unit() -> None:
    row = MAPS["update_relu"]
    wide = row._replace(steps=tuple(step._replace(dtype=None) for step in row.steps))
    half, full = (
        npusim.simulate(kernel_of(one, (8, 8, 3136, 16), FP16), "ascend910").runs[0].cycles
        for one in (row, wide)
    )
    # Casts, mul and add in fp32 and two steps in fp16, against all in fp32: 7 and 8 cycles.
    assert half / full == pytest.approx(7 / 8, rel=0.03)


X = Tensor("x", (1, 2, 9, 16), FP16)
Y = Tensor("y", (1, 2, 9, 16), FP16, "out")
M = Tensor("m", (36,), INT8)
V = Tensor("v", (32,), FP32)
S = Tensor("s", (32,), FP32, "inout")
RELU = Step("y", "relu", "x")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reads": (M,), "writes": ()}, "it needs a map of at least one element"),
        ({"reads": (replace(X, shape=(1, 2, 8, 16)),)}, "y has shape .* it has 256 elements"),
        ({"reads": (replace(X, shape=(1, 2, 9, 4)),), "writes": ()}, "C0 of x is 4"),
        ({"vectors": (replace(V, shape=(16,)),)}, r"v is fp32 of shape \(16,\); .* \(32,\)"),
        ({"vectors": (replace(V, dtype=INT8),)}, "v is int8 of shape"),
        ({"vectors": (replace(V, shape=(64,)),)}, r"v is fp32 of shape \(64,\)"),
        ({"sums": (replace(S, dtype=FP16),), "summed": ("y",)}, "s is fp16 of shape"),
        ({"reads": (replace(X, shape=(288,)),), "vectors": (V,)}, "and 4 sizes"),
        ({"steps": ()}, "no step makes y"),
        ({"steps": (RELU._replace(a="z"),)}, r"y = relu\(z\) reads z, which nothing made"),
        ({"steps": (RELU._replace(operation="tanh"),)}, "no operation 'tanh'; use one of abs"),
        ({"steps": (RELU._replace(b=1.0),)}, "relu takes one value"),
        ({"steps": (Step("y", "add", "x", 1.0),)}, "add takes two values"),
        ({"steps": (Step("y", "adds", "x", "x"),)}, "adds takes a value and a number"),
        ({"steps": (Step("y", "select", "x", 0.0),)}, "select takes a mask"),
        ({"steps": (Step("y", "select", "x", 0.0, "x"),)}, "takes x as a mask, which is none"),
        ({"steps": (Step("n", "gt", "x", 0.0), Step("y", "relu", "n"))}, "computes with the mask"),
        ({"steps": (Step("y", "gt", "x", 0.0),)}, "y is a mask, where a map is needed"),
        ({"steps": (Step("y", "muls", "v", 1.0),), "vectors": (V,)}, "y is a vector"),
        ({"steps": (Step("y", "cast", "x", dtype=FP16),)}, "the steps convert nothing for y"),
        ({"sums": (S,), "summed": ()}, "1 sums of 0 values"),
        ({"sums": (S,), "summed": ("q",)}, "no step makes q"),
        ({"compute": BF16}, "computes in bf16; use fp16 or fp32"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^one: .*{text}"):
        Elementwise(**{"called": "one", "steps": (RELU,), "reads": (X,), "writes": (Y,), **fields})
