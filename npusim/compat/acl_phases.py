# ruff: noqa: N802 - functions carry the names of the C interface
"""The two phases of every call of the C interface: ``phase_one`` plans, ``phase_two`` runs.

The functions of ``npusim.compat.aclnn`` call both, with the plan of their operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError, NpusimError, RuleError
from npusim.call.call import planning
from npusim.call.spec import Array, Operand, Spec
from npusim.compat import acl_codes as codes
from npusim.compat.acl_runtime import (
    Context,
    Handle,
    Refused,
    aclrtStream,
    answering,
    note_refusal,
)
from npusim.compat.acl_types import DeviceMemory, aclBoolArray, aclIntArray, aclTensor
from npusim.ops import CARDS
from npusim.ops.arguments import frozen
from npusim.problem.limits.facts import OperatorFacts
from npusim.results import Result

#: The operand of a tensor: its shape and type, or its data.
Feed = Callable[[aclTensor], Operand]

#: What phase one returns: (status, workspace size in bytes, executor).
Planned: TypeAlias = "tuple[int, int, Executor | None]"

#: Memory for a call's workspace; None where phase one named 0 bytes.
Workspace: TypeAlias = DeviceMemory | bytearray | memoryview | Array | None


class CallPlan:
    """A call of one function of the library; a subclass describes an operator.

    ``inputs`` are the tensors that phase one takes, by their names in C. ``outputs`` has an entry
    per output of the operator: the tensors whose wider type it has. ``operator`` is the operator of
    ``npusim.ops`` that computes it. Where that one has no documented limits, all tensors, lists and
    scalars but ``optional`` ones are needed. ``words`` translates names in the operator's errors
    into those of C, where they differ by more than their spelling.
    """

    operator: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[Mapping[str, tuple[str, ...]]]
    optional: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[Mapping[str, str]] = {}

    def __init__(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Take arguments by their names in C; ``ArgumentError`` for what C would not compile."""
        self.function = function
        self.arguments = arguments
        for name in arguments:
            value = arguments[name]
            is_tensor = name in self.inputs or name in self.outputs
            if is_tensor and not isinstance(value, (aclTensor, type(None))):
                kind = type(value).__name__
                raise ArgumentError(f"{function}: {name} is a {kind}; pass aclCreateTensor(array)")

    @property
    def names(self) -> dict[str, str]:
        """The arguments' names in C by the names that the operator has for them."""
        renamed = {}
        for operator_word, c_word in self.words.items():
            renamed[c_word.partition(".")[0]] = operator_word.partition(".")[0]
        return {renamed.get(name, _snake_case(name)): name for name in self.arguments}

    @property
    def values(self) -> dict[str, Any]:
        """Tensors, and the values of lists and numbers, by the operator's names."""
        return {
            operator_name: _value(self.arguments[name])
            for operator_name, name in self.names.items()
        }

    @property
    def targets(self) -> list[aclTensor | None]:
        """The output tensors, None for an output that ``outputMask`` leaves out."""
        mask: Any = (True,) * len(self.outputs)
        if "outputMask" in self.arguments:
            mask = _value(self.arguments["outputMask"])
        if not isinstance(mask, tuple):
            mask = ()
        targets: list[aclTensor | None] = []
        for place, name in enumerate(self.outputs):
            wanted = place < len(mask) and mask[place]
            targets.append(self.arguments[name] if wanted else None)
        return targets

    @property
    def tensors(self) -> dict[str, aclTensor]:
        """The tensors that the call reads or writes, by their names in C."""
        written = dict(zip(self.outputs, self.targets, strict=True))
        touched = {}
        for name, value in self.arguments.items():
            tensor = written.get(name, value)
            if isinstance(tensor, aclTensor):
                touched[name] = tensor
        return touched

    @property
    def timing_only(self) -> bool:
        """True if a tensor that the call reads or writes has no array."""
        return any(tensor.array is None for tensor in self.tensors.values())

    def check(self, context: Context) -> None:
        """Raise for what the documentation refuses, or unless outputs can take what is written."""
        card = CARDS[self.operator]
        if card.facts is not None:
            rules = str(context.keywords.get("rules", "documented"))
            card.check(self._facts(card.facts), context.device, rules)
        else:
            self._require_no_null()
        for (name, sources), target in zip(self.outputs.items(), self.targets, strict=True):
            if target is not None:
                written = promote([self.arguments[source].dtype for source in sources], "fp32")
                _require_writable(name, target, written)

    def _facts(self, kinds: OperatorFacts) -> dict[str, Any]:
        """The facts that the limits of the operator are checked against."""
        values = self.values
        facts = {}
        for fact in (*kinds.required, *kinds.optional):
            name, dot, part = fact.partition(".")
            facts[fact] = getattr(values[name], part, None) if dot else values[name]
        return facts

    def _require_no_null(self) -> None:
        """Raise ``RuleError`` for a null pointer that is not optional."""
        for name, value in self.arguments.items():
            if value is None and name not in self.optional:
                status = codes.ACLNN_ERR_PARAM_NULLPTR
                raise RuleError(f"{name} is null", parameter=name, status=status)

    def layouts(self, names: Sequence[str]) -> dict[str, Spec]:
        """The memory layouts of those tensors of the operator's ``names`` that have gaps."""
        tensors = {
            operator_name: self.tensors.get(name) for operator_name, name in self.names.items()
        }
        return layouts_of({name: tensors.get(name) for name in names})

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Run the operator on what ``feed`` makes of tensors, with keywords of the thread."""
        card = CARDS[self.operator]
        names = self.names
        operands = {}
        for operator_name, value in self.values.items():
            if names[operator_name] in self.outputs:
                continue
            operands[operator_name] = feed(value) if isinstance(value, aclTensor) else value
        layouts = self.layouts(card.strided)
        return card.function(**operands, layouts=layouts, **usable(options, card.without))

    def text(self, error: Exception) -> str:
        """An error of the operator in the words of the C call."""
        message = str(error).removeprefix(f"{self.operator}: ")
        translated = {word.partition(".")[0] for word in self.words.values()}
        words = {
            operator_name: name
            for operator_name, name in self.names.items()
            if name not in translated
        }
        words |= self.words
        pattern = rf"\b({'|'.join(map(re.escape, words))})\b"
        in_c = re.sub(pattern, lambda match: words[match[0]], message)
        return in_c.replace(".shape is null", " is null")


def _snake_case(name: str) -> str:
    """A name of C such as gradOutput as Python has it, grad_output."""
    return re.sub("(?=[A-Z])", "_", name).lower()


def _require_writable(name: str, target: aclTensor, written: str) -> None:
    """Raise ``ArgumentError`` unless an output has the dtype ``written`` and can be written."""
    if target.dtype != written:
        raise ArgumentError(f"{name} is {target.dtype}; the call writes {written}")
    if target.array is not None and not target.array.flags.writeable:
        raise ArgumentError(
            f"the array of {name}, of shape {target.shape}, is read-only; pass a copy"
        )


def layouts_of(tensors: Mapping[str, aclTensor | None]) -> dict[str, Spec]:
    """The memory layouts of tensors that are not contiguous, by the operator's names.

    The library's host code copies such an operand first (``l0op::Contiguous``) and such a result
    last (``ViewCopy``).
    """
    return {
        name: Spec(tensor.shape, dtype(tensor.dtype), tensor.strides)
        for name, tensor in tensors.items()
        if tensor is not None and not tensor.contiguous
    }


def usable(options: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    """The thread's keywords, but those that have no say in a call."""
    return {name: value for name, value in options.items() if name not in without}


