"""Why a call takes the time it takes: the critical path of its kernels, part by part, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from npusim.machine.device.spec import Device
from npusim.machine.timing import trace as traced
from npusim.machine.timing.trace import Bound, KernelRun, LineWork, Step, Trace
from npusim.results.facts import metrics, pressure
from npusim.results.facts.advice import MAX_KERNELS, major_kernels
from npusim.results.facts.metrics import share
from npusim.results.facts.saved import Answer
from npusim.results.facts.verdict import Verdict, WhatIf
from npusim.results.writers.palette import PATH_COLOURS
from npusim.results.writers.text_layout import (
    WIDTH,
    columns,
    counted,
    launched_text,
    page,
    percent_text,
    us_or_none,
    us_text,
    wrap,
)

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

#: Reason (of ``REASONS``) of the cycles of a part; all others are work at full speed.
_REASON_OF = {
    traced.SHARING: "bandwidth",
    traced.FOLLOWING: "follow",
    traced.ISSUING: "issue",
    traced.STARTING: "not_started",
}

#: Shares of the cube below which its waste is not worth a sentence.
_WORTH_SAYING = 0.02


class KernelExplanation(Struct, frozen=True, kw_only=True, dict=True):
    """Why one kernel of a call takes its cycles.

    ``sizes`` are those of the problem by name, each with what whole blocks of the cube make of it.
    """

    run: KernelRun
    trace: Trace
    sizes: Mapping[str, tuple[int, int]]

    @property
    def path(self) -> tuple[Step, ...]:
        """The critical path by instruction of the source, most first; it adds up to the cycles."""
        return self.trace.path

    @cached_property
    def parts(self) -> dict[str, int]:
        """Cycles of the path by what they are for, most first; they add up to the kernel's."""
        return _most_first(part for step in self.path for part in step.parts.items())

    @cached_property
    def pipes(self) -> dict[str, int]:
        """Cycles of the path by pipe, most first; they add up to the kernel's."""
        return _most_first((step.work.pipe, step.cycles) for step in self.path)

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Cycles of the path by reason, most first; they add up to the kernel's."""
        return _most_first((_REASON_OF.get(part, "busy"), n) for part, n in self.parts.items())

    @cached_property
    def busiest(self) -> dict[str, int]:
        """Cycles of the pipe that works longest, on its busiest core, by reason; they add up."""
        reasons = metrics.reasons_of(self.run, *self._busiest_pipe)
        return {reason: cycles for reason, cycles in reasons.items() if cycles}

    @cached_property
    def _busiest_pipe(self) -> tuple[str, str]:
        one = metrics.critical_pipe(metrics.pipe_shares(self.run))
        return ("", "") if one is None else (one.busiest_core, one.pipe)

    @property
    def busiest_name(self) -> str:
        """The pipe and the core of ``busiest``, "" where no pipe worked."""
        core, pipe = self._busiest_pipe
        return f"{pipe} of {core}" if pipe else ""

    @property
    def bounds(self) -> dict[str, Bound]:
        """The largest lower bound "of the program", and that "of the problem"."""
        found = {
            "program": metrics.nearest_bound(self.run),
            "problem": metrics.problem_bound(self.run),
        }
        return {name: bound for name, bound in found.items() if bound is not None}

    @property
    def useful_share(self) -> float | None:
        """Of the multiply-adds the cube had time for, those the problem needs; None if unknown."""
        if not self.trace.room or not self.run.useful_macs:
            return None
        return self.run.useful_macs / self.trace.room

    @property
    def waste(self) -> tuple[str, ...]:
        """Sentences on what the cube multiplies for nothing: sizes that fill no blocks, zeros."""
        useful = self.useful_share
        if useful is None or useful > 1 - _WORTH_SAYING:
            return ()
        found, left = [], useful
        for name, (size, whole) in self.sizes.items():
            if 1 - size / whole >= _WORTH_SAYING:
                wasted = percent_text(1 - size / whole)
                found.append(f"{name} = {size} wastes {wasted} of the cube: it computes {whole}")
                left *= whole / size
        if left < 1 - _WORTH_SAYING:
            rest = "of the rest" if found else "of the cube's time"
            found.append(
                f"{percent_text(1 - left)} {rest} goes to zeros of padding or between strided "
                "positions, and to tiles that are no whole blocks"
            )
        return *found, f"{percent_text(useful)} of what the cube has time for is useful"

    @property
    def idle_lanes(self) -> tuple[str, ...]:
        """Sentences on vector instructions that leave lanes of their repeats idle."""
        return tuple(pressure.wasted_lanes(self.trace.lines))

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {
            "name": self.run.name,
            "cycles": self.run.cycles,
            "launch_cycles": self.run.launch_cycles,
            "bounds": {name: bound._asdict() for name, bound in self.bounds.items()},
            "parts": self.parts,
            "reasons": self.reasons,
            "pipes": self.pipes,
            "path": [
                {**step.work._asdict(), "cycles": step.cycles, "count": step.count,
                 "parts": step.parts}
                for step in self.path
            ],
            "busiest": {"pipe": self.busiest_name, "reasons": self.busiest},
            "useful_share": self.useful_share,
            "waste": list(self.waste),
            "idle": self.run.idle,
            "lines": [line.to_json() for line in self.trace.lines],
            "idle_lanes": list(self.idle_lanes),
        }  # fmt: skip


