"""Steps of small modules on the chip's kernels, held to PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import npusim  # noqa: E402
from npusim.base.errors import ArgumentError  # noqa: E402
from tests.networks.random_modules import judged, tried  # noqa: E402  # it needs PyTorch
from tests.networks.trained_modules import MODULES, REFUSED, Small  # noqa: E402
from tests.sampled import crossed, slow_if  # noqa: E402

BATCH = 3

#: Tried on one of two devices in every run of the tests; the others are slow tests.
QUICK = (
    "batch norm without scale",
    "layer norm of odd rows",
    "layer norm of an odd map with frozen scale",
    "a weight of groups and of channels",
    "factors of channels behind a linear layer of channels",
    "a product with a matrix",
    "some parts of a concatenation",
    "convolution of viewed rows",
    "reciprocal",
)

#: The trainer computes recurrent layers round by round, a step times one round many times.
UNROLLED = ("lstm", "gru", "rnn", "two layers of lstm")


def _batches(small: Small) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    generator = np.random.default_rng(3)
    while True:
        inputs = tuple(
            generator.standard_normal((BATCH, *shape)).astype(np.float16).astype(np.float32)
            for shape in small.shapes
        )
        yield inputs, generator.integers(5, size=BATCH)


def _require_right(name: str, device: str, mode: str) -> None:
    """Train a module for a step; a difference counts if a second batch has one there too."""
    small = MODULES[name]
    batches = _batches(small)
    torch.manual_seed(crc32(name.encode()))
    module = small.make()
    wrong = []
    for _ in range(2):
        inputs, labels = next(batches)
        verdict = judged(module, inputs, labels, device=device, mode=mode)
        assert verdict.complete
        if name not in UNROLLED:
            assert verdict.trained_cycles == verdict.step_cycles
        wrong.append({each.name: str(each) for each in verdict.differences})
        if not wrong[-1]:
            return
    assert not wrong[0].keys() & wrong[1].keys(), wrong[1]


@pytest.mark.parametrize(("name", "device"), crossed(QUICK, ["ascend910b2", "ascend910"]))
def test_a_step_is_that_of_pytorch(name: str, device: str) -> None:
    _require_right(name, device, "graph")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910", "ascend310p", "ascend950pr"])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_every_step_is_that_of_pytorch(name: str, device: str, mode: str) -> None:
    _require_right(name, device, mode)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_computes_is_refused_by_name(name: str) -> None:
    small, message = REFUSED[name]
    shape = small.shapes[0]
    with pytest.raises(ArgumentError, match=message):
        npusim.Trainer(small.make(), shape, device="ascend910b2", batch=BATCH)


#: Seeds of drawn modules that were wrong: a normalisation without scale, odd rows, a concatenation
#: of which one part has a gradient, bits in blocks beside a map of other axes. The last takes
#: long; `test_formats.py` has steps that read bits, too.
SEEDS = (10, 15, 7, slow_if(True, 101))


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_modules_that_were_wrong(seed: int) -> None:
    assert not tried(seed)
