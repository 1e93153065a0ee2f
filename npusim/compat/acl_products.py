# ruff: noqa: N802, N816 - functions carry the names of the C interface
"""Products of matrices of the C interface: aclnnMm, aclnnMatmul, aclnnBatchMatMul and aclnnAddmm.

No page of theirs is at hand: signatures are those of the library's public headers, and instead of
limits of its own what the operator ``matmul`` takes is taken. A tensor whose last two axes are
swapped by its strides is read as it lies, by a kernel that transposes on the way; one that lies
otherwise counts as contiguous. What is not modelled is refused by name: vectors, batches that are
not alike, empty tensors, and of aclnnAddmm factors other than 1 and a matrix that is added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.call.spec import Operand, Spec
from npusim.compat.acl_operators import Feed
from npusim.compat.acl_phases import Executor, Plan, phase_one, second_phase, tensors
from npusim.compat.acl_types import aclScalar, aclTensor
from npusim.ops.matmul import matmul
from npusim.results import Result

#: What phase one returns: (status, workspace size in bytes, executor).
Planned = tuple[int, int, Executor | None]


def _phases(function: str) -> tuple[Callable[..., Planned], Callable[..., int]]:
    """Both phases of a product of two tensors."""

    def first(
        self: aclTensor | None, mat2: aclTensor | None, out: aclTensor | None, cubeMathType: int
    ) -> Planned:
        """Check and plan ``out`` = ``self`` @ ``mat2``: (status, workspace size, executor)."""
        return _planned(function, {"self": self, "mat2": mat2}, out, cubeMathType)

    first.__name__ = first.__qualname__ = f"{function}GetWorkspaceSize"
    return first, second_phase(function, "Compute the product and write it in place")


aclnnMmGetWorkspaceSize, aclnnMm = _phases("aclnnMm")
aclnnMatmulGetWorkspaceSize, aclnnMatmul = _phases("aclnnMatmul")
aclnnBatchMatMulGetWorkspaceSize, aclnnBatchMatMul = _phases("aclnnBatchMatMul")


def aclnnAddmmGetWorkspaceSize(
    self: aclTensor | None,
    mat1: aclTensor | None,
    mat2: aclTensor | None,
    beta: aclScalar | None,
    alpha: aclScalar | None,
    out: aclTensor | None,
    cubeMathType: int,
) -> Planned:
    """Check and plan ``out`` = ``self`` + ``mat1`` @ ``mat2``: (status, workspace size, executor).

    ``self`` is a row (N,), ``beta`` and ``alpha`` are 1.
    """
    factors, scalars = {"mat1": mat1, "mat2": mat2}, {"beta": beta, "alpha": alpha}
    return _planned("aclnnAddmm", factors, out, cubeMathType, {"self": self}, scalars)


aclnnAddmm = second_phase("aclnnAddmm", "Compute the product and the sum, and write it in place")


def _planned(
    function: str,
    factors: dict[str, aclTensor | None],
    out: aclTensor | None,
    cubeMathType: int,
    added: dict[str, aclTensor | None] | None = None,
    scalars: dict[str, aclScalar | None] | None = None,
) -> Planned:
    """Phase one of a product, of what is ``added`` to it and of the factors of both terms."""
    named = tensors(function, **(added or {}), **factors, out=out)
    scalars = scalars or {}

    def run(feed: Feed, options: dict[str, Any]) -> Result:
        wrong = [(n, s.value) for n, s in scalars.items() if s is not None and s.value != 1]
        for name, value in wrong:
            raise ArgumentError(f"{name} is {value}; only 1 is modelled: scale its operand before")
        a, b, target = (named[name] for name in (*factors, "out"))
        assert a is not None and b is not None and target is not None  # noqa: PT018 - phase one saw
        made = (*a.shape[:-1], b.shape[-1])
        if target.shape != made:
            raise ArgumentError(f"out has shape {target.shape}; the call writes {made}")
        return matmul(
            *(_lying(feed(tensor), turned=tensor.transposed) for tensor in (a, b)),
            *map(feed, (added or {}).values()),
            transpose_a=a.transposed,
            transpose_b=b.transposed,
            out_dtype=target.dtype,
            cube_math_type=cubeMathType,
            **{k: v for k, v in options.items() if k not in ("deterministic", "rules")},
        )

    plan = Plan(
        function=function,
        operator="matmul",
        arguments=named | scalars,
        facts=None,
        inputs=tuple(named)[:-1],
        outputs=("out",),
        dtypes=("" if out is None else out.dtype,),
        run=run,
        needed=(*named, *scalars),
        names=dict(zip("ab", factors, strict=True)) | {"bias": "self", "out_dtype": "out"},
    )
    return phase_one(plan)


def _lying(operand: Operand, *, turned: bool) -> Operand:
    """An operand as it lies in memory, its last two axes ``turned``."""
    if not turned:
        return operand
    if isinstance(operand, Spec):
        return replace(operand, shape=(*operand.shape[:-2], *operand.shape[:-3:-1]))
    return operand.swapaxes(-1, -2)
