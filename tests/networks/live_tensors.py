"""Memory of a training step as PyTorch has it: bytes of all tensors that are alive, by autograd.

Nothing is computed: tensors are fake ones, which have sizes and lifetimes. Numbers count two bytes,
as half precision has them, gradients of parameters four, bits an eighth.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
python_dispatch = pytest.importorskip("torch.utils._python_dispatch")
pytree = pytest.importorskip("torch.utils._pytree")

F = torch.nn.functional

Module = Any
Tensor = Any


class LiveBytes(NamedTuple):
    """Bytes at the end of the forward pass and at most, with parameters and state."""

    kept: int
    peak: int


class Live(python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
    """Counts bytes of tensors that operations make while they are alive; views have none."""

    def __init__(self, before: list[Tensor], wide: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self.wide = wide
        self.sizes: dict[int, int] = {}
        self.bytes = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        self.peak = max(self.peak, self.bytes)
        return results

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes or key in self.known:
            return
        numbers = storage.nbytes() // tensor.element_size()
        each = 4 if tuple(tensor.shape) in self.wide else 2
        if not tensor.dtype.is_floating_point:
            each = tensor.element_size()
        self.sizes[key] = each * numbers
        self.bytes += self.sizes[key]
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.bytes -= self.sizes.pop(key)


def live_bytes(build: Callable[[], Module], shape: tuple[int, ...], batch: int) -> LiveBytes:
    """The memory of the second step of a module on images of this shape, with momentum and decay.

    Images and weights are cast to half precision, which autograd keeps; parameters, their state and
    buffers have four bytes.
    """
    with fake_tensor.FakeTensorMode():
        module = build().train()
        images = torch.randn(batch, *shape)
        labels = torch.zeros(batch, dtype=torch.int64)
        parameters = list(module.parameters())
        weights = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() < 2]
        groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=False)

        def forward() -> Tensor:
            out = module(images)
            return F.cross_entropy(out, labels) if out.dim() == 2 else out.square().mean()

        def backward(loss: Tensor) -> None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        backward(forward())  # makes the state
        state = [
            tensor
            for entry in optimizer.state.values()
            for tensor in entry.values()
            if isinstance(tensor, torch.Tensor)
        ]
        before = [*parameters, *module.buffers(), *state, images, labels]
        live = Live(before, {tuple(parameter.shape) for parameter in parameters})
        with live:
            loss = forward()
            kept = live.bytes
            backward(loss)
        always = 4 * sum(tensor.numel() for tensor in (*parameters, *module.buffers(), *state))
        casts = 2 * (sum(weight.numel() for weight in weights) + images.numel())
        return LiveBytes(always + casts + kept, always + casts + live.peak)


def keep_bits(patch: pytest.MonkeyPatch) -> None:
    """Let ReLU, ReLU6 and pooling by the maximum keep bits, as ``configs/operations.yaml`` does.

    PyTorch keeps the result of a ReLU, the operand of a ReLU6, and operand and 64-bit places of a
    pooling.
    """
    for name in ("relu", "hardtanh"):
        patch.setattr(F, name, _bits_of(getattr(F, name), taps=False))
    for name in ("max_pool2d", "max_pool3d"):
        patch.setattr(F, name, _bits_of(getattr(F, name), taps=True))


def _bits_of(function: Callable[..., Tensor], *, taps: bool) -> Callable[..., Tensor]:
    """The function, of which the backward pass reads bits: of each element, for each tap."""

    class Bits(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Tensor, arguments: Any, options: Any) -> Tensor:
            y = function(x, *arguments, **options)
            of_each = 1
            if taps:
                size = arguments[0]
                axes = x.dim() - 2
                of_each = prod(size) if isinstance(size, tuple) else size**axes
            ctx.save_for_backward(torch.empty(of_each * y.numel() // 8, dtype=torch.uint8))
            ctx.shape = x.shape
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            _ = ctx.saved_tensors
            return dy.new_empty(ctx.shape), None, None

    def called(x: Tensor, *arguments: Any, inplace: bool = False, **options: Any) -> Tensor:
        return Bits.apply(x, arguments, options)

    return called
