"""Tilings in the vendor's words: loading, legality, their kernels' numbers, and the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, CapacityError, ConfigError
from npusim.base.records import replace
from npusim.call.call import simulate
from npusim.call.tilings.words import parse_tiling
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.vendor import cann_filter, cann_input
from npusim.kernels.vendor.cann import CannTiling, cann_tiling, load_cann_tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import from_6hd, from_fracz_3d, to_6hd, to_fracz_3d
from npusim.problem.reference import conv_filter_grad, conv_input_grad
from tests.sampled import examples
from tests.tables import rows

B2 = load_device("ascend910b2")
WORDS: dict[str, int] = {
    "singleCoreM": 64, "singleCoreN": 32, "singleCoreK": 144, "baseM": 32, "baseN": 32,
    "baseK": 48, "stepKa": 3, "stepKb": 3,
}  # fmt: skip


def layer(**changes: Any) -> Convolution:
    """A layer of 48 -> 40 channels, 2 images of depth 4 and 10 x 11, 3-D filter."""
    sizes: dict[str, Any] = {
        "n": 2, "cin": 48, "cout": 40, "spatial": (4, 10, 11), "kernel": (2, 3, 3),
        "padding": ((1, 0), (1, 1), (1, 0)),
    }  # fmt: skip
    return Convolution(**{**sizes, **changes})


def integers(shape: tuple[int, ...]) -> Any:
    """Small integers: sums are exact, so results must be equal."""
    return np.random.default_rng(3).integers(-2, 3, shape).astype(np.float16)


def filter_gradient(s: Convolution, tiling: FilterTiling, device: str) -> tuple[Any, Any]:
    """(kernel's result, float64's) of the filter gradient."""
    x, dy = integers((s.n, s.cin, *s.spatial)), integers((s.n, s.cout, *s.out))
    arrays = to_6hd(x, 16), to_6hd(dy, 16)
    rows = (s.plan.real_groups * s.kernel[0] * s.plan.cin1_g * s.taps, s.plan.cout_g, 16)
    x_gm, dy_gm = (Tensor(n, a.shape, FP16) for n, a in zip(("x", "dy"), arrays, strict=True))
    kernel = ConvBackpropFilter(s, tiling, x_gm, dy_gm, Tensor("dw", rows, FP32, "inout"))
    start = np.full(rows, 0 if kernel.needs_clear else 7, np.float32)
    r = simulate(kernel, device, *arrays, start)
    assert r.outputs is not None
    assert r.outputs[0] is not None
    got = r.outputs[0].reshape(-1, s.plan.cout_g // 16, 16, 16)
    filter_shape = (s.cout, s.cin // s.groups, *s.kernel)
    want = conv_filter_grad(x, dy, s.kernel, s.stride, s.padding, s.dilation, s.groups)
    return from_fracz_3d(got, filter_shape, s.groups, 16), want


UNITS = st.builds(
    FilterTiling,
    base_m=st.sampled_from([16, 32]), base_n=st.sampled_from([16, 48, 80]),
    base_k=st.sampled_from([16, 48]), slab_k=st.sampled_from([16, 33, 64]),
    single_core_m=st.sampled_from([16, 32, 64]),
    single_core_n=st.sampled_from([144, 288, 432, 864, 999]),
    single_core_k=st.sampled_from([11, 40, 66, 200]),
    step_m=st.integers(1, 2), step_n=st.integers(1, 3),
    dy_slots=st.just(2), x_slots=st.just(3), dy_slabs=st.integers(1, 2), x_slabs=st.integers(1, 3),
    keeps=st.sampled_from(["dy", "x"]),
)  # fmt: skip


@examples(40)
@given(UNITS, st.sampled_from([1, 2]), st.sampled_from([(1, 1, 1), (2, 1, 2)]))
def test_units_of_any_size_add_up_to_the_gradient(
    tiling: FilterTiling, groups: int, stride: tuple[int, int, int]
) -> None:
    s = layer(groups=groups, stride=stride, cout=48 if groups > 1 else 40)
    got, want = filter_gradient(s, tiling, "ascend910b2")
    assert np.array_equal(got, want)


def test_operands_stay_in_l1_between_tiles() -> None:
    s = layer(n=1, cin=96, spatial=(1, 10, 11), kernel=(1, 3, 3), padding=((0, 0),) + ((1, 1),) * 2)
    sizes: dict[str, Any] = {
        "base_m": 16, "base_n": 144, "base_k": 48, "slab_k": 55, "single_core_m": 48,
        "single_core_n": 864, "single_core_k": 110, "dy_slots": 2, "x_slots": 2,
    }  # fmt: skip
    x_size, dy_size = 96 * 110 * 2, 48 * 110 * 2

    def read(**changes: Any) -> int:
        tiling = FilterTiling(**{**sizes, **changes})
        x, dy = Tensor("x", (1, 1, 6, 10, 11, 16), FP16), Tensor("dy", (1, 1, 3, 10, 11, 16), FP16)
        dw = Tensor("dw", (54, 48, 16), FP32, "inout")
        r = simulate(ConvBackpropFilter(s, tiling, x, dy, dw), "ascend910b2")
        return sum(row.bytes for row in r.runs[0].traffic if (row.src, row.dst) == ("GM", "L1"))

    halo = 96 * 2 * 11 * 2  # both slabs of five rows read one row of the other
    # Nothing stays: three tiles of m by six of n, each with all of both operands it needs.
    assert read() == 3 * (x_size + halo) + 6 * dy_size
    # dy stays while n goes round, x while m does.
    assert read(dy_slabs=2) == 3 * (x_size + halo) + dy_size
    assert read(keeps="x", x_slabs=2) == x_size + halo + 6 * dy_size


def input_gradient(s: Convolution, tiling: Any, **options: Any) -> tuple[npusim.Result, Any, Any]:
    """(result, kernel's numbers, float64's) of the operator that takes blocked operands."""
    w = integers((s.cout, s.cin, *s.kernel))
    dy = integers((s.n, s.cout, *s.out))
    pads = [side for pair in s.padding for side in pair]
    r = npusim.ops.conv3d_backprop_input(
        to_fracz_3d(w, 1, 16), to_6hd(dy, 16), [s.cout, s.cin, *s.kernel],
        [s.n, *s.spatial, s.cin],
        {"strides": [1, *s.stride, 1], "pads": pads, "dilations": [1, 1, *s.dilation[1:], 1]},
        device=B2, rules="hardware", tiling=tiling, **options,
    )  # fmt: skip
    assert r.outputs is not None
    assert r.outputs[0] is not None
    blocked = r.outputs[0].reshape(s.n, s.spatial[0], s.cin1, *s.spatial[1:], 16)
    want = conv_input_grad(
        dy, w, (s.n, s.cin, *s.spatial), s.stride, s.padding, s.dilation, 1
    ).astype(np.float16)
    return r, from_6hd(blocked, s.cin), want


@examples(40)
@given(
    st.sampled_from([16, 22, 40]), st.sampled_from([16, 32]), st.sampled_from([16, 48]),
    st.integers(1, 3), st.sampled_from([1, 5, 9, 18, 27]), st.sampled_from([22, 44, 55, 110]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_input_gradients_of_any_unit_and_step_match_float64(
    base_m: int, base_n: int, base_k: int, planes: int, columns: int, single_m: int, stride: int
) -> None:
    s = layer(stride=(1, stride, stride))
    tiling = GemmTiling(
        base_m=base_m, base_n=base_n, base_k=base_k, step_planes=planes, step_columns=columns,
        single_core_m=single_m, weight_slots=1, resident=columns == 27,
    )  # fmt: skip
    _, got, want = input_gradient(s, tiling)
    assert np.array_equal(got, want)


def test_resident_weights_are_read_once_per_core() -> None:
    s = layer(kernel=(1, 1, 1), padding=((0, 0),) * 3)
    sizes: dict[str, Any] = {
        "base_m": 22, "base_n": 48, "base_k": 48, "step_planes": 3, "step_columns": 3,
        "weight_slots": 1, "single_core_m": 110,
    }  # fmt: skip

    def weights(**changes: Any) -> int:
        r, got, want = input_gradient(s, GemmTiling(**{**sizes, **changes}), cores="0-3")
        assert np.array_equal(got, want)
        rows = [row for row in r.runs[0].traffic if (row.src, row.dst) == ("GM", "L1")]
        return sum(row.bytes for row in rows) - 2 * 4 * 48 * 110 * 2

    assert weights() == 40 * 48 * 48 * 2  # five slabs of each of eight images and depths
    assert weights(resident=True) == 4 * 48 * 48 * 2
    with pytest.raises(ArgumentError, match="all 3 columns"):
        weights(resident=True, step_columns=2)


# -- the vendor's words ------------------------------------------------------------------------


def test_a_mapping_and_files_in_the_vendors_words(tmp_path: Path) -> None:
    given_words = cann_tiling({**WORDS, "dbL1": 1, "dbL0A": 2, "dbL0B": 2, "dbL0C": 2})
    assert (given_words.single_core_m, given_words.base_k, given_words.step_kb) == (64, 48, 3)
    assert (given_words.al1, given_words.bl1, given_words.al0, given_words.cl0) == (1, 1, 2, 2)
    yaml, json = tmp_path / "t.yaml", tmp_path / "t.json"
    yaml.write_text("".join(f"{word}: {value}\n" for word, value in WORDS.items()))
    json.write_text(str(WORDS).replace("'", '"'))
    assert load_cann_tiling(yaml) == load_cann_tiling(json) == cann_tiling(WORDS)


@rows("tests/data/mistakes/ops.yaml", "words_that_say_nothing_are_refused", "change, message")
def test_words_that_say_nothing_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cann_tiling({**WORDS, **change})


def test_missing_words_and_files_that_hold_no_integers(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="lacks singleCoreK, baseN"):
        cann_tiling({k: v for k, v in WORDS.items() if k not in ("singleCoreK", "baseN")})
    for written, shown in (("many", "many"), ("9" * 5000, r"9+\.\.\.9+")):
        (tmp_path / "t.yaml").write_text(f"baseM: {written}\n", encoding="utf-8")
        with pytest.raises(
            ConfigError, match=rf"yaml:1: baseM: expected an integer, got '{shown}'"
        ):
            load_cann_tiling(tmp_path / "t.yaml")


PLANE = layer(n=1, cin=32, cout=64, spatial=(1, 12, 12), kernel=(1, 3, 3),
              padding=((0, 0), (1, 1), (1, 1)))  # fmt: skip


def filter_words(**changes: int) -> CannTiling:
    return replace(cann_tiling({**WORDS, "singleCoreN": 288}), **changes)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"base_m": 512, "base_k": 128, "step_ka": 1, "step_kb": 1}, CapacityError,
         r"L0A holds 65536 B but baseM 512 x baseK 128 2 x 131072 B = 262144 B"),
        ({"base_m": 256, "base_n": 256, "base_k": 16}, CapacityError,
         r"L0C holds 131072 B but baseM 256 x baseN 256 1 x 262144 B"),
        ({"step_ka": 60, "base_m": 64}, CapacityError,
         r"L1 holds 524288 B but A 2 x 368640 B \+ B 2 x 10752 B = 758784 B"),
        ({"al0": 1}, ArgumentError, "al0Pbuffer is 1, bl0Pbuffer 2"),
        ({"step_ka": 2}, ArgumentError, "stepKa is 2, stepKb 3; the larger"),
    ],
)  # fmt: skip
def test_a_tiling_that_does_not_fit_says_why(
    change: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cann_filter.kernel_tiling(filter_words(**change), PLANE, B2, FP16)


@rows(
    "tests/data/mistakes/ops.yaml",
    "the_nest_of_the_input_gradient_says_what_it_cannot_follow",
    "change, message",
)
def test_the_nest_of_the_input_gradient_says_what_it_cannot_follow(
    change: dict[str, int], message: str
) -> None:
    tiling = replace(cann_tiling({**WORDS, "singleCoreM": 24}), **change)
    with pytest.raises(ArgumentError, match=message):
        cann_input.kernel_tiling(tiling, PLANE, B2, FP16)


# -- operators ---------------------------------------------------------------------------------


def backward(**options: Any) -> tuple[npusim.Result, bool]:
    """A 3x3 layer of 128 -> 144 channels whose gradients both have a rule; are they float64's?"""
    x, w = integers((2, 128, 12, 12)), integers((144, 128, 3, 3))
    dy = integers((2, 144, 12, 12))
    r = npusim.ops.convolution_backward(
        dy, x, w, padding=1, output_mask=(True, True, False), device=B2, rules="hardware",
        **options,
    )  # fmt: skip
    one, pads = (1, 1), ((1, 1), (1, 1))
    dx = conv_input_grad(dy, w, x.shape, one, pads, one, 1)
    dw = conv_filter_grad(x, dy, (3, 3), one, pads, one, 1)
    assert r.outputs is not None
    exact = zip(r.outputs, (dx, dw), strict=False)
    return r, all(np.array_equal(np.asarray(got), want.astype(np.float16)) for got, want in exact)


