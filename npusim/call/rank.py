"""``npusim.rank``: tilings in the order of estimates, each with how long it may take.

What a tuner asks before it compiles: no simulation unless it is asked for. Closed forms estimate a
kernel whose work they know; of others the bound from their program stands in for an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import ceil, inf
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.notebook_html import Shown
from npusim.base.records import replace
from npusim.call.tilings.problem import TuningProblem
from npusim.machine.device.catalog import load_device, parse_core_mask
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.results.facts.number_text import counted
from npusim.results.facts.other_chips import OTHER_CHIPS
from npusim.results.writers.text_layout import wrap


class Ratios(NamedTuple):
    """Simulated time over estimate: between ``low`` and ``high`` with a ``probability``."""

    low: float
    high: float
    probability: float
    most: float  # the largest that was ever met on the devices of MEASURED_ON


#: Of estimates, and of bounds from programs: measured by ``python -m tools.tilings.ratios``.
ESTIMATES = Ratios(0.75, 1.16, 0.9, 2.0)
PROGRAMS = Ratios(1.0, 1.08, 0.9, 1.3)

#: The devices on which they were measured, as they ship.
MEASURED_ON = ("ascend910b2", "ascend910", "ascend950pr")

#: Times in a smaller ratio are alike to who chooses: automatic choices may lose as much on average.
_ALIKE = 1.02

#: Simulations from which a ranking has ratios of its own.
_ENOUGH = 9


class Ranked(NamedTuple):
    """A tiling with its estimated cycles, launches included; of a simulated one these are its time.

    It is the ``place``-th that was given. Its cycles are from ``low`` to ``high`` with the
    probability of the ranking; ``least`` is a lower bound on them, and ``most`` is what they were
    never above where such estimates were compared with simulations: None on a device where none
    were, but of a tiling that is simulated.
    """

    tiling: Any
    place: int
    cycles: float
    low: float
    high: float
    least: float
    most: float | None
    simulated: bool = False


class LeftOut(NamedTuple):
    """A tiling as it was given, or a kernel, and why it does not run."""

    given: Any
    reason: str

    def __repr__(self) -> str:
        """The tiling in the words of reports, where it has such, and the reason."""
        subject = self.given
        if isinstance(subject, Kernel):
            subject = subject.tiling_text or subject.name
        return f"<{subject}: {self.reason}>"


class Ranking(Shown, Struct, frozen=True):
    """Tilings of a kernel on a device, the best first, and those that do not run, each with why.

    With ``probability`` the simulated time of a tiling lies in its interval. ``note`` says what is
    not known on this device; it is "" where estimates were compared with simulations there.
    """

    kernel: Kernel
    device: Device
    rows: tuple[Ranked, ...]
    left_out: tuple[LeftOut, ...]
    probability: float
    note: str = ""

    @property
    def best(self) -> Any:
        """The leading tiling; ``ArgumentError`` where none runs."""
        if not self.rows:
            raise ArgumentError(f"{self.kernel.name}: no tiling runs; first {self.left_out[:1]}")
        return self.rows[0].tiling

    def keep(self, share: float = 0.25, *, certain: bool = False) -> list[Any]:
        """The leading ``share`` of the tilings that run, best first, with all up to 2 % behind.

        Estimates do not tell these from the last of the share.

        ``certain``: instead all but those whose least time is more than another takes at most;
        these are all where no row has a ``most``.
        """
        return [row.tiling for row in self.kept(share, certain=certain)]

    def kept(self, share: float = 0.25, *, certain: bool = False) -> list[Ranked]:
        """The rows of these tilings."""
        if not 0 < share <= 1:
            raise ArgumentError(f"share is {share}; it is above 0 and at most 1")
        if not certain:
            leading = self.rows[: ceil(share * len(self.rows))]
            return [row for row in self.rows if row.cycles <= _ALIKE * leading[-1].cycles]
        limit = min((row.most for row in self.rows if row.most is not None), default=inf)
        return [row for row in self.rows if row.least <= limit]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The ten leading tilings with their intervals."""
        head = f"{self.kernel.name} on {self.device.name}: {len(self.rows)} tilings, "
        head += f"{self.probability:.0%} of times within their intervals"
        lines = [
            f"{row.cycles:12,.0f} ({row.low:,.0f} to {row.high:,.0f}"
            f"{', simulated' * row.simulated})  {row.tiling}"
            for row in self.rows[:10]
        ]
        if self.left_out:
            lines.append(f"{len(self.left_out)} do not run, the first: {self.left_out[0].reason}")
        notes = [self.note] if self.note else []
        figures = OTHER_CHIPS.format(OTHER_CHIPS.of(self.device))
        notes += [figures] if figures else []
        wrapped = [line for note in notes for line in wrap(f"note: {note}", later="  ")]
        return "\n".join([head, *lines, *wrapped])


