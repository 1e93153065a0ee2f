"""Products that cube and vector cores compute together: numbers, order, and who does what."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError, ProgramError
from npusim.base.records import replace
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.matmul.mix import PER_BLOCK, MatmulFinish, MatmulSum
from npusim.kernels.parts.hand_over import HandOver
from npusim.kernels.parts.sum_parts import SumParts
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.results import Result
from tests.sampled import examples

Array = npt.NDArray[Any]

DEVICE = "ascend910b2"
TILING = Tiling(base_m=32, base_n=48, base_k=32, strided=True)


def finish(
    m: int,
    k: int,
    n: int,
    *,
    groups: int = 2,
    slots: int = 2,
    readers: int = 2,
    out: DType = BF16,
    scaled: bool = True,
    tiling: Tiling = TILING,
    **more: Any,
) -> MatmulFinish:
    """The kernel on so many core groups."""
    work = Tensor("work", (groups * slots, tiling.base_m, tiling.base_n), FP32, "out")
    product = Matmul(
        *(tiling, Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16), work),
        handed=HandOver(m, n, slots, readers),
    )
    factors = (Tensor("rows", (m, PER_BLOCK), FP32), Tensor("columns", (n,), FP32))
    return MatmulFinish(product, Tensor("out", (m, n), out, "out"), factors[: 2 * scaled], **more)


def operands(kernel: MatmulFinish) -> tuple[list[Array], Array]:
    """Arrays for the kernel, and the result in float64."""
    draw = np.random.default_rng(1)
    a, b = (
        np.asarray(draw.standard_normal(tensor.shape), np.float16)
        for tensor in kernel.product.tensors[:2]
    )
    want = a.astype(np.float64) @ b.astype(np.float64)
    arrays: list[Array] = [a, b]
    if kernel.factors:
        rows, columns = (
            np.asarray(draw.standard_normal((size,)), np.float32) for size in want.shape
        )
        want = want * rows[:, None] * columns
        arrays += [np.repeat(rows[:, None], PER_BLOCK, axis=1), columns]
    if kernel.gated:
        want = want * np.clip(want / 4 + 0.5, 0, 1)
    return arrays, want


def run(kernel: MatmulFinish, groups: int = 2, engine: str = "fast") -> Result:
    """The kernel's result, its numbers checked."""
    arrays, want = operands(kernel)
    result = npusim.simulate(kernel, DEVICE, *arrays, cores=range(groups), engine=engine)
    assert result.outputs is not None
    got = np.asarray(result.outputs[-1], np.float64)
    bound = {BF16: 8e-3, FP32: 1e-5}[kernel.out.dtype]
    assert np.abs(got - want).max() <= bound * np.abs(want).max()
    return result


@examples(12)
@given(
    # One row of four columns has as many bytes as its padded row has elements, which the check of
    # sizes in bytes takes for a slip; a tail may have as many.
    shape=st.tuples(
        st.integers(1, 90), st.integers(1, 90), st.integers(5, 90).filter(lambda n: n % 16 != 4)
    ),
    groups=st.integers(1, 3),
    slots=st.integers(1, 3),
    readers=st.integers(1, 2),
    step=st.integers(0, 9),
    flags=st.tuples(*[st.booleans()] * 4),
)
def test_numbers_are_right_and_engines_agree(
    shape: tuple[int, int, int],
    groups: int,
    slots: int,
    readers: int,
    step: int,
    flags: tuple[bool, bool, bool, bool],
) -> None:
    scaled, gated, narrow, unit_flag = flags
    kernel = finish(
        *shape,
        groups=groups,
        slots=slots,
        readers=readers,
        scaled=scaled,
        out=BF16 if narrow else FP32,
        tiling=replace(TILING, unit_flag=unit_flag),
        gated=gated,
        step=step,
    )
    fast, reference = (run(kernel, groups, engine) for engine in ("fast", "simpy"))
    for one, other in zip(fast.runs, reference.runs, strict=True):
        assert replace(one, timeline=None) == replace(other, timeline=None)
    assert fast.timeline.equals(reference.timeline)


def spans(result: Result, pipe: str, core: str, op: str) -> list[tuple[int, int]]:
    """Begin and end of a core's instructions of one kind."""
    table = result.timeline
    mine = table[(table["pipe"] == pipe) & (table.core == core) & (table.op == op)]
    return [(int(a), int(b)) for a, b in zip(mine.start, mine.end, strict=True)]


def test_a_vector_core_loads_after_its_cube_core_has_written_and_not_before() -> None:
    kernel = finish(64, 64, 96, groups=1, scaled=False)  # four tiles
    result = run(kernel, groups=1)
    for reader in ("aiv0", "aiv1"):
        given = spans(result, "FIX", "aic0", "core_set_flag")
        taken = spans(result, "MTE2", reader, "core_wait_flag")
        assert len(given) == len(taken) == 4
        assert all(begin >= end for (_, end), (begin, _) in zip(given, taken, strict=True))


def test_a_block_is_used_again_only_when_both_readers_have_done() -> None:
    result = run(finish(64, 64, 96, groups=1, slots=1, scaled=False), groups=1)
    again = spans(result, "FIX", "aic0", "core_wait_flag")
    left = [spans(result, "MTE2", core, "core_set_flag") for core in ("aiv0", "aiv1")]
    assert len(again) == 3
    for use, (begin, _) in enumerate(again):
        assert begin >= max(flags[use][1] for flags in left)


