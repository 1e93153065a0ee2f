"""The vendor's published tilings of backward convolutions against ``tiling="production"``."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.resources import configs
from npusim.kernels.vendor import cann_filter, cann_input
from npusim.kernels.vendor.cann import CannTiling, cann_tiling
from npusim.machine.device.catalog import load_device
from npusim.problem.convolution import Convolution

RULES: dict[str, Any] = {"input": cann_input, "filter": cann_filter}
DEVICES = {"Ascend910B2": "ascend910b2", "Ascend910B3": "ascend910b3"}
TYPES = {
    "FLOAT16": "fp16", "BF16": "bf16", "FLOAT": "fp32", "bfloat16": "bf16", "float32": "fp32"
}  # fmt: skip

#: Rows the rule does not cover, with the part of its answer that says why.
OUTSIDE = {
    "conv3d_dx_050_fp32": "fp16 and bf16",
    "conv3d_dx_17_fp32": "fp16 and bf16",
    "conv3d_dx_17_hf32": "fp16 and bf16",
    "group_depth_g320_k2_f32": "fp16 and bf16",
    "stdit_01_fp16": "M and N of 128 or more",
    "26_b16": "M and N of 128 or more",
    "stdit_01_fp32": "fp16 and bf16",
    "float32_NCDHW_net_ID_5": "fp16 and bf16",
    "float32_NCDHW_net_ID_26": "fp16 and bf16",
    "test_group_upper_bound": "fp16 and bf16",
    "stdit_01_fp32_deterministic": "fp16 and bf16",
    "stdit_01_fp16_deterministic_streamk": "M and N of 128 or more",
}

#: Words of a ``CannTiling`` that the file of filter gradients has and, less, that of the other.
WORDS = (
    *("baseM", "baseN", "baseK", "stepM", "stepN", "stepKa", "stepKb", "iterateOrder"),
    *("al1Pbuffer", "bl1Pbuffer", "al0Pbuffer", "bl0Pbuffer", "cl0Pbuffer", "singleCoreM"),
)
MORE = {"input": (), "filter": ("singleCoreN", "singleCoreK")}


def rows() -> list[Any]:
    folder = configs() / "silicon"
    found = []
    for name in RULES:
        text = (folder / f"golden_tilings_{name}.csv").read_text(encoding="utf-8")
        found += [
            pytest.param(name, row, id=row["case"]) for row in csv.DictReader(text.splitlines())
        ]
    return found


def problem(row: dict[str, str]) -> tuple[Convolution, DType]:
    def three(*names: str) -> Any:
        return tuple(int(row[name]) for name in names)

    kind = dtype(TYPES[row["dtype"]])
    pads = three("padFront", "padBack", "padUp", "padDown", "padLeft", "padRight")
    shape = Convolution(
        n=int(row["batch"]),
        cin=int(row["cin"]),
        cout=int(row["cout"]),
        spatial=three("di", "hi", "wi"),
        kernel=three("dk", "hk", "wk"),
        stride=three("strideD", "strideH", "strideW"),
        padding=(pads[:2], pads[2:4], pads[4:]),
        dilation=three("dilationD", "dilationH", "dilationW"),
        groups=int(row["group"]),
        c0=32 // kind.bytes,
        outputs=three("dout", "ho", "wo"),
    )
    return shape, kind


@pytest.mark.parametrize(("name", "row"), rows())
def test_the_rule_chooses_what_the_library_does(name: str, row: dict[str, str]) -> None:
    shape, kind = problem(row)
    device = load_device(DEVICES[row["soc"]])

    def chosen() -> CannTiling:
        tiling: CannTiling = RULES[name].production_tiling(shape, device, int(row["cores"]), kind)
        return tiling

    if row["case"] in OUTSIDE:
        with pytest.raises(ArgumentError, match=OUTSIDE[row["case"]]):
            chosen()
        return
    words = (*WORDS, *MORE[name])
    ours = chosen()
    published = {word: int(row[word]) for word in words}
    # What the file of input gradients does not say is taken from ours.
    silent = {
        "singleCoreN": ours.single_core_n, "singleCoreK": ours.single_core_k
    }  # fmt: skip
    assert ours == cann_tiling({**silent, **published})
    # The struct as a whole says the same, and tells what of it is not modelled.
    whole = cann_tiling({k: int(v) if v.isdecimal() else v for k, v in row.items()})
    assert ours == whole
    assert {"strideH", "hf32Flag"} < set(whole.left)
    assert f"not modelled: {whole.left[0]}, " in str(whole)


COVERED = [row for row in rows() if row.values[1]["case"] not in OUTSIDE]


@pytest.mark.parametrize(("name", "row"), COVERED)
def test_every_tiling_the_rule_covers_has_a_kernel(name: str, row: dict[str, str]) -> None:
    shape, kind = problem(row)
    device = load_device(DEVICES[row["soc"]])
    tiling = RULES[name].production_tiling(shape, device, int(row["cores"]), kind)
    ours, _ = RULES[name].kernel_tiling(tiling, shape, device, kind)
    bases = (int(row["baseM"]), int(row["baseN"]), int(row["baseK"]))
    assert (ours.base_m, ours.base_n, ours.base_k) == bases
    if name == "filter":  # the room that the library gives x in L1, in elements
        bound = cann_filter.FilterProduct(shape, kind.bytes).bound_b(tiling)
        assert bound == int(row["bl1Bound"])


def test_the_rows_are_all_there_and_named_once() -> None:
    names = [row.values[1]["case"] for row in rows()]
    assert len(names) == len(set(names)) == 27
    assert set(OUTSIDE) < set(names)
