"""Cases of two revisions side by side, with a verdict on each: a gate that passes or fails.

It is shown as text, as JUnit XML, and as annotations on GitHub. Cases are calls and networks as
lines of commands, with the tolerance of each.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from npusim.base.atomic_files import write
from npusim.base.errors import ArgumentError, shown
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.base.yamltree import YamlNode, load_tree, suggest
from npusim.gate.trees import SourceChange
from npusim.results.facts.differences import facts_of, numbered
from npusim.results.facts.number_text import counted
from npusim.results.writers.text_layout import WIDTH, columns, page, wrap

#: Commands whose lines are cases.
COMMANDS = ("run", "net")

#: Keys of a gate file and of one of its cases, those that may be left out.
_OF_FILE = ("description", "tolerance", "devices")
_OF_CASE = ("name", "tolerance", "devices")


@dataclass(frozen=True)
class Tolerance:
    """The loss a case may have: slower is more than ``percent`` and more than ``cycles``."""

    percent: float = 1.0
    cycles: float = 100.0

    def exceeded(self, before: int, after: int) -> bool:
        """True if both times differ by more."""
        return abs(after - before) > max(self.cycles, before * self.percent / 100)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call or network on one device: the ``words`` behind ``npusim``; ``node`` states it."""

    name: str
    words: tuple[str, ...]
    tolerance: Tolerance
    node: YamlNode


def shipped_gates() -> list[str]:
    """The names of the gate files that ship."""
    return sorted(file.name.partition(".")[0] for file in (configs() / "gates").iterdir())


def gate_file(name: str) -> Path:
    """A gate file: its path, or the name of one that ships.

    Raises ``ArgumentError`` for a name that is neither.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    if name not in shipped_gates():
        hint = suggest(name, shipped_gates())
        raise ArgumentError(
            f"unknown gate {name!r} (a file of your own needs a path ending in .yaml){hint}"
        )
    return Path(str(configs() / "gates" / f"{name}.yaml"))


def read_cases(source: Path | str, name: str = "") -> tuple[Case, ...]:
    """The cases of a gate file, one for each device; text is called ``name`` in errors.

    Raises ``ConfigError`` with file and line for what is no gate, and for cases called alike.
    """
    root = load_tree(source, name)
    entries = root.mapping(("cases",), _OF_FILE)
    tolerance = _tolerance(entries.get("tolerance"), Tolerance())
    cases: dict[str, Case] = {}
    for node in entries["cases"].items():
        for case in _cases(node, tolerance, entries.get("devices")):
            if case.name in cases:
                line = cases[case.name].node.line
                raise node.fail(
                    f"the case {case.name!r} is there already, in line {line}; give one of them "
                    "a name, or leave it out"
                )
            cases[case.name] = case
    if not cases:
        raise entries["cases"].fail("there is no case; add a line such as '- run: matmul ...'")
    return tuple(cases.values())


def _cases(node: YamlNode, tolerance: Tolerance, devices: YamlNode | None) -> Iterator[Case]:
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
    names_device = any(word.partition("=")[0] == "--device" for word in words)
    if names_device and "devices" in entries:
        raise entries["devices"].fail("the line has --device already; keep one of them")
    case = Case(
        name=name,
        words=(commands[0], *words),
        tolerance=_tolerance(entries.get("tolerance"), tolerance),
        node=line,
    )
    on_devices = entries.get("devices", devices)
    if names_device or on_devices is None:
        yield case
        return
    for device in on_devices.items():
        device_name = device.text()
        words_on_device = (*case.words, "--device", device_name)
        yield replace(case, name=f"{name} on {device_name}", words=words_on_device)


def _tolerance(node: YamlNode | None, usual: Tolerance) -> Tolerance:
    """The tolerance that a node states; parts it leaves out are ``usual``."""
    entries = node.mapping(optional=("percent", "cycles")) if node is not None else {}
    return replace(usual, **{name: _number(number) for name, number in entries.items()})


def _number(node: YamlNode) -> float:
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
        instruction = " ".join(filter(None, (self.pipe, self.op, place)))
        return f"{self.kernel}: {instruction}: {self.cycles:+,} cycles, mostly {self.reason}"


def grown(before: Iterable[Step], after: Iterable[Step]) -> tuple[Grown, ...]:
    """The instructions that have more cycles in an explanation than before, most first.

    Kernels are as `npusim explain --json` lists them, to which ``npusim/gate/work.py`` adds
    sources. A line is compared with the line of before that has its text, else with the next of its
    file that no other was compared with.
    """
    instructions = []
    for old, new in _pairs([*_steps(before)], [*_steps(after)]):
        cycles = new["cycles"] - old.get("cycles", 0)
        if cycles <= 0:
            continue
        parts = Counter[str](new["parts"])
        parts.subtract(old.get("parts", {}))
        instructions.append(
            Grown(
                kernel=new["kernel"],
                pipe=new["pipe"],
                op=new["op"],
                file=new["file"],
                line=new["line"],
                text=new["text"],
                cycles=cycles,
                reason=max(parts, key=lambda part: parts[part]),
            )
        )
    return tuple(sorted(instructions, key=lambda instruction: -instruction.cycles))


def _steps(kernels: Iterable[Step]) -> Iterator[Step]:
    """The steps of all kernels, launches among them; their cycles add up to the call's."""
    for name, kernel in numbered(kernels, "name").items():
        launch = kernel["launch_cycles"]
        yield {
            "kernel": name,
            "pipe": "",
            "op": "launch",
            "file": "",
            "line": 0,
            "text": "",
            "cycles": launch,
            "parts": {"launch": launch},
        }
        for step in kernel["path"]:
            line = step["line"].rpartition(":")[2]
            yield {
                "file": "",
                **step,
                "kernel": name,
                "line": int(line) if line.isdigit() else 0,
                "text": step.get("text") or step["line"],
            }


