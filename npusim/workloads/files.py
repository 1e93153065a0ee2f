"""Workload files: networks as named convolution and linear layers, and their graph, in YAML.

A file has a ``description`` and ``layers``, a mapping from layer name to its sizes::

    conv1: {cin: 3, cout: 64, spatial: [224, 224], kernel: 7, stride: 2, padding: 3}
    fc: {cin: 2048, cout: 1000, rows: 1}

A layer with ``spatial`` is a convolution, one with ``rows`` (vectors per image) a linear layer, or
with ``products`` (per image) products of two computed matrices, as attention has them. A
``graph`` may follow, which gives counts and all layers that multiply no matrices::

    - x = input > conv1 > batch_norm > relu > max_pool 3/2 p1

``configs/README.md`` has every key.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from npusim.base.content import Content, content_of, require_content
from npusim.base.errors import ArgumentError, shown, told_as
from npusim.base.objects import replace
from npusim.base.resources import configs
from npusim.base.yamltree import Node, TextFile, load_tree, suggest
from npusim.workloads import topology
from npusim.workloads.chains import SEVERAL, Sizes, Value, fits, given, inferred, read_chains, taken
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import INPUT, Workload
from npusim.workloads.graph import Node as Step
from npusim.workloads.kinds import WEIGHTED
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer
from npusim.workloads.numbers import FEW

T = TypeVar("T")

_FOLDER = configs() / "workloads"
_SUFFIX = ".yaml"
_MAX_DIMS = 3
_REQUIRED = ("cin", "cout", "spatial", "kernel")
_OPTIONAL = (
    *("stride", "padding", "dilation", "groups", "transposed", "output_padding"),
    *("count", "input_gradient", "bias"),
)
_LINEAR = ("cin", "cout", "rows")


def workloads() -> list[str]:
    """Return the names of the workloads that ship, sorted."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def load_workload(name_or_path: str | Path) -> Workload:
    """Read a workload that ships (by name) or one's own: a YAML file or a SCALE-Sim topology."""
    return _loaded(name_or_path)


def _loaded(name_or_path: str | Path, padding: str | None = None) -> Workload:
    """The same, with the padding of a topology."""
    path = _file_of(name_or_path)
    if path is None:
        known = workloads()
        if name_or_path not in known:
            raise ArgumentError(
                f"unknown workload {name_or_path!r} (a file of your own needs its path, which ends "
                f"in .yaml, .csv or .onnx){suggest(str(name_or_path), known)}"
            )
        return _shipped(str(name_or_path))
    require_content(path, _NETWORKS, "a network")
    if content_of(path) is Content.TOPOLOGY or path.suffix.lower() == ".csv":
        return topology.workload(path, padding)
    return _workload(path, shown(path.stem))


#: What a file of a network may be, and the endings of their names.
_NETWORKS = (Content.WORKLOAD, Content.TOPOLOGY, Content.ONNX)
_ENDINGS = (".yaml", ".yml", ".csv", ".onnx")


def _file_of(given: str | PathLike[str]) -> Path | None:
    """The file that is meant; None for the name of a workload that ships.

    A file is one that exists, whatever its ending, or has the ending of a network's file.
    """
    path = Path(given)
    if isinstance(given, str) and given in workloads():
        return None
    named = not isinstance(given, str) or given.lower().endswith(_ENDINGS)
    return path if named or path.is_file() else None


