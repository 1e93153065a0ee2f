"""Every engine gives the reference's cycles, rows and L2 content, on random programs and operators.

``python -m tests.machine.timing.test_engines_agree`` prints how often the random programs show
what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import npusim
from npusim.base.errors import ProgramError
from npusim.base.reasons import FOLLOW, REASONS
from npusim.machine.device.parts import SCOPES
from npusim.machine.program.program import ATOMIC, MOVE, Program
from npusim.machine.timing.outcome import L2
from npusim.machine.timing.run import ENGINES, new_l2, time_program
from npusim.machine.timing.trace import KernelRun, Timeline
from tests.calls import Row, data
from tests.machine.timing.random_programs import Case, random_case
from tests.sampled import of_each_kind

REFERENCE = "simpy"
OTHERS = [engine for engine in ENGINES if engine != REFERENCE]

#: Seeds of one test.
CHUNK, SLOW_CHUNK = 20, 250


def attempt(program: Program, l2: L2, *, timeline: bool = True) -> KernelRun | str:
    """The run, or the text of the error that ends it."""
    try:
        return time_program(program, l2, timeline=timeline)
    except ProgramError as error:
        return str(error)


def disagreement(case: Case, engine: str) -> str:
    """The first thing the engine gets wrong on a case; empty if it gets everything right.

    Every fourth case is run without a timeline, as long programs are.
    """
    expected_l2, actual_l2 = (new_l2(case.device, e) for e in (REFERENCE, engine))
    timeline = case.seed % 4 > 0
    for number, program in enumerate(case.programs):
        expected = attempt(program, expected_l2, timeline=timeline)
        actual = attempt(program, actual_l2, timeline=timeline)
        found = difference(expected, actual)
        found = found or first_row("L2 block", expected_l2.content(), actual_l2.content())
        if found:
            return f"seed {case.seed}, program {number} on {case.device.name}: {found}"
        if isinstance(expected, str):  # an error ends the call
            break
    return ""


def difference(expected: KernelRun | str, actual: KernelRun | str) -> str:
    """The first difference of two outcomes in words, the earliest instruction first."""
    if isinstance(expected, str) or isinstance(actual, str):
        return "" if expected == actual else f"expected {expected!r}, got {actual!r}"
    if expected.timeline and actual.timeline:
        found = _instruction(expected.timeline, actual.timeline)
        if found:
            return found
    for name in KernelRun.__struct_fields__:
        left, right = getattr(expected, name), getattr(actual, name)
        if isinstance(left, tuple):
            found = first_row(name, left, right)
            if found:
                return found
        elif name != "timeline" and left != right:
            return f"{name}: expected {left}, got {right}"
    return "" if (expected.timeline is None) == (actual.timeline is None) else "one timeline"


def first_row(name: str, expected: Sequence[object], actual: Sequence[object]) -> str:
    """The first row that differs, in words."""
    for i, (left, right) in enumerate(zip(expected, actual, strict=False)):
        if left != right:
            return f"{name} {i}: expected {left}, got {right}"
    if len(expected) != len(actual):
        return f"{name}: expected {len(expected)} rows, got {len(actual)}"
    return ""


def _instruction(expected: Timeline, actual: Timeline) -> str:
    """The first instruction, in order of start, that differs in anything."""
    rows, others = _rows(expected), _rows(actual)
    for i, (left, right) in enumerate(zip(rows, others, strict=False)):
        if left != right:
            where = " ".join(left[name] for name in ("core", "pipe", "op", "line"))
            wrong = [f"{n} {left[n]} -> {right[n]}" for n in left if left[n] != right[n]]
            return f"instruction {i}, {where}, expected -> got: {', '.join(wrong)}"
    return "" if len(rows) == len(others) else f"{len(others)} instructions, not {len(rows)}"


def _rows(t: Timeline) -> list[dict[str, Any]]:
    """A timeline as one mapping per instruction, with names for indices."""
    columns: dict[str, list[Any]] = {
        name: [names[i] for i in getattr(t, name)]
        for name, names in (("core", t.cores), ("pipe", t.pipes), ("op", t.ops), ("line", t.lines))
    }
    columns |= {name: getattr(t, name).tolist() for name in ("start", "end", "bytes", "macs")}
    columns |= {"reason": [REASONS[i] for i in t.reason], "waited": t.waited.tolist()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def assert_agree(seeds: range, engine: str) -> None:
    wrong = [text for seed in seeds if (text := disagreement(random_case(seed), engine))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
@pytest.mark.parametrize("engine", OTHERS)
def test_random_programs(engine: str, first: int) -> None:
    assert_agree(range(first, first + CHUNK), engine)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 11_000, SLOW_CHUNK))
@pytest.mark.parametrize("engine", OTHERS)
def test_ten_thousand_random_programs(engine: str, first: int) -> None:
    assert_agree(range(first, first + SLOW_CHUNK), engine)


# -- operators -----------------------------------------------------------------------------

#: Every operator by the role of the cores it needs; device and engine are still to come.
CALLS = {
    role: {name: Row(**row, timing=True) for name, row in rows.items()}
    for role, rows in data("operators").items()
}


def operator_calls() -> list[Any]:
    """(device, role, name of a call) for every call that a shipped device can make."""
    kinds = {name: npusim.load_device(name).cores.values() for name in npusim.devices()}
    roles = {name: [role for kind in cores for role in kind.roles] for name, cores in kinds.items()}
    return of_each_kind(
        (device, role, name) for device in roles for role in roles[device] for name in CALLS[role]
    )


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize(("device", "role", "name"), operator_calls())
def test_operators(device: str, role: str, name: str, engine: str) -> None:
    how = {"device": device, "timeline": True}
    expected, actual = (CALLS[role][name](engine=e, **how).runs for e in (REFERENCE, engine))
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert not difference(one, other), f"kernel {one.name}: {difference(one, other)}"


# -- what random programs show -------------------------------------------------------------


def shown(program: Program, l2: L2) -> set[str]:
    """What one random program has in it, by its rows; the L2 goes on as the program leaves it."""
    run = attempt(program, l2)
    flows = [flow for template in program.templates for flow in template.flows if flow]
    found = {program.roles[0], "cached" if program.device.l2 else "uncached"}
    found |= {"atomic"} if any(flow.kind == ATOMIC for flow in flows) else set()
    if isinstance(run, str):
        return found | {"hang"}
    assert run.timeline is not None
    found |= set(run.timeline.ops)
    found |= {f"reason {r}" for i, r in enumerate(REASONS) if any(p.cycles[i] for p in run.pipes)}
    return found | _shown_by_memory(program, run) | _shown_by_order(program, run.timeline)


def _shown_by_memory(program: Program, run: KernelRun) -> set[str]:
    links = program.device.links.values()
    flows = [flow for template in program.templates for flow in template.flows if flow]
    facts: dict[str, Any] = {"main memory written": run.traffic[-1].bytes}
    facts |= {f"link of a {scope}": any(x.scope == scope for x in links) for scope in SCOPES}
    facts["moves that share a link"] = sum(flow.kind == MOVE for flow in flows) > 1
    if program.device.l2:
        facts["L2 hit"] = any(row.hit_bytes for row in run.traffic)
        facts["L2 miss"] = any(row.miss_bytes for row in run.traffic)
        facts["dirty eviction"] = run.traffic[-1].bytes
    return {name for name, holds in facts.items() if holds}


def _shown_by_order(program: Program, t: Timeline) -> set[str]:
    starts, ends = Counter(t.start.tolist()), Counter(t.end.tolist())
    facts = {
        "three starts in a cycle": max(starts.values()) > 2,
        "three ends in a cycle": max(ends.values()) > 2,
        "no cycle at all": (t.start == t.end).any(),
        "a million cycles": t.end.max() > 1_000_000,
        "linked in several ways": len(program.variants) > len(program.templates),
        "idle core": any(not len(core.variants) for core in program.cores),
        "mmad follows": (t.reason[t.op == _place(t.ops, "mmad")] == FOLLOW).any(),
        "drain follows": (t.reason[t.op == _place(t.ops, "drain")] == FOLLOW).any(),
        "more than 8 cores": len(program.cores) > 8,
        "more than 1000 instructions": len(t.start) > 1000,
    }
    return {name for name, holds in facts.items() if holds}


def _place(names: Sequence[str], name: str) -> int:
    """The index of a name, -1 if it is not there."""
    return names.index(name) if name in names else -1


def main(seeds: int = 1000) -> None:
    """Print the share of random programs that show a thing, for each thing."""
    counts: Counter[str] = Counter()
    programs = 0
    for seed in range(seeds):
        case = random_case(seed)
        l2 = new_l2(case.device, REFERENCE)
        for program in case.programs:
            counts.update(shown(program, l2))
            programs += 1
    for name, count in counts.most_common():
        print(f"{count / programs:6.1%} {name}")


if __name__ == "__main__":
    main()
