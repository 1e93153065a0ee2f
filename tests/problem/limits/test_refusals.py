"""What documented limits refuse, and what just passes: the rows of ``tests/data/refusals.yaml``.

Every refusal is held against the table of limits and sent through all entrances that can say it.
"""

from __future__ import annotations

from typing import Any

import pytest

from npusim.ops import CARDS
from tests.problem.limits.entrances import ENTRANCES, refused
from tests.problem.limits.right_calls import TABLE, call, on


def rows(kind: str) -> list[Any]:
    """Operator, device, group and row of every call of a kind."""
    return [
        pytest.param(operator, device, group, row, id=f"{operator}-{device}-{row}")
        for operator, parts in TABLE.items()
        for group in parts[kind]
        for device in group["devices"]
        for row in group["calls"]
    ]


@pytest.mark.parametrize(("operator", "device", "group", "row"), rows("refused"))
def test_refused(operator: str, device: str, group: dict[str, Any], row: list[Any]) -> None:
    parameter, change = row
    told = call(operator, group["of"], change)
    refused(operator, told, on(device), parameter, group["status"])


@pytest.mark.parametrize(("operator", "device", "group", "change"), rows("passed"))
def test_passed(operator: str, device: str, group: dict[str, Any], change: dict[str, Any]) -> None:
    assert CARDS[operator].check(call(operator, group["of"], change), on(device)) == []


def test_the_file_has_every_operator_with_limits_of_its_own() -> None:
    """The others, of one entrance, are refused in the tests of their operators."""
    alone = {"im2col", "conv_grad_filter", "conv_grad_input"}
    assert set(TABLE) == set(ENTRANCES) - alone - {"deconv_grad_input"}
