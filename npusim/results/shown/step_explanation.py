"""The report on why a step takes its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.results.facts.fact import row_of
from npusim.results.facts.number_text import (
    counted,
    launched_text,
    percent_text,
    us_or_none,
    us_text,
)
from npusim.results.facts.step_explanation import StepExplanationFacts
from npusim.results.facts.step_losses import LOSSES
from npusim.results.facts.step_verdict import SAME
from npusim.results.facts.what_if import WhatIf
from npusim.results.shown import step
from npusim.results.shown.report import Items, Note, Part, Report, ReportLine, Section, Table

#: Figures that are shown; the others are counted.
MAX_FIGURES = 10


def report(explanation: StepExplanationFacts) -> Report:
    """The report, as text and as a page; a notebook shows the advice."""
    device = explanation.device
    losses = [row_of(LOSSES, loss) for loss in explanation.losses]
    advice = [each.text for each in explanation.advice]
    time = f"{us_text(explanation.time_us)} us{launched_text(device.launch_mode)}"
    least = us_text(explanation.least_us)
    share = percent_text(explanation.least_us / explanation.time_us)
    bottleneck = "nothing takes time"
    if explanation.verdict is not None:
        bottleneck = step.verdict_text(explanation.verdict.to_json())
    lines = [
        ReportLine("network", f"{explanation.workload}: {explanation.description}"),
        ReportLine("step", explanation.asked),
        ReportLine("device", f"{device.name}, digest {device.digest()}"),
        ReportLine("time", time),
        ReportLine("at least", f"{least} us for any programs of its operations: {share}"),
        ReportLine("bottleneck", bottleneck),
    ]
    if explanation.missing:
        lines.insert(0, ReportLine("partial", f"{explanation.missing}; the times below lack it"))
    return Report(
        title=f"Why a step of {explanation.workload} takes its time on {device.name}",
        about=[f"{explanation.description}; {explanation.asked}"],
        lead=f"{us_text(explanation.time_us)} \u00b5s. Bottleneck: {bottleneck}.",
        lines=lines,
        cards=(),
        sections=(
            Section("Kinds of operations", [*step.kinds(explanation.kinds)], heading="PHASE"),
            Section("Operations that lose most", [*step.losses(losses)], heading="LOSE MOST"),
            Section(
                "What would make it faster",
                [Items(advice)],
                heading="WHAT WOULD MAKE IT FASTER",
                brief=True,
            ),
            Section("What if?", [*_what_if(explanation.what_if or ())], heading="WHAT IF"),
        ),
        origin=Report.origin_of(explanation.version, device),
    )


def _what_if(figures: Sequence[WhatIf]) -> Iterator[Part]:
    """The figures that move the time, those that save most first, and how many more there are."""
    if not figures:
        return
    moving = [figure for figure in figures if figure.effect_us > 0]
    rows = []
    for figure in moving[:MAX_FIGURES]:
        ends = (us_or_none(figure.half_us), us_or_none(figure.double_us))
        saved = percent_text(figure.gain_us / figure.time_us) if figure.gain_us else ""
        rows.append((figure.figure, figure.value.partition(" (")[0], *ends, saved))
    yield Table("", ("figure", "now", "half, \u00b5s", "double, \u00b5s", "saves"), rows, 2)
    more = max(0, len(moving) - MAX_FIGURES)
    still = len(figures) - len(moving)
    text = f"a figure, or all speeds of a part of the device, half or twice what it is; {SAME}"
    if more:
        text += f"; {counted(more, 'figure')} more"
    if still:
        text += f"; {counted(still, 'figure')} without effect"
    yield Note(f"({text})")