def _value(argument: Any) -> Any:
    """The values of a list of the interface (or of any list); None for a null pointer."""
    if isinstance(argument, aclTensor):
        return argument
    if isinstance(argument, (aclIntArray, aclBoolArray)):
        return argument.values
    return frozen(argument)


@dataclass(eq=False)
class Executor(Handle):
    """A planned call; after phase two, ``result`` is the ``npusim.Result``.

    ``workspace_bytes`` is the memory that kernels use between them.
    """

    plan: CallPlan
    context: Context
    workspace_bytes: int
    repeatable: bool = False
    result: Result | None = None


@answering()
def aclSetAclOpExecutorRepeatable(executor: Executor | None) -> int:
    """Let an executor run more than once, until it is destroyed; the status."""
    _require_living(executor).repeatable = True
    return codes.ACL_SUCCESS


@answering()
def aclDestroyAclOpExecutor(executor: Executor | None) -> int:
    """Give back an executor that was made repeatable; the status."""
    _require_living(executor).gone = "it was destroyed"
    return codes.ACL_SUCCESS


def _require_living(executor: Executor | None) -> Executor:
    if executor is None or executor.gone:
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, "executor is null or was destroyed before")
    return executor


def phase_one(plan: type[CallPlan], function: str, arguments: Mapping[str, Any]) -> Planned:
    """Check and plan a call of ``function``: (status, workspace size in bytes, executor).

    ``arguments`` are those of phase one by their names in C, in C's order. What is refused returns
    (status, 0, None).
    """
    try:
        return _planned(plan(function, arguments))
    except Refused as error:
        note_refusal(function, error)
        return error.status, 0, None


