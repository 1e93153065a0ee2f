"""What instructions cost on a device, in closed form and for many tilings at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from npusim.kernels.estimate.fit import columns_in_ub
from npusim.language import Device, DType, Tensor
from npusim.machine.device.parts import Path
from npusim.machine.isa.cube import MATRICES_APART

#: How many of the cores drain their tiles at the same time; fitted to simulated kernels.
DRAINING = 0.9

#: A number, or one for each candidate.
Numbers = Any


def launch_cycles(device: Device, role: str, cores: Numbers) -> Numbers:
    """Cycles to launch a kernel on so many cores."""
    return device.launch.cycles(role, 0) + np.asarray(cores) * device.launch.core_cycles


def in_l2(device: Device, warm: Collection[str], *tensors: Tensor) -> tuple[bool, ...]:
    """Which of the tensors of a kernel the L2 holds: those that are warm, where all have room."""
    size = sum(tensor.size_bytes for tensor in tensors)
    room = device.l2 is not None and size <= device.l2.size_bytes
    return tuple(room and tensor.name in warm for tensor in tensors)


def write_rate(device: Device) -> float:
    """Bytes per cycle that all cores together can write."""
    shared = device.l2 if device.l2 is not None else device.main_memory
    return float(shared.write_bytes_per_cycle)


def main_rate(device: Device, read: Numbers, written: Numbers) -> Numbers:
    """Bytes per cycle of those that all cores ``read`` from main memory.

    Where reads and write-backs take turns on a bus, what the L2 drives out of the ``written`` bytes
    to make room for both takes its share: of bytes that it holds at the end nothing is.
    """
    size = device.l2.size_bytes if device.l2 is not None else np.inf
    driven = written * np.maximum(0, 1 - size / np.maximum(1, read + written))
    taken = any("evict" in link.traffic for link in device.links_to_memory) * driven
    return device.main_read_rate / (1 + taken / np.maximum(1, read))


def read_rate(device: Device, asked: Numbers, requests: Numbers) -> Numbers:
    """Bytes per cycle that all cores together can read of what the L2 holds.

    So many bytes are ``asked`` for in so many requests.
    """
    if device.l2 is None:
        return np.full_like(np.asarray(asked, np.float64), device.main_read_rate)
    return asked * device.shared_read_rate / (asked + requests * device.l2.request_bytes)


def mmad_cycles(
    device: Device, m: Numbers, k: Numbers, n: Numbers, rate_name: str, *, mean: bool = False
) -> Numbers:
    """Cycles of one mmad of so many elements; ``k`` is whole blocks, or a mean of such.

    Of several at least so many on average, where ``m`` and ``n`` are a ``mean`` too.
    """
    cube = device.cube
    if cube is None or rate_name not in cube.rates:
        return m * k * n / 4096
    rate = cube.rates[rate_name]
    along_m, along_n = m / rate.m, n / rate.n
    if not mean:
        along_m, along_n = np.ceil(along_m - 1e-6), np.ceil(along_n - 1e-6)
    blocks = along_m, np.maximum(1, k / rate.k), along_n
    cycles = cube.startup_cycles + blocks[0] * blocks[1] * blocks[2] * rate.cycles
    if cube.odd_block_conflict and not mean:
        odd = (blocks[0] % 2 > 0) | (blocks[2] % 2 > 0)
        cycles = cycles + np.where((blocks[1] > 1) & odd, blocks[1] - 2, 0)
    return cycles


def move_cycles(path: Path, size: Numbers, rows: Numbers = 0, unaligned: Numbers = 0) -> Numbers:
    """Cycles of one move of ``size`` bytes, of whose rows some lie badly."""
    work = np.maximum(size / path.rate, rows * float(path.row_cycles))
    work = work + unaligned * float(path.unaligned_cycles)
    return np.maximum(path.floor_cycles, path.startup_cycles + work)


def byte_cycles(path: Path, dtype: DType) -> float:
    """Cycles that a byte takes along a path, which may count elements too."""
    elements = dtype.values / dtype.bytes
    return max(1 / path.rate, elements / (path.elements_per_cycle or np.inf))


def step(
    device: Device,
    into: tuple[Path, Path],
    moves: tuple[Numbers, Numbers],
    cycles: tuple[Numbers, Numbers, Numbers],
) -> dict[str, Any]:
    """One step as columns of ``pipeline.Work``: so many ``moves`` along both paths to L0, and
    ``cycles`` of the first, of the second and of the product."""
    cube, (a, b) = device.cube, into
    queue = np.maximum(1, device.pipe(b.pipe).queue_depth // sum(map(np.asarray, moves)))
    return {
        **dict(zip(("a", "b", "m"), cycles, strict=True)),
        "a_head": a.idle_head_cycles,
        "m_head": cube.idle_head_cycles if cube else 0,
        "issue": moves[0] * a.issue_cycles + moves[1] * b.issue_cycles + 1,
        "ahead": np.minimum(device.pipe("M").queue_depth, queue),
    }


def unit_flag_lag(device: Device) -> float:
    """Cycles after the start of a drain at which the next tile may begin; -1 without the flag."""
    if device.cube is None or not (device.cube.unit_flag and device.has_path("L0C", "GM")):
        return -1.0
    path = device.path("L0C", "GM")
    return path.startup_cycles + 512 / path.rate


def way_out(device: Device) -> Path:
    """The move by which sums reach GM: from L0C, or from UB where that has no way of its own."""
    return device.path("L0C" if device.has_path("L0C", "GM") else "UB", "GM")


def drain_cycles(
    device: Device, m: Numbers, n: Numbers, size: Numbers, lines: Numbers = 1, around: Numbers = 0
) -> tuple[Numbers, Numbers, Numbers]:
    """Cycles in which ``m`` x ``n`` sums leave the core as elements of ``size`` bytes in pieces of
    so many lines, positions of one following each other; after which the next can follow; and how
    many moves wait in one queue.

    Over UB two pipes work side by side. There lines may first be put between zeros, so many
    positions ``around`` them in all, which leave at once.
    """
    if device.has_path("L0C", "GM"):
        cycles = lines * move_cycles(device.path("L0C", "GM"), m * n * size / lines)
        return cycles, cycles, lines
    into, out = device.path("L0C", "UB"), device.path("UB", "GM")
    rows = np.ceil(m / 16) * 16
    pieces = np.ceil(n / 16 / np.maximum(1, columns_in_ub(device, rows + around, size)))
    moves = pieces * np.where(around > 0, 1, lines)
    through = pieces * into.startup_cycles + rows * n * 4 / into.rate
    stored = moves * out.startup_cycles + np.maximum(m, around) * n * size / out.rate
    if np.any(around):
        copies, unit = np.where(around > 0, n / 16 * lines, 0), device.vector
        zeros = n * around * size / unit.repeat_bytes * float(unit.ops["dup"])
        copied = move_cycles(device.path("UB", "UB"), m / lines * 16 * size)
        through, moves = through + zeros + copies * copied, moves + copies + pieces * (copies > 0)
    pace = np.maximum(through, stored)
    return pace + np.minimum(through, stored) / pieces, pace, moves


def scatter_cycles(
    device: Device,
    length: Numbers,
    n: Numbers,
    block: int,
    apart: Numbers,
    lines: Numbers,
    plane: int,
    *,
    halves: bool,
) -> tuple[Numbers, Numbers, Numbers]:
    """As ``drain_cycles`` of ``lines`` of so many positions, each ``apart`` blocks from the next.

    Blocks of other channels are a ``plane`` of positions away. Blocks that are ``halves`` of a
    column of fractals leave row by row only, two of them for each column.
    """
    blocks = np.ceil(n / 16) * (1 + halves)
    if not device.has_path("L0C", "GM"):
        path = device.path("UB", "GM")
        cycles = lines * (blocks * path.startup_cycles + length * blocks * block / path.rate)
        return cycles, cycles, lines * blocks
    plain, rows = device.path("L0C", "GM"), device.path("L0C", "GM", "nz2nd")
    single = length * move_cycles(plain, blocks * block)
    if halves:
        return lines * single, lines * single, lines * length
    bad = np.where(apart * block % rows.align_bytes > 0, length, 0)
    across = blocks * move_cycles(rows, length * block, length, bad)
    moves = np.where(single <= across, length, blocks)
    at_once = move_cycles(rows, *(blocks * one for one in (length * block, length, bad)))
    at_once = np.where(plane * 16 <= MATRICES_APART, at_once, np.inf)
    best = np.minimum(single, across)
    cycles = lines * np.minimum(best, at_once)
    return cycles, cycles, lines * np.where(at_once < best, 1, moves)
