"""Limits that a device's memories set to tiles."""

from __future__ import annotations

from typing import Any

from npusim.language import CapacityError, Device, DType, Language

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


def columns_in_ub(cores: Device | Language, rows: Any, element: int) -> Any:
    """Columns of 16 elements in so many rows that UB holds twice, as results leave through it."""
    return cores.memory("UB").size_bytes // (2 * 16 * element * rows)


def holds(device: Device) -> str:
    """Name the sizes of the memories of a cube core, for errors."""
    sizes = cube_sizes(device)
    if not device.has_path("L0C", "GM"):
        sizes["UB"] = device.memory("UB").size_bytes
    (first, size), *rest = sizes.items()
    drains = " (results leave through it in two pieces of up to 1024 B)"
    texts = [f"{role} {n} B" + drains * (role == "UB") for role, n in rest]
    return ", ".join([f"{first} holds {size} B", *texts])


def no_tile(device: Device) -> CapacityError:
    """The error of a matrix product for whose smallest tile memories are too small."""
    return CapacityError(
        f"{device.name}: {holds(device)}; the smallest tile takes 1024 B of each, and 2048 B of "
        "L1; no tiling fits, choose a device with larger memories"
    )


def no_product(device: Device, c0: int, dtype: DType) -> CapacityError:
    """The error of an implicit product in blocks of ``c0`` channels for which L1 is too small."""
    return CapacityError(
        f"{device.name}: {holds(device)}, but the input that one output position reads takes 32 B "
        f"per channel block and one weight column {16 * c0 * dtype.bytes} B; no tiling fits"
    )


def no_filter(device: Device, c0: int) -> CapacityError:
    """The error of a filter gradient for which L1 is too small."""
    return CapacityError(
        f"{device.name}: {holds(device)}, but 16 positions of {c0} channels of both operands take "
        f"{16 * 2 * 32} B; no tiling fits"
    )
