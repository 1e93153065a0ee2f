"""The graph of a workload file: chains of steps, and what follows from one step for the next.

A chain ``x = a + b > relu > conv1`` starts with values and goes through steps; ``x`` is its result.
A step is a layer of the file, a kind of element-wise layer, or sizes ``[64, 49]`` in which the
value is seen, which costs nothing and may stand behind the name of a value too.
``configs/README.md`` has the notation, ``chains_text`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from npusim.base.objects import replace
from npusim.base.yamltree import Node as Tree
from npusim.base.yamltree import suggest
from npusim.shapes.convolution import output_sizes
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import INPUT, Node
from npusim.workloads.kinds import KINDS, UNKNOWN, USUAL, WEIGHTED
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer
from npusim.workloads.numbers import FEW
from npusim.workloads.recorder import Recorder

Sizes = tuple[int, ...]

#: Kinds that read several values.
SEVERAL = ("add", "sub", "mul", "div", "scale", "shift", "concat", UNKNOWN)

#: Kinds whose results have sizes that do not follow.
_ENLARGED = ("upsample", "interpolate")

#: Chains that are read, and loops in each other: far more than any network needs.
_MOST_CHAINS, _MOST_LOOPS = 100_000, 20

_NUMBER = r"[1-9]\d{0,8}"
_LOOP = re.compile(r"(?P<times>[1-9]\d{0,5}) times|for (?P<word>\w+) in (?P<words>.+)")
_SIZES = re.compile(rf"\[({_NUMBER}(?:, ?{_NUMBER})*)\]")
_POOL = " [KERNEL[/STRIDE] [pPADDING]]"
_SIDES = " [pPADDING]"
_REAL = r"-?(?:inf|\d[\d.]*(?:e[-+]?\d+)?)"
_NUMBERS = " [(NUMBERS)]"
_WEIGHT = " [(NUMBERS)] [WEIGHT]"
_FORMS = {"max_pool": _POOL, "avg_pool": _NUMBERS + _POOL, "pad": _SIDES, "slice": _SIDES}
_FORMS |= dict.fromkeys(USUAL, _NUMBERS) | dict.fromkeys(("scale", "shift"), _WEIGHT)
_FORMS[UNKNOWN] = " (NAME)"
_COMMA = re.compile(r",(?![^\[]*\])")  # outside brackets
_STEP = re.compile(
    r"(?:unknown \((?P<called>.+)\)|(?P<kind>\w+))"
    rf"(?: \((?P<numbers>{_REAL}(?:, ?{_REAL})*)\))?"
    rf"(?: (?P<kernel>{_NUMBER}(?:x{_NUMBER})*)(?:/(?P<stride>{_NUMBER}(?:x{_NUMBER})*))?"
    r"(?: p(?P<padding>\d{1,9}(?::\d{1,9})?(?:x\d{1,9}(?::\d{1,9})?)*))?)?"
    r"(?: p(?P<sides>-?\d{1,9}(?::-?\d{1,9})?(?:x-?\d{1,9}(?::-?\d{1,9})?)*))?"
    rf"(?: (?P<out>{_SIZES.pattern}))?(?: (?P<trained>trained|untrained))?"
)


class Value(NamedTuple):
    """A value of a graph: the nodes that it is of, and its sizes, () where they are not known.

    ``trained`` says whether a training step needs its gradient.
    """

    sources: tuple[str, ...]
    shape: Sizes = ()
    trained: bool = False


def taken(layer: Layer) -> Sizes:
    """The sizes of what a layer reads."""
    if isinstance(layer, ConvLayer):
        return (layer.cin, *layer.spatial)
    stack = (layer.products,) if layer.products else ()
    return (*stack, layer.rows, layer.cin) if stack or layer.rows > 1 else (layer.cin,)


def fits(layer: Layer, shape: Sizes) -> bool:
    """Whether a layer takes a value of this shape as it is; one of one row takes any."""
    if isinstance(layer, ConvLayer) or not shape:
        return shape in ((), taken(layer))
    whole = prod(shape) == layer.rows * layer.cin
    return bool(layer.products) or (whole and (layer.rows == 1 or shape[-1] == layer.cin))


def given(layer: Layer, shape: Sizes) -> Sizes:
    """The sizes of what a layer makes of a value of this shape."""
    if isinstance(layer, ConvLayer):
        return (layer.cout, *layer.out)
    if layer.products or layer.rows == 1 or len(shape) < 2:
        return (*taken(layer)[:-1], layer.cout)
    return (*shape[:-1], layer.cout)


def inferred(kind: str, shapes: Sequence[Sizes], windows: Mapping[str, Any]) -> Sizes:
    """The sizes of the result of an element-wise layer, () where they do not follow."""
    largest = max(shapes, key=prod)
    if kind in (*_ENLARGED, "pad", "slice") or () in shapes:
        sides = windows.get("padding", ()) if kind not in _ENLARGED else ()
        found = tuple(size + sum(side) for size, side in zip(largest, sides, strict=False))
        return found if len(sides) == len(largest) and min(found, default=0) > 0 else ()
    if kind == "concat":
        alike = len({shape[1:] for shape in shapes}) == 1
        return (sum(shape[0] for shape in shapes), *largest[1:]) if alike else ()
    if windows:
        dims = len(windows["kernel"])
        kernel, stride, padding = (windows[key] for key in ("kernel", "stride", "padding"))
        sizes = largest[-dims:] if dims < len(largest) else ()
        found = output_sizes(sizes, kernel, stride, padding, (1,) * dims) if sizes else ()
        return (*largest[:-dims], *found) if found and min(found) > 0 else ()
    if kind.endswith("_pool"):
        return (largest[0], *(1 for _ in largest[1:]))
    if kind in FEW:
        return largest if len(set(shapes)) == 1 else ()
    return largest


def read_chains(tree: Tree, layers: Sequence[Layer]) -> list[Node]:
    """The nodes of the chains in ``tree``, which use these layers.

    Raises ``ConfigError`` with file and line for a value that no chain before has made, one that
    nothing reads, an unknown step, and sizes that do not fit each other.
    """
    chains = _Chains(layers)
    chains.read(tree, {})
    for name, place in chains.unread.items():
        if name != chains.last:
            raise place.fail(f"nothing reads {name}; remove its name, or read it")
    return chains.found.nodes


class _Chains:
    """The values by name while chains are read, and the nodes that they have made."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = {layer.name: replace(layer, count=1) for layer in layers}
        self.values = {INPUT: Value((INPUT,))}
        self.unread: dict[str, Tree] = {}
        self.last, self.count = "", 0
        self.found = Recorder()

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
        head, *steps = (part.strip() for part in text.split(">"))
        name, _, operands = (part.strip() for part in head.rpartition("="))
        values = [self._sum(item, one.strip()) for one in _COMMA.split(operands)]
        for i, step in enumerate(steps):
            values = [self._step(item, self._filled(item, step, steps[i + 1 :]), values)]
        if len(values) > 1:
            raise item.fail("several values, and no step that takes them, such as > concat")
        self.last = name
        if not name:
            return
        if name == INPUT or not re.fullmatch(r"[^\W\d]\w*", name):
            raise item.fail(f"{name!r} is no name for a value; take a word such as x")
        if name in self.unread:
            line = self.unread[name].line
            raise item.fail(f"nothing reads the {name} of line {line}; remove its name, or read it")
        self.values[name], self.unread[name] = values[0], item

    def _sum(self, item: Tree, text: str) -> Value:
        """The value that an operand names, or the sum of several."""
        first, *others = (self._value(item, name.strip()) for name in text.split("+"))
        for other in others:
            first = self._step(item, "add", [first, other])
        return first

    def _value(self, item: Tree, text: str) -> Value:
        """The value that is named, in other sizes if these follow the name."""
        name, _, sizes = text.partition(" ")
        if sizes:
            return self._step(item, sizes, [self._value(item, name)])
        if name not in self.values:
            raise item.fail(
                f"no chain before has made {name!r}{suggest(name, self.values)}; a chain starts "
                "with values, and its result has a name after NAME = ..."
            )
        self.unread.pop(name, None)
        return self.values[name]

    def _filled(self, item: Tree, step: str, after: Sequence[str]) -> str:
        """A step with the sizes for which [] stands, those that the next step takes."""
        if not step.endswith("[]"):
            return step
        if not after or after[0] not in self.layers:
            raise item.fail("[] stands for the sizes that the next layer takes: none follows")
        return step[:-2] + str(list(taken(self.layers[after[0]])))

    def _step(self, item: Tree, text: str, values: Sequence[Value]) -> Value:
        """The value that a step makes of others."""
        sources = tuple(name for value in values for name in value.sources)
        trained = any(value.trained for value in values)
        seen = _SIZES.fullmatch(text)
        if seen:
            return Value(sources, _numbers(seen[1], ","), trained)
        layer: Layer | ElementwiseLayer
        if text in self.layers:
            layer = self.layers[text]
            shape = self._given(item, layer, values)
            return Value((self.found.add(text, layer, sources),), shape, True)
        layer = self._elementwise(item, text, values)
        name = self.found.add(layer.called or layer.kind, layer, sources)
        return Value((name,), layer.out, layer.input_gradient)

    def _given(self, item: Tree, layer: Layer, values: Sequence[Value]) -> Sizes:
        """The sizes of a layer's result, which must fit what it gets."""
        products = isinstance(layer, LinearLayer) and layer.products
        if len(values) > 1 and not products:
            raise item.fail(f"{layer.name} takes one value, not {len(values)}")
        shape = values[0].shape
        if values[0] == self.values[INPUT] and not shape:
            shape = taken(layer)
            self.values[INPUT] = values[0]._replace(shape=shape)
        if not fits(layer, shape):
            raise item.fail(
                f"{layer.name} takes {list(taken(layer))}, and gets {list(shape)}; correct its "
                "sizes, or put > [] > before it where the value is seen in other sizes"
            )
        return given(layer, shape)

    def _elementwise(self, item: Tree, text: str, values: Sequence[Value]) -> ElementwiseLayer:
        """The element-wise layer that a step is."""
        found = _STEP.fullmatch(text)
        kind = text.partition(" ")[0]
        if kind not in KINDS and kind != UNKNOWN:
            raise item.fail(f"unknown step {kind!r}{suggest(kind, [*self.layers, *KINDS])}")
        more = _FORMS.get(kind, "")
        called = bool(found and found["called"]) == (kind == UNKNOWN)
        if (
            not found
            or not called
            or (found["kernel"] and not more.endswith((_POOL, _WEIGHT)))
            or ((found["stride"] or found["padding"]) and not more.endswith(_POOL))
            or (found["sides"] and more != _SIDES)
            or (found["numbers"] and _NUMBERS not in more)
        ):
            raise item.fail(f"expected {kind}{more} [[SIZES]], got {text!r}")
        if len(values) > 1 and kind not in SEVERAL:
            raise item.fail(f"{kind} takes one value, not {len(values)}")
        shapes = [value.shape for value in values]
        windows = _windows(found, len(shapes[0]) - 1) if more != _WEIGHT else {}
        weight = _numbers(found["kernel"], "x") if found["kernel"] and more == _WEIGHT else ()
        if len({len(one) for one in windows.values()}) > 1:
            raise item.fail(f"{text}: kernel, stride and padding have different numbers of axes")
        out = _numbers(found["out"].strip("[]"), ",") if found["out"] else ()
        out = out or inferred(kind, shapes, windows)
        shape = out if kind == "concat" else max(shapes, key=prod)
        if not (shape and out):
            raise item.fail(
                f"{text} of {', '.join(str(list(one)) for one in shapes)}: the sizes of the result "
                f"do not follow; correct them, or state them: {text} [64, 56, 56] (those of input "
                "by input > [3, 224, 224] > ...)"
            )
        usual = any(value.trained for value in values) or kind in WEIGHTED or bool(weight)
        trained = found["trained"] == "trained" if found["trained"] else usual
        numbers = tuple(map(float, found["numbers"].split(","))) if found["numbers"] else ()
        sizes: Any = {"shape": shape, "out": out, "called": found["called"] or "", **windows}
        sizes |= {"numbers": numbers, "weight": weight}
        return ElementwiseLayer(kind=kind, input_gradient=trained, **sizes)


