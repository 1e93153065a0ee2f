"""Layers whose windows lie side by side are products of matrices: times, numbers, what is said."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import spec
from npusim.base.errors import CapacityError
from npusim.compat import aclnn as acl
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.matmul.matmul import Tiling
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_forward
from npusim.results import Result
from npusim.workloads import ConvLayer, Edge, GraphBuilder
from tests.ops import window_layers
from tests.ops.window_layers import RESULTS, drawn, expected_us, time_us, wrong
from tests.sampled import some

PRODUCTS = {
    "output": "linear_forward",
    "input": "linear_backprop_input",
    "weight": "linear_backprop_weight",
}


def layer(
    n: int, cin: int, spatial: tuple[int, ...], kernel: tuple[int, ...], cout: int
) -> Convolution:
    """A layer whose filter is as large as its stride."""
    return Convolution(n=n, cin=cin, cout=cout, spatial=spatial, kernel=kernel, stride=kernel)


def timed(c: Convolution, result: str, device: str = "ascend910b2", **options: Any) -> Result:
    """One result of a layer in fp16."""
    dy, x, w = (spec(shape, "fp16") for shape in (c.dy_shape, c.x_shape, c.w_shape))
    options = {"stride": c.stride, "device": device, "timeline": False, **options}
    if result == "output":
        return npusim.ops.convolution(x, w, **options)
    mask = (result == "input", result == "weight", False)
    return npusim.ops.convolution_backward(dy, x, w, output_mask=mask, **options)


def names(result: Result) -> list[str]:
    """The kernels that were launched."""
    return [run.name for run in result.runs]


@pytest.mark.parametrize(("result", "most"), [("output", 44), ("weight", 40), ("input", 41)])
def test_a_filter_as_large_as_the_map_is_one_product(result: str, most: float) -> None:
    """They took 272, 629 and 1,362 us; a product of the same sums takes 36 to 42 us."""
    c = layer(1024, 64, (7, 7), (7, 7), 1024)
    for tiling in ("auto", "library"):
        found = timed(c, result, tiling=tiling)
        assert names(found) == [PRODUCTS[result]]
        assert [run.computes for run in found.runs] == [result]
        assert found.time_us < most
        assert any("the filter is the whole input" in note for note in found.notes)
        assert found.workspace_bytes == 0
    assert found.sizes == {"windows": (1024,) * 2, "Cin x taps": (3136,) * 2, "Cout": (1024,) * 2}


@pytest.mark.parametrize(
    ("c", "most"),
    [
        (layer(32, 3, (224, 224), (14, 14), 1024), {"output": 122, "weight": 109, "input": 97}),
        (layer(1, 3, (16, 224, 224), (2, 16, 16), 1024), {"output": 37, "weight": 41, "input": 44}),
    ],
)
def test_patches_between_blocks_and_of_clips(c: Convolution, most: dict[str, float]) -> None:
    """Input gradients took 909 and 473 us, and filter gradients of the clip 798 us."""
    for result, us in most.items():
        assert timed(c, result).time_us < us


@pytest.mark.parametrize("images", [16_384, 65_536])
def test_many_images_of_one_window_are_planned_at_once(images: int) -> None:
    """They took 13 to 55 s to plan and were refused then; now a launch of a product each."""
    c = layer(images, 3, (2, 14, 14), (2, 14, 14), 1280)
    for result in RESULTS:
        assert names(timed(c, result))[-1] in (PRODUCTS[result], "cast")


@pytest.mark.parametrize("result", RESULTS)
def test_the_library_multiplies_windows_on_a_950_only(result: str) -> None:
    c = layer(4, 16, (12, 12), (3, 3), 64)
    product = PRODUCTS[result]
    assert product in names(timed(c, result, "ascend950pr", tiling="library"))
    assert product not in names(timed(c, result, "ascend910b2", tiling="library"))


@pytest.mark.parametrize(
    "c",
    [
        Convolution(n=2, cin=16, cout=32, spatial=(8, 8), kernel=(1, 1)),
        Convolution(n=2, cin=16, cout=32, spatial=(7, 7), kernel=(7, 7), padding=((1, 1),) * 2),
        Convolution(n=2, cin=16, cout=32, spatial=(7, 7), kernel=(7, 7), groups=2),
        Convolution(n=2, cin=16, cout=32, spatial=(7, 7), kernel=(4, 4), dilation=(2, 2)),
        Convolution(n=2, cin=16, cout=32, spatial=(9, 9), kernel=(4, 4), stride=(4, 4)),
        Convolution(n=2, cin=16, cout=32, spatial=(1, 1), kernel=(4, 4), transposed=True),
    ],
)
def test_layers_that_are_no_product(c: Convolution) -> None:
    """Filters of 1x1, padding, groups, dilation, elements that no window reads, transposed."""
    dy, x, w = (spec(shape, "fp16") for shape in (c.dy_shape, c.x_shape, c.w_shape))
    sizes: dict[str, Any] = {"stride": c.stride, "padding": [before for before, _ in c.padding]}
    sizes |= {"dilation": c.dilation, "groups": c.groups, "transposed": c.transposed}
    forward = npusim.ops.convolution(x, w, device="ascend910b2", **sizes)
    back = npusim.ops.convolution_backward(dy, x, w, device="ascend910b2", **sizes)
    assert not {*names(forward), *names(back)} & {*PRODUCTS.values()}


def test_a_tiling_says_which_kernel_is_wanted() -> None:
    c = layer(64, 16, (4, 4), (4, 4), 64)
    own = {"conv_forward": GemmTiling(base_m=16, base_n=16, base_k=16, form="taps")}
    assert "conv_forward" in names(timed(c, "output", tiling=own))
    tiling = Tiling(base_m=16, base_n=32, base_k=64)
    found = timed(c, "output", tiling={"matmul": tiling})
    assert found.tilings["linear_forward"].base_n == 32
    for word in ("tuned", "auto"):
        assert names(timed(c, "weight", tiling=word))[0] in ("linear_backprop_weight", "mem_set")


def test_memory_counts_views_once() -> None:
    """Blocks of channels would be five times as large as these images of three channels."""
    c = layer(4096, 3, (14, 14), (14, 14), 64)
    sizes = [2 * np.prod(shape) for shape in (c.dy_shape, c.x_shape, c.w_shape)]
    chip = npusim.load_device("ascend910b2")
    room = int(sum(sizes) + sizes[2])
    assert timed(c, "weight", chip.replace("main_memory.size", f"{2 * room}B")).cycles  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match="use a smaller input"):
        timed(c, "weight", chip.replace("main_memory.size", f"{room - 1}B"))  # type: ignore[arg-type]


@pytest.mark.drawn
@pytest.mark.parametrize("windows", [False, True])
def test_random_layers_are_products_and_right(windows: bool) -> None:
    """Time of a product on operands as they lie and of transpositions, numbers of float64."""
    random = Random(48 + windows)
    for number in range(some(20, least=4)):
        large, small = (drawn(random, windows=windows, large=size) for size in (True, False))
        result = RESULTS[number % 3]
        assert time_us(large, result) <= 1.3 * expected_us(large, result), f"{result} of {large}"
        assert not wrong(small, result, number)


@pytest.mark.slow
def test_many_random_layers() -> None:
    for count, windows in ((200, False), (100, True)):
        found = window_layers.compared(Random(count), count, windows=windows)
        assert len(found) > 2.9 * count
        assert found[0][0] <= 1.3, found[0]


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("windows", [(1, 1), (2, 3)])
def test_a_bias_is_added_and_its_gradient_is_summed(
    device: str, n: int, windows: tuple[int, int]
) -> None:
    c = layer(n, 3, (2 * windows[0], 3 * windows[1]), (2, 3), 20)
    data = np.random.default_rng(n)
    arrays = [c.x_shape, c.w_shape, (c.cout,), c.dy_shape]
    x, w, bias, dy = (data.integers(-3, 4, shape).astype(np.float16) for shape in arrays)
    made = npusim.ops.convolution(x, w, bias, stride=c.stride, device=device, check=True)
    wide_x, wide_w = (array.astype(np.float64) for array in (x, w))
    want = conv_forward(wide_x, wide_w, c.stride, c.padding, c.dilation, 1)
    want += bias.astype(np.float64).reshape(-1, 1, 1)
    assert made.outputs is not None
    np.testing.assert_array_equal(made.outputs[0], want.astype(np.float16))
    back = npusim.ops.convolution_backward(dy, x, w, (20,), c.stride, device=device, check=True)
    assert back.outputs is not None
    np.testing.assert_array_equal(back.outputs[2], dy.astype(np.float64).sum((0, 2, 3)))
    alone = npusim.ops.convolution_backward(
        dy, x, w, (20,), c.stride, device=device, output_mask=(False, False, True)
    )
    assert names(alone) == ["bias_grad"] * len(names(alone))


@pytest.mark.parametrize(
    "math", ["keep_dtype", "allow_fp32_down_precision", "use_fp16", "use_hf32"]
)
def test_arithmetic_is_the_one_asked_for(math: str) -> None:
    """With the types mixed results are those of the wider type, as of convolution kernels."""
    c = layer(4, 3, (4, 4), (2, 2), 20)
    data = np.random.default_rng(1)
    dy, x, w = (data.normal(size=shape) for shape in (c.dy_shape, c.x_shape, c.w_shape))
    arrays = dy.astype(np.float32), x.astype(np.float16), w.astype(np.float32)
    found = npusim.ops.convolution_backward(
        *arrays, stride=2, cube_math_type=math, device="ascend910b2", check=True
    )
    assert found.outputs is not None
    want = np.asarray(found.outputs[1], np.float64)
    exact = np.einsum(
        "nohw,nchiwj->ocij", arrays[0].astype(np.float64),
        x.astype(np.float16).astype(np.float64).reshape(4, 3, 2, 2, 2, 2),
    )  # fmt: skip
    limit = 2e-6 if math == "keep_dtype" else 2e-3
    assert np.linalg.norm(want - exact) < limit * np.linalg.norm(exact)
    assert np.asarray(found.outputs[1]).dtype == np.float32


def test_deterministic_sums_are_not_split() -> None:
    c = layer(4096, 3, (4, 4), (4, 4), 64)
    found = timed(c, "weight", deterministic=True)
    assert names(found) == ["linear_backprop_weight"]
    assert "mem_set" in names(timed(c, "weight"))


def test_the_vendors_call_form_launches_the_product() -> None:
    c = layer(8, 4, (3, 3), (3, 3), 16)
    data = np.random.default_rng(3)
    shapes = c.dy_shape, c.x_shape, c.w_shape
    dy, x, w = (data.integers(-2, 3, shape).astype(np.float16) for shape in shapes)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    stream = acl.aclrtCreateStream(device="ascend910b2")
    status, size, executor = acl.aclnnConvolutionBackwardGetWorkspaceSize(
        acl.aclCreateTensor(dy),
        acl.aclCreateTensor(x),
        acl.aclCreateTensor(w),
        None,
        acl.aclCreateIntArray([3, 3]),
        acl.aclCreateIntArray([0, 0]),
        acl.aclCreateIntArray([1, 1]),
        False,
        acl.aclCreateIntArray([0, 0]),
        1,
        acl.aclCreateBoolArray([True, True, False]),
        0,
        acl.aclCreateTensor(dx),
        acl.aclCreateTensor(dw),
        None,
    )
    assert (status, size) == (acl.ACLNN_SUCCESS, 0)
    assert acl.aclnnConvolutionBackward(None, size, executor, stream) == acl.ACLNN_SUCCESS
    assert executor is not None
    assert executor.result is not None
    assert names(executor.result) == [PRODUCTS["input"], PRODUCTS["weight"]]
    rows = dy.reshape(8, 16).astype(np.float64)
    np.testing.assert_array_equal(dw.reshape(16, -1), rows.T @ x.reshape(8, -1))
    np.testing.assert_array_equal(dx.reshape(8, -1), rows @ w.reshape(16, -1))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_launches_the_product_on_plain_values(mode: str) -> None:
    """The first fully connected layer of VGG as a convolution; eager calls take plain values."""
    conv = ConvLayer(name="fc", cin=64, cout=256, spatial=(7, 7), kernel=(7, 7), bias=True)
    builder = GraphBuilder("fc")
    image = builder.input("input", conv.x_shape)
    builder.add("fc", conv, [Edge(image, conv.x_shape)])
    workload = builder.workload("")
    found = npusim.step(workload, batch=64, mode=mode, device="ascend910b2")
    launched = {one.name: one for one in found.launched}
    for result in ("output", "weight"):
        timed_call = launched[f"fc.{result}"].timed.result
        assert timed_call is not None
        (run,) = timed_call.runs
        assert run.name == PRODUCTS[result]
