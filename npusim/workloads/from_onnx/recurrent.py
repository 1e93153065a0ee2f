"""Recurrent layers in an ONNX file."""

from __future__ import annotations

from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.values import Values
from npusim.workloads.graph import MULTIPLIES


def recurrent(values: Values, step: Step) -> None:
    """Note an ``LSTM``, ``GRU`` or ``RNN``."""
    values.unknown(step, f"{MULTIPLIES}{step.kind}")