def read_network(
    source: Any,
    input_shape: Sequence[int] | None = None,
    *,
    padding: str | None = None,
    inputs=None,
    batch=1,
    unrolled=False,
) -> Workload:
    """The layers of a workload (by name, path or itself), a file or a ``torch.nn.Module``.

    Files are YAML files of layers, ONNX files and SCALE-Sim topologies (CSV), recognised by what
    they hold. ``input_shape`` is that of one image without the batch: a module needs it, an ONNX
    file where it leaves sizes open. ``padding`` says how that of a topology is taken, "none"
    (usual), "included" or "same" (``npusim.workloads.topology.PADDINGS``). Raises ``ArgumentError``
    where one of them is missing or has no meaning, and for a file of another kind.
    """
    path = _file_of(source) if isinstance(source, (str, PathLike)) else None
    found = content_of(path) if path is not None else None
    is_topology = found is Content.TOPOLOGY
    if padding is not None and not is_topology:
        raise ArgumentError(
            f"padding is {padding!r}, but only a SCALE-Sim topology leaves it open; leave it out"
        )
    if path is not None and (found is Content.ONNX or path.suffix.lower() == ".onnx"):
        from npusim.workloads import onnx  # noqa: PLC0415  # the package is heavy

        require_content(path, (Content.ONNX,), "an ONNX file")
        return onnx.workload(path, input_shape)
    if not isinstance(source, (str, PathLike, Workload)):
        from npusim.workloads import module  # noqa: PLC0415  # so is PyTorch

        if input_shape is None:
            raise ArgumentError(
                "a torch.nn.Module needs input_shape, that of one image without the batch, such "
                "as (3, 224, 224)"
            )
        return module.workload(source, input_shape)
    if input_shape is not None:
        raise ArgumentError(
            f"input_shape is {tuple(input_shape)}, but a workload states its sizes; leave it out"
        )
    if isinstance(source, Workload):
        return source.for_batch(batch)
    return _loaded(source if isinstance(source, str) else Path(source), padding)


@lru_cache(maxsize=16)
def _shipped(name: str) -> Workload:
    """A workload that ships; its file is read once."""
    return _workload(_FOLDER / (name + _SUFFIX), name)


def find_layer(place: str) -> ConvLayer:
    """Return a convolution by ``workload/layer``, such as ``resnet50/res4_3x3``."""
    workload, slash, name = place.rpartition("/")
    if not (slash and workload and name):
        raise ArgumentError(f"expected WORKLOAD/LAYER such as resnet50/conv1, got {place!r}")
    layer = load_workload(workload).layer(name)
    if isinstance(layer, LinearLayer):
        batch = f" --batch {layer.products}" if layer.products else ""
        raise ArgumentError(
            f"{place} is a linear layer, {layer.cin} -> {layer.cout}; `npusim run matmul --m "
            f"{layer.rows} --k {layer.cin} --n {layer.cout}{batch}` is its forward product"
        )
    return layer


def _workload(source: TextFile, name: str) -> Workload:
    """Read one file."""
    tree = load_tree(source).mapping(("description", "layers"), ("graph",))
    stated = tree["layers"].mapping()
    if not stated:
        raise tree["layers"].fail("expected at least one layer")
    layers = tuple(_layer(key, node, first=i == 0) for i, (key, node) in enumerate(stated.items()))
    if "graph" in tree:
        return _of_graph(name, tree, layers)
    return Workload(name=name, description=tree["description"].text(), layers=layers)


def _of_graph(name: str, tree: Mapping[str, Node], layers: Sequence[Layer]) -> Workload:
    """A workload whose counts and element-wise layers follow from its graph."""
    nodes = read_chains(tree["graph"], layers)
    counts = Counter(node.layer.name for node in nodes if isinstance(node.layer, Layer))
    for layer, node in zip(layers, tree["layers"].mapping().values(), strict=True):
        count = counts[layer.name]
        if not count:
            raise node.fail("no chain of the graph uses the layer; remove it, or use it")
        if "count" in node.mapping() and layer.count != count:
            raise node.mapping()["count"].fail(
                f"count is {layer.count}, but the graph uses the layer {count} times; remove the "
                "count, which follows from the graph"
            )
    order = [layer.name for layer in layers]
    return Workload.of_nodes(name, tree["description"].text(), nodes, order=order)


