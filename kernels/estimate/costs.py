"""Rates, launches and ways out that tilings share: closed forms of what is no single instruction.

An instruction's cycles are a function of sizes in its class (``Move.cycles``, ``Mmad.cycles``).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from npusim.kernels.estimate.fit import columns_in_ub
from npusim.language import Device, Tensor
from npusim.machine.device.parts import Path
from npusim.machine.isa.base import Move, Numbers, transfer_cycles
from npusim.machine.isa.cube import MATRICES_APART, UNIT_FLAG_BYTES, Mmad
from npusim.machine.isa.vector import VecDup
from npusim.machine.timing.links import ONE, waiting


def launch_cycles(device: Device, role: str, cores: Numbers) -> Numbers:
    """Cycles to launch a kernel on so many cores."""
    return device.launch.cycles(role, 0) + np.asarray(cores) * device.launch.core_cycles


def in_l2(device: Device, warm: Collection[str], *tensors: Tensor) -> tuple[bool, ...]:
    """Tell of each tensor of a kernel whether the L2 holds it: it is warm, and all have room."""
    size = sum(tensor.size_bytes for tensor in tensors)
    room = device.l2 is not None and device.l2.has_room(size)
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
    together = np.maximum(1, read + written)
    l2, most = device.l2, float(np.max(together, initial=0))
    bus = any("evict" in link.traffic for link in device.links_to_memory)
    if l2 is None or l2.has_room(most) or not bus:
        return device.main_read_rate / (1 + np.zeros_like(together))
    driven = written * np.maximum(0, 1 - l2.size_bytes / together)
    return device.main_read_rate / (1 + driven / np.maximum(1, read))


def read_rate(device: Device, asked: Numbers, requests: Numbers) -> Numbers:
    """Bytes per cycle that all cores together can read of what the L2 holds.

    So many bytes are ``asked`` for in so many requests.
    """
    if device.l2 is None:
        return np.full_like(np.asarray(asked, np.float64), device.main_read_rate)
    return asked * device.shared_read_rate / (asked + requests * device.l2.request_bytes)


def missed(device: Device, asked: Numbers, requests: Numbers) -> Numbers:
    """What a byte that the L2 lacks takes of ``read_rate`` besides its own.

    So many bytes are ``asked`` for in so many requests, of which it makes none for what it lacks.
    """
    request = device.l2.request_bytes if device.l2 is not None else 0
    occupied = (asked + requests * request) / asked
    return np.maximum(1, (1 + waiting(device.l2) / ONE) / occupied) - 1


def product_cycles(device: Device, m: Numbers, k: Numbers, n: Numbers, math: str) -> Numbers:
    """Cycles of one mmad of so many elements, in whole blocks along m and n.

    ``k`` is whole blocks, or a mean of such. Where the cube has no rate for ``math`` it counts as
    4096 multiply-adds per cycle, so that sizes can be compared.
    """
    cube = device.cube
    if cube is None or math not in cube.rates:
        return m * k * n / 4096
    rate = cube.rates[math]
    high, wide = (np.ceil(size / block - 1e-6) for size, block in ((m, rate.m), (n, rate.n)))
    return Mmad.cycles(cube, rate, high, np.maximum(1, k / rate.k), wide)


def mean_product_cycles(device: Device, m: Numbers, k: Numbers, n: Numbers, math: str) -> Numbers:
    """Cycles of one mmad at least, on average over several of mean sizes."""
    cube = device.cube
    if cube is None or math not in cube.rates:
        return m * k * n / 4096
    rate = cube.rates[math]
    return Mmad.cycles_of_blocks(cube, rate, m / rate.m, np.maximum(1, k / rate.k), n / rate.n)


def unit_flag_lag(device: Device) -> float:
    """Cycles after the start of a drain at which the next tile may begin; -1 without the flag."""
    if device.cube is None or not (device.cube.unit_flag and device.has_path("L0C", "GM")):
        return -1.0
    path = device.path("L0C", "GM")
    return float(path.startup_cycles + transfer_cycles(path, float(UNIT_FLAG_BYTES)))


def way_out(device: Device) -> Path:
    """The move by which sums reach GM: from L0C, or from UB where that has no way of its own."""
    return device.path("L0C" if device.has_path("L0C", "GM") else "UB", "GM")


def drain_cycles(
    device: Device,
    m: Numbers,
    n: Numbers,
    size: Numbers,
    lines: Numbers = 1,
    around: Numbers = 0,
    *,
    means: bool = False,
) -> tuple[Numbers, Numbers, Numbers]:
    """Cycles in which ``m`` x ``n`` sums leave the core as elements of ``size`` bytes.

    They leave in pieces of so many lines, positions of one following each other. Also returned are
    the cycles after which the next can follow, and how many moves wait in one queue.

    Over UB two pipes work side by side. There lines may first be put between zeros, so many
    positions ``around`` them in all, which leave at once. Of ``means`` nothing is rounded up, which
    might be more than the mean of what is.
    """
    if device.has_path("L0C", "GM"):
        cycles = lines * Move.cycles(device.path("L0C", "GM"), m * n * size / lines)
        return cycles, cycles, lines
    into, out = device.path("L0C", "UB"), device.path("UB", "GM")
    rows = m if means else np.ceil(m / 16) * 16
    pieces = n / 16 / np.maximum(1, columns_in_ub(device, rows + around, size))
    pieces = np.maximum(1, pieces if means else np.ceil(pieces))
    moves = pieces * np.where(around > 0, 1, lines)
    through = Move.cycles(into, rows * n * 4, moves=pieces)
    stored = Move.cycles(out, np.maximum(m, around) * n * size, moves=moves)
    if np.any(around):
        copies = np.where(around > 0, n / 16 * lines, 0)
        repeats = n * around * size / device.vector.repeat_bytes
        zeros = VecDup.cycles(device.vector, "dup", repeats, instructions=0)
        copied = Move.cycles(device.path("UB", "UB"), m / lines * 16 * size)
        through = through + zeros + copies * copied
        moves = moves + copies + pieces * (copies > 0)
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
    means: bool = False,
) -> tuple[Numbers, Numbers, Numbers]:
    """Cycles as of ``drain_cycles``, of ``lines`` of positions, each ``apart`` from the next.

    Blocks of other channels are a ``plane`` of positions away. Blocks that are ``halves`` of a
    column of fractals leave row by row only, two of them for each column.
    """
    blocks = (n / 16 if means else np.ceil(n / 16)) * (1 + halves)
    if not device.has_path("L0C", "GM"):
        line = Move.cycles(device.path("UB", "GM"), length * blocks * block, moves=blocks)
        return lines * line, lines * line, lines * blocks
    plain, rows = device.path("L0C", "GM"), device.path("L0C", "GM", "nz2nd")
    single = length * Move.cycles(plain, blocks * block)
    if halves:
        return lines * single, lines * single, lines * length
    bad = np.where(apart * block % rows.align_bytes > 0, length, 0)
    size = length * float(block)
    across = blocks * Move.cycles(rows, size, length, unaligned=bad)
    moves = np.where(single <= across, length, blocks)
    at_once = Move.cycles(rows, blocks * size, blocks * length, unaligned=blocks * bad)
    at_once = np.where(plane * 16 <= MATRICES_APART, at_once, np.inf)
    best = np.minimum(single, across)
    cycles = lines * np.minimum(best, at_once)
    return cycles, cycles, lines * np.where(at_once < best, 1, moves)
