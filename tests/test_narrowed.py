"""Columns of the narrowest integers that hold their numbers."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.base.integers import narrowed


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


def test_a_timeline_takes_a_third_of_what_wide_columns_take() -> None:
    a = npusim.spec((512, 512), "fp16")
    result = npusim.ops.matmul(a, a, device="ascend910b2", timeline=True)
    (timeline,) = (run.timeline for run in result.runs)
    assert timeline is not None
    columns = [column for column in vars(timeline).values() if isinstance(column, np.ndarray)]
    assert sum(column.itemsize for column in columns) <= 26
    assert result.timeline["end"].dtype == np.int64  # users compute with what they are given