def _layer(name: str, node: Node, *, first: bool) -> Layer:
    """Read one layer; before the ``first`` nothing is trained, unless the file says otherwise."""
    if "/" in name or not name:
        raise node.fail(f"a layer name must not be empty or contain '/', got {name!r}")
    if "rows" in node.mapping():
        fields = node.mapping(_LINEAR, ("products", "bias", "count", "input_gradient"))
        keys = (*_LINEAR, "products", "count")
        given: dict[str, Any] = {key: _positive(fields[key]) for key in keys if key in fields}
        given["bias"] = "bias" in fields and fields["bias"].flag()
        return LinearLayer(name=name, **given, input_gradient=_trained(fields, first=first))
    fields = node.mapping(_REQUIRED, _OPTIONAL)
    return _convolution(name, node, fields, input_gradient=_trained(fields, first=first))


def _trained(fields: Mapping[str, Node], *, first: bool) -> bool:
    """Whether a training step needs the gradient of the layer's input."""
    return fields["input_gradient"].flag() if "input_gradient" in fields else not first


def _convolution(
    name: str, node: Node, fields: Mapping[str, Node], *, input_gradient: bool
) -> ConvLayer:
    """Read a convolution and check that its numbers fit each other."""
    spatial = tuple(_positive(item) for item in fields["spatial"].items())
    dims = len(spatial)
    if not 1 <= dims <= _MAX_DIMS:
        raise fields["spatial"].fail(f"expected 1 to {_MAX_DIMS} sizes, got {dims}")
    given: dict[str, Any] = {k: read(fields[k]) for k, read in _SINGLE.items() if k in fields}
    if "output_padding" in fields and not given.get("transposed"):
        raise fields["output_padding"].fail(
            "output_padding belongs to transposed layers; remove it or say transposed: true"
        )
    for key, read in _EACH.items():
        if key in fields:
            given[key] = _per_dim(fields[key], dims, read)
    with told_as(node.fail):
        return ConvLayer(name=name, spatial=spatial, **given, input_gradient=input_gradient)


def _per_dim(node: Node, dims: int, read: Callable[[Node], T]) -> tuple[T, ...]:
    """Read one value for all dimensions, or a list of one per dimension."""
    if isinstance(node.value, str):
        return (read(node),) * dims
    items = node.items()
    if len(items) != dims:
        raise node.fail(
            f"expected one number or a list of {dims}, as spatial has, got {len(items)}"
        )
    return tuple(read(item) for item in items)


_positive = partial(Node.integer, least=1)


def _pads(node: Node) -> tuple[int, int]:
    """Read a padding: one number for both sides or a [before, after] pair."""
    if isinstance(node.value, str):
        return (node.integer(0),) * 2
    both = [item.integer(0) for item in node.items()]
    if len(both) != 2:
        raise node.fail(f"expected a number or a [before, after] pair, got a list of {len(both)}")
    return both[0], both[1]


#: What reads the keys of a convolution: those with one value, and those with one per dimension.
_SINGLE: Mapping[str, Callable[[Node], Any]] = {
    **dict.fromkeys(("cin", "cout", "groups", "count"), _positive),
    **dict.fromkeys(("transposed", "bias"), Node.flag),
}
_EACH: Mapping[str, Callable[[Node], Any]] = {
    **dict.fromkeys(("kernel", "stride", "dilation"), _positive),
    "padding": _pads,
    "output_padding": partial(Node.integer, least=0),
}


def workload_yaml(workload: Workload) -> str:
    """The text of a file that ``load_workload`` reads back as the same layers."""
    lines = [f"description: {_quoted(workload.description)}", "", "layers:"]
    for i, layer in enumerate(workload.layers):
        count = 1 if workload.nodes else layer.count
        fields = _fields(replace(layer, count=count), first=i == 0)
        lines += _entry(f"{_quoted(layer.name)}:", fields)
    if workload.nodes:
        return "\n".join([*lines, "", "graph:", *chain_lines(workload.nodes)]) + "\n"
    return "\n".join(lines) + "\n"


