"""What a training step computes: operations on values, from the graph of a network.

A *value* is a tensor: a map, a parameter, numbers for channels, or bits. An *operation* is what one
kernel computes: a product or another kernel of its own (its ``core``), and a chain of element-wise
steps on what that makes, or on maps alone. Gradients follow from a table of rules; where a value is
read more than once, its gradients are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from msgspec import Struct, field

from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.yamltree import suggest
from npusim.networks.layer_rules import named_numbers, rule_of
from npusim.networks.rules import Chain, Form, Rule, Update, chain_of, tables
from npusim.networks.splits import in_turn, splits
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer, Workload
from npusim.workloads.layers import INPUT, Node

#: The parts of a step, in order.
PHASES = ("forward", "backward", "optimizer")


class Value(NamedTuple):
    """A tensor of a step, of a batch: ``shape`` is (n, channels, ...) of maps, plain of others.

    ``kind`` is "map", "rows" (of a linear layer), "weight" (of a convolution), "matrix" (of a
    linear layer), "vector" (a bias, or numbers for the elements of a row), "channels" (a number for
    each channel of whole blocks), "images" (one for each image and channel, in fp32), "bits" (one
    for each element of a map) or "masks" (of bits, for each tap of a window). A weight and what is
    made of it have the ``groups`` of its convolution, by which fractals are shared.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: str = "map"
    groups: int = 1


class Operation(Struct, frozen=True):
    """What one kernel computes: its ``core``, and a ``chain`` of element-wise steps behind it.

    Without a core the chain is all of it. ``inputs`` and ``outputs`` are values of the core; with a
    chain these stay in memory only where they are ``stored``. ``kind`` is what reports call it.
    """

    name: str
    kind: str
    phase: str
    layer: Layer | ElementwiseLayer | None = None
    core: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    chain: Chain | None = None
    stored: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads, each once."""
        chain = (*self.chain.reads, *self.chain.vectors) if self.chain else ()
        return tuple(dict.fromkeys(v for v in (*self.inputs, *chain) if v not in self.outputs))

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it leaves in memory."""
        chain = self.chain
        own = (*chain.writes, *(vector for vector, _ in chain.sums)) if chain else ()
        return (*(self.outputs if self.stored else ()), *own)


class Training(Struct):
    """The operations of a step in order, and their values."""

    values: dict[str, Value] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    def value(self, value: Value) -> str:
        """Note a value; returns its name."""
        self.values[value.name] = value
        return value.name

    def readers(self) -> Counter[str]:
        """How many operations read a value, by its name."""
        return Counter(name for one in self.operations for name in one.reads)


class Kinds(NamedTuple):
    """The arithmetic of a step: types of maps, of what the cube multiplies, of normalisations."""

    maps: DType = FP16
    cube: DType = FP16
    norm: DType = FP16


#: What everything is computed in unless asked for otherwise.
KINDS = Kinds()


