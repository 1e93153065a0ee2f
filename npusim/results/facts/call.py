"""Plain facts that a call leaves behind: everything that tables, reports and plots draw on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts import metrics, tables
from npusim.results.facts.advice import Advice, advise
from npusim.results.facts.energy import (
    ENERGY_MISSING,
    ENERGY_ROWS,
    TOTAL_ENERGY,
    Energy,
    Spending,
    energy_of,
)
from npusim.results.facts.fact import Fact, row_of
from npusim.results.facts.least import Ends, ends
from npusim.results.facts.number_text import bytes_text, counted, counts, us_text
from npusim.results.facts.other_chips import other_chips_of
from npusim.results.facts.replay import Replay
from npusim.results.facts.time_range import TimeRange, time_range
from npusim.results.facts.verdict import Verdict, verdict

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class CallFacts(Spending):
    """Results of one call, and how long its kernels took, one after another.

    ``outputs`` has one entry per name of ``output_names`` (None where it was masked out) and is
    None for a timing-only run. ``workspace_bytes`` is the global memory the kernels use between
    them. ``dtype`` names the cube rate that peaks are quoted for. ``problem_bounds`` are least
    cycles of the call, whatever programs compute it, longest first. ``sizes`` are those of the
    problem that the cube rounds up, by name, with what whole blocks make of them. ``replay`` times
    the call again for ``time_range`` and ``explain``; without it there are none. ``tilings`` are
    those the kernels ran with, by name: what the keyword ``tiling`` of a call takes. ``work`` is
    the class of measured rows that its time is held against (``npusim.problem.work``), "" if none.
    """

    operator: str
    device: Device
    runs: tuple[KernelRun, ...]
    outputs: tuple[Array | None, ...] | None
    output_names: tuple[str, ...]
    notes: tuple[str, ...]
    problem: str
    version: str
    dtype: str | None = None
    workspace_bytes: int = 0
    problem_bounds: tuple[Bound, ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tilings: Mapping[str, Any] = field(default_factory=dict)
    work: str = ""
    replay: Replay | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Reject arrays that do not match their names."""
        if self.outputs is not None and len(self.outputs) != len(self.output_names):
            raise ArgumentError(
                f"{self.operator}: {len(self.outputs)} outputs for {len(self.output_names)} names "
                f"({', '.join(self.output_names)}); give one array or None per name"
            )

    def __repr__(self) -> str:
        """One line: operator, device, time and number of kernels."""
        return (
            f"<Result {self.operator} on {self.device.name}: {self.time_us:.3f} us, "
            f"{self.cycles} cycles, {counted(len(self.runs), 'kernel')}>"
        )

    @property
    def cycles(self) -> int:
        """Cycles of the device clock, summed over kernels, launches included."""
        return metrics.total_cycles(self.runs)

    @property
    def time_us(self) -> float:
        """``cycles`` in microseconds."""
        return self.device.time_us(self.cycles)

    @cached_property
    def spent(self) -> Energy:
        """The energy of the call by figure of the device, launches included."""
        return energy_of(self.device, self.runs, self.time_us)

    @cached_property
    def time_range(self) -> TimeRange:
        """The time with each assumed or fitted figure it rests on at the ends of its range.

        And with what measured rows of its class of ``work`` differ from simulated ones.

        The kernels are timed twice per figure when this is first asked for; from then on reports
        show it. ``ArgumentError`` where the result does not know how.
        """
        return time_range(self.device, self.time_us, self._again(), self.work)

    def time_us_on(self, device: Device) -> float:
        """``time_us`` on a variant of the device, with the tilings and the cores of this call.

        It is many times as quick as a call, for programs are kept and costed anew. Raises
        ``ArgumentError`` where the result does not know how, or the variant has other numbers of
        core groups; ``ConfigError``, ``CapacityError`` or ``ProgramError`` where it lacks what a
        kernel needs.
        """
        if device.groups != self.device.groups:
            raise ArgumentError(
                f"{device.name} has {device.groups} core groups, {self.operator} was tiled for "
                f"{self.device.groups}; call it again on such a device"
            )
        return self._again().time_us(device.launching(self.device.launch_mode))

    def _again(self) -> Replay:
        """How to time the call again; ``ArgumentError`` where the result does not know."""
        if self.replay is None:
            raise ArgumentError(
                f"{self.operator}: this result was not made by a call, so it cannot be timed again "
                "with other figures; take the result of an operator or of npusim.simulate"
            )
        return self.replay

    @property
    def known_time_range(self) -> TimeRange | None:
        """``time_range`` if it has been computed."""
        return self.__dict__.get("time_range")

    @property
    def at_least(self) -> Ends:
        """Bounds that no program beats, with the operands in the L2 and from main memory."""
        return ends(self.device, self.problem_bounds)

    @property
    def problem_us(self) -> float | None:
        """The largest of ``problem_bounds`` in microseconds, None where there is none."""
        if not self.problem_bounds:
            return None
        return self.device.time_us(self.problem_bounds[0].cycles)

    @property
    def useful_macs(self) -> dict[str, int]:
        """Multiply-adds the problem needs, by the name of the kernel that executes them.

        It executes more where it pads. Kernels of unknown use have no entry.
        """
        macs: dict[str, int] = {}
        for run in self.runs:
            if run.macs and run.useful_macs:
                macs[run.name] = macs.get(run.name, 0) + run.useful_macs
        return macs

    @cached_property
    def verdict(self) -> Verdict | None:
        """The part of the device that holds the call up most, and what it saves twice as fast.

        The kernels are timed a few times when this is first asked for. Where the result does not
        know how, or has too many instructions, the busiest part; None where nothing took time.
        """
        return verdict(self.device, self.time_us, self.runs, self.replay)

    @property
    def bottleneck(self) -> str:
        """The name of the ``verdict``, "" where nothing took time."""
        return "" if self.verdict is None else self.verdict.name

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Changes that would make the call faster, each with the time it was simulated at.

        A few of the kernels are timed again when this is first asked for.
        """
        return advise(self)

    def to_json(self) -> dict[str, Any]:
        """Everything but arrays and timeline as plain values, ready for ``json.dumps``."""
        return row_of(CALL, self)

    @property
    def grad_input(self) -> Array | None:
        """The gradient of the input, None where the call has none."""
        return self._output("grad_input")

    @property
    def grad_weight(self) -> Array | None:
        """The gradient of the weight, None where the call has none."""
        return self._output("grad_weight")

    @property
    def grad_bias(self) -> Array | None:
        """The gradient of the bias, None where the call has none."""
        return self._output("grad_bias")

    def _output(self, name: str) -> Array | None:
        if self.outputs is None or name not in self.output_names:
            return None
        return self.outputs[self.output_names.index(name)]


def _verdict(call: CallFacts) -> dict[str, Any] | None:
    return None if call.verdict is None else call.verdict.to_json()


def _problem_bound(call: CallFacts) -> str:
    """The resource of the longest of ``problem_bounds``, "" where there is none."""
    return call.problem_bounds[0].resource if call.problem_bounds else ""


TIME = Fact[CallFacts]("time_us", "time", "\u00b5s", us_text, lambda call: call.time_us)
LEAST = Fact[CallFacts](
    "problem_us", "least of any program", "\u00b5s", us_text, lambda call: call.problem_us
)

#: Times of a call.
CALL_TIMES = (TIME, LEAST)

#: A call in JSON.
CALL: tuple[Fact[CallFacts], ...] = (
    Fact("operator", "operator", "", str, lambda call: call.operator),
    Fact("problem", "problem", "", str, lambda call: call.problem),
    Fact("workspace_bytes", "workspace", "", bytes_text, lambda call: call.workspace_bytes),
    Fact("npusim_version", "npusim", "", str, lambda call: call.version),
    Fact("device", "device", "", str, lambda call: call.device.name),
    Fact("device_digest", "digest", "", str, lambda call: call.device.digest()),
    Fact("launch", "launch mode", "", str, lambda call: call.device.launch_mode),
    other_chips_of(lambda call: call.device),
    Fact("cycles", "cycles", "", counts, lambda call: call.cycles),
    TIME,
    Fact("bottleneck", "bottleneck", "", str, lambda call: call.bottleneck),
    Fact("verdict", "bottleneck in figures", "", str, _verdict),
    Fact("advice", "advice", "", str, lambda call: [each.to_json() for each in call.advice]),
    LEAST,
    TOTAL_ENERGY,
    ENERGY_ROWS,
    ENERGY_MISSING,
    Fact("problem_bound", "least by", "", str, _problem_bound),
    Fact("output_names", "outputs", "", str, lambda call: list(call.output_names)),
    Fact("notes", "notes", "", str, lambda call: list(call.notes)),
    Fact("kernels", "kernels", "", str, lambda call: tables.kernel_rows(call.device, call.runs)),
    Fact("pipes", "pipes", "", str, lambda call: tables.pipe_rows(call.runs)),
    Fact("traffic", "traffic", "", str, lambda call: tables.traffic_rows(call.runs)),
    Fact("bounds", "bounds", "", str, lambda call: tables.bound_rows(call.runs)),
)
