"""Why a call takes the time it takes: the critical path of its kernels, part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from npusim.machine.device.spec import Device
from npusim.machine.timing import trace as traced
from npusim.machine.timing.trace import Bound, KernelRun, Step, Trace
from npusim.results.facts import metrics, pressure
from npusim.results.facts.number_text import percent_text
from npusim.results.facts.verdict import Verdict
from npusim.results.facts.what_if import WhatIf

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
        critical = metrics.critical_pipe(metrics.pipe_shares(self.run))
        return ("", "") if critical is None else (critical.busiest_core, critical.pipe)

    @property
    def busiest_name(self) -> str:
        """The pipe and the core of ``busiest``, "" where no pipe worked."""
        core, pipe = self._busiest_pipe
        return f"{pipe} of {core}" if pipe else ""

    @property
    def bounds(self) -> dict[str, Bound]:
        """The largest lower bound "of the program", and that "of the problem"."""
        largest = {
            "program": metrics.nearest_bound(self.run),
            "problem": metrics.problem_bound(self.run),
        }
        return {name: bound for name, bound in largest.items() if bound is not None}

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
        sentences, remaining = [], useful
        for name, (size, computed) in self.sizes.items():
            if 1 - size / computed >= _WORTH_SAYING:
                wasted = percent_text(1 - size / computed)
                sentences.append(
                    f"{name} = {size} wastes {wasted} of the cube: it computes {computed}"
                )
                remaining *= computed / size
        if remaining < 1 - _WORTH_SAYING:
            rest = "of the rest" if sentences else "of the cube's time"
            sentences.append(
                f"{percent_text(1 - remaining)} {rest} goes to zeros of padding or between strided "
                "positions, and to tiles that are no whole blocks"
            )
        return *sentences, f"{percent_text(useful)} of what the cube has time for is useful"

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


class ExplanationFacts(Struct, frozen=True, kw_only=True):
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
        return sum(kernel.run.launch_cycles for kernel in self.kernels)

    def __repr__(self) -> str:
        """One line: operator, device, time and the part of it that is largest."""
        parts = _most_first(part for kernel in self.kernels for part in kernel.parts.items())
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
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "what_if": None if self.what_if is None else [row.to_json() for row in self.what_if],
        }


def _most_first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums by name, largest first."""
    sums: Counter[str] = Counter()
    for name, count in pairs:
        sums[name] += count
    return dict(sorted(sums.items(), key=lambda pair: (-pair[1], pair[0])))