#: The keys in which a step is the same as one of before: those of the same text come first.
_SAME_TEXT = ("kernel", "pipe", "op", "file", "text")
_SAME_FILE = ("kernel", "pipe", "op", "file")


def _pairs(old: list[Step], new: list[Step]) -> Iterator[tuple[Mapping[str, Any], Step]]:
    """Each new step with the old step that it was; {} for a step that is new."""
    for keys in (_SAME_TEXT, _SAME_FILE):
        unpaired: dict[tuple[str, ...], list[Step]] = defaultdict(list)
        for step in sorted(old, key=itemgetter("line")):
            unpaired[tuple(step[key] for key in keys)].append(step)
        remaining = []
        for step in sorted(new, key=itemgetter("line")):
            same = unpaired[tuple(step[key] for key in keys)]
            if same:
                yield same.pop(0), step
            else:
                remaining.append(step)
        old = [step for steps in unpaired.values() for step in steps]
        new = remaining
    for step in new:
        yield {}, step


#: Verdicts on a case that fail the gate.
FAILING = ("slower", "fails")

#: Cycles, or why there are none, by part: "" is all of a case, others are layers of a network.
Times = Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict on a case, or on a ``part`` of it.

    ``verdict`` is one of ``FAILING``, or "faster", "new", "gone", or "" where the time is as
    before. ``message`` is the reason why it fails to run. ``culprits`` are changes that make it
    slower, ``grown`` instructions that have more cycles, both those that matter most first.
    """

    case: str
    part: str = ""
    verdict: str = ""
    before: int | None = None
    after: int | None = None
    message: str = ""
    culprits: tuple[SourceChange, ...] = ()
    grown: tuple[Grown, ...] = ()

    @property
    def name(self) -> str:
        """The case with its part."""
        return f"{self.case}: {self.part}" if self.part else self.case

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line to look at first; None where none is known."""
        for change in self.culprits:
            return change.file, change.line
        for instruction in self.grown:
            if instruction.file:
                return instruction.file, instruction.line
        return None

    @property
    def change(self) -> str:
        """The change of the time, in cycles and as a share."""
        if not self.before or self.after is None:
            return ""
        return f"{self.after - self.before:+,} cycles ({self.after / self.before - 1:+.1%})"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All findings of a gate, whose ``file`` states the cases, ``against`` the times of before.

    ``against`` is "" where there are none: then the times are only written down.
    """

    file: str
    against: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that fail the gate."""
        return tuple(finding for finding in self.findings if finding.verdict in FAILING)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {"passed": not self.failed, **asdict(self)}

    def text(self) -> str:
        """The gate for people, at most 80 columns wide but for lines of sources."""
        reasons = [_reasons(finding) for finding in self.failed]
        return page([_table(self), *reasons, _verdict(self)])

    def junit(self) -> str:
        """All cases as a suite of tests in JUnit's XML."""
        suite = Xml.Element(
            "testsuite",
            {
                "name": f"npusim gate {self.file}",
                "tests": str(len(self.findings)),
                "failures": str(len(self.failed)),
            },
        )
        for finding in self.findings:
            name = finding.part or finding.case
            case = Xml.SubElement(suite, "testcase", classname=finding.case, name=name)
            _add_verdict(case, finding)
        return shown(Xml.tostring(suite, encoding="unicode", xml_declaration=True)) + "\n"

    def for_github(self) -> str:
        """Annotations that GitHub shows where they point to; notices of what is faster."""
        lines = []
        for finding in self.findings:
            if finding.verdict in (*FAILING, "faster"):
                kind = "error" if finding.verdict in FAILING else "notice"
                file, line = finding.place or ("", 0)
                where = f"file={_escaped(file, ':,')},line={line}," if file else ""
                title = _escaped(f"npusim gate: {finding.name} is {finding.verdict}", ":,")
                details = [finding.message or finding.change, *map(str, finding.grown[:_MOST])]
                text = _escaped("\n".join(details))
                lines.append(f"::{kind} {where}title={title}::{text}\n")
        return "".join(lines)


