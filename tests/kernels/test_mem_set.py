"""Clearing a tensor: every byte once, spread over the vector cores."""

from __future__ import annotations

import pytest

import npusim
from npusim.base.dtypes import INT8
from npusim.kernels.estimate.streams import CLEAR_BYTES
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.isa.operands import Tensor


def cleared(size: int, device: str, cores: int) -> tuple[npusim.Result, int]:
    """The result and the number of cores that had work."""
    result = npusim.simulate(MemSet(Tensor("t", (size,), INT8, "out")), device, cores=cores)
    return result, result.runs[0].cores


@pytest.mark.parametrize("device", ["tiny", "ascend910", "ascend910b2"])
@pytest.mark.parametrize("size", [1, 511, 512, 2049, CLEAR_BYTES, 5 * CLEAR_BYTES + 3])
def test_every_byte_is_zero_and_stored_once(size: int, device: str) -> None:
    result, _ = cleared(size, device, 0b1111)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    assert not result.outputs[0].any()
    stored = [row for row in result.runs[0].traffic if row.dst == "GM"]
    assert [(row.src, row.operand, row.bytes) for row in stored] == [("UB", "t", size)]
    assert result.runs[0].macs == 0


def test_small_tensors_are_shared_in_pieces_of_512_bytes() -> None:
    assert cleared(512, "tiny", 0b1111)[1] == 1
    assert cleared(513, "tiny", 0b1111)[1] == 2
    assert cleared(2048, "tiny", 0b1111)[1] == 4
    assert cleared(2048, "tiny", 0b0001)[1] == 1


def test_it_is_bound_by_the_slowest_link_on_the_way() -> None:
    """256 KiB by four cores of `tiny`: each store port gives 64 B per cycle, the L2 takes 128."""
    result, _ = cleared(1 << 18, "tiny", 0b1111)
    run = result.runs[0]
    l2 = (1 << 18) // 128
    assert l2 <= run.cycles <= 1.1 * l2
    assert {bound.resource: bound.cycles for bound in run.bounds}["L2 write"] == l2
    alone, _ = cleared(1 << 18, "tiny", 0b0001)
    assert alone.runs[0].cycles >= (1 << 18) // 64
