"""A call from the outside: spec, options, kernels of one's own, several kernels on one L2."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError, ProgramError
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import Language
from tests.scripts import Scripted, tasks_of
from tests.tables import rows

Array = np.ndarray[Any, Any]
N = 256


class Scale(Scripted):
    """y = 2 x in ``pieces`` units spread over the cores; with ``in_place``, x *= 2."""

    name = "scale"
    role = "vector"

    def __init__(self, pieces: int = 8, *, in_place: bool = False, dtype: DType = FP32) -> None:
        self.pieces, self.dtype = pieces, dtype
        self.x = Tensor("x", (pieces, N), dtype, "inout" if in_place else "in")
        self.y = self.x if in_place else Tensor("y", (pieces, N), dtype, "out")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.x is self.y else (self.x, self.y)

    @property
    def tiling_text(self) -> str:
        return "pieces of 256"

    def tasks(self, cores: int) -> Tasks[Any]:
        i = np.arange(self.pieces)
        return tasks_of(i % cores, {}, {"at": i * N * self.dtype.bytes})

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (N,), self.dtype, slots=2)

    def emit(self, k: Language, task: Any) -> None:
        size = N * self.dtype.bytes
        ub = self.ub.next()
        k.data_move(ub.at(0, size), self.x.at(0, size, base="at"), self.dtype)
        k.vec_scalar("muls", ub.at(0, size), ub.at(0, size), 2.0, self.dtype)
        k.data_move(self.y.at(0, size, base="at"), ub.at(0, size), self.dtype)


X = np.arange(8 * N, dtype=np.float32).reshape(8, N)


def outputs(result: npusim.Result) -> list[Array]:
    assert result.outputs is not None
    return [a for a in result.outputs if a is not None]


# -- spec --------------------------------------------------------------------------------------


def test_a_spec_is_shape_and_type() -> None:
    spec = npusim.spec(iter([2, 3]), "bfloat16")
    assert (spec.shape, spec.dtype) == ((2, 3), BF16)
    assert npusim.spec((), np.float16).shape == ()
    with pytest.raises(ArgumentError, match=r"spec shape is \(2, -1\); sizes cannot be negative"):
        npusim.spec((2, -1), "fp16")
    with pytest.raises(ArgumentError, match=r"unknown dtype 'fp12'; use one of fp16"):
        npusim.spec((2,), "fp12")


# -- a kernel of one's own ---------------------------------------------------------------------


@pytest.mark.parametrize("device", ["tiny", "ascend910", "ascend910b2"])
def test_simulate_runs_a_kernel_on_arrays(device: str) -> None:
    result = npusim.simulate(Scale(), device, X)
    (y,) = outputs(result)
    np.testing.assert_array_equal(y, 2 * X)
    assert result.output_names == ("y",)
    problem = "x 8x256 fp32, y 8x256 fp32 (out)"
    assert (result.operator, result.problem, result.dtype) == ("scale", problem, "fp32")
    assert result.runs[0].gm_bytes == 2 * X.nbytes


def test_without_arrays_a_kernel_is_timed_only_and_alike() -> None:
    full = npusim.simulate(Scale(), "tiny", X)
    for arrays in ((), (npusim.spec(X.shape, "fp32"),)):
        timed = npusim.simulate(Scale(), "tiny", *arrays)
        assert timed.outputs is None
        assert timed.runs[0].pipes == full.runs[0].pipes
    warm = npusim.simulate(Scale(), "tiny", start="warm")
    assert warm.runs[0].pipes == npusim.simulate(Scale(), "tiny", X, start="warm").runs[0].pipes
    assert warm.cycles < full.cycles


def test_inout_tensors_start_with_their_values_and_leave_the_caller_s_alone() -> None:
    x = X.copy()
    result = npusim.simulate(Scale(in_place=True), "tiny", x)
    np.testing.assert_array_equal(outputs(result)[0], 2 * X)
    assert result.output_names == ("x",)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("atomic", [False, True])
def test_writing_an_in_tensor_is_an_error_with_the_kernels_line(atomic: bool) -> None:
    class Careless(Scale):
        def emit(self, k: Language, task: Any) -> None:
            ub, size = self.ub.next(), N * self.dtype.bytes
            k.vec_dup(ub.at(0, size), 1.0, self.dtype)
            k.data_move(self.x.at(0, size, base="at"), ub.at(0, size), self.dtype, atomic=atomic)

    for arrays in ((X.copy(),), ()):
        with pytest.raises(ProgramError) as error:
            npusim.simulate(Careless(), "tiny", *arrays)
        assert re.fullmatch(
            r"test_session\.py:\d+: .* writes x, a tensor of role 'in'; give it the role 'out', or "
            "'inout' if the kernel also reads it",
            str(error.value),
        )
        for array in arrays:
            np.testing.assert_array_equal(array, X)


def test_inputs_are_converted_to_the_type_of_their_tensor() -> None:
    result = npusim.simulate(Scale(dtype=FP16), "tiny", (X % 100).astype(np.float64))
    np.testing.assert_array_equal(outputs(result)[0], (2 * (X % 100)).astype(np.float16))


def test_views_and_strided_arrays_are_read_in_order() -> None:
    wide = np.zeros((8, 2 * N), np.float32)
    wide[:, ::2] = X
    np.testing.assert_array_equal(outputs(npusim.simulate(Scale(), "tiny", wide[:, ::2]))[0], 2 * X)


def test_a_kernel_without_inputs_computes() -> None:
    result = npusim.simulate(MemSet(Tensor("t", (3, 5), FP32, "out")), "tiny")
    np.testing.assert_array_equal(outputs(result)[0], np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X, X), "kernel scale reads 1 tensors (x), got 2 arrays"),
        ((X[:4],), "x has shape (4, 256), the kernel expects (8, 256)"),
        ((npusim.spec((8, 255), "fp32"),), "x has shape (8, 255), the kernel expects (8, 256)"),
    ],
)
def test_arrays_must_be_the_kernel_s(arrays: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        npusim.simulate(Scale(), "tiny", *arrays)


# -- options -----------------------------------------------------------------------------------


@rows("tests/data/mistakes/calls.yaml", "bad_options_are_refused", "options, message")
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        npusim.simulate(Scale(), "tiny", X, **options)


@rows(
    "tests/data/mistakes/calls.yaml",
    "an_operator_refuses_options_it_has_no_use_for",
    "options, message",
)
def test_an_operator_refuses_options_it_has_no_use_for(
    options: dict[str, Any], message: str
) -> None:
    a = npusim.spec((16, 16), "fp16")
    with pytest.raises(ArgumentError, match=re.escape(message)):
        npusim.ops.matmul(a, a, device="tiny", **options)


def test_options_at_their_usual_values_are_always_allowed() -> None:
    a = npusim.spec((16, 16), "fp16")
    usual = vars(Options(device="tiny"))
    assert npusim.ops.matmul(a, a, **usual).cycles == npusim.ops.matmul(a, a, device="tiny").cycles


def test_a_device_is_needed() -> None:
    a = npusim.spec((16, 16), "fp16")
    with pytest.raises(ArgumentError, match="matmul needs device=NAME; `npusim devices` lists"):
        npusim.ops.matmul(a, a)


@pytest.mark.parametrize("cores", [0b0110, "1-2", [2, 1], range(1, 3)])
def test_cores_may_be_said_in_four_ways(cores: Any) -> None:
    result = npusim.simulate(Scale(), "tiny", X, cores=cores)
    assert dict.fromkeys(row.core for row in result.runs[0].pipes) == {"core1": None, "core2": None}
    np.testing.assert_array_equal(outputs(result)[0], 2 * X)


def test_the_timeline_is_kept_on_request() -> None:
    kept = npusim.simulate(Scale(), "tiny", X).runs[0]
    assert kept.timeline is not None
    assert len(kept.timeline.start) == kept.instructions == 24
    dropped = npusim.simulate(Scale(), "tiny", X, timeline=False).runs[0]
    assert dropped.timeline is None
    assert dropped.pipes == kept.pipes


def test_progress_reports_both_phases() -> None:
    seen: list[tuple[str, str, int, int]] = []
    npusim.simulate(
        Scale(400), "tiny", np.zeros((400, N)), progress=lambda *step: seen.append(step)
    )
    assert {(kernel, total) for kernel, _, _, total in seen} == {("scale", 1200)}
    assert {phase for _, phase, _, _ in seen} == {"timing", "numbers"}
    assert all(0 < done <= total for _, _, done, total in seen)


# -- one call, several kernels -----------------------------------------------------------------


def test_kernels_of_a_call_run_one_after_another_on_one_l2() -> None:
    call = Call("twice", Options(device="tiny"), timing_only=True)
    for _ in range(2):
        call.launch(Scale())
    first, second = call.runs
    assert sum(row.miss_bytes for row in first.traffic) == X.nbytes
    assert sum(row.miss_bytes for row in second.traffic) == 0  # still there
    result = call.result({}, "two kernels", FP32)
    launch = load_device("tiny").launch.cycles("vector", 1)
    assert result.cycles == first.cycles + second.cycles + 2 * launch
    assert second.cycles < first.cycles


def test_outputs_are_poisoned_until_written() -> None:
    call = Call("nothing", Options(device="tiny"), timing_only=False)
    call.output("y", (4,), FP32)
    assert np.isnan(call.arrays["y"]).all()


def test_the_assumed_figures_behind_a_time_are_noted() -> None:
    notes = npusim.simulate(Scale(), "tiny", X).notes
    assert any(
        re.match(r"the time rests on \d+ assumed figures: .* and \d+ more;", n) for n in notes
    )
