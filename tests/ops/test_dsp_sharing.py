"""How the cores of a DSP share a filter gradient: never slower, equal numbers, idle cores named."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError, RaceError
from npusim.base.records import replace
from npusim.call.call import planning
from npusim.kernels.dsp import grad_filter as kernels
from npusim.kernels.dsp.filter_space import ranked_tilings, searched_tilings
from npusim.kernels.dsp.filter_tiling import Grid, Tiling, cut_runs
from npusim.kernels.dsp.grad_filter import DeconvGradFilter
from npusim.ops import CARDS
from npusim.ops.card import Sample
from npusim.ops.dsp_gradients import Wanted
from npusim.problem.convolution import Convolution
from npusim.problem.reference import relative_error
from npusim.results import Result
from tests.sampled import examples

Array = np.ndarray[Any, Any]

NAMES = ("conv_grad_filter", "deconv_grad_filter")


def wanted(transposed: bool, storage: str = "shared", workspace: int = 0, **sizes: Any) -> Wanted:
    """A call of a layer with whole stride and no padding unless it is given."""
    c = Convolution(**sizes, transposed=transposed)
    if c.outputs is None:
        c = Convolution(**sizes, transposed=transposed, outputs=c.out)
    return Wanted(c, storage, workspace)


#: The page's own example: 16 images of 4x4, 4 channels, 4x4 taps, a gradient as large as x.
EXAMPLE = wanted(
    True, n=16, cin=4, cout=4, spatial=(4, 4), kernel=(4, 4), outputs=(4, 4), padding=((0, 0),) * 2
)
LENET = wanted(False, n=32, cin=1, cout=6, spatial=(32, 32), kernel=(5, 5))
SMALL_LENET = wanted(False, n=8, cin=1, cout=6, spatial=(14, 14), kernel=(5, 5))
RESNET = wanted(
    False, n=4, cin=3, cout=64, spatial=(224, 224), kernel=(7, 7), stride=(2, 2),
    padding=((3, 0),) * 2, outputs=(112, 112),
)  # fmt: skip


def operator(p: Wanted) -> str:
    return NAMES[p.c.transposed]


def timed(p: Wanted, cores: Any = None, kind: str = "fp32", **options: Any) -> Result:
    """The call without numbers."""
    card = CARDS[operator(p)]
    specs = {one.name: npusim.spec(one.shape(p), kind) for one in card.inputs}
    usual = {"device": "ft78ne", "timeline": False, "cores": cores}
    return card.call(p, specs, usual | options)


def computed(p: Wanted, arrays: dict[str, Array], **options: Any) -> Array:
    """The gradient as frameworks have it, of a call whose accesses are looked at for races."""
    card = CARDS[operator(p)]
    result = card.call(p, arrays, {"device": "mt7004", "timeline": False, "check": True} | options)
    (output,) = card.outputs(p)
    assert result.outputs is not None
    return output.unpack(p, np.asarray(result.outputs[0]))


def expected(p: Wanted, arrays: dict[str, Array]) -> Array:
    """The gradient in float64."""
    (output,) = CARDS[operator(p)].outputs(p)
    return output.expected(Sample(problem=p, arrays=arrays, device=npusim.load_device("mt7004")))


def whole_numbers(p: Wanted, kind: Any) -> dict[str, Array]:
    """Operands whose sums are exact in any order."""
    rng = np.random.default_rng(p.c.macs)
    inputs = CARDS[operator(p)].inputs
    return {one.name: rng.integers(-3, 4, one.shape(p)).astype(kind) for one in inputs}


def kernel_of(p: Wanted, cores: Any = None, kind: str = "fp32", **options: Any) -> DeconvGradFilter:
    """The kernel that a call launches."""
    with planning() as launched:
        timed(p, cores, kind, **options)
    (kernel,) = launched
    assert isinstance(kernel, DeconvGradFilter)
    return kernel


@st.composite
def layers(draw: st.DrawFn, most: int = 9) -> Wanted:
    """Any small layer, in any form and storage that is shared."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    return wanted(
        draw(st.booleans()),
        draw(st.sampled_from(("shared", "gsm"))),
        draw(st.sampled_from((0, 0x10050000))),
        n=draw(st.integers(1, 5)),
        cin=groups * draw(st.integers(1, 7)),
        cout=groups * draw(st.integers(1, 7)),
        spatial=pair(1, most),
        kernel=pair(1, 4),
        stride=pair(1, 3),
        padding=tuple((before, 0) for before in pair(0, 3)),
        dilation=pair(1, 2),
        groups=groups,
        outputs=pair(1, 12),
    )


