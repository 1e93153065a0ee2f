"""Arguments of operators brought to one form, before the limits judge them.

``cubeMathType`` among them says which arithmetic the cube uses for which operand type on which
product. ``options.yaml`` beside this file lists the options that state an operator's problem, by
operator, with their help, and an example of each; here stands what reads their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from inspect import Signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import Node, load_tree
from npusim.call.spec import Array, Spec, native
from npusim.machine.device.spec import Device
from npusim.problem.convolution import Sides, Sizes

if TYPE_CHECKING:
    from npusim.workloads import ConvLayer

T = TypeVar("T")


def declared(
    name: str,
    module: str,
    doc: str | None,
    takes: Signature,
    run: Callable[[dict[str, Any]], T],
    usage: str = "",
) -> Callable[..., T]:
    """The function of a row: ``run``, given arguments by their names, defaults included.

    Others than it takes are a ``TypeError``, as in Python; with ``usage``, an ``ArgumentError``
    that ends with it.
    """

    def call(*arguments: Any, **named: Any) -> T:
        try:
            bound = takes.bind(*arguments, **named)
        except TypeError as error:
            if usage:
                raise ArgumentError(f"{name}: {error}; {usage}") from None
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        return run(bound.arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = module, doc
    call.__signature__ = takes  # type: ignore[attr-defined]
    return call


def operand(value: Any) -> Array | Spec:
    """An operand as it is computed with: a ``Spec``, or anything NumPy makes an array of.

    Arrays may have either byte order.
    """
    return value if isinstance(value, Spec) else native(np.asarray(value))


def frozen(value: Any) -> Any:
    """A list or array as a tuple, a dictionary as a copy, NumPy's numbers as Python's.

    Other values are as they are.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.ndarray, np.integer, np.bool_)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(frozen, value))
    return value


def flag(name: str, value: Any) -> bool:
    """A yes or no, also as 1 or 0; ``ArgumentError`` for anything else."""
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, (int, np.integer)) and value in (0, 1)
    ):
        return bool(value)
    raise ArgumentError(f"{name}: {value!r} is neither True nor False")


def scalar(name: str, value: Any) -> Any:
    """One value, also as an array or list of one; ``ArgumentError`` for None and several."""
    values = frozen(value)
    if isinstance(values, tuple) and len(values) == 1:
        (values,) = values
    if values is None or isinstance(values, tuple):
        raise ArgumentError(f"{name} is {values}; it takes an integer")
    return values


def per_dim(value: Any, dims: int) -> Any:
    """One entry per spatial dimension, where a single one counts for all; else as it is."""
    values = frozen(value)
    if isinstance(values, int):
        values = (values,)
    return values * dims if isinstance(values, tuple) and len(values) == 1 else values


# -- cubeMathType ----------------------------------------------------------------------------------


#: Names of the documented values, in their order 0 to 3.
CUBE_MATH_TYPES = ("keep_dtype", "allow_fp32_down_precision", "use_fp16", "use_hf32")


class CubeMath(NamedTuple):
    """The type operands are converted to, and whether the cube rounds them to HF32."""

    dtype: DType
    hf32: bool

    @property
    def name(self) -> str:
        """The cube's rate."""
        return "hf32" if self.hf32 else self.dtype.name

    @property
    def rate(self) -> str:
        """The cube's rate, "" where it is that of the type."""
        return "hf32" * self.hf32

    def told(self, promoted: DType) -> str:
        """What a report says of operands that are not computed as they are."""
        name = "HF32" if self.hf32 else self.dtype.name
        return "" if name == promoted.name else f", computed in {name}"


def cube_math_number(value: int | str | None) -> int:
    """The documented number of a cubeMathType given as number or name."""
    if isinstance(value, str) and value.lower() in CUBE_MATH_TYPES:
        return CUBE_MATH_TYPES.index(value.lower())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 3:
        return value
    names = ", ".join(f"{i} ({name})" for i, name in enumerate(CUBE_MATH_TYPES))
    raise ArgumentError(f"cube_math_type is {value!r}; it is one of {names}")


def stated_cube_math(value: Any) -> Any:
    """What the limits judge: the number of a name, other numbers as they are."""
    return cube_math_number(value) if isinstance(value, (str, type(None))) else value


def read_cube_math_type(text: str) -> int:
    """The documented number of a cubeMathType given as text."""
    return cube_math_number(int(text) if text.isascii() and text.isdigit() else text)


def cube_math(promoted: DType, number: int | str, device: Device) -> CubeMath:
    """What the cube of ``device`` computes for ``promoted`` operands under a cubeMathType.

    fp16 stays fp16 everywhere. Cubes with fp32 keep fp32 (0), round it to HF32 (1 and 3) or use
    fp16 (2), and keep bf16 except under 2. Cubes without turn fp32 to fp16 under 1 and 2.
    Raises ``ArgumentError`` where the product has no such arithmetic.
    """
    number = cube_math_number(frozen(number))  # no limits have judged it where there are none
    rates = device.cube.rates if device.cube is not None else {}
    hf32 = promoted is FP32 and (number == 3 or (number == 1 and "hf32" in rates))
    down = promoted is FP32 and number == 1 and not hf32 and "fp32" not in rates
    half = down or (number == 2 and promoted in (FP32, BF16))
    wanted = CubeMath(FP16 if half else promoted, hf32)
    math = wanted.name
    if math not in rates or (promoted is BF16 and "bf16" not in rates):
        raise ArgumentError(
            f"cube_math_type {number} ({CUBE_MATH_TYPES[number]}) needs {math} for {promoted} "
            f"operands, but {device.name} has {_have(device)}; use {_way_out(promoted, device)}"
        )
    return wanted


