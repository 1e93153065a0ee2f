"""Cases of two revisions side by side, and what is said of each: a gate that passes or fails.

It is told as text, as JUnit XML, and as annotations that GitHub shows.

Cases are calls and networks as lines of commands, with what they may lose.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from npusim.base.atomic_files import write
from npusim.base.errors import ArgumentError, shown
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.base.yamltree import Node, load_tree, suggest
from npusim.gate.trees import Change
from npusim.results.facts.differences import facts_of, numbered
from npusim.results.facts.number_text import counted
from npusim.results.writers.text_layout import WIDTH, columns, page, wrap

#: Commands whose lines are cases.
COMMANDS = ("run", "net")

#: Keys of a gate file and of one of its cases, those that may be left out.
_OF_FILE, _OF_CASE = ("description", "tolerance", "devices"), ("name", "tolerance", "devices")


@dataclass(frozen=True)
class Tolerance:
    """What a case may lose: it is slower only by more than ``percent`` and more than ``cycles``."""

    percent: float = 1.0
    cycles: float = 100.0

    def exceeded(self, before: int, after: int) -> bool:
        """Whether both times differ by more."""
        return abs(after - before) > max(self.cycles, before * self.percent / 100)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call or network on one device: the ``words`` behind ``npusim``; ``node`` states it."""

    name: str
    words: tuple[str, ...]
    tolerance: Tolerance
    node: Node


def shipped_gates() -> list[str]:
    """The names of the gate files that ship."""
    return sorted(file.name.partition(".")[0] for file in (configs() / "gates").iterdir())


def gate_file(given: str) -> Path:
    """A gate file: its path, or the name of one that ships.

    Raises ``ArgumentError`` for a name that is neither.
    """
    if Path(given).suffix in (".yaml", ".yml"):
        return Path(given)
    if given not in shipped_gates():
        hint = suggest(given, shipped_gates())
        raise ArgumentError(
            f"unknown gate {given!r} (a file of your own needs a path ending in .yaml){hint}"
        )
    return Path(str(configs() / "gates" / f"{given}.yaml"))


def read_cases(source: Path | str, name: str = "") -> tuple[Case, ...]:
    """The cases of a gate file, one for each device; text is called ``name`` in errors.

    Raises ``ConfigError`` with file and line for what is no gate, and for cases called alike.
    """
    root = load_tree(source, name)
    entries = root.mapping(("cases",), _OF_FILE)
    tolerance = _tolerance(entries.get("tolerance"), Tolerance())
    found: dict[str, Case] = {}
    for node in entries["cases"].items():
        for case in _cases(node, tolerance, entries.get("devices")):
            if case.name in found:
                line = found[case.name].node.line
                raise node.fail(
                    f"the case {case.name!r} is there already, in line {line}; give one of them "
                    "a name, or leave it out"
                )
            found[case.name] = case
    if not found:
        raise entries["cases"].fail("there is no case; add a line such as '- run: matmul ...'")
    return tuple(found.values())


def _cases(node: Node, tolerance: Tolerance, devices: Node | None) -> Iterator[Case]:
    """The cases that one entry states."""
    entries = node.mapping(optional=(*COMMANDS, *_OF_CASE))
    commands = [command for command in COMMANDS if command in entries]
    if len(commands) != 1:
        raise node.fail("a case has one of the keys 'run' and 'net': a line of that command")
    line = entries[commands[0]]
    try:
        words = shlex.split(line.text())
    except ValueError as error:
        raise line.fail(f"{error}; check its quotes") from error
    name = entries["name"].text() if "name" in entries else " ".join(words)
    own = entries.get("devices", devices)
    given = any(word.partition("=")[0] == "--device" for word in words)
    if given and "devices" in entries:
        raise entries["devices"].fail("the line has --device already; keep one of them")
    for device in [one.text() for one in own.items()] if own and not given else [""]:
        yield Case(
            name=f"{name} on {device}" if device else name,
            words=(commands[0], *words, *(("--device", device) if device else ())),
            tolerance=_tolerance(entries.get("tolerance"), tolerance),
            node=line,
        )


def _tolerance(node: Node | None, usual: Tolerance) -> Tolerance:
    entries = node.mapping(optional=("percent", "cycles")) if node is not None else {}
    return replace(usual, **{name: _number(one) for name, one in entries.items()})


def _number(node: Node) -> float:
    try:
        value = float(node.text())
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:  # refuses what is no number, too
        raise node.fail(f"expected a number from 0 on, got {node.text()!r}")
    return value


