"""What a kernel author writes: the table of work units, the buffers, and one unit's program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from npusim.errors import ProgramError
from npusim.isa.operands import Tensor

if TYPE_CHECKING:
    from npusim.program.language import Language

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """The work of a kernel as columns, one row per unit, each core running its rows in order.

    ``core`` is the position among the kernel's cores. ``signature`` columns are what the
    unit's program depends on (extents, border and tail flags, first/last of an accumulation):
    ``Kernel.emit`` runs once per distinct row of them. ``bases`` columns are byte offsets that
    a GM region can name.
    """

    core: IntArray
    signature: Mapping[str, IntArray] = field(default_factory=dict)
    bases: Mapping[str, IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in {**self.signature, **self.bases}.items():
            if len(column) != len(self.core):
                raise ProgramError(
                    f"unit column {name!r} has {len(column)} rows, core has {len(self.core)}; "
                    "every column needs one entry per unit"
                )


class Kernel(ABC):
    """A tiled kernel: ``units`` says who computes what, ``emit`` is the program of one unit."""

    name: ClassVar[str]
    #: Which cores run it: "cube" or "vector" (the same cores where a core has both units).
    role: ClassVar[str] = "cube"
    #: One line for reports: the tile sizes in use.
    tiling_text: str = ""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The global tensors it touches; roles tell inputs from outputs."""

    @abstractmethod
    def units(self, cores: int) -> Units:
        """The unit table for this many cores, vectorised."""

    @abstractmethod
    def buffers(self, k: Language) -> None:
        """Declare the private buffers (``k.buffer``); they live as long as the kernel."""

    @abstractmethod
    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        """Issue the instructions of a unit; ``unit`` has the signature columns as ints."""
