"""The vendor library's rules on a 910, 310 and 310P: twelve layers of ResNet-50, and odd ones.

The layers, at a batch of 32 on the 32 cores of a 910, have the tilings that the rules as published
give when they are run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import npusim
from npusim import spec
from npusim.base.dtypes import FP16
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.vendor import library
from npusim.kernels.vendor.library_910 import Piece, Tile
from npusim.kernels.vendor.library_910_filter import Filter
from npusim.kernels.vendor.library_910_forward import Forward
from npusim.kernels.vendor.library_910_input import Input
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad, relative_error
from tests.sampled import crossed

CHIPS = ("ascend310", "ascend310p", "ascend910")


def tuples(value: Any) -> Any:
    """Lists of lists as tuples of tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


DATA = Path(__file__).parents[1] / "data" / "library_910.yaml"
#: Sizes of layers, and what the published rule chooses for the kernels of each.
LAYERS, FORWARD, FILTER, INPUT = zip(
    *(map(tuples, row.values()) for row in yaml.safe_load(DATA.read_text(encoding="utf-8"))),
    strict=True,
)


def layer(cin: int, cout: int, size: int, kernel: int, stride: int) -> Convolution:
    return Convolution(
        n=32,
        cin=cin,
        cout=cout,
        spatial=(size, size),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=((kernel // 2, kernel // 2),) * 2,
    ).lifted()


@pytest.mark.parametrize(("sizes", "expected"), [*zip(LAYERS, FORWARD, strict=True)])
def test_forward_tilings_are_the_published_rule_s(sizes: Any, expected: Any) -> None:
    rule, (cores, l1, resident, tile) = Forward(layer(*sizes), device(), 32), expected
    at = rule.cores_used()
    assert (*at.values(),) == (*cores, 1)
    found = rule.pieces(at)
    assert l1 in (found, None)
    assert (at["n"] == 1 and found[1] == rule.whole[1]) == resident
    assert rule.tile(*found, resident=resident) == tile


@pytest.mark.parametrize(("sizes", "expected"), [*zip(LAYERS, FILTER, strict=True)])
def test_tiles_of_filter_gradients_are_the_published_rule_s(sizes: Any, expected: Any) -> None:
    rule, (block, tile, slots, dy, x) = Filter(layer(*sizes), device(), 32), expected
    assert rule.tile(Tile(*block)) == (tile, slots)
    found = Piece(dy[0], 1, dy[1]), Piece(x[0], 1, x[1])
    assert rule.pieces(Tile(*block), Tile(*tile)) == found


@pytest.mark.parametrize(("sizes", "expected"), [*zip(LAYERS, INPUT, strict=True)])
def test_tilings_of_input_gradients_are_the_published_rule_s(sizes: Any, expected: Any) -> None:
    rule, (cores, tile, dy, weights) = Input(layer(*sizes), device(), 32), expected
    at = rule.cores_used()
    assert at == cores
    assert rule.tile(at) == tile
    assert rule.pieces(at, Tile(*tile)) == (dy, weights)


def device(name: str = "ascend910") -> Device:
    return load_device(name)


#: Batch, channels in and out, picture, filter, stride, padding.
ODD = (
    (1, 3, 8, (7, 5), (3, 3), 1, 1),
    (3, 40, 72, (13, 9), (3, 1), 2, 0),
    (5, 64, 48, (14, 14), (3, 3), 1, 1),
    (2, 33, 130, (9, 31), (1, 1), 2, 0),
    (2, 40, 150, (12, 27), (1, 1), 2, 0),
    (3, 130, 33, (27, 13), (1, 1), 3, 0),
    (4, 96, 32, (27, 11), (5, 5), 1, 2),
    (2, 48, 160, (6, 70), (2, 4), 2, 1),
)


@pytest.mark.compiled
@pytest.mark.parametrize(("chip", "sizes"), crossed(CHIPS, ODD))
def test_numbers_are_right_under_these_tilings(chip: str, sizes: Any) -> None:
    """Forward and both gradients; that the call runs shows that its buffers fit the chip."""
    n, cin, cout, picture, kernel, stride, padding = sizes
    rng = np.random.default_rng(n)
    x = rng.uniform(-1, 1, (n, cin, *picture)).astype(np.float16)
    w = rng.uniform(-1, 1, (cout, cin, *kernel)).astype(np.float16)
    at: dict[str, Any] = {"stride": (stride, stride), "padding": ((padding, padding),) * 2}
    at |= {"dilation": (1, 1), "groups": 1}
    y = conv_forward(x, w, **at)
    dy = rng.uniform(-1, 1, y.shape).astype(np.float16)
    options: dict[str, Any] = {"device": chip, "tiling": "library"}
    forward: Any = npusim.ops.convolution(x, w, None, stride, padding, **options)
    both: Any = npusim.ops.convolution_backward(
        dy, x, w, None, stride, padding, output_mask=(True, True, False), **options
    )
    gradients = ["conv_backprop_input", "conv_backprop_filter"]
    for result, names in ((forward, ["conv_forward"]), (both, gradients)):
        told = [note for note in result.notes if "vendor's library" in note]
        assert [note.split(":")[0] for note in told] == names
    assert relative_error(forward.outputs[0], y) < 1e-3
    assert relative_error(both.grad_input, conv_input_grad(dy, w, x.shape, **at)) < 1e-3
    assert relative_error(both.grad_weight, conv_filter_grad(x, dy, kernel, **at)) < 1e-3


def notes(chip: str, cin: int, kernel: int, dims: int = 2, **layer: Any) -> list[str]:
    x, w = spec((2, cin, *(32,) * dims), "fp16"), spec((64, cin, *(kernel,) * dims), "fp16")
    result = npusim.ops.convolution(x, w, device=chip, tiling="library", **layer)
    return [note for note in result.notes if "tiled" in note]


@pytest.mark.compiled
@pytest.mark.parametrize("chip", CHIPS)
def test_what_the_rule_rejects_is_tiled_by_default(chip: str) -> None:
    """Filters of 7x7 over a block of channels, and taps that lie apart; with depth a plain choice.

    Where no rule is public nothing is said.
    """
    ruled = "conv_forward: tiled by the rule of the vendor's library"
    assert notes(chip, 16, 3) == [ruled]
    for rejected in (notes(chip, 16, 7, stride=2, padding=3), notes(chip, 16, 3, dilation=2)):
        (note,) = rejected
        assert note.startswith("conv_forward: tiled by default")
        assert "extrapolated" in note
    assert notes("ascend910b2", 16, 3) == []
    (note,) = notes(chip, 16, 3, dims=3)
    assert note.startswith("conv_forward: tiled by a plain choice")
    assert note.endswith("it has a depth")


@pytest.mark.compiled
def test_the_default_of_a_first_layer_is_the_library_s() -> None:
    """32 x 2 x 1 blocks with every buffer single: rows of 7x7 filters for 32 blocks fit L1."""
    c = layer(3, 64, 224, 7, 2)
    tiling = library.tiled(ConvForward, c, device(), 32, FP16).tiling
    assert (tiling.base_m, tiling.base_n, tiling.base_k) == (512, 32, 16)
    slots = (tiling.l1_slots, tiling.weight_slots, tiling.l0_slots, tiling.l0c_slots)
    assert slots == (1, 1, 1, 1)


def test_tiles_of_dw_are_shared_out_evenly() -> None:
    """384 -> 384 channels, 3x3 of 13x13: 24 tiles of 12 x 18 blocks, in 4 parts for 32 cores."""
    c = layer(384, 384, 13, 3, 1)
    tiling = library.tiled(ConvBackpropFilter, c, device(), 32, FP16).tiling
    tiles = 384 // tiling.base_m * (384 * 9 // tiling.base_n)
    assert tiles * tiling.k_parts % 32 == 0
    assert tiles * tiling.k_parts // 2 % 32 > 0


@pytest.mark.compiled
def test_scattered_gradients_insert_no_zeros() -> None:
    """Of a strided 1x1 layer dy is multiplied as it is; of a padded 3x3 with zeros inserted."""

    def filled(kernel: int) -> int:
        x, w = spec((2, 64, 28, 28), "fp16"), spec((64, 64, kernel, kernel), "fp16")
        dy = spec((2, 64, 14, 14), "fp16")
        result = npusim.ops.convolution_backward(
            dy, x, w, None, 2, kernel // 2, output_mask=(True, False, False),
            device="ascend910", tiling="library",
        )  # fmt: skip
        (run,) = (run for run in result.runs if run.computes == "input")
        return int(sum(row.bytes for row in run.traffic if row.src == "IMM" and row.dst == "L1"))

    assert filled(1) == 0 < filled(3)