@st.composite
def tilings(draw: st.DrawFn, p: Wanted) -> Tiling:
    """Any tiling of a layer, on up to eight cores in any grid."""
    c = p.c if p.c.transposed else p.c.exchanged()
    width = draw(st.integers(1, c.spatial[1]))
    rows = draw(st.integers(1, c.spatial[0])) if width == c.spatial[1] else 1
    grids = [Grid(*(1 + i // 8**axis % 8 for axis in range(4))) for i in range(8**4)]
    grid = draw(st.sampled_from([grid for grid in grids if prod(grid) <= 8]))
    tile = {name: draw(st.integers(1, 5)) for name in ("channels", "taps", "columns")}
    return Tiling(**tile, rows=rows, width=width, **grid.fields)


# -- time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["ft78ne", "mt7004"])
def test_the_documented_example_gains_from_its_mask(device: str) -> None:
    cycles = [timed(EXAMPLE, f"0-{n}", device=device).cycles for n in range(8)]
    assert all(more <= fewer for fewer, more in pairwise(cycles))
    assert cycles[0] >= 3 * cycles[7]
    # Without a reduction, too, it is shared among all cores.
    alone = timed(EXAMPLE, device=device, deterministic=True)
    assert cycles[0] >= 3 * alone.cycles
    assert kernel_of(EXAMPLE, device=device, deterministic=True).ran.image_cores == 1


@pytest.mark.parametrize("p", [LENET, RESNET])
def test_first_layers_take_what_their_taps_allow(p: Wanted) -> None:
    one, eight = timed(p, "0"), timed(p, "0-7")
    taps = p.c.taps
    allowed = -(-taps // 8) / taps  # what the busiest of eight cores has of all taps
    assert eight.runs[0].cycles <= 1.3 * allowed * one.runs[0].cycles
    assert eight.runs[0].cores == 8


@examples(6)
@given(p=layers(40), device=st.sampled_from(("ft78ne", "mt7004")))
def test_more_cores_are_never_slower(p: Wanted, device: str) -> None:
    cycles = [timed(p, f"0-{n - 1}", device=device).cycles for n in (1, 2, 3, 4, 8)]
    for fewer, more in pairwise(cycles):
        assert more <= fewer


def test_what_is_compared_for_fewer_cores_is_compared_for_more() -> None:
    problem = kernel_of(LENET).gradient(npusim.load_device("ft78ne"))
    ranked = [{tiling for _, tiling in ranked_tilings(problem, n)} for n in range(1, 9)]
    for fewer, more in pairwise(ranked):
        assert fewer < more
    assert set(searched_tilings(problem, 8)) > ranked[7]


@examples(15)
@given(data=st.data())
def test_no_tiling_beats_its_bound(data: st.DataObject) -> None:
    p = data.draw(layers())._replace(storage="shared")
    options: dict[str, Any] = {"tiling": data.draw(tilings(p)), "device": "mt7004", "kind": "fp16"}
    run = timed(p, **options).runs[0]
    least = kernel_of(p, **options).least(npusim.load_device("mt7004"), 8)
    assert least.cycles <= run.cycles
    assert least.cores == run.cores


def test_the_search_covers_who_shares() -> None:
    """The best grid of the example, among all that "auto" leaves out, with a proof."""
    p = wanted(True, n=2, cin=2, cout=3, spatial=(4, 4), kernel=(3, 3))
    specs = [npusim.spec(one.shape(p), "fp32") for one in CARDS[operator(p)].inputs[::-1]]
    param: Any = p.param
    tuned = npusim.tune(npusim.ops.deconv_grad_filter, *specs, param, device="ft78ne", store=None)
    assert tuned.proved
    tiled: list[Any] = [row.kernel for row in tuned.rows]
    grids = {kernel.tiling.grid for kernel in tiled}
    assert {Grid(3, 1, 2, 1), Grid(1, 8, 1, 1), Grid(1, 2, 2, 2), Grid(1, 1, 1, 8)} <= grids
    assert tuned.cycles <= timed(p).cycles


# -- numbers -----------------------------------------------------------------------------------


@examples(12)
@given(data=st.data(), half=st.booleans())
def test_numbers_are_equal_on_every_mask_and_with_every_grid(
    data: st.DataObject, half: bool
) -> None:
    p = data.draw(layers())
    arrays = whole_numbers(p, np.float16 if half else np.float32)
    want = expected(p, arrays)
    for mask in (1, 0b110, "0-3", None):
        np.testing.assert_array_equal(computed(p, arrays, cores=mask), want)
    np.testing.assert_array_equal(computed(p, arrays, tiling=data.draw(tilings(p))), want)


@pytest.mark.parametrize("p", [EXAMPLE, SMALL_LENET])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_shared_images_round_as_far_from_float64(p: Wanted, kind: Any) -> None:
    rng = np.random.default_rng(3)
    inputs = CARDS[operator(p)].inputs
    arrays = {one.name: rng.standard_normal(one.shape(p)).astype(kind) for one in inputs}
    want, (output,) = expected(p, arrays), CARDS[operator(p)].outputs(p)
    limit = output.limit(Sample(problem=p, arrays=arrays, device=npusim.load_device("mt7004")))
    for cores in ("0", "0-7"):
        assert relative_error(computed(p, arrays, cores=cores).astype(np.float64), want) <= limit


@examples(10)
@given(data=st.data())
def test_bits_depend_on_shared_images_alone(data: st.DataObject) -> None:
    p = data.draw(layers())
    rng = np.random.default_rng(p.c.macs)
    inputs = CARDS[operator(p)].inputs
    arrays = {one.name: rng.standard_normal(one.shape(p)).astype(np.float32) for one in inputs}
    want = computed(p, arrays, deterministic=True, cores="0")
    for mask in ("0-2", None):
        np.testing.assert_array_equal(computed(p, arrays, deterministic=True, cores=mask), want)
    tiling = replace(data.draw(tilings(p)), image_cores=1)
    np.testing.assert_array_equal(computed(p, arrays, tiling=tiling), want)


def test_runs_of_images_are_added_in_their_order() -> None:
    """fp32 has no 2**24 + 1: one run loses every 1, two runs lose the one beside 2**24."""
    p = wanted(False, n=4, cin=1, cout=1, spatial=(1, 1), kernel=(1, 1))
    arrays = {
        "x": np.ones((4, 1, 1, 1), np.float32),
        "dy": np.array([2**24, 1, 1, 1], np.float32).reshape(4, 1, 1, 1),
    }
    tile = {"channels": 1, "taps": 1, "columns": 1, "rows": 1, "width": 1}
    sums = [
        computed(p, arrays, tiling=Tiling(**tile, image_cores=cores)).item() for cores in (1, 2, 4)
    ]
    assert sums == [2**24, 2**24 + 2, 2**24]


def test_runs_of_images_are_rounded_once() -> None:
    """Half has no 2049: rounded run by run the sum would be 0."""
    p = wanted(False, n=4, cin=1, cout=1, spatial=(1, 1), kernel=(1, 1))
    arrays = {
        "x": np.ones((4, 1, 1, 1), np.float16),
        "dy": np.array([2048, 1, -2048, 0], np.float16).reshape(4, 1, 1, 1),
    }
    tiling = Tiling(channels=1, taps=1, columns=1, rows=1, width=1, image_cores=2)
    assert computed(p, arrays, tiling=tiling).item() == 1


def test_without_a_meeting_the_sums_would_race(monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = Tiling(channels=4, taps=16, columns=4, rows=4, width=4, image_cores=8)
    computed(EXAMPLE, whole_numbers(EXAMPLE, np.float32), tiling=tiling)
    monkeypatch.setattr(kernels, "with_meeting", lambda tasks, *_, **__: tasks)
    with pytest.raises(RaceError, match="sums"):
        computed(EXAMPLE, whole_numbers(EXAMPLE, np.float32), tiling=tiling)


# -- what is said ------------------------------------------------------------------------------


def test_idle_cores_are_named() -> None:
    p = wanted(True, n=1, cin=3, cout=1, spatial=(1, 1), kernel=(1, 1))
    tiling = Tiling(channels=1, taps=1, columns=1, rows=1, width=1, column_cores=8)
    result = timed(p, tiling=tiling)
    told = "3 of 8 cores of the mask work: there is no more to share"
    assert result.runs[0].cores == 3
    assert result.runs[0].tiling.endswith(f"3 cores share columns in 3; {told}")
    assert told in " ".join(result.text().split())
    assert told in " ".join(result.explain(what_if=False).text().split())
    few = timed(EXAMPLE, tiling=replace(tiling, column_cores=2))
    assert "2 of 8 cores of the mask work: the tiling shares the work" in few.runs[0].tiling
    chosen = timed(p)
    assert chosen.runs[0].cores < 8
    assert any("of the tilings that were compared none on more" in note for note in chosen.notes)
    assert not any("cores of the mask" in note for note in timed(EXAMPLE).notes)
    assert "mask" not in timed(EXAMPLE).runs[0].tiling


def test_shared_images_are_told_and_their_sums_counted() -> None:
    shared, alone = timed(EXAMPLE), timed(EXAMPLE, deterministic=True)
    runs = kernel_of(EXAMPLE).ran.image_cores
    assert any(f"{runs} runs of the images are summed apart" in note for note in shared.notes)
    assert shared.workspace_bytes == runs * 4 * 4 * 16 * 4
    assert alone.workspace_bytes == 0
    moved = {(row.src, row.operand): row.bytes for row in shared.runs[0].traffic if row.operand}
    assert moved["AM", "sums"] == moved["GM", "sums"] == shared.workspace_bytes


def test_tilings_that_no_mask_or_memory_holds() -> None:
    tile = {"channels": 4, "taps": 16, "columns": 4, "rows": 4, "width": 4}
    with pytest.raises(
        ArgumentError, match=r"among 8 cores \(.*taps in 8\), the mask has 4: lower"
    ):
        timed(EXAMPLE, 0b1111, tiling=Tiling(**tile, tap_cores=8))
    with pytest.raises(ArgumentError, match=r"shares images among 2 cores.*image_cores 1"):
        timed(EXAMPLE, tiling=Tiling(**tile, image_cores=2), deterministic=True)
    with pytest.raises(ArgumentError, match="image_cores is 0; it must be >= 1"):
        Tiling(**tile, image_cores=0)
    # The memory on the chip has room for the operands, and for no sums beside them.
    p = wanted(True, n=8, cin=128, cout=128, spatial=(16, 16), kernel=(5, 5), outputs=(16, 16),
               padding=((2, 0),) * 2)  # fmt: skip
    full = Wanted(p.c, "gsm", 0)
    assert timed(full).runs[0].cores == 8
    assert kernel_of(full).ran.image_cores < 4
    with pytest.raises(npusim.CapacityError, match="sums"):
        timed(full, tiling=Tiling(channels=8, taps=5, columns=8, rows=1, width=16, image_cores=8))


def test_runs_of_an_axis() -> None:
    """Ten in three runs, in pieces of two that do not cross a multiple of five."""
    runs = cut_runs(10, 3, 2, 5)
    assert [tuple(run) for run in runs] == [
        (0, 0, 2), (0, 2, 1), (1, 3, 2), (1, 5, 1), (2, 6, 2), (2, 8, 2),
    ]  # fmt: skip
