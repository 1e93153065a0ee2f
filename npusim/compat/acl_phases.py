# ruff: noqa: N802 - functions carry the names of the C interface
"""What the two phases of every call have in common: a call is a row, and ``phases`` makes both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, getdoc
from typing import Any, ClassVar

import numpy as np

from npusim.base.dtypes import dtype, promote
from npusim.base.errors import ArgumentError, NpusimError, RuleError
from npusim.call.call import planning
from npusim.call.spec import Operand, Spec
from npusim.compat import acl_codes as codes
from npusim.compat.acl_runtime import Context, Handle, Refused, aclrtStream, answering
from npusim.compat.acl_types import DeviceMemory, aclBoolArray, aclIntArray, aclTensor
from npusim.ops import CARDS
from npusim.ops.arguments import declared, frozen
from npusim.results import Result

#: What arguments of C are, by their names; those that are not here are tensors.
_KINDS = {
    **dict.fromkeys(("stride", "padding", "dilation", "outputPadding"), "aclIntArray | None"),
    **dict.fromkeys(("biasSizes", "inputSize", "kernelSize"), "aclIntArray | None"),
    **dict.fromkeys(("groups", "pad", "cubeMathType"), "int"),
    **dict.fromkeys(("alpha", "beta"), "aclScalar | None"),
    "outputMask": "aclBoolArray | None",
    "transposed": "bool",
}

#: Where both functions of a row are known.
_MODULE = "npusim.compat.aclnn"

#: The operand of a tensor: its shape and type, or its data.
Feed = Callable[[aclTensor], Operand]

#: What phase one returns: (status, workspace size in bytes, executor).
Planned = tuple[int, int, "Executor | None"]


class Plan:
    """One call of ``function``. A subclass is a row; it says what phase one says of itself.

    ``arguments`` are those of phase one by their names in C, in order, ``operator`` is who computes
    it. ``outputs`` has an entry per output of the operator: the tensors whose wider type it has.
    Where the operator has no documented limits, all tensors, lists and scalars but ``optional``
    ones are needed. ``words`` are those of the operator's errors that C has others for; ``makes``
    is what phase two does.
    """

    arguments: ClassVar[str]
    operator: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]]
    makes: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[Mapping[str, str]] = {}

    def __init__(self, function: str, given: Mapping[str, Any]) -> None:
        """Take arguments by their names in C; ``ArgumentError`` for what C would not compile."""
        self.function, self.given = function, given
        for name, value in given.items():
            if name not in _KINDS and not isinstance(value, (aclTensor, type(None))):
                what = type(value).__name__
                raise ArgumentError(f"{function}: {name} is a {what}; pass aclCreateTensor(array)")

    @classmethod
    def names(cls) -> dict[str, str]:
        """The arguments by the names that the operator has for them."""
        others = {c: own.partition(".")[0] for own, c in cls.words.items()}
        others = {c.partition(".")[0]: own for c, own in others.items()}
        return {
            others.get(name, re.sub("(?=[A-Z])", "_", name).lower()): name
            for name in cls.arguments.split()
        }

    @property
    def values(self) -> dict[str, Any]:
        """Tensors, and what lists and numbers are, by the operator's names."""
        return {own: _value(self.given[name]) for own, name in self.names().items()}

    @property
    def made(self) -> list[aclTensor | None]:
        """The tensors of outputs, None where one is not wanted."""
        asked = _value(self.given.get("outputMask", (True,) * len(self.outputs)))
        mask = (*(asked if isinstance(asked, tuple) else ()), *(False,) * len(self.outputs))
        wanted = zip(self.outputs, mask, strict=False)
        return [self.given[name] if on else None for name, on in wanted]

    @property
    def tensors(self) -> dict[str, aclTensor]:
        """The tensors the call touches."""
        made = dict(zip(self.outputs, self.made, strict=True))
        found = {n: made.get(n, v) for n, v in self.given.items() if isinstance(v, aclTensor)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def timing_only(self) -> bool:
        """Whether a tensor the call touches has no array."""
        return any(tensor.array is None for tensor in self.tensors.values())

    def check(self, context: Context) -> None:
        """Raise for what the documentation refuses, or unless outputs can take what is written."""
        card = CARDS[self.operator]
        if card.facts is not None:
            values = self.values
            kinds = (*card.facts.required, *card.facts.optional)
            parts = {fact: fact.partition(".") for fact in kinds}
            facts = {
                fact: getattr(values[name], part, None) if dot else values[name]
                for fact, (name, dot, part) in parts.items()
            }
            rules = str(context.keywords.get("rules", "documented"))
            card.check(facts, context.device, rules)
        else:
            for name in self.given:
                if self.given[name] is None and name not in self.optional:
                    status = codes.ACLNN_ERR_PARAM_NULLPTR
                    raise RuleError(f"{name} is null", parameter=name, status=status)
        for (name, like), target in zip(self.outputs.items(), self.made, strict=True):
            if target is None:
                continue
            wanted = promote([self.given[one].dtype for one in like.split()], "fp32")
            if target.dtype != wanted:
                raise ArgumentError(f"{name} is {target.dtype}; the call writes {wanted}")
            if target.array is not None and not target.array.flags.writeable:
                raise ArgumentError(
                    f"the array of {name}, of shape {target.shape}, is read-only; pass a copy"
                )

    def layouts(self, names: Sequence[str]) -> dict[str, Spec]:
        """How those tensors of the operator's ``names`` lie that are not contiguous."""
        tensors = {own: self.tensors.get(name) for own, name in self.names().items()}
        return layouts_of({name: tensors.get(name) for name in names})

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Run the operator on what ``feed`` makes of tensors, with keywords of the thread."""
        card, names = CARDS[self.operator], self.names()
        given = {own: v for own, v in self.values.items() if names[own] not in self.outputs}
        fed = {own: feed(v) if isinstance(v, aclTensor) else v for own, v in given.items()}
        layouts = self.layouts(card.strided)
        return card.function(**fed, layouts=layouts, **usable(options, card.without))

    def text(self, error: Exception) -> str:
        """An error of the operator in the words of the C call."""
        said = str(error).removeprefix(f"{self.operator}: ")
        told = {name.partition(".")[0] for name in self.words.values()}
        same = {own: name for own, name in self.names().items() if name not in told}
        names = {**same, **self.words}
        pattern = rf"\b({'|'.join(map(re.escape, names))})\b"
        named = re.sub(pattern, lambda found: names[found[0]], said)
        return named.replace(".shape is null", " is null")


def layouts_of(tensors: Mapping[str, aclTensor | None]) -> dict[str, Spec]:
    """How tensors lie, by the operator's names: those that are not contiguous.

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
    """What a list of the interface (or any list) holds; None for a null pointer."""
    if isinstance(argument, aclTensor):
        return argument
    return (
        argument.values if isinstance(argument, (aclIntArray, aclBoolArray)) else frozen(argument)
    )


@dataclass(eq=False)
class Executor(Handle):
    """What phase one planned; after phase two, ``result`` is the ``npusim.Result``.

    ``workspace_bytes`` is the memory that kernels use between them.
    """

    plan: Plan
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


def phases(plan: type[Plan], name: str) -> tuple[Callable[..., Planned], Callable[..., int]]:
    """Both functions of a row, that are called ``name``."""

    @answering(0, None)
    def first(given: dict[str, Any]) -> Planned:
        return _planned(plan(name, given))

    @answering()
    def second(
        workspace: Any, workspaceSize: int, executor: Executor | None, stream: aclrtStream | None
    ) -> int:
        if executor is None or executor.gone:
            text = "is null" if executor is None else "was destroyed"
            way_out = f"pass what {name}GetWorkspaceSize returned"
            raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"executor {text}; {way_out}")
        _require_runnable(name, executor, stream)
        _require_workspace(workspace, workspaceSize, executor)
        return _run(executor)

    for function in (first, second):
        function.__name__ = function.__qualname__ = name
        function.__module__ = _MODULE
        vars(function)["__wrapped__"].__name__ = name
    second.__doc__ = (
        f"{plan.makes}; the status.\n\n"
        "``workspace`` is memory of ``aclrtMalloc`` or any buffer of at least the bytes phase one\n"
        "named (None where it named 0). A ``stream`` of None is the default stream of the planned\n"
        "device."
    )
    kinds = {one: _KINDS.get(one, "aclTensor | None") for one in plan.arguments.split()}
    each = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, annotation=k) for n, k in kinds.items()]
    takes = Signature(each, return_annotation="tuple[int, int, Executor | None]")
    doc = getdoc(plan)
    return declared(f"{name}GetWorkspaceSize", _MODULE, doc, takes, first), second