def _rounds(key: str, body: Tree) -> Iterator[Mapping[str, str]]:
    """What a loop's words stand for, round after round."""
    found = _LOOP.fullmatch(key)
    if not found:
        raise body.fail(f"expected 'N times' or 'for NAME in WORDS', got {key!r}")
    if found["times"]:
        yield from ({} for _ in range(int(found["times"])))
    else:
        yield from ({found["word"]: meant} for meant in found["words"].split())


def _windows(found: re.Match[str], dims: int) -> dict[str, Any]:
    """Kernel, stride and padding of a step that has them; one number stands for all axes.

    All are the ``dims`` axes behind the channels, of a pooling and of what is added or left out.
    """
    if found["sides"]:
        sides = [_numbers(side, ":") for side in found["sides"].split("x")]
        pads = [(side[0], side[-1]) for side in sides]
        return {"padding": ((0, 0), *pads * dims) if dims and len(pads) == 1 else tuple(pads)}
    if not found["kernel"]:
        return {}
    kernel = _numbers(found["kernel"], "x")
    kernel *= dims if len(kernel) == 1 else 1
    stride = _numbers(found["stride"], "x") if found["stride"] else kernel
    sides = [_numbers(side, ":") for side in (found["padding"] or "0").split("x")]
    pads = [(side[0], side[-1]) for side in sides]
    return {
        "kernel": kernel,
        "stride": stride * (len(kernel) if len(stride) == 1 else 1),
        "padding": tuple(pads * (len(kernel) if len(pads) == 1 else 1)),
    }


def _numbers(text: str, mark: str) -> Sizes:
    return tuple(map(int, text.split(mark)))
