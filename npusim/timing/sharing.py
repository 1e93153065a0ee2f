"""Least cycles of what all cores move together, whatever the L2 turns out to hold."""

from __future__ import annotations

from npusim.base.integers import RATE_BITS, fixed_rate
from npusim.device.spec import Device


def reading(
    device: Device, size: float, once: float = 0, requests: float = 0, steepest: float = 0
) -> float:
    """Cycles of all reads: ``size`` bytes, of which ``once`` come from main memory in any case.

    What else does costs its rate there; what does not costs the requests of a hit, ``requests``
    bytes if all of it hits, at most ``steepest`` for a byte.
    """
    main = fixed_rate(device.main_read_bytes_per_cycle) / (1 << RATE_BITS)
    if device.l2 is None:
        return size / main
    rate = fixed_rate(device.l2.read_bytes_per_cycle) / (1 << RATE_BITS)

    def cached(missing: float) -> float:
        return (size + max(0.0, requests - missing * steepest)) / rate

    low, high = float(min(once, size)), float(size)
    if cached(low) <= low / main:
        return once / main
    # More misses take less of the L2 and more of main memory: the best is where both are equal.
    for _ in range(40):
        middle = (low + high) / 2
        if cached(middle) > middle / main:
            low = middle
        else:
            high = middle
    return min(cached(high), low / main)


def writing(device: Device, size: float) -> float:
    """Cycles of all writes at the rate at which cores share the L2, or main memory without one."""
    shared = device.l2 if device.l2 is not None else device.main_memory
    return size / (fixed_rate(shared.write_bytes_per_cycle) / (1 << RATE_BITS))
