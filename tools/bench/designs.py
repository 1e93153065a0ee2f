"""The cost of looking at thousands of designs of a chip with a whole network."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import npusim
from npusim.machine.timing.fast.engine import FastEngine
from npusim.reuse.launches import Again
from tools.bench import programs
from tools.bench.figures import Figure, Settings
from tools.bench.history import LOOP, seconds

#: How many designs are asked about, on how many processors.
ALL, PROCESSORS = 4096, 2

#: What varies, eight values each: 4,096 designs.
VARY = {
    "memories.L1.size": [f"{kib}KiB" for kib in (512, 576, 640, 768, 1024, 1280, 1536, 2048)],
    "main_memory.read": [f"{tenths / 10}TB/s" for tenths in range(10, 26, 2)],
    "l2.read": [f"{tenths / 10}TB/s" for tenths in range(30, 62, 4)],
    "clock": [f"{hundreds * 10}MHz" for hundreds in range(140, 220, 10)],
}

#: Designs that are measured, with tilings held and with tilings chosen again.
HELD, CHOSEN = 64, 6

#: Disjoint parts of the work of a design: what is called.
PARTS: dict[str, tuple[Any, str]] = {
    "device": (npusim, "load_device"),
    "costs": (Again, "_program"),
    "tables": (FastEngine, "__init__"),
    "engine": (FastEngine, "run"),
}


def designs(settings: Settings) -> Iterator[Figure]:
    """Both gradients of ResNet-50, one image, on designs drawn from 4,096, in loops of CPU."""
    loop = statistics.median(seconds("-c", LOOP) for _ in range(3))
    grid = list(itertools.product(*VARY.values()))
    assert len(grid) == ALL
    drawn = random.Random(0).sample(grid, HELD // settings.divisor)
    begun = time.process_time()
    base = npusim.network("resnet50", device=programs.DEVICE, jobs=1)
    for size in VARY["memories.L1.size"]:  # other programs for another L1
        base.time_us_on(npusim.load_device(programs.DEVICE, {"memories.L1.size": size}))
    fixed = time.process_time() - begun
    spent = dict.fromkeys(PARTS, 0.0)
    with ExitStack() as stack:
        for name, (owner, function) in PARTS.items():
            timer = _timer(getattr(owner, function), name, spent)
            stack.enter_context(patch.object(owner, function, timer))
        begun = time.process_time()
        for values in drawn:
            base.time_us_on(_device(values))
        each = (time.process_time() - begun) / len(drawn)
    shares = [f"{name} {part / each / len(drawn):.0%}" for name, part in spent.items()]
    whole = (ALL * each + PROCESSORS * fixed) / loop
    note = f"{ALL} designs, tilings held: {each * 1e3:.0f} ms each ({', '.join(shares)}), "
    note += f"{fixed:.1f} s before in each of {PROCESSORS} processes; a loop is {loop:.2f} s"
    yield Figure("designs.held", whole, "loops", note)
    begun = time.process_time()
    for values in drawn[:CHOSEN]:
        npusim.network("resnet50", device=_device(values), jobs=1)
    again = (time.process_time() - begun) / len(drawn[:CHOSEN])
    note = f"the same with tilings chosen for each: {again * 1e3:.0f} ms each"
    yield Figure("designs.chosen", ALL * again / loop, "loops", note)


def _device(values: tuple[str, ...]) -> Any:
    return npusim.load_device(programs.DEVICE, dict(zip(VARY, values, strict=True)))


def _timer(function: Any, name: str, spent: dict[str, float]) -> Any:
    """``function``, which adds the CPU seconds it takes to those of ``name``."""

    def timed(*arguments: Any, **options: Any) -> Any:
        begun = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.process_time() - begun

    return timed
