"""The forward graph of a module as PyTorch exports it, without data and with the module as it was.

``torch.export`` (2.13) runs the module once on tensors without data, before any decomposition: one
node for each operation that the module's code calls, with its module, its line and its sizes. A
region under ``no_grad`` or ``autocast`` or behind a checkpoint is a graph of its own within it.
"""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.workloads.from_torch.inputs import Inputs

#: What the module is called within the one that is exported.
_INSIDE = "model"

#: Operations of PyTorch that run a graph of their own: where it stands among the arguments.
#: Its operands follow it.
REGIONS = {
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "tag_activation_checkpoint": 0,
    "wrap_activation_checkpoint": 0,
}

#: What a user can do about a module that cannot be exported.
_WAY_OUT = (
    "a network is read without data, so that its graph may not depend on values; take the part "
    "that does so out of the module, or state the input as a number that is no tensor"
)


@dataclass(frozen=True)
class ModuleProgram:
    """An exported graph: ``module`` has it, ``names`` are those of its placeholders' tensors.

    ``names`` has the user's name of each parameter, buffer or constant by that of its placeholder,
    ``tensors`` these tensors by the user's name, ``inputs`` the user's names of the other
    placeholders. ``traces`` are where in the user's code operations stand, by their names in the
    graph as it was first.
    """

    module: Any
    names: Mapping[str, str]
    tensors: Mapping[str, Any]
    inputs: Mapping[str, str]
    traces: Mapping[str, str]


def exported(
    torch: Any, model: Any, inputs: Inputs, targets: Inputs, loss: Callable[..., Any] | None
) -> ModuleProgram:
    """Export a call of ``model``, with its ``loss`` on the ``targets`` where there is one.

    Raises ``ArgumentError`` with PyTorch's message where the module does not run, or its graph
    depends on data.
    """
    called = _called(torch, model, len(inputs.positional), list(inputs.named), loss)
    arguments = (*inputs.positional, *inputs.named.values(), *targets.positional)
    arguments += tuple(targets.named.values())
    with _as_it_was(torch, model), _plainly(torch), _silent():
        with _cells_once():
            program = torch.export.export(called, arguments, strict=False)
        traces: dict[str, str] = {}
        if _writes_parts(program.graph_module):
            traces = _traces(program.graph_module)
            _detach_regions(torch, program.graph_module)
            program = program.run_decompositions({})
    return _named(model, program, _input_names(model, inputs, targets), traces)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep to itself what the exporter logs: its errors say all that a user can act on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def refusal(title: str, error: BaseException, inputs: Any) -> ArgumentError:
    """The message for a user whose module could not be exported."""
    name = type(error).__name__
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2]) or name
    if re.search(r"data.dependent|guard on|unbacked|\.item\(\)|DynamicControlFlow", str(error)):
        return ArgumentError(f"{title} cannot be read: {name}: {text}; {_WAY_OUT}")
    message = f"{title} does not run on inputs {inputs} without data: {name}: {text}"
    if re.search(r"scalar types: Long, Int|got \w*FloatTensor|dtype.*(Long|int64)", str(error)):
        message += (
            "; where it takes indices such as tokens, give inputs=npusim.spec(shape, 'int32') or "
            "an example tensor of integers"
        )
    return ArgumentError(message)


def _called(
    torch: Any, model: Any, count: int, named: list[str], loss: Callable[..., Any] | None
) -> Any:
    """A module that calls the user's one, and the loss on its result."""

    class Called(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            setattr(self, _INSIDE, model)
            if isinstance(loss, torch.nn.Module):
                self.loss = loss
            self.training = model.training

        def forward(self, *arguments: Any) -> Any:
            first = arguments[:count]
            rest = arguments[count:]
            keywords = dict(zip(named, rest, strict=False))
            result = getattr(self, _INSIDE)(*first, **keywords)
            if loss is None:
                return list(_leaves(torch, result))
            return [loss(result, *rest[len(named) :])]

    return Called()


def _leaves(torch: Any, value: Any) -> Iterator[Any]:
    """The tensors of a result, in containers and records of any sort."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(torch, each)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            yield from _leaves(torch, each)
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        for each in vars(value).values():
            yield from _leaves(torch, each)


@contextmanager
def _as_it_was(torch: Any, model: Any) -> Iterator[None]:
    """The module's own attributes again afterwards: hooks set weights that they have computed."""
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in model.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)


@contextmanager
def _plainly(torch: Any) -> Iterator[None]:
    """Operations as a training step calls them, of any number of images."""
    functional: Any = import_module("torch.nn.functional")  # with what it calls for itself
    check = functional._verify_batch_size
    normalise = functional.batch_norm

    def batch_norm(x: Any, mean: Any, variance: Any, *rest: Any, **named: Any) -> Any:
        training = rest[2] if len(rest) > 2 else named.get("training", False)
        if training and x.numel() == x.shape[1]:
            mean = variance = None  # one number has no unbiased variance that could be kept
        return normalise(x, mean, variance, *rest, **named)

    fast = torch.backends.mha.get_fastpath_enabled()
    logged = logging.getLogger("torch._subclasses.fake_tensor")  # what it raises besides
    level = logged.level
    # One image of one position has no variance in training, which says nothing about its sizes.
    functional._verify_batch_size = lambda size: None
    functional.batch_norm = batch_norm
    torch.backends.mha.set_fastpath_enabled(False)
    logged.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # of attributes that the module sets as it runs
            yield
    finally:
        logged.setLevel(level)
        functional._verify_batch_size = check
        functional.batch_norm = normalise
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _cells_once() -> Iterator[None]:
    """Recurrent layers sized by one step of theirs.

    Without data, PyTorch (2.13) finds out what sizes the results of a recurrent layer have by going
    through all of its steps, some 20 operations each. The exported graph has none of these.
    """
    library = import_module("torch._decomp.decompositions")
    before = {name: getattr(library, name) for name in ("one_layer_rnn", "one_layer_lstm")}
    for name, layer in before.items():
        setattr(library, name, _of_one_step(layer))
    try:
        yield
    finally:
        for name, layer in before.items():
            setattr(library, name, layer)


