"""The nodes of an ONNX file: what each reads, computes and states, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npusim.base.errors import ArgumentError, shown

Sizes = tuple[int, ...]

#: Characters of the longest name of a node in a report.
_LONGEST = 60

#: The domain of ONNX's own operators, by both of its names.
STANDARD = ("", "ai.onnx")

#: Which operands of an operator are settings: sizes, axes, limits, scales of whole numbers.
_SETTINGS = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split", "TopK"), (1,)),
    **dict.fromkeys(("CumSum", "CenterCropPad", "Trilu"), (1,)),
    **dict.fromkeys(("Clip", "OneHot", "Dropout", "QuantizeLinear", "DequantizeLinear"), (1, 2)),
    **dict.fromkeys(("Slice",), (1, 2, 3, 4)),
    **dict.fromkeys(("Pad", "Resize", "Upsample"), (1, 2, 3)),
    **dict.fromkeys(("ConstantOfShape", "Shape", "Size", "If", "Loop"), (0,)),
    "Range": (0, 1, 2),
    "ConvInteger": (2, 3),
    "MatMulInteger": (2, 3),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
    "DynamicQuantizeMatMul": (2, 3),
    "BatchNormalization": (3, 4),
}


class Step(NamedTuple):
    """A node of a file: ``kind`` is its operator, "" in ``inputs`` an operand left out.

    ``attributes`` are what it states, text as ``str`` and numbers as they were written.
    """

    name: str
    kind: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: Any

    def operand(self, index: int) -> str:
        """The name of an operand, "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def settings(self) -> tuple[str, ...]:
        """The operands that say how to compute, and are no values of the network."""
        places = _SETTINGS.get(self.kind, ())
        if self.kind.startswith("Reduce"):
            places = (1,)
        return tuple(self.operand(place) for place in places if self.operand(place))

    @property
    def values(self) -> tuple[str, ...]:
        """The operands that are values of the network."""
        settings = self.settings
        return tuple(name for name in self.inputs if name and name not in settings)

    def integers(self, name: str, usual: Sequence[int] = ()) -> Sizes:
        """An attribute that is a list of whole numbers."""
        return tuple(int(number) for number in self.attributes.get(name) or usual)


def step_of(onnx: Any, proto: Any) -> Step:
    """A node as it stands in a file."""
    attributes = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, float):
            value = float(str(np.float32(value)))  # the file keeps 0.1 as the nearest fp32 number
        attributes[attribute.name] = value
    return Step(
        name=_short(proto.name or (proto.output[0] if proto.output else proto.op_type), proto),
        kind=proto.op_type,
        domain=proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
        proto=proto,
    )


def _short(name: str, proto: Any) -> str:
    """The name of a node in reports: of names joined into one the first, of a path its end."""
    path = name.split(";", maxsplit=1)[0].strip("/").split("/")
    while len(path) > 1 and len(".".join(path)) > _LONGEST:
        path = path[1:]
    text = ".".join(path)
    return shown(text) if len(text) <= _LONGEST else proto.op_type.lower()


def fault(file: Path, step: Step, text: str) -> ArgumentError:
    """The error that says what is wrong with a node of a file."""
    called = shown(step.proto.name or (step.outputs[0] if step.outputs else ""))
    return ArgumentError(f"{file}: node {called} ({step.kind}): {text}")