def phase_two(
    function: str,
    workspace: Workspace,
    workspace_bytes: int,
    executor: Executor | None,
    stream: aclrtStream | None,
) -> int:
    """Run what phase one of ``function`` planned, and write its outputs in place; the status."""
    try:
        planned = _require_planned(function, executor)
        _require_runnable(function, planned, stream)
        _require_workspace(workspace, workspace_bytes, planned)
        return _run(planned)
    except Refused as error:
        note_refusal(function, error)
        return error.status


def _planned(plan: CallPlan) -> Planned:
    """Check and plan; return (status, workspace size in bytes, executor)."""
    context = Context.of_thread_device()
    if context is None:
        text = "no device is chosen; call aclrtCreateStream(device='ascend910b2') first"
        raise Refused(codes.ACL_ERROR_RT_CONTEXT_NULL, text)
    for name, argument in plan.arguments.items():
        if isinstance(argument, Handle) and argument.gone:
            raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"{name} was destroyed")
    try:
        plan.check(context)
        with planning():
            workspace_bytes = plan.run(_spec, context.keywords).workspace_bytes
    except NpusimError as error:
        raise Refused(_status(error), plan.text(error)) from error
    return codes.ACLNN_SUCCESS, workspace_bytes, Executor(plan, context, workspace_bytes)


def _run(executor: Executor) -> int:
    """Run a planned call and write its outputs in place."""
    plan = executor.plan
    try:
        feed = _spec if plan.timing_only else _array
        executor.result = plan.run(feed, executor.context.keywords)
        _write(plan, executor.result)
    except NpusimError as error:
        raise Refused(codes.ACLNN_ERR_INNER_NULLPTR, plan.text(error)) from error
    return codes.ACLNN_SUCCESS


def _require_planned(function: str, executor: Executor | None) -> Executor:
    """Return the executor; ``Refused`` for a null pointer and for one that was destroyed."""
    if executor is None or executor.gone:
        fault = "is null" if executor is None else "was destroyed"
        way_out = f"pass what {function}GetWorkspaceSize returned"
        raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"executor {fault}; {way_out}")
    return executor


