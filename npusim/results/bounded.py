"""The least time of a call beside the simulated and the measured one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from npusim.results.facts.least import PROBLEM, PROGRAM, Ends
from npusim.results.facts.number_text import percent_text, us_text
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Answer
from npusim.results.writers.text_layout import fact, page


@dataclass(frozen=True, kw_only=True)
class Bounded(Answer):
    """The least time of a call: of ``problem`` by any program, and of this one by any schedule.

    In microseconds and without launches, which ``time_us``, the simulated time, has.
    ``measured_us`` is None where nothing was measured.
    """

    call: str
    device: str
    problem: Ends
    program: Ends
    time_us: float
    launch_us: float
    measured_us: float | None = None

    def text(self) -> str:
        """The bounds for people, at most 80 columns wide."""
        lines = [*fact("call", self.call), *fact("device", self.device)]
        lines += fact("at least", self.problem.text(PROBLEM))
        lines += fact("", self.program.text(PROGRAM))
        launches = f"of which launches {us_text(self.launch_us)} us"
        lines += fact("simulated", f"{us_text(self.time_us)} us, {launches}")
        if self.measured_us is not None:
            lines += fact("measured", f"{us_text(self.measured_us)} us: {self._gain()}")
        return page([lines])

    def _gain(self) -> str:
        """The share of the bounds in the measured time, and what is left to gain."""
        measured = self.measured_us or 0.0
        clauses = []
        for whose, (cached, cold) in ((PROBLEM, self.problem), (PROGRAM, self.program)):
            if cached.us > measured:
                clauses.append(f"less than {whose} needs, unless {cached.figure} is too slow here")
                continue
            shares = dict.fromkeys(percent_text(bound.us / measured) for bound in (cached, cold))
            remaining = us_text(measured - cached.us)
            clauses.append(
                f"{whose} needs {' to '.join(shares)}, at most {remaining} us are left to gain"
            )
        return "; ".join(clauses)

    @property
    def table(self) -> DataFrame:
        """A row for each bound: whose it is, where operands are, its time, what sets it."""
        rows = self.rows()
        return frame(rows, tuple(rows[0]))

    def rows(self) -> list[dict[str, Any]]:
        """The same as plain values."""
        return [
            {"of": whose, "operands": place, **least._asdict()}
            for whose, both in (("problem", self.problem), ("program", self.program))
            for place, least in zip(("L2", "main memory"), both, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        plain = asdict(self)
        return {name: plain[name] for name in plain if name not in ("problem", "program")} | {
            "bounds": self.rows()
        }