def _entry(head: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of one layer, its name or the sign of a list before its keys."""
    *some, last = (f"{key}: {value}" for key, value in pairs)
    first, *more = (*(f"{one}," for one in some), f"{last}}}")
    return wrapped([f"{head} {{{first}", *more], "  ", "    ")


def _fields(layer: Layer, *, first: bool) -> Iterator[tuple[str, str]]:
    """The keys of a layer that are not what a file means without them."""
    yield from (("cin", str(layer.cin)), ("cout", str(layer.cout)))
    if isinstance(layer, LinearLayer):
        yield "rows", str(layer.rows)
        if layer.products:
            yield "products", str(layer.products)
    else:
        yield from _sizes(layer)
    if layer.bias:
        yield "bias", "yes"
    if layer.count > 1:
        yield "count", str(layer.count)
    if layer.input_gradient == first:
        yield "input_gradient", "yes" if layer.input_gradient else "no"


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


# -- chains as text ---------------------------------------------------------------------------

#: Stands for a space at which no line ends.
_GLUE = "\0"


def chain_lines(nodes: Sequence[Step]) -> list[str]:
    """The lines of a ``graph``; a chain goes on where the next node alone reads its result."""
    uses = Counter(name for node in nodes for name in node.inputs)
    chains: list[list[Step]] = []
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

    def add(self, chain: Sequence[Step], *, named: bool) -> None:
        """Write a chain, with a name for its result where something reads that."""
        values = [self.values[name] for name in chain[0].inputs]
        seen = [_seen(chain[0].layer, values, value.shape) for value in values]
        pairs = list(zip(values, seen, strict=True))
        parts = [", ".join(" ".join((v.sources[0], *_stated(shape))) for v, shape in pairs)]
        values = [value._replace(shape=shape or value.shape) for value, shape in pairs]
        for node in chain:
            layer, wanted = node.layer, _wanted(node.layer)
            if not _fits(layer, values):
                parts += _stated(wanted)
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
    return _wanted(layer) if kind in FEW or prod(shape) >= least else ()


def _fits(layer: Layer | ElementwiseLayer, values: Sequence[Value]) -> bool:
    """Whether a layer takes these values as they are."""
    if isinstance(layer, ElementwiseLayer):
        several = len(values) > 1 and layer.kind in SEVERAL
        return several or (len(values) == 1 and values[0].shape == layer.shape)
    products = isinstance(layer, LinearLayer) and bool(layer.products)
    return products or (len(values) == 1 and fits(layer, values[0].shape))


def _stated(shape: Sizes) -> list[str]:
    """Sizes as a part of a chain, none where there are none."""
    return [str(list(shape))] if shape else []


def _step(layer: ElementwiseLayer, values: Sequence[Value]) -> str:
    """An element-wise layer as a step after these values."""
    inside = layer.called or ", ".join(str(number).removesuffix(".0") for number in layer.numbers)
    parts = [f"{layer.kind} ({inside})" if inside else layer.kind, *_windows(layer)]
    parts += ["x".join(map(str, layer.weight))] if layer.weight else []
    windows = {key: getattr(layer, key) for key in ("kernel", "stride", "padding")}
    shapes = [value.shape for value in values]
    if inferred(layer.kind, shapes, windows if layer.kernel else {}) != layer.out:
        parts += _stated(layer.out)
    own = layer.kind in WEIGHTED or bool(layer.weight)
    usual = any(value.trained for value in values) or own
    if layer.input_gradient != usual:
        parts.append("trained" if layer.input_gradient else "untrained")
    return " ".join(parts)


def _windows(layer: ElementwiseLayer) -> Iterator[str]:
    """The windows of a pooling: kernel, stride where it is another, and padding."""

    def axes(texts: Sequence[str]) -> str:
        if len(texts) == len(layer.shape) > 1 and texts[0] == "0":
            texts = texts[1:] if len(set(texts[1:])) == 1 else texts
        alike = len(set(texts)) == 1 and len(texts) == len(layer.shape) - 1
        return texts[0] if alike else "x".join(texts)

    if layer.kernel:
        stride = f"/{axes([str(one) for one in layer.stride])}"
        yield axes([str(one) for one in layer.kernel]) + stride * (layer.stride != layer.kernel)
    if any(map(any, layer.padding)):
        yield "p" + axes([str(a) if a == b else f"{a}:{b}" for a, b in layer.padding])
