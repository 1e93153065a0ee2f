"""Are the best tilings among those that are searched? Random legal ones from outside of them.

``python -m tools.tilings.outside [COUNT] [SEED]`` tunes gradients of ResNet-50 on the 910B2, a few
seconds each, simulates COUNT legal tilings of each that its candidates do not have, and prints
those that are faster by more than 2 %, with the fields they differ in from the best of the search.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from random import Random
from typing import Any, NamedTuple

import npusim
from npusim.base.errors import NpusimError
from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from tools.tilings.larger_machines import Gradient, cycles_of, kernel_of, layers

DEVICE = "ascend910b2"

#: Layers and batches; both gradients of each.
LAYERS = (
    *(("res2_1x1_first", 1), ("res2_3x3", 1), ("res3_3x3_down", 4)),
    *(("res4_1x1_out", 32), ("res5_3x3", 32), ("res5_shortcut", 32)),
)

#: Time of a search.
BUDGET = "5s"

#: Most values that one draw gives anew, and a faster tiling of the search is that by so much.
CHANGES, LIMIT = 4, 1.02

#: Draws for each tiling that is wanted, of which most do not fit or are candidates.
DRAWS = 40

#: What fields can be; sizes that are not here are drawn around the one they have.
VALUES: dict[str, tuple[Any, ...]] = {
    "l1_slots": (1, 2, 3),
    "weight_slots": (1, 2, 3),
    "l0_slots": (1, 2, 3),
    "l0c_slots": (1, 2),
    "dy_slots": (0, 1, 2, 3),
    "x_slots": (0, 1, 2, 3),
    "dy_slabs": (1, 2),
    "x_slabs": (1, 2),
    "step_m": (1, 2, 3),
    "step_n": (1, 2, 3),
    "k_parts": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32),
    "images": (1, 2, 3, 4, 5, 6, 8, 12),
    "group": (1, 2, 3, 4, 6),
    "passes": (1, 2, 3, 4, 8),
    "form": ("window", "phases", "single", "taps"),
    "keeps": ("dy", "x"),
    "cores": (0, *range(4, 24)),
}

#: What the vendor's library has besides, and rounding that callers ask for.
FIXED = ("single_core_m", "single_core_n", "single_core_k", "deterministic")


class Outsider(NamedTuple):
    """A tiling from outside, and its cycles beside those of the best of the search."""

    gradient: Gradient
    cycles: int
    tuned: int
    proved: bool
    differs: dict[str, tuple[Any, Any]]

    @property
    def ratio(self) -> float:
        """Above 1 where the one from outside is faster."""
        return self.tuned / self.cycles

    def __str__(self) -> str:
        changes = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.differs.items())
        state = "proved" if self.proved else "open"
        return (
            f"{self.ratio:.3f} {self.gradient}: {self.tuned} ({state}) -> {self.cycles} | {changes}"
        )


def drawn(tiling: Any, rng: Random) -> Any:
    """A tiling with some fields drawn anew. Raises what its class does for those that are none."""
    names = [one.name for one in fields(tiling) if one.name not in FIXED]
    changes: dict[str, Any] = {}
    for name in rng.sample(names, rng.randint(1, CHANGES)):
        value = getattr(tiling, name)
        if isinstance(value, bool):
            changes[name] = not value
        elif name in VALUES:
            changes[name] = rng.choice(VALUES[name])
        else:
            unit = 16 if name.startswith("base_") and value % 16 == 0 else 1
            changes[name] = max(1, round(value * 2 ** rng.uniform(-1.5, 1.5) / unit)) * unit
    return replace(tiling, **changes)


def outsiders(gradient: Gradient, count: int, seed: int, device: Device) -> Iterator[Outsider]:
    """``count`` tilings that are no candidates, from random ones among the better half of these."""
    kernel: Any = chosen(kernel_of(gradient), device, tuple(range(device.groups)))
    rng = Random(f"outside {seed} {gradient}")
    tuned = npusim.tune(kernel, device=device, budget=BUDGET, jobs=1, store=None)
    best: Any = tuned.best
    known = {row.kernel.clipped for row in tuned.rows}
    near: list[Any] = [one for _, one in kernel.ranked(device, device.count("cube"), 64)]
    found: set[Kernel] = set()
    for _ in range(DRAWS * count):
        if len(found) == count:
            return
        with suppress(NpusimError):
            one = replace(kernel, tiling=drawn(rng.choice(near).tiling, rng))
            if one.clipped in known or one.clipped in found or not npusim.fits(one, device):
                continue
            cycles = cycles_of(one, device)
            found.add(one.clipped)
            differs = {
                field.name: pair
                for field in fields(best.ran)
                if (pair := (getattr(best.ran, field.name), getattr(one.ran, field.name)))[0]
                != pair[1]
            }
            yield Outsider(gradient, cycles, tuned.cycles, tuned.proved, differs)


def main(count: int = 50, seed: int = 0) -> None:
    """Print those that are faster by more than allowed, then the best of each gradient."""
    device, faster, total = load_device(DEVICE), 0, 0
    for layer, batch in LAYERS:
        for which in ("dx", "dw"):
            gradient = Gradient(layer, replace(layers("resnet50")[layer], n=batch), which)
            found = sorted(outsiders(gradient, count, seed, device), key=lambda one: -one.ratio)
            better = [one for one in found if one.ratio > LIMIT]
            faster, total = faster + len(better), total + len(found)
            for one in better[:5] or found[:1]:
                print(one, flush=True)
    print(f"{faster} of {total} are more than 2 % faster than the best of the search")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
