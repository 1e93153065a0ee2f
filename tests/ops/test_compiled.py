"""The tensor compiler's gradients, every row alike: float64, groups, types, costs, lazy forms.

A new row of ``npusim.problem.limits.facts.FORMS`` is tested here without a word; its refusals are
in ``tests/problem/limits``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, RuleError
from npusim.cli.main import main
from npusim.compat.tbe import dsl, tvm
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as InputTiling
from npusim.machine.device.catalog import load_device
from npusim.machine.timing.trace import KernelRun
from npusim.ops import CARDS
from npusim.ops.compiled import FORMS
from npusim.ops.layer import Wanted
from npusim.problem.convolution import Convolution
from npusim.problem.layouts import group_dict
from npusim.results import Result
from tests.sampled import examples

Array = np.ndarray[Any, Any]

NAMES = sorted(FORMS)
FILTERS = [name for name in NAMES if FORMS[name].of_filter]
INPUTS = [name for name in NAMES if name not in FILTERS]


def wanted(case: Any) -> Wanted:
    names = ("n", "cin", "cout", "spatial", "kernel", "stride", "dilation", "groups")
    sizes: dict[str, Any] = {name: getattr(case, name) for name in names}
    return Wanted(c=Convolution(**sizes, padding=case.pads))


def arguments(name: str, case: Any, arrays: dict[str, Array], **para: Any) -> list[Any]:
    """Operands in blocks, lists and para_dict, with groups where they must be stated."""
    form, p, blocked = FORMS[name], wanted(case), {i.name: i for i in CARDS[name].inputs}
    groups = {"groups": case.groups} if "groups" in form.optional else {}
    first = "x" if form.of_filter else "w"
    operands = [blocked[one].native(p, arrays[one]) for one in (first, "dy")]
    return [*operands, *form.sizes(p.c), form.para(p.c, **groups | para)]


def run(name: str, case: Any, arrays: dict[str, Array], para: Any = None, **options: Any) -> Result:
    usual: dict[str, Any] = {"device": "ascend910", "timeline": False, "rules": "hardware"}
    given = arguments(name, case, arrays, **para or {})
    result: Result = getattr(npusim.ops, name)(*given, **usual | options)
    return result


def plain(name: str, case: Any, result: Result) -> Array:
    """The result as frameworks have it; beside it, in blocks that are not full, is nothing."""
    (array,), p = result.outputs or (), wanted(case)
    assert array is not None
    (output,) = CARDS[name].outputs(p)
    found: Array = output.unpack(p, array)
    assert np.count_nonzero(array) == np.count_nonzero(found)
    return found


def operands(case: Any, *, whole: bool = False) -> tuple[dict[str, Array], tuple[Array, Array]]:
    """Random operands by name, and the gradients of input and weight in float64."""
    three = case.operands((FP16,) * 3)
    dy, x, w = (np.round(one * 4) for one in three) if whole else three
    return {"dy": dy, "x": x, "w": w}, case.reference(dy, x, w)


@pytest.fixture
def small(layer: Any) -> Any:
    """Makes a layer for a function: 20 channels in groups that share fractals, uneven padding."""

    def made(name: str, **more: Any) -> Any:
        deep = "3d" in name
        sizes: dict[str, Any] = {"n": 2, "cin": 20, "cout": 12, "groups": 4, "kernel": (2, 3)}
        sizes |= {"spatial": (5, 6), "stride": (1, 2), "pads": ((0, 1), (2, 0))}
        if deep:
            sizes |= {"spatial": (4, 5, 6), "kernel": (3, 2, 3), "stride": (1, 1, 2)}
            sizes |= {"pads": ((1, 0), (0, 1), (2, 0)), "dilation": (1, 1, 1)}
            sizes["output_padding"] = (0, 0, 0)
        if name.startswith("depthwise"):
            sizes |= {"cout": 20, "groups": 20}
        return layer(**sizes | more)

    return made


@pytest.mark.drawn
@pytest.mark.parametrize("name", NAMES)
def test_any_layer_matches_float64(name: str, drawn: Any, layer: Any, close: Any) -> None:
    of_filter = FORMS[name].of_filter

    @examples(30)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = drawn(data, 3 if "3d" in name else 2, plane=name == "conv3d_backprop_input")
        if name.startswith("depthwise"):
            channels = data.draw(st.integers(1, 40))
            kept = {n: getattr(case, n) for n in ("n", "spatial", "kernel", "stride", "pads")}
            case = layer(
                **kept, dilation=case.dilation, cin=channels, cout=channels, groups=channels
            )
        tiling: Any = "auto"
        if data.draw(st.booleans()):
            base_k = data.draw(st.sampled_from((16, 48)))
            tiling = InputTiling(base_m=16, base_n=32, base_k=base_k)
            if of_filter:
                slab: dict[str, Any] = {"base_k": base_k, "slab_k": base_k, "form": "taps"}
                tiling = FilterTiling(base_m=16, base_n=32, **slab)
        devices = ("ascend310", "ascend910", "ascend910b2", "ascend950pr")
        arrays, (dx, dw) = operands(case)
        result = run(name, case, arrays, device=data.draw(st.sampled_from(devices)), tiling=tiling)
        want, kind = (dw, FP32) if of_filter else (dx, FP16)
        close(name, plain(name, case, result), want, (FP16,), kind)

    check()


@pytest.mark.parametrize("name", FILTERS)
def test_groups_that_share_fractals_are_cleared(small: Any, name: str) -> None:
    case = small(name)
    arrays, (_, want) = operands(case, whole=True)
    result = run(name, case, arrays, rules="documented")
    np.testing.assert_array_equal(plain(name, case, result), want)
    assert [one.name for one in result.runs][-1] == "clear_blocks"
    assert "off-diagonal" in " ".join(result.notes)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_lies_behind_the_last_channel_reaches_no_gradient(
    small: Any, name: str, value: float
) -> None:
    case = small(name)
    arrays, (_, want) = operands(case, whole=True)
    x, dy, *lists = arguments(name, case, arrays)
    for blocks, channels in ((x, case.cin), (dy, case.cout)):
        np.moveaxis(blocks, -4, 0)[-1][..., channels % 16 :] = value
    result = getattr(npusim.ops, name)(x, dy, *lists, device="ascend910", rules="hardware")
    (output,) = CARDS[name].outputs(wanted(case))
    np.testing.assert_array_equal(output.unpack(wanted(case), result.outputs[0]), want)


@examples(25)
@given(
    st.integers(300, 3000), st.sampled_from([1, 3, 7]), st.integers(1, 3), st.integers(1, 2),
    st.sampled_from(["tiny", "ascend910", "ascend910b2"]), st.integers(1, 2),
)  # fmt: skip
def test_rows_wider_than_l1_are_split_into_columns(
    layer: Any, width: int, taps: int, stride: int, dilation: int, device: str, height: int
) -> None:
    """Neither operand's rows fit."""
    case = layer(
        cin=20, cout=8, spatial=(height, width), kernel=(1, taps), stride=(1, stride),
        dilation=(1, dilation), pads=((0, 0), (taps // 2, taps // 2)),
    )  # fmt: skip
    arrays, (_, want) = operands(case, whole=True)
    chip = load_device(device).replace("memories.L1.size", "12KiB")
    result = run("conv2d_backprop_filter", case, arrays, device=chip)
    np.testing.assert_array_equal(plain("conv2d_backprop_filter", case, result), want)


def test_a_filter_that_only_ever_sees_padding_has_a_zero_gradient(layer: Any) -> None:
    case = layer(cout=3, spatial=(1, 1), kernel=(2, 1), stride=(5, 1), pads=((3, 0), (0, 0)))
    result = run("conv2d_backprop_filter", case, operands(case)[0])
    assert [one.name for one in result.runs] == ["mem_set"]
    assert not plain("conv2d_backprop_filter", case, result).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_timing_only_run_gives_the_same_rows(small: Any, name: str, start: str) -> None:
    given_arrays = arguments(name, small(name), operands(small(name))[0])
    specs = [
        npusim.spec(one.shape, "fp16") if isinstance(one, np.ndarray) else one
        for one in given_arrays
    ]
    full, timed = (
        getattr(npusim.ops, name)(*call, device="ascend910b2", rules="hardware", start=start)
        for call in (given_arrays, specs)
    )
    assert (timed.outputs, timed.cycles, timed.notes) == (None, full.cycles, full.notes)
    for a, b in zip(full.runs, timed.runs, strict=True):
        assert (a.pipes, a.traffic, a.bounds) == (b.pipes, b.traffic, b.bounds)
        for column, values in structs.asdict(a.timeline).items():
            np.testing.assert_array_equal(values, getattr(b.timeline, column))
        check_account(a, start)


def check_account(kernel: KernelRun, start: str) -> None:
    """No cycle is without a reason, no time below a bound; no byte is neither hit nor missed."""
    assert all(sum(row.cycles) == kernel.cycles for row in kernel.pipes)
    assert all(min(row.cycles) >= 0 for row in kernel.pipes)
    assert all(bound.cycles <= kernel.cycles for bound in kernel.bounds)
    read = [row for row in kernel.traffic if row.src == "GM"]
    assert all(row.hit_bytes + row.miss_bytes == row.bytes for row in read)
    if start == "warm":
        assert sum(row.miss_bytes for row in kernel.traffic) == 0


@pytest.mark.parametrize("name", INPUTS)
def test_the_fp32_result_is_not_rounded(small: Any, name: str) -> None:
    case = small(name)
    dy, x, w = case.operands((FP16,) * 3)
    dy, w = (np.round(dy * 64) + 300).astype(dy.dtype), (np.round(w * 64) + 101).astype(w.dtype)
    result = run(name, case, {"dy": dy, "w": w}, {"res_dtype": "float32"})
    got, want = plain(name, case, result), case.reference(dy, x, w)[0]
    np.testing.assert_array_equal(got, want)
    assert (got.dtype, np.abs(want).max() > 65504) == (np.float32, True)
    assert result.problem.endswith("fp16 -> fp32")


@pytest.mark.parametrize("name", [name for name in NAMES if "3d" not in name])
def test_it_costs_what_its_sisters_cost(small: Any, layer: Any, name: str) -> None:
    """Those of one channel per group, and of one plane more than none."""
    case, sister = small(name), name.removeprefix("depthwise_")
    arrays, _ = operands(case)
    result = run(name, case, arrays)
    same = run(sister, case, arrays)
    assert (same.cycles, same.problem) == (result.cycles, result.problem)
    kept = {n: getattr(case, n) for n in ("n", "cin", "cout", "groups")}
    sizes = {n: (1, *getattr(case, n)) for n in ("spatial", "kernel", "stride", "dilation")}
    deep = layer(**kept, **sizes, pads=((0, 0), *case.pads), output_padding=(0, 0, 0))
    lifted = {key: array[:, :, None] for key, array in arrays.items()}
    assert run(sister.replace("2d", "3d"), deep, lifted).cycles == result.cycles


@pytest.mark.parametrize("name", NAMES)
def test_the_function_of_the_tensor_compiler(small: Any, name: str) -> None:
    case = small(name)
    arrays, want = operands(case, whole=True)
    packing = {"group_dict": group_dict(wanted(case).c.plan)}
    more = packing if "group_dict" in FORMS[name].optional else {}
    first, dy, *lists = arguments(name, case, arrays, kernel_name="mine", **more)
    feeds = {"first": first, "dy": dy}
    read = [tvm.placeholder(a.shape, name=n, dtype="float16") for n, a in feeds.items()]
    lazy = getattr(dsl, name)(*read, *lists)
    result = lazy.run(feeds, device="ascend910", timeline=False, rules="hardware")
    (array,) = result.outputs
    assert (lazy.name, lazy.shape, lazy.dtype) == ("mine", array.shape, array.dtype.name)
    got = plain(name, case, result)
    np.testing.assert_allclose(got, want[FORMS[name].of_filter], rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "key", ["groups", "group_dict", "tensor_bias", "stride", "pads", "padding"]
)
def test_keys_that_a_form_has_not(small: Any, name: str, key: str) -> None:
    form = FORMS[name]
    if key in (*form.optional, form.pads):
        pytest.skip("a key of its own")
    case = small(name)
    with pytest.raises(ArgumentError, match=f"unknown key '{key}'"):
        run(name, case, operands(case)[0], {key: 4})


@pytest.mark.parametrize("name", [name for name in NAMES if "group_dict" in FORMS[name].optional])
def test_a_group_dict_is_that_of_the_sizes(small: Any, name: str) -> None:
    case = small(name)
    arrays, packing = operands(case)[0], group_dict(wanted(case).c.plan)
    free = run(name, case, arrays, rules="documented")
    stated = run(name, case, arrays, {"group_dict": packing}, rules="documented")
    assert free.cycles == stated.cycles
    with pytest.raises(RuleError, match=r"group_dict .* must have real_g 1"):
        run(name, case, arrays, {"group_dict": packing | {"real_g": 9}})


def test_a_depthwise_filter_lies_on_the_diagonals_of_fractals(small: Any) -> None:
    case = small("depthwise_conv2d_backprop_input")
    w = operands(case)[0]["w"]
    packed = np.zeros((2, *case.kernel, 16, 16), w.dtype)
    for c in range(case.cin):
        packed[c // 16, :, :, c % 16, c % 16] = w[c, 0]
    read = {one.name: one for one in CARDS["depthwise_conv2d_backprop_input"].inputs}
    np.testing.assert_array_equal(packed.reshape(-1, 1, 16, 16), read["w"].native(wanted(case), w))


def test_a_command_line_states_channels_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "depthwise_conv2d_backprop_input", "--device", "ascend910"]
    assert main([*words, "--cin", "20", "--size", "5x6", "--kernel", "3", "--check"]) == 0
    assert "groups 20" in capsys.readouterr().out
    assert main([*words, "--layer", "resnet50/res4_3x3"]) == 2
    told = capsys.readouterr().err
    assert "has 256 -> 256 channels in 1 groups" in told
    assert "conv2d_backprop_input takes any" in told
    assert main([*words, "--cin", "20", "--size", "5x6"]) == 2
    assert "missing: --kernel" in capsys.readouterr().err