def training(
    workload: Workload,
    batch: int,
    kinds: Kinds = KINDS,
    *,
    passes: str = "training",
    optimizer: str = "momentum",
    settings: Mapping[str, float] | None = None,
) -> Training:
    """The operations of one step of ``workload`` on ``batch`` images.

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
    made = _Builder(workload, batch, kinds, settings or {})
    made.forward()
    if passes != "forward":
        made.backward()
    if passes == "training":
        made.update(optimizers[optimizer])
    skipped = {"backward": "forward"}.get(passes)
    found = [one for one in made.step.operations if one.phase != skipped]
    made.step.operations = found
    return made.step


class _Builder:
    """Notes the operations of a network's nodes, forward and then backward."""

    def __init__(
        self, workload: Workload, batch: int, kinds: Kinds, settings: Mapping[str, float]
    ) -> None:
        self.workload, self.batch, self.kinds, self.settings = workload, batch, kinds, settings
        self.step = Training()
        self.nodes = {node.name: node for node in workload.nodes}
        first = workload.nodes[0]
        shape = _shape_in(first.layer, batch)
        self.step.value(Value(INPUT, shape, FP32, _kind(shape, first.layer)))
        self.trained: dict[str, bool] = {INPUT: False}
        self.rules: dict[str, Rule] = {}
        self.symbols: dict[str, dict[str, str]] = {}
        self.gradients: dict[str, list[str]] = {}
        self.copies: dict[tuple[str, DType], str] = {}
        self.splits = splits(workload.nodes)

    # -- forward -----------------------------------------------------------------------------

    def forward(self) -> None:
        for node in self.workload.nodes:
            shapes = [self.step.values[name].shape for name in node.inputs]
            rule = self.rules[node.name] = rule_of(node.layer, shapes)
            self.trained[node.name] = bool(rule.parameters) or any(
                self.trained[name] for name in node.inputs
            )
            group = self.splits.get(node.name, (node,))
            if node is not group[0]:
                continue
            self.symbols |= {one.name: self._named(one, rule) for one in group}
            for form in rule.forward:
                self._note(node, self._whole(form, group, "y", "split"), "forward")

    def _whole(self, form: Form, group: Sequence[Node], symbol: str, op: str) -> Form:
        """An operation of a node; of several slices, the ``op`` of all of them.

        It has what each calls ``symbol`` in its place, with a number.
        """
        if len(group) < 2:
            return form
        own = [self.symbols[one.name] for one in in_turn(group)]
        names = {f"{symbol}{i}": each[symbol] for i, each in enumerate(own) if symbol in each}
        self.symbols[group[0].name] |= names
        reads, writes = (
            tuple(names) if words == (symbol,) else words for words in (form.reads, form.writes)
        )
        return form._replace(op=op, reads=reads, writes=writes)

    def _named(self, node: Node, rule: Rule) -> dict[str, str]:
        """Values by the symbols of the rule: inputs, the output, parameters, what is kept."""
        layer, batch = node.layer, self.batch
        names = {f"x{i}": name for i, name in enumerate(node.inputs, 1)}
        names |= dict(zip(("x",), node.inputs, strict=False))
        read, shape = (
            {word for form in rule.forward for word in form.reads},
            _shape_in(layer, batch),
        )
        for symbol in sorted(read & {"x", "x1", "x2"} - names.keys()):
            # What nobody computes is a constant, as the first state of a recurrent cell.
            constant = Value(f"{node.name}.{symbol}", shape, self.kinds.maps, _kind(shape, layer))
            names[symbol] = self.step.value(constant)
        out = _shape_out(layer, batch)
        names["y"] = self.step.value(Value(node.name, out, self.kinds.maps, _kind(out, layer)))
        for symbol, kind in rule.parameters.items():
            if symbol == "b" and not getattr(layer, "bias", False):
                continue
            groups = getattr(layer, "groups", 1) if kind == "weight" else 1
            value = Value(f"{node.name}.{symbol}", _parameter(layer, kind), FP32, kind, groups)
            names[symbol] = self.step.value(value)
            self.step.parameters.append(value.name)
        for symbol, text in rule.kept.items():
            kind, _, of = text.partition(" of ")
            like = self.step.values[names[of or "y"]]
            shape = {"channels": like.shape[1:2], "images": like.shape[:2]}.get(kind, like.shape)
            if kind == "masks":
                window = getattr(layer, "kernel", ()) or self.step.values[names["x"]].shape[2:]
                shape = (prod(window), *shape)
            types = {"channels": FP32, "images": FP32, "bits": INT8, "masks": INT8}
            value = Value(f"{node.name}.{symbol}", shape, types.get(kind, like.dtype), kind)
            names[symbol] = self.step.value(value)
        return names

    def _note(self, node: Node, form: Form, phase: str) -> None:
        """One operation of a node, with casts of what it computes in another type."""
        names, layer = self.symbols[node.name], node.layer
        many = [s for s in names if s[0] == "x" and s[1:]]
        reads = [s for word in form.reads for s in (many if word == "x*" else [word])]
        reads = [s for s in reads if s in names]
        kind = self._type(form)
        row = tables().chains.get(form.op)
        given = {s: self._cast(names[s], kind, phase) for s in reads}
        made, casts = {}, []
        for s in form.writes:
            value = self.step.values[names[s]]
            made[s] = names[s]
            wide = FP32 if row and s in row.summed else kind
            if value.kind in ("map", "rows") and wide is not None and value.dtype is not wide:
                made[s] = self.step.value(value._replace(name=f"{value.name}.{wide}", dtype=wide))
                casts.append((made[s], names[s]))
                self.copies[value.name, wide] = made[s]
        self._operation(f"{node.name}.{form.name}", form, phase, layer, given, made)
        for source, target in casts:
            chain = chain_of("cast", {"x": source, "y": target}, target)
            self.step.operations.append(Operation(target, "cast", phase, chain=chain))

    def _operation(
        self,
        name: str,
        form: Form,
        phase: str,
        layer: Layer | ElementwiseLayer | None,
        given: Mapping[str, str],
        made: Mapping[str, str],
    ) -> None:
        """Note an operation: a chain where there is a row of it, else a kernel of its own."""
        if form.op == "add" or form.op in tables().chains:
            like = self.step.values[next(iter(given.values()))]
            elements = like.shape[0] * prod(like.shape[2:])
            settings = {**self.settings, **named_numbers(layer)}
            chain = chain_of(form.op, {**given, **made}, name, elements, settings, like.dtype)
            one = Operation(name, form.kind, phase, layer, chain=chain)
        else:
            core = tuple(given.values()), tuple(made.values())
            one = Operation(name, form.kind, phase, layer, form.op, *core)
        self.step.operations.append(one)

    def _type(self, form: Form) -> DType | None:
        """The type that an operation computes maps in; None for any."""
        if form.kind.startswith(("convolution", "linear")):
            return self.kinds.cube
        return self.kinds.norm if form.kind.startswith("normalisation") else self.kinds.maps

    def _cast(self, name: str, kind: DType | None, phase: str) -> str:
        """The value in the type of an operation: a cast of it, made once."""
        value = self.step.values[name]
        if (
            kind is None
            or value.dtype is kind
            or value.kind in ("vector", "channels", "images", "bits", "masks")
        ):
            return name
        if (name, kind) not in self.copies:
            target = self.step.value(value._replace(name=f"{name}.{kind}", dtype=kind))
            chain = chain_of("cast", {"x": name, "y": target}, target)
            weights = name in self.step.parameters
            one = Operation(target, "cast of weights" if weights else "cast", phase, chain=chain)
            self.step.operations.append(one)
            self.copies[name, kind] = target
        return self.copies[name, kind]

    # -- backward ----------------------------------------------------------------------------

    def backward(self) -> None:
        read = {name for node in self.workload.nodes for name in node.inputs}
        for end in (node.name for node in self.workload.nodes if node.name not in read):
            self._loss(end)
        for node in reversed(self.workload.nodes):
            if not self.trained[node.name]:
                continue
            rule, names = self.rules[node.name], self.symbols[node.name]
            dy = self._gradient(node.name)
            if dy is not None:
                names["dy"] = dy
            group = self.splits.get(node.name, (node,))
            if node is not group[0] or all("dy" not in self.symbols[one.name] for one in group):
                continue  # it is read with the first of them, or nothing has a gradient
            for i, name in enumerate(node.inputs, 1):
                if {"x*", f"x{i}"} & {*rule.passes_on}:
                    self._add_gradient(name, names["dy"])
            wanted = [f"x{i}" for i, name in enumerate(node.inputs, 1) if self.trained[name]]
            for form in rule.backward:
                self._backward(node, self._whole(form, group, "dy", "concat"), wanted)

    def _loss(self, end: str) -> None:
        """The gradient of a value that ends the network: of softmax with cross-entropy, or given.

        Of several ends, such as an auxiliary classifier, those of as many classes share labels.
        """
        value, last = self.step.values[end], self.workload.nodes[-1].name
        gradient = self.step.value(value._replace(name=f"{end}.gradient"))
        self.gradients[end] = [gradient]
        if value.kind == "rows":
            own = f"{end}." * (end != last)
            shared = value.shape == self.step.values[last].shape
            labels = Value(f"{own * (not shared)}labels", value.shape, value.dtype, "rows")
            loss = self.step.value(Value(f"{own}loss", value.shape[:1], FP32, "rows"))
            reads, made = (end, self.step.value(labels)), (loss, gradient)
            self.step.operations.append(
                Operation(loss, "loss", "backward", None, "softmax_loss", reads, made)
            )

    def _backward(self, node: Node, form: Form, wanted: Sequence[str]) -> None:
        """An operation of the gradients, where somebody wants one of its results."""
        names = self.symbols[node.name]
        writes = []
        for word in form.writes:
            for symbol in wanted if word == "dx*" else [word]:
                if word in ("dx*", "dx", "dx1", "dx2"):
                    at = symbol.removeprefix("d") if symbol != "dx" else "x1"
                    if at not in wanted:
                        continue
                    source = self.step.values[names[at]]
                    made = f"{source.name}.gradient.{node.name}"
                    made += ".2" * (made in self.step.values)  # both operands are one value
                    key = f"d{at}" if symbol != "dx" else "dx"
                    names[key] = self.step.value(source._replace(name=made))
                    self._add_gradient(source.name, made)
                    writes.append(key)
                elif word in self.rules[node.name].kept:
                    writes.append(word)
                elif word.startswith("d") and word[1:] in names:
                    source = self.step.values[names[word[1:]]]
                    names[word] = self.step.value(
                        source._replace(name=f"{source.name}.gradient", dtype=FP32)
                    )
                    writes.append(word)
        if writes:
            self._note(node, form._replace(writes=tuple(writes)), "backward")

    def _add_gradient(self, name: str, gradient: str) -> None:
        if self.trained[name]:
            self.gradients.setdefault(name, []).append(gradient)

    def _gradient(self, name: str) -> str | None:
        """The gradient of a value: that of its one reader, or the sum of all."""
        parts = self.gradients.get(name, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self.step.value(self.step.values[name]._replace(name=f"{name}.gradient"))
        given = {f"x{i}": part for i, part in enumerate(parts, 1)}
        maps = self.step.values[name].dtype
        chain = chain_of("add", {**given, "y": total}, total, maps=maps)
        self.step.operations.append(Operation(total, "sum of gradients", "backward", chain=chain))
        return total

    # -- optimizer ---------------------------------------------------------------------------

    def update(self, rules: Iterable[Update]) -> None:
        """The update of every parameter that has a gradient."""
        for name in self.step.parameters:
            value, gradient = self.step.values[name], f"{name}.gradient"
            if gradient not in self.step.values:
                continue
            for op, state, weights in rules:
                if weights and value.kind not in ("weight", "matrix"):
                    continue
                made = tables().chains[op].writes
                named = {s: f"{name}.{s}" for s in (*state, *made)} | {"w_new": f"{name}_new"}
                named = {s: one for s, one in named.items() if s in (*state, *made)}
                for made_of in named.values():
                    self.step.value(value._replace(name=made_of))
                chain = chain_of(
                    op, {"w": name, "g": gradient, **named}, f"{name}.{op}", 1, self.settings
                )
                kind = op if op == "decay" else "update"
                updated = Operation(f"{name}.{op}", kind, "optimizer", chain=chain)
                self.step.operations.append(updated)
                gradient = named.get("g_new", gradient)


def _shape_in(layer: Layer | ElementwiseLayer, batch: int) -> tuple[int, ...]:
    if isinstance(layer, ConvLayer):
        return replace(layer, n=batch).x_shape
    if isinstance(layer, LinearLayer):
        return (batch * layer.rows, layer.cin)
    return (batch, *layer.shape)


def _shape_out(layer: Layer | ElementwiseLayer, batch: int) -> tuple[int, ...]:
    if isinstance(layer, ConvLayer):
        return replace(layer, n=batch).dy_shape
    if isinstance(layer, LinearLayer):
        return (batch * max(1, layer.products) * layer.rows, layer.cout)
    return (batch, *layer.out)


def _parameter(layer: Layer | ElementwiseLayer, kind: str) -> tuple[int, ...]:
    if isinstance(layer, ConvLayer):
        return layer.w_shape if kind == "weight" else (layer.cout,)
    if isinstance(layer, LinearLayer):
        return (layer.cout, layer.cin) if kind == "matrix" else (layer.cout,)
    return (prod(layer.weight or layer.shape[-1:] if kind == "vector" else layer.shape[:1]),)


def _kind(shape: tuple[int, ...], layer: Layer | ElementwiseLayer) -> str:
    return "rows" if isinstance(layer, LinearLayer) or len(shape) == 2 else "map"