class Explanation(Answer, Struct, frozen=True, kw_only=True):
    """Why a call takes the time it takes: its kernels, and what each figure of the device does.

    The cycles of the kernels and of their launches add up to ``cycles``. ``what_if`` is None where
    it was not asked for.
    """

    operator: str
    problem: str
    version: str
    device: Device
    cycles: int
    kernels: tuple[KernelExplanation, ...]
    what_if: tuple[WhatIf, ...] | None
    verdict: Verdict | None

    @property
    def time_us(self) -> float:
        """``cycles`` in microseconds."""
        return self.device.time_us(self.cycles)

    @property
    def launch_cycles(self) -> int:
        """Cycles of all launches."""
        return sum(one.run.launch_cycles for one in self.kernels)

    def __repr__(self) -> str:
        """One line: operator, device, time and the part of it that is largest."""
        parts = _most_first(part for one in self.kernels for part in one.parts.items())
        most = next(iter(parts), "nothing")
        return (
            f"<Explanation of {self.operator} on {self.device.name}: {self.time_us:.3f} us, "
            f"mostly {most}>"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, ready for ``json.dumps``."""
        return {
            "operator": self.operator,
            "problem": self.problem,
            "npusim_version": self.version,
            "device": self.device.name,
            "device_digest": self.device.digest(),
            "launch": self.device.launch_mode,
            "cycles": self.cycles,
            "time_us": self.time_us,
            "launch_cycles": self.launch_cycles,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "kernels": [one.to_json() for one in self.kernels],
            "what_if": None if self.what_if is None else [one.to_json() for one in self.what_if],
        }

    def text(self) -> str:
        """The explanation for people, at most 80 columns wide."""
        return page(lines for lines, _ in pieces(self))

    def __rich__(self) -> RenderableType:
        """The same with colours, for a terminal: ``rich.print(explanation)``."""
        from rich.console import Group  # noqa: PLC0415 - what goes to a file does not wait for it
        from rich.constrain import Constrain  # noqa: PLC0415
        from rich.padding import Padding  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        shown: list[RenderableType] = []
        for lines, kernel in pieces(self):
            text = Text("\n".join(lines))
            text.highlight_regex(_TITLE, "bold")
            for part, colour in PATH_COLOURS.items():
                text.highlight_regex(rf"(?m)\b{part}(?= *$| <?\d)", colour)
            shown.append(text)
            if kernel is not None:
                shown.append(Padding(_bar(kernel.parts, kernel.run.cycles), (0, 0, 0, 2)))
        return Constrain(Group(*shown), WIDTH)


def _most_first(pairs: Any) -> dict[str, int]:
    """Sums by name, largest first."""
    sums: Counter[str] = Counter()
    for name, count in pairs:
        sums[name] += count
    return dict(sorted(sums.items(), key=lambda pair: (-pair[1], pair[0])))


# -- text --------------------------------------------------------------------------------------


def pieces(explanation: Explanation) -> Iterator[tuple[list[str], KernelExplanation | None]]:
    """The lines of the text part by part, and the kernel that a part is on."""
    shown, hidden = chapters(explanation)
    yield _header(explanation), None
    for one in shown:
        yield _kernel(explanation.device, one), one
    if hidden:
        yield ["", f"({counted(hidden, 'shorter kernel')}: see to_json())"], None
    if explanation.what_if is not None:
        yield _what_if(explanation.what_if), None


def chapters(explanation: Explanation) -> tuple[tuple[KernelExplanation, ...], int]:
    """The kernels that matter, in the order of the call, and how many do not."""
    runs = [one.run for one in explanation.kernels]
    major = major_kernels(runs) or sorted(runs, key=lambda run: -run.cycles)[:MAX_KERNELS]
    shown = tuple(one for one in explanation.kernels if any(one.run is run for run in major))
    return shown, len(explanation.kernels) - len(shown)


def _step_cells(step: Step, whole: int, skip: str) -> tuple[str, ...]:
    """A step; ``skip`` is what its line begins with that need not be said."""
    return (
        step.work.pipe,
        step.work.op,
        _short(step.work.line, skip),
        f"{step.cycles:,}",
        percent_text(share(step.cycles, whole)),
        f"{step.count:,}",
        max(step.parts, key=lambda part: step.parts[part]),
    )


def _header(explanation: Explanation) -> list[str]:
    """What ran where and how long, and what holds it up."""
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


def _kernel(device: Device, one: KernelExplanation) -> list[str]:
    """A kernel, its time, how near that is to both of its bounds, its path and what sums it up."""
    whose = {"program": "its program needs", "problem": "any program for its problem"}
    cycles = one.run.cycles
    near = ", ".join(
        f"{whose[name]} {percent_text(share(bound.cycles, cycles))} ({bound.resource})"
        for name, bound in one.bounds.items()
    )
    head = f"{one.run.name}: {us_text(device.time_us(cycles))} us = {cycles:,} cycles"
    head += f"; of these {near}" if near else ""
    lines = ["", *wrap(head, later="  "), "", *_path(one)]
    sums = {"parts": one.parts, "reasons": one.reasons, "pipes": one.pipes}
    sums |= {one.busiest_name: one.busiest} if one.busiest_name else {}
    told = [
        (name, ", ".join(f"{part} {percent_text(share(n, cycles))}" for part, n in counts.items()))
        for name, counts in sums.items()
    ]
    waste = [("cube", sentence) for sentence in one.waste]
    waste += [("vector", sentence) for sentence in one.idle_lanes]
    if one.run.idle:
        waste.append(("cores", one.run.idle))
    for name, text in (*told, *waste):
        lines += wrap(text, f"  {name:<10} ", " " * 13)
    return [*lines, "", *_lines(one)]


def _lines(one: KernelExplanation) -> list[str]:
    """What the lines that work most ask of their pipe, file by file; the others are counted."""
    shown, rest = one.trace.lines[:MAX_STEPS], one.trace.lines[MAX_STEPS:]
    by_file: dict[str, list[LineWork]] = {}
    for line in shown:
        by_file.setdefault(line.work.line.rpartition(":")[0], []).append(line)
    lines: list[str] = []
    for file, own in by_file.items():
        rows: list[tuple[str, ...]] = [pressure.HEAD]
        for line in own:
            pipe, op, place, *numbers = pressure.cells(line)
            rows.append((pipe, op, place.removeprefix(f"{file}:"), *numbers))
        about = "" if lines else " (each: cycles of one alone)"
        lines += [f"LINES of {file}{about}", *columns(rows, left=pressure.LEFT, width=WIDTH)]
    return [*lines, f"({counted(len(rest), 'line')} more)"] if rest else lines


def _one_file(places: Sequence[str]) -> tuple[str, str]:
    """The file of all places, and what they begin with; "" where there are several files."""
    file, *others = sorted({place.rpartition(":")[0] for place in places} or {""})
    return ("", "") if others else (file, f"{file}:")


def _short(place: str, skip: str) -> str:
    """A place without what need not be said."""
    return place.removeprefix(skip).replace(".py:", ":")


def _path(one: KernelExplanation) -> list[str]:
    """The critical path: a row per step, the short ones in one row at the end."""
    shown, rest = one.path[:MAX_STEPS], one.path[MAX_STEPS:]
    file, skip = _one_file([step.work.line for step in shown])
    through = f" through {file}" if file else ""
    rows = [_PATH_HEAD, *(_step_cells(step, one.run.cycles, skip) for step in shown)]
    if rest:
        cycles, times = sum(step.cycles for step in rest), sum(step.count for step in rest)
        part = percent_text(share(cycles, one.run.cycles))
        rows.append(("", f"{len(rest)} more", "", f"{cycles:,}", part, f"{times:,}", ""))
    table = columns(rows, left=(0, 1, 2, 6), width=WIDTH)
    return [f"CRITICAL PATH{through}, longest first", *table]


def _what_if(figures: Sequence[WhatIf]) -> list[str]:
    """The figures that move the time, those that save most first, and how many more there are."""
    moving = [one for one in figures if one.effect_us > 0]
    rows: list[tuple[str, ...]] = [("figure", "now", "half, us", "double, us", "saves")]
    for one in moving[:MAX_FIGURES]:
        ends = map(us_or_none, (one.half_us, one.double_us))
        saved = percent_text(one.gain_us / one.time_us) if one.gain_us else ""
        rows.append((one.figure, one.value.partition(" (")[0], *ends, saved))
    lines = ["", "WHAT IF a figure were half or twice what it is (same tilings)"]
    lines += columns(rows, left=2, width=WIDTH)
    more, still = max(0, len(moving) - MAX_FIGURES), len(figures) - len(moving)
    texts = [f"{counted(more, 'figure')} more"] if more else []
    texts += [f"{counted(still, 'figure')} without effect"] if still else []
    lines += [f"({', '.join(texts)})"] if texts else []
    words = [one.figure for one in moving[:MAX_FIGURES] if one.together]
    if words:
        lines += wrap(
            f"({', '.join(words)}: all speeds of such a part together, half or twice as good, as "
            f"--set {words[0]}=x2 makes them)"
        )
    return lines


def _bar(parts: Mapping[str, int], whole: int) -> Text:
    """Parts as stretches of one line, the names of the largest in them."""
    from rich.text import Text  # noqa: PLC0415

    bar = Text()
    for part, cycles in parts.items():
        width = round(_BAR * cycles / whole) if whole else 0
        label = part if len(part) < width else ""
        bar.append(f"{label:^{width}}"[:width], style=f"black on {PATH_COLOURS.get(part, 'white')}")
    return bar
