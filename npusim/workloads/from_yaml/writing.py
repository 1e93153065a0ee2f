"""A network as the text of a workload file, which is read back as the same network.

The text is read again before it is given away: what the notation cannot say is an error.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.base.yamltree import load_tree
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_yaml.chains import DETACH, own_weights
from npusim.workloads.from_yaml.files import workload as read
from npusim.workloads.from_yaml.shapes import (
    first_operand,
    is_product,
    one_round,
    operands,
    result,
    sizes_text,
)
from npusim.workloads.from_yaml.steps import Surrounded, step_text, surrounded, values_of
from npusim.workloads.from_yaml.values import input_line, parameter_line
from npusim.workloads.graph import INPUT, Input, Node, Sizes, Workload
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer
from npusim.workloads.repetition import for_batch


def workload_yaml(workload: Workload) -> str:
    """The text of a file that ``load_workload`` reads back as the same network of one image.

    Names of nodes are made anew, places in a user's model and numbers of constants are left out.
    Raises ``ArgumentError``, which names the node, for what the notation cannot say.
    """
    network = for_batch(workload, 1)
    text = _network_text(network)
    try:
        again = read(text, network.name)
    except ConfigError as error:
        raise ArgumentError(
            f"{network.name} cannot be written as a workload file: {error}"
        ) from error
    _compare(network, again)
    return text


def _network_text(network: Workload) -> str:
    uses = _Parameters(network)
    lines = [f"description: {_quoted(network.description)}", ""]
    named_inputs = _stated_inputs(network)
    if named_inputs:
        lines += ["inputs:", *(input_line(item) for item in named_inputs), ""]
    if uses.named:
        stated = [
            parameter_line(network.parameters[name]._replace(name=label))
            for name, label in uses.named.items()
        ]
        lines += ["parameters:", *stated, ""]
    lines.append("layers:" if network.layers else "layers: {}")
    for i, layer in enumerate(network.layers):
        extra = uses.keys.get(layer.name, ()) if network.nodes else _frozen(layer)
        fields = [*_fields(layer, graph=bool(network.nodes), first=i == 0), *extra]
        lines += _entry(f"{_quoted(layer.name)}:", fields)
    if network.nodes:
        lines += ["", "graph:", *_Chains(network, uses).lines()]
    return "\n".join(lines) + "\n"


def _compare(network: Workload, again: Workload) -> None:
    """Raise ``ArgumentError`` where a network that was read again is another one."""
    if len(network.nodes) != len(again.nodes):
        raise ArgumentError(
            f"{network.name} cannot be written as a workload file: of {len(network.nodes):,} nodes "
            f"{len(again.nodes):,} are left"
        )
    names: dict[str, str] = {}
    for node, other in zip(network.nodes, again.nodes, strict=True):
        for name, label in zip(node.inputs, other.inputs, strict=False):
            names.setdefault(name, label)
        expected = _without_names(node, names)
        if expected != _without_names(other, {}):
            raise ArgumentError(
                f"{network.name}: node {node.name}, {_described(node)}, cannot be written in the "
                "notation of workload files; use the model itself, or an ONNX file of it"
            )
        names[node.name] = other.name


def _described(node: Node) -> str:
    """The text of a node."""
    kind = node.layer.kind if isinstance(node.layer, ElementwiseLayer) else "a layer"
    reads = ", ".join(f"{edge.value} {list(edge.shape)}" for edge in node.reads)
    return f"{kind} of {reads}"


def _without_names(node: Node, names: Mapping[str, str]) -> tuple[object, ...]:
    """The text of a node and what it reads, by the ``names`` of values in another network."""
    layer = node.layer
    alike = layer if isinstance(layer, ElementwiseLayer) else replace(layer, name="")
    reads = [edge._replace(value=names.get(edge.value, edge.value)) for edge in node.reads]
    return alike, tuple(reads), node.count, node.trained


# -- layers ------------------------------------------------------------------------------------


def _entry(head: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of one layer, its name before its keys."""
    texts = [f"{key}: {value}" for key, value in pairs]
    parts = [f"{text}," for text in texts[:-1]] + [f"{texts[-1]}}}"]
    return wrapped([f"{head} {{{parts[0]}", *parts[1:]], "  ", "    ")


