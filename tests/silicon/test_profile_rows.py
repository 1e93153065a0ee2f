"""Kernels of a profile as kernels here: which there are, their tilings, and what is declined."""

from __future__ import annotations

from typing import Any

import pytest

from npusim import spec
from npusim.machine.device.catalog import load_device
from npusim.ops import matmul
from npusim.silicon.choices import Choice
from npusim.silicon.profile_rows import simulate_profiled_row
from npusim.silicon.rows import Declined, ProfiledOperand, ProfiledRow, SimulatedRow
from npusim.silicon.simulate import simulate_row

DEVICE = "ascend910b2"
MAP = ProfiledOperand((2, 1, 4, 14, 14, 16), "fp16", "NDC1HWC0")
FRACTALS = ProfiledOperand((36, 4, 16, 16), "fp16", "FRACTAL_Z_3D")
SIZES = ProfiledOperand((5,), "int32", "ND")
LAYER = Choice(attributes=(("kernel", (3, 3)), ("padding", (1,))), where="f.yaml:2")


def plain(*shape: int, kind: str = "fp16", layout: str = "ND") -> ProfiledOperand:
    return ProfiledOperand(shape, kind, layout)


def row(
    kind: str, operands: tuple[ProfiledOperand, ...], *results: ProfiledOperand, **more: Any
) -> ProfiledRow:
    return ProfiledRow(
        id="x", chip=DEVICE, op=kind, operands=operands, results=results, where="p.csv:7", **more
    )


def simulated(one: ProfiledRow) -> SimulatedRow:
    return simulate_profiled_row(one, load_device(DEVICE))


def reason(one: ProfiledRow) -> str:
    with pytest.raises(Declined) as declined:
        simulated(one)
    assert str(declined.value).startswith("p.csv:7: ")
    return str(declined.value)


def test_a_product_is_the_operators_own_with_its_tiling() -> None:
    got = simulated(row("MatMulV3", (plain(256, 128), plain(128, 512)), plain(256, 512)))
    operands = spec((256, 128), "fp16"), spec((128, 512), "fp16")
    same = matmul(*operands, out_dtype="fp16", device=DEVICE)
    assert got.time_us == pytest.approx(same.time_us)
    assert got.kernels == ("matmul",)
    assert any(note.startswith("tiling by auto: base ") for note in got.notes)
    assert "the profile does not say on how many cores: all" in got.notes


def test_shapes_tell_how_b_is_stored() -> None:
    sides = plain(256, 128), plain(512, 128)
    turned = simulated(row("MatMul", sides, plain(256, 512)))
    assert turned.time_us > 0
    down = simulated(row("MatMul", (plain(128, 256), plain(128, 512)), plain(256, 512)))
    assert down.time_us > 0
    square = simulated(row("MatMul", (plain(256, 128), plain(128, 128)), plain(256, 128)))
    assert any("B is square" in note for note in square.notes)
    told = Choice(attributes=(("transpose_b", True),))
    said = row("MatMul", (plain(256, 128), plain(128, 128)), plain(256, 128), choice=told)
    assert not any("B is square" in note for note in simulated(said).notes)


def test_a_tiling_of_the_file_beside_is_taken() -> None:
    fields = (("base_m", 64), ("base_n", 64), ("base_k", 32))
    one = row(
        *("MatMul", (plain(256, 128), plain(128, 512)), plain(256, 512)),
        choice=Choice(fields, (), "f.yaml:3"),
        cores=4,
    )
    assert any(n.startswith("tiling of f.yaml:3: base 64x64x32") for n in simulated(one).notes)


