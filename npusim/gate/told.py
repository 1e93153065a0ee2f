"""What a gate found as text, as JUnit XML, and as annotations that GitHub shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Xml

from npusim.base.errors import shown
from npusim.gate.judged import FAILING, Finding, Judged
from npusim.results.lines import WIDTH, columns, counted, page, wrap

#: Changes, and instructions that grew, that are told of one case.
_MOST = 4


def render(judged: Judged) -> str:
    """The gate for people, at most 80 columns wide but for lines of sources."""
    return page([_table(judged), *(_reasons(one) for one in judged.failed), _verdict(judged)])


def _table(judged: Judged) -> Iterator[str]:
    rows: list[Sequence[str]] = [("case", "before", "after", "change", "")]
    for one in judged.findings:
        if one.verdict:
            times = ("-" if n is None else f"{n:,}" for n in (one.before, one.after))
            share = one.change.partition(" (")[2].rstrip(")")
            rows.append((one.name, *times, share, one.verdict))
    if len(rows) > 1:
        yield from columns(rows, left=(0, 4), width=WIDTH)
    same = len(judged.findings) - len(rows) + 1
    if same:
        yield f"{counted(same, 'time')} as before, within the tolerance"


def _reasons(one: Finding) -> Iterator[str]:
    yield ""
    yield from wrap(f"{one.name}: {one.message or one.change}", later="  ")
    yield from (f"  changed  {line}" for line in one.culprits[:_MOST])
    yield from (f"  grew     {line}" for line in one.grown[:_MOST])


def _verdict(judged: Judged) -> Iterator[str]:
    yield ""
    failed = len(judged.failed)
    what = f"fails: {counted(failed, 'time')} slower or failing" if failed else "passes"
    yield from wrap(f"gate {judged.file} against {judged.against} {what}", later="  ")
    if any(one.verdict in ("slower", "faster") for one in judged.findings):
        yield from wrap(
            f"to accept the times as they are: npusim gate {judged.file} --save BASELINE.json, "
            "and --against that; or a wider tolerance of the case",
            later="  ",
        )


def junit(judged: Judged) -> str:
    """All cases as a suite of tests in JUnit's XML."""
    counts = {"tests": str(len(judged.findings)), "failures": str(len(judged.failed))}
    suite = Xml.Element("testsuite", {"name": f"npusim gate {judged.file}", **counts})
    for one in judged.findings:
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


def for_github(judged: Judged) -> str:
    """Annotations that GitHub shows where they point to; notices of what is faster."""
    lines = []
    for one in judged.findings:
        if one.verdict in (*FAILING, "faster"):
            kind = "error" if one.verdict in FAILING else "notice"
            file, line = one.place or ("", 0)
            where = f"file={_escaped(file, ':,')},line={line}," if file else ""
            title = _escaped(f"npusim gate: {one.name} is {one.verdict}", ":,")
            told = "\n".join([one.message or one.change, *map(str, one.grown[:_MOST])])
            lines.append(f"::{kind} {where}title={title}::{_escaped(told)}\n")
    return "".join(lines)


def _escaped(text: str, marks: str = "") -> str:
    """``text`` with the characters that have a meaning in annotations, and ``marks``, as codes."""
    return re.sub(f"[%\r\n{marks}]", lambda found: f"%{ord(found[0]):02X}", text)