def rank(
    kernel: Kernel,
    tilings: Iterable[Any],
    device: str | Device,
    *,
    cores: Any = None,
    simulate: int = 0,
) -> Ranking:
    """The ``tilings`` of ``kernel`` in the order of their estimated time on ``device``.

    Tilings are of the kernel's kind or its fields by name, or kernels like it; of a kernel without
    a tiling they are values of its ``choices`` by name. ``simulate`` so many
    of them, evenly spread over the order and the best first: their times are known, and from nine
    on their ratios to the estimates make the intervals of all others. On a device other than those
    of ``MEASURED_ON`` only a tiling that is simulated has a ``most``. Raises ``ArgumentError`` for
    a kernel with neither, and what is no tiling of it; one that its checks refuse is left out.
    """
    machine = load_device(device)
    problem = TuningProblem(kernel, machine, parse_core_mask(cores, machine))
    candidates, left_out = _candidates(kernel, tilings)
    foreseen, do_not_run = _foreseen(problem, candidates)
    left_out += do_not_run
    count = min(len(foreseen), simulate)  # evenly spread, the first of all among them
    times = dict[int, int]()
    for turn in range(count):
        row = turn * len(foreseen) // count
        times[row] = problem.time(candidates[foreseen[row].place]).cycles
    measured = is_measured(machine)
    probability, rows = _rows(foreseen, candidates, times, measured=measured)
    note = "" if measured else _unmeasured(machine, len(times))
    return Ranking(kernel, machine, rows, tuple(left_out), probability, note)


class _Foreseen(NamedTuple):
    """A candidate as it was given in ``place``: estimated cycles, and those it takes at least.

    ``ratios`` are the usual ones of such an estimate.
    """

    cycles: float
    place: int
    least: int
    ratios: Ratios


def _candidates(kernel: Kernel, tilings: Iterable[Any]) -> tuple[dict[int, Kernel], list[LeftOut]]:
    """The kernel with each of the tilings, by their place, and those that its checks refuse."""
    candidates, refused = dict[int, Kernel](), list[LeftOut]()
    for place, tiling in enumerate(tilings):
        _check(kernel, tiling)
        try:
            candidates[place] = _like(kernel, tiling)
        except ArgumentError as error:
            refused.append(LeftOut(tiling, str(error)))
    return candidates, refused


def _foreseen(
    problem: TuningProblem, candidates: dict[int, Kernel]
) -> tuple[list[_Foreseen], list[LeftOut]]:
    """The candidates in the order of their estimates, and those that do not run.

    Of a candidate that no closed form knows the bound from its program stands for an estimate.
    """
    foreseen, do_not_run = list[_Foreseen](), list[LeftOut]()
    estimates = problem.kernel.foreseen([*candidates.values()], problem.device, problem.cores)
    for (place, candidate), estimate in zip(candidates.items(), estimates, strict=True):
        if estimate is not None:
            cycles, least = estimate
            foreseen.append(
                _Foreseen(cycles, place, problem.with_launch(candidate, least), ESTIMATES)
            )
            continue
        program = problem.bound(candidate)
        if program.reason:
            do_not_run.append(LeftOut(_tiling_of(candidate), program.reason))
        else:
            cycles = float(program.cycles)
            foreseen.append(_Foreseen(cycles, place, program.cycles, PROGRAMS))
    return sorted(foreseen, key=lambda candidate: candidate.cycles), do_not_run