@pytest.mark.parametrize(
    ("kind", "operands", "result"),
    [
        ("Conv3DBackpropInputV2", (SIZES, FRACTALS, MAP), MAP),
        ("Conv3DBackpropFilterD", (MAP, MAP), FRACTALS),
        (
            "Conv2DBackpropInput",
            (plain(36, 4, 16, 16, layout="FRACTAL_Z"), plain(2, 4, 14, 14, 16, layout="NC1HWC0")),
            plain(2, 4, 14, 14, 16, layout="NC1HWC0"),
        ),
    ],
)
def test_gradients_take_their_attributes_from_the_file_beside(
    kind: str, operands: tuple[ProfiledOperand, ...], result: ProfiledOperand
) -> None:
    got = simulated(row(kind, operands, result, choice=LAYER, cores=24))
    assert got.busy_us["cube"]
    assert any("tiling by" in note for note in got.notes)
    assert "give kernel, and stride" in reason(row(kind, operands, result))
    odd = Choice(attributes=(("kernel", (5, 5)),), where="f.yaml:2")
    assert "f.yaml:2: with these attributes the output is" in reason(
        row(kind, operands, result, choice=odd)
    )


@pytest.mark.parametrize(
    ("kind", "operands", "result"),
    [
        ("TransData", (plain(2, 64, 14, 14, layout="NCHW"),),
         plain(2, 4, 14, 14, 16, layout="NC1HWC0")),
        ("TransData", (MAP,), plain(2, 64, 1, 14, 14, layout="NCDHW")),
        ("Transpose", (plain(64, 96),), plain(96, 64)),
        ("Cast", (plain(64, 96),), plain(64, 96, kind="fp32")),
        ("Add", (plain(64, 96), plain(64, 96)), plain(64, 96)),
        ("Relu", (plain(1000),), plain(1000)),
    ],
)  # fmt: skip
def test_vector_kernels_run(
    kind: str, operands: tuple[ProfiledOperand, ...], result: ProfiledOperand
) -> None:
    got = simulated(row(kind, operands, result, cores=48, task="AI_VECTOR_CORE"))
    assert got.busy_us["aiv_mte2"]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (row("Softmax", (plain(4),), plain(4)), "op type Softmax has no kernel here; known are"),
        (row("MatMul", (plain(4, 4),), plain(4), task="AI_CPU"), "task type AI_CPU runs on no"),
        (row("MatMul", (plain(64, 32), plain(33, 16)), plain(64, 16)), "it must be (32, 16)"),
        (row("BatchMatMul", (plain(2, 4, 4),), plain(2, 4, 4)), "op type BatchMatMul has no"),
        (
            row("MatMul", (plain(64, 32), plain(32, 16)), plain(64, 16), cores=25),
            "block dim is 25, but ascend910b2 has 24 cube cores",
        ),
        (
            row("MatMul", (plain(64, 32), plain(32, 16)), plain(64, 16), choice=Choice("vendor")),
            "the vendor's rule for products is not known; use auto",
        ),
        (
            row(
                *("MatMul", (plain(64, 32), plain(32, 16)), plain(64, 16)),
                choice=Choice((("basem", 1),), (), "f.yaml:2"),
            ),
            "f.yaml:2: tiling has no 'basem'",
        ),
        (
            row("Conv2DBackpropInput", (plain(4, 4, 3, 3, layout="NCHW"),), plain(4)),
            "operands in NCHW: only NC1HWC0",
        ),
        (row("Transpose", (plain(8, 8),), plain(8, 8)), "axes of equal size: give the permut"),
        (row("Add", (plain(8, 8), plain(8)), plain(8, 8)), "or with broadcast"),
    ],
)
def test_what_is_not_simulated_says_why(one: ProfiledRow, message: str) -> None:
    assert message in reason(one)


def test_a_changed_figure_does_not_change_the_tiling() -> None:
    one = row("MatMul", (plain(1024, 512), plain(512, 1024)), plain(1024, 1024))
    slow = {"l2.read": "0.1TB/s", "main_memory.read": "0.1TB/s"}
    stock, changed = simulate_row(one, {}).simulated, simulate_row(one, slow).simulated
    assert stock is not None
    assert changed is not None
    assert changed.notes == stock.notes
    assert changed.time_us > 2 * stock.time_us
