"""Softmax with cross-entropy over rows, and its gradient, in one pass over the scores.

    z = x[r, c] - max of row r                                  never positive: no power overflows
    t = z - ln(sum over c of exp(z))                            the logarithm of the softmax
    loss[r] = -sum over c of labels[r, c] * t
    grad[r, c] = (exp(t) - labels[r, c]) * scale                scale is 1 / batch for a mean

Layouts: x, labels and grad (batch, classes), fp16 or fp32; loss (batch) in fp32. Labels are a
distribution for each row: a one in the place of a class, or smoothed. Everything is computed in
fp32, and the gradient rounded once.
"""

from __future__ import annotations

from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.language import FP32, ArgumentError, Tensor


def softmax_loss(
    x: Tensor, labels: Tensor, loss: Tensor, grad: Tensor | None = None, scale: float = 1.0
) -> Elementwise:
    """``loss`` of ``x`` and ``labels``, and ``grad`` if it is given, which is times ``scale``.

    Raises ``ArgumentError`` where shapes or types do not fit. A row of classes has to fit UB, or
    ``CapacityError`` says how much it takes.
    """
    maps = (x, labels, grad) if grad else (x, labels)
    wrong = [tensor for tensor in maps if tensor.shape != x.shape or tensor.dtype.kind != "float"]
    if (loss.shape, loss.dtype) != (x.shape[:1], FP32):
        wrong.append(loss)
    if wrong or len(x.shape) != 2 or not x.size_bytes:
        first = (*wrong, x)[0]
        raise ArgumentError(
            f"softmax_loss: {first.name} is {first.dtype} of shape {first.shape}; scores, labels "
            "and gradient are floats (batch, classes), losses fp32 (batch), at least one of each"
        )
    classes = x.shape[1]
    steps = [
        Step("row", "row_max", x.name, classes),
        Step("spread", "spread", "row", classes),
        Step("z", "sub", x.name, "spread"),
        Step("powers", "exp", "z"),
        Step("row", "row_sum", "powers", classes),
        Step("row", "ln", "row"),
        Step("spread", "spread", "row", classes),
        Step("z", "sub", "z", "spread"),
        Step("part", "mul", "z", labels.name),
        Step("row", "row_sum", "part", classes),
        Step(loss.name, "muls", "row", -1.0),
    ]
    if grad:
        steps += [
            Step("share", "exp", "z"),
            Step("less", "sub", "share", labels.name),
            Step(grad.name, "muls", "less", scale),
        ]
    return Elementwise("softmax_loss", tuple(steps), maps[:2], maps[2:], rows=(loss,))