def _fields(layer: Layer, *, graph: bool, first: bool) -> Iterator[tuple[str, str]]:
    """The keys of a layer that are not what a file means without them."""
    yield "cin", str(layer.cin)
    yield "cout", str(layer.cout)
    if isinstance(layer, LinearLayer):
        yield "rows", str(layer.rows)
        if layer.products:
            yield "products", str(layer.products)
        for key in ("left_transposed", "right_transposed"):
            if getattr(layer, key):
                yield key, "yes"
    else:
        yield from _sizes(layer)
    if layer.n > 1:
        yield "images", str(layer.n)
    if layer.bias:
        yield "bias", "yes"
    if graph:
        return
    if layer.count > 1:
        yield "count", str(layer.count)
    if layer.input_gradient == first:
        yield "input_gradient", "yes" if layer.input_gradient else "no"


def _frozen(layer: Layer) -> tuple[tuple[str, str], ...]:
    """The key of a layer without a graph whose parameters are not trained."""
    bias = layer.bias_gradient if layer.bias else layer.weight_gradient
    if layer.weight_gradient != bias:
        raise ArgumentError(
            f"layer {layer.name} trains its weight or its bias alone; a workload file says that "
            "in a graph only"
        )
    return () if layer.weight_gradient else (("trained", "no"),)


def _sizes(layer: ConvLayer) -> Iterator[tuple[str, str]]:
    """The sizes of a convolution, one number where all axes have the same."""

    def per_dim(values: Iterable[object]) -> str:
        texts = [str(list(v) if isinstance(v, tuple) else v) for v in values]
        return texts[0] if len(set(texts)) == 1 and texts[0][0] != "[" else f"[{', '.join(texts)}]"

    yield "spatial", str(list(layer.spatial))
    yield "kernel", per_dim(layer.kernel)
    for key in ("stride", "dilation"):
        if set(getattr(layer, key)) != {1}:
            yield key, per_dim(getattr(layer, key))
    if any(map(any, layer.padding)):
        yield "padding", per_dim(a if a == b else (a, b) for a, b in layer.padding)
    if layer.groups > 1:
        yield "groups", str(layer.groups)
    if layer.transposed:
        yield "transposed", "yes"
        if any(layer.extra):
            yield "output_padding", per_dim(layer.extra)


def _quoted(text: str) -> str:
    """A scalar that YAML reads as this text."""
    plain = re.fullmatch(r"[A-Za-z][\w. ,()-]*", text) and text.lower() not in ("yes", "no", "null")
    return text if plain else "'" + text.replace("'", "''") + "'"


#: Stands for a space at which no line ends.
_GLUE = "\0"


def wrapped(parts: Iterable[str], first: str, others: str) -> list[str]:
    """Lines of at most 100 characters that end between ``parts``, with their indents."""
    text = " ".join(part.replace(" ", _GLUE) for part in parts)
    wrapper = textwrap.TextWrapper(100, initial_indent=first, subsequent_indent=others)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line.replace(_GLUE, " ") for line in wrapper.wrap(text)]


# -- parameters and inputs ---------------------------------------------------------------------


@cache
def _symbols(kind: str, *, weights: bool) -> frozenset[str]:
    """The symbols of the parameters that layers of an element-wise kind have.

    A scale or a shift has them only if its numbers are ``weights``.
    """
    tables = load_tree(configs() / "operations.yaml").mapping()
    symbols: set[str] = set()
    for name, row in (*tables["kinds"].mapping().items(), *tables["layers"].mapping().items()):
        if name == kind or (weights and name.startswith(f"{kind} by weights of ")):
            fields = row.mapping()
            symbols.update(fields["parameters"].mapping() if "parameters" in fields else ())
    return frozenset(symbols)