def _require_runnable(function: str, executor: Executor, stream: aclrtStream | None) -> None:
    """Raise for an executor that this call of phase two cannot run, or not in this stream."""
    planned, context = executor.plan.function, executor.context
    if planned != function:
        text = f"the executor is one of {planned}; pass it to that call"
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, text)
    if executor.result is not None and not executor.repeatable:
        raise Refused(
            codes.ACLNN_ERR_INNER_NULLPTR,
            f"the executor has run, it runs once; get another from {function}GetWorkspaceSize, or "
            "call aclSetAclOpExecutorRepeatable before its first run",
        )
    if context.lost:
        text = "the device that phase one planned for was reset by aclrtResetDevice"
        raise Refused(codes.ACL_ERROR_RT_CONTEXT_NULL, text)
    if stream is not None and (stream.fault or stream.context != context):
        other = (
            f"the stream is one of {stream.context}, phase one planned for {context} or with other "
            "keywords; use one stream for both"
        )
        raise Refused(codes.ACL_ERROR_RT_STREAM_CONTEXT, stream.fault or other)
    for name, tensor in executor.plan.tensors.items():
        fault = tensor.fault or _misplaced(tensor.memory, context)
        if fault:
            raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"{name}: {fault}")


def _require_workspace(workspace: Workspace, size: int, executor: Executor) -> None:
    """Raise where the workspace is not what the call needs."""
    need = executor.workspace_bytes
    way_out = f"the call needs {need} bytes, as phase one returned: use aclrtMalloc({need})"
    if size < need:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspaceSize is {size}; {way_out}")
    if need and workspace is None:
        raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"workspace is null; {way_out}")
    memory = workspace if isinstance(workspace, DeviceMemory) else None
    available = _bytes_of(workspace)
    if available < need:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspace has {available} bytes; {way_out}")
    fault = _misplaced(memory, executor.context)
    if fault:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspace: {fault}")


def _bytes_of(workspace: Workspace) -> int:
    """The size of a workspace in bytes, 0 of None."""
    if workspace is None:
        return 0
    if isinstance(workspace, DeviceMemory):
        return workspace.size_bytes
    if isinstance(workspace, np.ndarray):
        return workspace.nbytes
    return memoryview(workspace).nbytes


def _misplaced(memory: DeviceMemory | None, context: Context) -> str:
    """The reason why kernels of a device cannot use some memory, "" where they can."""
    if memory is None:
        return ""
    place = memory.context
    if place is not None:
        same_kind = place.device.name == context.device.name
        if not same_kind or place.index != context.index:
            return f"its memory lies on {place}, the call runs on {context}"
    return memory.fault


def _status(error: NpusimError) -> int:
    """The code that the real phase one returns for an error.

    A documented limit has its own; other bad arguments are invalid ones. What is left - a kernel
    that does not fit, a product without the operator - ends in a missing task there.
    """
    if isinstance(error, RuleError):
        return codes.ACLNN_ERR_INNER_NULLPTR if error.status is None else error.status
    return (
        codes.ACLNN_ERR_PARAM_INVALID
        if isinstance(error, ArgumentError)
        else codes.ACLNN_ERR_INNER_NULLPTR
    )


def _spec(tensor: aclTensor) -> Operand:
    """A tensor's shape and type, for the planning run."""
    return Spec(tensor.shape, dtype(tensor.dtype))


def _array(tensor: aclTensor) -> Operand:
    """A tensor's data, for the run."""
    assert tensor.array is not None  # the call is not timing-only
    return tensor.array


def _write(plan: CallPlan, result: Result) -> None:
    """Copy what was computed into the caller's arrays; an empty result writes nothing."""
    pairs = zip(plan.outputs, plan.targets, result.outputs or (), strict=not plan.timing_only)
    for name, target, computed in pairs:
        if target is None or computed is None or not computed.size:
            continue
        assert target.array is not None  # the call is not timing-only
        if target.shape != computed.shape:  # the calls do not check this for empty inputs
            raise ArgumentError(f"{name} has shape {target.shape}, the result {computed.shape}")
        np.copyto(target.array, computed, casting="equiv")
