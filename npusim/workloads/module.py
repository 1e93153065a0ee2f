"""The layers of a ``torch.nn.Module``, without computing anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from math import prod
from typing import Any

from npusim.errors import ArgumentError
from npusim.workloads.elementwise import KINDS, ElementwiseLayer, together
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer, Workload, merged

#: Images that are traced: batch normalisation refuses one image of one position in training.
_IMAGES = 2

#: PyTorch's name of an operation: its kind of element-wise layer, where that is called otherwise.
_KINDS = {
    **{"hardtanh": "clip", "clamp": "clip", "clamp_min": "clip", "_prelu_kernel": "prelu"},
    **{"hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "_softmax": "softmax"},
    **{"_log_softmax": "softmax", "cat": "concat", "sub": "add", "div": "mul"},
    **{"mean": "avg_pool", "native_dropout": "dropout", "native_group_norm": "group_norm"},
    **{"native_layer_norm": "layer_norm", "native_batch_norm": "batch_norm"},
    **{"cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm"},
}


def workload(model: Any, input_shape: Sequence[int], *, name: str = "") -> Workload:
    """The layers of ``model`` in the order in which one forward pass of an image uses them.

    ``input_shape`` is that of one image, (channels, ...), without the batch. Tensors have shapes
    but no data (the meta device), so the pass takes neither time nor memory; ``model`` is left as
    it is. Convolutions that a module computes by ``torch.nn.functional`` are seen too, linear
    layers only as ``torch.nn.Linear``; element-wise layers as operations, whichever module calls
    them. Layers of one shape are one with a count, named after the first of them.

    Raises ``ArgumentError`` where the model does not take such an input, or has no layer to time.
    """
    torch = _torch()
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    title = name or type(model).__name__
    shape = (_IMAGES, *(int(size) for size in input_shape))
    copy = deepcopy(model).to("meta")
    seen = _Seen(torch, copy)
    try:
        with seen.recorded():
            copy(torch.empty(shape, device="meta"))
    except Exception as error:  # whatever a stranger's module raises
        text = str(error).partition("\n")[0]
        raise ArgumentError(
            f"{title} does not run on an input of shape {shape} without data: "
            f"{type(error).__name__}: {text}"
        ) from error
    if not seen.layers:
        raise ArgumentError(f"{title} has no convolution and no torch.nn.Linear")
    sizes = "x".join(map(str, input_shape))
    return Workload(
        name=title,
        description=f"{title} (PyTorch), input {sizes}",
        layers=merged(seen.layers),
        elementwise=together(seen.elementwise),
    )


def _torch() -> Any:
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        raise ArgumentError(
            "the layers of a torch.nn.Module need PyTorch; `pip install torch` adds it"
        ) from error


class _Seen:
    """What a forward pass on the meta device shows: layers, and where training begins."""

    def __init__(self, torch: Any, model: Any) -> None:
        self.torch, self.model = torch, model
        self.layers: list[Layer] = []
        self.elementwise: list[ElementwiseLayer] = []
        self.names = {id(m): name or type(m).__name__ for name, m in model.named_modules()}
        self.inside: list[Any] = []  # modules entered and not left

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Watch modules and convolutions while the body runs."""
        modules = list(self.model.modules())
        hooks = [m.register_forward_pre_hook(lambda m, _: self.inside.append(m)) for m in modules]
        hooks += [m.register_forward_hook(self._left) for m in modules]
        base = import_module("torch.utils._python_dispatch").TorchDispatchMode
        aten = self.torch.ops.aten

        def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.convolution.default:
                self.layers.append(self._convolution(args))
            out = func(*args, **(kwargs or {}))
            self.elementwise += self._elementwise(func, args, out)
            return out

        mode = type("Convolutions", (base,), {"__torch_dispatch__": dispatch})
        try:
            with self.torch.enable_grad(), mode():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _convolution(self, args: Sequence[Any]) -> ConvLayer:
        x, w, _, stride, padding, dilation, transposed, extra, groups = args
        dims = x.dim() - 2

        def each(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(map(int, values)) * (dims if len(values) == 1 else 1)

        cin = int(x.shape[1])
        return ConvLayer(
            name=self.names[id(self.inside[-1])] if self.inside else "functional",
            cin=cin,
            cout=int(w.shape[1] * groups if transposed else w.shape[0]),
            spatial=tuple(map(int, x.shape[2:])),
            kernel=tuple(map(int, w.shape[2:])),
            stride=each(stride),
            padding=tuple((pad, pad) for pad in each(padding)),
            dilation=each(dilation),
            groups=int(groups),
            transposed=bool(transposed),
            output_padding=each(extra) if any(extra) else (),
            input_gradient=bool(x.requires_grad),
        )

    def _elementwise(self, func: Any, args: Sequence[Any], out: Any) -> Iterator[ElementwiseLayer]:
        """The element-wise layer that an operation is, if it is one on images."""
        nn, tensor = self.torch.nn, self.torch.Tensor
        inside = self.inside[-1] if self.inside else None
        kind = _kind(func._schema.name, dropout=isinstance(inside, nn.modules.dropout._DropoutNd))
        first = args[0] if args else None
        flat = list(first) if isinstance(first, (list, tuple)) else list(args)
        read = [one for one in flat if isinstance(one, tensor) and one.dim() > 1]
        made = out[0] if isinstance(out, (list, tuple)) else out
        if not kind or not read or isinstance(inside, nn.Linear) or not made.is_floating_point():
            return
        largest = max(read, key=lambda one: one.numel())
        if kind in ("add", "mul") and sum(one.numel() == largest.numel() for one in read) < 2:
            kind = "scale"  # a factor, or what is added, of a few elements
        trained = any(one.requires_grad for one in flat if isinstance(one, tensor))
        shape = _image(made if kind == "concat" else largest)
        if shape:
            yield ElementwiseLayer(kind=kind, shape=shape, out=_image(made), input_gradient=trained)

    def _left(self, module: Any, given: Sequence[Any], out: Any) -> None:
        self.inside.pop()
        if isinstance(module, self.torch.nn.Linear) and given:
            x = given[0]
            rows = prod(x.shape[:-1])
            self.layers.append(
                LinearLayer(
                    name=self.names[id(module)],
                    cin=module.in_features,
                    cout=module.out_features,
                    rows=max(1, rows // _IMAGES),
                    input_gradient=bool(x.requires_grad),
                )
            )


def _kind(name: str, *, dropout: bool) -> str:
    """The kind of the element-wise layer that this operation is, "" where it is none."""
    short = name.partition("::")[2].removesuffix("_")
    if dropout:  # composed of operations on its mask, and the product with it
        return "dropout" if short in ("native_dropout", "mul") else ""
    kind = "upsample" if short.startswith("upsample_") else _KINDS.get(short, short)
    kind = kind.partition("2d")[0].partition("3d")[0].removeprefix("_adaptive_")
    return kind if kind in KINDS else ""


def _image(value: Any) -> tuple[int, ...]:
    """The shape of one image, () where the value is not one of all images."""
    if value.dim() > 1 and value.shape[0] == _IMAGES:
        return tuple(map(int, value.shape[1:]))
    return (value.numel() // _IMAGES,) if value.numel() > _IMAGES else ()
