"""Epilogues of convolutions: the maps of the unfused kernels to the bit, and their sums."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, INT8
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm, Tiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.kernels.vector.epilogue import PRODUCT, Epilogue
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import to_6hd, to_fracz_3d
from tests.sampled import slow_if

Array = np.ndarray[Any, Any]

#: Sums of a batch normalisation; also of another value.
SUMS = (Step("pp", "mul", PRODUCT, PRODUCT),)
MASKED = (Step("y", "select", PRODUCT, 0.0, "m", FP16),)
ADDED = (Step("s", "add", PRODUCT, "z"), Step("y", "select", "s", 0.0, "m"))
COMPARED = (Step("c", "gt", "z", 0.0), Step("y", "select", PRODUCT, 0.0, "c"))
BIASED = (
    *(Step("h", "muls", "v", 0.5), Step("b", "add", PRODUCT, "h")),
    *(Step("m", "gt", "b", 0.0), Step("y", "relu", "b")),
)

#: Steps, what they read, write and take besides, and what is summed.
EPILOGUES: dict[str, tuple[tuple[Step, ...], str, str, str, str]] = {
    "sums": (SUMS, "", "", "", f"{PRODUCT} pp"),
    "mask": (MASKED, "m", "", "", ""),
    "add and mask": (ADDED, "z m", "", "", ""),
    "compare": (COMPARED, "z", "", "", ""),
    "bias, relu and sums": (BIASED, "", "m", "v", "y b"),
}


def epilogue_of(name: str, y: Tensor) -> Epilogue:
    """The epilogue of an output."""
    steps, reads, writes, vectors, summed = EPILOGUES[name]
    channels = y.shape[2] * y.shape[5]

    def tensor(one: str, role: str) -> Tensor:
        if one == "m":
            return Tensor(one, (prod(y.shape) // 8,), INT8, role)
        return Tensor(one, y.shape, y.dtype, role)

    def vector(one: str, role: str) -> Tensor:
        return Tensor(one, (channels,), FP32, role)

    return Epilogue(
        steps,
        tuple(tensor(one, "in") for one in reads.split()),
        tuple(tensor(one, "out") for one in writes.split()),
        tuple(vector(one, "in") for one in vectors.split()),
        tuple(vector(f"sum of {one}", "inout") for one in summed.split()),
        tuple(summed.split()),
    )


def convolution(kind: type[ImplicitGemm], s: Convolution, tiling: Tiling | None) -> ImplicitGemm:
    gradient = kind is ConvBackpropInput
    source, result = (s.out, s.spatial) if gradient else (s.spatial, s.out)
    read, made = (s.cout, s.cin) if gradient else (s.cin, s.cout)
    x, y = (
        (s.n, size[0], -(-channels // 16), size[1], size[2], 16)
        for size, channels in ((source, read), (result, made))
    )
    w = to_fracz_3d(np.zeros((s.cout, s.cin // s.groups, *s.kernel), np.float16), s.groups, 16)
    least = Tiling(base_m=1, base_n=16, base_k=1, form="taps")
    return kind(
        s,
        tiling or least,
        *(Tensor("x", x, FP16), Tensor("w", w.shape, FP16), Tensor("y", y, FP16, "out")),
    )


def arrays_of(kernel: ImplicitGemm, s: Convolution) -> dict[str, Array]:
    """Random operands; channels that fill a block are zeros."""
    rng = np.random.default_rng(3)
    gradient = isinstance(kernel, ConvBackpropInput)
    source, channels = (s.out, s.cout) if gradient else (s.spatial, s.cin)
    x = rng.standard_normal((s.n, channels, *source)).astype(np.float16)
    w = rng.standard_normal((s.cout, s.cin // s.groups, *s.kernel)) / 10
    made = {"x": to_6hd(x, 16), "w": to_fracz_3d(w.astype(np.float16), s.groups, 16)}
    for one in kernel.tensors:
        if one.name == "m" and one.role == "in":
            made["m"] = rng.integers(-128, 128, one.shape).astype(np.int8)
        elif one.role != "out" and one.name not in made:
            values = rng.standard_normal(one.shape) * (one.role == "in")
            made[one.name] = values.astype(one.dtype.numpy)
    return made


def ran(kernel: Any, device: Any, given: dict[str, Array], **options: Any) -> dict[str, Array]:
    arrays = [given[one.name] for one in kernel.tensors if one.role != "out"]
    result = npusim.simulate(kernel, device, *arrays, timeline=False, **options)
    names = [one.name for one in kernel.tensors if one.role != "in"]
    assert result.outputs is not None
    return dict(zip(names, result.outputs, strict=True))


def flat(tensor: Tensor) -> Tensor:
    """A blocked map of one depth as element-wise kernels see it."""
    if len(tensor.shape) != 6:
        return tensor
    n, _, c1, h, w, c0 = tensor.shape
    return replace(tensor, shape=(n, c1, h * w, c0))


def unfused(fused: ImplicitGemm, device: Any, given: dict[str, Array]) -> dict[str, Array]:
    """The product stored, and the steps by an element-wise kernel behind it."""
    plain = replace(fused, epilogue=None)
    epilogue = fused.epilogue
    assert epilogue is not None
    whole = epilogue.over(fused.y)
    product = ran(plain, device, given)["y"]
    steps = Elementwise(
        "steps",
        whole.steps,
        tuple(map(flat, whole.reads)),
        tuple(map(flat, whole.writes)),
        whole.vectors,
        whole.sums,
        whole.summed,
        whole.compute,
    )
    behind = {**given, PRODUCT: product}
    shaped = {
        one.name: behind[one.name].reshape(one.shape) for one in steps.tensors if one.role != "out"
    }
    return {"y": product, **ran(steps, device, shaped)}


def check(fused: ImplicitGemm, s: Convolution, device: Any) -> dict[str, Array]:
    given = arrays_of(fused, s)
    got, want = ran(fused, device, given), unfused(fused, device, given)
    assert set(got) == set(want)
    for name, array in want.items():
        if name.startswith("sum"):  # in another order
            np.testing.assert_allclose(got[name], array, rtol=2e-4, atol=2e-2)
        else:
            np.testing.assert_array_equal(got[name].reshape(-1), array.reshape(-1))
    return got


LAYERS = {
    "odd": Convolution(
        n=3, cin=20, cout=37, spatial=(1, 9, 11), kernel=(1, 3, 3),
        padding=((0, 0), (1, 1), (1, 1)),
    ),
    "one by one": Convolution(n=4, cin=64, cout=48, spatial=(1, 7, 7), kernel=(1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "layer"),
    [("ascend910", "odd"), ("ascend310", "one by one"), slow_if(True, "ascend310p", "odd")],
)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("kind", [ConvForward, ConvBackpropInput])
def test_maps_are_those_of_the_unfused_kernels(
    kind: type[ImplicitGemm], name: str, layer: str, device: str
) -> None:
    s = LAYERS[layer]
    kernel = convolution(kind, s, None)
    kernel = replace(kernel, epilogue=epilogue_of(name, kernel.y))
    chip = load_device(device)
    check(chosen(kernel, chip, tuple(range(chip.groups))), s, device)


TILINGS = {
    "part of a row": Tiling(base_m=7, base_n=16, base_k=16),
    "images": Tiling(base_m=99, base_n=32, base_k=32, images=2, step_planes=2, step_columns=2),
    "tiles in L1": Tiling(
        base_m=32, base_n=16, base_k=32, step_m=3, step_n=2, step_columns=40, step_planes=4
    ),
    "two tiles": Tiling(base_m=48, base_n=48, base_k=16, l0c_slots=2, even_n=True),
    "by taps": Tiling(base_m=48, base_n=48, base_k=16, form="taps"),
}  # fmt: skip


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("name", [slow_if(name in ("mask", "compare"), name) for name in EPILOGUES])
def test_every_form_of_tile_is_worked_on(name: str, tiling: str) -> None:
    kernel = convolution(ConvForward, LAYERS["odd"], TILINGS[tiling])
    check(replace(kernel, epilogue=epilogue_of(name, kernel.y)), LAYERS["odd"], "ascend910")


@pytest.mark.parametrize("size", ["9KiB", slow_if(True, "20KiB")])
@pytest.mark.parametrize("name", EPILOGUES)
def test_a_small_ub_takes_tiles_in_pieces(name: str, size: str) -> None:
    device = load_device("ascend910").replace("memories.UB.size", size)
    kernel = convolution(ConvForward, LAYERS["odd"], TILINGS["two tiles"])
    check(replace(kernel, epilogue=epilogue_of(name, kernel.y)), LAYERS["odd"], device)


@pytest.mark.parametrize("name", ["sums", "compare", "bias, relu and sums"])
def test_phases_of_a_strided_gradient(name: str) -> None:
    s = replace(LAYERS["odd"], stride=(1, 2, 2))
    kernel = convolution(
        ConvBackpropInput, s, Tiling(base_m=48, base_n=32, base_k=16, form="phases")
    )
    made = replace(kernel, epilogue=epilogue_of(name, kernel.y))
    if made.epilogue and made.epilogue.writes:
        with pytest.raises(ArgumentError, match=r"the bits of m lie apart.*read the map"):
            ran(made, "ascend910", arrays_of(made, s))
        return
    check(made, s, "ascend910")


@pytest.mark.parametrize("name", EPILOGUES)
def test_images_share_outputs_that_read_padding_alone(name: str) -> None:
    s = replace(LAYERS["one by one"], padding=((0, 0), (2, 1), (0, 0)))
    tiling = Tiling(base_m=80, base_n=32, base_k=32, images=2)
    kernel = convolution(ConvForward, s, tiling)
    check(replace(kernel, epilogue=epilogue_of(name, kernel.y)), s, "ascend910")


@pytest.mark.parametrize("device", ["ascend910b2", "ascend950pr"])
def test_a_fix_pipe_computes_no_epilogue(device: str) -> None:
    kernel = convolution(ConvForward, LAYERS["odd"], TILINGS["two tiles"])
    kernel = replace(kernel, epilogue=epilogue_of("sums", kernel.y))
    with pytest.raises(ArgumentError, match=f"{device} drains L0C to GM by its FIX pipe"):
        npusim.simulate(kernel, device)
    chip = load_device(device)
    with pytest.raises(ArgumentError, match="FIX pipe"):
        chosen(kernel, chip, tuple(range(chip.groups)))


def test_outputs_that_no_input_reaches_are_refused() -> None:
    s = replace(LAYERS["one by one"], stride=(1, 2, 2))
    kernel = convolution(ConvBackpropInput, s, None)
    assert kernel.needs_clear
    with pytest.raises(ArgumentError, match="they would miss the epilogue; launch it as an elem"):
        replace(kernel, epilogue=epilogue_of("mask", kernel.y))


def test_what_does_not_fit_the_output_is_refused() -> None:
    kernel = convolution(ConvForward, LAYERS["odd"], TILINGS["two tiles"])
    fits = epilogue_of("add and mask", kernel.y)
    z, m = fits.reads
    for one, text in (
        (replace(z, shape=(1, *z.shape[1:])), r"z is fp16 of shape \(1, .*; beside y it is fp16"),
        (replace(z, dtype=FP32), "z is fp32 of shape"),
        (replace(m, shape=(3,)), "or a mask of 1782 bytes"),
    ):
        with pytest.raises(ArgumentError, match=text):
            replace(kernel, epilogue=replace(fits, reads=(one,)))
    sums = epilogue_of("sums", kernel.y)
    narrow = replace(sums, sums=(replace(sums.sums[0], shape=(16,)), sums.sums[1]))
    with pytest.raises(ArgumentError, match=r"it has to be fp32 of shape \(48,\)"):
        replace(kernel, epilogue=narrow)


def test_no_room_in_ub_is_said() -> None:
    device = load_device("ascend910").replace("memories.UB.size", "1KiB")
    kernel = convolution(ConvForward, LAYERS["odd"], TILINGS["two tiles"])
    kernel = replace(kernel, epilogue=epilogue_of("sums", kernel.y))
    with pytest.raises(CapacityError, match=r"epilogue: .* has 1024 B of UB .* smallest piece"):
        npusim.simulate(kernel, device)
