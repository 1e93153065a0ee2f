"""The operations of a step going forward, from the graph of a network, and the values they need.

Gradients (``rules/gradients.py``) are noted with the same functions: casts, copies and views of
values, and operations by the rows of ``configs/operations.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from npusim.base.dtypes import FP32, INT8, INT32, DType
from npusim.base.records import replace
from npusim.networks.rules.choice import named_numbers, rule_of
from npusim.networks.rules.splits import in_turn, splits
from npusim.networks.rules.table import KindRule, OperationForm, chain_of, tables
from npusim.networks.rules.values import COPY, VIEW, Kinds, Operation, Training, Value
from npusim.workloads import ConvLayer, ElementwiseLayer, Layer, LinearLayer, Workload
from npusim.workloads.graph import Edge, Node, shape_in, shape_out


class Forward:
    """Notes the operations of a network's nodes going forward.

    ``step`` has them and their values; ``rules`` are the rows of nodes by their names, ``symbols``
    the values of each node by the symbols of its row. ``trained`` says of a value whether a
    gradient flows back to it; ``copies_of`` has the parameters of which values are copies.
    """

    def __init__(self, workload: Workload, kinds: Kinds, settings: Mapping[str, float]) -> None:
        nodes = tuple(_with_computed_matrix(node) for node in workload.nodes)
        self.workload = replace(workload, nodes=nodes)
        self.kinds = kinds
        self.settings = settings
        self.copies_of: dict[str, str] = {}
        self.step = Training(tuple(item.name for item in workload.inputs))
        self.rules: dict[str, KindRule] = {}
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

    def _parameter(self, name: str, shape: tuple[int, ...], kind: str, groups: int = 1) -> str:
        """The value of a parameter; another one, copied, where it is already of another kind."""
        value = self.step.values.get(name)
        parameter = self.workload.parameters.get(name)
        trained = parameter is None or parameter.trained
        if parameter is not None and prod(parameter.shape) != prod(shape):
            self.step.repeated.add(name)
        if value is None:
            names = self.step.parameters if trained else self.step.fixed
            names.append(name)
            self.trained[name] = trained
            return self.step.value(Value(name, shape, FP32, kind, groups))
        if (value.kind, value.groups, value.shape) == (kind, groups, shape):
            return name
        copy = f"{name}.{kind}" if groups == 1 else f"{name}.{kind}.{groups}"
        if copy not in self.step.values:
            self.step.value(Value(copy, shape, FP32, kind, groups))
            self.copy(name, copy, "forward")
            self.trained[copy] = trained
            self.copies_of[copy] = name
        return copy

    def copy(self, source: str, target: str, phase: str) -> None:
        """Note a copy of a value into another of as many elements."""
        self.step.copies.add(target)
        self.step.operations.append(
            Operation(f"{target}.copy", "copies", phase, None, COPY, (source,), (target,))
        )

    def view(self, name: str, shape: tuple[int, ...], kind: str, count: int, phase: str) -> str:
        """A value with other axes, or the value itself where it has these."""
        value = self.step.values[name]
        if (value.shape, value.kind, value.repeats) == (shape, kind, count):
            return name
        sizes = "x".join(map(str, shape))
        view = f"{name}@{count}x{sizes}" if count > 1 else f"{name}@{sizes}"
        if view not in self.step.values:
            self.step.value(value._replace(name=view, shape=shape, kind=kind, repeats=count))
            self.note_view(name, view, phase)
        return view

    def note_view(self, name: str, view: str, phase: str) -> None:
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
            return self.view(edge.value, shape, _kind(shape, node.layer), node.count, "forward")
        seen = edge.shape or (1,)
        if value.shape == seen or not _needs_axes(node):
            return edge.value
        return self.view(edge.value, seen, _kind(seen, node.layer), 1, "forward")

    def note_all(self) -> None:
        """Note the operations of all nodes, in order."""
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
                self.note(node, self.of_group(form, group, "y", "split"), "forward")
        self.step.results += [node.name for node in self.ends]

    @property
    def ends(self) -> list[Node]:
        """The nodes whose values no node reads: what the network computes."""
        read = {name for node in self.workload.nodes for name in node.inputs}
        return [node for node in self.workload.nodes if node.name not in read]

    def of_group(
        self, form: OperationForm, group: Sequence[Node], symbol: str, op: str
    ) -> OperationForm:
        """An operation of a node; of several slices, the ``op`` of all of them.

        It has what each calls ``symbol`` in its place, with a number.
        """
        if len(group) < 2:
            return form
        members = [self.symbols[member.name] for member in in_turn(group)]
        names = {f"{symbol}{i}": each[symbol] for i, each in enumerate(members) if symbol in each}
        self.symbols[group[0].name] |= names
        return form._replace(
            op=op,
            reads=tuple(names) if form.reads == (symbol,) else form.reads,
            writes=tuple(names) if form.writes == (symbol,) else form.writes,
        )

    def _named(self, node: Node, rule: KindRule) -> dict[str, str]:
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
            value = Value(f"{node.name}.{symbol}", shape, dtype, kind, repeats=node.count)
            names[symbol] = self.step.value(value)
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
            self.note_view(edge.value, value.name, "forward")
        else:
            self.copy(edge.value, value.name, "forward")
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

    def note(
        self,
        node: Node,
        form: OperationForm,
        phase: str,
        count: int | None = None,
        layer: ElementwiseLayer | None = None,
    ) -> None:
        """One operation of a node, with casts of what it computes in another type.

        ``layer`` has the sizes of an operation on a part of what the node reads or makes.
        """
        names = self.symbols[node.name]
        dtype = self._type(form)
        row = tables().chains.get(form.op)
        operands = {
            symbol: self.cast(names[symbol], dtype, phase) for symbol in _symbols_read(form, names)
        }
        results = {}
        casts = []
        for symbol in form.writes:
            value = self.step.values[names[symbol]]
            results[symbol] = value.name
            wide = FP32 if row and symbol in row.summed else dtype
            if value.kind in ("map", "rows") and wide is not None and value.dtype is not wide:
                computed = value._replace(name=f"{value.name}.{wide}", dtype=wide)
                results[symbol] = self.step.value(computed)
                casts.append((computed.name, value.name))
                self.copies[value.name, wide] = computed.name
                self.step.copies.add(computed.name)
        repeats = node.count if count is None else count
        name = f"{node.name}.{form.name}"
        self._operation(name, form, phase, layer or node.layer, operands, results, repeats)
        for source, target in casts:
            chain = chain_of("cast", {"x": source, "y": target}, target)
            self.step.operations.append(
                Operation(target, "cast", phase, chain=chain, count=repeats)
            )

    def _operation(
        self,
        name: str,
        form: OperationForm,
        phase: str,
        layer: Layer | ElementwiseLayer | None,
        operands: Mapping[str, str],
        results: Mapping[str, str],
        count: int,
    ) -> None:
        """Note an operation: a chain where there is a row of it, else a kernel of its own."""
        if form.op == "add" or form.op in tables().chains:
            like = self.step.values[next(iter(operands.values()))]
            elements = like.shape[0] * prod(like.shape[2:])
            settings = {**self.settings, **named_numbers(layer)}
            chain = chain_of(form.op, {**operands, **results}, name, elements, settings, like.dtype)
            operation = Operation(name, form.kind, phase, layer, chain=chain, count=count)
        else:
            operation = Operation(
                name, form.kind, phase, layer, form.op,
                tuple(operands.values()), tuple(results.values()), count=count,
            )  # fmt: skip
        self.step.operations.append(operation)

    def _type(self, form: OperationForm) -> DType | None:
        """The type that an operation computes maps in; None for any."""
        if form.kind.startswith(("convolution", "linear")):
            return self.kinds.cube
        return self.kinds.norm if form.kind.startswith("normalisation") else self.kinds.maps

    def cast(self, name: str, kind: DType | None, phase: str) -> str:
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
            self.step.copies.add(target)
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


def _with_computed_matrix(node: Node) -> Node:
    """The node; a linear layer whose matrix the network computes as one product of two matrices.

    The matrix lies as it was computed, (cin, cout) or exchanged, while own weights lie (cout, cin).
    """
    layer = node.layer
    if not isinstance(layer, LinearLayer) or layer.products or len(node.reads) < 2:
        return node
    return replace(node, layer=replace(layer, n=1, rows=layer.all_rows, products=1))


def _symbols_read(form: OperationForm, names: Mapping[str, str]) -> list[str]:
    """The symbols of an operation's operands that a node has; "x*" are all of x1, x2, ..."""
    numbered = [symbol for symbol in names if symbol[0] == "x" and symbol[1:].isdigit()]
    symbols: list[str] = []
    for word in form.reads:
        symbols += numbered if word == "x*" else [word]
    return [symbol for symbol in symbols if symbol in names]


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
    """The shape of a parameter of a layer, by its kind of value."""
    if isinstance(layer, ConvLayer):
        return layer.w_shape if kind == "weight" else (layer.cout,)
    if isinstance(layer, LinearLayer):
        return (layer.cout, layer.cin) if kind == "matrix" else (layer.cout,)
    return (prod(layer.weight or layer.shape[-1:] if kind == "vector" else layer.shape[1:2]),)


def _kind(shape: tuple[int, ...], layer: Layer | ElementwiseLayer) -> str:
    """The kind of a value in this shape that a layer makes or reads."""
    return "rows" if isinstance(layer, LinearLayer) or len(shape) == 2 else "map"
