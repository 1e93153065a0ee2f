"""Softmax with cross-entropy over rows, and its gradient, in one pass over the scores.

    z = x[r, c] - max of row r                                  never positive: no power overflows
    t = z - ln(sum over c of exp(z))                            the logarithm of the softmax
    loss[r] = -sum over c of labels[r, c] * t
    grad[r, c] = (exp(t) - labels[r, c]) * scale                scale is 1 / batch for a mean

Layouts: x, labels and grad (batch, classes), fp16 or fp32; loss (batch) in fp32. Labels are a
distribution for each row: a one in the place of a class, or smoothed. Everything is computed in
fp32, and the gradient rounded once.

for run of rows of this core:                                   # one task
    UB x, labels <- GM, as fp32                                 # MTE2, V
    UB row <- max of each row; UB spread <- row for each class  # V
    UB x -= spread                                              # V
    UB spread <- exp(x); row <- ln(sum of each row)             # V
    UB spread <- row for each class; x -= spread                # V
    UB spread <- x * labels; row <- -sum of each row            # V
    GM loss <- row                                              # MTE3
    UB x <- (exp(x) - labels) * scale                           # V
    GM grad <- x                                                # MTE3

A number for each row is spread over its classes by a transposition: the numbers as so many equal
rows of a matrix, turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.room import Held, converted, declare, piece
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    Language,
    Plan,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
)

#: Elements of a task: its loads have full bandwidth.
_TILE = 8 * 1024


class Rows(NamedTuple):
    """So many rows."""

    rows: int


@dataclass(frozen=True)
class SoftmaxLoss(Spread):
    """``loss`` of ``x`` and ``labels``, and ``grad`` if it is given, which is times ``scale``.

    A row of classes has to fit UB, or ``CapacityError`` says how much it takes.
    """

    x: Tensor
    labels: Tensor
    loss: Tensor
    grad: Tensor | None = None
    scale: float = 1.0

    name: ClassVar[str] = "softmax_loss"

    def __post_init__(self) -> None:
        shape, maps = self.x.shape, [one for one in self.tensors if one is not self.loss]
        wrong = [one for one in maps if one.shape != shape or one.dtype.kind != "float"]
        if (self.loss.shape, self.loss.dtype) != (shape[:1], FP32):
            wrong.append(self.loss)
        if wrong or len(shape) != 2 or not self.x.size_bytes:
            one = (*wrong, self.x)[0]
            raise ArgumentError(
                f"{self.name}: {one.name} is {one.dtype} of shape {one.shape}; scores, labels and "
                "gradient are floats (batch, classes), losses fp32 (batch), at least one of each"
            )

    def stream(self, device: Device, cores: int) -> Stream:
        size = self.x.size_bytes // self.x.dtype.bytes * FP32.bytes
        ops = {"reduce_max": 1, "reduce_add": 2, "transpose": 2, "exp": 2, "sub": 4}
        return Stream(
            read=self.x.size_bytes + self.labels.size_bytes,
            written=sum(one.size_bytes for one in self.tensors[2:]),
            tasks=np.maximum(np.arange(1, cores + 1), ceil_div(size, _TILE * FP32.bytes)),
            vector=tuple((op, times * size) for op, times in ops.items()),
            loads=2,
            stores=len(self.tensors) - 2,
        )

    @property
    def held(self) -> dict[str, Held]:
        """What UB holds of a row."""
        classes = self.x.shape[1]
        held = {"row": Held(FP32, 1, 2), "spread": Held(FP32, classes)}
        for name, one in (("x", self.x), ("labels", self.labels), ("grad", self.grad)):
            if one and (one.dtype != FP32 or one is not self.grad):
                held[name] = Held(one.dtype, classes, 2)
            if one and one.dtype != FP32:
                held[f"{name}_fp32"] = Held(FP32, classes)
        return held

    def plan(self, k: Language, cores: int) -> Plan[Rows]:
        batch, classes = self.x.shape
        most = max(1, min(ceil_div(batch, cores), _TILE // classes))
        most = piece(k, self.name, most, sum(one.size for one in self.held.values()))
        (first,), (rows,) = in_pieces((batch, most))
        bases = {one.name: first * (one.size_bytes // batch) for one in self.tensors}
        tasks = Tasks(in_runs(len(first), cores), Rows, {"rows": rows}, bases)
        return Plan(tasks, _Nest(self, k, most).emit)


class _Nest:
    """The program of some rows, on the buffers of one core."""

    def __init__(self, kernel: SoftmaxLoss, k: Language, rows: int) -> None:
        self.kernel, self.k, self.held = kernel, k, declare(k, kernel.held, rows)

    def emit(self, u: Rows) -> None:
        """Load rows, compute the logarithms of their softmax, their losses and gradients; store."""
        kernel, k, sizes = self.kernel, self.k, (u.rows, self.kernel.x.shape[1])
        x = self._load("x", kernel.x, sizes)
        labels = self._load("labels", kernel.labels, sizes)
        row = self.held["row"].next().at(0, u.rows * FP32.bytes)
        spread = self.held["spread"].next().at(0, x.size)
        k.vec_reduce("max", row, x, *sizes, FP32)
        self._subtract(x, row, spread)
        k.vec_unary("exp", spread, x, FP32)
        k.vec_reduce("add", row, spread, *sizes, FP32)
        k.vec_unary("ln", row, row, FP32)
        self._subtract(x, row, spread)
        k.vec_binary("mul", spread, x, labels, FP32)
        k.vec_reduce("add", row, spread, *sizes, FP32)
        k.vec_scalar("muls", row, row, -1.0, FP32)
        k.data_move(kernel.loss.at(0, row.size, base=kernel.loss.name), row, FP32)
        if kernel.grad:
            k.vec_unary("exp", x, x, FP32)
            k.vec_binary("sub", x, x, labels, FP32)
            k.vec_scalar("muls", x, x, kernel.scale, FP32)
            self._store(kernel.grad, x)

    def _load(self, name: str, tensor: Tensor, sizes: tuple[int, int]) -> SlotRegion:
        """Rows of a tensor, as fp32."""
        count, dtype = sizes[0] * sizes[1], tensor.dtype
        rows = self.held[name].next().at(0, count * dtype.bytes)
        self.k.data_move(rows, tensor.at(0, rows.size, base=tensor.name), dtype)
        return converted(self.k, rows, (dtype, FP32), self.held.get(f"{name}_fp32"))

    def _subtract(self, x: SlotRegion, row: SlotRegion, spread: SlotRegion) -> None:
        """From every row its number, which is spread over the classes before."""
        rows, classes = row.size // FP32.bytes, x.size // row.size
        again = row.slot.at(0, row.size, rows=classes, pitch=0)
        self.k.vec_transpose(spread, again, classes, rows, FP32)
        self.k.vec_binary("sub", x, x, spread, FP32)

    def _store(self, grad: Tensor, x: SlotRegion) -> None:
        """The gradient, rounded; it is no larger than ``scale``."""
        x = converted(self.k, x, (FP32, grad.dtype), self.held.get("grad"))
        self.k.data_move(grad.at(0, x.size, base=grad.name), x, grad.dtype)
