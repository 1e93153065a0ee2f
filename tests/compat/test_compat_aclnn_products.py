"""aclnnMm, aclnnMatmul, aclnnBatchMatMul and aclnnAddmm: numbers, transposed views, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npusim.compat import aclnn as acl

Array = np.ndarray[Any, Any]
OK, INVALID, NULL = acl.ACLNN_SUCCESS, acl.ACLNN_ERR_PARAM_INVALID, acl.ACLNN_ERR_PARAM_NULLPTR
ONE = acl.aclCreateScalar(1.0, acl.ACL_FLOAT)


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    stream = acl.aclrtCreateStream(device="ascend910b2")
    yield
    acl.aclrtDestroyStream(stream)


def integers(seed: int, *shape: int) -> Array:
    """Small whole numbers: their sums are exact in every type."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def run(name: str, *arguments: Any) -> Any:
    """Both phases of a call; its result."""
    status, size, executor = getattr(acl, f"{name}GetWorkspaceSize")(*arguments)
    assert (status, acl.aclGetRecentErrMsg()) == (OK, None)
    assert getattr(acl, name)(acl.aclrtMalloc(size), size, executor, None) == OK
    return executor.result


CALLS = {
    "aclnnMm": ((33, 40), (40, 18)),
    "aclnnMatmul": ((33, 40), (40, 18)),
    "aclnnBatchMatMul": ((3, 33, 40), (3, 40, 18)),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_written_in_place(name: str) -> None:
    a, b = (integers(i, *shape) for i, shape in enumerate(CALLS[name]))
    out = np.full((*a.shape[:-1], b.shape[-1]), 77, np.float16)
    result = run(name, *map(acl.aclCreateTensor, (a, b, out)), 0)
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64))
    assert [one.name for one in result.runs] == ["matmul"]


@pytest.mark.parametrize("stack", [(), (3,)])
def test_a_transposed_view_is_read_as_it_lies(stack: tuple[int, ...]) -> None:
    name = "aclnnBatchMatMul" if stack else "aclnnMm"
    a, w = integers(1, *stack, 33, 40), integers(2, *stack, 18, 40)
    out = np.zeros((*stack, 33, 18), np.float16)
    turned = acl.aclCreateTensor(w.swapaxes(-1, -2))
    run(name, acl.aclCreateTensor(a), turned, acl.aclCreateTensor(out), 0)
    np.testing.assert_array_equal(out, a.astype(np.float64) @ w.astype(float).swapaxes(-1, -2))
    # In C's form strides say it, without data too.
    size, steps = (*stack, 40, 18), (*[720] * len(stack), 1, 40)
    shape, kind = acl.ACL_FORMAT_ND, acl.ACL_FLOAT16
    bare = acl.aclCreateTensor(size, len(size), kind, steps, 0, shape, [w.size], 1, None)
    result = run(name, acl.aclCreateTensor(a), bare, acl.aclCreateTensor(out), 0)
    assert (result.outputs, turned.transposed, bare.transposed) == (None, True, True)
    plain = acl.aclCreateTensor(size, kind)
    assert not plain.transposed
    other = run(name, acl.aclCreateTensor(a), plain, acl.aclCreateTensor(out), 0)
    # What lies N x K goes to L0B fractal by fractal.
    assert "load2d" in set(result.timeline["op"]) - set(other.timeline["op"])


def test_addmm_adds_a_row() -> None:
    bias, a, b, out = integers(1, 18), integers(2, 33, 40), integers(3, 40, 18), np.zeros((33, 18))
    out = out.astype(np.float32)
    result = run("aclnnAddmm", *map(acl.aclCreateTensor, (bias, a, b)), ONE, ONE,
                 acl.aclCreateTensor(out), 0)  # fmt: skip
    np.testing.assert_array_equal(out, bias + a.astype(np.float64) @ b.astype(np.float64))
    assert [one.name for one in result.runs] == ["matmul"]


def tensor(*shape: int, kind: Any = np.float16) -> Any:
    return acl.aclCreateTensor(np.zeros(shape, kind))


HALF = acl.aclCreateScalar(0.5, acl.ACL_FLOAT)
GOOD = {
    "self": tensor(18), "mat1": tensor(33, 40), "mat2": tensor(40, 18), "beta": ONE, "alpha": ONE,
    "out": tensor(33, 18), "cubeMathType": 0,
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no mat2": ({"mat2": None}, NULL, "mat2 is null"),
    "no beta": ({"beta": None}, NULL, "beta is null"),
    "beta": ({"beta": HALF}, INVALID, "beta is 0.5; only 1 is modelled"),
    "alpha": ({"alpha": HALF}, INVALID, "alpha is 0.5; only 1 is modelled"),
    "matrix": ({"self": tensor(33, 18)}, INVALID, "self is fp16 of shape (33, 18); it must be"),
    "sizes": ({"mat1": tensor(33, 41)}, INVALID, "mat1 is (33, 41), mat2 is (40, 18)"),
    "out": ({"out": tensor(18, 33)}, INVALID, "out has shape (18, 33); the call writes (33, 18)"),
    "out type": ({"out": tensor(33, 18, kind=np.int32)}, INVALID, "out is int32; sums in fp32"),
    "math": ({"cubeMathType": 9, "mat1": tensor(33, 40, kind=np.float32),
              "mat2": tensor(40, 18, kind=np.float32)}, INVALID, "cubeMathType is 9"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(case: str) -> None:
    changed, wanted, text = REFUSED[case]
    status, size, executor = acl.aclnnAddmmGetWorkspaceSize(**GOOD | changed)
    assert (status, size, executor) == (wanted, 0, None)
    assert re.search(rf"^aclnnAddmm: {re.escape(text)}", str(acl.aclGetRecentErrMsg()))
