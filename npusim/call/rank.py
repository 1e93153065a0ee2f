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
from npusim.call.tilings.problem import Problem
from npusim.machine.device.catalog import load_device, parse_core_mask
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.results.facts.number_text import counted
from npusim.results.writers.text_layout import wrap


class Ratios(NamedTuple):
    """Simulated time over estimate: between ``low`` and ``high`` with a ``probability``."""

    low: float
    high: float
    probability: float
    most: float  # the largest that was ever met on the devices of MEASURED_ON


#: Of estimates, and of bounds from programs: measured by ``python -m tests.call.ratios``.
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
        given = self.given
        if isinstance(given, Kernel):
            given = given.tiling_text or given.name
        return f"<{given}: {self.reason}>"


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
        notes = wrap(f"note: {self.note}", later="  ") if self.note else []
        return "\n".join([head, *lines, *notes])


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
    problem = Problem(kernel, machine, parse_core_mask(cores, machine))
    candidates, left_out = dict[int, Kernel](), list[LeftOut]()
    for place, given in enumerate(tilings):
        _check(kernel, given)
        try:
            candidates[place] = _like(kernel, given)
        except ArgumentError as error:
            left_out.append(LeftOut(given, str(error)))
    known = list[tuple[float, int, int, Ratios]]()
    told = kernel.foreseen([*candidates.values()], machine, problem.cores)
    for (place, candidate), one in zip(candidates.items(), told, strict=True):
        if one is not None:
            known.append((one[0], place, problem.whole(candidate, one[1]), ESTIMATES))
        elif (found := problem.bound(candidate)).reason:
            left_out.append(LeftOut(_tiling_of(candidate), found.reason))
        else:
            known.append((float(found.cycles), place, found.cycles, PROGRAMS))
    known.sort(key=lambda row: row[0])
    some = min(len(known), simulate)  # evenly spread, the first of all among them
    times = {
        i: problem.time(candidates[known[i][1]]).cycles
        for i in (at * len(known) // some for at in range(some))
    }
    own = [time / known[i][0] for i, time in times.items()]
    probability, rows = ESTIMATES.probability, list[Ranked]()
    if len(own) >= _ENOUGH:  # of n that are drawn alike the next lies among them so probably
        probability = (len(own) - 1) / (len(own) + 1)
    measured = is_measured(machine)
    for i, (estimate, place, least, usual) in enumerate(known):
        low, high = (min(own), max(own)) if len(own) >= _ENOUGH else (usual.low, usual.high)
        ends = max(least, low * estimate), max(least, high * estimate)
        most = max(usual.most * estimate, ends[1] if len(own) >= _ENOUGH else 0)
        tiling = _tiling_of(candidates[place])
        if i in times:
            rows.append(Ranked(tiling, place, *(times[i],) * 5, simulated=True))
        else:
            known_most = most if measured else None
            rows.append(Ranked(tiling, place, estimate, *ends, least, known_most))
    rows.sort(key=lambda row: row.cycles)
    note = "" if measured else _unmeasured(machine, len(own))
    return Ranking(kernel, machine, tuple(rows), tuple(left_out), probability, note)


def is_measured(device: Device) -> bool:
    """Whether estimates were compared with simulations on a device with just these figures."""
    return any(device.digest() == load_device(name).digest() for name in MEASURED_ON)


def _unmeasured(device: Device, simulated: int) -> str:
    """What is not known of a ranking on a device where estimates were never compared."""
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


def _check(kernel: Kernel, one: Any) -> None:
    """Raise ``ArgumentError`` if this is no tiling of the kernel, whatever its values."""
    if isinstance(one, Kernel):
        return
    usual = getattr(kernel, "tiling", None)
    if usual is None and not kernel.choices:
        raise ArgumentError(
            f"rank: kernel {kernel.name} has no tiling and states no choices; give kernels in the "
            "place of tilings, or the class choices = {field: values}"
        )
    names = [*kernel.choices] if usual is None else [field.name for field in fields(usual)]
    if isinstance(one, Mapping):
        right = {*one} <= {*names}
    else:
        right = usual is not None and isinstance(one, type(usual))
    if not right:
        kind = "choice" if usual is None else "tiling"
        raise ArgumentError(f"rank: {one!r} is no {kind} of {kernel.name}: {', '.join(names)}")


def _tiling_of(kernel: Kernel) -> Any:
    """The tiling of a kernel, or the values of its choices by name, or the kernel itself."""
    tiling = getattr(kernel, "tiling", None)
    if tiling is not None:
        return tiling
    return {name: getattr(kernel, name) for name in kernel.choices} or kernel


def _like(kernel: Kernel, one: Any) -> Kernel:
    """The kernel with a tiling; ``ArgumentError`` where its own checks refuse it."""
    if isinstance(one, Kernel):
        return one
    usual = getattr(kernel, "tiling", None)
    if usual is None:
        return replace(kernel, **one)
    tiling = replace(usual, **one) if isinstance(one, Mapping) else one
    return replace(kernel, tiling=tiling)
