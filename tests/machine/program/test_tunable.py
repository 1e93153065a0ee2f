"""Which tilings a kernel can have: all combinations of its choices that its device can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import npusim
from npusim.kernels.parts.mem_set import MemSet
from npusim.language import (
    FP16,
    Alike,
    ArgumentError,
    Kernel,
    Language,
    Plan,
    Tasks,
    Tensor,
    in_runs,
)
from npusim.machine.device.catalog import load_device
from npusim.machine.program.kernel import Least


@dataclass(frozen=True)
class Copy(Kernel):
    """Through UB in pieces."""

    x: Tensor
    y: Tensor
    piece: int = 64
    slots: int = 1

    name: ClassVar[str] = "copy"
    role: ClassVar[str] = "vector"
    choices: ClassVar[Mapping[str, Sequence[Any]]] = {
        "piece": (24, 64, 128, 100_000),
        "slots": (1, 2),
    }

    def __post_init__(self) -> None:
        if self.piece % 16:
            raise ArgumentError(f"piece is {self.piece}; it must be a multiple of 16")

    @property
    def clipped(self) -> Copy:
        most = self.x.shape[0]
        return self if self.piece <= most else Copy(self.x, self.y, most, self.slots)

    def plan(self, k: Language, cores: int) -> Plan[Alike]:
        buffer = k.buffer("UB", (self.piece,), FP16, slots=self.slots, name="piece")
        count = self.x.shape[0] // self.piece

        def emit(_: Alike) -> None:
            size = self.piece * 2
            slot = buffer.next()
            k.data_move(slot, self.x.at(0, size, base="at"), FP16)
            k.data_move(self.y.at(0, size, base="at"), slot, FP16)

        at = np.arange(count) * self.piece * 2
        return Plan(Tasks(in_runs(count, cores), Alike, {}, {"at": at}), emit)


def copy(size: int = 128) -> Copy:
    return Copy(Tensor("x", (size,), FP16), Tensor("y", (size,), FP16, "out"))


def test_candidates_are_the_combinations_that_fit_and_differ() -> None:
    """24 is refused by the kernel, 100,000 elements by UB."""
    found = [(one.piece, one.slots) for one in npusim.candidates(copy(), "ascend910b2")]
    assert found == [(64, 1), (64, 2), (128, 1), (128, 2)]


def test_those_that_run_alike_are_one() -> None:
    found = [(one.piece, one.slots) for one in npusim.candidates(copy(64), "ascend910b2")]
    assert found == [(64, 1), (64, 2)]


def test_fits_tells_bytes_by_memory_and_their_share() -> None:
    fit = npusim.fits(Copy(Tensor("x", (128,), FP16), Tensor("y", (128,), FP16), 64, 2), "tiny")
    assert fit
    assert fit.bytes == {"UB": 2 * 64 * 2}
    assert fit.share["UB"] == fit.bytes["UB"] / fit.sizes["UB"]


def test_fits_adds_up_the_buffers_of_a_memory() -> None:
    class Beside(Copy):
        def plan(self, k: Language, cores: int) -> Plan[Alike]:
            k.buffer("UB", (48,), FP16, name="beside")
            return super().plan(k, cores)

    fit = npusim.fits(Beside(Tensor("x", (96,), FP16), Tensor("y", (96,), FP16), 48), "tiny")
    assert fit.bytes == {"UB": 2 * 48 * 2}


def test_fits_says_why_not() -> None:
    x, y = Tensor("x", (10**6,), FP16), Tensor("y", (10**6,), FP16, "out")
    fit = npusim.fits(Copy(x, y, 160_000, 1), "ascend910b2")
    assert not fit
    assert "UB holds 196608 B" in fit.reason


def test_a_kernel_that_says_nothing_has_itself_and_no_bound() -> None:
    kernel = MemSet(Tensor("t", (4096,), FP16, "out"))
    assert list(npusim.candidates(kernel, "tiny")) == [kernel]
    assert kernel.least(load_device("tiny"), 1) == Least(0, 1)
    assert kernel.before == ()


@pytest.mark.parametrize("device", ["tiny", "ascend910b2"])
def test_candidates_know_how_many_cores_there_are(device: str) -> None:
    assert list(npusim.candidates(copy(), device, 1)) == list(npusim.candidates(copy(), device))