# -- cases judged ----------------------------------------------------------------------------------


#: A step of a critical path as `npusim explain --json` has it, with its kernel and its source.
Step = dict[str, Any]


@dataclass(frozen=True)
class Grown:
    """An instruction that has ``cycles`` more than before, most of them for ``reason``.

    ``file`` is a path below the repository's folder, "" of what is no file of it; ``text`` is the
    line.
    """

    kernel: str
    pipe: str
    op: str
    file: str
    line: int
    text: str
    cycles: int
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else self.text
        what = " ".join(filter(None, (self.pipe, self.op, place)))
        return f"{self.kernel}: {what}: {self.cycles:+,} cycles, mostly {self.reason}"


def grown(before: Iterable[Step], after: Iterable[Step]) -> tuple[Grown, ...]:
    """What has more cycles in the kernels of an explanation than before, most first.

    Kernels are as `npusim explain --json` tells them, to which ``npusim/gate/work.py`` adds
    sources. A line is the one of before that has its text, else the next of its file that is left.
    """
    found = []
    for old, new in _pairs([*_steps(before)], [*_steps(after)]):
        parts = Counter[str](new["parts"])
        parts.subtract(old.get("parts", {}))
        cycles, reason = new["cycles"] - old.get("cycles", 0), max(parts, key=lambda n: parts[n])
        if cycles > 0:
            own = {name: new[name] for name in ("kernel", "pipe", "op", "file", "line", "text")}
            found.append(Grown(**own, cycles=cycles, reason=reason))
    return tuple(sorted(found, key=lambda one: -one.cycles))


def _steps(kernels: Iterable[Step]) -> Iterator[Step]:
    """The steps of all kernels, launches among them; their cycles add up to the call's."""
    for name, kernel in numbered(kernels, "name").items():
        own, launch = {"kernel": name}, kernel["launch_cycles"]
        empty = {"pipe": "", "op": "launch", "line": 0, "cycles": launch, "file": "", "text": ""}
        yield {**empty, **own, "parts": {"launch": launch}}
        for step in kernel["path"]:
            line = step["line"].rpartition(":")[2]
            given = {"file": "", **step, "text": step.get("text") or step["line"]}
            yield {**given, **own, "line": int(line) if line.isdigit() else 0}


def _pairs(old: list[Step], new: list[Step]) -> Iterator[tuple[Mapping[str, Any], Step]]:
    """Each new step with the old one that it was; {} where it was none."""
    for names in (("kernel", "pipe", "op", "file", "text"), ("kernel", "pipe", "op", "file")):
        known: dict[tuple[str, ...], list[Step]] = defaultdict(list)
        for step in sorted(old, key=lambda one: one["line"]):
            known[tuple(step[name] for name in names)].append(step)
        left = []
        for step in sorted(new, key=lambda one: one["line"]):
            same = known[tuple(step[name] for name in names)]
            if same:
                yield same.pop(0), step
            else:
                left.append(step)
        old, new = [one for steps in known.values() for one in steps], left
    yield from (({}, step) for step in new)


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
    """All findings of a gate, whose ``file`` states the cases, ``against`` what was before.

    ``against`` is "" where nothing was: then the times are only written down.
    """

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

    def text(self) -> str:
        """The gate for people, at most 80 columns wide but for lines of sources."""
        return page([_table(self), *(_reasons(one) for one in self.failed), _verdict(self)])

    def junit(self) -> str:
        """All cases as a suite of tests in JUnit's XML."""
        counts = {"tests": str(len(self.findings)), "failures": str(len(self.failed))}
        suite = Xml.Element("testsuite", {"name": f"npusim gate {self.file}", **counts})
        for one in self.findings:
            case = Xml.SubElement(suite, "testcase", classname=one.case, name=one.part or one.case)
            said = one.message or one.change
            if one.verdict in FAILING:
                made = Xml.SubElement(case, "failure", type=one.verdict, message=said)
                made.text = "\n".join([*_reasons(one)][1:])
            elif one.verdict == "gone":
                Xml.SubElement(case, "skipped", message="the case is gone")
            elif one.verdict:
                Xml.SubElement(case, "system-out").text = f"{one.verdict} {said}".strip()
        return shown(Xml.tostring(suite, encoding="unicode", xml_declaration=True)) + "\n"

    def for_github(self) -> str:
        """Annotations that GitHub shows where they point to; notices of what is faster."""
        lines = []
        for one in self.findings:
            if one.verdict in (*FAILING, "faster"):
                kind = "error" if one.verdict in FAILING else "notice"
                file, line = one.place or ("", 0)
                where = f"file={_escaped(file, ':,')},line={line}," if file else ""
                title = _escaped(f"npusim gate: {one.name} is {one.verdict}", ":,")
                told = "\n".join([one.message or one.change, *map(str, one.grown[:_MOST])])
                lines.append(f"::{kind} {where}title={title}::{_escaped(told)}\n")
        return "".join(lines)


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
    """The times of a baseline, by case and part.

    Raises ``ArgumentError`` for what is none: for a time that is no integer above 0 and no message
    of a case that did not run, for a case without times, and for a key that is there twice.
    """
    baseline = facts_of(path, path).get("npusim_gate")
    anew = "write one with `npusim gate FILE --save BASELINE.json`"
    if not isinstance(baseline, dict):
        raise ArgumentError(f"{path} is no baseline of a gate; {anew}")
    for case, times in baseline.items():
        if not isinstance(times, dict) or not times:
            raise ArgumentError(
                f"{path} is no baseline of a gate: the case {case!r} has no times by part; {anew}"
            )
        for part, time in times.items():
            if not isinstance(time, str) and not is_time(time):
                name = Finding(case=case, part=part).name
                raise ArgumentError(
                    f"{path} is no baseline of a gate: {name}: {json.dumps(time)} is no time; it "
                    f"is an integer of cycles above 0, or why the case did not run; {anew}"
                )
    return baseline


