"""In which order tiles of an implicit matrix product come, by what it brings from main memory."""

from __future__ import annotations

from npusim.base.dtypes import FP16
from npusim.call.call import simulate
from npusim.device.catalog import load_device
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling
from npusim.shapes.convolution import Convolution


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