def _planned(plan: Plan) -> Planned:
    """Check and plan; return (status, workspace size in bytes, executor)."""
    context = Context.of_device()
    if context is None:
        text = "no device is chosen; call aclrtCreateStream(device='ascend910b2') first"
        raise Refused(codes.ACL_ERROR_RT_CONTEXT_NULL, text)
    for name, argument in plan.given.items():
        if isinstance(argument, Handle) and argument.gone:
            raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"{name} was destroyed")
    try:
        plan.check(context)
        with planning():
            size = plan.run(_spec, context.keywords).workspace_bytes
    except NpusimError as error:
        raise Refused(_status(error), plan.text(error)) from error
    return codes.ACLNN_SUCCESS, size, Executor(plan, context, size)


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


def _require_workspace(workspace: Any, size: int, executor: Executor) -> None:
    """Raise where the workspace is not what the call needs."""
    need = executor.workspace_bytes
    way_out = f"the call needs {need} bytes, as phase one returned: use aclrtMalloc({need})"
    if size < need:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspaceSize is {size}; {way_out}")
    if need and workspace is None:
        raise Refused(codes.ACLNN_ERR_PARAM_NULLPTR, f"workspace is null; {way_out}")
    memory = workspace if isinstance(workspace, DeviceMemory) else None
    held = memory.size_bytes if memory else memoryview(workspace or b"").nbytes
    if held < need:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspace has {held} bytes; {way_out}")
    fault = _misplaced(memory, executor.context)
    if fault:
        raise Refused(codes.ACLNN_ERR_PARAM_INVALID, f"workspace: {fault}")


def _misplaced(memory: DeviceMemory | None, context: Context) -> str:
    """Why the kernels of a device cannot use some memory, "" where they can."""
    place = None if memory is None else memory.context
    if place is not None and (place.device.name, place.index) != (
        context.device.name, context.index,
    ):  # fmt: skip
        return f"its memory lies on {place}, the call runs on {context}"
    return "" if memory is None else memory.fault


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


def _write(plan: Plan, result: Result) -> None:
    """Copy what was computed into the caller's arrays; an empty result writes nothing."""
    pairs = zip(plan.outputs, plan.made, result.outputs or (), strict=not plan.timing_only)
    for name, target, computed in pairs:
        if target is None or computed is None or not computed.size:
            continue
        assert target.array is not None  # the call is not timing-only
        if target.shape != computed.shape:  # the calls do not check this for empty inputs
            raise ArgumentError(f"{name} has shape {target.shape}, the result {computed.shape}")
        np.copyto(target.array, computed, casting="equiv")
