"""``tiling="library"`` without a rule of the vendor: the least bound among plain forms."""

from __future__ import annotations

import pytest

import npusim
from npusim.base.records import replace
from npusim.call.spec import spec
from npusim.machine.device.catalog import load_device
from npusim.workloads import find_layer

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize("layer", ["res2_1x1_out", "res3_3x3_down", "res5_3x3"])
def test_it_is_a_plain_form_and_no_faster_than_the_best(device: str, layer: str) -> None:
    """Zeros are inserted wherever a load can, all cores work, and nothing but slots overlaps."""
    c = replace(find_layer(f"resnet50/{layer}"), n=8)
    # Where the vendor's rules are known they take the place of the plain choice.
    machine = load_device(device).replace("library_rules", "no")
    dy, x, w = (spec(shape, "fp16") for shape in (c.dy_shape, c.x_shape, c.w_shape))

    def tilings(rule: str) -> dict[str, tuple[str, int]]:
        result = npusim.ops.convolution_backward(
            *(dy, x, w), output_mask=(True, True, False), device=machine, tiling=rule,
            stride=c.stride, padding=[p for p, _ in c.padding], timeline=False,
        )  # fmt: skip
        runs = (run for run in result.runs if "backprop" in run.name)
        return {run.name: (run.tiling, run.cycles) for run in runs}

    library, best = tilings("library"), tilings("auto")
    assert set(library) == {"conv_backprop_input", "conv_backprop_filter"}
    extras = ("unit flag", "stay", "images", "cores", "tiles for one", "L0 3", "phases")
    for name, (text, cycles) in library.items():
        assert not any(extra in text for extra in extras), text
        assert best[name][1] <= cycles


def test_a_small_layer_has_many_cores_though_each_takes_time_to_launch() -> None:
    """It had 3 of 32, and the call that was measured took a fifth less (`L011`)."""
    x, w = spec((3, 7, 13, 13), "fp32"), spec((7, 7, 3, 3), "fp32")
    result = npusim.ops.convolution(
        x, w, padding=1, device="ascend950pr", tiling="library", timeline=False
    )
    (run,) = (run for run in result.runs if run.name == "conv_forward")
    assert run.cores > 16
