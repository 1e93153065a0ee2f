"""The walk through an exported graph: each operation becomes what its row of the table says."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import PurePath
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch.program import REGIONS, is_view, written_by
from npusim.workloads.from_torch.values import Later, Sizes, TracedValue, sizes_of, whole
from npusim.workloads.graph import MULTIPLIES, Edge, GraphBuilder
from npusim.workloads.kinds import UNKNOWN, listed
from npusim.workloads.layers import Layer

#: The most elements of a constant whose numbers are kept.
KNOWN_ELEMENTS = 10**6

#: Operations whose result is the same whatever tensors they get, of which only the sizes matter.
_CONSTANT = listed("constant", "torch")

#: Words in names of operations that multiply matrices, of which no row tells more.
_PRODUCTS = re.compile(r"conv|linear(?!_)|matmul|_mm|mm_|^mm|attention|lstm|gru|rnn|gemm|solve|fft")


class AtenCall:
    """An operation as it is called: its ``name`` and its arguments by those of its schema.

    ``results`` are its results as PyTorch sized them: one tensor without data, or several.
    """

    def __init__(self, name: str, target: Any, arguments: Mapping[str, Any], results: Any) -> None:
        self.name = name
        self.target = target
        self.results = results
        self._arguments = arguments

    def __getitem__(self, argument: str) -> Any:
        return self._arguments[argument]

    def get(self, argument: str, usual: Any = None) -> Any:
        """An argument, ``usual`` where the operation has none of that name."""
        return self._arguments.get(argument, usual)

    @property
    def values(self) -> list[Any]:
        """All arguments in the order of the schema."""
        return list(self._arguments.values())

    @property
    def tensors(self) -> list[TracedValue]:
        """The tensors among its arguments, also those in lists."""
        flat: list[Any] = []
        for value in self._arguments.values():
            flat += value if isinstance(value, (list, tuple)) else [value]
        return [value for value in flat if isinstance(value, TracedValue)]

    @property
    def shape(self) -> Sizes:
        """The sizes of its only result, or of the first."""
        first = self.results[0] if isinstance(self.results, (list, tuple)) else self.results
        return tuple(int(size) for size in first.shape)


class Reader:
    """State of reading a program: the graph so far, and what the rows of the table need.

    ``table`` has a function of the reader and a ``AtenCall`` for each operation, which returns its
    result. ``traces`` are the places of operations that a decomposition has made others of.
    """

    def __init__(
        self,
        torch: Any,
        builder: GraphBuilder,
        table: Mapping[str, Callable[[Reader, AtenCall], Any]],
        *,
        model: Any,
        unrolled: bool,
        traces: Mapping[str, str],
    ) -> None:
        self.torch = torch
        self.builder = builder
        self.table = table
        self.unrolled = unrolled
        self._traces = traces
        self.aten = torch.ops.aten
        self.notes: list[str] = []
        self._model = model
        self._library = str(PurePath(torch.__file__).parent)
        self._here = str(PurePath(__file__).parent)
        self._known: dict[Any, TracedValue] = {}
        self._node: Any = None
        self._words: dict[str, tuple[str, bool]] = {}

    # -- values --------------------------------------------------------------------------------

    def value(
        self,
        source: str | Later,
        shape: Sequence[int],
        *,
        dtype: Any = None,
        constant: Any = None,
    ) -> TracedValue:
        """The tensor that a value of the graph is, of fp32 unless said otherwise."""
        if isinstance(source, str):
            name = source
            source = Later(lambda: name)
        dtype = dtype or self.torch.float32
        seen = self.torch.complex64 if dtype.is_complex else self.torch.float32
        view = self.torch.empty(tuple(shape), dtype=seen, device="meta")
        base = (*view.shape, 2) if dtype.is_complex else tuple(view.shape)
        return TracedValue(source, base, whole(base), view, dtype, constant=constant)

    def constant(self, tensor: Any, name: str) -> TracedValue:
        """A constant, which becomes one of the graph when it is read; its name tells its use."""

        def noted() -> str:
            real = self.torch.view_as_real(tensor) if tensor.is_complex() else tensor
            data = None
            if tensor.numel() <= KNOWN_ELEMENTS and tensor.dtype != self.torch.bfloat16:
                data = real.detach().resolve_conj().numpy()
            return self.builder.parameter(
                self._unused(name), tuple(real.shape), trained=False, data=data
            )

        return self.value(Later(noted), tensor.shape, dtype=tensor.dtype, constant=tensor)

    def _unused(self, name: str) -> str:
        unused = name
        number = 1
        while unused in self.builder.shapes:
            number += 1
            unused = f"{name}_{number}"
        return unused

    def parameter(self, value: TracedValue | None) -> str | None:
        """The name of the parameter, buffer or constant that a tensor is as it lies, or None."""
        if value is None or not value.is_plain:
            return None
        name = value.source()
        return name if name in self.builder.parameters else None

    def flows(self, value: TracedValue | None) -> bool:
        """Return whether a gradient flows back to a tensor."""
        return value is not None and value.gradient and self.builder.trained[value.source()]

    def read(self, value: TracedValue) -> Edge:
        """The edge that reads a tensor in its own shape and order, by nodes that bring it there."""
        return self._edge(self.plain(value), value)

    def _edge(self, plain: TracedValue, value: TracedValue) -> Edge:
        shape = (*plain.shape, 2) if plain.is_complex else plain.shape
        return Edge(plain.source(), shape, value.gradient)

    def plain(self, value: TracedValue) -> TracedValue:
        """The tensor in its own order: its window, its permutation, its expansion made."""
        if value.is_plain:
            return value
        if value.constant is not None and value.elements <= KNOWN_ELEMENTS:
            return self._arranged(value)
        value = self.cut(value)
        order = value.lies
        if order.axes != tuple(sorted(order.axes)):
            value = self._permuted(value)
        if order.repeated:
            value = self._expanded(value)
        return value

    def _arranged(self, value: TracedValue) -> TracedValue:
        """A constant as another one, whose numbers lie in the order of the tensor."""
        name = f"{value.source()}.part"
        return self.constant(value.constant.contiguous(), name)

    def cut(self, value: TracedValue) -> TracedValue:
        """The tensor as one of all elements of a value: its window is a node of its own."""
        if not value.is_part:
            return value
        cut = self._cut(value.source(), value.base, value.window)
        return TracedValue(
            cut.source, cut.base, cut.window, value.view, value.dtype, value.gradient,
            value.constant,
        )  # fmt: skip

    def _cut(self, source: str, base: Sizes, window: Any) -> TracedValue:
        key = ("slice", source, base, window)
        if key not in self._known:
            steps = tuple(part[2] for part in window)
            sizes = zip(base, window, strict=True)
            layer = ElementwiseLayer(
                kind="slice",
                shape=base,
                out=sizes_of(window),
                padding=tuple((-part[0], part[1] - size) for size, part in sizes),
                stride=steps if any(step > 1 for step in steps) else (),
            )
            name = self.builder.add(
                f"{source}.slice", layer, [Edge(source, base)], parameters={}, place=self.place
            )
            self._known[key] = self.value(name, layer.out)
        return self._known[key]

    def _permuted(self, value: TracedValue) -> TracedValue:
        """The same tensor, lying in its own order but for what is repeated."""
        order = value.lies
        lying = order.sizes
        axes = tuple(order.axes.index(axis) for axis in range(len(order.axes)))
        shape = order.unrepeated
        if value.is_complex:
            lying = (*lying, 2)
            axes = (*axes, len(axes))
            shape = (*shape, 2)
        layer = ElementwiseLayer(kind="permute", shape=lying, out=shape, axes=axes)
        result = self._moved(value, layer)
        view = self.torch.empty(order.unrepeated, dtype=value.view.dtype, device="meta")
        return TracedValue(
            result.source, result.base, result.window, view.expand(value.shape), value.dtype,
            value.gradient, value.constant,
        )  # fmt: skip

    def _expanded(self, value: TracedValue) -> TracedValue:
        """The same tensor with each element as often as it is repeated."""
        shape = value.lies.unrepeated
        out = value.shape
        if value.is_complex:
            shape = (*shape, 2)
            out = (*out, 2)
        result = self._moved(value, ElementwiseLayer(kind="expand", shape=shape, out=out))
        view = self.torch.empty(value.shape, dtype=value.view.dtype, device="meta")
        return TracedValue(
            result.source, result.base, result.window, view, value.dtype, value.gradient,
            value.constant,
        )  # fmt: skip

    def _moved(self, value: TracedValue, layer: ElementwiseLayer) -> TracedValue:
        source = value.source()
        key = (source, layer)
        if key not in self._known:
            name = self.builder.add(
                f"{source}.{layer.kind}", layer, [Edge(source, layer.shape)], parameters={},
                place=self.place,
            )  # fmt: skip
            self._known[key] = self.value(name, layer.out)
        return self._known[key]

    # -- nodes ---------------------------------------------------------------------------------

    def add(
        self,
        what: str,
        layer: Layer | ElementwiseLayer,
        reads: Sequence[Edge],
        parameters: Mapping[str, TracedValue] | None = None,
    ) -> str:
        """Note an operation of the module that is being read; returns the name of its value.

        ``what`` says what it is where the module has several. ``parameters`` are those of the node
        by their symbols; one of which nothing asks a gradient leaves the node without any.
        """
        trained = parameters or {}
        frozen = not any(edge.gradient and self.builder.trained[edge.value] for edge in reads)
        frozen = frozen and not any(self.flows(value) for value in trained.values())
        return self.builder.add(
            self.name(what),
            layer,
            reads,
            parameters={symbol: self.parameter(value) or "" for symbol, value in trained.items()},
            place=self.place,
            frozen=frozen,
        )

    def result(self, name: str, call: AtenCall) -> TracedValue:
        """The result of a call, as the value of that name."""
        result = call.results[0] if isinstance(call.results, (list, tuple)) else call.results
        return self.of(name, result)

    def of(self, name: str, result: Any) -> TracedValue:
        """The tensor that a value is, sized as PyTorch has sized ``result``."""
        return self.value(name, result.shape, dtype=result.dtype)

    def unknown(
        self, called: str, operands: Sequence[TracedValue], out: Sequence[int], *, what: str = ""
    ) -> str:
        """Note an operation of which the name is known, and what it reads and writes."""
        reads = [self.read(value) for value in operands]
        shape = max((edge.shape for edge in reads), key=prod)
        layer = ElementwiseLayer(
            kind=UNKNOWN, called=called, shape=shape or (1,), out=tuple(out) or (1,)
        )
        return self.add(what or called.removeprefix(MULTIPLIES), layer, reads)

    def name(self, what: str) -> str:
        """The module that computes, and ``what`` where it does more than that."""
        stack = list((self._node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
        if path not in self._words:
            self._words[path] = self._word(path)
        word, alone = self._words[path]
        return word if alone else f"{word}.{what}"

    def _word(self, path: str) -> tuple[str, bool]:
        """The name of a module in names of nodes, and whether it computes one thing."""
        nn = self.torch.nn
        inside = path.removeprefix("model").removeprefix(".")
        try:
            module = self._model.get_submodule(inside)
        except AttributeError:
            return inside or self.builder.title, False
        simple = type(module).__module__.startswith("torch.nn.") and not any(module.children())
        alone = simple or isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        return inside or type(module).__name__, alone

    @property
    def place(self) -> str:
        """The line of the user's code, such as "model.py:12", "" where none is known."""
        text = self._node.meta.get("stack_trace") if self._node is not None else None
        if text is None and self._node is not None:
            text = self._traces.get(_origin(self._node))
        for file, line in reversed(re.findall(r'File "(.+?)", line (\d+)', text or "")):
            if not file.startswith((self._library, self._here, "<")):
                return f"{PurePath(file).name}:{line}"
        return ""

    # -- the walk ------------------------------------------------------------------------------

    def walk(self, module: Any, arguments: Sequence[Any]) -> Any:
        """Read a graph whose placeholders are ``arguments``; returns what its output is."""
        remaining = iter(arguments)
        environment: dict[Any, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                environment[node] = next(remaining)
            elif node.op == "get_attr":
                environment[node] = self._attribute(module, node)
            elif node.op == "output":
                return _resolved(node.args[0], environment)
            else:
                with self._at(node):
                    environment[node] = self._called(node, environment)
                for written in written_by(node):
                    environment[written] = environment[node]
        return None

    @contextmanager
    def _at(self, node: Any) -> Any:
        """Name nodes after the module and the line of an operation; one within it has its own."""
        before = self._node
        if before is None or "nn_module_stack" in node.meta:
            self._node = node
        try:
            yield
        finally:
            self._node = before

    def _attribute(self, module: Any, node: Any) -> Any:
        value = module
        for part in node.target.split("."):
            value = getattr(value, part)
        return self.constant(value, node.name) if isinstance(value, self.torch.Tensor) else value

    def _called(self, node: Any, environment: Mapping[Any, Any]) -> Any:
        target = node.target
        arguments = _resolved(node.args, environment)
        keywords = _resolved(node.kwargs, environment)
        if target is operator.getitem:
            return arguments[0][arguments[1]]
        schema = getattr(target, "_schema", None)
        if schema is None:
            return self._other(node, arguments, keywords)
        named: dict[str, Any] = {}
        for place, argument in enumerate(schema.arguments):
            if place < len(arguments):
                named[argument.name] = arguments[place]
            elif argument.name in keywords:
                named[argument.name] = keywords[argument.name]
            else:
                named[argument.name] = argument.default_value
        space, _, name = schema.name.partition("::")
        if schema.is_mutable:
            name = name.removesuffix("_")
        word = name if space in ("aten", "prims") else f"{space}.{name}"
        call = AtenCall(word, target, named, node.meta.get("val"))
        return self.operation(call, is_factory=not call.tensors)

    def _other(self, node: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """An operation of Python's, or one that runs graphs of its own."""
        name = getattr(node.target, "__name__", str(node.target))
        if name in REGIONS:
            graph, *operands = arguments[REGIONS[name] :]
            without = name == "wrap_with_set_grad_enabled" and not arguments[0]
            if without:
                operands = [_detached(value) for value in operands]
            return self.walk(graph, operands)
        if name in ("cond", "while_loop"):
            raise ArgumentError(
                f"{self.builder.title}: {self.place or name} branches on data ({name}); state "
                "the branch outside of the module, or take it out"
            )
        values = [value for value in arguments if isinstance(value, TracedValue)]
        if not values:
            return node.target(*arguments, **keywords)
        results = node.meta.get("val")
        several = isinstance(results, (list, tuple))
        result = [
            self.of(self.unknown(f"{MULTIPLIES}{name}", values, tuple(item.shape)), item)
            for item in (results if several else [results])
        ]
        return tuple(result) if several else result[0]

    def operation(self, call: AtenCall, *, is_factory: bool = False) -> Any:
        """The result of a call, by its row or by what is known of any operation."""
        is_factory = is_factory or call.name in _CONSTANT
        folded = self._folded(call, is_factory=is_factory)
        if folded is not None:
            return folded
        row = self.table.get(call.name)
        if is_view(call.target) and row is None:
            row = self.table["any view"]
        if not is_view(call.target) and not is_factory and _is_of_integers(call.results):
            if isinstance(call.results, (list, tuple)):
                return tuple(self.later(call, result) for result in call.results)
            return self.later(call, call.results, row)
        if row is not None:
            return row(self, call)
        if _is_composite(self.torch, call.target):
            return self.decomposed(call)
        return self.named(call)

    def later(
        self, call: AtenCall, result: Any, row: Callable[[Reader, AtenCall], Any] | None = None
    ) -> TracedValue:
        """A result of integers or truth values: a node only if a floating-point operation reads it.

        Without a ``row`` it is one that is known by name.
        """
        node = self._node

        def noted() -> str:
            before = self._node
            self._node = node
            try:
                if row is not None:
                    return self.read(row(self, call)).value
                operands = [value.detached() for value in call.tensors]
                return self.unknown(call.name, operands, tuple(result.shape))
            finally:
                self._node = before

        return self.value(Later(noted), result.shape, dtype=result.dtype)

    def _folded(self, call: AtenCall, *, is_factory: bool) -> Any:
        """The result of an operation on constants, computed, None of any other."""
        tensors = call.tensors
        if any(value.constant is None for value in tensors) and not is_factory:
            return None
        results = call.results if isinstance(call.results, (list, tuple)) else [call.results]
        if any(not hasattr(item, "numel") or item.numel() > KNOWN_ELEMENTS for item in results):
            return self._unkept(call) if is_factory else None
        if is_view(call.target) or call.name in ("clone", "contiguous", "detach"):
            return None
        result = self._computed(call)
        several = isinstance(result, (list, tuple))
        values = tuple(
            self.constant(item, self._numbers(call)) for item in (result if several else [result])
        )
        return values if several else values[0]

    def _numbers(self, call: AtenCall) -> str:
        """The name of a constant that an operation makes."""
        return f"{self.name(call.name).removesuffix('.' + call.name)}.{call.name}"

    def _computed(self, call: AtenCall) -> Any:
        """The result of PyTorch on constants, with the same random numbers each time."""
        with self.torch.random.fork_rng(devices=[]), self.torch.no_grad():
            self.torch.manual_seed(0)
            return computed(self.torch, call)

    def _unkept(self, call: AtenCall) -> TracedValue:
        """A constant of so many elements that its numbers are not kept."""
        name = self._numbers(call)
        result = call.results

        def noted() -> str:
            return self.builder.parameter(self._unused(name), tuple(result.shape), trained=False)

        return self.value(Later(noted), result.shape, dtype=result.dtype)

    def decomposed(self, call: AtenCall) -> Any:
        """The result of an operation that PyTorch composes of others, read one by one."""
        make_fx = import_module("torch.fx.experimental.proxy_tensor").make_fx
        values = call.tensors
        shown = iter([_shown(self.torch, value) for value in values])
        flat = _replaced(call.values, shown)

        def composed(*tensors: Any) -> Any:
            placed, named = split_arguments(call.target, _replaced(flat, iter(tensors)))
            return call.target.decompose(*placed, **named)

        graph = make_fx(composed)(*[item for item in _flat(flat) if hasattr(item, "stride")])
        result = self.walk(graph, values)
        return tuple(result) if isinstance(result, list) else result

    def named(self, call: AtenCall) -> Any:
        """The result of an operation of which only the name is known.

        One that multiplies by its name, or a stranger's that reads a matrix of weights, is said to
        multiply.
        """
        tensors = call.tensors
        if not tensors:
            raise ArgumentError(
                f"{self.builder.title}: {call.name} ({self.place}) has no operand; state its "
                "result as a buffer of the module"
            )
        weights = [value for value in tensors if self.parameter(value) and len(value.shape) > 1]
        strange = "." in call.name and any(
            self.builder.parameters[self.parameter(value) or ""].trained for value in weights
        )
        multiplies = strange or bool(_PRODUCTS.search(call.name))
        called = f"{MULTIPLIES}{call.name}" if multiplies else call.name
        several = isinstance(call.results, (list, tuple))
        results = call.results if several else [call.results]
        tensors_made = [result for result in results if hasattr(result, "shape")]
        if any(item.is_complex() for item in tensors_made) or any(
            item.is_complex for item in tensors
        ):
            called = f"{called} (complex)"
        values: list[TracedValue | None] = []
        for result in results:
            if not hasattr(result, "shape"):
                values.append(None)
                continue
            out = (*result.shape, 2) if result.is_complex() else tuple(result.shape)
            if not values or _floats(result):
                name = self.unknown(called, tensors, out, what=call.name)
                values.append(self.of(name, result))
            else:
                values.append(self.later(call, result))
        return tuple(values) if several else values[0]

    def named_value(self, call: AtenCall) -> TracedValue:
        """The result of such an operation that has exactly one, a tensor."""
        result = self.named(call)
        assert isinstance(result, TracedValue)
        return result


def computed(torch: Any, call: AtenCall) -> Any:
    """The result of an operation on constants; none of them is written.

    Of a tensor that is no constant only the sizes matter to it.
    """
    arguments = [
        torch.zeros(value.shape, dtype=value.dtype)
        if value.constant is None
        else value.constant.clone()
        for value in call.tensors
    ]
    placed, named = split_arguments(call.target, _replaced(call.values, iter(arguments)))
    if "device" in named:
        named["device"] = "cpu"
    return call.target(*placed, **named)


def split_arguments(target: Any, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call by place, and those by name."""
    placed: list[Any] = []
    named: dict[str, Any] = {}
    for argument, value in zip(target._schema.arguments, values, strict=True):
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            placed.append(value)
    return placed, named


def _replaced(values: Any, tensors: Any) -> Any:
    """Arguments with the next of ``tensors`` in place of each that is one."""
    if isinstance(values, (list, tuple)):
        return [_replaced(value, tensors) for value in values]
    return next(tensors) if isinstance(values, TracedValue) or hasattr(values, "stride") else values


def _flat(values: Any) -> list[Any]:
    if isinstance(values, (list, tuple)):
        return [result for value in values for result in _flat(value)]
    return [values]


def _shown(torch: Any, value: TracedValue) -> Any:
    """A tensor without data of the sizes of a value, of the sort that its numbers are."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _origin(node: Any) -> str:
    """The name of the operation that a decomposition has made this one of."""
    sources = node.meta.get("from_node") or ()
    return sources[0].name if sources else ""


def _floats(result: Any) -> bool:
    return bool(result.is_floating_point() or result.is_complex())


def _is_of_integers(results: Any) -> bool:
    """Return whether no result has floating-point or complex values."""
    several = results if isinstance(results, (list, tuple)) else [results]
    tensors = [result for result in several if hasattr(result, "is_floating_point")]
    return bool(tensors) and not any(_floats(result) for result in tensors)


def _detached(value: Any) -> Any:
    return value.detached() if isinstance(value, TracedValue) else value


def _is_composite(torch: Any, target: Any) -> bool:
    """Return whether PyTorch composes an operation of others."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return hasattr(target, "decompose") and bool(has(target.name(), "CompositeImplicitAutograd"))


def _resolved(value: Any, environment: Mapping[Any, Any]) -> Any:
    """Arguments with the values that nodes of the graph have."""
    if isinstance(value, (list, tuple)):
        return [_resolved(result, environment) for result in value]
    if isinstance(value, dict):
        return {key: _resolved(result, environment) for key, result in value.items()}
    return environment[value] if hasattr(value, "users") else value
