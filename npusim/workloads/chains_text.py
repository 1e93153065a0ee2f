"""The graph of a workload as chains, which ``chains`` reads back as the same nodes."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from npusim.workloads.chains import SEVERAL, Sizes, Value, fits, given, inferred, taken
from npusim.workloads.elementwise import WEIGHTED, ElementwiseLayer
from npusim.workloads.layers import INPUT, Layer, LinearLayer, Node

#: Stands for a space at which no line ends.
_GLUE = "\0"


def chain_lines(nodes: Sequence[Node]) -> list[str]:
    """The lines of a ``graph``; a chain goes on where the next node alone reads its result."""
    uses = Counter(name for node in nodes for name in node.inputs)
    chains: list[list[Node]] = []
    for node in nodes:
        before = chains[-1][-1].name if chains else ""
        if node.inputs == (before,) and uses[before] == 1:
            chains[-1].append(node)
        else:
            chains.append([node])
    written = _Written()
    for chain in chains:
        written.add(chain, named=uses[chain[-1].name] > 0)
    texts = (re.split(" (?=>)", text) for text in written.chains)
    return [line for parts in texts for line in wrapped(parts, "  - ", "      ")]


def wrapped(parts: Iterable[str], first: str, others: str) -> list[str]:
    """Lines of at most 100 characters that end between ``parts``, with their indents."""
    text = " ".join(part.replace(" ", _GLUE) for part in parts)
    wrapper = textwrap.TextWrapper(100, initial_indent=first, subsequent_indent=others)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line.replace(_GLUE, " ") for line in wrapper.wrap(text)]


class _Written:
    """Chains so far, and of every node what its value is called there and has for sizes."""

    def __init__(self) -> None:
        self.chains: list[str] = []
        self.values = {INPUT: Value((INPUT,))}

    def add(self, chain: Sequence[Node], *, named: bool) -> None:
        """Write a chain, with a name for its result where something reads that."""
        values = [self.values[name] for name in chain[0].inputs]
        seen = [_seen(chain[0].layer, values, value.shape) for value in values]
        pairs = list(zip(values, seen, strict=True))
        parts = [", ".join(" ".join((v.sources[0], *_sizes(shape))) for v, shape in pairs)]
        values = [value._replace(shape=shape or value.shape) for value, shape in pairs]
        for node in chain:
            layer, wanted = node.layer, _wanted(node.layer)
            if not _fits(layer, values):
                parts += _sizes(wanted)
                values = [values[0]._replace(shape=wanted)]
            if isinstance(layer, ElementwiseLayer):
                parts.append(_step(layer, values))
                values = [Value((), layer.out, layer.input_gradient)]
            else:
                parts.append(layer.name)
                shape = values[0].shape or wanted
                if node.inputs == (INPUT,):
                    self.values[INPUT] = Value((INPUT,), shape)
                values = [Value((), given(layer, shape), trained=True)]
        label = f"v{len(self.values)}"
        if named:
            self.values[chain[-1].name] = values[0]._replace(sources=(label,))
        self.chains.append(f"{label} = " * named + " > ".join(parts))


def _wanted(layer: Layer | ElementwiseLayer) -> Sizes:
    """The sizes in which a layer reads its value, or the largest of several."""
    return layer.shape if isinstance(layer, ElementwiseLayer) else taken(layer)


def _seen(layer: Layer | ElementwiseLayer, values: Sequence[Value], shape: Sizes) -> Sizes:
    """In which sizes one of several values of this shape is read, () where in its own."""
    kind = layer.kind if isinstance(layer, ElementwiseLayer) else ""
    if len(values) < 2 or kind not in SEVERAL or kind == "concat" or shape == _wanted(layer):
        return ()
    least = min(max(prod(value.shape) for value in values), prod(_wanted(layer)))
    return _wanted(layer) if kind in ("add", "mul") or prod(shape) >= least else ()


def _fits(layer: Layer | ElementwiseLayer, values: Sequence[Value]) -> bool:
    """Whether a layer takes these values as they are."""
    if isinstance(layer, ElementwiseLayer):
        several = len(values) > 1 and layer.kind in SEVERAL
        return several or (len(values) == 1 and values[0].shape == layer.shape)
    products = isinstance(layer, LinearLayer) and bool(layer.products)
    return products or (len(values) == 1 and fits(layer, values[0].shape))


def _sizes(shape: Sizes) -> list[str]:
    """Sizes as a part of a chain, none where there are none."""
    return [str(list(shape))] if shape else []


def _step(layer: ElementwiseLayer, values: Sequence[Value]) -> str:
    """An element-wise layer as a step after these values."""
    parts = [f"{layer.kind} ({layer.called})" if layer.called else layer.kind, *_windows(layer)]
    windows = {key: getattr(layer, key) for key in ("kernel", "stride", "padding")}
    shapes = [value.shape for value in values]
    if inferred(layer.kind, shapes, windows if layer.kernel else {}) != layer.out:
        parts += _sizes(layer.out)
    usual = any(value.trained for value in values) or layer.kind in WEIGHTED
    if layer.input_gradient != usual:
        parts.append("trained" if layer.input_gradient else "untrained")
    return " ".join(parts)


def _windows(layer: ElementwiseLayer) -> Iterator[str]:
    """The windows of a pooling: kernel, stride where it is another, and padding."""

    def axes(texts: Sequence[str]) -> str:
        alike = len(set(texts)) == 1 and len(texts) == len(layer.shape) - 1
        return texts[0] if alike else "x".join(texts)

    if layer.kernel:
        stride = f"/{axes([str(one) for one in layer.stride])}"
        yield axes([str(one) for one in layer.kernel]) + stride * (layer.stride != layer.kernel)
    if any(map(any, layer.padding)):
        yield "p" + axes([str(a) if a == b else f"{a}:{b}" for a, b in layer.padding])
