"""Cases of two revisions side by side, and what is said of each: a gate that passes or fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.written import write
from npusim.gate.cases import Case
from npusim.gate.grown import Grown
from npusim.gate.trees import Change
from npusim.results.compared import facts_of

#: What becomes of a case and fails the gate.
FAILING = ("slower", "fails")

#: Cycles, or why there are none, by part: "" is all of a case, others are layers of a network.
Times = Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What became of a case, or of a ``part`` of it.

    ``verdict`` is one of ``FAILING``, or "faster", "new", "gone", or "" of what is as before.
    ``message`` is why it fails to run. ``culprits`` are changes that make it slower, ``grown``
    instructions that have more cycles, both those that matter most first.
    """

    case: str
    part: str = ""
    verdict: str = ""
    before: int | None = None
    after: int | None = None
    message: str = ""
    culprits: tuple[Change, ...] = ()
    grown: tuple[Grown, ...] = ()

    @property
    def name(self) -> str:
        """The case with its part."""
        return f"{self.case}: {self.part}" if self.part else self.case

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line to look at first; None where none is known."""
        lines = [(one.file, one.line) for one in self.culprits]
        lines += [(one.file, one.line) for one in self.grown if one.file]
        return lines[0] if lines else None

    @property
    def change(self) -> str:
        """By how much the time changed, in cycles and as a share."""
        if not self.before or self.after is None:
            return ""
        return f"{self.after - self.before:+,} cycles ({self.after / self.before - 1:+.1%})"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All findings of a gate, whose ``file`` states the cases, ``against`` what was before."""

    file: str
    against: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What fails the gate."""
        return tuple(one for one in self.findings if one.verdict in FAILING)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {"passed": not self.failed, **asdict(self)}


def times_of(answer: Mapping[str, Any]) -> Times:
    """The times in what `npusim run --json` or `npusim net --json` told."""
    facts = answer["facts"]
    layers = [one for one in facts.get("layers", ()) if "layer" in one]
    if not facts or (answer["error"] and not layers):
        return {"": answer["error"]}
    whole = {} if answer["error"] else {"": facts["cycles"]}
    return {**whole, **{one["layer"]: one["error"] or one["cycles"] for one in layers}}


def judge(
    cases: Sequence[Case], before: Mapping[str, Times], after: Mapping[str, Times]
) -> tuple[Finding, ...]:
    """What became of each case and of its parts; cases that only ``before`` has are gone."""
    found = [one for case in cases for one in _parts(case, before.get(case.name, {}), after)]
    names = {case.name for case in cases}
    return *found, *(Finding(case=one, verdict="gone") for one in before if one not in names)


def _parts(case: Case, before: Times, after: Mapping[str, Times]) -> Iterator[Finding]:
    now = after[case.name]
    for part in dict.fromkeys((*now, *before)):
        old, new = before.get(part), now.get(part)
        one = old if isinstance(old, int) else None
        other = new if isinstance(new, int) else None
        made = Finding(case=case.name, part=part, before=one, after=other)
        if isinstance(new, str):
            yield replace(made, verdict="fails", message=new)
        elif one is None or other is None:
            yield replace(made, verdict="gone" if other is None else "new")
        elif case.tolerance.exceeded(one, other):
            yield replace(made, verdict="slower" if other > one else "faster")
        else:
            yield made


def save(path: Path, times: Mapping[str, Times]) -> None:
    """Write a baseline: the times of all cases."""
    write(path, json.dumps({"npusim_gate": times}, indent=1) + "\n")


def load(path: str) -> dict[str, Times]:
    """The times of a baseline.

    Raises ``ArgumentError`` for what is none.
    """
    found = facts_of(path, path).get("npusim_gate")
    parts = found.values() if isinstance(found, dict) else [None]
    if all(
        isinstance(one, dict) and all(isinstance(n, int | str) for n in one.values())
        for one in parts
    ):
        return dict(found or {})
    raise ArgumentError(
        f"{path} is no baseline of a gate; write one with `npusim gate FILE --save BASELINE.json`"
    )
