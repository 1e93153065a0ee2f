"""The convolutions and linear layers of a ``torch.nn.Module``, without computing anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from math import prod
from typing import Any

from npusim.errors import ArgumentError
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer, Workload, merged

#: Images that are traced: batch normalisation refuses one image of one position in training.
_IMAGES = 2


def workload(model: Any, input_shape: Sequence[int], *, name: str = "") -> Workload:
    """The layers of ``model`` in the order in which one forward pass of an image uses them.

    ``input_shape`` is that of one image, (channels, ...), without the batch. Tensors have shapes
    but no data (the meta device), so the pass takes neither time nor memory; ``model`` is left as
    it is. Convolutions that a module computes by ``torch.nn.functional`` are seen too, linear
    layers only as ``torch.nn.Linear``. Layers of one shape are one with a count, named after the
    first of them.

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
        name=title, description=f"{title} (PyTorch), input {sizes}", layers=merged(seen.layers)
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
            return func(*args, **(kwargs or {}))

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
