"""The keyword arguments that every operator takes besides its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim.device.spec import Device

#: Called as progress(kernel, phase, done, total): instructions of one kernel.
Progress = Callable[[str, str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keyword arguments every operator takes besides its own.

    ``device`` is a name, a YAML path or a ``Device``; ``cores`` a mask (int), range, list or text
    such as "0-3" (None: all); ``tiling`` "auto", the kernel's own, for gradients of filter and
    input also "production" (the rule of the vendor's library) or a ``CannTiling``, or a mapping
    from kernel names to any of these; ``rules`` "documented" applies the product's constraint
    table, "hardware" only asks what the device can execute; ``deterministic`` reduces the split
    accumulation of a filter gradient in fixed order instead of with atomic adds; ``engine`` "fast"
    or the readable reference "simpy", with the same cycles; ``timeline`` keeps one row per
    instruction (None: up to a size limit); ``start`` "cold" or "warm" (inputs already in L2).
    """

    device: str | Device
    cores: Any = None
    tiling: Any = "auto"
    rules: str = "documented"
    deterministic: bool = False
    engine: str = "fast"
    timeline: bool | None = None
    start: str = "cold"
    progress: Progress | None = None
