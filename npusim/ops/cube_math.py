"""``cubeMathType``: which arithmetic the cube uses for which operand type, on which product."""

from __future__ import annotations

from typing import Any, NamedTuple

from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.machine.device.spec import Device
from npusim.ops.arguments import frozen

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
        return "hf32" if self.hf32 else ""

    def remark(self, promoted: DType) -> str:
        """The end of a line for reports where operands are not computed in their own type."""
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
    """The number of a named type, which the limits judge; other values as they are."""
    return cube_math_number(value) if isinstance(value, (str, type(None))) else value


def read_cube_math_type(text: str) -> int:
    """The documented number of a cubeMathType given as text."""
    return cube_math_number(int(text) if text.isascii() and text.isdigit() else text)


def cube_math(promoted: DType, number: int | str, device: Device) -> CubeMath:
    """The arithmetic of the cube of ``device`` for ``promoted`` operands under a cubeMathType.

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
