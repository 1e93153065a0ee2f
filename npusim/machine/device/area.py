"""How large a chip is: a proxy for comparing designs, from its memories, multipliers and rates.

Control and vector units are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from npusim.machine.device.scaling import logic_growth, supply
from npusim.machine.device.silicon import Silicon
from npusim.machine.device.spec import Device


class AreaPart(NamedTuple):
    """A kind of memory or unit: how many bytes, multipliers or bytes per cycle, and their area.

    Logic is larger where it is made for a faster clock.
    """

    what: str
    amount: int
    mm2: float
    is_logic: bool = False


def buffer_bytes(device: Device) -> dict[str, int]:
    """Bytes of each private memory over all cores.

    A memory that two kinds of core reach is there as often as the kind with more cores.
    """
    kinds = device.cores.values()
    return {
        name: memory.size_bytes
        * device.groups
        * max((kind.per_group for kind in kinds if name in kind.memories), default=0)
        for name, memory in device.memories.items()
    }


def _rates(device: Device, silicon: Silicon) -> Iterator[AreaPart]:
    """The area of rates: moves of cores and links, what all cores share, and main memory."""
    kinds = device.cores.values()
    moves: dict[tuple[str, str], Fraction] = {}  # all forms of a move share its wires
    for path in device.paths.values():
        cores = max((kind.per_group for kind in kinds if path.pipe in kind.pipes), default=0)
        rate = path.bytes_per_cycle * cores * device.groups * (path.src != "IMM")
        moves[path.src, path.dst] = max(rate, moves.get((path.src, path.dst), Fraction(0)))
    most = max(kind.per_group for kind in kinds)
    times = {"group": device.groups, "core": device.groups * most}
    links = device.links.values()
    wires, shared = sum(moves.values(), Fraction(0)), Fraction(0)
    for link in links:
        wires += link.bytes_per_cycle * times.get(link.scope, 0)
        shared += link.bytes_per_cycle * (link.scope not in times)
    if device.l2 is not None:
        shared += device.l2.read_bytes_per_cycle + device.l2.write_bytes_per_cycle
    memory = device.main_memory
    main = max(memory.read_bytes_per_cycle, memory.write_bytes_per_cycle)
    tera = Fraction(device.clock_hz, 10**12)  # rates in TB/s are B/cycle in steps of 1/1024
    grown = logic_growth(device)
    yield AreaPart(
        "wires", int(wires), float(wires * silicon.wires_um2 / 10**6) * grown, is_logic=True
    )
    for name, rate, um2 in (
        ("crossbar", shared, silicon.crossbar_um2),
        (device.main_memory_key, main, silicon.phy_um2),
    ):
        yield AreaPart(name, int(rate), float(round(rate * tera, 4) * um2 / 10**6))


def area_parts(device: Device) -> tuple[AreaPart, ...]:
    """The area by memory, matrix unit and rate, largest first; nothing where no file has figures.

    Memories cost ``silicon.sram`` per size, the L2 too. A matrix unit costs what its largest type
    does: multiply-adds per cycle times ``silicon.macs``. Rates cost ``wires``, ``crossbar`` and
    ``phy``. Matrix units and wires are larger at a faster clock.
    """
    silicon = device.silicon
    if silicon is None:
        return ()
    sizes = buffer_bytes(device)
    if device.l2 is not None:
        sizes["l2"] = device.l2.size_bytes
    parts = [
        AreaPart(name, size, float(silicon.sram_mm2 * Fraction(size, 2**20)))
        for name, size in sizes.items()
    ]
    for role, key, unit in (("cube", "cube", device.cube), ("dsp", "gemm", device.gemm)):
        rates = [name for name in (unit.rates if unit else ()) if name in silicon.mac_um2]
        if unit is None or not rates:
            continue
        cores = device.count(role)
        at_once = {name: unit.macs_per_cycle(name) * cores for name in rates}
        widest = max(rates, key=lambda name: at_once[name] * silicon.mac_um2[name])
        mm2 = float(at_once[widest] * silicon.mac_um2[widest] / 10**6) * logic_growth(device)
        parts.append(AreaPart(f"{key} {widest}", int(at_once[widest]), mm2, is_logic=True))
    parts += (part for part in _rates(device, silicon) if part.mm2)
    return tuple(sorted(parts, key=lambda part: -part.mm2))


def area_mm2(device: Device) -> float | None:
    """The area proxy in mm2, None where the file has no figures of it."""
    parts = area_parts(device)
    return sum(part.mm2 for part in parts) if parts else None


def logic_mm2(device: Device) -> float | None:
    """The part of ``area_mm2`` that follows the clock: multipliers and wires; None as there."""
    parts = area_parts(device)
    return sum(part.mm2 for part in parts if part.is_logic) if parts else None


def static_watt(device: Device) -> float:
    """The power that is spent all the time: ``silicon.static`` for each mm2, times the supply."""
    each = float(device.silicon.static_per_mm2) if device.silicon is not None else 0.0
    return each * (area_mm2(device) or 0.0) * supply(device) if each else 0.0
