"""Phase one plans: it finds what does not fit, names the workspace, and simulates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import npusim
from npusim.compat import aclnn as acl
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.base import Instruction
from npusim.machine.program.recorder import Recorder
from npusim.machine.timing.run import Launches

INNER = 561103

#: Without its types: the tests unpack lists into it.
phase_one: Callable[..., tuple[int, int, Any]] = acl.aclnnConvolutionBackwardGetWorkspaceSize


@pytest.fixture(autouse=True)
def stream() -> acl.aclrtStream:
    acl.aclGetRecentErrMsg()
    return acl.aclrtCreateStream(device="ascend910b2")


def plan(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dy: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    transposed: bool = False,
    groups: int = 1,
    dtype: Any = acl.ACL_FLOAT16,
) -> tuple[int, int, Any]:
    """Phase one of all three gradients, timing-only."""
    dims, cout = len(x) - 2, dy[1]

    def ints(value: int) -> acl.aclIntArray:
        return acl.aclCreateIntArray([value] * dims)

    def tensor(*shape: int) -> acl.aclTensor:
        return acl.aclCreateTensor(shape, dtype)

    return phase_one(
        tensor(*dy), tensor(*x), tensor(*w), acl.aclCreateIntArray([cout]), ints(stride),
        ints(padding), ints(1), transposed, ints(0), groups,
        acl.aclCreateBoolArray([True] * 3), 1, tensor(*x), tensor(*w), tensor(cout),
    )  # fmt: skip


#: Seconds of simulation each, or (the first) of cutting a row into slabs of every size.
HUGE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one channel, long": (((1, 1, 1 << 22), (1, 1, 3), (1, 1, 1 << 22)), {"padding": 1}),
    "transposed volume": (
        ((1, 2, 286, 83, 163), (2, 1, 4, 4, 4), (1, 1, 1144, 332, 652)),
        {"transposed": True, "stride": 4},
    ),
    "depth-wise": (((1, 59, 30, 591), (59, 1, 10, 118), (1, 59, 21, 474)), {"groups": 59}),
}


@pytest.mark.parametrize("case", HUGE)
def test_huge_calls_are_planned_without_simulation(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued, issue = [], Recorder._issue

    def noting(self: Recorder, instruction: Instruction) -> None:
        issued.append(instruction)
        issue(self, instruction)

    monkeypatch.setattr(Launches, "time", None)
    monkeypatch.setattr(Recorder, "_issue", noting)
    arguments, keywords = HUGE[case]
    status, size, _ = plan(*arguments, **keywords)
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert size > 0
    assert len(issued) < 150_000, "programs of a few templates"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [acl.ACL_FLOAT16, acl.ACL_FLOAT])
@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_the_planned_workspace_is_that_of_the_run(
    device: str, dtype: Any, transposed: bool
) -> None:
    stream = acl.aclrtCreateStream(device=device)
    x, w, dy = ((2, 20, 7, 6), (16, 10, 3, 3), (2, 16, 5, 4))
    if transposed:
        x, dy = dy, x
    status, size, executor = plan(x, w, dy, groups=2, transposed=transposed, dtype=dtype)
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert acl.aclnnConvolutionBackward(acl.aclrtMalloc(size), size, executor, stream) == 0
    assert executor.result.workspace_bytes == size > 0


def test_a_filter_that_reaches_further_than_a_load_can_pad_is_planned() -> None:
    """Three taps 255 apart need pads of 510, load3d has room for 255: it goes tap by tap."""
    x, w, dy = (1, 16, 1, 600), (16, 16, 1, 3), (1, 16, 1, 90)
    ints = acl.aclCreateIntArray
    tensors = [acl.aclCreateTensor(shape, "fp16") for shape in (dy, x, w)]
    results = [acl.aclCreateTensor(shape, "fp16") for shape in (x, w, (16,))]
    status, _, executor = phase_one(
        *tensors, ints([16]), ints([1, 1]), ints([0, 0]), ints([1, 255]), False, ints([0, 0]), 1,
        acl.aclCreateBoolArray([True] * 3), 0, *results,
    )  # fmt: skip
    assert (status, acl.aclGetRecentErrMsg()) == (0, None)
    assert executor is not None


def test_a_buffer_without_room_is_found_in_phase_one() -> None:
    small = load_device("ascend910b2").replace("memories.L0C.size", "512B")
    acl.aclrtSetDevice(small)
    status, _, executor = plan((1, 16, 9), (16, 16, 3), (1, 16, 7))
    assert (status, executor) == (INNER, None)


def test_planning_ends_with_the_call() -> None:
    plan((1, 16, 9), (16, 16, 3), (1, 16, 7))
    plan((1, 16, 9), (16, 16, 3), (1, 16, 8))  # refused
    dy = npusim.spec((1, 4, 4), "fp32")
    result = npusim.ops.im2col_backward(
        dy, [3, 3], [2, 2], [1, 1], [0, 0], [1, 1], device="ascend910b2"
    )
    assert result.cycles > 0
