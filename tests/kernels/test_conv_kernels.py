"""The convolution kernels on operands in their own layouts, against float64.

Output sizes other than the natural one (output padding), every depth parameter and the index
arithmetic of the input gradient are tested here, below the operators.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.call.call import simulate
from npusim.call.spec import Spec
from npusim.call.tilings.choice import chosen
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm, Tiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.implicit_gemm.tiling import FORMS
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import from_6hd, from_fracz_3d, to_6hd, to_fracz_3d
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad
from tests.problem.layouts.exchanged import to_fracz_3d_transposed
from tests.sampled import examples, slow_if

Array = np.ndarray[Any, Any]
#: The tiling of a kernel whose tiling is to be chosen.
ANY = Tiling(base_m=1, base_n=16, base_k=1, form="taps")
DEVICES = ("tiny", "ascend910", "ascend910b2", "ascend950pr")


def integers(rng: np.random.Generator, shape: tuple[int, ...], kind: DType) -> Array:
    """Small integers: all sums are exact in fp32, so results must be equal."""
    return rng.integers(-2, 3, shape).astype(kind.numpy)


@st.composite
def shapes(draw: st.DrawFn, kind: DType) -> Convolution:
    """A 3-D convolution, now and then with an output of another size than the natural one.

    Some strides, pads and dilations are more than fields of instructions hold.
    """

    def triple(low: int, high: int, *wide: int) -> tuple[int, int, int]:
        d, h, w = (draw(st.sampled_from((*range(low, high + 1), *wide))) for _ in range(3))
        return d, h, w

    def pads() -> tuple[int, int]:
        before, after, _ = triple(0, 2, 130)
        return before, after

    groups = draw(st.sampled_from((1, 1, 2, 3, 8, 17)))
    sizes: dict[str, Any] = {
        "n": draw(st.integers(1, 2)),
        "cin": groups * draw(st.integers(1, 36 // groups)),
        "cout": groups * draw(st.integers(1, 36 // groups)),
        "spatial": triple(1, 7),
        "kernel": triple(1, 3),
        "stride": triple(1, 3, 64, 10**9),
        "padding": (pads(), pads(), pads()),
        "dilation": triple(1, 2, 100),
        "groups": groups,
        "c0": 32 // kind.bytes,
    }
    try:
        natural = Convolution(**sizes)
    except ArgumentError:
        assume(False)
    assume(prod(natural.out) < 2000)
    if draw(st.booleans()):
        # What output padding of the stride and more leaves of a transposed layer's input.
        sizes["outputs"] = tuple(max(1, y - draw(st.integers(0, 2))) for y in natural.out)
    return Convolution(**sizes)


def natural_outputs(s: Convolution, y: Array) -> Array:
    """``y`` with zeros where the natural output size is larger."""
    whole = np.zeros((*y.shape[:2], *replace(s, outputs=None).out))
    whole[tuple(slice(0, size) for size in y.shape)] = y
    return whole


def parts(s: Convolution) -> tuple[Any, ...]:
    """Stride, padding, dilation and groups as the reference takes them."""
    return s.stride, s.padding, s.dilation, s.groups


def gemm(
    kernel: type[ImplicitGemm], s: Convolution, operands: tuple[Array, Array], tiling: Any,
    kind: DType, device: str, hf32: bool = False,
) -> Array:  # fmt: skip
    """Run forward convolution or input gradient on (N, C, D, H, W) and filter operands."""
    source, weight = operands
    exchanged = kernel is ConvBackpropInput and kind is FP32
    pack = to_fracz_3d_transposed if exchanged else to_fracz_3d
    arrays = to_6hd(source, s.c0), pack(weight, s.groups, s.c0)
    channels, size = (s.cin, s.spatial) if kernel is ConvBackpropInput else (s.cout, s.out)
    blocks = -(-channels // s.c0)
    result = Tensor("y", (s.n, size[0], blocks, size[1], size[2], s.c0), kind, "inout")
    x, w = (Tensor(n, a.shape, kind, "in") for n, a in zip("xw", arrays, strict=True))
    made = kernel(s, tiling or ANY, x, w, result, hf32)
    # Stale numbers where a kernel that needs no clearing must write everything itself.
    stale = np.full(result.shape, 0 if made.needs_clear else 99, kind.numpy)
    if not made.shape.reads_any:
        assert made.needs_clear
        return from_6hd(stale, channels)
    if tiling is None:
        chip = load_device(device)
        made = chosen(made, chip, tuple(range(chip.groups)))
        stale = np.full(result.shape, 0 if made.needs_clear else 99, kind.numpy)
    r = simulate(made, device, *arrays, stale, timeline=False)
    assert r.outputs is not None
    assert r.outputs[0] is not None
    return from_6hd(r.outputs[0], channels)


TILINGS = st.none() | st.builds(
    Tiling,
    base_m=st.sampled_from((1, 16, 23, 32)),
    base_n=st.sampled_from((16, 32, 48)),
    base_k=st.sampled_from((8, 16, 40)),
    step_planes=st.integers(1, 3),
    step_columns=st.integers(1, 10),
    l1_slots=st.integers(1, 2),
    weight_slots=st.integers(1, 2),
    l0_slots=st.integers(1, 2),
    l0c_slots=st.integers(1, 2),
    form=st.sampled_from(FORMS),
    even_n=st.booleans(),
)


@examples(120)
@given(st.data(), st.sampled_from((FP16, BF16, FP32)), st.sampled_from(DEVICES), TILINGS)
def test_input_gradient_and_forward_match_float64(
    data: st.DataObject, kind: DType, device: str, tiling: Tiling | None
) -> None:
    assume(kind.name in load_device(device).cube.rates)  # type: ignore[union-attr]
    s = data.draw(shapes(kind))
    if tiling is not None and tiling.form != "taps":  # a forward convolution has no phases
        windows = (ConvBackpropInput, ConvForward) if tiling.form == "window" else (ConvForward,)
        made = [kernel.geometry_of(s) for kernel in windows]
        assume(all(axis.fits_window() for g in made for axis in (g.h, g.w)))
    rng = np.random.default_rng(0)
    x = integers(rng, (s.n, s.cin, *s.spatial), kind)
    w = integers(rng, (s.cout, s.cin // s.groups, *s.kernel), kind)
    dy = integers(rng, (s.n, s.cout, *s.out), kind)
    try:
        dx = gemm(ConvBackpropInput, s, (dy, w), tiling, kind, device)
        y = gemm(ConvForward, s, (x, w), tiling, kind, device)
    except CapacityError:
        assert tiling is not None
        assume(False)
    want = conv_input_grad(natural_outputs(s, dy), w, x.shape, *parts(s))
    np.testing.assert_array_equal(dx, want.astype(kind.numpy))
    inside = tuple(slice(0, size) for size in y.shape)
    np.testing.assert_array_equal(y, conv_forward(x, w, *parts(s))[inside].astype(kind.numpy))


SIZES: dict[str, st.SearchStrategy[Any]] = {
    "base_m": st.sampled_from((16, 32)),
    "base_n": st.sampled_from((16, 48)),
    "base_k": st.sampled_from((16, 32)),
    "slab_k": st.sampled_from((16, 24, 64)),
    "l1_slots": st.integers(1, 2),
    "l0c_slots": st.integers(1, 2),
    "form": st.sampled_from(("window", "rows", "taps")),
}

#: With parts of K, or with groups of tiles of which either operand may stay.
FILTER_TILINGS = st.builds(FilterTiling, **SIZES, k_parts=st.integers(1, 4)) | st.builds(
    FilterTiling,
    **SIZES,
    **{name: st.integers(1, 3) for name in ("group", "passes")},
    **{name: st.just(4) for name in ("dy_slots", "x_slots")},
    **{name: st.sampled_from((1, 4)) for name in ("dy_slabs", "x_slabs")},
    keeps=st.sampled_from(("dy", "x")),
)


@examples(100)
@given(
    st.data(),
    st.sampled_from((FP16, BF16, FP32)),
    st.sampled_from(DEVICES),
    FILTER_TILINGS,
)
def test_filter_gradient_matches_float64(
    data: st.DataObject, kind: DType, device: str, tiling: FilterTiling
) -> None:
    assume(kind.name in load_device(device).cube.rates)  # type: ignore[union-attr]
    s = data.draw(shapes(kind))
    rng = np.random.default_rng(1)
    x = integers(rng, (s.n, s.cin, *s.spatial), kind)
    dy = integers(rng, (s.n, s.cout, *s.out), kind)
    arrays = to_6hd(x, s.c0), to_6hd(dy, s.c0)
    plan = s.plan
    rows = plan.real_groups * s.kernel[0] * plan.cin1_g * s.taps
    dw = Tensor("dw", (rows, plan.cout_g // 16, 16, s.c0), FP32, "inout")
    x_gm, dy_gm = (Tensor(n, a.shape, kind, "in") for n, a in zip(("x", "dy"), arrays, strict=True))
    if tiling.form == "rows" and s.kernel[1] != 1:
        tiling = replace(tiling, form="window")
    if tiling.form != "taps":
        assume(all(s.axis(i).fits_window(whole=True) for i in (1, 2)))
    kernel = ConvBackpropFilter(s, tiling, x_gm, dy_gm, dw)
    stale = np.full(dw.shape, 0 if kernel.needs_clear else 99, np.float32)
    got = stale
    if kernel.shape.reads_any:
        try:
            r = simulate(kernel, device, *arrays, stale, timeline=False)
        except CapacityError:
            assume(False)
        assert r.outputs is not None
        assert r.outputs[0] is not None
        got = r.outputs[0]
    else:
        assert kernel.needs_clear
    shape = (s.cout, s.cin // s.groups, *s.kernel)
    want = conv_filter_grad(x, natural_outputs(s, dy), s.kernel, *parts(s))
    np.testing.assert_array_equal(from_fracz_3d(got, shape, s.groups, s.c0), want)


@pytest.mark.parametrize(("device", "bits"), [("ascend910b2", 11), ("ascend950pr", 10)])
def test_hf32_rounds_operands_and_not_results(device: str, bits: int) -> None:
    s = Convolution(n=1, cin=8, cout=8, spatial=(1, 4, 4), kernel=(1, 1, 1), c0=8)
    dy = np.zeros((1, 8, 1, 4, 4), np.float32)
    dy[0, 0] = 1 / 3
    w = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1, 1)
    dx = gemm(ConvBackpropInput, s, (dy, w), None, FP32, device, hf32=True)
    want = {11: 0.333374023, 10: 0.333251953}[bits]  # worked examples of the format
    np.testing.assert_allclose(dx[0, 0], np.full((1, 4, 4), want), rtol=1e-8)
    exact = gemm(ConvBackpropInput, s, (dy, w), None, FP32, device)
    np.testing.assert_array_equal(exact[0, 0], dy[0, 0])


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize(
    ("stride", "form", "images", "planes"),
    [(1, "window", 3, 2), (1, "window", 5, 3), (2, "phases", 2, 2)],
)
def test_whole_images_of_a_1x1_filter_come_with_one_move(
    stride: int, form: str, images: int, planes: int, device: str
) -> None:
    """Five images in loads of so many; they lie side by side, each with its planes."""
    s = Convolution(
        n=5, cin=80, cout=96, spatial=(1, 7, 7), kernel=(1, 1, 1), stride=(1, stride, stride)
    )
    rng = np.random.default_rng(6)
    dy, w = integers(rng, (5, 96, *s.out), FP16), integers(rng, (96, 80, 1, 1, 1), FP16)
    tiling = Tiling(
        base_m=s.out[1] * s.out[2], base_n=48, base_k=32, step_planes=planes, step_columns=planes,
        form=form, images=images, even_n=True,
    )  # fmt: skip
    x = (5, 80, *s.spatial)
    want = conv_input_grad(dy, w, x, *parts(s))
    np.testing.assert_array_equal(
        gemm(ConvBackpropInput, s, (dy, w), tiling, FP16, device), want.astype(np.float16)
    )
    shapes = (5, 96, *s.out[1:]), (5, 80, 7, 7), (96, 80, 1, 1)
    given, source, weight = (npusim.spec(one, "fp16") for one in shapes)
    result = npusim.ops.convolution_backward(
        given, source, weight, stride=stride, device=device, output_mask=(True, False, False),
        tiling={"conv_backprop_input": tiling},
    )  # fmt: skip
    run = next(run for run in result.runs if run.name == "conv_backprop_input")
    lines = run.timeline
    assert lines is not None
    moved = [
        lines.bytes[i] for i in range(len(lines.start)) if lines.ops[lines.op[i]] == "data_move"
    ]
    assert images * planes * s.out[1] * s.out[2] * 32 in moved


def test_slabs_without_gradient_are_left_to_the_clearing() -> None:
    s = Convolution(n=1, cin=16, cout=16, spatial=(1, 9, 16), kernel=(1, 1, 1), stride=(1, 3, 1))
    dy = Tensor("dy", (1, 1, 1, 3, 16, 16), FP16, "in")
    w = Tensor("w", (1, 1, 16, 16), FP16, "in")
    dx = Tensor("dx", (1, 1, 1, 9, 16, 16), FP16, "out")
    kernel = ConvBackpropInput(s, Tiling(base_m=16, base_n=16, base_k=16), dy, w, dx)
    assert kernel.needs_clear
    assert kernel.plane.rows.real.tolist() == [int(row % 3 == 0) for row in range(9)]
    r = simulate(kernel, "ascend910b2", timeline=False)
    assert r.runs[0].macs == 3 * 16 * 16 * 16


def test_images_do_not_share_tiles_of_single_taps() -> None:
    with pytest.raises(ArgumentError, match="images is 2, but form 'taps' adds up reads of other"):
        Tiling(base_m=64, base_n=16, base_k=16, form="taps", images=2)


def test_a_window_wider_than_the_fields_of_a_load_is_refused() -> None:
    s = Convolution(n=1, cin=16, cout=16, spatial=(1, 130, 1), kernel=(1, 2, 1), stride=(1, 64, 1))
    x, w, y = (Tensor(name, (1,), FP16, "in") for name in "xwy")
    with pytest.raises(ArgumentError, match=r"loads know strides to 63.*use form 'taps'"):
        ConvForward(s, Tiling(base_m=16, base_n=16, base_k=16), x, w, y)
    filter_tiling = FilterTiling(base_m=16, base_n=16, base_k=16, slab_k=16)
    with pytest.raises(ArgumentError, match=r"loads know strides to 63.*use form 'taps'"):
        ConvBackpropFilter(s, filter_tiling, x, y, w)


def test_tile_widths_are_multiples_of_16() -> None:
    with pytest.raises(ArgumentError, match=r"tiling base_n is 24.*multiple of 16"):
        Tiling(base_m=16, base_n=24, base_k=16)


@pytest.mark.parametrize(
    "name", ["base_m", "base_k", "step_planes", "step_columns", "l1_slots", "l0_slots"]
)
def test_tiling_counts_are_positive(name: str) -> None:
    sizes = {"base_m": 16, "base_n": 16, "base_k": 16}
    with pytest.raises(ArgumentError, match=rf"tiling {name} is 0; it must be >= 1"):
        Tiling(**sizes | {name: 0})  # type: ignore[arg-type]


def test_a_filter_that_reads_more_than_l1_holds_is_added_up_tap_by_tap() -> None:
    s = Convolution(
        n=1, cin=16, cout=16, spatial=(1, 300, 300), kernel=(1, 20, 20), dilation=(1, 15, 15)
    )  # fmt: skip
    chip = load_device("ascend910")
    tensors = (Tensor("x", s.x_shape, FP16, "in"), Tensor("w", (400, 1, 16, 16), FP16, "in"))
    forward = ConvForward(s, ANY, *tensors, Tensor("y", s.dy_shape, FP16, "out"))
    assert chosen(forward, chip, tuple(range(chip.groups))).tiling.form == "taps"
    memories = dict(chip.memories) | {"L1": replace(chip.memories["L1"], size_bytes=512)}
    with pytest.raises(CapacityError, match=r"L1 holds 512 B, .* but the input .* no tiling fits"):
        chosen(forward, replace(chip, memories=memories), (0,))


@pytest.mark.parametrize(
    ("spatial", "kernel", "dilation", "stride", "form"),
    [
        slow_if(True, (1, 200, 600), (1, 30, 8), (1, 1, 60), (1, 1, 1000), "single"),
        ((1, 2000, 150), (1, 4, 12), (1, 190, 1), (1, 1, 1), "taps"),
        ((1, 60, 60), (1, 3, 3), (1, 2, 2), (1, 1, 1), "window"),
    ],
)
def test_the_form_is_that_which_takes_least_time(
    spatial: Any, kernel: Any, dilation: Any, stride: Any, form: str
) -> None:
    """Few inputs, or taps far apart: a window over all of them multiplied mostly zeros."""
    c = Convolution(
        n=1, cin=16, cout=16, spatial=spatial, kernel=kernel, dilation=dilation, stride=stride
    )
    chip = load_device("ascend910b2")
    dy, w = Spec(c.dy_shape, FP16), Spec(c.w_shape, FP16)
    auto, library = (
        npusim.ops.convolution_backward(
            dy,
            Spec(c.x_shape, FP16),
            w,
            None,
            stride,
            0,
            dilation,
            output_mask=(True, False, False),
            device=chip,
            rules="hardware",
            tiling=tiling,
        ).runs[-2]
        for tiling in ("auto", "library")
    )
    # Over taps so far apart L1 has room for a window of small tiles alone, which nobody looks at.
    assert form == "taps" or all(other not in library.tiling for other in FORMS[1:])
    assert [other for other in FORMS[1:] if other in auto.tiling] == [form] * (form != "window")
    most = 1.15 if form == "taps" else 1  # both have it, in other slots
    assert auto.cycles + auto.launch_cycles <= most * (library.cycles + library.launch_cycles)
    if form == "single":
        assert auto.cycles * 3 < library.cycles
