"""What ``npusim run`` needs of an operator: its operands, the call, and a float64 opinion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import ArgumentError
from npusim.results import Result
from npusim.session import Array, Spec, spec
from npusim.yamltree import suggest

#: ``Result`` of a prepared call, given the keywords of ``npusim.session.Options``.
Run = Callable[..., "Result"]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call ready to run.

    ``framework`` turns the operator's result into the layout frameworks use (``axes``), in
    which ``expected`` computes it in float64. ``what`` names the result, ``layout`` its own
    form. ``tiling`` is the kernel's Tiling dataclass.
    """

    run: Run
    tiling: type[Any]
    what: str
    layout: str
    axes: str
    framework: Callable[[Array], Array]
    expected: Callable[[], Array]


class Inputs:
    """The operands of one call: arrays from files, random ones, or only shapes."""

    def __init__(
        self, names: tuple[str, ...], files: Mapping[str, str], seed: int, timing_only: bool
    ) -> None:
        for name in files:
            if name not in names:
                raise ArgumentError(f"--input {name}=...: unknown operand{suggest(name, names)}")
        self._names, self._seed, self._timing_only = names, seed, timing_only
        self.files = files
        self.arrays = {name: _read(name, Path(file)) for name, file in files.items()}

    def get(self, name: str, shape: tuple[int, ...]) -> Array | Spec:
        """The array given, else one of ``shape``: fp16 from a normal distribution, or a spec."""

        if name in self.arrays:
            return self.arrays[name]
        if self._timing_only:
            return spec(shape, "fp16")
        # A stream per operand: giving one as a file leaves the numbers of the others alone.
        stream = np.random.default_rng([self._seed, self._names.index(name)])
        return stream.standard_normal(shape, dtype=np.float32).astype(np.float16)

    def size(self, option: str, stated: int | None, found: Mapping[str, int]) -> int:
        """A size stated by ``option`` or found in files (operand -> size); they must agree."""
        value, source = stated, f"{option} is"
        for name, size in found.items():
            if value is not None and size != value:
                raise ArgumentError(
                    f"--input {name}={self.files[name]} has shape {self.arrays[name].shape}, "
                    f"which makes {option} {size}, but {source} {value}; correct one of them"
                )
            if value is None:
                value, source = size, f"--input {name} makes it"
        if value is None:
            raise ArgumentError(
                f"{option} is missing; give it, or with --input an operand whose shape shows it"
            )
        return value


def _read(name: str, path: Path) -> Array:
    """The array in a ``.npy`` file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(
            f"--input {name}={path}: cannot be read: {error}; give a file that numpy.save wrote"
        ) from error
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"--input {name}={path}: holds several arrays; give a .npy file with one"
        )
    return array


def parse_tiling(text: str, kind: type[Any]) -> Any:
    """``"auto"`` or the ``kind`` that ``base_m=128,base_n=256,...`` describes."""
    if text == "auto":
        return text
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in fields:
            raise ArgumentError(f"--tiling: unknown field {name!r}{suggest(name, fields)}")
        if name in values:
            raise ArgumentError(f"--tiling gives {name} twice; keep one of them")
        if not (value.isascii() and value.isdigit()):
            raise ArgumentError(f"--tiling: {name} is {value!r}; it must be an integer >= 1")
        values[name] = int(value)
    missing = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    ]
    if missing:
        raise ArgumentError(
            f"--tiling lacks {', '.join(missing)}, which has no default; complete it, or leave "
            "--tiling away (auto)"
        )
    return kind(**values)
