# ruff: noqa: N802 - functions carry the names of the C interface
"""What the two phases of every call have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError, NpusimError, RuleError
from npusim.call.call import planning
from npusim.call.spec import Operand, Spec
from npusim.compat.acl_codes import (
    ACL_ERROR_INVALID_PARAM,
    ACL_ERROR_RT_CONTEXT_NULL,
    ACL_ERROR_RT_STREAM_CONTEXT,
    ACL_SUCCESS,
    ACLNN_ERR_INNER_NULLPTR,
    ACLNN_ERR_PARAM_INVALID,
    ACLNN_ERR_PARAM_NULLPTR,
    ACLNN_SUCCESS,
)
from npusim.compat.acl_memory import DeviceMemory
from npusim.compat.acl_runtime import (
    Context,
    aclrtStream,
    current_context,
    fail,
    stream_fault,
)
from npusim.compat.acl_types import aclBoolArray, aclIntArray, aclTensor
from npusim.limits.table import check
from npusim.ops.arguments import frozen
from npusim.results import Result

#: Arguments of C whose names operators write otherwise.
_C_NAMES = {
    "grad_output": "gradOutput",
    "grad_input": "gradInput",
    "grad_weight": "gradWeight",
    "grad_bias": "gradBias",
    "bias_sizes": "biasSizes",
    "output_padding": "outputPadding",
    "output_mask": "outputMask",
    "cube_math_type": "cubeMathType",
    "input_size": "inputSize",
    "kernel_size": "kernelSize",
}

#: Runs an operator: given a function from tensor to operand, and the operator's keywords.
Run = Callable[[Callable[[aclTensor | None], Operand], dict[str, Any]], Result]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One call: what was passed, the facts its limits are checked against, and how to run it.

    ``arguments`` are the tensors and lists by their names in C; ``inputs`` and ``outputs`` name
    the tensors among them that are read and written. ``outputs`` has an entry per output of the
    operator, None where it is not wanted, and ``dtypes`` what the operator gives them. Without
    ``facts`` no table of limits is known: only ``needed`` must not be null. ``names`` are more
    arguments by the names that the operator has for them.
    """

    function: str
    operator: str
    arguments: dict[str, Any]
    facts: dict[str, Any] | None
    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    dtypes: tuple[str, ...]
    run: Run
    needed: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, aclTensor]:
        """The tensors the call touches; phase one has found that none of them is null."""
        names = (*self.inputs, *(name for name in self.outputs if name is not None))
        return {name: self.arguments[name] for name in names}

    @property
    def timing_only(self) -> bool:
        """Whether a tensor the call touches has no array."""
        return any(tensor.array is None for tensor in self.tensors.values())

    def text(self, error: Exception) -> str:
        """An error of the operator in the words of the C call."""
        said = str(error).removeprefix(f"{self.operator}: ")
        names = {**_C_NAMES, **self.names}
        pattern = rf"\b({'|'.join(map(re.escape, names))})\b"
        named = re.sub(pattern, lambda found: names[found[0]], said)
        return f"{self.function}: {named.replace('.shape is null', ' is null')}"


class Executor:
    """What phase one planned; after phase two, ``result`` is the ``npusim.Result``."""

    def __init__(self, plan: Plan, context: Context, workspace_bytes: int) -> None:
        self.plan, self.context = plan, context
        self.workspace_bytes = workspace_bytes  # memory the kernels use between them
        self.repeatable = self.destroyed = False
        self.result: Result | None = None


def aclSetAclOpExecutorRepeatable(executor: Executor | None) -> int:
    """Let an executor run more than once, until it is destroyed; the status."""
    if executor is None or executor.destroyed:
        text = "aclSetAclOpExecutorRepeatable: executor is null or was destroyed"
        return fail(ACL_ERROR_INVALID_PARAM, text)
    executor.repeatable = True
    return ACL_SUCCESS


def aclDestroyAclOpExecutor(executor: Executor | None) -> int:
    """Give back an executor that was made repeatable; the status."""
    if executor is None or executor.destroyed:
        text = "aclDestroyAclOpExecutor: executor is null or was destroyed before"
        return fail(ACL_ERROR_INVALID_PARAM, text)
    executor.destroyed = True
    return ACL_SUCCESS


def phase_one(plan: Plan) -> tuple[int, int, Executor | None]:
    """Check and plan; return (status, workspace size in bytes, executor)."""
    context = current_context()
    if context is None:
        text = "no device is chosen; call aclrtCreateStream(device='ascend910b2') first"
        return fail(ACL_ERROR_RT_CONTEXT_NULL, f"{plan.function}: {text}"), 0, None
    for name, argument in plan.arguments.items():
        if getattr(argument, "destroyed", False):
            text = f"{plan.function}: {name} was destroyed"
            return fail(ACLNN_ERR_PARAM_NULLPTR, text), 0, None
    try:
        if plan.facts is not None:
            check(plan.operator, plan.facts, context.device, context.rules)
        for name in plan.needed:
            if plan.arguments[name] is None:
                raise RuleError(f"{name} is null", parameter=name, status=ACLNN_ERR_PARAM_NULLPTR)
        _check_outputs(plan)
        with planning():
            size = plan.run(_spec, context.keywords).workspace_bytes
    except NpusimError as error:
        return fail(_status(error), plan.text(error)), 0, None
    return ACLNN_SUCCESS, size, Executor(plan, context, size)


def second_phase(function: str, computes: str) -> Callable[..., int]:
    """The second call of ``function``, which ``computes`` what the first one planned."""

    def call(
        workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
    ) -> int:
        return phase_two(function, workspace, workspaceSize, executor, stream)

    call.__name__ = call.__qualname__ = function
    call.__doc__ = (
        f"{computes}; the status.\n\n"
        "``workspace`` is memory of ``aclrtMalloc`` or any buffer of at least the bytes phase one\n"
        "named (None where it named 0). A ``stream`` of None is the default stream of the planned\n"
        "device."
    )
    return call


