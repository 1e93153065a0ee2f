"""The operands of a call on a command line: of files, random, or their shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from npusim.base.dtypes import BF16, DTYPES, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.resources import require_room
from npusim.base.yamltree import suggest
from npusim.call.spec import Array, Operand, Spec, native
from npusim.ops.card import Card, Input, Stated


def read_operands(
    card: Card[Any], files: Mapping[str, str], stated: DType | None
) -> dict[str, Array]:
    """The arrays in ``files`` (operand -> path), of the type ``stated`` or one the card allows."""
    inputs = {operand.name: operand for operand in card.inputs}
    for name in files:
        if name not in inputs:
            raise ArgumentError(f"--input {name}=...: unknown operand{suggest(name, inputs)}")
    allowed = card.dtypes if stated is None else (stated,)
    dtypes = tuple(kind for kind in allowed if stated is not None or kind in DTYPES)
    return {
        name: _read(name, Path(file), tuple(map(inputs[name].dtype, dtypes)))
        for name, file in files.items()
    }


def make_operands(
    card: Card[Any], problem: Any, stated: Stated, *, seed: int, timing_only: bool
) -> tuple[dict[str, Operand], dict[str, Array]]:
    """Every operand as the operator takes it, and as frameworks have it.

    Those without file are random, from a normal distribution, of the type stated, else of the
    first file's, else of the card's usual one; or specs where only time is asked for.
    """
    file_dtypes = [dtype(array.dtype) for array in stated.arrays.values()]
    allowed = [kind for kind in file_dtypes if kind in card.dtypes]
    common = stated["dtype"] or (allowed[0] if allowed else card.dtypes[0])
    if not timing_only:
        _require_memory(card, problem, stated, common)
    as_taken: dict[str, Operand] = {}
    plain: dict[str, Array] = {}
    for number, operand in enumerate(card.inputs):
        if not operand.wanted(problem):
            continue
        kind = operand.dtype(common)
        if operand.name in stated.arrays:
            array = _of_file(operand, problem, stated)
        elif timing_only:
            shapes = list(operand.forms(problem).values())
            as_taken[operand.name] = Spec(shapes[-1], kind)
            continue
        else:
            # A stream per operand: giving one as a file leaves the numbers of the others alone.
            array = _random(operand, problem, kind, np.random.default_rng([seed, number]))
        as_taken[operand.name] = operand.native(problem, array)
        plain[operand.name] = operand.plain(problem, array)
    return as_taken, plain


def _of_file(operand: Input[Any], problem: Any, stated: Stated) -> Array:
    """The array of a file; ``ArgumentError`` unless it has a shape that the call takes."""
    array = stated.arrays[operand.name]
    forms = operand.forms(problem)
    if array.shape not in forms.values():
        wanted = " or ".join(f"{shape} ({axes})" for axes, shape in forms.items())
        raise ArgumentError(f"{stated.file(operand.name)}; this call takes {wanted}")
    return array


def _random(operand: Input[Any], problem: Any, kind: DType, stream: np.random.Generator) -> Array:
    """Numbers of a normal distribution, in the layout of frameworks; integers of 8 bits."""
    shape = next(iter(operand.forms(problem).values()))
    if kind not in DTYPES:
        raise ArgumentError(f"no array holds {kind}: it is timed only; add --timing-only")
    array: Array = stream.standard_normal(shape, dtype=np.float32)
    if kind.kind == "int":
        array = (array * 32).clip(-127, 127)
    return array.astype(kind.numpy)


def _require_memory(card: Card[Any], problem: Any, stated: Stated, common: DType) -> None:
    """Raise ``CapacityError`` where this computer could not hold the operands that are random.

    A normal distribution gives fp32; there is one array of the type, one in the operator's layout.
    """
    bytes_needed = sum(
        prod(next(iter(operand.forms(problem).values()))) * (4 + 2 * operand.dtype(common).bytes)
        for operand in card.inputs
        if operand.wanted(problem) and operand.name not in stated.arrays
    )
    require_room(
        f"{card.name}: random operands take", bytes_needed, "choose --timing-only, or smaller sizes"
    )


def _read(name: str, path: Path, dtypes: tuple[DType, ...]) -> Array:
    """The array in a ``.npy`` file, of one of ``dtypes``; fp32 is rounded to bf16 if due."""
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ArgumentError(
            f"--input {name}={path}: cannot be read: {why}; give a file that numpy.save wrote"
        ) from error
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"--input {name}={path}: holds several arrays; give a .npy file with one"
        )
    array = native(array)
    if array.dtype == np.dtype("V2"):  # numpy.load's name for what numpy.save knew as bfloat16
        array = array.view(BF16.numpy)
    if dtypes == (BF16,) and array.dtype == np.float32:
        array = array.astype(BF16.numpy)
    if array.dtype not in [kind.numpy for kind in dtypes]:
        raise ArgumentError(
            f"--input {name}={path} is {array.dtype.name}; this call takes "
            f"{' or '.join(kind.numpy.name for kind in dtypes)}"
        )
    return cast(Array, array)