def _rows(
    foreseen: list[_Foreseen],
    candidates: dict[int, Kernel],
    times: dict[int, int],
    *,
    measured: bool,
) -> tuple[float, tuple[Ranked, ...]]:
    """The probability of intervals, and the rows of a ranking, the best first.

    ``times`` are simulated cycles by row of ``foreseen``; enough of them make intervals of their
    own. ``measured`` says that estimates were compared with simulations on the device.
    """
    ratios = [time / foreseen[row].cycles for row, time in times.items()]
    enough = len(ratios) >= _ENOUGH
    probability = ESTIMATES.probability
    if enough:  # of n that are drawn alike the next lies among them so probably
        probability = (len(ratios) - 1) / (len(ratios) + 1)
    rows = list[Ranked]()
    for row, (estimate, place, least, usual) in enumerate(foreseen):
        tiling = _tiling_of(candidates[place])
        if row in times:
            time = times[row]
            rows.append(Ranked(tiling, place, time, time, time, time, time, simulated=True))
            continue
        low = max(least, (min(ratios) if enough else usual.low) * estimate)
        high = max(least, (max(ratios) if enough else usual.high) * estimate)
        most = max(usual.most * estimate, high if enough else 0) if measured else None
        rows.append(Ranked(tiling, place, estimate, low, high, least, most))
    rows.sort(key=lambda row: row.cycles)
    return probability, tuple(rows)


def is_measured(device: Device) -> bool:
    """True if estimates were compared with simulations on a device with just these figures."""
    return any(device.digest() == load_device(name).digest() for name in MEASURED_ON)


def _unmeasured(device: Device, simulated: int) -> str:
    """Sentence on what a ranking lacks on a device where estimates were never compared."""
    intervals = "the intervals are those of these devices, and " if simulated < _ENOUGH else ""
    what = (
        f"keep(certain=True) rests on {counted(simulated, 'simulated tiling')}"
        if simulated
        else "keep(certain=True) keeps all; simulate=1 gives it a time to go by"
    )
    return (
        f"estimates were compared with simulations on {', '.join(MEASURED_ON)} as they ship, not "
        f"on {device.name} with its figures: {intervals}only a tiling that is simulated has a "
        f"most; {what}"
    )


def _check(kernel: Kernel, tiling: Any) -> None:
    """Raise ``ArgumentError`` if this is no tiling of the kernel, whatever its values."""
    if isinstance(tiling, Kernel):
        return
    usual = getattr(kernel, "tiling", None)
    if usual is None and not kernel.choices:
        raise ArgumentError(
            f"rank: kernel {kernel.name} has no tiling and states no choices; give kernels in the "
            "place of tilings, or the class choices = {field: values}"
        )
    names = [*kernel.choices] if usual is None else [field.name for field in fields(usual)]
    if isinstance(tiling, Mapping):
        right = {*tiling} <= {*names}
    else:
        right = usual is not None and isinstance(tiling, type(usual))
    if not right:
        kind = "choice" if usual is None else "tiling"
        raise ArgumentError(f"rank: {tiling!r} is no {kind} of {kernel.name}: {', '.join(names)}")


def _tiling_of(kernel: Kernel) -> Any:
    """The tiling of a kernel, or the values of its choices by name, or the kernel itself."""
    tiling = getattr(kernel, "tiling", None)
    if tiling is not None:
        return tiling
    return {name: getattr(kernel, name) for name in kernel.choices} or kernel


def _like(kernel: Kernel, tiling: Any) -> Kernel:
    """The kernel with a tiling; ``ArgumentError`` where its own checks refuse it."""
    if isinstance(tiling, Kernel):
        return tiling
    usual = getattr(kernel, "tiling", None)
    if usual is None:
        return replace(kernel, **tiling)
    tiling = replace(usual, **tiling) if isinstance(tiling, Mapping) else tiling
    return replace(kernel, tiling=tiling)
