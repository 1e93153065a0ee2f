"""What the two phases of every call have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.call.planning import planning
from npusim.call.spec import Operand, Spec
from npusim.compat.acl_types import (
    ACL_ERROR_RT_CONTEXT_NULL,
    ACL_ERROR_RT_STREAM_CONTEXT,
    ACLNN_ERR_INNER_NULLPTR,
    ACLNN_ERR_PARAM_INVALID,
    ACLNN_ERR_PARAM_NULLPTR,
    ACLNN_SUCCESS,
    Context,
    DeviceMemory,
    aclBoolArray,
    aclIntArray,
    aclrtStream,
    aclTensor,
    current_context,
    fail,
)
from npusim.dtypes import dtype
from npusim.errors import ArgumentError, NpusimError, RuleError
from npusim.limits.table import check
from npusim.results import Result

#: Runs an operator: given a function from tensor to operand, and the operator's keywords.
Run = Callable[[Callable[[aclTensor | None], Operand], dict[str, Any]], Result]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One call: the facts its limits are checked against, its tensors and how to run it.

    ``outputs`` has an entry per output of the operator, None where it is not wanted; ``kinds`` are
    the types the operator gives them.
    """

    function: str
    operator: str
    facts: dict[str, Any]
    inputs: tuple[aclTensor | None, ...]
    outputs: tuple[aclTensor | None, ...]
    kinds: tuple[str, ...]
    run: Run

    @property
    def timing_only(self) -> bool:
        """Whether a tensor the call touches has no array."""
        return any(t is not None and t.array is None for t in (*self.inputs, *self.outputs))


class Executor:
    """What phase one planned; after phase two, ``result`` is the ``npusim.Result``."""

    def __init__(self, plan: Plan, context: Context, workspace_bytes: int) -> None:
        self.plan, self.context = plan, context
        self.workspace_bytes = workspace_bytes  # memory the kernels use between them
        self.result: Result | None = None


def phase_one(plan: Plan) -> tuple[int, int, Executor | None]:
    """Check and plan; return (status, workspace size in bytes, executor)."""
    context = current_context()
    if context is None:
        text = "no device is chosen; call aclrtCreateStream(device='ascend910b2') first"
        return fail(ACL_ERROR_RT_CONTEXT_NULL, f"{plan.function}: {text}"), 0, None
    try:
        check(plan.operator, plan.facts, context.device, context.rules)
        _check_outputs(plan)
        with planning():
            size = plan.run(_spec, context.keywords).workspace_bytes
    except NpusimError as error:
        return fail(_status(error), f"{plan.function}: {error}"), 0, None
    return ACLNN_SUCCESS, size, Executor(plan, context, size)


