"""The layers of a network that multiply, each with how often it occurs.

Sizes are those of all images of a batch: ``n`` of a convolution, ``n`` and ``rows`` of a linear
layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.problem.convolution import Convolution


@dataclass(frozen=True, kw_only=True)
class ConvLayer(Convolution):
    """One convolution of a network, and ``count``, how often the network has it.

    ``n`` are the images of one call: those of the batch, or more where a network folds frames or
    patches into them. ``input_gradient`` is False where nothing trained comes before the layer, so
    that a training step does without the gradient of its input; ``weight_gradient`` and
    ``bias_gradient`` are False where these are frozen. With ``bias`` a number is added to each
    output channel, which whole steps know; of isolated calls it is not asked.
    """

    name: str
    count: int = 1
    input_gradient: bool = True
    weight_gradient: bool = True
    bias: bool = False
    bias_gradient: bool = True


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """A linear layer: ``n`` times ``rows`` vectors, each from ``cin`` to ``cout`` features.

    With ``products`` each of the ``n`` has so many products of two computed matrices (rows, cin)
    and (cin, cout), as attention has two for each head; 0 is one matrix of weights for all. A
    computed matrix that lies with its axes exchanged, (cin, rows) or (cout, cin), is
    ``left_transposed`` or ``right_transposed``. The gradient of the right matrix is called that of
    the weight; it, that of the left one and that of the bias are False where nothing trained needs
    them. With ``bias`` a number is added to each of the ``cout`` features; products of two computed
    matrices have none.
    """

    name: str
    cin: int
    cout: int
    rows: int = 1
    n: int = 1
    count: int = 1
    input_gradient: bool = True
    weight_gradient: bool = True
    products: int = 0
    left_transposed: bool = False
    right_transposed: bool = False
    bias: bool = False
    bias_gradient: bool = True

    @property
    def stack(self) -> int:
        """Products of two matrices: 1 where one matrix of weights is for all rows."""
        return self.n * self.products if self.products else 1

    @property
    def all_rows(self) -> int:
        """Rows of the left matrix, of each product of a stack."""
        return self.rows if self.products else self.n * self.rows

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of its three products."""
        return self.n * max(1, self.products) * self.rows * self.cin * self.cout


Layer = ConvLayer | LinearLayer
