"""A lower bound on the simulated time of a built program, without simulating it.

The larger of two kinds of bounds: the slowest core as if it were alone, and the bytes that all
cores move together over what they share, from the first one that can move on, and with what the
last one still leaves to do.
"""

from __future__ import annotations

from npusim.base.integers import RATE_BITS, fixed_rate
from npusim.device.spec import Device
from npusim.program import program as flows
from npusim.program.program import Program
from npusim.timing.bounds import link_bounds
from npusim.timing.fast.path import NONE, Alone, Once
from npusim.timing.trace import core_starts


def least_and_digest(program: Program, *, cold: bool) -> tuple[int, str]:
    """Cycles that no simulation of ``program`` falls below, launch excluded, and a digest.

    ``cold`` says that the L2 holds nothing before, so that every byte comes from main memory once.
    Programs with equal digests take the same time.
    """
    alone = Alone(program, core_starts(program))
    earliest = alone.earliest()
    bounds = [earliest.end, *(bound.cycles for bound in link_bounds(program))]
    sizes = _Sizes(program)
    once = alone.read_once() if cold else Once(0, 0)
    for begin, cycles, rest in (
        (earliest.first_read, sizes.reading(program.device, once), earliest.tail),
        (earliest.first_write, _writing(program.device, sizes.written), 0),
    ):
        if begin < NONE:
            bounds.append(begin + int(cycles) + rest)
    return max(0, *bounds), alone.digest()


class _Sizes:
    """Bytes of all cores: read, written, and what requests for rows add to reads that hit."""

    def __init__(self, program: Program) -> None:
        self.read = self.written = 0
        self.requests = 0.0
        self.steepest = 0.0  # most request per byte
        l2 = program.device.l2
        atomic = l2.atomic_factor if l2 is not None else 1
        for count, template in zip(program.unit_counts.tolist(), program.templates, strict=True):
            for flow in template.flows:
                if flow is None or flow.region is None:
                    continue
                if flow.kind == flows.READ:
                    ratio = flow.request / flow.region.row_bytes
                    self.read += count * flow.size
                    # The engine rounds what requests take of each transfer down.
                    self.requests += count * max(0.0, flow.size * ratio - 1)
                    self.steepest = max(self.steepest, ratio)
                else:
                    factor = atomic if flow.kind == flows.ATOMIC else 1
                    self.written += count * flow.size * factor

    def reading(self, device: Device, once: Once) -> float:
        """Cycles of all reads, some of which come from main memory in any case.

        What else does costs its rate there; what does not costs the requests of a hit.
        """
        size, fetched = self.read + once.beside, once.fetched
        main = fixed_rate(device.main_read_bytes_per_cycle) / (1 << RATE_BITS)
        if device.l2 is None:
            return size / main
        rate = fixed_rate(device.l2.read_bytes_per_cycle) / (1 << RATE_BITS)

        def cached(missing: float) -> float:
            return (size + max(0.0, self.requests - missing * self.steepest)) / rate

        low, high = float(min(fetched, size)), float(size)
        if cached(low) <= low / main:
            return fetched / main
        # More misses take less of the L2 and more of main memory: the best is where both are equal.
        for _ in range(40):
            middle = (low + high) / 2
            if cached(middle) > middle / main:
                low = middle
            else:
                high = middle
        return min(cached(high), low / main)


def _writing(device: Device, size: float) -> float:
    """Cycles of all writes at the rate at which cores share the L2, or main memory without one."""
    shared = device.l2 if device.l2 is not None else device.main_memory
    return size / (fixed_rate(shared.write_bytes_per_cycle) / (1 << RATE_BITS))
