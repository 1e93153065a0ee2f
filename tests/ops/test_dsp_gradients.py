"""The DSP library's gradients: by hand, against float64, one order of sums, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError, CapacityError, RuleError
from npusim.base.records import replace
from npusim.compat import ftdsp
from npusim.kernels.dsp.input_tiling import Tiling
from npusim.ops import CARDS
from npusim.ops.card import Sample
from npusim.ops.dsp_gradients import Wanted
from npusim.problem.convolution import Convolution
from npusim.problem.reference import relative_error
from npusim.results import Result
from tests.sampled import examples

Array = np.ndarray[Any, Any]

FILTERS = ("conv_grad_filter", "deconv_grad_filter")
INPUTS = ("conv_grad_input", "deconv_grad_input")
NAMES = (*FILTERS, *INPUTS)
#: Those whose refusals are not in the table of `tests/problem/limits`.
OF_ONE_ENTRANCE = ("conv_grad_filter", *INPUTS)


def layer(name: str, **sizes: Any) -> Wanted:
    """A call of 6 -> 4 channels in 2 groups, 3x2 taps, stride 2x1, uneven padding."""
    usual: dict[str, Any] = {
        "n": 2, "cin": 6, "cout": 4, "spatial": (5, 6), "kernel": (3, 2), "stride": (2, 1),
        "padding": ((1, 0), (0, 0)), "dilation": (1, 2), "groups": 2,
    }  # fmt: skip
    c = Convolution(**(usual | sizes), transposed=name.startswith("deconv"))
    return Wanted(c if c.outputs else replace(c, outputs=c.out), "shared", 0)


def arrays(name: str, p: Wanted, kind: Any = np.float32) -> dict[str, Array]:
    rng = np.random.default_rng(p.c.macs)
    return {one.name: rng.standard_normal(one.shape(p)).astype(kind) for one in CARDS[name].inputs}


def run(name: str, p: Wanted, kind: Any = np.float32, **options: Any) -> Result:
    usual = {"device": "mt7004", "timeline": False}
    return CARDS[name].call(p, arrays(name, p, kind), usual | options)


def first(result: Result) -> Array:
    """The one output."""
    (found,) = result.outputs or ()
    assert found is not None
    return found


def error(name: str, p: Wanted, result: Result, kind: Any) -> tuple[float, float]:
    """The relative error of a result, and what is allowed."""
    sample = Sample(problem=p, arrays=arrays(name, p, kind), device=result.device)
    (output,) = CARDS[name].outputs(p)
    got = output.unpack(p, first(result)).astype(np.float64)
    return relative_error(got, output.expected(sample)), output.limit(sample)


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, Wanted]:
    """Any operator on any small layer; the output may be larger or smaller than it would be."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    return name_and_layer(
        draw(st.sampled_from(NAMES)),
        n=draw(st.integers(1, 3)),
        cin=groups * draw(st.integers(1, 9)),
        cout=groups * draw(st.integers(1, 9)),
        spatial=pair(1, 9),
        kernel=pair(1, 4),
        stride=pair(1, 5),
        padding=tuple((before, 0) for before in pair(0, 3)),
        dilation=pair(1, 2),
        groups=groups,
        outputs=pair(1, 12),
    )


# One column of positions of a stride of two: rows of the gradient lie one column apart, not two.
ONE_COLUMN = (
    "conv_grad_input",
    layer(
        "conv_grad_input", n=1, cin=1, cout=2, spatial=(2, 1), kernel=(1, 1), stride=(1, 2),
        padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1, outputs=(1, 1),
    ),
)  # fmt: skip


def name_and_layer(name: str, **sizes: Any) -> tuple[str, Wanted]:
    return name, layer(name, **sizes)


WIDE_ROWS = {"spatial": (1, 3000), "kernel": (1, 3), "padding": ((0, 0), (1, 0))}
LARGE_WINDOW = {"kernel": (40, 30), "padding": ((20, 0), (15, 0))}


# -- the numbers -------------------------------------------------------------------------------


