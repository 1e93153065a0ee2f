"""The network of a ``torch.nn.Module``: its forward graph at a batch, without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.resources import optional
from npusim.workloads.from_torch.inputs import Inputs, made, words
from npusim.workloads.from_torch.program import ModuleProgram, exported, refusal, without_data
from npusim.workloads.from_torch.reader import KNOWN_ELEMENTS, Reader
from npusim.workloads.from_torch.table import TABLE
from npusim.workloads.from_torch.values import TracedValue
from npusim.workloads.graph import GraphBuilder, Workload


def workload(
    model: Any,
    inputs: Any,
    *,
    batch: int = 1,
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
    unrolled: bool = False,
    name: str = "",
) -> Workload:
    """The graph of ``model`` for a ``batch`` of images, in the order in which it computes.

    ``inputs`` is the shape of one image, such as (3, 224, 224), or several inputs, a list or a
    mapping by the names of ``forward``: shapes and ``npusim.spec`` without the batch, which is put
    in front, or example tensors, whose first axis is made the batch. ``loss`` is called with what
    the module returns and the ``targets``, inputs of the same forms. ``unrolled`` writes each step
    of a recurrent layer. ``model`` stays as it is, in its own mode of training or evaluation, and
    may be on the meta device.

    Raises ``ArgumentError`` where the model does not run on such inputs, where its graph depends on
    data, and where it has nothing to multiply.
    """
    torch = optional("torch", "the layers of a torch.nn.Module need PyTorch")
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    title = name or type(model).__name__
    program = _program(torch, model, title, inputs, batch, loss, targets)
    builder = GraphBuilder(title)
    reader = Reader(torch, builder, TABLE, model=model, unrolled=unrolled, traces=program.traces)
    reader.walk(program.module, _placeholders(reader, program))

    def again(other: int) -> Workload:
        return workload(
            model, inputs, batch=other, loss=loss, targets=targets, unrolled=unrolled, name=name
        )

    network = builder.workload(
        f"{title} (PyTorch), input {words(inputs)}",
        batch=batch,
        notes=tuple(reader.notes),
        reread=again,
    )
    if not network.layers and not network.unknown_products:
        raise ArgumentError(f"{title} has no convolution and no product of matrices")
    return network


def _program(
    torch: Any,
    model: Any,
    title: str,
    inputs: Any,
    batch: int,
    loss: Callable[..., Any] | None,
    targets: Any,
) -> ModuleProgram:
    """The exported graph of a call of the model on inputs of these sizes."""
    tensors = [*model.parameters(), *model.buffers()]
    floating = next(
        (tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32
    )
    device = tensors[0].device if tensors else "cpu"
    with without_data(torch, device):
        arguments = made(torch, inputs, batch, floating=floating, device=device)
        aims = Inputs((), {})
        if targets is not None:
            aims = made(torch, targets, batch, floating=floating, device=device)
    try:
        return exported(torch, model, arguments, aims, loss)
    except ArgumentError:
        raise
    except Exception as error:  # whatever a stranger's module raises
        shapes = [
            list(tensor.shape) if hasattr(tensor, "shape") else tensor
            for tensor in (*arguments.positional, *arguments.named.values())
        ]
        raise refusal(title, error, ", ".join(map(str, shapes))) from error


def _placeholders(reader: Reader, program: ModuleProgram) -> list[TracedValue]:
    """The values of the graph's placeholders, in order: parameters, buffers and inputs."""
    values = []
    for node in program.module.graph.nodes:
        if node.op != "placeholder":
            continue
        shown = node.meta.get("val")
        if node.name in program.inputs:
            values.append(_input(reader, program.inputs[node.name], shown))
        elif node.name in program.names:
            name = program.names[node.name]
            values.append(_tensor(reader, name, program.tensors[name], shown))
        else:
            values.append(shown)
    return values


def _input(reader: Reader, name: str, shown: Any) -> Any:
    if not hasattr(shown, "dtype"):
        return shown
    floats = shown.dtype.is_floating_point or shown.dtype.is_complex
    shape = (*shown.shape, 2) if shown.dtype.is_complex else tuple(shown.shape)
    called = reader.builder.input(name, shape, integers=not floats)
    return reader.value(called, shown.shape, dtype=shown.dtype)


def _tensor(reader: Reader, name: str, tensor: Any, shown: Any) -> TracedValue:
    """A parameter, buffer or constant of the module; numbers of small constants are known."""
    trained = bool(tensor.requires_grad)
    is_constant = not trained and not isinstance(tensor, reader.torch.nn.Parameter)
    is_constant = is_constant and tensor.numel() <= KNOWN_ELEMENTS and not tensor.is_meta
    constant = tensor.detach().cpu() if is_constant else None
    shape = (*shown.shape, 2) if shown.dtype.is_complex else tuple(shown.shape)
    data = None
    if constant is not None and constant.dtype != reader.torch.bfloat16:
        data = (reader.torch.view_as_real(constant) if constant.is_complex() else constant).numpy()
    noted = reader.builder.parameter(name, shape, trained=trained, data=data)
    return reader.value(noted, shown.shape, dtype=shown.dtype, constant=constant)
