"""Every spelling finds its type, and nothing else does.

Columns of the narrowest integers that hold their numbers.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec import structs

import npusim
from npusim.base.dtypes import (
    BF16,
    C0,
    DEVICE_DTYPES,
    DTYPES,
    FP16,
    FP32,
    INT8,
    INT32,
    DType,
    dtype,
)
from npusim.base.errors import ArgumentError
from npusim.base.integers import narrowed


@pytest.mark.parametrize(
    ("spelling", "want"),
    [
        ("fp16", FP16),
        ("float16", FP16),
        ("FLOAT16", FP16),
        ("half", FP16),
        (np.float16, FP16),
        (np.dtype("float16"), FP16),
        (np.zeros(1, np.float16).dtype, FP16),
        ("bf16", BF16),
        ("bfloat16", BF16),
        (ml_dtypes.bfloat16, BF16),
        ("fp32", FP32),
        ("float32", FP32),
        ("float", FP32),
        (np.float32, FP32),
        (np.int8, INT8),
        ("int8", INT8),
        ("int32", INT32),
        (FP32, FP32),
    ],
)
def test_lookup(spelling: Any, want: DType) -> None:
    assert dtype(spelling) is want


@pytest.mark.parametrize(
    "spelling", ["float64", np.float64, "fp8", "", None, float, int, "f2", object(), "uint8", 16]
)
def test_unknown_types_list_what_exists(spelling: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        dtype(spelling)
    assert str(caught.value) == (
        f"unknown dtype {spelling!r}; use one of fp16 (float16), bf16 (bfloat16), "
        "fp32 (float32), int8 (int8), int32 (int32)"
    )


@pytest.mark.parametrize("known", DTYPES, ids=str)
def test_size_and_kind_are_numpys(known: DType) -> None:
    assert known.bytes == known.numpy.itemsize
    is_int = np.issubdtype(known.numpy, np.integer)
    assert known.kind == ("int" if is_int else "float")


@pytest.mark.parametrize(
    ("name", "want"), [("fp16", 16), ("bf16", 16), ("fp32", 8), ("int8", 32), ("int32", 8)]
)
def test_c0(name: str, want: int) -> None:
    assert C0(name) == want


@pytest.mark.parametrize("known", DEVICE_DTYPES)
def test_a_type_is_one_object_in_every_process(known: DType) -> None:
    assert pickle.loads(pickle.dumps(known)) is known
    assert copy.deepcopy(known) is known


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], np.int8),
        ([0, 127, -128], np.int8),
        ([0, 128], np.int16),
        ([-32769], np.int32),
        ([2**31], np.int64),
    ],
)
def test_numbers_stay_and_take_no_more_room_than_they_need(
    values: list[int], kind: type[np.signedinteger]
) -> None:
    narrow = narrowed(np.array(values, np.int64))
    assert narrow.dtype == kind
    assert narrow.tolist() == values


@pytest.mark.compiled
def test_a_timeline_takes_a_third_of_what_wide_columns_take() -> None:
    a = npusim.spec((512, 512), "fp16")
    result = npusim.ops.matmul(a, a, device="ascend910b2", timeline=True)
    (timeline,) = (run.timeline for run in result.runs)
    assert timeline is not None
    columns = [column for column in structs.astuple(timeline) if isinstance(column, np.ndarray)]
    assert sum(column.itemsize for column in columns) <= 26
    assert result.timeline["end"].dtype == np.int64  # users compute with what they are given
