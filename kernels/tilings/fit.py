"""What a device's memories leave of the tiles that could be chosen."""

from __future__ import annotations

from npusim.base.dtypes import DType
from npusim.device.spec import Device

#: The memories of a cube core that every product of matrices goes through.
CUBE_MEMORIES = ("L1", "L0A", "L0B", "L0C")


def cube_sizes(device: Device) -> dict[str, int]:
    """Bytes of the memories of a cube core by role; ``ArgumentError`` where one is missing."""
    return {role: device.memory(role).size_bytes for role in CUBE_MEMORIES}


def most_rows(device: Device, dtype: DType) -> int:
    """Rows of the highest tile of ``dtype`` that leaves L0C, a multiple of 16.

    Where it leaves through UB, two pieces of 16 columns lie there.
    """
    if device.has_path("L0C", "GM"):
        return device.memory("L0C").size_bytes // 64 // 16 * 16
    return device.memory("UB").size_bytes // 2 // (16 * dtype.bytes) // 16 * 16


def holds(device: Device) -> str:
    """What the memories of a cube core hold, for errors."""
    sizes = cube_sizes(device)
    if not device.has_path("L0C", "GM"):
        sizes["UB"] = device.memory("UB").size_bytes
    (first, size), *rest = sizes.items()
    drains = " (results leave through it in two pieces of up to 1024 B)"
    texts = [f"{role} {n} B" + drains * (role == "UB") for role, n in rest]
    return ", ".join([f"{first} holds {size} B", *texts])
