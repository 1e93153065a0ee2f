"""The element types the simulator knows, and one lookup for all their spellings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from msgspec import Struct

from npusim.base.errors import ArgumentError

T = TypeVar("T")

#: Bytes of one C0 block: the piece of a channel axis that the fractal layouts keep together.
C0_BYTES = 32


class DType(Struct, frozen=True, eq=False):
    """An element type: its short name, size in bytes, NumPy type and kind ("float" or "int").

    ``values`` numbers are packed in one element. There is one object of each, and types are the
    same where they are one object.
    """

    name: str
    bytes: int
    numpy: np.dtype[Any]
    kind: str
    values: int = 1

    def __str__(self) -> str:
        """Return the short name."""
        return self.name

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.kind == "float":
            return float(ml_dtypes.finfo(self.numpy).max)  # type: ignore[no-untyped-call]
        return float(np.iinfo(self.numpy).max)

    @property
    def range_text(self) -> str:
        """The range in words: ``the range of fp16, 65,504``."""
        largest = self.largest
        digits = f"{largest:,.0f}" if largest < 10**9 else f"{largest:.3g}"
        return f"the range of {self.name}, {digits}"

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """Pickle the name: a type is the same object in every process, and compared as one."""
        return dtype, (self.name,)


FP16 = DType("fp16", 2, np.dtype(np.float16), "float")
BF16 = DType("bf16", 2, np.dtype(ml_dtypes.bfloat16), "float")
FP32 = DType("fp32", 4, np.dtype(np.float32), "float")
INT8 = DType("int8", 1, np.dtype(np.int8), "int")
INT32 = DType("int32", 4, np.dtype(np.int32), "int")

#: Every known type; two types never share a name or a NumPy type.
DTYPES = (FP16, BF16, FP32, INT8, INT32)

#: Block-scaled types (OCP MX): every ``MX_BLOCK`` numbers along K share a scale of one byte. Only
#: the cube knows them and no array holds them: kernels that multiply them are timed, not executed.
MXFP8 = DType("mxfp8", 1, np.dtype(np.uint8), "float")
MXFP4 = DType("mxfp4", 1, np.dtype(np.uint8), "float", values=2)
MX_BLOCK = 32

#: Every type a device can name.
DEVICE_DTYPES = (*DTYPES, MXFP8, MXFP4)


#: The types by NumPy's, and by all their names: their own, NumPy's (``float16``, ...) and others.
_BY_NUMPY = {kind.numpy: kind for kind in DTYPES}
_BY_NAME = {
    **{numpy.name: kind for numpy, kind in _BY_NUMPY.items()},
    **{kind.name: kind for kind in DEVICE_DTYPES},
    **{"half": FP16, "float": FP32},
}


def dtype(name: Any) -> DType:
    """Return the type called ``name``: "fp16", "float16", ``np.float16``, an array's dtype, ...

    The byte order of an array is no part of its type.
    """
    if isinstance(name, DType):
        return name
    known_type = None
    if isinstance(name, str):
        known_type = _BY_NAME.get(name.strip().lower())
    elif name is not None:  # np.dtype(None) is float64, which nobody means by it
        with suppress(TypeError):
            known_type = _BY_NUMPY.get(np.dtype(name).newbyteorder("="))
    if known_type is not None:
        return known_type
    spellings = ", ".join(f"{kind.name} ({kind.numpy.name})" for kind in DTYPES)
    raise ArgumentError(f"unknown dtype {name!r}; use one of {spellings}")


def promote(kinds: Iterable[T | None], mixture: T) -> T:
    """The one type that all of ``kinds`` are (None: unknown, left out), else ``mixture``.

    Computed in together, any mixture of float types needs fp32.
    """
    types = {kind for kind in kinds if kind is not None}
    return types.pop() if len(types) == 1 else mixture


def C0(name: Any) -> int:  # noqa: N802 - the name every layout document uses
    """Return the elements in a 32-byte channel block: 16 for fp16 and bf16, 8 for fp32.

    Only a starting point: some layouts keep 16 for fp32, so layout functions are told their C0.
    """
    return C0_BYTES // dtype(name).bytes
