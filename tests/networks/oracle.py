"""PyTorch's and ONNX's own account of what a network multiplies: the judge of graphs that are read.

Nothing here uses how the package reads networks. Three accounts are given in the same terms:
``joint_products`` from the graph of a forward and backward pass that PyTorch traces without data,
``dispatched_products`` from the operations that one real step calls, and ``onnx_layers`` from the
nodes that a run of an ONNX file meets.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

aot_autograd = pytest.importorskip("torch._functorch.aot_autograd")
attention = pytest.importorskip("torch.nn.attention")
dispatch = pytest.importorskip("torch.utils._python_dispatch")
fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
pytree = pytest.importorskip("torch.utils._pytree")

#: A ``torch.nn.Module`` or ``torch.Tensor``: type checkers have no PyTorch.
Module = Any
Tensor = Any

Sizes = tuple[int, ...]


class Convolution(NamedTuple):
    """A call of ``aten.convolution``; ``x`` and ``w`` are shapes as PyTorch has them."""

    x: Sizes
    w: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    transposed: bool
    output_padding: Sizes


class ConvolutionBackward(NamedTuple):
    """A call of ``aten.convolution_backward``: the forward call, and which gradients it computes.

    ``mask`` says it of the input, the weight and the bias, in the operator's order.
    """

    of: Convolution
    mask: tuple[bool, bool, bool]


class Product(NamedTuple):
    """``stack`` products of an m x k and a k x n matrix; made by ``product`` in one spelling."""

    stack: int
    m: int
    k: int
    n: int
    is_complex: bool = False


Operation = Convolution | ConvolutionBackward | Product


class Step(NamedTuple):
    """What a step multiplies, and the names of the parameters that get a gradient.

    ``transforms`` are Fourier transforms by the name of their operation, of both passes.
    """

    forward: Counter[Operation]
    backward: Counter[Operation]
    gradients: frozenset[str]
    transforms: Counter[str]


def product(stack: int, m: int, k: int, n: int, *, is_complex: bool = False) -> Product:
    """A product in the one spelling that it has in common with its transposed twin."""
    return Product(stack, min(m, n), k, max(m, n), is_complex)


def multiply_adds(operations: Mapping[Operation, int]) -> int:
    """Multiply-adds of the products and of the convolutions that go forward.

    A convolution multiplies at every place of its filter, also over padding. A complex product is
    four real ones. ``TypeError`` for a backward convolution, which has several parts.
    """
    return sum(count * _multiply_adds(operation) for operation, count in operations.items())


def _multiply_adds(operation: Operation) -> int:
    if isinstance(operation, Product):
        real = operation.stack * operation.m * operation.k * operation.n
        return 4 * real if operation.is_complex else real
    if isinstance(operation, ConvolutionBackward):
        raise TypeError(f"multiply-adds are counted of forward operations; got {operation}")
    taps = prod(operation.w[1:])
    if operation.transposed:  # every element of the input meets the filters of its group
        return prod(operation.x) * taps
    places = (
        (x + 2 * p - d * (k - 1) - 1) // s + 1
        for x, k, s, p, d in zip(
            operation.x[2:],
            operation.w[2:],
            operation.stride,
            operation.padding,
            operation.dilation,
            strict=True,
        )
    )
    return operation.x[0] * operation.w[0] * prod(places) * taps


# -- operations of ATen ----------------------------------------------------------------------

#: Words in the names of operations that multiply matrices or transform; one that has such a word
#: and no line in ``ProductCounter.see`` is an error, never left out.
MULTIPLIES = re.compile(
    r"attention|lstm|gru|rnn|trilinear|conv|linear|mm|matmul|cdist|mkldnn|gemm|einsum|dot|ger|addr"
    r"|linalg|solve|cholesky|kron|mv|bilinear"
)

#: Operations that have such a word by chance, or only enlarge.
HARMLESS = re.compile(r"upsample_|grid_sampler|linspace|convert|copy|vector_norm|_integer")

#: Views that a product may pass on its way to the sum over its stack.
VIEWS = frozenset({"view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "alias", "detach"})


class ProductCounter:
    """Adds operations of ATen up as they are met; ``operations`` has those so far.

    A product whose one operand is the same for the whole stack is one product of as many more
    rows, as it is if PyTorch flattens the rows first. So is one whose results are summed over the
    stack, the gradient of such an operand: it is one product with as many more terms.
    """

    def __init__(self) -> None:
        self.operations: Counter[Operation] = Counter()
        self.transforms: Counter[str] = Counter()
        self._stacked: dict[Any, Product] = {}

    def see(self, name: str, arguments: Sequence[Any], keys: Any) -> None:
        """Note a call of ``name``, such as "bmm", with tensors among its ``arguments``.

        ``keys`` are what its first argument and its result are known by: the same for what is a
        view of the same product. ``NotImplementedError`` for what multiplies and is not known.
        """
        source, target = keys
        if name == "convolution":
            self.operations[_convolution(*_convolution_arguments(arguments))] += 1
        elif name == "convolution_backward":
            _, x, w, _, stride, padding, dilation, transposed, extra, groups, mask = arguments
            forward = (x, w, stride, padding, dilation, transposed, extra, groups)
            mask = tuple(bool(part) for part in mask)
            self.operations[ConvolutionBackward(_convolution(*forward), mask)] += 1
        elif name in ("mm", "addmm", "mv", "addmv", "dot", "vdot", "_int_mm"):
            left, right = arguments[-2:] if not name.startswith("add") else arguments[1:3]
            self.operations[_of_matrices(left, right)] += 1
        elif name in ("bmm", "baddbmm"):
            left, right = arguments[:2] if name == "bmm" else arguments[1:3]
            stacked = _of_stacks(left, right)
            self.operations[stacked] += 1
            if stacked.stack > 1:
                self._stacked[target] = stacked
        elif name == "sum" and source in self._stacked:
            self._sum(source, arguments)
        elif name.startswith("_fft"):
            self.transforms[name] += 1
        elif MULTIPLIES.search(name) and not HARMLESS.search(name):
            raise NotImplementedError(f"aten.{name} multiplies, and the oracle does not count it")
        if name in VIEWS and source in self._stacked:
            self._stacked.setdefault(target, self._stacked[source])

    def _sum(self, source: Any, arguments: Sequence[Any]) -> None:
        stacked = self._stacked[source]
        axes = arguments[1] if len(arguments) > 1 else None
        if axes is None or [axis % arguments[0].ndim for axis in axes] != [0]:
            return
        shape = tuple(arguments[0].shape)
        if (shape[0], *sorted(shape[1:])) != (stacked.stack, stacked.m, stacked.n):
            return  # a view has split the stack, or the results: it is a sum of something else
        del self._stacked[source]
        self.operations[stacked] -= 1
        self.operations += Counter()  # drops what is there no times
        summed = stacked._replace(stack=1, k=stacked.stack * stacked.k)
        self.operations[summed] += 1


def _convolution_arguments(arguments: Sequence[Any]) -> Sequence[Any]:
    x, w, _, stride, padding, dilation, transposed, output_padding, groups = arguments
    return x, w, stride, padding, dilation, transposed, output_padding, groups


def _convolution(
    x: Tensor,
    w: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: int,
) -> Convolution:
    axes = w.ndim - 2

    def sizes(values: Any) -> Sizes:
        return tuple(values) * (axes if len(values) == 1 else 1)

    return Convolution(
        tuple(x.shape),
        tuple(w.shape),
        sizes(stride),
        sizes(padding),
        sizes(dilation),
        groups,
        bool(transposed),
        sizes(output_padding),
    )


def _of_matrices(left: Tensor, right: Tensor) -> Product:
    """The product of two matrices, of which one or both may be vectors."""
    m = left.shape[0] if left.ndim == 2 else 1
    n = right.shape[1] if right.ndim == 2 else 1
    return product(1, m, left.shape[-1], n, is_complex=left.is_complex())


def _of_stacks(left: Tensor, right: Tensor) -> Product:
    stack, m, k = left.shape
    n = right.shape[2]
    same_left, same_right = (stack > 1 and each.stride(0) == 0 for each in (left, right))
    if same_right and not same_left:
        m, stack = m * stack, 1
    elif same_left and not same_right:
        n, stack = n * stack, 1
    return product(stack, m, k, n, is_complex=left.is_complex())


# -- both accounts of a step -----------------------------------------------------------------


class _Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module that returns its loss alone."""

    def __init__(self, module: Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.module, self.loss = module, loss or total

    def forward(self, *inputs: Any) -> Any:
        return (self.loss(self.module(*inputs)),)


def total(outputs: Any) -> Tensor:
    """The sum of the squares of all outputs that have a gradient.

    Of a plain sum every gradient were one number in many places, and looked like an operand that
    a stack of products shares.
    """
    sums = []
    for output in pytree.tree_leaves(outputs):
        if torch.is_tensor(output) and output.requires_grad:
            real = torch.view_as_real(output) if output.is_complex() else output
            sums.append((real * real).sum())
    if not sums:
        raise ValueError("no output of the module has a gradient; there is no step to look at")
    return torch.stack(sums).sum() if len(sums) > 1 else sums[0]


@contextmanager
def _plainly(module: Module) -> Iterator[None]:
    """Attention and recurrent layers as products, and the module's own tensors back afterwards."""
    modules = list(module.modules())
    tensors = [
        {name: value for name, value in vars(part).items() if torch.is_tensor(value)}
        for part in modules
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of its own internals
            with (
                attention.sdpa_kernel(attention.SDPBackend.MATH),
                torch.backends.mkldnn.flags(enabled=False),
            ):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, values in zip(modules, tensors, strict=True):
            vars(part).update(values)


def joint_products(
    module: Module, inputs: tuple[Tensor, ...], loss: Callable[..., Any] | None = None
) -> Step:
    """What PyTorch's joint graph of a training step multiplies; no data is computed.

    ``loss`` is a function of the module's outputs; without one it is ``total``.
    """
    wrapped = _Loss(module, loss)
    with _plainly(module), fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tuple(mode.from_tensor(each) for each in inputs)
        with _frozen(_without_gradient(wrapped, fakes, mode)):
            graph, signature = aot_autograd.aot_export_module(
                wrapped, fakes, trace_joint=True, output_loss_index=0
            )
    assert isinstance(graph, torch.fx.GraphModule)
    assert signature.backward_signature is not None
    forward, backward = ProductCounter(), ProductCounter()
    counter = forward
    roots: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        name = _name_of(node.target)
        first = node.args[0] if node.args else None
        roots[node] = roots.get(first, first) if name in VIEWS else node
        if name != "getitem":
            arguments = torch.fx.node.map_arg(node.args, lambda each: each.meta.get("val"))
            counter.see(name, arguments, (roots.get(first, first), roots[node]))
        if node.name == signature.user_outputs[0]:
            counter = backward
    names = signature.backward_signature.gradients_to_parameters.values()
    weights = dict(wrapped.named_parameters(remove_duplicate=False))
    first_names = {weight: name for name, weight in module.named_parameters()}
    return Step(
        forward.operations,
        backward.operations,
        frozenset(first_names[weights[name]] for name in names),
        forward.transforms + backward.transforms,
    )


def _without_gradient(wrapped: _Loss, fakes: tuple[Tensor, ...], mode: Any) -> list[Tensor]:
    """Trainable parameters that no gradient reaches, which PyTorch's joint graph refuses."""
    trainable = {name: p for name, p in wrapped.named_parameters() if p.requires_grad}
    copies = {name: mode.from_tensor(each) for name, each in wrapped.named_parameters()}
    buffers = {name: mode.from_tensor(each) for name, each in wrapped.named_buffers()}
    (loss,) = torch.func.functional_call(wrapped, copies | buffers, fakes, tie_weights=True)
    gradients = torch.autograd.grad(loss, [copies[name] for name in trainable], allow_unused=True)
    pairs = zip(trainable.values(), gradients, strict=True)
    return [weight for weight, gradient in pairs if gradient is None]


@contextmanager
def _frozen(weights: Sequence[Tensor]) -> Iterator[None]:
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _name_of(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    name: str = packet.__name__ if packet is not None else target.__name__
    return name


class counted(dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]  # noqa: N801
    """A context that shows every operation called within it to a counter."""

    def __init__(self, counter: ProductCounter) -> None:
        super().__init__()
        self.counter = counter
        self.kept: list[Any] = []  # keeps memory from being used twice, as its place is the key

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        name = _name_of(function)
        if name in ("bmm", "baddbmm"):
            self.kept.append(result)
        keys = (_place(arguments[0] if arguments else None), _place(result))
        self.counter.see(name, arguments, keys)
        return result


def _place(value: Any) -> Any:
    return value.untyped_storage().data_ptr() if torch.is_tensor(value) else None


def dispatched_products(
    module: Module, inputs: tuple[Tensor, ...], loss: Callable[..., Any] | None = None
) -> Step:
    """What one real step multiplies, forward and backward, as the operations are called.

    The module keeps its parameters and gets their gradients.
    """
    forward, backward = ProductCounter(), ProductCounter()
    module.zero_grad()
    with _plainly(module):
        with counted(forward):
            (value,) = _Loss(module, loss)(*inputs)
        with counted(backward):
            value.backward()
    gradients = {name for name, weight in module.named_parameters() if weight.grad is not None}
    return Step(
        forward.operations,
        backward.operations,
        frozenset(gradients),
        forward.transforms + backward.transforms,
    )
