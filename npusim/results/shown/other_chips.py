"""The line and the card on figures that were fitted for another chip, of all kinds of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npusim.results.facts.other_chips import OTHER_CHIPS, count_and_rest
from npusim.results.shown.report import Key, ReportLine


def other_chips(facts: Mapping[str, Any]) -> Iterator[Key]:
    """The key of the fact ``OTHER_CHIPS`` among ``facts``; none where none is such."""
    known = facts[OTHER_CHIPS.name]
    count, rest = count_and_rest(known)
    if count:
        yield Key(ReportLine("figures", OTHER_CHIPS.format(known)), (count, rest))
