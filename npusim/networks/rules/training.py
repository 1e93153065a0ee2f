"""The operations of a training step on values, from the graph of a network.

A *value* is a tensor: a map, a parameter, numbers for channels, or bits. An *operation* is what one
kernel computes: a product or another kernel of its own (its ``core``), and a chain of element-wise
steps on what that makes, or on maps alone. Gradients follow from a table of rules; where a value is
read more than once, its gradients are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

from msgspec import Struct, field

from npusim.base.dtypes import FP16, FP32, INT8, INT32, DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.networks.rules.choice import named_numbers, rule_of
from npusim.networks.rules.splits import in_turn, splits
from npusim.networks.rules.table import Chain, Form, Rule, Update, chain_of, tables
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer, Workload
from npusim.workloads.graph import Edge, Node, shape_in, shape_out

#: The parts of a step, in order.
PHASES = ("forward", "backward", "optimizer")


class Value(NamedTuple):
    """A tensor of a step, of a batch: ``shape`` is (n, channels, ...) of maps, plain of others.

    ``kind`` is "map", "rows" (of a linear layer), "weight" (of a convolution), "matrix" (of a
    linear layer), "vector" (a bias, or numbers for the elements of a row), "channels" (a number for
    each channel of whole blocks), "images" (one for each image and channel, in fp32), "bits" (one
    for each element of a map), "masks" (of bits, for each tap of a window) or "indices". A weight
    and what is made of it have the ``groups`` of its convolution, by which fractals are shared.
    What an operation that runs several times in a row makes is there so often: ``repeats``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: str = "map"
    groups: int = 1
    repeats: int = 1


