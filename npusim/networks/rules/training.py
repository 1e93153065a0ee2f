"""A training step from the graph of a network: operations on values.

``rules/forward.py`` notes the operations going forward, ``rules/gradients.py`` those going
backward; those of the optimizer are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.networks.rules.forward import Forward
from npusim.networks.rules.gradients import Gradients
from npusim.networks.rules.table import Update, chain_of, tables
from npusim.networks.rules.values import KINDS, Kinds, Operation, Training, Value
from npusim.workloads import Workload


def training(
    workload: Workload,
    kinds: Kinds = KINDS,
    *,
    passes: str = "training",
    optimizer: str = "momentum",
    settings: Mapping[str, float] | None = None,
) -> Training:
    """The operations of one step of ``workload`` on its batch of images.

    ``passes`` is "forward", "backward" or "training", which is both and the optimizer ("momentum",
    "sgd", "adam"), whose ``settings`` replace those of ``configs/operations.yaml``; its chains are
    those of the table. Raises ``ArgumentError`` for a workload without a graph.
    """
    if not workload.nodes:
        raise ArgumentError(
            f"workload {workload.name} only lists layers; a step needs to know what reads what: "
            "give its file a `graph:`, or read a torch.nn.Module or an ONNX file"
        )
    optimizers = tables().optimizers
    if optimizer not in optimizers:
        raise ArgumentError(
            f"optimizer is {optimizer!r}{suggest(optimizer, optimizers)}; it is one of "
            f"{', '.join(optimizers)}"
        )
    settings = settings or {}
    forward = Forward(workload, kinds, settings)
    forward.note_all()
    step = forward.step
    if passes != "forward":
        Gradients(forward).note_all()
    if passes == "training":
        _note_update(step, optimizers[optimizer], settings)
    if passes == "backward":
        step.results += [f"{name}.gradient" for name in step.parameters]
        step.operations = [item for item in step.operations if item.phase != "forward"]
    return step


def _note_update(step: Training, updates: Iterable[Update], settings: Mapping[str, float]) -> None:
    """Note the operations of the optimizer for every parameter that has a gradient."""
    for name in step.parameters:
        value = step.values[name]
        gradient = f"{name}.gradient"
        if gradient not in step.values:
            continue
        for update in updates:
            if update.weights and value.kind not in ("weight", "matrix"):
                continue
            gradient = _note_row(step, update, value, gradient, settings)


def _note_row(
    step: Training, update: Update, value: Value, gradient: str, settings: Mapping[str, float]
) -> str:
    """Note an operation on a parameter's ``value``; returns its gradient after the operation."""
    symbols = (*update.state, *tables().chains[update.op].writes)
    names = {symbol: f"{value.name}.{symbol}" for symbol in symbols}
    for name in names.values():
        step.value(value._replace(name=name))
    step.state += [names[symbol] for symbol in update.state]
    for symbol in (*update.state, "w"):
        if f"{symbol}_new" in names:
            step.updates[names[f"{symbol}_new"]] = names.get(symbol, value.name)
    operation = f"{value.name}.{update.op}"
    operands = {"w": value.name, "g": gradient, **names}
    chain = chain_of(update.op, operands, operation, 1, settings)
    kind = "decay" if update.op == "decay" else "update"
    step.operations.append(Operation(operation, kind, "optimizer", chain=chain))
    return names.get("g_new", gradient)
