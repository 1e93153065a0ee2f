"""How large a chip is: a proxy from its memories and multipliers, for comparing designs.

Wires, control, vector units and the interfaces to main memory are not in it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from npusim.device.spec import Device


class AreaPart(NamedTuple):
    """A kind of memory or unit: what it is, how many bytes or multipliers, and their area."""

    what: str
    amount: int
    mm2: float


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


def area_parts(device: Device) -> tuple[AreaPart, ...]:
    """The area by memory and matrix unit, largest first; nothing where the file has no figures.

    Memories cost ``silicon.sram`` per size, the L2 too. A matrix unit costs what its largest type
    does: multiply-adds per cycle times ``silicon.macs``.
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
        um2 = at_once[widest] * silicon.mac_um2[widest]
        parts.append(AreaPart(f"{key} {widest}", int(at_once[widest]), float(um2 / 10**6)))
    return tuple(sorted(parts, key=lambda part: -part.mm2))


def area_mm2(device: Device) -> float | None:
    """The area proxy in mm2, None where the file has no figures of it."""
    parts = area_parts(device)
    return sum(part.mm2 for part in parts) if parts else None