class Operation(Struct, frozen=True):
    """The work of one kernel: its ``core``, and a ``chain`` of element-wise steps behind it.

    Without a core the chain is all of it. ``inputs`` and ``outputs`` are values of the core; with a
    chain these stay in memory only where they are ``stored``. ``kind`` is what reports call it. It
    runs ``count`` times in a row, each time on other numbers of these sizes.
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
    count: int = 1

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
    """The operations of a step in order, and their values.

    ``parameters`` are trained; ``fixed`` are frozen weights, those that no gradient reaches,
    buffers and constants, which are there before the step as parameters are. ``inputs`` are what
    it gets, ``scales`` the factors of normalisations, which begin with ones. ``views`` are values
    that lie where another lies, with other axes. ``repeated`` are parameters of which a kernel
    takes more numbers than they have, one number for all channels: their step is timed, not
    computed.
    """

    inputs: tuple[str, ...] = ()
    values: dict[str, Value] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    scales: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)

    def home(self, name: str) -> str:
        """The value that lies where this one does: itself, or what it is a view of."""
        while name in self.views:
            name = self.views[name]
        return name

    def value(self, value: Value) -> str:
        """Note a value; returns its name. A single number has one axis."""
        self.values[value.name] = value._replace(shape=value.shape or (1,))
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


#: The core of an operation that moves nothing: its result is its operand with other axes.
VIEW = "view"

#: The core of an operation that copies a value into another kind or type, element by element.
COPY = "copy"


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
    builder = _Builder(workload, kinds, settings or {})
    builder.forward()
    if passes != "forward":
        builder.backward()
    if passes == "training":
        builder.update(optimizers[optimizer])
    skipped = {"backward": "forward"}.get(passes)
    step = builder.step
    step.operations = [operation for operation in step.operations if operation.phase != skipped]
    return step


class _Builder:
    """Notes the operations of a network's nodes, forward and then backward."""

    def __init__(self, workload: Workload, kinds: Kinds, settings: Mapping[str, float]) -> None:
        nodes = tuple(_with_computed_matrix(node) for node in workload.nodes)
        self.workload = replace(workload, nodes=nodes)
        self.kinds = kinds
        self.settings = settings
        self.copies_of: dict[str, str] = {}
        self.step = Training(tuple(item.name for item in workload.inputs))
        self.rules: dict[str, Rule] = {}
        self.symbols: dict[str, dict[str, str]] = {}
        self.gradients: dict[str, list[str]] = {}
        self.copies: dict[tuple[str, DType], str] = {}
        self.splits = splits(workload.nodes)
        self.trained = {item.name: False for item in workload.inputs}
        self.trained |= {node.name: node.trained for node in workload.nodes}
        linear = {
            edge.value
            for node in workload.nodes
            if isinstance(node.layer, LinearLayer)
            for edge in node.reads
        }
        for name, shape, integers in workload.inputs:
            rows = len(shape) == 2 or name in linear
            kind = "indices" if integers else "rows" if rows else "map"
            self.step.value(Value(name, shape, INT32 if integers else FP32, kind))
        for node in workload.nodes:
            for edge in node.reads:
                parameter = workload.parameters.get(edge.value)
                if parameter is not None:
                    kind = "rows" if len(parameter.shape) < 3 else "map"
                    self._parameter(edge.value, parameter.shape, kind)

    # -- values ------------------------------------------------------------------------------

    def _parameter(self, name: str, shape: tuple[int, ...], kind: str, groups: int = 1) -> str:
        """The value of a parameter; another one, copied, where it is already of another kind."""
        known = self.step.values.get(name)
        parameter = self.workload.parameters.get(name)
        trained = parameter is None or parameter.trained
        if parameter is not None and prod(parameter.shape) != prod(shape):
            self.step.repeated.add(name)
        if known is None:
            (self.step.parameters if trained else self.step.fixed).append(name)
            self.trained[name] = trained
            return self.step.value(Value(name, shape, FP32, kind, groups))
        if (known.kind, known.groups, known.shape) == (kind, groups, shape):
            return name
        copy = f"{name}.{kind}" if groups == 1 else f"{name}.{kind}.{groups}"
        if copy not in self.step.values:
            self.step.value(Value(copy, shape, FP32, kind, groups))
            self._copy(name, copy, "forward")
            self.trained[copy] = trained
            self.copies_of[copy] = name
        return copy

    def _copy(self, source: str, target: str, phase: str) -> None:
        """Note a copy of a value into another of as many elements."""
        self.step.operations.append(
            Operation(f"{target}.copy", "copies", phase, None, COPY, (source,), (target,))
        )

    def _view(self, name: str, shape: tuple[int, ...], kind: str, count: int, phase: str) -> str:
        """A value with other axes, or the value itself where it has these."""
        value = self.step.values[name]
        if (value.shape, value.kind, value.repeats) == (shape, kind, count):
            return name
        sizes = "x".join(map(str, shape))
        view = f"{name}@{count}x{sizes}" if count > 1 else f"{name}@{sizes}"
        if view not in self.step.values:
            self.step.value(value._replace(name=view, shape=shape, kind=kind, repeats=count))
            self._note_view(name, view, phase)
        return view

    def _note_view(self, name: str, view: str, phase: str) -> None:
        """Note that a value lies where another lies."""
        self.step.views[view] = name
        self.step.operations.append(Operation(view, "views", phase, None, VIEW, (name,), (view,)))

    def _operand(self, node: Node, edge: Edge, shape: tuple[int, ...]) -> str:
        """The value that a node reads along an edge, with the axes that its kernel needs.

        Products go through memory row by row and take any axes; a chain of maps may lie in blocks.
        """
        value = self.step.values[edge.value]
        if value.kind == "indices":
            return edge.value
        if node.count > 1 or value.repeats > 1:
            return self._view(edge.value, shape, _kind(shape, node.layer), node.count, "forward")
        seen = edge.shape or (1,)
        if value.shape == seen or not _needs_axes(node):
            return edge.value
        return self._view(edge.value, seen, _kind(seen, node.layer), 1, "forward")

    # -- forward -----------------------------------------------------------------------------

    def forward(self) -> None:
        for node in self.workload.nodes:
            shapes = [edge.shape or (1,) for edge in node.reads]
            rule = rule_of(node, shapes)
            kinds = [self.step.values[edge.value].kind for edge in node.reads]
            if "indices" in kinds:  # no kernel computes with integers
                rule = tables().rules["traffic"]
            self.rules[node.name] = rule
            group = self.splits.get(node.name, (node,))
            if node is not group[0]:
                continue
            self.symbols |= {member.name: self._named(member, rule) for member in group}
            for form in rule.forward:
                self._note(node, self._whole(form, group, "y", "split"), "forward")

    def _whole(self, form: Form, group: Sequence[Node], symbol: str, op: str) -> Form:
        """An operation of a node; of several slices, the ``op`` of all of them.

        It has what each calls ``symbol`` in its place, with a number.
        """
        if len(group) < 2:
            return form
        members = [self.symbols[member.name] for member in in_turn(group)]
        names = {f"{symbol}{i}": each[symbol] for i, each in enumerate(members) if symbol in each}
        self.symbols[group[0].name] |= names
        reads, writes = (
            tuple(names) if words == (symbol,) else words for words in (form.reads, form.writes)
        )
        return form._replace(op=op, reads=reads, writes=writes)

    def _named(self, node: Node, rule: Rule) -> dict[str, str]:
        """Values by the symbols of the rule: inputs, the output, parameters, what is kept."""
        layer = node.layer
        names = self._operands(node)
        out = shape_out(layer)
        value = Value(node.name, out, self.kinds.maps, _kind(out, layer), repeats=node.count)
        names["y"] = self.step.value(value)
        for symbol, kind in rule.parameters.items():
            if symbol in names or (symbol == "b" and not getattr(layer, "bias", False)):
                continue
            names[symbol] = self._own_parameter(node, symbol, kind)
        for symbol, text in rule.kept.items():
            kind, _, of = text.partition(" of ")
            like = self.step.values[names[of or "y"]]
            shape = {"channels": like.shape[1:2], "images": like.shape[:2]}.get(kind, like.shape)
            if kind == "masks":
                window = getattr(layer, "kernel", ()) or self.step.values[names["x"]].shape[2:]
                shape = (prod(window), *shape)
            types = {"channels": FP32, "images": FP32, "bits": INT8, "masks": INT8}
            dtype = types.get(kind, like.dtype)
            kept = Value(f"{node.name}.{symbol}", shape, dtype, kind, repeats=node.count)
            names[symbol] = self.step.value(kept)
        return names

    def _operands(self, node: Node) -> dict[str, str]:
        """Values that a node reads, by symbol: x1, x2, ...; x the first; w computed weights."""
        layer = node.layer
        names = {}
        shapes = _operand_shapes(node)
        weighted = isinstance(layer, ConvLayer)
        for number, (edge, shape) in enumerate(zip(node.reads, shapes, strict=True), 1):
            if weighted and number == 2:
                names["w"] = self._computed_weight(node, edge)
            else:
                names[f"x{number}"] = self._operand(node, edge, shape)
        names["x"] = names["x1"]
        return names

    def _computed_weight(self, node: Node, edge: Edge) -> str:
        """The weights of a layer that the network computes, in the type that the cube takes."""
        layer = node.layer
        assert isinstance(layer, ConvLayer)
        computed = self.step.values[edge.value]
        shape = _parameter(layer, "weight")
        value = Value(f"{node.name}.w", shape, self.kinds.cube, "weight", layer.groups)
        self.step.value(value)
        if computed.dtype is value.dtype:
            self._note_view(edge.value, value.name, "forward")
        else:
            self._copy(edge.value, value.name, "forward")
        return value.name

    def _own_parameter(self, node: Node, symbol: str, kind: str) -> str:
        """The value of a parameter that a node has, by the symbol of its rule.

        Where the network has none there (a normalisation without scale and shift) it is a constant.
        """
        layer = node.layer
        groups = getattr(layer, "groups", 1) if kind == "weight" else 1
        shape = _parameter(layer, kind)
        named = f"{node.name}.{symbol}"
        if node.parameters is None:
            name = self._parameter(named, shape, kind, groups)
        elif symbol in node.parameters:
            name = self._parameter(node.parameters[symbol], shape, kind, groups)
        else:
            self.step.fixed.append(named)
            self.trained[named] = False
            name = self.step.value(Value(named, shape, FP32, kind, groups))
        if symbol == "gamma":
            self.step.scales.add(name)
        return name

    def _note(
        self,
        node: Node,
        form: Form,
        phase: str,
        count: int | None = None,
        layer: ElementwiseLayer | None = None,
    ) -> None:
        """One operation of a node, with casts of what it computes in another type.

        ``layer`` has the sizes of an operation on a part of what the node reads or makes.
        """
        names = self.symbols[node.name]
        many = [s for s in names if s[0] == "x" and s[1:].isdigit()]
        reads = [s for word in form.reads for s in (many if word == "x*" else [word])]
        reads = [s for s in reads if s in names]
        kind = self._type(form)
        row = tables().chains.get(form.op)
        given = {s: self._cast(names[s], kind, phase) for s in reads}
        made = {}
        casts = []
        for s in form.writes:
            value = self.step.values[names[s]]
            made[s] = names[s]
            wide = FP32 if row and s in row.summed else kind
            if value.kind in ("map", "rows") and wide is not None and value.dtype is not wide:
                made[s] = self.step.value(value._replace(name=f"{value.name}.{wide}", dtype=wide))
                casts.append((made[s], names[s]))
                self.copies[value.name, wide] = made[s]
        repeats = node.count if count is None else count
        name = f"{node.name}.{form.name}"
        self._operation(name, form, phase, layer or node.layer, given, made, repeats)
        for source, target in casts:
            chain = chain_of("cast", {"x": source, "y": target}, target)
            self.step.operations.append(
                Operation(target, "cast", phase, chain=chain, count=repeats)
            )

    def _operation(
        self,
        name: str,
        form: Form,
        phase: str,
        layer: Layer | ElementwiseLayer | None,
        given: Mapping[str, str],
        made: Mapping[str, str],
        count: int,
    ) -> None:
        """Note an operation: a chain where there is a row of it, else a kernel of its own."""
        if form.op == "add" or form.op in tables().chains:
            like = self.step.values[next(iter(given.values()))]
            elements = like.shape[0] * prod(like.shape[2:])
            settings = {**self.settings, **named_numbers(layer)}
            chain = chain_of(form.op, {**given, **made}, name, elements, settings, like.dtype)
            operation = Operation(name, form.kind, phase, layer, chain=chain, count=count)
        else:
            operation = Operation(
                name, form.kind, phase, layer, form.op,
                tuple(given.values()), tuple(made.values()), count=count,
            )  # fmt: skip
        self.step.operations.append(operation)

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
            or value.kind in ("vector", "channels", "images", "bits", "masks", "indices")
        ):
            return name
        if (name, kind) not in self.copies:
            target = self.step.value(value._replace(name=f"{name}.{kind}", dtype=kind))
            chain = chain_of("cast", {"x": name, "y": target}, target)
            weights = self.step.home(name) in (*self.step.parameters, *self.step.fixed)
            self.step.operations.append(
                Operation(
                    target,
                    "cast of weights" if weights else "cast",
                    phase,
                    chain=chain,
                    count=value.repeats,
                )
            )
            self.copies[name, kind] = target
        return self.copies[name, kind]

    # -- backward ----------------------------------------------------------------------------

    def backward(self) -> None:
        read = {name for node in self.workload.nodes for name in node.inputs}
        for node in self.workload.nodes:
            if node.name not in read and node.trained:
                self._loss(node.name)
        for node in reversed(self.workload.nodes):
            dy = self._gradient(node.name) if node.trained else None
            if dy is not None:
                self.symbols[node.name]["dy"] = dy
            group = self.splits.get(node.name, (node,))
            if node is not group[0]:
                continue  # it is read with the first of them
            flows = [member for member in group if "dy" in self.symbols[member.name]]
            if len(flows) == len(group):
                self._backward_of(node, group)
            else:
                for member in flows:  # the others' parts have no gradient
                    self._backward_of(member, (member,))
        for name in self.step.parameters:
            self._parameter_gradient(name)
        self._fix_what_has_no_gradient()

    def _fix_what_has_no_gradient(self) -> None:
        """Move parameters that no gradient reaches, as behind ``detach``, to those that stay."""
        step = self.step
        fixed = [name for name in step.parameters if f"{name}.gradient" not in step.values]
        step.parameters = [name for name in step.parameters if name not in fixed]
        step.fixed += fixed

    def _backward_of(self, node: Node, group: Sequence[Node]) -> None:
        """The gradients of what a node reads and has."""
        rule = self.rules[node.name]
        names = self.symbols[node.name]
        edges = {f"x{number}": edge for number, edge in enumerate(node.reads, 1)}
        wanted = [
            symbol
            for symbol, edge in edges.items()
            if symbol in names and edge.gradient and self.trained[edge.value]
        ]
        for symbol in wanted:
            if {"x*", symbol} & {*rule.passes_on}:
                self._add_gradient(edges[symbol].value, names["dy"])
        for form in rule.backward:
            if form.op == "split" and len(wanted) < len(edges):
                self._backward_of_parts(node, form, wanted)
            else:
                self._backward(node, self._whole(form, group, "dy", "concat"), wanted)

    def _backward_of_parts(self, node: Node, form: Form, wanted: Sequence[str]) -> None:
        """The gradients of some values of a concatenation, each cut out of that of the whole."""
        layer = node.layer
        assert isinstance(layer, ElementwiseLayer)
        shapes = [edge.shape or (1,) for edge in node.reads]
        axis = next(a for a, size in enumerate(layer.out) if shapes[0][a] < size)
        begin = 0
        for number, shape in enumerate(shapes, 1):
            symbol = f"x{number}"
            after = layer.out[axis] - begin - shape[axis]
            if symbol in wanted:
                sides = [(0, 0)] * len(shape)
                sides[axis] = (-begin, -after)
                part = ElementwiseLayer(
                    kind="slice", shape=layer.out, out=shape, padding=tuple(sides)
                )
                self._value_gradient(node, symbol, f"d{symbol}")
                cut = form._replace(name=f"{form.name}.{number}", op="crop", writes=(f"d{symbol}",))
                self._note(node, cut, "backward", layer=part)
                self._flow(node, f"d{symbol}")
            begin += shape[axis]

    def _loss(self, end: str) -> None:
        """The gradient of a value that ends the network: of softmax with cross-entropy, or given.

        Of several ends, such as an auxiliary classifier, those of as many classes share labels.
        """
        value = self.step.values[end]
        last = self.workload.nodes[-1].name
        gradient = self.step.value(value._replace(name=f"{end}.gradient"))
        self.gradients[end] = [gradient]
        if value.kind == "rows":
            own = f"{end}." * (end != last)
            shared = value.shape == self.step.values[last].shape
            labels = Value(f"{own * (not shared)}labels", value.shape, value.dtype, "rows")
            loss = self.step.value(Value(f"{own}loss", value.shape[:1], FP32, "rows"))
            reads = (end, self.step.value(labels))
            made = (loss, gradient)
            self.step.operations.append(
                Operation(loss, "loss", "backward", None, "softmax_loss", reads, made)
            )

    def _backward(self, node: Node, form: Form, wanted: Sequence[str]) -> None:
        """An operation of the gradients, where somebody wants one of its results."""
        operands = self._operand_gradients(node, form, wanted)
        weights = self._weight_gradients(node, form)
        kept = [word for word in form.writes if word in self.rules[node.name].kept]
        sums = self._sums_behind(node, form, weights) if wanted else []
        wanted_words = (*operands, *weights, *sums, *kept)
        if not wanted_words:
            return
        form = form._replace(writes=wanted_words)
        if weights and node.count > 1:
            self._repeated_gradient(node, form, weights)
        else:
            self._note(node, form, "backward")
        for word in operands:
            self._flow(node, word)
        for word in weights:
            self._flow_to_weight(node, word)

    def _operand_gradients(self, node: Node, form: Form, wanted: Sequence[str]) -> list[str]:
        """The gradients of operands that an operation computes, named, by their symbols."""
        keys = []
        for word in form.writes:
            if word == "dx*":
                symbols = list(wanted)
            elif word in ("dx", "dx1", "dx2"):
                symbols = ["x1" if word == "dx" else word[1:]]
            else:
                continue
            for symbol in symbols:
                if symbol in wanted:
                    key = "dx" if word == "dx" else f"d{symbol}"
                    self._value_gradient(node, symbol, key)
                    keys.append(key)
        return keys

    def _weight_gradients(self, node: Node, form: Form) -> list[str]:
        """The gradients of parameters that an operation computes, named, by their symbols."""
        names = self.symbols[node.name]
        operands = ("dx*", "dx", "dx1", "dx2")
        return [
            word
            for word in form.writes
            if word not in operands
            and word not in self.rules[node.name].kept
            and word[1:] in names
            and self._parameter_part(node, word[1:], word)
        ]

    def _sums_behind(self, node: Node, form: Form, weights: Sequence[str]) -> list[str]:
        """Name sums that the gradient of the operand needs though no parameter has them as its own.

        A normalisation has them whether its scale and shift are trained, frozen or absent.
        """
        names = self.symbols[node.name]
        read = {word for each in self.rules[node.name].backward for word in each.reads}
        parameters = {f"d{symbol}": symbol for symbol in self.rules[node.name].parameters}
        words = [
            word
            for word in form.writes
            if word in read and word in parameters and word not in weights
        ]
        for word in words:
            like = self.step.values[names[parameters[word]]]
            names[word] = self.step.value(like._replace(name=f"{node.name}.{word}", dtype=FP32))
        return words

    def _value_gradient(self, node: Node, symbol: str, key: str) -> None:
        """Name the gradient of an operand."""
        names = self.symbols[node.name]
        source = self.step.values[names[symbol]]
        name = f"{source.name}.gradient.{node.name}"
        while name in self.step.values:  # both operands are one value
            name += ".2"
        dtype = self.kinds.maps if source.dtype is FP32 else source.dtype
        names[key] = self.step.value(source._replace(name=name, dtype=dtype))

    def _flow(self, node: Node, key: str) -> None:
        """Add the gradient of an operand to those of the value that it is."""
        number = 1 if key == "dx" else int(key[2:])
        self._add_gradient(node.reads[number - 1].value, self.symbols[node.name][key])

    def _parameter_part(self, node: Node, symbol: str, key: str) -> bool:
        """Name the gradient of a parameter; False where it has none."""
        names = self.symbols[node.name]
        source = self.step.values[names[symbol]]
        computed = symbol == "w" and len(node.reads) > 1
        if computed:
            edge = node.reads[1]
            if not (edge.gradient and self.trained[edge.value]):
                return False
        elif not self.trained[source.name]:
            return False
        shared = computed or self.copies_of.get(source.name, source.name) in self._shared
        name = f"{source.name}.gradient"
        if shared and not computed:
            name = f"{name}.{node.name}"
        while name in self.step.values:
            name += ".2"
        names[key] = self.step.value(source._replace(name=name, dtype=FP32))
        return True

    def _flow_to_weight(self, node: Node, key: str) -> None:
        """Add the gradient of a layer's weights to those of the parameter, or of their value."""
        names = self.symbols[node.name]
        source = self.step.values[names[key[1:]]]
        gradient = names[key]
        if key == "dw" and len(node.reads) > 1:
            like = self.step.values[node.reads[1].value]
            dtype = self.kinds.maps if like.dtype is FP32 else like.dtype
            flat = like._replace(name=f"{gradient}.copy", dtype=dtype)
            self._copy(gradient, self.step.value(flat), "backward")
            self._add_gradient(like.name, flat.name)
        else:
            parameter = self.copies_of.get(source.name, source.name)
            self.gradients.setdefault(parameter, []).append(gradient)

    def _repeated_gradient(self, node: Node, form: Form, weights: Sequence[str]) -> None:
        """The gradients of parameters that an operation uses again and again: a sum of them all."""
        names = self.symbols[node.name]
        totals = {word: names[word] for word in weights}
        for word, total in totals.items():
            value = self.step.values[total]
            names[word] = self.step.value(value._replace(name=f"{total}.first"))
        self._note(node, form, "backward", 1)
        firsts = {word: names[word] for word in weights}
        for word, total in totals.items():
            value = self.step.values[total]
            names[word] = self.step.value(value._replace(name=f"{total}.next"))
        self._note(node, form, "backward", node.count - 1)
        for word, total in totals.items():
            given = {"x1": firsts[word], "x2": names[word]}
            chain = chain_of("add", {**given, "y": total}, total, maps=FP32)
            self.step.operations.append(
                Operation(total, "sum of gradients", "backward", chain=chain, count=node.count - 1)
            )
            names[word] = total

    @cached_property
    def _shared(self) -> set[str]:
        """Values of parameters that several nodes have."""
        used: Counter[str] = Counter()
        for node in self.workload.nodes:
            names = self.symbols[node.name]
            own = {names[s] for s in self.rules[node.name].parameters if s in names}
            used.update({self.copies_of.get(name, name) for name in own})
        used.update(name for node in self.workload.nodes for name in {*node.inputs})
        return {name for name, n in used.items() if n > 1}

    def _add_gradient(self, name: str, gradient: str) -> None:
        """Note a part of the gradient of a value, with the axes that the value has."""
        if not self.trained[name]:
            return
        value = self.step.values[name]
        viewed = self._view(gradient, value.shape, value.kind, value.repeats, "backward")
        self.gradients.setdefault(name, []).append(viewed)

    def _gradient(self, name: str) -> str | None:
        """The gradient of a value: that of its one reader, or the sum of all."""
        parts = self.gradients.get(name, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        like = self.step.values[parts[0]]
        return self._sum(name, parts, self.step.values[name].dtype, like.dtype)

    def _sum(self, name: str, parts: Sequence[str], dtype: DType, maps: DType) -> str:
        """The sum of the parts of a value's gradient."""
        value = self.step.values[name]
        total = self.step.value(value._replace(name=f"{name}.gradient", dtype=dtype))
        given = {f"x{i}": part for i, part in enumerate(parts, 1)}
        chain = chain_of("add", {**given, "y": total}, total, maps=maps)
        self.step.operations.append(
            Operation(total, "sum of gradients", "backward", chain=chain, count=value.repeats)
        )
        return total

    def _parameter_gradient(self, name: str) -> None:
        """The gradient of a parameter in fp32, as the optimizer takes it."""
        parts = list(self.gradients.get(name, []))
        gradient = f"{name}.gradient"
        if not parts or parts == [gradient]:
            return
        value = self.step.values[name]
        for at, part in enumerate(parts):
            source = self.step.values[part]
            if source.kind != value.kind or source.groups != value.groups:
                parts[at] = self.step.value(value._replace(name=f"{part}.copy"))
                self._copy(part, parts[at], "backward")
            elif source.dtype is not FP32 and len(parts) > 1:
                parts[at] = self._cast(part, FP32, "backward")
        if len(parts) > 1:
            self._sum(name, parts, FP32, FP32)
            return
        self.step.value(value._replace(name=gradient))
        if self.step.values[parts[0]].dtype is FP32:
            self._note_view(parts[0], gradient, "backward")
        else:
            chain = chain_of("cast", {"x": parts[0], "y": gradient}, gradient)
            self.step.operations.append(Operation(gradient, "cast", "backward", chain=chain))

    # -- optimizer ---------------------------------------------------------------------------

    def update(self, rules: Iterable[Update]) -> None:
        """The update of every parameter that has a gradient."""
        for name in self.step.parameters:
            value = self.step.values[name]
            gradient = f"{name}.gradient"
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


def _with_computed_matrix(node: Node) -> Node:
    """The node; a linear layer whose matrix the network computes as one product of two matrices.

    The matrix lies as it was computed, (cin, cout) or exchanged, while own weights lie (cout, cin).
    """
    layer = node.layer
    if not isinstance(layer, LinearLayer) or layer.products or len(node.reads) < 2:
        return node
    return replace(node, layer=replace(layer, n=1, rows=layer.all_rows, products=1))


def _operand_shapes(node: Node) -> list[tuple[int, ...]]:
    """The shapes in which a node reads its operands, each time that it runs."""
    if node.count == 1:
        return [edge.shape or (1,) for edge in node.reads]
    layer = node.layer
    first = shape_in(layer)
    if isinstance(layer, LinearLayer):
        right = (layer.stack * layer.cin, layer.cout)
        return [first, right][: len(node.reads)]
    return [first] * len(node.reads)


def _needs_axes(node: Node) -> bool:
    """Return whether a node's kernels know the axes of what they read."""
    return not isinstance(node.layer, LinearLayer)


def _parameter(layer: Layer | ElementwiseLayer, kind: str) -> tuple[int, ...]:
    if isinstance(layer, ConvLayer):
        return layer.w_shape if kind == "weight" else (layer.cout,)
    if isinstance(layer, LinearLayer):
        return (layer.cout, layer.cin) if kind == "matrix" else (layer.cout,)
    return (prod(layer.weight or layer.shape[-1:] if kind == "vector" else layer.shape[1:2]),)


def _kind(shape: tuple[int, ...], layer: Layer | ElementwiseLayer) -> str:
    return "rows" if isinstance(layer, LinearLayer) or len(shape) == 2 else "map"