class _Parameters:
    """Which parameters chains must name, and what layers say of theirs.

    ``named`` maps a parameter that chains name to what it is called in the file. ``keys`` are the
    keys of a layer that say how its own ones are; ``told`` are the parameters that a step states.
    """

    def __init__(self, network: Workload) -> None:
        self.network = network
        self.uses = Counter(
            name for node in network.nodes for name in (node.parameters or {}).values()
        )
        self.read = {edge.value for node in network.nodes for edge in node.reads}
        self.named: dict[str, str] = {}
        self.keys: dict[str, tuple[tuple[str, str], ...]] = {}
        self.told: dict[str, Mapping[str, str]] = {}
        for name in network.parameters:
            if name in self.read:
                self._label(name)
        of_layers: dict[str, list[Node]] = {layer.name: [] for layer in network.layers}
        for node in network.nodes:
            if isinstance(node.layer, ElementwiseLayer):
                self._of_elementwise(node)
            else:
                of_layers[node.layer.name].append(node)
        for name, nodes in of_layers.items():
            self._of_layer(name, nodes)

    def _label(self, name: str) -> str:
        """The name of a parameter in the file."""
        if name not in self.named:
            word = re.sub(r"[^\w.-]", "_", name)
            if not re.match(r"[^\W\d]", word) or re.fullmatch(r"v\d+", word):
                word = f"p_{word}"
            inputs = {item.name for item in self.network.inputs} | {INPUT}
            label = word
            number = 1
            while label in inputs or label in self.named.values():
                number += 1
                label = f"{word}_{number}"
            self.named[name] = label
        return self.named[name]

    def _name_all(self, node: Node) -> None:
        """Let the step of a node state all of its parameters."""
        pairs = (node.parameters or {}).items()
        self.told[node.name] = {symbol: self._label(name) for symbol, name in pairs}

    def _alone(self, names: Iterable[str], uses: int) -> bool:
        """Return whether so many nodes and no others have these parameters, which no edge reads."""
        return all(self.uses[name] == uses and name not in self.read for name in names)

    def _of_elementwise(self, node: Node) -> None:
        layer = node.layer
        parameters = node.parameters
        assert isinstance(layer, ElementwiseLayer)
        if parameters is None or (not parameters and not layer.has_parameters):
            return
        trained = all(self.network.parameters[name].trained for name in parameters.values())
        symbols = _symbols(layer.kind, weights=bool(layer.weight))
        usual = layer.has_parameters and set(parameters) == symbols
        if not (usual and trained and self._alone(parameters.values(), 1)):
            self._name_all(node)

    def _of_layer(self, name: str, nodes: Sequence[Node]) -> None:
        """Say of a layer what holds for all its uses, or let each state its parameters."""
        stated = [node for node in nodes if node.parameters is not None]
        if not stated or all(is_product(node.layer) for node in nodes):
            return
        sets = {tuple(sorted((node.parameters or {}).items())) for node in stated}
        names = {parameter for pairs in sets for _, parameter in pairs}
        trained = {self.network.parameters[parameter].trained for parameter in names}
        usual = len(trained) <= 1 and all(self._is_usual(node) for node in stated)
        frozen = (("trained", "no"),) if trained == {False} else ()
        all_stated = len(stated) == len(nodes)
        shared = len(sets) == 1 and len(nodes) > 1 and bool(names)
        if usual and all_stated and shared and self._alone(names, len(nodes)):
            self.keys[name] = (("shared", "yes"), *frozen)
        elif usual and self._alone(names, 1) and (not frozen or all_stated):
            self.keys[name] = frozen
        else:
            for node in stated:
                self._name_all(node)

    def _is_usual(self, node: Node) -> bool:
        """Return whether a node that multiplies has just the parameters that its layer has."""
        layer = node.layer
        assert not isinstance(layer, ElementwiseLayer)
        shapes: dict[str, Sizes] = {}
        if len(node.reads) < 2:
            shapes["w"] = own_weights(layer)
        if layer.bias:
            shapes["b"] = (layer.cout,)
        symbols = {
            symbol: self.network.parameters[name].shape
            for symbol, name in (node.parameters or {}).items()
        }
        return symbols == shapes


def _stated_inputs(network: Workload) -> tuple[Input, ...]:
    """The inputs that a file must state; none where the first layer says it all."""
    if not network.nodes:
        return ()
    first = next((node for node in network.nodes if INPUT in node.inputs), None)
    item, *others = network.inputs
    if others or item.integers or first is None:
        return network.inputs
    layer = first.layer
    edge = first.reads[0]
    if isinstance(layer, ElementwiseLayer) or edge.value != INPUT:
        return network.inputs
    same = item.shape == edge.shape == first_operand(layer)
    return () if same and first.count == 1 else network.inputs


