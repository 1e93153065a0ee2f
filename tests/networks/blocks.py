"""Small networks for tests of training steps, and what float64 makes of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.networks.rules.table import Chain
from npusim.workloads import Workload, load_workload
from tests.texts import text_of

Array = npt.NDArray[Any]

#: One residual block behind one convolution: a value that is read twice, a sum, a linear layer.
ONE_BLOCK = text_of("one_block.yaml")

#: What issue's training is of: two residual blocks, the second with half the size.
TWO_BLOCKS = text_of("two_blocks.yaml")


def network(text: str, folder: Path, name: str = "blocks") -> Workload:
    """The workload of a text."""
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return load_workload(path)


def images(count: int, seed: int = 1) -> tuple[Array, Array]:
    """Gratings of ten directions and colours at random places, with noise, and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    ways = np.pi * labels / 10
    across, down = (4 * f(ways)[:, None, None] / 16 for f in (np.cos, np.sin))
    places = np.arange(16)
    phases = 2 * np.pi * (across * places + down * places[:, None] + rng.random((count, 1, 1)))
    colours = 1 + np.cos(2 * np.pi * (labels[:, None] + [0, 3, 6]) / 10)
    made = np.cos(phases)[:, None] * colours[:, :, None, None]
    made = made + 0.5 * rng.standard_normal(made.shape)
    return made.astype(np.float32), labels


OPERATIONS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "adds": np.add,
    "muls": np.multiply,
    "maxs": np.maximum,
    "mins": np.minimum,
    "gt": np.greater,
    "eq": np.equal,
    "lt": np.less,
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "exp": np.exp,
    "rec": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ln": np.log,
    "row_sum": lambda x, _: x.sum(-1, keepdims=True),
    "row_max": lambda x, _: x.max(-1, keepdims=True),
    "spread": lambda x, width: np.repeat(x, width, -1),
}


def computed(
    chain: Chain, given: Mapping[str, Array], *, by_image: bool = False
) -> dict[str, Array]:
    """All values of a chain in float64: maps (images, channels, positions), numbers per channel.

    Sums are over all but the channels, or ``by_image`` over all but these and images; of rows over
    all but the last axis.
    """
    known = {
        name: array[None, :, None] if array.ndim == 1 else array for name, array in given.items()
    }
    for step in chain.steps:
        a = known[step.a]
        b = known[step.b] if isinstance(step.b, str) and step.b else step.b
        if step.operation == "select":
            made = np.where(known[step.mask], a, b)
        else:
            made = OPERATIONS[step.operation](*((a,) if step.b == "" else (a, b)))
        known[step.result] = made
    axes = (0, 1) if chain.by_row else 2 if by_image else (0, 2)
    for vector, value in chain.sums:
        known[vector] = known[value].sum(axes, keepdims=True)
    return known
