"""Every operand the kernel language refuses, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ProgramError
from npusim.base.records import replace
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import Tensor
from tests.machine.program.conftest import Bench
from tests.tables import rows

FLAT = Window(h=1, w=16, pad_left=0, pad_right=0, pad_top=0, pad_bottom=0, kernel_h=1, kernel_w=1)


def names(bench: Bench) -> dict[str, Any]:
    """What an issued line may name: the language, a buffer per memory, a tensor, a short load3d."""

    def load3d(m: tuple[int, int] = (0, 16), k: tuple[int, int] = (0, 16), **changes: int) -> None:
        window = replace(FLAT, **changes)
        a, l1 = bench.a.last(), bench.l1.last()
        bench.k.load3d(a.at(0, 512), l1.at(0, 512), window, FP16, m=m, k=k)

    known = {"FP16": FP16, "FP32": FP32, "FLAT": FLAT, "load3d": load3d}
    return {**vars(bench), **known, "x": Tensor("x", (4096,), FP16)}


@rows(
    "tests/data/mistakes/program.yaml",
    "illegal_operands_are_refused_when_issued",
    "case, issued, message",
)
def test_illegal_operands_are_refused_when_issued(
    case: str, issued: str, message: str, bench: Bench
) -> None:
    with pytest.raises(ProgramError, match=message):
        eval(issued, names(bench))
    assert not bench.k.instructions, case
