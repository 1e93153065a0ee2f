"""The base of kernels on the cube whose tilings are ranked by what their cores do.

Such a kernel gives its ``spaces``: candidates as columns of numbers, the work of each, and how one
becomes a tiling. Automatic tilings, candidates of a search and their bounds all follow from these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from npusim.base.records import replace
from npusim.kernels.estimate.costs import in_l2
from npusim.kernels.estimate.pipeline import Space, every, leading
from npusim.kernels.parts.mem_set import MemSet
from npusim.language import ArgumentError, Device, Kernel, Least


class Tiled(Kernel):
    """A kernel with a field ``tiling``; the last of its tensors is the result."""

    @abstractmethod
    def spaces(self, device: Device, cores: int, held: tuple[bool, ...]) -> Sequence[Space]:
        """The tilings to choose from; ``held``: of which tensors the L2 has all at the beginning.

        Raises ``CapacityError`` where none fits.
        """

    def candidates(self, device: Device, cores: int) -> Iterator[Kernel]:
        """The same with every tiling worth comparing, the least bound of each space first."""
        return (kernel for kernel, _ in self.bounded(device, cores))

    def bounded(self, device: Device, cores: int) -> Iterator[tuple[Kernel, Least]]:
        for space in self.spaces(device, cores, (False,) * len(self.tensors)):
            for tiling, cycles, used, clears in every(space):
                before = (MemSet(self.tensors[-1], few=True),) if clears else ()
                for variant in self.variants(tiling, used):
                    with suppress(ArgumentError):  # some layouts of operands ask for more
                        yield self._with(variant), Least(cycles, used, before)

    def variants(self, tiling: Any, cores: int) -> Iterator[Any]:
        """Tilings for so many cores that bounds and estimates do not tell from one."""
        yield tiling

    def ranked(
        self,
        device: Device,
        cores: int,
        few: int,
        warm: Collection[str] = (),
        known: tuple[float, ...] = (),
    ) -> list[tuple[float, Kernel]]:
        """See ``Kernel.ranked``; those that take longer than times that are ``known`` may miss."""
        return [*self._all_with(self._leaders(device, cores, few, warm, known))]

    def contenders(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> tuple[Iterable[tuple[float, Kernel]], Iterable[tuple[float, Kernel]]]:
        """See ``Kernel.contenders``; kernels are made as they are looked at."""
        return self._all_with(self._leaders(device, cores, few, warm)), []

    def _leaders(
        self,
        device: Device,
        cores: int,
        few: int,
        warm: Collection[str],
        known: tuple[float, ...] = (),
    ) -> list[tuple[float, Any]]:
        """Estimates and tilings of ``ranked``."""
        spaces = self.spaces(device, cores, in_l2(device, warm, *self.tensors))
        leaders = list[tuple[float, Any]]()
        for space in spaces:
            leaders += leading(space, few, *known, *(time for time, _ in leaders))
        return sorted(leaders, key=lambda leader: leader[0])[:few]

    def _all_with(self, tilings: Iterable[tuple[float, Any]]) -> Iterator[tuple[float, Kernel]]:
        """The same with tilings, as far as the layouts of its operands allow them."""
        for cycles, tiling in tilings:
            with suppress(ArgumentError):
                yield cycles, self._with(tiling)

    def _with(self, tiling: Any) -> Kernel:
        return replace(self, tiling=tiling)
