"""The energy of kernels: bytes and multiply-adds times the figures of the device file.

Nothing is guessed: where the file lacks a figure that a run needs, there is no energy, and which
figures are missing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.machine.device.area import static_watt
from npusim.machine.device.config import figures
from npusim.machine.device.parts import ENERGY
from npusim.machine.device.scaling import energy_times
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts.fact import Fact
from npusim.results.facts.number_text import rate_text

#: Columns of ``Result.energy``; a promise to users.
ENERGY_COLUMNS = ("figure", "amount", "unit", "each", "uj", "share", "confidence")

#: The power of a chip that waits: it is spent all the time, and not all files state it.
STATIC = "silicon.static"


class EnergyRow(NamedTuple):
    """One kind of work: its figure, how many bytes, multiply-adds or us, and what they took."""

    figure: str
    amount: float
    unit: str
    each: float  # pJ at the device's clock and sizes, or W of the static power
    uj: float
    confidence: str


class Energy(Struct, frozen=True):
    """Energy of kernels, most first; ``missing`` are figures they need and the file lacks."""

    rows: tuple[EnergyRow, ...]
    missing: tuple[str, ...]

    def __repr__(self) -> str:
        """One line: the sum, or what it lacks."""
        if self.uj is None:
            return f"<Energy unknown: {len(self.missing)} figures are missing>"
        return f"<Energy {self.uj:.3f} uJ of {len(self.rows)} kinds of work>"

    @property
    def uj(self) -> float | None:
        """Microjoules in all; None where a figure is missing."""
        return None if self.missing else sum(row.uj for row in self.rows)

    @property
    def static_uj(self) -> float | None:
        """The part of ``uj`` that is spent whatever the chip does; None as there."""
        return None if self.missing else sum(r.uj for r in self.rows if r.figure == STATIC)

    @property
    def dynamic_uj(self) -> float | None:
        """The part of ``uj`` that bytes and multiply-adds took; None as there."""
        return None if self.missing else sum(r.uj for r in self.rows if r.figure != STATIC)

    @property
    def assumed(self) -> int:
        """How many of the figures are assumed."""
        return sum(row.confidence == "assumed" for row in self.rows)

    def table(self) -> list[dict[str, Any]]:
        """A row per figure, as plain values; none where one is missing."""
        total = self.uj
        if total is None:
            return []
        shares = [{"share": row.uj / total if total else 0.0} for row in self.rows]
        return [row._asdict() | share for row, share in zip(self.rows, shares, strict=True)]


class Spending:
    """A result that spends energy."""

    @property
    def spent(self) -> Energy:
        """The energy by figure of the device; each kind of result has its own."""
        raise NotImplementedError

    @property
    def energy_uj(self) -> float | None:
        """Microjoules in all; None where the device lacks a figure (``spent.missing``)."""
        return self.spent.uj


#: The energy of a call, a network or a step in all.
TOTAL_ENERGY = Fact[Spending](
    "energy_uj", "energy", "mJ", rate_text, lambda result: result.energy_uj, 1e3, "network"
)

#: The same, by figure of the device.
ENERGY_ROWS = Fact[Spending](
    "energy", "energy by figure", "", str, lambda result: result.spent.table()
)

#: Figures that the energy needs and the device lacks.
ENERGY_MISSING = Fact[Spending](
    "energy_missing", "missing figures", "", str, lambda result: list(result.spent.missing)
)


def energy_of_facts(facts: Mapping[str, Any]) -> float | None:
    """Microjoules in the plain facts of a result; None where they are not known."""
    uj: float | None = facts[TOTAL_ENERGY.name]
    return uj


def no_energy(spent: Energy) -> str:
    """Why there is no energy, with the way out."""
    more = f" and {len(spent.missing) - 3} more" if len(spent.missing) > 3 else ""
    return (
        f"is not known: the device file lacks {', '.join(spent.missing[:3])}{more}; state each "
        "such as 1.5pJ/B (assumed, KEY)"
    )


def energy_of(
    device: Device,
    runs: Iterable[KernelRun],
    time_us: float,
    *,
    main_memory_bytes: int | None = None,
) -> Energy:
    """The energy of ``runs``, which take ``time_us`` with their launches.

    It is that of bytes and multiply-adds by the figure that says what each takes, at the clock and
    with the sizes of memories of the device (``npusim.machine.device.scaling``). Where the bytes to
    and from main memory are known otherwise, they replace those of the runs by themselves.
    """
    amounts: Counter[str] = Counter()
    for run in runs:
        amounts.update(run.activity)
    if main_memory_bytes is not None:
        amounts[f"{device.main_memory_key}.{ENERGY}"] = main_memory_bytes
    described = figures(device)
    rows, missing = [], []
    for name, amount in sorted(amounts.items()):
        if not amount:
            continue
        each = described[name].value if name in described else 0
        if isinstance(each, tuple) or not each:
            missing.append(name)
            continue
        unit = "MAC" if f".{ENERGY}." in name else "B"
        more = energy_times(device, name, described[name])
        pj, uj = float(each) * more, float(amount * Fraction(each)) / 1e6 * more
        rows.append(EnergyRow(name, amount, unit, pj, uj, _confidence(device, name)))
    watt = static_watt(device)
    if watt:
        known_as = _confidence(device, STATIC)
        rows.append(EnergyRow(STATIC, time_us, "us", watt, watt * time_us, known_as))
    return Energy(tuple(sorted(rows, key=lambda row: -row.uj)), tuple(missing))


def _confidence(device: Device, name: str) -> str:
    provenance = device.provenance.get(name)
    return provenance.confidence if provenance is not None else ""
