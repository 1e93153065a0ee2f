"""Alternatives to a step: the time of each, by itself."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from npusim.results.facts.fact import Fact, names_of, row_of
from npusim.results.facts.number_text import percent_text, rate_text, us_text


class Alternative(Struct, frozen=True, kw_only=True):
    """A step with one ``change``, and the ``option`` with which a command makes it.

    It takes ``time_us`` and computes ``images_per_second`` on all cards; both are None where
    ``error`` says why there is no such step. ``saves`` is the share of the time of an image on one
    card that goes, below 0 where it takes longer.
    """

    change: str
    option: str
    time_us: float | None = None
    images_per_second: float | None = None
    saves: float | None = None
    error: str = ""


#: An alternative.
ALTERNATIVES: tuple[Fact[Alternative], ...] = (
    Fact("change", "change", "", str, lambda row: row.change),
    Fact("option", "option", "", str, lambda row: row.option),
    Fact("time_us", "time", "\u00b5s", us_text, lambda row: row.time_us),
    Fact("images_per_second", "images/s", "", rate_text, lambda row: row.images_per_second),
    Fact("saves", "saves", "", percent_text, lambda row: row.saves),
    Fact("error", "error", "", str, lambda row: row.error),
)

#: Columns of ``Alternatives.table``; a promise to users.
ALTERNATIVE_COLUMNS = names_of(ALTERNATIVES)


class AlternativesFacts(Struct, frozen=True, kw_only=True):
    """A step of a network on a device, and ``rows`` of what would shorten it, most first.

    ``asked`` says how the step runs.
    """

    workload: str
    description: str
    asked: str
    version: str
    device: str
    device_digest: str
    time_us: float
    images_per_second: float
    rows: tuple[Alternative, ...]

    def __repr__(self) -> str:
        """One line: network, device, and the best alternative."""
        best = self.rows[0].change if self.rows else "none"
        return f"<Alternatives to {self.workload} on {self.device}: first {best}>"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, ready for ``json.dumps``."""
        return {
            "workload": self.workload,
            "description": self.description,
            "asked": self.asked,
            "npusim_version": self.version,
            "device": self.device,
            "device_digest": self.device_digest,
            "time_us": self.time_us,
            "images_per_second": self.images_per_second,
            "alternatives": [row_of(ALTERNATIVES, row) for row in self.rows],
        }
