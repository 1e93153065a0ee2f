"""An explanation as plain text of at most 80 columns, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npusim.results.explained import Explained, KernelExplanation
from npusim.results.lines import (
    WIDTH,
    columns,
    counted,
    launched_text,
    page,
    percent_text,
    us_text,
    wrap,
)
from npusim.results.metrics import share
from npusim.results.verdict import WhatIf
from npusim.timing.trace import Step

#: Steps of a path, kernels and figures that are shown; the rest is added up or counted.
MAX_STEPS, MAX_KERNELS, MAX_FIGURES = 8, 3, 10

#: Kernels below this share of the call are not worth a chapter.
_WORTH_A_CHAPTER = 0.05

_PATH_HEAD = ("pipe", "instruction", "line", "cycles", "share", "times", "mostly")


def render(explanation: Explained) -> str:
    """The text, with a final newline."""
    return page(lines for lines, _ in pieces(explanation))


def pieces(
    explanation: Explained,
) -> Iterator[tuple[list[str], KernelExplanation | None]]:
    """The lines of the text part by part, and the kernel that a part is on."""
    shown, hidden = chapters(explanation)
    yield _header(explanation), None
    for one in shown:
        yield _kernel(one, head_of(explanation, one)), one
    if hidden:
        yield ["", f"({counted(hidden, 'shorter kernel')}: see to_json())"], None
    if explanation.what_if is not None:
        yield _what_if(explanation.what_if), None


def chapters(explanation: Explained) -> tuple[tuple[KernelExplanation, ...], int]:
    """The kernels that matter, in the order of the call, and how many do not."""
    worthy = [
        one for one in explanation.kernels
        if share(one.run.cycles, explanation.cycles) >= _WORTH_A_CHAPTER
    ] or list(explanation.kernels)  # fmt: skip
    largest = sorted(worthy, key=lambda one: -one.run.cycles)[:MAX_KERNELS]
    shown = tuple(one for one in explanation.kernels if any(one is other for other in largest))
    return shown, len(explanation.kernels) - len(shown)


def title(explanation: Explained) -> str:
    """What ran where, and how long."""
    launches = us_text(explanation.device.time_us(explanation.launch_cycles))
    return (
        f"{explanation.operator} on {explanation.device.name}: {us_text(explanation.time_us)} us = "
        f"{explanation.cycles:,} cycles, of which launches {launches} us"
        f"{launched_text(explanation.device.launch_mode)}"
    )


def head_of(explanation: Explained, one: KernelExplanation) -> str:
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


def _header(explanation: Explained) -> list[str]:
    lines = [*wrap(title(explanation), later="  "), *wrap(explanation.problem, later="  ")]
    if explanation.verdict is not None:
        lines += wrap(f"bottleneck: {explanation.verdict.text()}", later="  ")
    return lines


def _kernel(one: KernelExplanation, head: str) -> list[str]:
    table = columns([_PATH_HEAD, *path_cells(one)], left=(0, 1, 2, 6), width=WIDTH)
    lines = ["", *wrap(head, later="  "), "", path_title(one), *table]
    for name, text in facts(one):
        lines += wrap(text, f"  {name:<10} ", " " * 13)
    return lines


def _what_if(figures: Sequence[WhatIf]) -> list[str]:
    rows = [("figure", "now", "half, us", "double, us", "saves"), *what_if_cells(figures)]
    lines = ["", "WHAT IF a figure were half or twice what it is (same tilings)"]
    idle = idle_figures(figures)
    return [*lines, *columns(rows, left=2, width=WIDTH), *([idle] if idle else [])]
