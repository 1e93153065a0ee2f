"""The operands of ``npusim run``: from files, random, or only shapes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from npusim.base.computer import require_room
from npusim.base.dtypes import BF16, DTYPES, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.call.spec import Array, Operand, Spec
from npusim.ops.card import Card, Stated


def read_operands(
    card: Card[Any], files: Mapping[str, str], stated: DType | None
) -> dict[str, Array]:
    """The arrays in ``files`` (operand -> path), of the type ``stated`` or one the card allows."""
    known = {one.name: one for one in card.inputs}
    for name in files:
        if name not in known:
            raise ArgumentError(f"--input {name}=...: unknown operand{suggest(name, known)}")
    dtypes = tuple(one for one in card.dtypes if one in DTYPES) if stated is None else (stated,)
    return {
        name: _read(name, Path(file), tuple(map(known[name].dtype, dtypes)))
        for name, file in files.items()
    }


def make_operands(
    card: Card[Any], problem: Any, stated: Stated, *, seed: int, timing_only: bool
) -> tuple[dict[str, Operand], dict[str, Array]]:
    """Every operand as the operator takes it, and as frameworks have it.

    Those without file are random, from a normal distribution, of the type stated, else of the
    first file's, else of the card's usual one; or specs where only time is asked for.
    """
    files = [dtype(array.dtype) for array in stated.arrays.values()]
    found = stated["dtype"] or next((k for k in files if k in card.dtypes), card.dtypes[0])
    if not timing_only:
        _require_memory(card, problem, stated, found)
    native: dict[str, Operand] = {}
    plain: dict[str, Array] = {}
    for number, one in enumerate(card.inputs):
        if not one.wanted(problem):
            continue
        forms = one.forms(problem)
        own = one.dtype(found)
        if one.name in stated.arrays:
            given = stated.arrays[one.name]
            if given.shape not in forms.values():
                wanted = " or ".join(f"{shape} ({axes})" for axes, shape in forms.items())
                raise ArgumentError(f"{stated.file(one.name)}; this call takes {wanted}")
        elif timing_only:
            native[one.name] = Spec([*forms.values()][-1], own)
            continue
        else:
            # A stream per operand: giving one as a file leaves the numbers of the others alone.
            stream = np.random.default_rng([seed, number])
            shape = next(iter(forms.values()))
            if own not in DTYPES:
                raise ArgumentError(f"no array holds {own}: it is timed only; add --timing-only")
            given = stream.standard_normal(shape, dtype=np.float32)
            given = (given * 32).clip(-127, 127) if own.kind == "int" else given
            given = given.astype(own.numpy)
        native[one.name] = one.native(problem, given)
        plain[one.name] = one.plain(problem, given)
    return native, plain


def _require_memory(card: Card[Any], problem: Any, stated: Stated, found: DType) -> None:
    """Raise ``CapacityError`` where this computer could not hold the operands that are random.

    A normal distribution gives fp32; there is one array of the type, one in the operator's layout.
    """
    need = sum(
        prod(next(iter(one.forms(problem).values()))) * (4 + 2 * one.dtype(found).bytes)
        for one in card.inputs
        if one.wanted(problem) and one.name not in stated.arrays
    )
    require_room(
        f"{card.name}: random operands take", need, "choose --timing-only, or smaller sizes"
    )


def _read(name: str, path: Path, dtypes: tuple[DType, ...]) -> Array:
    """The array in a ``.npy`` file, of one of ``dtypes``; fp32 is rounded to bf16 if due."""
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
    if dtypes == (BF16,) and array.dtype == np.float32:
        array = array.astype(BF16.numpy)
    if array.dtype not in [one.numpy for one in dtypes]:
        raise ArgumentError(
            f"--input {name}={path} is {array.dtype.name}; this call takes "
            f"{' or '.join(one.numpy.name for one in dtypes)}"
        )
    return cast(Array, array)