def _of_one_step(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A layer of PyTorch's that goes through the first step, and has results for all."""

    def sized(x: Any, *rest: Any, **named: Any) -> Any:
        result, last = layer(x[:1], *rest, **named)
        return result.repeat(x.shape[0], 1, 1), last

    return sized


def without_data(torch: Any, device: Any) -> Any:
    """A mode under which new tensors have no data."""
    if getattr(device, "type", device) == "meta":
        return nullcontext()
    mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    return mode(allow_non_fake_inputs=True)


def _input_names(model: Any, inputs: Inputs, targets: Inputs) -> list[str]:
    """The user's names of all inputs, those of the module's ``forward`` and the targets."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    placed = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    count = len(inputs.positional)
    placed += [f"input_{i + 1}" for i in range(len(placed), count)]
    aims = [f"target_{i + 1}" if i else "target" for i in range(len(targets.positional))]
    return [*placed[:count], *inputs.named, *aims, *targets.named]


def _named(model: Any, program: Any, inputs: list[str], traces: Mapping[str, str]) -> ModuleProgram:
    """The program with the user's names: a tensor that two modules share has the first."""
    first: dict[int, str] = {}
    tensors: dict[str, Any] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        tensors[name] = tensor
        first.setdefault(id(tensor), name)
    names = {}
    others = {}
    remaining = iter(inputs)
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            others[spec.arg.name] = next(remaining, spec.arg.name)
            continue
        name = spec.target.removeprefix(f"{_INSIDE}.")
        if name in tensors:
            name = first[id(tensors[name])]
        else:
            tensors[name] = _constant(program, spec.target)
        names[spec.arg.name] = name
    return ModuleProgram(program.graph_module, names, tensors, others, traces)


def _constant(program: Any, target: str) -> Any:
    """A tensor of the program that is none of the module's own."""
    return program.constants.get(target, program.state_dict.get(target))


# -- what is written in place ----------------------------------------------------------------


def _graphs(module: Any) -> Iterator[Any]:
    """The graph of an exported module, and those of its regions."""
    for part in module.modules():
        if hasattr(part, "graph"):
            yield part.graph


def _traces(module: Any) -> dict[str, str]:
    """Where operations stand in the user's code, by their names."""
    return {
        node.name: node.meta["stack_trace"]
        for graph in _graphs(module)
        for node in graph.nodes
        if node.meta.get("stack_trace")
    }


def _writes_parts(module: Any) -> bool:
    """Return whether an operation writes a part of a value, or a value that has other views."""
    return any(_writes_part(graph) for graph in _graphs(module))


def _writes_part(graph: Any) -> bool:
    """The same of one graph: what is written must be all of a value, with no view read later."""
    root: dict[Any, Any] = {}
    views: dict[Any, list[Any]] = {}
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        source = _viewed(node)
        root[node] = root.get(source, source) if source is not None else node
        if source is not None:
            views.setdefault(root[node], []).append(node)
    for node in graph.nodes:
        for written in written_by(node):
            root_value = root[written]
            seen = [root_value, *views.get(root_value, ())]
            others = [
                other for other in seen if other is not written and order[other] < order[node]
            ]
            if any(order[user] > order[node] for other in others for user in other.users):
                return True
    return False


def written_by(node: Any) -> list[Any]:
    """The values that an operation writes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    written: list[Any] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        written += value if isinstance(value, (list, tuple)) else [value]
    return [result for result in written if hasattr(result, "users")]


def _viewed(node: Any) -> Any:
    """The value of which a node is a view, None where it is a value of its own."""
    if getattr(node.target, "__name__", "") == "getitem":
        return node.args[0] if _viewed(node.args[0]) is not None else None
    if is_view(node.target):
        return node.args[0]
    return None


def is_view(target: Any) -> bool:
    """Return whether the result of an operation shares its first operand's memory, unwritten."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.returns:
        return False
    return all(result.alias_info is not None for result in schema.returns)


def _detach_regions(torch: Any, module: Any) -> None:
    """State regions without gradients by ``detach``, as a decomposition loses them.

    What a region reads is detached, so that neither its results nor its weights have a gradient.
    """
    for graph in list(_graphs(module)):
        for node in list(graph.nodes):
            if getattr(node.target, "__name__", "") != "wrap_with_set_grad_enabled" or node.args[0]:
                continue
            read = []
            for operand in node.args[2:]:
                with graph.inserting_before(node):
                    detached = graph.call_function(torch.ops.aten.detach.default, (operand,))
                detached.meta.update(operand.meta)
                read.append(detached)
            node.args = (*node.args[:2], *read)
        graph.owning_module.recompile()
