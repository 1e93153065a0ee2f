"""Products of matrices among the operations that PyTorch dispatches, and what else computes."""

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
    one where it is a matrix for all, ``added`` what the same operation adds to the product, and
    ``operands`` what it reads besides the product before it. Matrices of a stack that lie with
    their axes exchanged are ``transposed``, the left and the right one.
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
        """What is added, if that is a number for each feature of a layer."""
        row = tuple(getattr(self.added, "shape", ()))[-1:] == (self.cout,)
        return self.added if row and self.added.numel() == self.cout and not self.groups else None

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
        a, b = args[_PRODUCTS[name] :][:2]
        groups, rows = (int(a.shape[0]) if a.dim() > 2 else 0), int(a.shape[-2])
        if groups and b.stride(0) == 0:  # one matrix, repeated
            groups, rows = 0, groups * rows
        sizes = groups, rows, int(a.shape[-1]), int(b.shape[-1]) if b.dim() > 1 else 1
        more = args[0] if _PRODUCTS[name] else None
        trained = a.requires_grad, b.requires_grad
        lying = _transposed(a), _transposed(b)
        return [Product(*sizes, *trained, None if groups else b, more, (a, b), lying)]
    if not name.startswith("_scaled_dot_product_") or name.endswith("backward"):
        return []
    q, k, v = args[:3]
    groups, rows, keys = prod(q.shape[:-2]), int(q.shape[-2]), int(k.shape[-2])
    first = Product(groups, rows, int(q.shape[-1]), keys, q.requires_grad, k.requires_grad)
    second = Product(
        groups, rows, keys, int(v.shape[-1]), first.left or first.right, v.requires_grad
    )
    return [
        first._replace(operands=(q, k), transposed=(False, True)),
        second._replace(operands=(v,)),
    ]


def _transposed(matrices: Any) -> bool:
    """Whether the matrices of a stack lie with their axes exchanged."""
    if matrices.dim() < 3:
        return False
    rows, columns = matrices.stride()[-2:]
    return bool(rows == 1 and columns > 1)


class Made(NamedTuple):
    """The latest product, its result, and its place among the nodes."""

    product: Product
    out: Any
    at: int

    def biased(self, func: Any, args: Sequence[Any]) -> Product | None:
        """The product with the bias that an operation of its own adds to it, None of others."""
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name != "add" or self.product.added is not None or not hasattr(args[0], "data_ptr"):
            return None
        places = [one.untyped_storage()._cdata for one in (args[0], self.out)]
        found = self.product._replace(added=args[1])
        return found if places[0] == places[1] and found.bias is not None else None


def computed(func: Any, out: Any) -> str:
    """The name of a dispatched operation that computes with floating-point values, "" of others."""
    name: str = func._schema.name.partition("::")[2].removesuffix("_")
    if name in _MOVES or not any("Tensor" in str(one.type) for one in func._schema.arguments):
        return ""
    made = out[0] if isinstance(out, (list, tuple)) and out else out
    aliases = [one.alias_info for one in func._schema.returns]
    view = bool(aliases) and all(one is not None and not one.is_write for one in aliases)
    floating = getattr(made, "is_floating_point", lambda: False)()
    return "" if view or not floating else name
