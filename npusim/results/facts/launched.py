"""Numbers of what a training step launches: kernels, conversions, fusions, and the time of each.

They are computed of the plain facts of a step (``StepResult.to_json``), so that a result and a file
of one are the same thing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from npusim.results.facts.fact import Fact
from npusim.results.facts.number_text import counts, us_text

#: All facts of a step, by name.
StepFacts = Mapping[str, Any]

#: The kind of conversions between layouts, of kernels that clear, and of casts.
LAYOUTS, CLEARING, CASTS = "layouts", "clearing", ("cast", "cast of weights")

#: What the exchange of gradients between cards is called among kinds of operations.
EXCHANGE = "exchange between cards"

#: The part of kernels that compute, among ``time_parts``.
COMPUTING = "computing"


def operations(step: StepFacts) -> int:
    """Operations, however often each runs; conversions are none."""
    return sum(row.get("count", 1) for row in step["operations"] if not row["converts"])


def conversions(step: StepFacts) -> int:
    """Conversions between layouts."""
    return sum(row.get("count", 1) for row in step["operations"] if row["converts"])


def fused(step: StepFacts) -> int:
    """Operations that the kernel of another computes as well."""
    return sum(step.get("fused", {}).values())


def kernels(step: StepFacts) -> int:
    """Kernels that are launched, of operations, conversions and clearing."""
    return sum(row["kernels"] for row in step["kinds"])


def clearing(step: StepFacts) -> int:
    """Kernels that clear a result to which others add."""
    return sum(row["kernels"] for row in step["kinds"] if row["kind"] == CLEARING)


def exchange_us(step: StepFacts) -> float:
    """Microseconds by which the exchange of gradients between cards makes the step longer."""
    reduced = step.get("all_reduce")
    if not reduced:
        return 0.0
    added: float = reduced["exposed_us"] + reduced["slowed_us"]
    return added


def time_parts(step: StepFacts) -> dict[str, float]:
    """Microseconds of launches, of kernels by what they are for, and of the exchange; they add up.

    All parts are there; those that a step lacks take 0.
    """
    parts = dict.fromkeys(("launches", LAYOUTS, CLEARING, "casts", COMPUTING, EXCHANGE), 0.0)
    for row in step["kinds"]:
        part = "casts" if row["kind"] in CASTS else row["kind"]
        if part not in (LAYOUTS, CLEARING, "casts"):
            part = COMPUTING
        parts[part] += row["us"] - row["launch_us"]
        parts["launches"] += row["launch_us"]
    parts[EXCHANGE] = exchange_us(step)
    return parts


def _us_of(part: str) -> Callable[[StepFacts], float]:
    """A function that computes one of ``time_parts``."""

    def us(step: StepFacts) -> float:
        return time_parts(step)[part]

    return us


def _whole(value: float) -> str:
    """A number of things."""
    return counts(round(value))


#: How much is launched.
LAUNCHED_COUNTS: tuple[Fact[StepFacts], ...] = (
    Fact("operations", "operations", "", _whole, operations),
    Fact("fused", "fused into others", "", _whole, fused),
    Fact("conversions", "conversions of layouts", "", _whole, conversions),
    Fact("clearing", "kernels that clear", "", _whole, clearing),
    Fact("kernels", "kernels, each launched once", "", _whole, kernels),
)

#: What the time goes to; kernels without their launches.
LAUNCHED_TIMES: tuple[Fact[StepFacts], ...] = (
    Fact("launches_us", "launches", "us", us_text, _us_of("launches")),
    Fact("layouts_us", "kernels that convert", "us", us_text, _us_of(LAYOUTS)),
    Fact("clearing_us", "kernels that clear", "us", us_text, _us_of(CLEARING)),
    Fact("casts_us", "kernels that cast", "us", us_text, _us_of("casts")),
    Fact("computing_us", "kernels that compute", "us", us_text, _us_of(COMPUTING)),
    Fact("exchange_us", EXCHANGE, "us", us_text, _us_of(EXCHANGE)),
)
