"""What ``npusim run`` needs of an operator: its operands, the call, and a float64 opinion."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from npusim.call.spec import Array, Spec, spec
from npusim.cli.parser import Parser
from npusim.device.spec import Device
from npusim.dtypes import BF16, FP16, FP32, DType, dtype
from npusim.errors import ArgumentError
from npusim.results import Result
from npusim.yamltree import suggest

#: ``Result`` of a prepared call, given the keywords of ``npusim.call.Options``.
Run = Callable[..., "Result"]

#: Largest relative error (Frobenius norms) that --check lets pass, by the type a result was
#: rounded to. fp32 sums of exact products stay near 1e-7; one rounding to fp16 or bf16 gives
#: about 3e-4 or 2e-3, a wrong or missing block about 1.
LIMITS: Mapping[DType, float] = {FP32: 1e-5, FP16: 1e-3, BF16: 8e-3}


@dataclass(frozen=True, kw_only=True)
class Output:
    """One array a call returns, and what it should be.

    ``framework`` turns it into the layout frameworks use (``axes``), in which ``expected``
    computes it in float64; ``layout`` names the operator's own form. ``limit`` bounds the
    relative error.
    """

    layout: str
    axes: str
    framework: Callable[[Array], Array]
    expected: Callable[[], Array]
    limit: float


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call ready to run.

    ``outputs`` are those asked for, by their names in the result. ``tiling`` is the kernel's
    Tiling dataclass, or of several kernels those by name.
    """

    run: Run
    tiling: type[Any] | Mapping[str, type[Any]]
    outputs: Mapping[str, Output]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """How ``run`` reads a call of an operator.

    ``inputs`` are the names --input knows; ``options`` those of the command line's options that
    this operator takes, underscores for hyphens. ``dtypes`` are the element types of operands,
    the usual one first; ``device`` is the one taken where none is named.
    """

    inputs: tuple[str, ...]
    options: tuple[str, ...]
    dtypes: tuple[DType, ...]
    prepare: Callable[[argparse.Namespace, Inputs, Device], Prepared]
    example: str
    add_arguments: Callable[[Parser], None] | None = None
    device: str | None = None


class Inputs:
    """The operands of one call: arrays from files, random ones, or only shapes.

    ``kind`` is the type of those without file: ``stated``, else that of the first file, else the
    first of ``allowed``.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        files: Mapping[str, str],
        *,
        seed: int = 0,
        timing_only: bool = False,
        allowed: tuple[DType, ...] = (FP16,),
        stated: DType | None = None,
    ) -> None:
        for name in files:
            if name not in names:
                raise ArgumentError(f"--input {name}=...: unknown operand{suggest(name, names)}")
        self._names, self._seed, self._timing_only = names, seed, timing_only
        self.files = files
        kinds = allowed if stated is None else (stated,)
        self.arrays = {name: _read(name, Path(file), kinds) for name, file in files.items()}
        self.kind = next((dtype(array.dtype) for array in self.arrays.values()), kinds[0])

    def get(self, name: str, forms: Mapping[str, tuple[int, ...]]) -> Array | Spec:
        """The array given, in one of ``forms`` (axes -> shape); else one of the first form.

        That is random, from a normal distribution, or a spec where only time is asked for.
        """
        if name in self.arrays:
            given = self.arrays[name]
            if given.shape not in forms.values():
                wanted = " or ".join(f"{shape} ({axes})" for axes, shape in forms.items())
                raise ArgumentError(
                    f"--input {name}={self.files[name]} has shape {given.shape}; this call takes "
                    f"{wanted}"
                )
            return given
        shape = next(iter(forms.values()))
        if self._timing_only:
            return spec(shape, self.kind)
        # A stream per operand: giving one as a file leaves the numbers of the others alone.
        stream = np.random.default_rng([self._seed, self._names.index(name)])
        return stream.standard_normal(shape, dtype=np.float32).astype(self.kind.numpy)

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


def returned(result: Result, name: str) -> Array:
    """The array that a result has by this name."""
    outputs = dict(zip(result.output_names, result.outputs or (), strict=False))
    array = outputs.get(name)
    if array is None:
        raise ArgumentError(f"{result.operator} returned no numbers for {name}")
    return array


def numbers(value: Array | Spec) -> Array:
    """The array; a float64 opinion on a timing-only call is an ``ArgumentError``."""
    if isinstance(value, Spec):
        raise ArgumentError("a timing-only run has no numbers; run without --timing-only")
    return value


def _read(name: str, path: Path, kinds: tuple[DType, ...]) -> Array:
    """The array in a ``.npy`` file, of one of ``kinds``; fp32 is rounded to bf16 if that is due."""
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(
            f"--input {name}={path}: cannot be read: {error}; give a file that numpy.save wrote"
        ) from error
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"--input {name}={path}: holds several arrays; give a .npy file with one"
        )
    if array.dtype == np.dtype("V2"):  # numpy.load's name for what numpy.save knew as bfloat16
        array = array.view(BF16.numpy)
    if kinds == (BF16,) and array.dtype == np.float32:
        array = array.astype(BF16.numpy)
    if array.dtype not in [kind.numpy for kind in kinds]:
        raise ArgumentError(
            f"--input {name}={path} is {array.dtype.name}; this call takes "
            f"{' or '.join(kind.numpy.name for kind in kinds)}"
        )
    return cast(Array, array)