def test_production_computes_both_gradients() -> None:
    r, exact = backward(tiling="production")
    assert exact
    notes = [note for note in r.notes if note.startswith("CANN tiling")]
    # dx: twelve rows fill baseM. dw: M 144 < N 1152, so M is shared, and with too few units for
    # the cores the ladder ends at one base block, ten rows of 12.
    assert [note.split(": ")[1].split(", steps")[0] for note in notes] == [
        "single 144x128x48, base 144x128x48",
        "single 128x1152x120, base 128x128x128",
    ]


def test_a_mapping_gives_each_kernel_its_own() -> None:
    words = {
        "singleCoreM": 64, "singleCoreN": 1152, "singleCoreK": 144, "baseM": 64, "baseN": 128,
        "baseK": 64, "stepKa": 2, "stepKb": 1,
    }  # fmt: skip
    r, exact = backward(tiling={"conv_backprop_filter": cann_tiling(words)})
    assert exact
    texts = {run.name: run.tiling for run in r.runs}
    assert "single core 64x1152x144" in texts["conv_backprop_filter"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "tiny"}, "chips with L1 of 524288 B, tiny has"),
        ({"deterministic": True}, "pieces of single_core_k add into the gradient"),
    ],
)
def test_calls_outside_the_rule_are_refused(change: dict[str, Any], message: str) -> None:
    x, dy = npusim.spec((2, 128, 12, 12), "fp16"), npusim.spec((2, 144, 12, 12), "fp16")
    w = npusim.spec((144, 128, 3, 3), "fp16")
    options: dict[str, Any] = {"device": "ascend910b2", "rules": "hardware", **change}
    with pytest.raises(ArgumentError, match=message):
        npusim.ops.convolution_backward(
            dy, x, w, padding=1, output_mask=(False, True, False), tiling="production", **options
        )