@examples(60)
@given(problem=layers(), half=st.booleans(), storage=st.sampled_from(("shared", "gsm", "private")))
@example(problem=ONE_COLUMN, half=False, storage="shared")
def test_each_is_its_definition(problem: tuple[str, Wanted], half: bool, storage: str) -> None:
    name, p = problem
    p, kind = p._replace(storage=storage), np.float16 if half else np.float32
    found, limit = error(name, p, run(name, p, kind), kind)
    assert found <= limit


def test_by_hand() -> None:
    """One channel, 2x2 taps, stride 1: a 2x2 map of an ordinary layer has one output."""
    w = np.arange(1.0, 5, dtype=np.float32).reshape(1, 4, 1)
    x = np.arange(5.0, 9, dtype=np.float32).reshape(1, 2, 2, 1)
    dy = np.full((1, 1, 1, 1), 10, np.float32)
    param = [1, 2, 2, 1, 1, 1, 1, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1, 0]
    dw = first(npusim.ops.conv_grad_filter(dy, x, param))
    assert dw.shape == (1, 4, 1)
    assert dw.ravel().tolist() == [50, 60, 70, 80]
    dx = first(npusim.ops.conv_grad_input(dy, w, param))
    assert dx.ravel().tolist() == [10, 20, 30, 40]
    # The transposed layer makes 2x2 of one pixel: its gradient is the sum of w times dy.
    exchanged = [1, 1, 1, 1, 1, 2, 2, 1, *param[8:]]
    dx = first(npusim.ops.deconv_grad_input(x, w, exchanged))
    assert dx.ravel().tolist() == [5 + 12 + 21 + 32]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_the_mask_changes_no_bit(name: str, kind: Any) -> None:
    p = layer(name, n=3, cin=10, cout=14, spatial=(7, 9))
    same = {"deterministic": True} if name in FILTERS else {}
    want = first(run(name, p, kind, **same))
    for mask in (1, 0b10, "0-4"):
        got = first(run(name, p, kind, cores=mask, **same))
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@examples(25)
@given(name=st.sampled_from(INPUTS), data=st.data())
def test_any_tiling_gives_the_same_bits(name: str, data: st.DataObject) -> None:
    p = layer(name)
    wide = p.c.spatial[1]
    width = data.draw(st.integers(1, wide))
    taps = data.draw(st.integers(1, p.c.taps))
    tiling = Tiling(
        rows=data.draw(st.integers(1, 5)) if width == wide else 1,
        width=width,
        columns=data.draw(st.integers(1, 3)),
        taps=taps,
        channels=2 if taps > 1 else data.draw(st.integers(1, 2)),
    )
    np.testing.assert_array_equal(first(run(name, p, tiling=tiling)), first(run(name, p)))


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (INPUTS, WIDE_ROWS),
        (INPUTS, {"spatial": (4, 5), "cout": 3000, "cin": 40, "groups": 1}),
        (INPUTS, LARGE_WINDOW | {"spatial": (9, 9), "outputs": (9, 9)}),
        (FILTERS, WIDE_ROWS | {"cin": 1, "cout": 8, "groups": 1}),
        (FILTERS, LARGE_WINDOW | {"spatial": (9, 9), "outputs": (9, 9)}),
        (FILTERS, {"spatial": (2, 3), "cin": 3000, "cout": 8, "groups": 1, "outputs": (4, 4)}),
    ],
)
def test_what_does_not_fit_is_cut(names: tuple[str, ...], sizes: dict[str, Any]) -> None:
    for name in names:
        p = layer(name, **{"n": 1, "stride": (1, 1), "dilation": (1, 1)} | sizes)
        found, limit = error(name, p, run(name, p, device="ft78ne"), np.float32)
        assert found <= limit


def test_zeros_of_a_stride_are_not_worked_through() -> None:
    p = layer(
        "conv_grad_input",
        **{"n": 1, "cin": 4, "cout": 4, "groups": 1, "spatial": (60, 60), "kernel": (3, 3)},
        **{"stride": (20, 20), "dilation": (1, 1), "padding": ((0, 0), (0, 0))},
    )
    found, limit = error("conv_grad_input", p, run("conv_grad_input", p), np.float32)
    assert found <= limit
    big = [1, 280, 280, 16, 1, 5, 5, 16, 7, 7, 68, 68, 0, 0, 1, 1, 1, 0]
    dy, w = npusim.spec((1, 5, 5, 16), "fp32"), npusim.spec((1, 16 * 49, 16), "fp32")
    result = npusim.ops.conv_grad_input(dy, w, big, device="ft78ne")
    assert result.time_us < 400  # 18,366 with all taps at all positions


