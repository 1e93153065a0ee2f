"""The graph of a workload file: chains of steps, and what follows from one step for the next.

A chain ``x = a + b > relu > conv1`` starts with values and goes through steps; ``x`` is its result.
A step is a layer of the file, a kind of element-wise layer, sizes ``[64, 49]`` in which the value
is seen, or ``detach``; the last two cost nothing and may stand behind the name of a value too.
``configs/README.md`` has the notation, ``writing.py`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from npusim.base.errors import ArgumentError, told_as
from npusim.base.records import replace
from npusim.base.yamltree import YamlNode as Tree
from npusim.base.yamltree import suggest
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_yaml.layers import StatedLayer
from npusim.workloads.from_yaml.shapes import (
    SIZES,
    first_operand,
    is_product,
    one_round,
    operands,
    result,
    second_operand,
    sizes_of,
    sizes_text,
)
from npusim.workloads.from_yaml.steps import (
    Surrounded,
    read_step,
    values_of,
    without_surroundings,
)
from npusim.workloads.graph import (
    INPUT,
    Edge,
    GraphBuilder,
    Input,
    Node,
    Parameter,
    Sizes,
    Workload,
    of_nodes,
    reached,
)
from npusim.workloads.layers import ConvLayer, Layer

#: The step behind which no gradient flows back.
DETACH = "detach"

#: Chains that are read, and loops in each other: far more than any network needs.
_MOST_CHAINS = 100_000
_MOST_LOOPS = 20

_LOOP = re.compile(r"(?P<times>[1-9]\d{0,5}) times|for (?P<word>\w+) in (?P<words>.+)")
_OPERAND = re.compile(rf"(?P<name>\S+)(?: (?P<sizes>{SIZES}))?(?P<detached> {DETACH})?")
_COMMA = re.compile(r",(?![^\[]*\])")  # outside brackets


class _Value(NamedTuple):
    """A value as chains see it: its name in the graph, and the shape in which it is seen.

    The shape of ``input`` is None until a step says it. Without ``gradient`` it is detached.
    """

    name: str
    shape: Sizes | None
    gradient: bool = True


def read_chains(
    tree: Tree,
    title: str,
    description: str,
    layers: Sequence[StatedLayer],
    inputs: Sequence[Input] = (),
    parameters: Sequence[Parameter] = (),
) -> Workload:
    """The network, called ``title``, of the chains in ``tree``, which use these layers and values.

    Raises ``ConfigError`` with file and line for a value that no chain before has made, one that
    nothing reads, an unknown step, and sizes that do not fit each other.
    """
    chains = _Chains(title, layers, inputs, parameters)
    chains.read(tree, {})
    for name, place in chains.unread.items():
        if name != chains.last:
            raise place.fail(f"nothing reads {name}; remove its name, or read it")
    for parameter in parameters:
        if parameter.name not in chains.used_parameters:
            raise tree.fail(f"no chain reads the parameter {parameter.name}; remove it, or read it")
    return chains.workload(description)


class _Chains:
    """The values by name while chains are read, and the graph that they have made."""

    def __init__(
        self,
        title: str,
        layers: Sequence[StatedLayer],
        inputs: Sequence[Input],
        parameters: Sequence[Parameter],
    ) -> None:
        self.layers = {stated.layer.name: stated for stated in layers}
        self.builder = GraphBuilder(title)
        self.values: dict[str, _Value] = {INPUT: _Value(INPUT, None)}
        self.unread: dict[str, Tree] = {}
        self.last = ""
        self.count = 0
        self.declared = {parameter.name for parameter in parameters}
        self.used_parameters: set[str] = set()
        for item in inputs:
            self.builder.input(item.name, item.shape, integers=item.integers)
            self.values[item.name] = _Value(item.name, item.shape)
        for parameter in parameters:
            name = parameter.name
            self.builder.parameter(name, parameter.shape, trained=parameter.trained)
            self.values[name] = _Value(name, parameter.shape)

    def workload(self, description: str) -> Workload:
        """The network, with its layers in the order of the file.

        A layer of the file whose uses have different gradients becomes one for each, with a number.
        """
        variants: dict[str, list[Layer]] = {name: [] for name in self.layers}
        names: dict[Layer, str] = {}
        nodes: list[Node] = []
        for node in reached(self.builder.nodes):
            layer = node.layer
            if isinstance(layer, ElementwiseLayer):
                nodes.append(node)
                continue
            if layer not in names:
                names[layer] = self._variant(layer.name, len(variants[layer.name]))
                variants[layer.name].append(layer)
            nodes.append(replace(node, layer=replace(layer, name=names[layer])))
        order = [names[layer] for alike in variants.values() for layer in alike]
        return of_nodes(
            self.builder.title,
            description,
            nodes,
            order=order,
            inputs=tuple(self.builder.inputs),
            parameters=dict(self.builder.parameters),
        )

    def _variant(self, name: str, number: int) -> str:
        """The name of a layer of the file, behind so many with other gradients."""
        if not number:
            return name
        variant = f"{name}_{number + 1}"
        while variant in self.layers:
            variant += "_"
        return variant

    # -- chains and loops --------------------------------------------------------------------

    def read(self, tree: Tree, words: Mapping[str, str]) -> None:
        """Read a list of chains and loops; ``words`` stand for names in braces."""
        if not tree.items():
            raise tree.fail("expected at least one chain")
        if tree.path.count("[") > _MOST_LOOPS:
            raise tree.fail(f"more than {_MOST_LOOPS} loops in each other")
        for item in tree.items():
            if isinstance(item.value, str):
                self._chain(item, words)
                continue
            for key, body in item.mapping().items():
                for more in _rounds(key, body):
                    self.read(body, {**words, **more})

    def _chain(self, item: Tree, words: Mapping[str, str]) -> None:
        self.count += 1
        if self.count > _MOST_CHAINS:
            raise item.fail(f"more than {_MOST_CHAINS:,} chains, loops counted out")
        text = " ".join(item.text().split())
        for word, meant in words.items():
            text = text.replace(f"{{{word}}}", meant)
        head, *steps = [part.strip() for part in text.split(">")]
        before, _, operands_text = head.rpartition("=")
        name = before.strip()
        operands = _COMMA.split(operands_text.strip())
        values = [self._sum(item, operand.strip()) for operand in operands]
        for i, step in enumerate(steps):
            values = [self._step(item, self._filled(item, step, steps[i + 1 :]), values)]
        if len(values) > 1:
            raise item.fail("several values, and no step that takes them, such as > concat")
        self.last = name
        if name:
            self._name(item, name, values[0])

    def _name(self, item: Tree, name: str, value: _Value) -> None:
        """Call a value ``name``, from here on."""
        if name == INPUT or not re.fullmatch(r"[^\W\d]\w*", name):
            raise item.fail(f"{name!r} is no name for a value; take a word such as x")
        if name in self.declared or name in {entry.name for entry in self.builder.inputs}:
            raise item.fail(f"{name} is an input or a parameter of the file; take another name")
        if name in self.unread:
            line = self.unread[name].line
            raise item.fail(f"nothing reads the {name} of line {line}; remove its name, or read it")
        self.values[name] = value
        self.unread[name] = item

    def _sum(self, item: Tree, text: str) -> _Value:
        """The value that an operand names, or the sum of several."""
        total, *others = [self._value(item, name.strip()) for name in text.split("+")]
        for other in others:
            total = self._step(item, "add", [total, other])
        return total

    def _value(self, item: Tree, text: str) -> _Value:
        """The value that is named, in other sizes or detached if that follows the name."""
        match = _OPERAND.fullmatch(text)
        name = match["name"] if match else text
        if match is None or name not in self.values:
            raise item.fail(
                f"no chain before has made {name!r}{suggest(name, self.values)}; a chain starts "
                "with values, and its result has a name after NAME = ..."
            )
        self.unread.pop(name, None)
        if name in self.declared:
            self.used_parameters.add(name)
        value = self.values[name]
        if match["sizes"]:
            value = self._seen(value, sizes_of(match["sizes"]))
        return value._replace(gradient=False) if match["detached"] else value

    def _seen(self, value: _Value, shape: Sizes) -> _Value:
        """A value in another shape; of an input that has none yet it is the shape."""
        if value.shape is None:
            self._input_has(shape)
        return value._replace(shape=shape)

    def _input_has(self, shape: Sizes) -> None:
        """Note the shape of the network's input, at its first use."""
        self.builder.input(INPUT, shape)
        self.values[INPUT] = _Value(INPUT, shape)

    def _filled(self, item: Tree, step: str, after: Sequence[str]) -> str:
        """A step with the sizes for which [] stands, those that the next step takes."""
        if step != "[]" and not step.endswith(" []"):
            return step
        following = without_surroundings(after[0]).text if after else ""
        if following not in self.layers:
            raise item.fail("[] stands for the sizes that the next layer takes: none follows")
        return step[:-2] + sizes_text(first_operand(self.layers[following].layer))

    # -- steps -------------------------------------------------------------------------------

    def _step(self, item: Tree, text: str, values: Sequence[_Value]) -> _Value:
        """The value that a step makes of others."""
        view = re.fullmatch(SIZES, text)
        if (view or text == DETACH) and len(values) > 1:
            raise item.fail(f"{text} takes one value, not {len(values)}")
        if view:
            return self._seen(values[0], sizes_of(text))
        if text == DETACH:
            return values[0]._replace(gradient=False)
        step = without_surroundings(text)
        if text in self.layers:  # its name may look like more than a name
            step = Surrounded(text)
        for name in (step.parameters or {}).values():
            if name not in self.declared:
                raise item.fail(
                    f"no parameter is called {name!r}{suggest(name, self.declared)}; `parameters:` "
                    "at the top of the file lists them"
                )
            self.used_parameters.add(name)
        if step.text in self.layers:
            return self._multiplied(item, self.layers[step.text], step, values)
        shapes = [value.shape for value in values]
        rounds = [None if shape is None else one_round(shape, step.rounds) for shape in shapes]
        layer = read_step(step.text, rounds, [*self.layers], item.fail)
        reads = values_of(layer, [shape for shape in shapes if shape is not None])
        name = self._add(item, layer.called or layer.kind, layer, values, reads, step)
        return _Value(name, (step.rounds * layer.out[0], *layer.out[1:]) if layer.out else ())

    def _multiplied(
        self, item: Tree, stated: StatedLayer, step: Surrounded, values: Sequence[_Value]
    ) -> _Value:
        """The result of a layer of the file."""
        layer = stated.layer
        if is_product(layer) and len(values) != 2:
            raise item.fail(
                f"{layer.name} multiplies two computed matrices, and gets {len(values)} value; "
                f"write them as x, y > {layer.name}"
            )
        if len(values) > 2:
            raise item.fail(
                f"{layer.name} takes one value, or two of which the second are its weights, not "
                f"{len(values)}"
            )
        if values[0].shape is None:
            self._input_has(first_operand(layer))
            values = [
                self.values[INPUT] if operand.name == INPUT else operand for operand in values
            ]
        shapes = [value.shape for value in values if value.shape is not None]
        reads = operands(layer, shapes, step.rounds) if len(shapes) == len(values) else None
        if reads is None:
            takes = [first_operand(layer), second_operand(layer)][: len(values)]
            way_out = "or put > [] > before it where the value is seen in other sizes"
            if len(values) > 1 and not is_product(layer):
                way_out = "or give it one value: a second one is its weights"
            raise item.fail(
                f"{layer.name} takes {' and '.join(map(sizes_text, takes))}, and gets "
                f"{' and '.join(sizes_text(value.shape) for value in values)}; correct its sizes, "
                f"{way_out}"
            )
        if step.parameters is None:
            step = step._replace(parameters=self._parameters(stated, computed=len(values) > 1))
        plain = replace(layer, count=1)
        name = self._add(item, layer.name, plain, values, reads, step)
        return _Value(name, result(layer, reads[0], step.rounds))

    def _parameters(self, stated: StatedLayer, *, computed: bool) -> Mapping[str, str] | None:
        """The parameters of a use of a layer; None for its own, all of them trained."""
        layer = stated.layer
        if stated.trained and not stated.shared and not computed:
            return None
        shapes: dict[str, Sizes] = {}
        if not computed:
            shapes["w"] = own_weights(layer)
        if layer.bias:
            shapes["b"] = (layer.cout,)
        names = {}
        for symbol, shape in shapes.items():
            name = f"{layer.name}.{'weight' if symbol == 'w' else 'bias'}"
            if not stated.shared:
                name = self._unused(name)
            names[symbol] = self.builder.parameter(name, shape, trained=stated.trained)
        return names

    def _unused(self, name: str) -> str:
        """A name that no value has, with a number where it is taken."""
        unused = name
        number = 1
        while unused in self.builder.shapes:
            number += 1
            unused = f"{name}_{number}"
        return unused

    def _add(
        self,
        item: Tree,
        name: str,
        layer: Layer | ElementwiseLayer,
        values: Sequence[_Value],
        reads: Sequence[Sizes],
        step: Surrounded,
    ) -> str:
        """Note an operation that reads values in these shapes."""
        edges = [
            Edge(value.name, shape, value.gradient)
            for value, shape in zip(values, reads, strict=True)
        ]
        with told_as(item.fail, caught=ArgumentError):
            return self.builder.add(
                name, layer, edges, parameters=step.parameters, count=step.rounds
            )


def own_weights(layer: Layer) -> Sizes:
    """The shape of the weights that are a layer's own."""
    return layer.w_shape if isinstance(layer, ConvLayer) else (layer.cout, layer.cin)


def _rounds(key: str, body: Tree) -> Iterator[Mapping[str, str]]:
    """The texts that a loop's words stand for, round after round."""
    loop = _LOOP.fullmatch(key)
    if not loop:
        raise body.fail(f"expected 'N times' or 'for NAME in WORDS', got {key!r}")
    if loop["times"]:
        yield from ({} for _ in range(int(loop["times"])))
    else:
        yield from ({loop["word"]: meant} for meant in loop["words"].split())
