"""Operations that PyTorch dispatches: the products of matrices, and others that compute."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from npusim.workloads.kinds import listed
from npusim.workloads.layers import LinearLayer

#: Operations that multiply two matrices, or two stacks of them, and the first of both operands.
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}

#: Operations whose result is the same whatever tensors they get, and others that compute nothing,
#: besides those whose result is a view.
_MOVES = (*listed("constant", "torch"), *listed("moves", "torch"))


class Product(NamedTuple):
    """A product (rows, cin) by (cin, cout), or ``groups`` of them where both are stacks.

    ``left`` and ``right`` say of its operands whether they have a gradient; ``weight`` is the right
    one where it is a matrix for all, ``added`` the tensor that the same operation adds to the
    product, and ``operands`` the tensors it reads besides the product before it. Matrices of a
    stack that lie with their axes exchanged are ``transposed``, the left and the right one.
    """

    groups: int
    rows: int
    cin: int
    cout: int
    left: bool
    right: bool
    weight: Any = None
    added: Any = None
    operands: Sequence[Any] = ()
    transposed: tuple[bool, bool] = (False, False)

    @property
    def bias(self) -> Any:
        """The tensor that is added, if it is a number for each feature of a layer; else None."""
        is_row = tuple(getattr(self.added, "shape", ()))[-1:] == (self.cout,)
        if is_row and self.added.numel() == self.cout and not self.groups:
            return self.added
        return None

    @property
    def layer(self) -> LinearLayer:
        """The layer of all its rows."""
        left, right = self.transposed if self.groups else (False, False)
        return LinearLayer(
            name="",
            cin=self.cin,
            cout=self.cout,
            rows=self.rows,
            products=self.groups,
            input_gradient=self.left,
            bias=self.bias is not None,
            left_transposed=left,
            right_transposed=right,
        )


def products(func: Any, args: Sequence[Any]) -> list[Product]:
    """The products of matrices that a dispatched operation is; a fused attention has two."""
    name = func._schema.name.partition("::")[2]
    if name in _PRODUCTS:
        first = _PRODUCTS[name]
        added = args[0] if first == 1 else None
        return [_product(args[first], args[first + 1], added)]
    if name.startswith("_scaled_dot_product_") and not name.endswith("backward"):
        return _attention(args[0], args[1], args[2])
    return []


def _product(a: Any, b: Any, added: Any) -> Product:
    """The product of two matrices, or of two stacks of them, to which a tensor may be added."""
    groups = int(a.shape[0]) if a.dim() > 2 else 0
    rows = int(a.shape[-2])
    if groups and b.stride(0) == 0:  # one matrix, repeated
        rows *= groups
        groups = 0
    return Product(
        groups=groups,
        rows=rows,
        cin=int(a.shape[-1]),
        cout=int(b.shape[-1]) if b.dim() > 1 else 1,
        left=a.requires_grad,
        right=b.requires_grad,
        weight=None if groups else b,
        added=added,
        operands=(a, b),
        transposed=(_transposed(a), _transposed(b)),
    )


def _attention(q: Any, k: Any, v: Any) -> list[Product]:
    """The products of a fused attention: queries with keys, and the result of that with values."""
    groups = prod(q.shape[:-2])
    rows = int(q.shape[-2])
    keys = int(k.shape[-2])
    scores = Product(
        groups=groups,
        rows=rows,
        cin=int(q.shape[-1]),
        cout=keys,
        left=q.requires_grad,
        right=k.requires_grad,
        operands=(q, k),
        transposed=(False, True),
    )
    values = Product(
        groups=groups,
        rows=rows,
        cin=keys,
        cout=int(v.shape[-1]),
        left=scores.left or scores.right,
        right=v.requires_grad,
        operands=(v,),
    )
    return [scores, values]


def _transposed(matrices: Any) -> bool:
    """True if the matrices of a stack lie with their axes exchanged."""
    if matrices.dim() < 3:
        return False
    rows, columns = matrices.stride()[-2:]
    return bool(rows == 1 and columns > 1)


class LatestProduct(NamedTuple):
    """The latest product, its result, and the ``number`` of its node of the graph."""

    product: Product
    out: Any
    number: int

    def biased(self, func: Any, args: Sequence[Any]) -> Product | None:
        """The product with the bias that an operation of its own adds to it, None of others."""
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name != "add" or self.product.added is not None or not hasattr(args[0], "data_ptr"):
            return None
        if args[0].untyped_storage()._cdata != self.out.untyped_storage()._cdata:
            return None
        product = self.product._replace(added=args[1])
        return None if product.bias is None else product


def computed(func: Any, out: Any) -> str:
    """The name of a dispatched operation that computes with floating-point values, "" of others."""
    schema = func._schema
    name: str = schema.name.partition("::")[2].removesuffix("_")
    reads_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    if name in _MOVES or not reads_tensors:
        return ""
    aliases = [result.alias_info for result in schema.returns]
    if aliases and all(alias is not None and not alias.is_write for alias in aliases):
        return ""  # a view
    result = out[0] if isinstance(out, (list, tuple)) and out else out
    is_floating_point = getattr(result, "is_floating_point", None)
    return name if is_floating_point is not None and is_floating_point() else ""
