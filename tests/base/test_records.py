"""Records with other values."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from npusim.base.records import with_values


@dataclass(frozen=True)
class Sizes:
    rows: int
    deep: bool = False


@pytest.mark.parametrize("values", [{}, {"rows": 4}, {"rows": 4, "deep": False}])
def test_a_record_with_the_values_it_has_is_itself(values: dict[str, int]) -> None:
    sizes = Sizes(4)
    assert with_values(sizes, **values) is sizes


def test_other_values_make_another_record_and_so_do_other_types() -> None:
    assert with_values(Sizes(4), rows=5) == Sizes(5)
    assert with_values(Sizes(1), rows=True).rows is True
