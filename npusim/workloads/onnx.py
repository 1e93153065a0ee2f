"""The layers of a network in an ONNX file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError, shown, told_as
from npusim.base.objects import replace
from npusim.base.resources import optional
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.kinds import BY_ROW, KINDS, UNKNOWN, WEIGHTED, kinds_in, listed
from npusim.workloads.layers import INPUT, ConvLayer, LinearLayer, Workload
from npusim.workloads.numbers import FEW, numbers_of, single
from npusim.workloads.onnx_sizes import SMALL, sized, value_sizes
from npusim.workloads.recorder import Part, Recorder

#: Nodes that are an element-wise layer whose kind is called otherwise; others by their own name.
_KINDS = kinds_in("onnx")

#: Nodes that compute nothing.
_MOVES = listed("moves", "onnx")

#: Resized maps whose new elements lie between two neighbours on each axis.
_LINEAR = [f"linear {how}" for how in ("half_pixel", "pytorch_half_pixel", "align_corners")]

#: Those of them whose results are parts of their first operand.
_PARTS = ("Slice", "Split", "Gather")


def workload(path: str | Path, input_shape: Sequence[int] | None = None) -> Workload:
    """The layers of an ONNX file, in the order of its nodes, of one image.

    Convolutions (``Conv``, ``ConvTranspose``) and products (``Gemm``, ``MatMul``, ``Einsum`` of
    two, ``Attention``) are layers, other nodes element-wise ones where they are of ``KINDS``, and
    what else computes is known by its name; all are nodes of a graph. An export may have folded
    normalisations into convolutions. Sizes are those of ONNX's own shape inference. The first
    dimension of the first input is taken for the batch, whose share each image has of what a file
    of several images computes; ``input_shape`` gives the others, without the batch, where the file
    leaves them open. Layers of one shape are one with a count, named
    after the first.

    Raises ``ArgumentError`` where the package ``onnx`` is missing, the file is no ONNX model, or a
    size is open.
    """
    onnx = optional("onnx", "reading an ONNX file needs the package onnx")
    file = Path(path)
    # Exceptions are protobuf's own, by its version.
    with told_as(ArgumentError, f"{file}: not an ONNX model: ", Exception):
        model = onnx.load(str(file), load_external_data=False)
    graph = _Graph(onnx, sized(onnx, model, input_shape, file).graph, file)
    for node in graph.nodes:
        graph.read(node)
    found = Workload.of_nodes(
        shown(file.stem), f"{file.name} (ONNX), one image", graph.found.merged()
    )
    if not found.layers:
        raise ArgumentError(f"{file}: no convolution and no product of matrices")
    return found


class _Graph:
    """Nodes with the sizes of their values, and what has been trained before each."""

    def __init__(self, onnx: Any, graph: Any, file: Path) -> None:
        self.helper, self.file, self.nodes = onnx.helper, file, graph.node
        self.weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.sizes: dict[str, tuple[int, ...]] = value_sizes(graph) | self.weights
        inputs = [one.name for one in graph.input if one.name not in self.weights]
        self.batch = self.sizes[inputs[0]][0]
        self.trained: set[str] = set()
        self.found = Recorder()
        self.found.sources |= dict.fromkeys(inputs, (INPUT,))
        self.products: dict[str, int] = {}  # of vectors and weights, with their places among nodes
        self.parts: dict[str, Part] = {}  # values that are parts of others
        here = (t for t in graph.initializer if not t.external_data and prod(t.dims) <= SMALL)
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in here}

    def read(self, node: Any) -> None:
        """Note what a node computes; nodes must be read in their order."""
        inputs = [name for name in node.input if name]
        behind = any(name in self.trained for name in inputs)
        if not self.found.of(inputs):
            self.weights |= {name: self.sizes[name] for name in node.output if name in self.sizes}
            return  # of weights alone
        if node.op_type in _PARTS and self._cut(node, inputs):
            self.trained |= set(node.output) if behind else set()
            return
        weight = self.weights.get(inputs[1], ()) if len(inputs) > 1 else ()
        if node.op_type in ("Conv", "ConvTranspose") and weight:
            layer: Any = self._convolution(node, weight, behind=behind)
            made = [self.found.add(_name(node), layer, self._of(inputs))]
        else:
            made = self._products(node, inputs)
        trained = bool(made) or behind or _KINDS.get(node.op_type) in WEIGHTED
        more = inputs[2:] if node.op_type == "Gemm" else []
        if more and not self._biased([*node.output, *more]):
            layer = self._elementwise("add", [node.output[0], *more], node.output[0])
            made = [self.found.add("C of Gemm", layer, (*made, *self._of(more)))]
        if not made:
            made = self._other(node, inputs, trained=trained)
        sources = tuple(made) or tuple(dict.fromkeys(self._of(inputs)))
        self.found.sources |= dict.fromkeys(node.output, sources)
        if trained:
            self.trained |= set(node.output)

    def _of(self, names: Iterable[str]) -> tuple[str, ...]:
        """The nodes that these values are of: a part of one is a node of its own."""
        found: list[str] = []
        for name in names:
            sources, part = self.found.of([name]), self.parts.get(name)
            if part is not None and len(sources) == 1:
                sources = (self.found.part(sources[0], part, trained=name in self.trained),)
            found += sources
        return tuple(found)

    def _cut(self, node: Any, inputs: Sequence[str]) -> bool:
        """Note which parts of its operand the results of a node are, if that is known."""
        size, given = self.sizes.get(inputs[0], ()), self.constants.keys() & set(inputs[1:])
        if self.batch not in size or min(size) < 1 or len(given) < len(inputs) - 1:
            return False
        before = self.parts.get(inputs[0])
        inner = before is not None and before.sizes == self._image(size)
        sources = (self.found.of if inner else self._of)(inputs[:1])
        evaluator = import_module("onnx.reference").ReferenceEvaluator(node)
        numbers = [np.broadcast_to(one, size) for one in np.ix_(*map(np.arange, size))]
        constants = {name: self.constants[name] for name in given}
        made = [evaluator.run(None, {inputs[0]: one, **constants}) for one in numbers]
        for name, *where in zip(node.output, *made, strict=True):
            first, last = (tuple(int(one.flat[end]) for one in where) for end in (0, -1))
            ends = zip(first, last, size, strict=True)
            kept = [at for at, (a, b, n) in enumerate(ends) if (a, b, n) == (0, n - 1, self.batch)]
            if not kept:  # of some images
                return False
            shape, begin, end = (one[: kept[0]] + one[kept[0] + 1 :] for one in (size, first, last))
            part = Part(shape, begin, end, where[0].size // self.batch)
            self.parts[name] = part.inside(before) if before and inner else part
        self.found.sources |= dict.fromkeys(node.output, sources)
        return True

    def _biased(self, added: Sequence[str]) -> bool:
        """Whether a number for each feature is added to a linear layer, which then has a bias."""
        at = [self.products[name] for name in added if name in self.products]
        rows = [self.sizes.get(name, ()) for name in added if name in self.weights]
        layer: Any = self.found.nodes[at[0]].layer if at else None
        if layer is None or layer.bias or len(rows) != 1:
            return False
        if rows[0][-1:] != (layer.cout,) or prod(rows[0]) != layer.cout:
            return False
        self.found.bias(at[0])
        return True

    def _products(self, node: Any, inputs: Sequence[str]) -> list[str]:
        """The products of matrices that a node is, of one image."""
        attributes = self._attributes(node)
        if node.op_type in ("MatMul", "Gemm"):
            a, b = (self._size(node, name) for name in inputs[:2])
            a = a[::-1] if attributes.get("transA", 0) else a
            b = b[::-1] if attributes.get("transB", 0) else b
            if len(b) == 2 and inputs[1] in self.weights:  # one matrix for all rows and images
                self.products[node.output[0]] = len(self.found.nodes)
                sizes: list[tuple[int, ...]] = [(0, max(1, prod(a) // b[0] // self.batch), *b)]
            else:
                sizes = [(prod(max(a[:-2], b[:-2], key=prod)), *a[-2:], b[-1])]
        elif node.op_type == "Einsum" and len(inputs) == 2:
            operands = [self._size(node, name) for name in inputs]
            sizes = [einsum_sizes(attributes["equation"].decode(), operands)]
        elif node.op_type == "Attention":
            sizes = self._attention(node, attributes)
        else:
            return []
        made: list[str] = []
        for i, (stack, rows, cin, cout) in enumerate(sizes):
            layer = LinearLayer(
                name="",
                cin=int(cin),
                cout=int(cout),
                rows=int(rows if stack % self.batch == 0 else max(1, rows // self.batch)),
                products=int(stack // self.batch if stack % self.batch == 0 else stack),
                input_gradient=bool(self.trained.intersection(inputs[: i + 1])),
            )
            read = (*made, *self._of(inputs[2 * i : 2 * i + 2]))
            made = [self.found.add(_name(node) + f".{i}" * (len(sizes) > 1), layer, read)]
        return made

    def _attention(self, node: Any, attributes: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """(stack, rows, cin, cout) of the scores, and of what they weigh."""
        query, (*_, keys, _), (*_, deep) = (self._size(node, name) for name in node.input[:3])
        rows, wide = query[-2:]
        heads, shared = attributes.get("q_num_heads", 0), attributes.get("kv_num_heads", 0)
        if len(query) == 3:
            wide, deep = wide // heads, deep // shared
        stack = prod(query[:-2]) * (heads if len(query) == 3 else 1)
        return [(stack, rows, wide, keys), (stack, rows, keys, deep)]

    def _attributes(self, node: Any) -> dict[str, Any]:
        """What a node is told; numbers as they were written, for a file keeps them in fp32."""
        found = ((a.name, self.helper.get_attribute_value(a)) for a in node.attribute)
        return {k: float(str(np.float32(v))) if isinstance(v, float) else v for k, v in found}

    def _nearest(self, node: Any) -> bool:
        """Whether a resized map repeats the elements of the one that is read."""
        mode, places = self._places(node).split()
        rounding = b"floor" if places == "asymmetric" else b"round_prefer_floor"
        told = self._attributes(node).get("nearest_mode", b"round_prefer_floor")
        alike = told == rounding and places != "align_corners"
        return mode == "nearest" and (alike or node.op_type == "Upsample")

    def _places(self, node: Any) -> str:
        """How a map is resized, and where its new elements lie between those that are read."""
        attributes = self._attributes(node)
        usual = ("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel")
        return " ".join(attributes.get(*one).decode() for one in usual)

    def _other(self, node: Any, inputs: Sequence[str], *, trained: bool) -> list[str]:
        """Note a node that is no product, if it computes."""
        kind, name = _KINDS.get(node.op_type, node.op_type.lower()), node.output[0]
        windows = self._windows(node) if kind.endswith("_pool") else {}
        if set(self._attributes(node).get("dilations", ())) - {1}:
            kind, windows = f"dilated {kind}", {}
        if kind == "upsample" and not self._nearest(node):
            kind = "interpolate" if self._places(node) in _LINEAR else ""
        if kind == "pad":
            windows = {"padding": self._sides(node)}
            kind = "slice" if any(min(side) < 0 for side in windows["padding"]) else kind
        if node.op_type in _MOVES or (node.op_type == "Add" and self._biased(inputs)):
            return []
        if found := numbers_of(kind, kind, self._numbers(node)):
            windows["numbers"] = found
        last = (-1, len(self.sizes.get(inputs[0], ())) - 1)
        along = self._attributes(node).get("axis", -1) in last
        if kind not in KINDS or (kind in BY_ROW and not along):
            dilated = kind.startswith("dilated")
            kind = (
                f"{kind} along other axes" if kind in KINDS else kind if dilated else node.op_type
            )
        layer = self._elementwise(kind, inputs, name, input_gradient=trained, **windows)
        if layer and layer.kind in FEW.values():  # the map before what is fewer
            few = [tuple(self.weights[one]) for one in inputs if one in self.weights]
            if few and not layer.numbers:
                sizes = next((few[0][at:] for at, size in enumerate(few[0]) if size > 1), ())
                layer = replace(layer, weight=sizes if len(sizes) <= len(layer.shape) else ())
            inputs = sorted(inputs, key=lambda one: -prod(self.sizes.get(one, ())))
        return [self.found.add(_name(node), layer, self._of(inputs))] if layer else []

    def _numbers(self, node: Any) -> list[float | None]:
        """The numbers behind the first operand of a node: attributes, or constants."""
        attributes = self._attributes(node)
        if node.op_type == "Resize":
            return [self._places(node).endswith("align_corners")]
        if node.op_type.endswith("Normalization"):
            return [attributes.get("num_groups"), attributes.get("epsilon", 1e-5)]
        usual = {"LeakyRelu": (0.01,), "Elu": (1.0,), "HardSigmoid": (0.2, 0.5)}.get(node.op_type)
        if usual:
            return [attributes.get(*one) for one in zip(("alpha", "beta"), usual, strict=False)]
        operands = node.input[1:]
        if node.op_type in ("Add", "Mul"):
            operands = [name for name in node.input if name in self.constants]
        found = [single(self.constants.get(name)) for name in operands]
        return found or [attributes.get("min"), attributes.get("max")]

    def _sides(self, node: Any) -> tuple[tuple[int, int], ...]:
        """How many zeros a padding adds on each side of an image; none where that is not known."""
        attributes = self._attributes(node)
        pads, value = attributes.get("pads", ()), attributes.get("value", 0.0)
        if len(node.input) > 1:  # since operator set 11
            pads = self.constants.get(node.input[1], ())
            value = self.constants.get((*node.input, "")[2], 0.0)
        size = self.sizes[node.input[0]]
        if attributes.get("mode", b"constant") != b"constant" or value or len(pads) < 2 * len(size):
            return ()
        sides = zip(map(int, pads[: len(size)]), map(int, pads[len(size) :]), size, strict=True)
        return tuple((a, b) for a, b, n in sides if n != self.batch)

    def _elementwise(
        self, kind: str, inputs: Sequence[str], name: str, **more: Any
    ) -> ElementwiseLayer | None:
        """The layer of this ``kind``, or so called, from ``inputs`` to ``name``, of known sizes."""
        sizes = [self.sizes.get(one, ()) for one in inputs if one not in self.weights]
        made = self.sizes.get(name, ())
        largest = max(sizes, key=prod, default=())
        if kind in FEW and sum(prod(size) == prod(largest) for size in sizes) < 2:
            sided = kind in ("sub", "div") and "numbers" not in more
            kind = f"{kind} of few elements" if sided else FEW[kind]
        if kind not in KINDS:
            more |= {"called": kind, "shape": self._image(largest), "out": self._image(made)}
            return ElementwiseLayer(kind=UNKNOWN, **more)
        if min(len(made), len(largest)) < 2 or min(*made, *largest) < 1:
            return None
        shape = self._image(made if kind == "concat" else largest)
        return ElementwiseLayer(kind=kind, shape=shape, out=self._image(made), **more)

    def _windows(self, node: Any) -> dict[str, Any]:
        """Kernel, stride and padding of a pooling; none of one of whole maps."""
        attributes = self._attributes(node)
        kernel = tuple(map(int, attributes.get("kernel_shape", ())))
        if not kernel:
            return {}
        x = self._size(node, node.input[0])[2:]
        padding = self._padding(node, attributes, x, kernel)
        counted = attributes.get("count_include_pad", 0) and any(map(any, padding))
        return {
            **({"numbers": (1.0,)} if counted else {}),
            "kernel": kernel,
            "stride": tuple(map(int, attributes.get("strides", (1,) * len(kernel)))),
            "padding": padding,
        }

    def _image(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of one image: without the batch, or with its share of what an axis has of it."""
        if not size:
            return ()
        if self.batch in size:
            at = size.index(self.batch)
            return size[:at] + size[at + 1 :]
        return (size[0] // self.batch or 1, *size[1:])

    def _size(self, node: Any, name: str) -> tuple[int, ...]:
        size: tuple[int, ...] = self.sizes.get(name, ())
        if not size or min(size) < 1:
            raise ArgumentError(
                f"{self.file}: node {node.name or node.output[0]} ({node.op_type}): the size of "
                f"{name} is not known ({'x'.join(map(str, size)) or 'no shape'}); give input_shape "
                "(--input-shape), or export the model with fixed sizes"
            )
        return size

    def _convolution(self, node: Any, weight: Sequence[int], *, behind: bool) -> ConvLayer:
        attributes = self._attributes(node)
        x, dims = self._size(node, node.input[0]), len(weight) - 2
        transposed = node.op_type == "ConvTranspose"
        groups = int(attributes.get("group", 1))

        def each(name: str) -> tuple[int, ...]:
            return tuple(map(int, attributes.get(name, (1,) * dims)))

        extra = tuple(map(int, attributes.get("output_padding", ())))
        return ConvLayer(
            name="",
            cin=int(x[1]),
            cout=int(weight[1] * groups if transposed else weight[0]),
            spatial=tuple(x[2:]),
            kernel=tuple(weight[2:]),
            stride=each("strides"),
            padding=self._padding(node, attributes, x[2:], weight[2:]),
            dilation=each("dilations"),
            groups=groups,
            transposed=transposed,
            output_padding=extra if any(extra) else (),
            input_gradient=behind,
            bias=len(node.input) > 2 and bool(node.input[2]),
        )

    def _padding(
        self, node: Any, attributes: Mapping[str, Any], x: Sequence[int], kernel: Sequence[int]
    ) -> tuple[tuple[int, int], ...]:
        """(before, after) of every axis: as stated, or what makes the stated output size."""
        how, dims = attributes.get("auto_pad", b"NOTSET").decode(), len(x)
        if how in ("NOTSET", "VALID"):
            pads = attributes.get("pads") or (0,) * (2 * dims)
            return tuple(zip(map(int, pads[:dims]), map(int, pads[dims:]), strict=True))
        if node.op_type == "ConvTranspose":
            raise ArgumentError(
                f"{self.file}: node {_name(node)}: auto_pad {how} of a ConvTranspose is not read; "
                "export it with pads"
            )
        out = self._size(node, node.output[0])[2:]
        strides = attributes.get("strides", (1,) * dims)
        dilations = attributes.get("dilations", (1,) * dims)
        sides = []
        for size, k, s, d, y in zip(x, kernel, strides, dilations, out, strict=True):
            both = max(0, (y - 1) * s + d * (k - 1) + 1 - size)
            less = both // 2
            sides.append((less, both - less) if how == "SAME_UPPER" else (both - less, less))
        return tuple(sides)


def _name(node: Any) -> str:
    """What a node is called, without the slashes that separate a workload from a layer."""
    return shown(str(node.name or node.output[0]).strip("/").replace("/", "."))


def einsum_sizes(equation: str, sizes: Sequence[Sequence[int]]) -> tuple[int, int, int, int]:
    """(stack, rows, cin, cout) of an einsum of two: what both and the result have is the stack."""
    operands, _, result = equation.replace(" ", "").replace("...", "").partition("->")
    first, second = operands.split(",")
    extent: dict[str, int] = {}
    rest = 1  # axes behind "..."
    for axes, size in zip((first, second), sizes, strict=True):
        rest = max(rest, prod(size[: len(size) - len(axes)]))
        extent |= dict(zip(axes, size[len(size) - len(axes) :], strict=True))
    result = result or "".join(sorted(a for a in extent if operands.count(a) == 1))

    def of(axes: set[str]) -> int:
        return prod(extent[axis] for axis in axes)

    left, right, kept = set(first), set(second), set(result)
    stack = of(left & right & kept) * rest
    return stack, of((left - right) & kept), of((left & right) - kept), of((right - left) & kept)
