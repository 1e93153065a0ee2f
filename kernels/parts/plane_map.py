"""Conversions that bring the pixels of plain planes into blocks of C0, or back, pixels chosen anew.

Layouts: plain is (N, C, [D = 1, [H,]] W), the other one (N, 1, blocks, rows, columns, C0).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from npusim.kernels.parts.spread import Spread
from npusim.language import ArgumentError, Tensor


@dataclass(frozen=True)
class PlaneMap(Spread):
    """Convert ``src`` into ``dst``; the one with ``plain`` axes says the sizes.

    Elements have 2 or 4 bytes. Raises ``ArgumentError`` where types or shapes do not belong
    together.
    """

    c0: int
    src: Tensor
    dst: Tensor
    to_blocks: bool

    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        plain, blocked = self.plain, self.blocked
        if plain.dtype != blocked.dtype or plain.dtype.bytes not in (2, 4):
            raise ArgumentError(
                f"{self.name}: {plain.name} is {plain.dtype}, {blocked.name} is {blocked.dtype}; "
                "both must be the same type of 2 or 4 bytes"
            )
        if len(plain.shape) == 5 and plain.shape[2] != 1:
            raise ArgumentError(
                f"{self.name}: {plain.name} has shape {plain.shape}; depth must be 1"
            )
        want = self.blocked_shape(plain.shape)
        if blocked.shape != want:
            raise ArgumentError(
                f"{self.name}: {blocked.name} has shape {blocked.shape}, {want} belongs to "
                f"{plain.name} of shape {plain.shape} with {self.pixels}"
            )

    @property
    @abstractmethod
    def pixels(self) -> str:
        """Which pixels of the plain map share a position of the other one, in words."""

    @abstractmethod
    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the blocked map of a plain one."""

    @property
    def plain(self) -> Tensor:
        """The tensor in framework layout."""
        return self.src if self.to_blocks else self.dst

    @property
    def blocked(self) -> Tensor:
        """The tensor in blocks of C0."""
        return self.dst if self.to_blocks else self.src

    @property
    def tiling_text(self) -> str:
        return f"{'to' if self.to_blocks else 'from'} {self.pixels}"


def plain_sizes(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """N, C, H and W of a plain map."""
    n, c, *spatial = shape
    h, w = (1, 1, *spatial)[-2:]
    return n, c, h, w