def _have(device: Device) -> str:
    return f"a cube for {', '.join(device.cube.rates)}" if device.cube else "no cube unit"


def _way_out(promoted: DType, device: Device) -> str:
    if device.cube is None:
        return "a device with a cube (`npusim devices` lists them)"
    if promoted is FP32:
        return "cube_math_type 1 or 2, which convert to fp16"
    return "fp16 or fp32 tensors on this product"


# -- options of command lines -------------------------------------------------------------------

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

#: Spatial dimensions of the largest problems.
MOST_DIMS = 3

#: What a mask of gradients is of, in the order of its bits.
_GRADIENTS = ("input", "weight", "bias")


class Option(Struct, frozen=True):
    """An option that an operator declares, ``name`` with underscores for hyphens.

    ``read`` makes its value of the text, or raises ``ArgumentError``; a switch has none.
    ``metavar`` stands for the text in the help, or lists the words allowed: ``{shared,private}``.
    """

    name: str
    read: Callable[[str], Any] | None
    metavar: str
    help: str


def integer(least: int) -> Callable[[str], int]:
    """A reader of one integer of at least ``least``."""

    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise ArgumentError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return read


def sizes(least: int) -> Callable[[str], Sizes]:
    """A reader of one to three integers of at least ``least``, such as ``14x14``."""

    def read(text: str) -> Sizes:
        parts = text.split("x")
        good = all(_NUMBER.fullmatch(part) and int(part) >= least for part in parts)
        if len(parts) > MOST_DIMS or not good:
            raise ArgumentError(
                "expected one number, HxW such as 3x5 or DxHxW such as 2x3x5, each at least "
                f"{least}, got {text!r}"
            )
        return tuple(map(int, parts))

    return read


def padding(text: str) -> int | Sides:
    """One number for all sides, (before, after) per dimension of ``1x2`` or of ``U,D,L,R``."""
    good = all(_NUMBER.fullmatch(part) for part in re.split("[x,]", text))
    sides = text.split("," if "," in text else "x")
    count = len(sides) if "," in text else 2 * len(sides)
    if not good or ("x" in text and "," in text) or count not in (2, 4, 6):
        raise ArgumentError(
            "expected one number for all sides, HxW such as 1x2, or all sides U,D,L,R such as "
            f"1,1,0,0, got {text!r}"
        )
    values = [int(side) for side in sides]
    if len(values) == 1:
        return values[0]
    if count > len(values):  # one per dimension
        return tuple((value, value) for value in values)
    return tuple(zip(values[::2], values[1::2], strict=True))


def word(*words: str) -> Callable[[str], str]:
    """A reader of one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ArgumentError(f"unknown {text!r} (known: {', '.join(words)})")
        return text

    return read


def _mask(text: str) -> tuple[bool, ...]:
    """Which gradients are wanted, of names or of three bits."""
    words, names = text.split(","), _GRADIENTS
    if len(text) == len(names) and set(text) <= {"0", "1"}:
        words = [name for name, bit in zip(names, text, strict=True) if bit == "1"]
    if not words or len(set(words)) != len(words) or not set(words) <= set(names):
        raise ArgumentError(
            f"expected at least one of {','.join(names)}, or bits such as 110, got {text!r}"
        )
    return tuple(name in words for name in names)


def read_layer(place: str) -> ConvLayer:
    """A layer by its full name, which errors then tell."""
    from npusim.workloads import find_layer  # noqa: PLC0415 - most calls state their sizes

    return replace(find_layer(place), name=place)


#: What reads the text of a value, by the name that ``options.yaml`` has for it.
READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": integer(0),
    "count": integer(1),
    "sizes": sizes(1),
    "sizes or none": sizes(0),
    "padding": padding,
    "layer": read_layer,
    "mask": _mask,
    "storage": word("shared", "gsm", "private"),
    "cube math type": read_cube_math_type,
}


@cache
def _tables() -> Mapping[str, Node]:
    return load_tree(files("npusim.ops") / "options.yaml", "options.yaml").mapping()


def shared_option(name: str, own: Node | None = None) -> Option:
    """An option as most operators have it, but for what its ``own`` entry says."""
    nodes = (_tables()["shared"].mapping().get(name), own)
    stated = {k: v.text() for node in nodes if node is not None for k, v in node.mapping().items()}
    read = READERS[stated["takes"]] if "takes" in stated else None
    told = stated["help"].format(cube_math_types=", ".join(CUBE_MATH_TYPES))
    return Option(name, read, stated.get("metavar", ""), told)


def options_of(operator: str) -> tuple[Option, ...]:
    """The options that state a problem of ``operator``, in the order of its help."""
    entry = _tables()["operators"].mapping()[operator].mapping()
    own = entry["own"].mapping() if "own" in entry else {}
    return tuple(shared_option(name, own.get(name)) for name in entry["options"].text().split())


def example_of(operator: str) -> str:
    """A line of ``npusim run`` that shows ``operator``."""
    return _tables()["operators"].mapping()[operator].mapping()["example"].text()
