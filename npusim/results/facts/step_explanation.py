"""Why a step takes its time: its verdict, what loses most, and what changes would do."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from npusim.machine.device.spec import Device
from npusim.results.facts.advice import Advice
from npusim.results.facts.fact import row_of
from npusim.results.facts.number_text import us_text
from npusim.results.facts.step_losses import LOSSES, Loss
from npusim.results.facts.step_verdict import StepVerdict
from npusim.results.facts.what_if import WhatIf


class StepExplanationFacts(Struct, frozen=True, kw_only=True):
    """Why a step of ``time_us`` takes it; ``what_if`` is None where it was not asked for.

    ``asked`` says how the step runs, ``missing`` what the time lacks, "" where it lacks nothing.
    ``kinds`` are rows of its kinds of operations.
    """

    workload: str
    description: str
    asked: str
    missing: str
    version: str
    device: Device
    time_us: float
    least_us: float
    kinds: list[dict[str, Any]]
    verdict: StepVerdict | None
    losses: tuple[Loss, ...]
    advice: tuple[Advice, ...]
    what_if: tuple[WhatIf, ...] | None

    def __repr__(self) -> str:
        """One line: network, device, time and what holds it up."""
        most = "nothing" if self.verdict is None else self.verdict.name
        return (
            f"<StepExplanation of {self.workload} on {self.device.name}: "
            f"{us_text(self.time_us)} us, mostly {most}>"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, ready for ``json.dumps``."""
        return {
            "workload": self.workload,
            "description": self.description,
            "asked": self.asked,
            "missing": self.missing,
            "npusim_version": self.version,
            "device": self.device.name,
            "device_digest": self.device.digest(),
            "launch": self.device.launch_mode,
            "time_us": self.time_us,
            "least_us": self.least_us,
            "kinds": self.kinds,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "losses": [row_of(LOSSES, loss) for loss in self.losses],
            "advice": [advice.to_json() for advice in self.advice],
            "what_if": None if self.what_if is None else [row.to_json() for row in self.what_if],
        }