def test_a_reader_without_rows_does_not_free_a_block_for_the_other() -> None:
    """Tiles of one row: the second vector core has none, and is two tiles ahead."""
    result = run(finish(1, 32, 48 * 8, groups=1, gated=True), groups=1)
    again = spans(result, "FIX", "aic0", "core_wait_flag")
    left = [spans(result, "MTE2", core, "core_set_flag") for core in ("aiv0", "aiv1")]
    assert len(again) == 6
    for (begin, _), *flags in zip(again, *left, strict=False):
        assert begin >= max(end for _, end in flags)


def test_both_kinds_of_cores_are_reported_with_their_own_pipes() -> None:
    result = run(finish(64, 32, 96))
    pipes = {core: set(rows["pipe"]) for core, rows in result.pipes.groupby("core")}
    assert set(pipes) == {"aic0", "aic1", "aiv0", "aiv1", "aiv2", "aiv3"}
    assert pipes["aic0"] == {"S", "M", "MTE1", "MTE2", "FIX"}
    assert pipes["aiv0"] == {"S", "V", "MTE2", "MTE3"}
    (one,) = result.runs
    launch = load_device(DEVICE).launch
    # The second group starts later, by a skew that the launch contains and the run does too.
    beside = launch.cycles("cube", 6) - launch.skew_cycles
    assert (one.cores, one.launch_cycles) == (6, beside)
    assert all(sum(row.cycles) == one.cycles for row in one.pipes)
    moved = {(row.src, row.dst, row.operand): row.bytes for row in one.traffic}
    assert moved["L0C", "GM", "work"] == moved["GM", "UB", "work"] == 64 * 96 * 4
    assert moved["UB", "GM", "out"] == 64 * 96 * 2


def test_groups_multiply_parts_of_the_rows_by_a_matrix_each() -> None:
    draw = np.random.default_rng(2)
    a = draw.standard_normal((96, 40)).astype(np.float16)
    b = draw.standard_normal((3, 40, 50)).astype(np.float16)
    kernel = Matmul(
        *(TILING, Tensor("a", a.shape, FP16), Tensor("b", (120, 50), FP16)),
        Tensor("c", (96, 50), FP32, "out"),
        groups=3,
    )
    result = npusim.simulate(kernel, DEVICE, a, b.reshape(120, 50), cores=range(2))
    assert result.outputs is not None
    want = (a.reshape(3, 32, 40).astype(np.float64) @ b.astype(np.float64)).reshape(96, 50)
    assert (
        np.abs(np.asarray(result.outputs[0], np.float64) - want).max() < 1e-5 * np.abs(want).max()
    )


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_parts_of_k_are_added_after_all_cores_have_met(engine: str) -> None:
    draw = np.random.default_rng(3)
    a = draw.standard_normal((40, 256)).astype(np.float16)
    b = draw.standard_normal((256, 50)).astype(np.float16)
    parts = Tensor("parts", (2, 40, 50), FP32, "out")
    tensors = Tensor("a", a.shape, FP16), Tensor("b", b.shape, FP16), parts
    tiling = replace(TILING, single_core_k=128)
    total = SumParts(parts, Tensor("out", (40, 50), BF16, "out"), meets=True)
    kernel = MatmulSum(Matmul(tiling, *tensors, meets=True), total)
    # Seven groups: there are eight parts of tiles and 21 cores; all of these meet.
    result = npusim.simulate(kernel, DEVICE, a, b, cores=range(7), engine=engine)
    assert result.outputs is not None
    want = a.astype(np.float64) @ b.astype(np.float64)
    got = np.asarray(result.outputs[-1], np.float64)
    assert np.abs(got - want).max() < 8e-3 * np.abs(want).max()
    written = max(
        end for core in range(7) for _, end in spans(result, "FIX", f"aic{core}", "drain")
    )
    loads = [spans(result, "MTE2", f"aiv{core}", "data_move") for core in range(14)]
    assert min(begin for found in loads for begin, _ in found) >= written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": Tensor("out", (64, 97), BF16, "out")}, "factors have shapes"),
        ({"out": Tensor("out", (64, 97), BF16, "out"), "factors": ()}, "out is 64 x 97"),
        ({"factors": (Tensor("rows", (64,), FP32),)}, "factors have shapes"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(finish(64, 64, 96), **change)


def test_what_a_group_does_not_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="3 readers; a group has 2 vector cores"):
        npusim.simulate(finish(64, 64, 96, readers=3), DEVICE, cores=range(2))
    with pytest.raises(ArgumentError, match="work has 4 blocks; 3 cores with 2 each need 6"):
        npusim.simulate(finish(64, 64, 96), DEVICE, cores=range(3))
    with pytest.raises(ArgumentError, match="both must be >= 1"):
        HandOver(8, 8, 0, 1)
    with pytest.raises(ProgramError, match="ascend910 has one kind of core for both"):
        npusim.simulate(finish(64, 64, 96), "ascend910", cores=range(2))
    kernel = finish(64, 64, 96)
    with pytest.raises(ArgumentError, match="it must be fp32"):
        replace(kernel, product=replace(kernel.product, c=replace(kernel.product.c, dtype=INT8)))
    with pytest.raises(ArgumentError, match="must meet"):
        MatmulSum(kernel.product, SumParts(Tensor("p", (2, 8), FP32), Tensor("o", (8,), FP32)))