# -- chains ------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """A value in a chain: what it is called there, and the shape in which it is seen."""

    label: str
    shape: Sizes


class _Chains:
    """The chains of a network; one goes on where the next node alone reads its result."""

    def __init__(self, network: Workload, parameters: _Parameters) -> None:
        self.network = network
        self.parameters = parameters
        self.uses = Counter(name for node in network.nodes for name in node.inputs)
        self.values = {item.name: _Seen(item.name, item.shape) for item in network.inputs}
        for name, label in parameters.named.items():
            self.values[name] = _Seen(label, network.parameters[name].shape)

    def lines(self) -> list[str]:
        """The lines of the ``graph``."""
        texts: list[str] = []
        chain: list[str] = []
        last: Node | None = None
        for node in self.network.nodes:
            alone = last is not None and node.inputs == (last.name,) and self.uses[last.name] == 1
            if not alone:
                texts += self._closed(last, chain)
                chain = []
            chain += self._steps(node, goes_on=alone)
            last = node
        texts += self._closed(last, chain)
        return [
            line for text in texts for line in wrapped(re.split(" (?=>)", text), "  - ", "      ")
        ]

    def _closed(self, last: Node | None, chain: Sequence[str]) -> list[str]:
        """A chain as text, with a name for its result where something reads that."""
        if last is None:
            return []
        text = " > ".join(chain)
        if self.uses[last.name]:
            text = f"{self.values[last.name].label} = {text}"
        if ": " in text or " #" in text:  # YAML would take it for a key or a comment
            text = "'" + text.replace("'", "''") + "'"
        return [text]

    def _steps(self, node: Node, *, goes_on: bool) -> list[str]:
        """The operands of a node, or what stands between it and the one before, and its step."""
        layer = node.layer
        values = [self.values[name] for name in node.inputs]
        views = self._views(node, [value.shape for value in values])
        steps = []
        if goes_on:
            steps += [sizes_text(view) for view in views if view is not None]
            if not node.reads[0].gradient:
                steps.append(DETACH)
        else:
            operand_texts = []
            for value, view, edge in zip(values, views, node.reads, strict=True):
                words = [value.label]
                if view is not None:
                    words.append(sizes_text(view))
                if not edge.gradient:
                    words.append(DETACH)
                operand_texts.append(" ".join(words))
            steps.append(", ".join(operand_texts))
        shapes = [edge.shape for edge in node.reads]
        if isinstance(layer, ElementwiseLayer):
            rounds = [one_round(shape, node.count) for shape in shapes]
            text = step_text(layer, rounds)
            shape = layer.out
            if shape:
                shape = (node.count * shape[0], *shape[1:])
        else:
            text = layer.name
            shape = result(layer, shapes[0], node.count)
        step = Surrounded(text, node.count, self.parameters.told.get(node.name))
        self.values[node.name] = _Seen(f"v{len(self.values)}", shape)
        return [*steps, surrounded(step)]

    def _views(self, node: Node, shapes: Sequence[Sizes]) -> list[Sizes | None]:
        """The shapes that must be stated of a node's operands, None where they follow."""
        wanted = [edge.shape for edge in node.reads]
        if self._read(node, shapes) == wanted:
            return [None] * len(wanted)
        seen = [None if shape == edge else edge for shape, edge in zip(shapes, wanted, strict=True)]
        if self._read(node, wanted) == wanted:
            return seen
        raise ArgumentError(
            f"{self.network.name}: node {node.name}, {_described(node)}, cannot be written in the "
            "notation of workload files; use the model itself, or an ONNX file of it"
        )

    def _read(self, node: Node, shapes: Sequence[Sizes]) -> list[Sizes] | None:
        """The shapes in which a file's reader reads values of these shapes."""
        if isinstance(node.layer, ElementwiseLayer):
            return values_of(node.layer, shapes)
        return operands(node.layer, shapes, node.count)
