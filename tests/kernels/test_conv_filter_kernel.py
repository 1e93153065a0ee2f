"""The filter-gradient kernel's plan: slabs, tiles, parts of K, and the program of its units."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter, Tiling
from npusim.kernels.filter_gradient.tiling import cut_plane
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build, fits
from npusim.machine.program.language import Language
from npusim.problem.axis import Axis, AxisPart
from npusim.problem.convolution import Convolution
from tests.sampled import slow_if

TINY = load_device("tiny")


def shape(h: int = 8, w: int = 8, k: int = 3, **changes: Any) -> Convolution:
    fields: dict[str, Any] = {
        "n": 1, "cin": 16, "cout": 16, "spatial": (1, h, w), "kernel": (1, k, k), **changes
    }  # fmt: skip
    return Convolution(**fields)


def kernel(s: Convolution, tiling: Tiling) -> ConvBackpropFilter:
    (_, h, w), (_, ho, wo), plan = s.spatial, s.out, s.plan
    x = Tensor("x", (s.n, s.cin1, h, w, 16), FP16)
    dy = Tensor("dy", (s.n, s.cout1, ho, wo, 16), FP16)
    dw = Tensor("dw", (plan.real_groups, plan.cin1_g * s.taps, plan.cout_g, 16), FP32, "out")
    return ConvBackpropFilter(s, tiling, x, dy, dw)


def tiling(**changes: Any) -> Tiling:
    sizes: dict[str, Any] = {"base_m": 16, "base_n": 48, "base_k": 32, "slab_k": 16, **changes}
    return Tiling(**sizes)


# -- shapes ------------------------------------------------------------------------------------

AXES = st.tuples(
    st.integers(1, 15), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
    st.integers(0, 6), st.integers(0, 6),
).filter(lambda a: a[0] + a[4] + a[5] >= a[3] * (a[1] - 1) + 1)  # fmt: skip


class Span(NamedTuple):
    """What a run of outputs reads."""

    start: int
    size: int
    before: int
    after: int


def reach(axis: Axis, first: int, count: int) -> Span:
    """What ``count`` outputs of an axis read."""
    runs = AxisPart(axis).reach(np.array([first]), np.array([count]))
    return Span(*(int(column[0]) for column in runs[2:6]))


@given(AXES, st.data())
def test_reach_is_the_input_that_outputs_touch(axis: tuple[int, ...], data: st.DataObject) -> None:
    size, k, stride, dilation, before, after = axis
    s = shape(
        size, 1, kernel=(1, k, 1), stride=(1, stride, 1), dilation=(1, dilation, 1),
        padding=((0, 0), (before, after), (0, 0)),
    )  # fmt: skip
    first = data.draw(st.integers(0, s.out[1] - 1))
    count = data.draw(st.integers(1, s.out[1] - first))
    outputs, taps = range(first, first + count), range(k)
    touched = [o * stride - before + t * dilation for o in outputs for t in taps]
    span = reach(s.axis(1), first, count)
    inside = range(max(min(touched), 0), min(max(touched) + 1, size))
    rest = size - inside.stop if inside else 0  # no output steps onto so few: a whole row comes
    rest = rest if rest < s.axis(1).stride else 0
    assert span.size == len(inside) + rest
    if span.size:
        assert span.start == inside[0]
        # What is clipped is padding, and together it is the whole window.
        assert span.before == max(0, -min(touched))
        assert span.before + span.size + span.after - rest == max(touched) - min(touched) + 1


@given(AXES, AXES, st.sampled_from([1, 16, 40, 100, 4096]))
def test_slabs_cover_every_output_that_reads_input_once(
    rows: tuple[int, ...], columns: tuple[int, ...], slab_k: int
) -> None:
    s = shape(
        rows[0], columns[0], kernel=(1, rows[1], columns[1]), stride=(1, rows[2], columns[2]),
        dilation=(1, rows[3], columns[3]), padding=((0, 0), rows[4:], columns[4:]),
    )  # fmt: skip
    _, ho, wo = s.out
    seen = np.zeros((ho, wo), np.int64)
    cut = cut_plane(s, slab_k)
    table = cut.table()
    places = (table[name].tolist() for name in ("row", "rows", "column", "columns"))
    for row, height, column, width in zip(*places, strict=True):
        assert height * width <= max(slab_k, 16)
        assert width == wo or height == 1  # dy is read in one piece
        seen[row : row + height, column : column + width] += 1
    assert seen.max(initial=0) <= 1
    for row, column in np.argwhere(seen == 0):
        reads = reach(s.axis(1), row, 1).size and reach(s.axis(2), column, 1).size
        assert not reads  # dropped positions see padding only
    positions, pixels = table["rows"] * table["columns"], table["h"] * table["w"]
    assert (cut.slabs, cut.positions, cut.pixels) == (len(pixels), positions.sum(), pixels.sum())
    assert cut.most_positions == positions.max(initial=1)
    assert cut.most_pixels == pixels.max(initial=1)


# -- the task table ----------------------------------------------------------------------------


def test_tasks_of_a_tile_are_one_run_on_one_core_with_one_first_and_one_last() -> None:
    k = kernel(shape(n=3, cin=32, cout=48), tiling(k_parts=2))
    tasks = k.tasks(4)
    u = {**tasks.columns, **tasks.bases, "core": tasks.core}
    # 3 m tiles x 6 n tiles x 2 parts of K over 3 images x 3 slabs of two rows
    starts, ends = np.flatnonzero(u["first"]), np.flatnonzero(u["last"])
    assert len(starts) == len(ends) == 36
    assert (ends - starts + 1).tolist() == [4] * 18 + [5] * 18
    for start, end in zip(starts, ends, strict=True):
        assert len({*u["core"][start : end + 1]}) == len({*u["dw"][start : end + 1]}) == 1
    assert np.bincount(u["core"]).tolist() == [36, 36, 45, 45]
    assert (np.diff(u["core"]) >= 0).all()


def test_parts_are_limited_by_the_work_along_k() -> None:
    k = kernel(shape(n=1, h=4, w=4), tiling(k_parts=64))  # out 2 x 2: one slab
    tasks = k.tasks(2)
    assert int(tasks.columns["first"].sum()) == len(tasks.core) == 3  # three n tiles, one part
    assert not k.needs_clear


def test_clearing_is_asked_for_only_where_it_matters() -> None:
    assert not kernel(shape(), tiling()).needs_clear
    assert kernel(shape(n=2), tiling(k_parts=2)).needs_clear  # parts add up
    whole = kernel(shape(cin=5 * 8, cout=5 * 8, groups=5), tiling())
    assert whole.shape.plan.real_groups == 3
    assert not whole.needs_clear  # the last real group is half full, but has all its blocks
    half = kernel(shape(cin=3 * 8, cout=3 * 16, groups=3), tiling())
    assert (half.shape.plan.real_groups, half.shape.plan.cout_g) == (2, 32)
    assert half.needs_clear  # 16 of the last 32 output channels belong to nobody
    blind = kernel(shape(1, 1, 1, padding=((0, 0), (0, 2), (0, 0)), stride=(1, 2, 1)), tiling())
    assert blind.shape.reads_any  # one of the two outputs reads the pixel
    assert not blind.needs_clear
    nothing = shape(1, 1, 2, kernel=(1, 2, 1), padding=((0, 0), (3, 0), (0, 0)), stride=(1, 5, 1))
    assert not kernel(nothing, tiling()).shape.reads_any
    assert kernel(nothing, tiling()).needs_clear


# -- the program -------------------------------------------------------------------------------


def test_a_program_has_few_templates_and_the_right_amount_of_work() -> None:
    s = shape(n=8, h=16, w=16, cin=64, cout=64, padding=((0, 0), (1, 1), (1, 1)))
    k = kernel(s, tiling(slab_k=64, k_parts=3))
    program = build(k, TINY, (0, 1, 2, 3))
    assert len(program.tasks) <= 27  # 3 slabs (top, middle, bottom) x first, last, both, none
    sums = [any(one.op == "mmad" for one in t.instructions) for t in program.templates]
    assert sums.count(True) <= 16  # slabs, beginning a sum or not, with operands so many turns old
    assert int(program.unit_counts[sums].sum()) == 4 * 12 * 8 * 4
    assert program.macs == s.macs  # nothing twice, nothing left out
    drained = {key: n for key, n in program.moves.items() if key[1] == "GM"}
    assert drained == {("L0C", "GM", "dw"): 3 * k.dw.size_bytes}


@pytest.mark.parametrize(("base_k", "loads"), [(16, 1), (32, 4), (64, 1)])
def test_fractals_that_lie_equally_far_apart_are_one_transposing_load(
    base_k: int, loads: int
) -> None:
    """One fractal of each of four columns, two of each, or whole columns: L0A is the same."""
    s, device = shape(cin=16, cout=64, k=1), load_device("ascend910")
    made = kernel(s, tiling(base_m=64, base_n=16, base_k=base_k, slab_k=64))
    templates = build(made, device, (0,)).templates
    moves = [one for t in templates for one in t.instructions if one.op == "load2d"]
    assert len(moves) == loads * 64 // base_k
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(-4, 5, (1, n, 8, 8)).astype(np.float16) for n in (16, 64))
    fitting = {made.name: made.tiling}
    result = npusim.ops.convolution_backward(
        dy, x, np.zeros((64, 16, 1, 1), np.float16), output_mask=(False, True, False),
        device="ascend910", tiling=fitting,
    )  # fmt: skip
    wanted = np.einsum("nqhw,nchw->qc", dy, x, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(result.grad_weight)[:, :, 0, 0], wanted)


# -- images that come together -----------------------------------------------------------------


@pytest.mark.parametrize("device", ["ascend910b2", slow_if(True, "ascend910")])
@pytest.mark.parametrize(
    ("sizes", "stride", "groups"),
    [((5, 48, 80, 7, 3), 1, 1), ((6, 32, 64, 14, 1), 2, 1), ((5, 64, 64, 9, 3), 2, 2)],
)
def test_images_that_come_together_give_the_same_gradient_in_less_time(
    sizes: tuple[int, ...], stride: int, groups: int, device: str
) -> None:
    """Also where the number of images is no multiple, and with parts of K."""
    n, cin, cout, side, k = sizes
    out, rng = (side + 2 * (k // 2) - k) // stride + 1, np.random.default_rng(1)
    x = rng.integers(-3, 4, (n, cin, side, side)).astype(np.float16)
    dy = rng.integers(-3, 4, (n, cout, out, out)).astype(np.float16)
    weight = np.zeros((cout, cin // groups, k, k), np.float16)
    for parts in (1, 2):
        results = [
            npusim.ops.convolution_backward(
                dy, x, weight, stride=stride, padding=k // 2, groups=groups, device=device,
                output_mask=(False, True, False), tiling={"conv_backprop_filter": tiling(
                    slab_k=out * out, k_parts=parts, images=images)})
            for images in (1, 2, 4)
        ]  # fmt: skip
        cycles = [
            next(run.cycles for run in result.runs if run.name == "conv_backprop_filter")
            for result in results
        ]
        assert max(cycles[1:]) < cycles[0]
        assert np.any(results[0].grad_weight)
        for result in results[1:]:
            np.testing.assert_array_equal(result.grad_weight, results[0].grad_weight)


@pytest.mark.parametrize(("kernel", "padding"), [(1, 1), (3, 1), (2, 0)])
def test_every_image_comes_where_whole_rows_are_loaded(kernel: int, padding: int) -> None:
    """Rows that lie next to each other are loaded together, once for each image."""
    rng = np.random.default_rng(5)
    h, w = (13 + 2 * padding - size + 1 for size in (1, kernel))
    x = rng.integers(-3, 4, (3, 35, 13, 13)).astype(np.float16)
    dy = rng.integers(-3, 4, (3, 18, h, w)).astype(np.float16)
    one, three = (
        npusim.ops.convolution_backward(
            dy, x, np.zeros((18, 35, 1, kernel), np.float16), padding=padding,
            device="ascend310p", output_mask=(False, True, False), tiling={"conv_backprop_filter":
            Tiling(base_m=48, base_n=32, base_k=32, slab_k=h * w, form="rows", images=images)})
        for images in (1, 3)
    )  # fmt: skip
    np.testing.assert_array_equal(three.grad_weight, one.grad_weight)


@pytest.mark.parametrize(("side", "stride", "form"), [(7, 1, "window"), (14, 2, "rows")])
def test_steps_of_single_pixels_go_on_from_image_to_image(
    side: int, stride: int, form: str
) -> None:
    """49 positions of an image take 64 of K alone; those of five 245, of the three left 147."""
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (8, 48, side, side)).astype(np.float16)
    dy = rng.integers(-3, 4, (8, 80, 7, 7)).astype(np.float16)
    results = {
        (device, images): npusim.ops.convolution_backward(
            dy, x, np.zeros((80, 48, 1, 1), np.float16), stride=stride, device=device,
            output_mask=(False, True, False), tiling={"conv_backprop_filter": Tiling(
                base_m=80, base_n=48, base_k=48, slab_k=49, form=form, images=images)})
        for device in ("ascend910b2", "ascend910") for images in (1, 5)
    }  # fmt: skip
    for result in results.values():
        np.testing.assert_array_equal(result.grad_weight, results["ascend910", 1].grad_weight)
    macs = {
        key: next(run.macs for run in result.runs if run.name == "conv_backprop_filter")
        for key, result in results.items()
    }
    assert macs["ascend910b2", 5] == 80 * 48 * (245 + 147)
    times = [macs["ascend910", images] for images in (1, 5)]
    assert times[0] == times[1] == macs["ascend910b2", 1]


# -- groups of tiles that share an operand -----------------------------------------------------


@pytest.mark.parametrize("device", [slow_if(True, "ascend910b2"), "ascend910"])
@pytest.mark.parametrize(
    ("sizes", "fields"),
    [
        ((8, 96, 80, 7, 1), {"slab_k": 49, "images": 2}),
        ((3, 32, 64, 9, 3), {"slab_k": 27}),
        ((1, 32, 96, 12, 2), {"slab_k": 32, "form": "taps", "base_n": 16}),
    ],
)
def test_tiles_that_share_an_operand_give_the_same_gradient_and_load_it_once(
    sizes: tuple[int, ...], fields: dict[str, Any], device: str
) -> None:
    """Its slabs stay in L1 for the tiles of a pass; the other one comes for each tile."""
    n, cin, cout, side, k = sizes
    rng, out = np.random.default_rng(4), side - k + 1
    x = rng.integers(-3, 4, (n, cin, side, side)).astype(np.float16)
    dy = rng.integers(-3, 4, (n, cout, out, out)).astype(np.float16)

    def run(**changes: Any) -> Any:
        return npusim.ops.convolution_backward(
            dy, x, np.zeros((cout, cin, k, k), np.float16), device=device,
            output_mask=(False, True, False), deterministic=True,
            tiling={"conv_backprop_filter": tiling(**fields, **changes)})  # fmt: skip

    def loaded(result: Any, name: str) -> int:
        rows = result.traffic.query(f"operand == '{name}' and dst == 'L1'")
        return int(rows["bytes"].sum())

    plain = run()
    for keeps, name, other in (
        ("x", "input_blocked", "grad_output_blocked"),
        ("dy", "grad_output_blocked", "input_blocked"),
    ):
        stay = {f"{keeps}_slots": 9, f"{keeps}_slabs": 9}
        for passes in (1, 3):
            grouped = run(group=2, passes=passes, keeps=keeps, **stay)
            np.testing.assert_array_equal(grouped.grad_weight, plain.grad_weight)
            assert loaded(grouped, other) == loaded(plain, other)
            assert loaded(grouped, name) < 0.7 * loaded(plain, name)


def test_groups_and_parts_exclude_each_other() -> None:
    for change in ({"k_parts": 2}, {"single_core_k": 16, "single_core_m": 16, "single_core_n": 48}):
        with pytest.raises(ArgumentError, match="leave both at 1"):
            tiling(group=2, **change)


def test_images_come_together_only_as_whole_planes() -> None:
    for change, words in (
        ({"slab_k": 16}, "give slab_k 64"),
        ({"slab_k": 64, "form": "taps"}, "each image is loaded by itself"),
    ):
        fields: dict[str, Any] = {**change, "images": 2}
        with pytest.raises(ArgumentError, match=words):
            kernel(shape(n=4, padding=((0, 0), (1, 1), (1, 1))), tiling(**fields))


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910"])
@pytest.mark.parametrize(
    ("sides", "kernel_w", "stride", "pad", "images"),
    [((14, 14), 1, 2, 0, 1), ((14, 14), 1, 2, 0, 3), ((9, 10), 1, 2, 0, 1), ((12, 9), 3, 3, 1, 2),
     ((7, 7), 1, 2, 1, 1)],
)  # fmt: skip
def test_strided_filters_of_one_row_may_load_just_the_rows_they_read(
    sides: tuple[int, int], kernel_w: int, stride: int, pad: int, images: int, device: str
) -> None:
    """The same gradient; of x whole rows come, a stride apart, also from several planes at once."""
    rng = np.random.default_rng(2)
    down = (sides[0] + 2 * pad * (images == 1) - 1) // stride + 1
    across = (sides[1] + 2 * pad - kernel_w) // stride + 1
    x = rng.integers(-3, 4, (5, 48, *sides)).astype(np.float16)
    dy = rng.integers(-3, 4, (5, 64, down, across)).astype(np.float16)
    weight = np.zeros((64, 48, 1, kernel_w), np.float16)
    window, rows = (
        npusim.ops.convolution_backward(
            dy, x, weight, stride=stride, padding=[pad * (images == 1), pad], device=device,
            output_mask=(False, True, False), tiling={"conv_backprop_filter": Tiling(
                base_m=32, base_n=48, base_k=32, slab_k=down * across, form=form,
                images=images if form == "rows" else 1)})
        for form in ("window", "rows")
    )  # fmt: skip
    assert np.any(window.grad_weight)
    np.testing.assert_array_equal(rows.grad_weight, window.grad_weight)
    loaded = [
        result.traffic.query("operand == 'input_blocked' and dst == 'L1'")["bytes"].sum()
        for result in (window, rows)
    ]
    assert loaded[1] < 0.8 * loaded[0]


def test_rows_are_for_filters_of_one_row() -> None:
    with pytest.raises(ArgumentError, match="the 3 rows of the filter read neighbouring rows"):
        kernel(shape(), tiling(form="rows"))
    with pytest.raises(ArgumentError, match="form 'rows' has no pieces of single_core_k"):
        tiling(form="rows", single_core_k=16, single_core_m=16, single_core_n=16)
    s = shape(h=7, w=7, k=1, n=4, stride=(1, 2, 2))
    with pytest.raises(ArgumentError, match="images come together only"):
        kernel(s, tiling(base_n=16, slab_k=16, form="rows", images=2))


def test_a_block_of_one_core_has_whole_blocks_of_channels() -> None:
    single = {"single_core_k": 16, "single_core_m": 16}
    with pytest.raises(ArgumentError, match="single_core_n is 15, but the 16 channels of a block"):
        kernel(shape(), tiling(**single, single_core_n=15))
    kernel(shape(), tiling(**single, single_core_n=16))


@pytest.mark.parametrize("make", [partial(build, groups=(0,)), fits])
def test_what_a_build_makes_is_gone_with_it(make: Callable[..., object]) -> None:
    """Methods that are issued once hold the language, which knows them: no search is needed."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(thing, Language) for thing in gc.get_objects())
        make(kernel(shape(), tiling()), TINY)
        assert sum(isinstance(thing, Language) for thing in gc.get_objects()) == before
    finally:
        gc.enable()
