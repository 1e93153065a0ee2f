"""A linear layer y = x @ w^T and its gradients as products: x (rows, Cin), w (Cout, Cin).

y  = x @ w^T       (rows, Cin) by (Cin, Cout), w transposed on its way into L0B
dx = dy @ w        (rows, Cout) by (Cout, Cin), both as they lie
dw = dy^T @ x      (Cout, rows) by (rows, Cin), dy transposed on its way into L0A
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.tiling import Shape


@dataclass(frozen=True)
class LinearForward(Matmul):
    """``a`` is x, ``b`` the weight, stored Cout x Cin (layout ``ND_nk``), ``c`` y."""

    name: ClassVar[str] = "linear_forward"
    computes: ClassVar[str] = "output"


@dataclass(frozen=True)
class LinearBackpropInput(Matmul):
    """``a`` is dy, ``b`` the weight, ``c`` dx."""

    name: ClassVar[str] = "linear_backprop_input"
    computes: ClassVar[str] = "input"


@dataclass(frozen=True)
class LinearBackpropWeight(Matmul):
    """``a`` is dy, stored rows x Cout (layout ``ND_km``), ``b`` x, ``c`` dw.

    With ``rounds`` a tiling without parts is to store dw in the type of the operands.
    """

    rounds: bool = False

    name: ClassVar[str] = "linear_backprop_weight"
    computes: ClassVar[str] = "weight"

    @property
    def shape(self) -> Shape:
        return super().shape._replace(single=self.dtype if self.rounds else None)