def _add_verdict(case: Xml.Element, finding: Finding) -> None:
    """Say in a test case of JUnit's XML that it failed, is gone, or is new or faster."""
    details = finding.message or finding.change
    if finding.verdict in FAILING:
        failure = Xml.SubElement(case, "failure", type=finding.verdict, message=details)
        failure.text = "\n".join([*_reasons(finding)][1:])
    elif finding.verdict == "gone":
        Xml.SubElement(case, "skipped", message="the case is gone")
    elif finding.verdict:
        Xml.SubElement(case, "system-out").text = f"{finding.verdict} {details}".strip()


def times_of(answer: Mapping[str, Any]) -> Times:
    """The times in an answer of `npusim run --json` or `npusim net --json`."""
    facts = answer["facts"]
    layers = [layer for layer in facts.get("layers", ()) if "layer" in layer]
    if not facts or (answer["error"] and not layers):
        return {"": answer["error"]}
    times = {} if answer["error"] else {"": facts["cycles"]}
    for layer in layers:
        times[layer["layer"]] = layer["error"] or layer["cycles"]
    return times


def judge(
    cases: Sequence[Case], before: Mapping[str, Times], after: Mapping[str, Times]
) -> tuple[Finding, ...]:
    """The verdict on each case and on its parts; cases that only ``before`` has are gone."""
    findings: list[Finding] = []
    for case in cases:
        findings += _judged_parts(case, before.get(case.name, {}), after[case.name])
    names = {case.name for case in cases}
    gone = [Finding(case=name, verdict="gone") for name in before if name not in names]
    return *findings, *gone


def _judged_parts(case: Case, before: Times, after: Times) -> Iterator[Finding]:
    """The verdict on each part of a case."""
    for part in dict.fromkeys((*after, *before)):
        old, new = before.get(part), after.get(part)
        old_cycles = old if isinstance(old, int) else None
        new_cycles = new if isinstance(new, int) else None
        finding = Finding(case=case.name, part=part, before=old_cycles, after=new_cycles)
        if isinstance(new, str):
            yield replace(finding, verdict="fails", message=new)
        elif new_cycles is None:
            yield replace(finding, verdict="gone")
        elif old_cycles is None:
            yield replace(finding, verdict="new")
        elif case.tolerance.exceeded(old_cycles, new_cycles):
            yield replace(finding, verdict="slower" if new_cycles > old_cycles else "faster")
        else:
            yield finding


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
    """True if a value of a JSON file is a time in cycles: an integer above 0."""
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


#: The most changes, and the most instructions that grew, shown of one case.
_MOST = 4


# -- texts --------------------------------------------------------------------------------------


def _table(judged: Judged) -> Iterator[str]:
    rows: list[Sequence[str]] = [("case", "before", "after", "change", "")]
    for finding in judged.findings:
        if finding.verdict:
            before, after = _cycles(finding.before), _cycles(finding.after)
            share = finding.change.partition(" (")[2].rstrip(")")
            rows.append((finding.name, before, after, share, finding.verdict))
    if len(rows) > 1:
        yield from columns(rows, left=(0, 4), width=WIDTH)
    same = [finding for finding in judged.findings if not finding.verdict]
    if same:
        yield f"{_counted(same)} as before, within the tolerance"


def _cycles(cycles: int | None) -> str:
    return "-" if cycles is None else f"{cycles:,}"


def _counted(findings: Sequence[Finding]) -> str:
    """The number of cases and of layers of networks: ``"1 case and 54 layers"``."""
    layers = sum(bool(finding.part) for finding in findings)
    cases = len(findings) - layers
    counts = []
    if cases or not layers:
        counts.append(counted(cases, "case"))
    if layers:
        counts.append(counted(layers, "layer"))
    return " and ".join(counts)


def _reasons(finding: Finding) -> Iterator[str]:
    """Lines on a finding that fails: its change or message, culprits and instructions that grew."""
    yield ""
    yield from wrap(f"{finding.name}: {finding.message or finding.change}", later="  ")
    for change in finding.culprits[:_MOST]:
        yield f"  changed  {change}"
    for instruction in finding.grown[:_MOST]:
        yield f"  grew     {instruction}"


def _verdict(judged: Judged) -> Iterator[str]:
    """The last lines: does the gate pass, and the way out where times changed."""
    yield ""
    failed = _counted(judged.failed) if judged.failed else ""
    if judged.against:
        verdict = f"fails: {failed} slower or failing" if failed else "passes"
        sentence = f"gate {judged.file} against {judged.against} {verdict}"
    else:
        simulated = f": {_counted(judged.findings)} simulated"
        verdict = f" fails: {failed} failing" if failed else simulated
        sentence = f"gate {judged.file}{verdict}; nothing is compared without --against"
    yield from wrap(sentence, later="  ")
    if any(finding.verdict in ("slower", "faster") for finding in judged.findings):
        yield from wrap(
            f"to accept the times as they are: npusim gate {judged.file} --save BASELINE.json, "
            "and --against that; or a wider tolerance of the case",
            later="  ",
        )


def _escaped(text: str, marks: str = "") -> str:
    """``text`` with the characters that have a meaning in annotations, and ``marks``, as codes."""
    return re.sub(f"[%\r\n{marks}]", lambda match: f"%{ord(match[0]):02X}", text)
