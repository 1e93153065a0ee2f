"""Vector kernels on a UB of a few KiB: they cut their work, or say which figure is too small.

In which order tiles of an implicit matrix product come, by what it brings from main memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import CapacityError
from npusim.call.call import simulate
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import cast
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.kernels.vector.bias_grad import BiasGrad
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import group_plan

PLAN = group_plan(8, 8, 2, 16)
MAP, BLOCKS = (1, 20, 5, 7), (1, 1, 2, 5, 7, 16)

#: Kernels whose pieces do not fit 2 KiB as they are cut otherwise.
KERNELS: dict[str, Callable[[], Kernel]] = {
    "mem_set": lambda: MemSet(Tensor("out", (9000,), FP32, "out")),
    "cast": lambda: cast(Tensor("x", (9000,), FP16, "in"), Tensor("y", (9000,), FP32, "out")),
    "sum_parts": lambda: SumParts(
        Tensor("parts", (3, 9000), FP32, "in"), Tensor("sum", (9000,), FP32, "out")
    ),
    "clear_blocks": lambda: ClearBlocks(Tensor("dw", (1, 9, 16, 16), FP32, "inout"), PLAN),
    "bias_add": lambda: BiasAdd(
        Tensor("y", (1, 1, 2, 300, 16), FP16, "inout"), Tensor("bias", (20,), FP16, "in")
    ),
    "bias_grad": lambda: BiasGrad(
        Tensor("dy", (2, 3, 900), FP16, "in"), Tensor("db", (3,), FP16, "out")
    ),
    "elementwise": lambda: Elementwise(
        "elementwise",
        (Step("u", "mul", "x", "scale"), Step("y", "relu", "u")),
        (Tensor("x", (2, 2, 300, 16), FP16),),
        (Tensor("y", (2, 2, 300, 16), FP16, "out"),),
        (Tensor("scale", (32,), FP32),),
        compute=FP16,
    ),
    "trans_data": lambda: TransData(
        Conversion(kind="to_blocked", c0=16),
        Tensor("x", MAP, FP16, "in"),
        Tensor("y", BLOCKS, FP16, "out"),
    ),
}


def outputs(kernel: Kernel, size: str, name: str = "ascend910b2") -> Any:
    """What the kernel computes of random operands on a UB of a size."""
    device = load_device(name).replace("memories.UB.size", size)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(t.shape).astype(t.dtype.numpy)
        for t in kernel.tensors
        if t.role != "out"
    ]
    return npusim.simulate(kernel, device, *arrays, timeline=False).outputs


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", ["4KiB", "7KiB"])
def test_kernels_cut_their_work_to_a_small_ub(name: str, size: str) -> None:
    kernel = KERNELS[name]()
    for got, want in zip(outputs(kernel, size), outputs(kernel, "192KiB"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6 if got.dtype == np.float32 else 2e-3)


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"mem_set"}))
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
def test_a_ub_without_room_is_named_with_what_is_needed(name: str, device: str) -> None:
    words = rf"{name}: {device} has 32 B of UB \(memories\.UB\.size\), the smallest piece takes \d+"
    with pytest.raises(CapacityError, match=words + " B; use a device with a larger UB"):
        outputs(KERNELS[name](), "32B", device)


@pytest.mark.parametrize("tiling", ["auto", "library"])
def test_a_filter_gradient_whose_sums_cannot_leave_says_so(tiling: str) -> None:
    device = load_device("ascend310p", {"memories.UB.size": "1KiB"})
    dims = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    maps = npusim.spec((2, 1, 14, 14, 16), "fp16")
    with pytest.raises(
        CapacityError, match=r"UB 1024 B \(results leave through it.*no tiling fits"
    ):
        npusim.ops.conv2d_backprop_filter(
            maps, maps, [16, 16, 3, 3], dims, device=device, tiling=tiling
        )


@pytest.mark.parametrize("size", ["2KiB", "1KiB", "512B"])
def test_a_convolution_says_so_too(size: str) -> None:
    device = load_device("ascend910b2").replace("memories.UB.size", size)
    maps = npusim.spec((1, 16, 8, 8), "fp16")
    with pytest.raises(CapacityError, match=r"memories\.UB\.size.*smallest piece.*larger UB"):
        npusim.ops.convolution_backward(
            maps, maps, npusim.spec((16, 16, 3, 3), "fp16"), (16,), padding=1, device=device
        )


def test_rows_that_two_slabs_read_come_from_main_memory_once() -> None:
    """Slabs of one image follow each other, so that a small L2 still has what they share."""
    s = Convolution(
        n=8,
        cin=32,
        cout=32,
        spatial=(1, 56, 56),
        kernel=(1, 3, 3),
        padding=((0, 0), (1, 1), (1, 1)),
    )
    dy = Tensor("dy", (8, 1, 2, 56, 56, 16), FP16, "in")
    w = Tensor("w", (18, 2, 16, 16), FP16, "in")
    dx = Tensor("dx", (8, 1, 2, 56, 56, 16), FP16, "out")
    kernel = ConvBackpropInput(s, Tiling(base_m=112, base_n=32, base_k=32), dy, w, dx)
    device = load_device("ascend310p").replace("l2.size", "1MiB")
    run = simulate(kernel, device, timeline=False).runs[0]
    read = sum(row.bytes for row in run.traffic if row.src == device.main_memory_name)
    assert dy.size_bytes <= read < 1.15 * dy.size_bytes