def phase_two(
    function: str,
    workspace: Any,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Run a planned call and write its outputs in place; return the status."""
    if executor is None:
        text = f"executor is null; pass what {function}GetWorkspaceSize returned"
        return fail(ACLNN_ERR_PARAM_NULLPTR, f"{function}: {text}")
    refusal = _refusal(function, workspace, workspaceSize, executor, stream)
    if refusal is not None:
        status, text = refusal
        return fail(status, f"{function}: {text}")
    plan = executor.plan
    try:
        feed = _spec if plan.timing_only else _array
        executor.result = plan.run(feed, executor.context.keywords)
        _write(plan.outputs, executor.result)
    except NpusimError as error:
        return fail(ACLNN_ERR_INNER_NULLPTR, f"{function}: {error}")
    return ACLNN_SUCCESS


def integers(value: aclIntArray | Sequence[int] | None) -> tuple[int, ...] | None:
    """A list of integers as the tables want it, None for a null pointer."""
    if value is None:
        return None
    return value.values if isinstance(value, aclIntArray) else tuple(value)


def booleans(value: aclBoolArray | Sequence[bool] | None) -> tuple[bool, ...] | None:
    """A list of bools as the tables want it, None for a null pointer."""
    if value is None:
        return None
    return value.values if isinstance(value, aclBoolArray) else tuple(bool(v) for v in value)


def _refusal(
    function: str,
    workspace: Any,
    size: int,
    executor: Executor,
    stream: aclrtStream | None,
) -> tuple[int, str] | None:
    """Status and text of what phase two cannot run, None where it can."""
    need, name = executor.workspace_bytes, executor.plan.function
    if name != function:
        return ACLNN_ERR_PARAM_INVALID, f"the executor is one of {name}; pass it to that call"
    if executor.result is not None:
        return (
            ACLNN_ERR_INNER_NULLPTR,
            f"the executor has run, it runs once; get another from {function}GetWorkspaceSize",
        )
    if stream is not None and stream.context != executor.context:
        return ACL_ERROR_RT_STREAM_CONTEXT, (
            f"the stream is one of {stream.context.device.name}, phase one planned for "
            f"{executor.context.device.name} or with other keywords; use one stream for both"
        )
    return _lacking(workspace, size, need)


def _lacking(workspace: Any, size: int, need: int) -> tuple[int, str] | None:
    """Status and text where the workspace is not the ``need`` bytes of the call."""
    way_out = f"the call needs {need} bytes, as phase one returned: use aclrtMalloc({need})"
    if size < need:
        return ACLNN_ERR_PARAM_INVALID, f"workspaceSize is {size}; {way_out}"
    if need and workspace is None:
        return ACLNN_ERR_PARAM_NULLPTR, f"workspace is null; {way_out}"
    held = 0 if workspace is None else _size(workspace)
    return (
        (ACLNN_ERR_PARAM_INVALID, f"workspace has {held} bytes; {way_out}") if held < need else None
    )


def _size(workspace: Any) -> int:
    """Bytes of a workspace: memory of ``aclrtMalloc``, or any buffer."""
    if isinstance(workspace, DeviceMemory):
        return workspace.size_bytes
    return memoryview(workspace).nbytes


def _status(error: NpusimError) -> int:
    """The code that the real phase one returns for an error.

    A documented limit has its own; other bad arguments are invalid ones. What is left - a kernel
    that does not fit, a product without the operator - ends in a missing task there.
    """
    if isinstance(error, RuleError):
        return ACLNN_ERR_INNER_NULLPTR if error.status is None else error.status
    return ACLNN_ERR_PARAM_INVALID if isinstance(error, ArgumentError) else ACLNN_ERR_INNER_NULLPTR


def _check_outputs(plan: Plan) -> None:
    """Raise unless every output can take what the operator writes."""
    for target, kind in zip(plan.outputs, plan.kinds, strict=True):
        if target is None:
            continue
        if target.dtype != kind:
            raise ArgumentError(f"an output tensor is {target.dtype}; the call writes {kind}")
        if target.array is not None and not target.array.flags.writeable:
            raise ArgumentError(
                f"the array of an output tensor of shape {target.shape} is read-only; pass a copy"
            )


def _spec(tensor: aclTensor | None) -> Operand:
    """A tensor's shape and type, for the planning run."""
    assert tensor is not None  # null pointers were found before
    return Spec(tensor.shape, dtype(tensor.dtype))


def _array(tensor: aclTensor | None) -> Operand:
    """A tensor's data, for the run."""
    assert tensor is not None
    assert tensor.array is not None  # the call is not timing-only
    return tensor.array


def _write(outputs: tuple[aclTensor | None, ...], result: Result) -> None:
    """Copy what was computed into the caller's arrays; an empty result writes nothing."""
    for target, computed in zip(outputs, result.outputs or (None,) * len(outputs), strict=True):
        if target is None or target.array is None or computed is None or not computed.size:
            continue
        if target.shape != computed.shape:  # the calls do not check this for empty inputs
            raise ArgumentError(
                f"an output tensor has shape {target.shape}, the result {computed.shape}"
            )
        np.copyto(target.array, computed, casting="no")
