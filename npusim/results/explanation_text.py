"""An explanation as plain text of at most 80 columns, and the cells that its tables are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from npusim.results.explanation import Explanation, KernelExplanation
from npusim.results.lines import columns, counted, page, percent_text, us_text
from npusim.results.metrics import share
from npusim.results.what_if import WhatIf
from npusim.timing.trace import Step

#: Columns of the text.
WIDTH = 80

#: Steps of a path, kernels and figures that are shown; the rest is added up or counted.
MAX_STEPS, MAX_KERNELS, MAX_FIGURES = 8, 3, 10

#: Kernels below this share of the call are not worth a chapter.
_WORTH_A_CHAPTER = 0.05

PATH_HEAD = ("pipe", "instruction", "line", "cycles", "share", "times", "mostly")
WHAT_IF_TITLE = "WHAT IF a figure were half or twice what it is (same tilings)"
WHAT_IF_HEAD = ("figure", "now", "half, us", "double, us", "saves")


def render(explanation: Explanation) -> str:
    """The text, with a final newline."""
    shown, hidden = chapters(explanation)
    sections: list[Iterator[str] | list[str]] = [_header(explanation)]
    sections += [_kernel(one, head_of(explanation, one)) for one in shown]
    if hidden:
        sections.append(["", f"({counted(hidden, 'shorter kernel')}: see to_json())"])
    if explanation.what_if is not None:
        sections.append(_what_if(explanation.what_if))
    return page(sections)


def chapters(explanation: Explanation) -> tuple[tuple[KernelExplanation, ...], int]:
    """The kernels that matter, in the order of the call, and how many do not."""
    worthy = [
        one for one in explanation.kernels
        if share(one.run.cycles, explanation.cycles) >= _WORTH_A_CHAPTER
    ] or list(explanation.kernels)  # fmt: skip
    largest = sorted(worthy, key=lambda one: -one.run.cycles)[:MAX_KERNELS]
    shown = tuple(one for one in explanation.kernels if any(one is other for other in largest))
    return shown, len(explanation.kernels) - len(shown)


def title(explanation: Explanation) -> str:
    """What ran where, and how long."""
    launches = us_text(explanation.device.time_us(explanation.launch_cycles))
    return (
        f"{explanation.operator} on {explanation.device.name}: {us_text(explanation.time_us)} us = "
        f"{explanation.cycles:,} cycles, of which launches {launches} us"
    )


def head_of(explanation: Explanation, one: KernelExplanation) -> str:
    """A kernel, its time, and how near that is to both of its bounds."""
    whose = {"program": "its program needs", "problem": "any program for its problem"}
    near = ", ".join(
        f"{whose[name]} {percent_text(share(bound.cycles, one.run.cycles))} ({bound.resource})"
        for name, bound in one.bounds.items()
    )
    us = us_text(explanation.device.time_us(one.run.cycles))
    return f"{one.run.name}: {us} us = {one.run.cycles:,} cycles" + (
        f"; of these {near}" if near else ""
    )


def path_title(one: KernelExplanation) -> str:
    """What the path is, and the file of its lines where that is one."""
    (*_, file), several = sorted(_files(one)), len(_files(one)) > 1
    return f"CRITICAL PATH{'' if several else f' through {file}'}, longest first"


def _files(one: KernelExplanation) -> set[str]:
    """The files of the steps shown."""
    return {step.work.line.rpartition(":")[0] for step in one.path[:MAX_STEPS]} or {""}


def path_cells(one: KernelExplanation) -> list[tuple[str, ...]]:
    """A row per step of the path, the short ones in one row at the end."""
    skip = f"{min(_files(one))}:" if len(_files(one)) == 1 else ""
    rows = [_step_cells(step, one.run.cycles, skip) for step in one.path[:MAX_STEPS]]
    rest = one.path[MAX_STEPS:]
    if rest:
        cycles, times = sum(step.cycles for step in rest), sum(step.count for step in rest)
        part = percent_text(share(cycles, one.run.cycles))
        rows.append(("", f"{len(rest)} more", "", f"{cycles:,}", part, f"{times:,}", ""))
    return rows


def _step_cells(step: Step, whole: int, skip: str) -> tuple[str, ...]:
    """A step; ``skip`` is what its line begins with that need not be said."""
    return (
        step.work.pipe,
        step.work.op,
        step.work.line.removeprefix(skip).replace(".py:", ":"),
        f"{step.cycles:,}",
        percent_text(share(step.cycles, whole)),
        f"{step.count:,}",
        max(step.parts, key=lambda part: step.parts[part]),
    )


def shares(counts: Mapping[str, int], whole: int) -> str:
    """Counts by name as shares of a whole: ``bytes 60 %, start-up 40 %``."""
    return ", ".join(f"{name} {percent_text(share(n, whole))}" for name, n in counts.items())


def facts(one: KernelExplanation) -> list[tuple[str, str]]:
    """What is said of a kernel below its path, by title."""
    cycles = one.run.cycles
    found = [
        ("parts", shares(one.parts, cycles)),
        ("reasons", shares(one.reasons, cycles)),
        ("pipes", shares(one.pipes, cycles)),
    ]
    if one.busiest_name:
        found.append((one.busiest_name, shares(one.busiest, cycles)))
    return found + [("cube", sentence) for sentence in one.waste]


def what_if_cells(figures: Sequence[WhatIf]) -> list[tuple[str, ...]]:
    """A row per figure that moves the time, those that save most first."""
    moving = [one for one in figures if one.effect_us > 0]
    return [
        (
            one.figure,
            one.value.partition(" (")[0],
            *("-" if us is None else us_text(us) for us in (one.half_us, one.double_us)),
            percent_text(one.gain_us / one.time_us) if one.gain_us else "",
        )
        for one in moving[:MAX_FIGURES]
    ]


def idle_figures(figures: Sequence[WhatIf]) -> str:
    """How many figures are not in the table, and why; "" where all are."""
    moving = sum(one.effect_us > 0 for one in figures)
    more, still = max(0, moving - MAX_FIGURES), len(figures) - moving
    texts = [f"{counted(more, 'figure')} more"] if more else []
    texts += [f"{counted(still, 'figure')} without effect"] if still else []
    return f"({', '.join(texts)})" if texts else ""


def _header(explanation: Explanation) -> Iterator[str]:
    yield from _wrapped(title(explanation))
    yield from _wrapped(explanation.problem)
    if explanation.verdict is not None:
        yield from _wrapped(f"bottleneck: {explanation.verdict.text()}")


def _kernel(one: KernelExplanation, head: str) -> Iterator[str]:
    yield ""
    yield from _wrapped(head)
    yield ""
    yield path_title(one)
    rows = [PATH_HEAD, *path_cells(one)]
    yield from columns(rows, left=(0, 1, 2, 6), width=WIDTH)
    for name, text in facts(one):
        yield from _wrapped(text, f"  {name:<10} ", " " * 13)


def _what_if(figures: Sequence[WhatIf]) -> Iterator[str]:
    yield ""
    yield WHAT_IF_TITLE
    rows = [WHAT_IF_HEAD, *what_if_cells(figures)]
    yield from columns(rows, left=2, width=WIDTH)
    if idle_figures(figures):
        yield idle_figures(figures)


def _wrapped(text: str, first: str = "", later: str = "  ") -> list[str]:
    """Lines of at most ``WIDTH`` columns that never part a number from its per cent sign."""
    lines = textwrap.wrap(text.replace(" %", "\u00a0%"), WIDTH, initial_indent=first,
                          subsequent_indent=later, break_on_hyphens=False)  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines]
