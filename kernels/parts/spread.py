"""Vector kernels that may leave cores idle, because each core takes time to launch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from npusim.base.records import replace
from npusim.kernels.estimate.streams import Stream, working_cores
from npusim.language import Device, Kernel

Own = TypeVar("Own", bound="Spread")


@dataclass(frozen=True)
class Spread(Kernel):
    """A vector kernel on at most so many ``cores``; None is all that there are."""

    role: ClassVar[str] = "vector"

    cores: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def stream(self, device: Device, cores: int) -> Stream:
        """Its traffic and vector instructions, with its tasks on 1 to ``cores`` cores."""

    def used(self, cores: int) -> int:
        return min(cores, self.cores or cores)

    def on_few(self: Own, device: Device, cores: int) -> Own:
        """The same on those of so many cores on which it ends first, launch included."""
        return replace(self, cores=working_cores(device, cores, self.stream(device, cores)))

    @property
    def is_spread(self) -> bool:
        return self.cores is not None

    def on_all_cores(self: Own) -> Own:
        return replace(self, cores=None)
