"""Expressions of training steps, with what they compute in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.machine.isa.operands import Tensor

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


class Row(NamedTuple):
    """An expression: names of what it reads and writes, and float64's opinion by name.

    ``m`` is a mask; vectors are repeated over positions before ``wanted`` sees them.
    """

    steps: tuple[Step, ...]
    reads: str
    writes: str = ""
    vectors: str = ""
    summed: str = ""
    wanted: Callable[[Arrays], dict[str, Array]] = lambda _: {}
    compute: DType = FP32


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


#: exp(-x) + 1, of which sigmoid is the reciprocal.
DENOMINATOR = (Step("e", "muls", "x", -1.0), Step("e", "exp", "e"), Step("e", "adds", "e", 1.0))

UPDATE = (Step("u", "mul", "x", "scale"), Step("v", "add", "u", "shift"))
HALF = (Step("m", "gt", "v", 0.0, dtype=FP16), Step("y", "relu", "v", dtype=FP16))

MAPS: dict[str, Row] = {
    "sums": Row(
        (Step("xx", "mul", "x", "x"),),
        "x",
        summed="x xx",
        wanted=lambda a: {"x": a["x"], "xx": a["x"] ** 2},
    ),
    "update": Row(
        (*UPDATE[:1], Step("y", "add", "u", "shift")),
        "x",
        "y",
        "scale shift",
        wanted=lambda a: {"y": a["x"] * a["scale"] + a["shift"]},
    ),
    "update_relu": Row(
        (*UPDATE, *HALF),
        "x",
        "y m",
        "scale shift",
        wanted=lambda a: {"y": relu(v := a["x"] * a["scale"] + a["shift"]), "m": v},
    ),
    "update_add_relu": Row(
        (*UPDATE, Step("v", "add", "v", "z"), *HALF),
        "x z",
        "y m",
        "scale shift",
        wanted=lambda a: {"y": relu(v := a["x"] * a["scale"] + a["shift"] + a["z"]), "m": v},
    ),
    "gradient_sums": Row(
        (Step("c", "sub", "x", "mean"), Step("h", "mul", "c", "rstd"), Step("p", "mul", "dy", "h")),
        "dy x",
        vectors="mean rstd",
        summed="dy p",
        wanted=lambda a: {"dy": a["dy"], "p": a["dy"] * (a["x"] - a["mean"]) * a["rstd"]},
    ),
    # Folded over channels: what rests on vectors alone is computed once for each.
    "gradient_update": Row(
        (
            *(Step("br", "mul", "b", "rstd"), Step("t", "mul", "scale", "br")),
            *(Step("t", "muls", "t", -1.0), Step("sa", "mul", "scale", "a")),
            *(Step("tm", "mul", "t", "mean"), Step("w", "add", "sa", "tm")),
            *(Step("d", "mul", "dy", "scale"), Step("e", "mul", "x", "t")),
            *(Step("d", "add", "d", "e"), Step("dx", "sub", "d", "w")),
        ),
        "dy x",
        "dx",
        "scale a b mean rstd",
        wanted=lambda a: {
            "dx": a["scale"] * (a["dy"] - a["a"] - (a["x"] - a["mean"]) * a["rstd"] * a["b"])
        },
    ),
    "relu": Row(
        (Step("m", "gt", "x", 0.0), Step("y", "relu", "x")),
        "x",
        "y m",
        wanted=lambda a: {"y": relu(a["x"]), "m": a["x"]},
        compute=FP16,
    ),
    "relu_gradient": Row(
        (Step("dx", "select", "dy", 0.0, "m"),),
        "dy m",
        "dx",
        wanted=lambda a: {"dx": np.where(a["m"] > 0, a["dy"], 0)},
        compute=FP16,
    ),
    "relu6": Row(
        (Step("y", "maxs", "x", 0.0), Step("y", "mins", "y", 6.0)),
        "x",
        "y",
        wanted=lambda a: {"y": np.clip(a["x"], 0, 6)},
        compute=FP16,
    ),
    "leaky_relu": Row(
        (Step("l", "muls", "x", 0.01), Step("y", "max", "x", "l")),
        "x",
        "y",
        wanted=lambda a: {"y": np.maximum(a["x"], 0.01 * a["x"])},
    ),
    "add3": Row(
        (Step("y", "add", "x", "z"), Step("y", "add", "y", "q")),
        "x z q",
        "y",
        wanted=lambda a: {"y": a["x"] + a["z"] + a["q"]},
    ),
    "mul": Row(
        (Step("y", "mul", "x", "z"),), "x z", "y", wanted=lambda a: {"y": a["x"] * a["z"]}
    ),
    "sigmoid": Row(
        (*DENOMINATOR, Step("y", "rec", "e")), "x", "y", wanted=lambda a: {"y": sigmoid(a["x"])}
    ),
    "silu": Row(
        (*DENOMINATOR, Step("y", "div", "x", "e")),
        "x",
        "y",
        wanted=lambda a: {"y": a["x"] * sigmoid(a["x"])},
    ),
    "hard_swish": Row(
        (
            *(Step("g", "adds", "x", 3.0), Step("g", "maxs", "g", 0.0)),
            *(Step("g", "mins", "g", 6.0), Step("g", "muls", "g", 1 / 6)),
            Step("y", "mul", "x", "g"),
        ),
        "x",
        "y",
        wanted=lambda a: {"y": a["x"] * np.clip(a["x"] + 3, 0, 6) / 6},
    ),
    # x * sigmoid(2 c (x + 0.044715 x^3)) is GELU in its form with tanh.
    "gelu": Row(
        (
            *(Step("s", "mul", "x", "x"), Step("s", "muls", "s", 0.044715)),
            *(Step("s", "adds", "s", 1.0), Step("s", "mul", "s", "x")),
            *(Step("s", "muls", "s", -2 * (2 / np.pi) ** 0.5), Step("s", "exp", "s")),
            *(Step("s", "adds", "s", 1.0), Step("y", "div", "x", "s")),
        ),
        "x",
        "y",
        wanted=lambda a: {
            "y": a["x"] / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (a["x"] + 0.044715 * a["x"] ** 3)))
        },
    ),
}  # fmt: skip

FLAT: dict[str, Row] = {
    "momentum": Row(
        (
            *(Step("mv", "muls", "v", 0.9), Step("v", "add", "mv", "g")),
            *(Step("d", "muls", "w", 1e-2), Step("v", "add", "v", "d")),
            *(Step("s", "muls", "v", -0.1), Step("w", "add", "w", "s")),
        ),
        "v g w",
        "v w",
        wanted=lambda a: {
            "v": (v := 0.9 * a["v"] + a["g"] + 1e-2 * a["w"]), "w": a["w"] - 0.1 * v
        },
    ),
    "adam": Row(
        (
            *(Step("p", "muls", "m1", 0.9), Step("q", "muls", "g", 0.1)),
            *(Step("m1", "add", "p", "q"), Step("gg", "mul", "g", "g")),
            *(Step("gg", "muls", "gg", 1e-2), Step("r", "muls", "v", 0.99)),
            *(Step("v", "add", "r", "gg"), Step("s", "sqrt", "v"), Step("s", "adds", "s", 1e-3)),
            *(Step("s", "div", "m1", "s"), Step("s", "muls", "s", -0.1)),
            Step("w", "add", "w", "s"),
        ),
        "m1 v g w",
        "m1 v w",
        wanted=lambda a: {
            "m1": (m := 0.9 * a["m1"] + 0.1 * a["g"]),
            "v": (v := 0.99 * a["v"] + 0.01 * a["g"] ** 2),
            "w": a["w"] - 0.1 * m / (np.sqrt(v) + 1e-3),
        },
    ),
    "scale": Row(
        (Step("y", "muls", "g", 0.125),), "g", "y", wanted=lambda a: {"y": a["g"] / 8}
    ),
}  # fmt: skip


def kernel_of(row: Row, shape: tuple[int, ...], dtype: DType, **fields: Any) -> Elementwise:
    """The kernel of a row over maps of a shape."""
    writes, reads = row.writes.split(), row.reads.split()

    def tensor(name: str) -> Tensor:
        both = name in writes and name in reads
        role = "inout" if both else "out" if name in writes else "in"
        if name == "m":
            return Tensor(name, (-(-prod(shape) // 8),), INT8, role)
        return Tensor(name, shape, dtype, role)

    def vector(name: str, role: str) -> Tensor:
        return Tensor(name, (shape[1] * shape[3],), FP32, role)

    return Elementwise(
        "a row",
        row.steps,
        tuple(map(tensor, reads)),
        tuple(map(tensor, writes)),
        tuple(vector(name, "in") for name in row.vectors.split()),
        tuple(vector(f"sum of {name}", "inout") for name in row.summed.split()),
        tuple(row.summed.split()),
        row.compute,
        **fields,
    )


def operands(kernel: Elementwise, seed: int = 0) -> dict[str, Array]:
    """Random operands by name; sums begin at 0, second moments are positive."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for one in kernel.tensors:
        if one.role == "out":
            continue
        values = rng.standard_normal(one.shape)
        if one in kernel.sums:
            values *= 0
        if one.name == "m":
            made[one.name] = rng.integers(-128, 128, one.shape).astype(np.int8)
        else:
            made[one.name] = (np.abs(values) if one.name == "v" else values).astype(one.dtype.numpy)
    return made


def wanted(row: Row, kernel: Elementwise, given: Arrays) -> dict[str, Array]:
    """What float64 makes of the operands: maps, bits of masks, sums over images and positions."""
    wide: dict[str, Array] = {}
    for name, values in given.items():
        if name == "m":
            wide[name] = bits(values, kernel)
        else:
            wide[name] = values.astype(np.float64)
    for one in kernel.vectors:
        wide[one.name] = wide[one.name].reshape(1, kernel.sizes[1], 1, -1)
    found = row.wanted(wide)
    for name in row.summed.split():
        found[f"sum of {name}"] = found.pop(name).sum((0, 2)).reshape(-1)
    return found


def bits(mask: Array, kernel: Elementwise) -> Array:
    """A mask as zeros and ones in the shape of the maps."""
    flat = np.unpackbits(mask.view(np.uint8), bitorder="little")[: kernel.count]
    shape: Array = flat.reshape(next(one.shape for one in kernel.maps if one.name != "m"))
    return shape
