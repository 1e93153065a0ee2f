"""Streams: numbers against NumPy, bytes and order of copies, and times worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, CapacityError
from npusim.call.call import simulate
from npusim.kernels.vector.stream import (
    CopyIn,
    CopyInNz,
    CopyTiling,
    Elementwise,
    NdToNz,
    NzTiling,
    StreamTiling,
)
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.timing.trace import KernelRun

Array = np.ndarray[Any, Any]

A2 = load_device("ascend910b2")


def matrix(rows: int, columns: int, name: str = "x", role: str = "in") -> Tensor:
    return Tensor(name, (rows, columns), FP16, role)


def bytes_read(run: KernelRun) -> int:
    return sum(row.bytes for row in run.traffic if row.src == "GM")


# -- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [CopyIn, CopyInNz])
@pytest.mark.parametrize("bands", [1, 3])
def test_every_element_is_read_once_per_pass(kernel: type[CopyIn], bands: int) -> None:
    tiling = CopyTiling(rows=24, columns=48, bands=bands, passes=2)
    run = simulate(kernel(tiling, matrix(100, 161)), A2).runs[0]
    assert bytes_read(run) == 2 * 100 * 161 * 2


def test_shared_reads_everything_on_every_core() -> None:
    tiling = CopyTiling(rows=16, columns=64, shared=True)
    run = simulate(CopyIn(tiling, matrix(96, 64)), A2).runs[0]
    assert (run.cores, bytes_read(run)) == (48, 48 * 96 * 64 * 2)


def first_rows(tiling: CopyTiling) -> list[int]:
    """The row at which each of four cores starts to read 16 rows of 32 B."""
    tasks = CopyIn(tiling, matrix(16, 16)).tasks(4)
    return [int(tasks.bases["x"][tasks.core == core][0]) // 32 for core in range(4)]


def test_rotated_cores_start_an_equal_share_further_down() -> None:
    assert first_rows(CopyTiling(rows=2, columns=16, shared=True)) == [0, 0, 0, 0]
    assert first_rows(CopyTiling(rows=2, columns=16, shared=True, rotated=True)) == [0, 4, 8, 12]
    assert first_rows(CopyTiling(rows=2, columns=16)) == [0, 4, 8, 12]


def test_a_band_is_read_again_before_the_next() -> None:
    tiling = CopyTiling(rows=16, columns=16, bands=2, passes=2)
    tasks = CopyIn(tiling, matrix(16, 32)).tasks(1)
    assert tasks.bases["x"].tolist() == [0, 0, 32, 32]


def test_a_copy_needs_a_matrix() -> None:
    with pytest.raises(ArgumentError, match="it must be a matrix"):
        CopyIn(CopyTiling(rows=1, columns=16), Tensor("x", (4, 4, 4), FP16))


# -- element-wise ----------------------------------------------------------------------------


def stream(operation: str, *arrays: Array, piece: int = 48, slots: int = 2) -> Array:
    tensors = tuple(Tensor(f"x{i}", a.shape, FP32) for i, a in enumerate(arrays))
    z = Tensor("z", arrays[0].shape, FP32, "out")
    kernel = Elementwise(operation, StreamTiling(piece=piece, slots=slots), tensors, z)
    result = simulate(kernel, A2, *arrays)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    return result.outputs[0]


@pytest.mark.parametrize("slots", [1, 2])
def test_operations_compute_what_they_say(slots: int) -> None:
    rng = np.random.default_rng(slots)
    x, y = (rng.standard_normal((101, 67)).astype(np.float32) * 3 for _ in range(2))
    np.testing.assert_array_equal(stream("add", x, y, slots=slots), x + y)
    np.testing.assert_array_equal(stream("relu", x, slots=slots), np.maximum(x, 0))
    gate = (x * np.float32(0.25) + np.float32(0.5)).clip(0, 1)
    np.testing.assert_array_equal(stream("gated", x, slots=slots), gate * x)


def test_two_slots_overlap_what_one_does_not() -> None:
    """On few cores: all of them together keep main memory busy with one slot too."""

    def cycles(slots: int) -> int:
        tensors = tuple(Tensor(name, (48, 65536), FP16) for name in ("x", "y"))
        z = Tensor("z", (48, 65536), FP16, "out")
        kernel = Elementwise("add", StreamTiling(piece=8192, slots=slots, cores=8), tensors, z)
        return simulate(kernel, A2).runs[0].cycles

    assert cycles(2) < 0.9 * cycles(1)


def test_inputs_must_match() -> None:
    tiling = StreamTiling(piece=64)
    with pytest.raises(ArgumentError, match=r"add: it takes 2 inputs of the shape \(8, 64\)"):
        Elementwise("add", tiling, (matrix(8, 64),), matrix(8, 64, "z", "out"))


def test_pieces_that_do_not_fit_are_refused() -> None:
    tiling = StreamTiling(piece=65536)
    kernel = Elementwise("relu", tiling, (matrix(8, 64),), matrix(8, 64, "z", "out"))
    with pytest.raises(CapacityError, match="UB holds 196608 B"):
        simulate(kernel, A2)


# -- ND to NZ --------------------------------------------------------------------------------


@pytest.mark.parametrize("pitch", [24, 25])
def test_nz_columns_hold_sixteen_of_each_row(pitch: int) -> None:
    m, n = 61, 176
    x = np.arange(m * n, dtype=np.float16).reshape(m, n)
    y = Tensor("y", (n // 16, m, 16), FP16, "out")
    tiling = NzTiling(rows=24, columns=64, pitch=pitch)
    result = simulate(NdToNz(tiling, matrix(m, n), y), A2, x)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    np.testing.assert_array_equal(result.outputs[0], x.reshape(m, n // 16, 16).swapaxes(0, 1))


def test_nz_needs_whole_blocks_and_room() -> None:
    tiling, y = NzTiling(rows=16, columns=16, pitch=16), Tensor("y", (1, 16, 24), FP16, "out")
    with pytest.raises(ArgumentError, match="whole blocks of 16"):
        NdToNz(tiling, matrix(16, 24), y)
    with pytest.raises(ArgumentError, match="pitch is 15; it must be at least 16"):
        NzTiling(rows=16, columns=16, pitch=15)


def test_a_matrix_larger_than_the_units_of_every_core_builds_few_templates() -> None:
    kernel = CopyIn(CopyTiling(rows=64, columns=1024), matrix(12288, 12287))
    assert len(build(kernel, A2, tuple(range(24))).templates) == 2