def is_time(value: object) -> bool:
    """Whether a value of a JSON file is a time in cycles: an integer above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def require_case(
    path: str, baseline: Mapping[str, Times], file: str, cases: Sequence[Case]
) -> None:
    """Raise ``ArgumentError`` where a baseline has none of a gate file's cases."""
    if not any(case.name in baseline for case in cases):
        names = ", ".join(map(repr, [*baseline][:_MOST])) or "none"
        raise ArgumentError(
            f"{path} has none of the {counted(len(cases), 'case')} of {file} (its cases: {names}); "
            f"give the baseline of this gate, or write it with `npusim gate {file} --save {path}`"
        )


#: Changes, and instructions that grew, that are told of one case.
_MOST = 4


# -- texts --------------------------------------------------------------------------------------


def _table(judged: Judged) -> Iterator[str]:
    rows: list[Sequence[str]] = [("case", "before", "after", "change", "")]
    for one in judged.findings:
        if one.verdict:
            times = ("-" if n is None else f"{n:,}" for n in (one.before, one.after))
            share = one.change.partition(" (")[2].rstrip(")")
            rows.append((one.name, *times, share, one.verdict))
    if len(rows) > 1:
        yield from columns(rows, left=(0, 4), width=WIDTH)
    same = [one for one in judged.findings if not one.verdict]
    if same:
        yield f"{_counted(same)} as before, within the tolerance"


def _counted(findings: Sequence[Finding]) -> str:
    """How many cases and layers of networks there are: ``"1 case and 54 layers"``."""
    layers = sum(bool(one.part) for one in findings)
    cases = len(findings) - layers
    numbers = [("case", cases)] if cases or not layers else []
    numbers += [("layer", layers)] if layers else []
    return " and ".join(counted(count, noun) for noun, count in numbers)


def _reasons(one: Finding) -> Iterator[str]:
    yield ""
    yield from wrap(f"{one.name}: {one.message or one.change}", later="  ")
    yield from (f"  changed  {line}" for line in one.culprits[:_MOST])
    yield from (f"  grew     {line}" for line in one.grown[:_MOST])


def _verdict(judged: Judged) -> Iterator[str]:
    yield ""
    failed = _counted(judged.failed) if judged.failed else ""
    if judged.against:
        verdict = f"fails: {failed} slower or failing" if failed else "passes"
        said = f"gate {judged.file} against {judged.against} {verdict}"
    else:
        simulated = f": {_counted(judged.findings)} simulated"
        verdict = f" fails: {failed} failing" if failed else simulated
        said = f"gate {judged.file}{verdict}; nothing is compared without --against"
    yield from wrap(said, later="  ")
    if any(one.verdict in ("slower", "faster") for one in judged.findings):
        yield from wrap(
            f"to accept the times as they are: npusim gate {judged.file} --save BASELINE.json, "
            "and --against that; or a wider tolerance of the case",
            later="  ",
        )


def _escaped(text: str, marks: str = "") -> str:
    """``text`` with the characters that have a meaning in annotations, and ``marks``, as codes."""
    return re.sub(f"[%\r\n{marks}]", lambda found: f"%{ord(found[0]):02X}", text)
