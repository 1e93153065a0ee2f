"""Calls as data: rows of the files of ``tests/data/calls``, each of which runs on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import npusim
from npusim.base.dtypes import dtype

FOLDER = Path(__file__).parent / "data" / "calls"

#: Names that stand for several devices.
GROUPS = {
    "cubes_16": ("ascend310", "ascend310p", "ascend910"),
    "cubes_32": ("ascend910b2", "ascend950pr"),
    "bins": ("ascend910b1", "ascend910b3", "ascend910b4", "ascend910c"),
    "dsps": ("ft78ne", "mt7004"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A call of an operator, or of another function of npusim that takes a device.

    ``operands`` are shapes by parameter; ``tensor_bias`` is a part of ``para_dict``. ``dtypes`` is
    the type of all, or of each. Operands are small integers, so that every sum is exact and the
    bits do not depend on the machine that runs the test; where the cube rounds fp32 operands first
    (``rounded``), they carry a fraction that the rounding removes. With ``timing`` there are none.
    """

    operator: str
    operands: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dtypes: str | Sequence[str] = "fp16"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    devices: Sequence[str] = ()
    timing: bool = False
    rounded: bool = False

    def __call__(self, device: Any, **options: Any) -> Any:
        """Run it."""
        kinds = [self.dtypes] * len(self.operands) if isinstance(self.dtypes, str) else self.dtypes
        arguments = dict(self.arguments)
        for place, (name, kind) in enumerate(zip(self.operands, kinds, strict=True)):
            shape = tuple(self.operands[name])
            operand: Any = npusim.spec(shape, kind)
            if not self.timing:
                operand = integers(shape, kind, place, rounded=self.rounded)
            if name == "tensor_bias":
                arguments["para_dict"] = arguments["para_dict"] | {name: operand}
            else:
                arguments[name] = operand
        function = getattr(npusim.ops if self.operands else npusim, self.operator)
        return function(**arguments, device=device, **options)

    def runs_on(self) -> tuple[str, ...]:
        """Names of its devices."""
        return tuple(device for name in self.devices for device in GROUPS.get(name, (name,)))


def integers(
    shape: tuple[int, ...], name: str, seed: int, *, rounded: bool = False
) -> np.ndarray[Any, Any]:
    """Integers from -3 to 3; with ``rounded`` plus a fraction that HF32 and fp16 drop."""
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-3, 4, shape).astype(np.float32)
    if rounded and name == "fp32":
        values *= 1 + rng.integers(0, 2, shape).astype(np.float32) * np.float32(2.0**-14)
    return values.astype(dtype(name).numpy)


def data(file: str) -> Any:
    """Contents of a file of calls."""
    return yaml.safe_load((FOLDER / f"{file}.yaml").read_text(encoding="utf-8"))
