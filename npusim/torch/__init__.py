"""PyTorch bridge: simulate the backward of every layer of an ordinary training step.

>>> import torch
>>> import npusim.torch
>>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 1))
>>> with npusim.torch.trace(device="ascend910b2", model=model, check=True) as log:
...     model(torch.randn(2, 3, 8, 8)).square().sum().backward()
>>> log.table()[["layer", "weight", "arithmetic", "ok"]]
  layer          weight arithmetic    ok
0     1  (16, 16, 1, 1)       hf32  True
1     0   (16, 3, 3, 3)       hf32  True
>>> log.time_us == sum(log.table().time_us) > 0
True

Whatever dispatches ``aten::convolution_backward`` is seen: modules, functional calls, transposed
and grouped layers, autocast, any memory format, meta tensors (timing only). So are the gradients of
matrix products (linear layers, ``@``, einsum, attention) and of fold and unfold, which are timed
and not compared; what else is computed going backward is counted in ``Log.untimed``. Code compiled
by ``torch.compile`` is not seen. PyTorch computes as always; npusim only looks at operands and
results.

Tensors of convolutions lie on the chip as PyTorch has laid them out: an operand that is not
contiguous (channels last, a slice, an expanded gradient) is copied by a kernel first, a gradient
that PyTorch returns so by a kernel at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import sqrt
from typing import Any, cast

import numpy as np

from npusim.base.dtypes import BF16
from npusim.base.errors import ArgumentError
from npusim.base.resources import optional
from npusim.base.streams import stderr_is_terminal
from npusim.call.options import Options
from npusim.call.spec import Array
from npusim.machine.device.spec import Device
from npusim.results.writers.progress import ProgressBar
from npusim.torch.log import SETTINGS, ConvCall, Evidence, Log
from npusim.torch.products import LatestProduct, Product, computed, products

_TENSORS = ("grad_output", "input", "weight")
_GRADIENTS = ("grad_input", "grad_weight")
_ARGUMENTS = (*_TENSORS, "bias_sizes", *SETTINGS, "output_mask")


def trace(
    device: str | Device = "ascend910b2",
    *,
    model: Any = None,
    check: bool = False,
    cube_math_type: int | str | None = None,
    timeline: bool | None = False,
    **options: Any,
) -> AbstractContextManager[Log]:
    """Record and simulate the backward of layers inside the ``with``, which gives a ``Log``.

    ``model`` names layers after its modules (otherwise: the weight's shape). With ``check`` the
    gradients are computed too and compared with PyTorch's; without, equal calls are simulated
    once. ``cube_math_type`` None lets fp32 be computed in less (allow_fp32_down_precision) and
    keeps other types. Further keywords are those of ``npusim.call.Options``; without ``progress``
    a terminal shows on stderr how far a simulation is, if they take long.

    Raises ``ArgumentError`` for options no call could have and without PyTorch; inside, what the
    device refuses is a row with the reason.
    """
    framework = f"torch {_torch().__version__}"
    bar = ProgressBar() if stderr_is_terminal() else None
    usual = {"progress": bar}
    wanted = Options.of(
        trace, usual | options | {"device": device, "timeline": timeline}, without=("layouts",)
    )
    log = Log(wanted, check, cube_math_type, framework)
    return _running(log, _recorder(log, _WeightNames(model)), bar)


@contextmanager
def _running(log: Log, mode: Any, bar: ProgressBar | None) -> Iterator[Log]:
    with bar or nullcontext(), mode:
        yield log


class _WeightNames:
    """Names of a model's modules by their weights, and by copies of these as autocast makes.

    Tensors are known by storage and offset: autograd hands out new objects for them. The weak
    reference kept with a storage's address says whether that is still the storage meant.
    """

    def __init__(self, model: Any) -> None:
        if model is not None and not callable(getattr(model, "named_parameters", None)):
            raise ArgumentError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
        self.model = model
        self.names: dict[tuple[int, int], tuple[Any, str]] = {}
        self._scan()

    def of(self, weight: Any) -> str:
        """The module's name, or the weight's shape in words."""
        name = self._find(weight)
        if name is None and self.model is not None:
            self._scan()  # a parameter may have been replaced since
            name = self._find(weight)
        return "x".join(str(n) for n in weight.shape) if name is None else name

    def copied(self, source: Any, copy: Any) -> None:
        """Let ``copy`` have the name of ``source``, if that has one."""
        name = self._find(source) if self.model is not None else None
        if name is not None:
            self._add(copy, name)

    def _scan(self) -> None:
        """Enter the model's parameters and forget storages that are gone."""
        self.names = {k: v for k, v in self.names.items() if not v[0].expired()}
        lazy = _torch("torch.nn.parameter").is_lazy
        for name, parameter in self.model.named_parameters() if self.model is not None else ():
            if not lazy(parameter):
                self._add(parameter, name.removesuffix(".weight"))

    def _add(self, tensor: Any, name: str) -> None:
        reference = _torch("torch.multiprocessing.reductions").StorageWeakRef
        storage = reference(tensor.untyped_storage())
        self.names[storage.cdata, tensor.storage_offset()] = storage, name

    def _find(self, tensor: Any) -> str | None:
        try:
            key = tensor.untyped_storage()._cdata, tensor.storage_offset()
        except RuntimeError:  # a sparse tensor has none, and is no weight of a convolution
            return None
        storage, name = self.names.get(key, (None, None))
        return name if storage is not None and not storage.expired() else None


def _recorder(log: Log, names: _WeightNames) -> Any:
    """A ``TorchDispatchMode`` that lets PyTorch compute, then shows ``log`` what it did."""
    aten = _torch().ops.aten
    folds = (aten.im2col.default, aten.col2im.default)
    copies = (aten._to_copy.default, aten.clone.default)
    seen = _Products(log, names)

    def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        out = func(*args, **named)
        if func is aten.convolution_backward.default:
            a = dict(zip(_ARGUMENTS, args, strict=False)) | named
            log.record(_call(a, out), names.of(a["weight"]), lambda: _evidence(a, out, func))
        elif func in folds and _torch("torch._C")._current_autograd_node() is not None:
            call, name = _fold(args, named, out, backward_of_fold=func is aten.im2col.default)
            log.record(call, name)
        else:
            seen.see(func, args, out)
            if func in copies:
                names.copied(args[0], out)
        return out

    base = _torch("torch.utils._python_dispatch").TorchDispatchMode
    return type("Recorder", (base,), {"__torch_dispatch__": dispatch})()


class _Products:
    """Products of matrices going forward, until their gradients are computed.

    Both have the number that autograd gives an operation and its node of the graph.
    """

    def __init__(self, log: Log, names: _WeightNames) -> None:
        self.log = log
        self.names = names
        self.forward: dict[int, list[tuple[ConvCall, str]]] = {}
        self.done: set[tuple[int, int]] = set()
        self.latest: LatestProduct | None = None

    def see(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Keep a product that goes forward, record those whose gradients a node computes."""
        node = _torch("torch._C")._current_autograd_node()
        if node is None:
            self._see_forward(func, args, out)
        else:
            self._see_backward(node, func, args, out)

    def _see_forward(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Keep a product that goes forward, with the bias that the next operation adds to it."""
        number = _torch("torch._C")._autograd._get_sequence_nr() - 1
        going_forward = products(func, args)
        biased = None if self.latest is None else self.latest.biased(func, args)
        if self.latest is not None and biased is not None:
            self.forward[number] = []  # its gradient is the layer's
            going_forward = [biased]
            number = self.latest.number
            self.latest = None
        if going_forward and _torch().is_grad_enabled():
            calls = [self._call_of(product, args, backward=False) for product in going_forward]
            self.forward[number] = [(call, name) for call, name in calls if any(call.output_mask)]
            self.latest = LatestProduct(going_forward[-1], out, number)

    def _see_backward(self, node: Any, func: Any, args: Sequence[Any], out: Any) -> None:
        """Record the products whose gradients a node computes, and count what else it computes."""
        number = node._sequence_nr()
        if number in self.forward:
            self._record_once(number)
            calls = [call for call, _ in self.forward[number]]
            if calls and not calls[0].output_mask[2] and computed(func, out) == "sum":
                self.log.untimed["sum"] += 1  # of a tensor that is added and is no bias
            return
        backward = products(func, args)
        for product in backward:
            call, name = self._call_of(product, args, backward=True)
            self.log.record(call, name)
        operation = "" if backward else computed(func, out)
        if operation and "Accumulate" not in node.name():
            self.log.untimed[operation] += 1

    def _record_once(self, number: int) -> None:
        """Record the products of a node, once in each pass backward."""
        key = _torch("torch._C")._current_graph_task_id(), number
        if key not in self.done:
            for call, name in self.forward[number]:
                self.log.record(call, name)
        self.done.add(key)

    def _call_of(
        self, product: Product, args: Sequence[Any], *, backward: bool
    ) -> tuple[ConvCall, str]:
        """The call of a product's gradients, none of which a product backward has, and its name."""
        tensors = [a for a in args if hasattr(a, "dtype")]
        stack = (product.groups,) if product.groups else ()
        dy = (*stack, product.rows, product.cout)
        x = (*stack, product.rows, product.cin)
        if stack:
            w: tuple[int, ...] = (*stack, product.cin, product.cout)
        else:
            w = (product.cout, product.cin)
        mask = (False, False, False)
        if not backward:
            trains_bias = product.bias is not None and bool(product.bias.requires_grad)
            mask = (product.left, product.right, trains_bias)
        dtype = _name(tensors[-1])
        call = ConvCall(
            shapes=(dy, x, w),
            dtypes=(dtype, dtype, dtype),
            output_mask=mask,
            product=product.layer,
        )
        if product.weight is None:
            return call, f"product {'x'.join(map(str, w))}"
        return call, self.names.of(product.weight)


def _call(a: dict[str, Any], out: Sequence[Any]) -> ConvCall:
    """The arguments of a dispatched call as plain values; ``out`` are its gradients."""
    tensors = [a[name] for name in _TENSORS]
    x, w, b = map(bool, a["output_mask"])
    return ConvCall(
        shapes=cast(Any, tuple(_ints(tensor.shape) for tensor in tensors)),
        dtypes=cast(Any, tuple(map(_name, tensors))),
        # without a bias PyTorch says [0]
        bias_sizes=_ints(a["bias_sizes"]) if b and a["bias_sizes"] is not None else None,
        **{name: _plain(a[name]) for name in SETTINGS},
        output_mask=(x, w, b),
        strides=_strides(
            (*zip(_TENSORS, tensors, strict=True), *zip(_GRADIENTS, out[:2], strict=True))
        ),
    )


def _fold(
    args: Sequence[Any], named: dict[str, Any], out: Any, *, backward_of_fold: bool
) -> tuple[ConvCall, str]:
    """A gradient of fold (patches of it) or of unfold (the sum of patches), and its name.

    ``args`` and ``named`` are those of ``aten::im2col`` or ``aten::col2im``.
    """
    arguments = ["self", "kernel_size", "dilation", "padding", "stride"]
    if not backward_of_fold:
        arguments.insert(1, "output_size")
    a = dict(zip(arguments, args, strict=False)) | named
    gradient, kernel = a["self"], _ints(a["kernel_size"])
    read = "image" if backward_of_fold else "grad_output"
    call = ConvCall(
        shapes=(_ints(gradient.shape), _ints(out.shape), kernel),
        dtypes=(_name(gradient),) * 3,
        stride=_ints(a["stride"]),
        padding=_ints(a["padding"]),
        dilation=_ints(a["dilation"]),
        output_mask=(True, False, False),
        strides=_strides(((read, gradient), ("out", out))),
        fold="im2col" if backward_of_fold else "im2col_backward",
    )
    size = "x".join(map(str, kernel))
    return call, f"{'fold' if backward_of_fold else 'unfold'} {size}"


def _strides(tensors: Iterable[tuple[str, Any]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Strides, in elements, of those named tensors that do not lie row-major without gaps."""
    return tuple(
        (name, _ints(tensor.stride()))
        for name, tensor in tensors
        if tensor is not None and not tensor.is_contiguous()
    )


def _evidence(a: dict[str, Any], out: Sequence[Any], func: Any) -> Evidence:
    """The data of a dispatched call, for a check."""
    tensors = [a[name] for name in _TENSORS]

    def noise(i: int) -> float:
        squares = [t.detach().double().square() for t in tensors]
        sums = func(*squares, *(a[name] for name in _ARGUMENTS[3:]))
        return sqrt(float(sums[i].sum()))

    return Evidence(
        operands=cast(Any, tuple(map(_array, tensors))),
        gradients=tuple(None if t is None else _array(t) for t in out),
        noise=noise,
    )


def _array(tensor: Any) -> Array:
    """A tensor's elements in C order; bfloat16, which NumPy lacks, through its bits."""
    if tensor.is_meta:
        raise ArgumentError("check=True needs data, but the tensors are on the meta device")
    plain = tensor.detach().contiguous().cpu()
    if _name(plain) == "bfloat16":
        bits: Array = plain.view(_torch().int16).numpy()
        return bits.view(BF16.numpy)
    return np.asarray(plain.numpy())


def _torch(module: str = "torch") -> Any:
    """PyTorch or a module of it."""
    return optional(module, "npusim.torch needs PyTorch, which is not installed", "torch")


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _plain(value: Any) -> Any:
    """A number, a flag or a list of numbers as Python has them."""
    if isinstance(value, (list, tuple)):
        return _ints(value)
    return value if isinstance(value, bool) else int(value)
