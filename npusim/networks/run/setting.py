"""How a step runs, and the arguments with which it was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from npusim.networks.rules.values import Kinds


class Setting(Struct, frozen=True, kw_only=True):
    """How a step runs: see ``npusim.step`` for what each means."""

    mode: str
    layouts: str
    fusions: tuple[str, ...]
    optimizer: str
    passes: str
    kinds: Kinds
    cards: int = 1


class StepRequest(Struct, frozen=True, kw_only=True):
    """Arguments with which ``npusim.step`` was called; ``options`` are its further keywords.

    Its ``jobs`` are those of what its result is asked for later, too.
    """

    workload: Any
    input_shape: Sequence[int] | None
    inputs: Any
    loss: Any
    targets: Any
    batch: int
    mode: str
    passes: str
    layouts: str | None
    fusions: str | Collection[str] | None
    optimizer: str
    dtype: Any
    normalisation: Any
    cards: int
    jobs: int | None
    options: Mapping[str, Any]