def phase_two(
    function: str,
    workspace: Any,
    workspaceSize: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Run a planned call and write its outputs in place; return the status."""
    if executor is None or executor.destroyed:
        text = "is null" if executor is None else "was destroyed"
        way_out = f"pass what {function}GetWorkspaceSize returned"
        return fail(ACLNN_ERR_PARAM_NULLPTR, f"{function}: executor {text}; {way_out}")
    refusal = _refusal(function, executor, stream) or _lacking(workspace, workspaceSize, executor)
    if refusal is not None:
        status, text = refusal
        return fail(status, f"{function}: {text}")
    plan = executor.plan
    try:
        feed = _spec if plan.timing_only else _array
        executor.result = plan.run(feed, executor.context.keywords)
        _write(plan, executor.result)
    except NpusimError as error:
        return fail(ACLNN_ERR_INNER_NULLPTR, plan.text(error))
    return ACLNN_SUCCESS


def values(handle: Any) -> Any:
    """What a list of the interface (or any list) holds, None for a null pointer."""
    return handle.values if isinstance(handle, (aclIntArray, aclBoolArray)) else frozen(handle)


def tensors(function: str, **given: Any) -> dict[str, aclTensor | None]:
    """Tensors by their names in C; ``ArgumentError`` for what C would not compile."""
    for name, tensor in given.items():
        if not isinstance(tensor, (aclTensor, type(None))):
            what = type(tensor).__name__
            raise ArgumentError(f"{function}: {name} is a {what}; pass aclCreateTensor(array)")
    return given


def by_operator(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of C by the names that operators have for them; of lists, what they hold."""
    names = {c_name: name for name, c_name in _C_NAMES.items()}
    return {names.get(name, name): values(value) for name, value in arguments.items()}


def _refusal(
    function: str, executor: Executor, stream: aclrtStream | None
) -> tuple[int, str] | None:
    """Status and text of what phase two cannot run, None where it can."""
    plan, context = executor.plan, executor.context
    if plan.function != function:
        text = f"the executor is one of {plan.function}; pass it to that call"
        return ACLNN_ERR_PARAM_INVALID, text
    if executor.result is not None and not executor.repeatable:
        return ACLNN_ERR_INNER_NULLPTR, (
            f"the executor has run, it runs once; get another from {function}GetWorkspaceSize, or "
            "call aclSetAclOpExecutorRepeatable before its first run"
        )
    if context.lost:
        text = "the device that phase one planned for was reset by aclrtResetDevice"
        return ACL_ERROR_RT_CONTEXT_NULL, text
    if stream is not None:
        fault = stream_fault(stream)
        if fault is None and stream.context != context:
            fault = (
                f"the stream is one of {stream.context}, phase one planned for {context} or with "
                "other keywords; use one stream for both"
            )
        if fault is not None:
            return ACL_ERROR_RT_STREAM_CONTEXT, fault
    for name, tensor in plan.tensors.items():
        fault = "it was destroyed" if tensor.destroyed else _misplaced(tensor.memory, context)
        if fault is not None:
            return ACLNN_ERR_PARAM_INVALID, f"{name}: {fault}"
    return None


def _lacking(workspace: Any, size: int, executor: Executor) -> tuple[int, str] | None:
    """Status and text where the workspace is not what the call needs."""
    need = executor.workspace_bytes
    way_out = f"the call needs {need} bytes, as phase one returned: use aclrtMalloc({need})"
    if size < need:
        return ACLNN_ERR_PARAM_INVALID, f"workspaceSize is {size}; {way_out}"
    if need and workspace is None:
        return ACLNN_ERR_PARAM_NULLPTR, f"workspace is null; {way_out}"
    held = 0 if workspace is None else _size(workspace)
    if held < need:
        return ACLNN_ERR_PARAM_INVALID, f"workspace has {held} bytes; {way_out}"
    if isinstance(workspace, DeviceMemory):
        fault = _misplaced(workspace, executor.context)
        if fault is not None:
            return ACLNN_ERR_PARAM_INVALID, f"workspace: {fault}"
    return None


def _misplaced(memory: DeviceMemory | None, context: Context) -> str | None:
    """Why the kernels of a device cannot use some memory, None where they can."""
    if memory is None:
        return None
    place = memory.context
    if place is not None and (place.device.name, place.index) != (
        context.device.name, context.index,
    ):  # fmt: skip
        return f"its memory lies on {place}, the call runs on {context}"
    return memory.fault


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
    for name, wanted in zip(plan.outputs, plan.dtypes, strict=True):
        if name is None:
            continue
        target: aclTensor = plan.arguments[name]
        if target.dtype != wanted:
            raise ArgumentError(f"{name} is {target.dtype}; the call writes {wanted}")
        if target.array is not None and not target.array.flags.writeable:
            raise ArgumentError(
                f"the array of {name}, of shape {target.shape}, is read-only; pass a copy"
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


def _write(plan: Plan, result: Result) -> None:
    """Copy what was computed into the caller's arrays; an empty result writes nothing."""
    for name, computed in zip(plan.outputs, result.outputs or (), strict=not plan.timing_only):
        if name is None or computed is None or not computed.size:
            continue
        target: aclTensor = plan.arguments[name]
        assert target.array is not None  # the call is not timing-only
        if target.shape != computed.shape:  # the calls do not check this for empty inputs
            raise ArgumentError(f"{name} has shape {target.shape}, the result {computed.shape}")
        np.copyto(target.array, computed, casting="no")
