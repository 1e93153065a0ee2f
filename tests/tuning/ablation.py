"""What each mechanism of the choice of tilings is worth: ``python -m tests.tuning.ablation``.

Each is switched off alone, and the kernels that are then chosen are simulated. The file that it
writes, docs/model/tilings_ablation.json, has for each device the geometric mean and the worst of
the time over that of today's choice, CPU seconds of all choices, and how many of some random
enlargements are slower by more than 2 %. It takes half an hour of CPU time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from npusim.base.errors import CapacityError
from npusim.call import choice
from npusim.call.choice import CHOICES, TRIED
from npusim.device.catalog import load_device
from npusim.kernels.tilings import filter_work, product_work
from npusim.kernels.tilings.filter_space import Space as FilterSpace
from npusim.kernels.tilings.pipeline import chosen
from npusim.kernels.tilings.product_space import Space as ProductSpace
from tests.documents.pages import ROOT
from tests.tuning.larger_machines import (
    LIMIT,
    Gradient,
    automatic,
    kernel_of,
    layers,
    random_enlargements,
)

FILE = ROOT / "docs" / "model" / "tilings_ablation.json"

DEVICES = ("ascend910b2", "ascend910", "ascend950pr", "ascend310p")

#: Networks and images; the depth-wise layers of the last are a set of their own in reports.
NETWORKS = (("resnet50", 32), ("vgg16", 4), ("mobilenet_v2", 8))

#: Random enlargements that each mechanism is held to.
ENLARGEMENTS, SEED = 150, 3

Patch = pytest.MonkeyPatch


def simulated(count: int) -> Callable[[Patch], None]:
    """At most so many candidates are simulated."""

    def fixed(patch: Patch) -> None:
        patch.setattr(choice, "MOST_SIMULATED", count)

    return fixed


def alike_too(patch: Patch) -> None:
    """The best estimates are simulated, whether or not they are of tilings that are alike."""
    patch.setattr(choice, "_shape", lambda kernel: kernel)


def without_l2(patch: Patch) -> None:
    """The L2 is taken to hold what is read from the beginning."""
    for work in (product_work.Product, filter_work.Gradient):
        lacking = work._lacking

        def held(self: Any, *given: Any, lacking: Any = lacking) -> Any:
            found = lacking(self, *given)
            return found | {"first_until": 0, "second_until": 0}

        patch.setattr(work, "_lacking", held)


def without(**plain: int) -> Callable[[Patch], None]:
    """Only candidates in which each of these fields, where they have it, has the usual value."""

    def narrow(patch: Patch) -> None:
        def narrowed(t: Any) -> Any:
            keep = np.ones(len(t["cores"]), np.bool_)
            for name, value in plain.items():
                if name in t:
                    keep &= t[name] == value
            return chosen(t, np.flatnonzero(keep)) if keep.any() else t

        for space in (ProductSpace, FilterSpace):
            every = vars(space)["rows"].func

            def rows(self: Any, whole: Any = every) -> Any:
                return narrowed(whole(self))

            def spread(self: Any, t: Any, whole: Any = space.spread) -> Any:
                return narrowed(whole(self, t))

            kept = cached_property(rows)
            kept.__set_name__(space, "rows")
            patch.setattr(space, "rows", kept)
            patch.setattr(space, "spread", spread)

    return narrow


MECHANISMS: dict[str, Callable[[Patch], None]] = {
    "the best estimate alone, not simulated": simulated(1),
    "at most three simulated": simulated(3),
    "tilings that are alike, too": alike_too,
    "what the L2 lacks": without_l2,
    "three slots of L0": without(l0_slots=2),
    "groups and passes": without(group=1, passes=1),
    "an input that stays (resident_input)": without(resident_input=0),
    "the unit flag": without(unit_flag=0),
    "parts of K": without(parts=1),
}


@contextmanager
def switched(mechanism: Callable[[Patch], None] | None) -> Iterator[None]:
    """Choices as they are without a mechanism; nothing that was chosen before is kept."""
    with pytest.MonkeyPatch.context() as patch:
        CHOICES.clear()
        TRIED.clear()
        if mechanism is not None:
            mechanism(patch)
        yield
    CHOICES.clear()


def gradients() -> Iterator[Gradient]:
    """Both gradients of each layer."""
    for network, images in NETWORKS:
        for name, shape in layers(network).items():
            for which in ("dx", "dw"):
                yield Gradient(name, replace(shape, n=images), which)


def chosen_cycles(name: str) -> tuple[list[int], float]:
    """Cycles of the kernel that is chosen for each gradient, 0 for none, and CPU seconds."""
    device, found = load_device(name), []
    start = time.process_time()
    for gradient in gradients():
        found.append(0)
        with suppress(CapacityError):
            found[-1] = automatic(kernel_of(gradient), device)[0]
    return found, time.process_time() - start


def main() -> None:
    """Write the file."""
    rows: dict[str, Any] = {}
    today: dict[str, list[int]] = {}
    for what, mechanism in {"nothing": None, **MECHANISMS}.items():
        row: dict[str, Any] = {}
        with switched(mechanism):
            for name in DEVICES:
                cycles, seconds = chosen_cycles(name)
                before = today.setdefault(name, cycles)
                pairs = [(a, b) for a, b in zip(cycles, before, strict=True) if a and b]
                ratios = np.log([a / b for a, b in pairs])
                row[name] = {
                    "mean": float(np.exp(ratios.mean()) - 1),
                    "worst": float(np.exp(ratios.max()) - 1),
                    "none": sum(1 for a, b in zip(cycles, before, strict=True) if b and not a),
                    "seconds": round(seconds, 1),
                }
            slower = [one for one in random_enlargements(ENLARGEMENTS, SEED) if one.ratio > LIMIT]
            row["slower"] = len(slower)
        rows[what] = row
        print(what, json.dumps(row), file=sys.stderr, flush=True)
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
