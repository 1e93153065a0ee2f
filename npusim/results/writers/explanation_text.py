"""The explanation of a call as text of 80 columns, and with colours for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import LineWork, Step
from npusim.results.facts.advice import MAX_KERNELS, major_kernels
from npusim.results.facts.explanation import ExplanationFacts, KernelExplanation
from npusim.results.facts.metrics import share
from npusim.results.facts.number_text import (
    counted,
    launched_text,
    percent_text,
    us_or_none,
    us_text,
)
from npusim.results.facts.what_if import WhatIf
from npusim.results.shown import kernel_lines
from npusim.results.shown.palette import PATH_COLOURS
from npusim.results.writers.text_layout import WIDTH, columns, page, wrap

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: Steps of a path and figures that are shown; the rest is added up or counted.
MAX_STEPS, MAX_FIGURES = 8, 10

_PATH_HEAD = ("pipe", "instruction", "line", "cycles", "share", "times", "mostly")

#: Columns of the bar of parts.
_BAR = 60

#: Lines that are titles.
_TITLE = r"(?m)^(\S.*:.* us = .*|[A-Z]{3,} .*|pipe  .*|figure  .*)$"


def text(explanation: ExplanationFacts) -> str:
    """The explanation in lines of at most 80 columns."""
    return page(lines for lines, _ in pieces(explanation))


def coloured(explanation: ExplanationFacts) -> RenderableType:
    """The same with colours, for a terminal."""
    from rich.console import Group  # noqa: PLC0415 - what goes to a file does not wait for it
    from rich.constrain import Constrain  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown: list[RenderableType] = []
    for lines, kernel in pieces(explanation):
        text = Text("\n".join(lines))
        text.highlight_regex(_TITLE, "bold")
        for part, colour in PATH_COLOURS.items():
            text.highlight_regex(rf"(?m)\b{part}(?= *$| <?\d)", colour)
        shown.append(text)
        if kernel is not None:
            shown.append(Padding(_bar(kernel.parts, kernel.run.cycles), (0, 0, 0, 2)))
    return Constrain(Group(*shown), WIDTH)


def pieces(explanation: ExplanationFacts) -> Iterator[tuple[list[str], KernelExplanation | None]]:
    """The lines of the text part by part, and the kernel that a part is on."""
    shown, hidden = chapters(explanation)
    yield _header(explanation), None
    for kernel in shown:
        yield _kernel(explanation.device, kernel), kernel
    if hidden:
        yield ["", f"({counted(hidden, 'shorter kernel')}: see to_json())"], None
    if explanation.what_if is not None:
        yield _what_if(explanation.what_if), None


def chapters(explanation: ExplanationFacts) -> tuple[tuple[KernelExplanation, ...], int]:
    """The kernels that matter, in the order of the call, and how many do not."""
    runs = [kernel.run for kernel in explanation.kernels]
    major = major_kernels(runs) or sorted(runs, key=lambda run: -run.cycles)[:MAX_KERNELS]
    shown = tuple(
        kernel for kernel in explanation.kernels if any(kernel.run is run for run in major)
    )
    return shown, len(explanation.kernels) - len(shown)


def _step_cells(step: Step, cycles: int, skip: str) -> tuple[str, ...]:
    """A step; ``skip`` is what its line begins with that need not be said."""
    return (
        step.work.pipe,
        step.work.op,
        _short(step.work.line, skip),
        f"{step.cycles:,}",
        percent_text(share(step.cycles, cycles)),
        f"{step.count:,}",
        max(step.parts, key=lambda part: step.parts[part]),
    )


def _header(explanation: ExplanationFacts) -> list[str]:
    """Lines on what ran where and how long, and what holds it up."""
    device = explanation.device
    launches = us_text(device.time_us(explanation.launch_cycles))
    lines = wrap(
        f"{explanation.operator} on {device.name}: {us_text(explanation.time_us)} us = "
        f"{explanation.cycles:,} cycles, of which launches {launches} us"
        f"{launched_text(device.launch_mode)}",
        later="  ",
    )
    lines += wrap(explanation.problem, later="  ")
    if explanation.verdict is not None:
        lines += wrap(f"bottleneck: {explanation.verdict.text()}", later="  ")
    return lines


def _kernel(device: Device, kernel: KernelExplanation) -> list[str]:
    """A kernel, its time, how near that is to both of its bounds, its path and what sums it up."""
    whose = {"program": "its program needs", "problem": "any program for its problem"}
    cycles = kernel.run.cycles
    near = ", ".join(
        f"{whose[name]} {percent_text(share(bound.cycles, cycles))} ({bound.resource})"
        for name, bound in kernel.bounds.items()
    )
    head = f"{kernel.run.name}: {us_text(device.time_us(cycles))} us = {cycles:,} cycles"
    head += f"; of these {near}" if near else ""
    lines = ["", *wrap(head, later="  "), "", *_path(kernel)]
    sums = {"parts": kernel.parts, "reasons": kernel.reasons, "pipes": kernel.pipes}
    sums |= {kernel.busiest_name: kernel.busiest} if kernel.busiest_name else {}
    shares = [
        (name, ", ".join(f"{part} {percent_text(share(n, cycles))}" for part, n in counts.items()))
        for name, counts in sums.items()
    ]
    waste = [("cube", sentence) for sentence in kernel.waste]
    waste += [("vector", sentence) for sentence in kernel.idle_lanes]
    if kernel.run.idle:
        waste.append(("cores", kernel.run.idle))
    for name, text in (*shares, *waste):
        lines += wrap(text, f"  {name:<10} ", " " * 13)
    return [*lines, "", *_lines(kernel)]


def _lines(kernel: KernelExplanation) -> list[str]:
    """Demands on their pipe of the lines that work most, file by file; the others are counted."""
    shown, rest = kernel.trace.lines[:MAX_STEPS], kernel.trace.lines[MAX_STEPS:]
    by_file: dict[str, list[LineWork]] = {}
    for line in shown:
        by_file.setdefault(line.work.line.rpartition(":")[0], []).append(line)
    lines: list[str] = []
    for file, lines_of_file in by_file.items():
        rows: list[tuple[str, ...]] = [kernel_lines.HEAD]
        for line in lines_of_file:
            pipe, op, place, *numbers = kernel_lines.cells(line)
            rows.append((pipe, op, place.removeprefix(f"{file}:"), *numbers))
        about = "" if lines else " (each: cycles of one alone)"
        lines += [f"LINES of {file}{about}", *columns(rows, left=kernel_lines.LEFT, width=WIDTH)]
    return [*lines, f"({counted(len(rest), 'line')} more)"] if rest else lines


def _one_file(places: Sequence[str]) -> tuple[str, str]:
    """The file of all places, and what they begin with; "" where there are several files."""
    file, *others = sorted({place.rpartition(":")[0] for place in places} or {""})
    return ("", "") if others else (file, f"{file}:")


def _short(place: str, skip: str) -> str:
    """A place without what need not be said."""
    return place.removeprefix(skip).replace(".py:", ":")


def _path(kernel: KernelExplanation) -> list[str]:
    """The critical path: a row per step, the short ones in one row at the end."""
    shown, rest = kernel.path[:MAX_STEPS], kernel.path[MAX_STEPS:]
    file, skip = _one_file([step.work.line for step in shown])
    through = f" through {file}" if file else ""
    rows = [_PATH_HEAD, *(_step_cells(step, kernel.run.cycles, skip) for step in shown)]
    if rest:
        cycles, times = sum(step.cycles for step in rest), sum(step.count for step in rest)
        part = percent_text(share(cycles, kernel.run.cycles))
        rows.append(("", f"{len(rest)} more", "", f"{cycles:,}", part, f"{times:,}", ""))
    table = columns(rows, left=(0, 1, 2, 6), width=WIDTH)
    return [f"CRITICAL PATH{through}, longest first", *table]


def _what_if(figures: Sequence[WhatIf]) -> list[str]:
    """The figures that move the time, those that save most first, and how many more there are."""
    moving = [figure for figure in figures if figure.effect_us > 0]
    rows: list[tuple[str, ...]] = [("figure", "now", "half, us", "double, us", "saves")]
    for figure in moving[:MAX_FIGURES]:
        ends = map(us_or_none, (figure.half_us, figure.double_us))
        saved = percent_text(figure.gain_us / figure.time_us) if figure.gain_us else ""
        rows.append((figure.figure, figure.value.partition(" (")[0], *ends, saved))
    lines = ["", "WHAT IF a figure were half or twice what it is (same tilings)"]
    lines += columns(rows, left=2, width=WIDTH)
    more, still = max(0, len(moving) - MAX_FIGURES), len(figures) - len(moving)
    texts = [f"{counted(more, 'figure')} more"] if more else []
    texts += [f"{counted(still, 'figure')} without effect"] if still else []
    lines += [f"({', '.join(texts)})"] if texts else []
    words = [figure.figure for figure in moving[:MAX_FIGURES] if figure.together]
    if words:
        lines += wrap(
            f"({', '.join(words)}: all speeds of such a part together, half or twice as good, as "
            f"--set {words[0]}=x2 makes them)"
        )
    return lines


def _bar(parts: Mapping[str, int], total: int) -> Text:
    """Parts as stretches of one line, the names of the largest in them."""
    from rich.text import Text  # noqa: PLC0415

    bar = Text()
    for part, cycles in parts.items():
        width = round(_BAR * cycles / total) if total else 0
        label = part if len(part) < width else ""
        bar.append(f"{label:^{width}}"[:width], style=f"black on {PATH_COLOURS.get(part, 'white')}")
    return bar