# -- the calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_hp_says_how_it_accumulates_and_reports_the_layer(name: str) -> None:
    result = run(name, layer(name), np.float16)
    assert any("hp accumulates in fp32 and rounds once" in note for note in result.notes)
    assert "6 -> 4 channels, 3x2, stride [2, 1], pad [1, 0]" in result.problem
    assert result.problem.endswith("hp, shared")
    assert result.cycles == run(name, layer(name), np.float16, engine="simpy").cycles


@pytest.mark.parametrize("name", OF_ONE_ENTRANCE)
@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({0: 3}, "param"),
        ({2: 0}, "param"),
        ({12: -1}, "param"),
        ({16: 4}, "param"),
        ({5: 99}, "dy.shape"),
    ],
)
def test_refusals(name: str, change: dict[int, int], parameter: str) -> None:
    p = layer(name)
    given, operator = arrays(name, p), getattr(npusim.ops, name)
    param = [change.get(i, value) for i, value in enumerate(p.param)]
    second = next(value for key, value in given.items() if key != "dy")
    with pytest.raises(RuleError) as caught:
        operator(given["dy"], second, param)
    assert caught.value.parameter == parameter
    assert "assumption" in str(caught.value)
    with pytest.raises(RuleError, match="core_mask"):
        operator(given["dy"], second, p.param, 1 << 8)
    with pytest.raises(RuleError, match="dtype"):
        operator(given["dy"].astype(np.float16), second.astype(np.float16), p.param)
    with pytest.raises(ArgumentError, match="takes one type for both"):
        operator(given["dy"], second.astype(np.float16), p.param)


def test_an_input_gradient_wants_the_weight_of_its_parameters() -> None:
    p = layer("conv_grad_input")
    given = arrays("conv_grad_input", p)
    with pytest.raises(RuleError, match=r"w.shape is \(2, 12, 2\): param makes it \(2, 12, 3\)"):
        npusim.ops.conv_grad_input(given["dy"], given["w"][:, :, :2], p.param)
    big = Wanted(replace(p.c, n=600_000, spatial=(60, 60), outputs=(30, 60)), "shared", 0)
    dy, w = (npusim.spec(one.shape(big), "fp32") for one in CARDS["conv_grad_input"].inputs)
    with pytest.raises(CapacityError, match="of main memory"):
        npusim.ops.conv_grad_input(dy, w, big.param)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("form", "kind"), [("fp", np.float32), ("hp", np.float16)])
def test_the_forms_of_the_library_write_in_place(name: str, form: str, kind: Any) -> None:
    p = layer(name)
    # Sums of small whole numbers are exact in any order.
    given = {one: np.rint(array) for one, array in arrays(name, p, kind).items()}
    second, result = ("x", "dw") if name in FILTERS else ("w", "dx")
    want = first(CARDS[name].call(p, given, {"device": "mt7004", "timeline": False}))
    shared, private = (getattr(ftdsp, f"{form}_{name}_{end}") for end in ("s", "p"))
    flat = np.full(want.size, 77, kind)
    with ftdsp.using("mt7004"):
        shared(given["dy"].ravel(), given[second].ravel(), flat, p.param, 0b11)
        whole = np.full(want.shape, 77, kind)
        named = {"dy": given["dy"], second: given[second], result: whole, "param": p.param}
        private(**named)
    np.testing.assert_array_equal(flat.reshape(want.shape), want)
    np.testing.assert_array_equal(whole, want)
    assert shared.__name__ == f"{form}_{name}_s"
    with pytest.raises(ArgumentError, match=f"{result} has shape"):
        private(given["dy"], given[second], whole[:1, :1], p.param, device="mt7004")
    with pytest.raises(ArgumentError, match="missing a required argument: 'core_mask'"):
        shared(given["dy"], given[second], whole, p.param)
