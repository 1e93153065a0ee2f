"""The facts of a point of a study: its times, and what its design costs besides time.

Those of ``GOALS`` are what explorations make small and limits bound; a new goal is a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from npusim.machine.device.area import area_mm2, buffer_bytes, logic_mm2, static_watt
from npusim.machine.device.config import figures
from npusim.machine.device.parts import ENERGY
from npusim.machine.device.scaling import energy_pj
from npusim.machine.device.spec import Device
from npusim.results.facts.energy import Energy
from npusim.results.facts.fact import Fact
from npusim.results.facts.number_text import rate_text, us_text


class Point(Struct, frozen=True, kw_only=True):
    """Measurements of a design: its times, launches among them, and its energy."""

    device: Device
    spent: Energy
    time_us: float
    launch_us: float
    cycles: int


class PointFact(Fact[Point], frozen=True):
    """A fact of a point.

    ``too_much`` is said of a point that has too much of it, if it is a goal. ``priced`` are the
    figures of a device that it rests on whatever runs there, None where it rests on what runs.
    """

    too_much: str = ""
    priced: Callable[[Device], Any] | None = None


def _dynamic_pj(device: Device) -> list[float]:
    """The figures of energy of a device."""
    described = figures(device).items()
    return [energy_pj(device, name) for name, figure in described if ENERGY in figure.keys]


def _energy_figures(device: Device) -> tuple[float | None, list[float]]:
    """The static power of a device and its figures of energy."""
    return static_watt(device), _dynamic_pj(device)


def _buffers(device: Device) -> int:
    """Bytes of all buffers of a device."""
    return sum(buffer_bytes(device).values())


def _supply_volt(point: Point) -> float | None:
    """The supply of a chip at its clock, None where its process does not state one."""
    law = point.device.silicon
    if not law or not law.has_supply:
        return None
    return float(law.supply_volt(point.device.clock_hz))


TIME = PointFact(
    "time_us", "time", "\u00b5s", us_text, lambda point: point.time_us, too_much="too slow"
)
CYCLES = PointFact(
    "cycles", "cycles", "", rate_text, lambda point: point.cycles, too_much="too slow"
)
LAUNCHES = PointFact(
    "launch_us",
    "launches",
    "\u00b5s",
    us_text,
    lambda point: point.launch_us,
    too_much="too long in launches",
)

#: The times of a point.
TIMES = (TIME, CYCLES, LAUNCHES)

#: What a design costs besides time, as far as the device has the figures of it.
COSTS = (
    PointFact(
        "energy_uj",
        "energy",
        "mJ",
        rate_text,
        lambda point: point.spent.uj,
        per_unit=1e3,
        too_much="too much energy",
        priced=_energy_figures,
    ),
    PointFact(
        "dynamic_uj",
        "dynamic energy",
        "mJ",
        rate_text,
        lambda point: point.spent.dynamic_uj,
        per_unit=1e3,
        too_much="too much dynamic energy",
        priced=_dynamic_pj,
    ),
    PointFact(
        "static_uj",
        "static energy",
        "mJ",
        rate_text,
        lambda point: point.spent.static_uj,
        per_unit=1e3,
        too_much="too much static energy",
        priced=static_watt,
    ),
    PointFact(
        "area_mm2",
        "area",
        "mm\u00b2",
        rate_text,
        lambda point: area_mm2(point.device),
        too_much="too large",
        priced=area_mm2,
    ),
    PointFact(
        "buffer_bytes",
        "buffers",
        "MiB",
        rate_text,
        lambda point: _buffers(point.device),
        per_unit=2.0**20,
        too_much="too much buffer memory",
        priced=_buffers,
    ),
)

#: Figures of a design that explain what it costs.
DESIGN = (
    PointFact("supply_v", "supply", "V", rate_text, _supply_volt),
    PointFact("logic_mm2", "logic", "mm\u00b2", rate_text, lambda point: logic_mm2(point.device)),
    PointFact(
        "l2_pj_per_byte",
        "L2",
        "pJ/B",
        rate_text,
        lambda point: energy_pj(point.device, "l2.energy") or None,
    ),
    PointFact(
        "l1_pj_per_byte",
        "GM to L1",
        "pJ/B",
        rate_text,
        lambda point: energy_pj(point.device, "paths.GM->L1.energy") or None,
    ),
)

#: What a formula of a goal or a limit is made of, each a goal of its own.
GOALS = (TIME, *COSTS, CYCLES, LAUNCHES)


def measured(point: Point) -> dict[str, Any]:
    """The facts of a point by name; those whose figures its device lacks are left out."""
    facts = (*TIMES, *COSTS, *DESIGN)
    values = {fact.name: fact.of(point) for fact in facts}
    return {name: value for name, value in values.items() if value is not None}


def goal_fact(goal: str) -> Fact[Point]:
    """The fact of a goal by name; a formula of goals is its own title and has no unit."""
    for fact in GOALS:
        if fact.name == goal:
            return fact
    text = us_text if goal.endswith("_us") else rate_text
    return Fact(goal, goal, "", text, lambda _: None)