def test_kernels_without_a_rule_say_so() -> None:
    a, b = npusim.spec((64, 64), "fp16"), npusim.spec((64, 64), "fp16")
    with pytest.raises(ArgumentError, match="'production'; it must be 'auto' or a"):
        npusim.ops.matmul(a, b, device=B2, tiling="production")
    x, dy = npusim.spec((1, 16, 8, 8), "fp16"), npusim.spec((1, 16, 8, 8), "fp16")
    w = npusim.spec((16, 16, 1, 1), "fp16")
    with pytest.raises(ArgumentError, match="'production'; it must be 'auto', 'library' or a"):
        npusim.ops.convolution_backward(
            dy, x, w, transposed=True, output_mask=(True, False, False), device=B2,
            rules="hardware", tiling="production",
        )  # fmt: skip


def test_the_command_line_takes_rules_and_files(tmp_path: Path) -> None:
    kinds = {"conv_backprop_input": GemmTiling, "conv_backprop_filter": FilterTiling}
    file = tmp_path / "t.yaml"
    file.write_text("".join(f"{word}: {value}\n" for word, value in WORDS.items()))
    assert parse_tiling("production", kinds) == "production"
    assert parse_tiling(f"@{file}", {"any": GemmTiling}) == cann_tiling(WORDS)
    text = f"conv_backprop_filter:@{file}; conv_backprop_input:production"
    assert parse_tiling(text, kinds) == {
        "conv_backprop_filter": cann_tiling(WORDS), "conv_backprop_input": "production"
    }  # fmt: skip
