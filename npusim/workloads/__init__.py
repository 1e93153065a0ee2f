"""Networks as graphs of layers: from the files that ship, from one's own, from ONNX and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.files import find_layer, load_workload, workload_yaml, workloads
from npusim.workloads.layers import INPUT, ConvLayer, Layer, LinearLayer, Node, Workload

__all__ = [
    "INPUT",
    "ConvLayer",
    "ElementwiseLayer",
    "Layer",
    "LinearLayer",
    "Node",
    "Workload",
    "find_layer",
    "load_workload",
    "read_network",
    "workload_yaml",
    "workloads",
]


def read_network(source: Any, input_shape: Sequence[int] | None = None) -> Workload:
    """The layers of a workload (by name, path or itself), an ONNX file or a ``torch.nn.Module``.

    ``input_shape`` is that of one image without the batch: a module needs it, an ONNX file where
    it leaves sizes open. Raises ``ArgumentError`` where it is missing, or has no meaning.
    """
    text = str(source) if isinstance(source, (str, PathLike)) else ""
    if text.lower().endswith(".onnx"):
        from npusim.workloads import onnx  # noqa: PLC0415  # the package is heavy

        return onnx.workload(text, input_shape)
    if not text and not isinstance(source, Workload):
        from npusim.workloads import module  # noqa: PLC0415  # so is PyTorch

        if input_shape is None:
            raise ArgumentError(
                "a torch.nn.Module needs input_shape, that of one image without the batch, such "
                "as (3, 224, 224)"
            )
        return module.workload(source, input_shape)
    if input_shape is not None:
        raise ArgumentError(
            f"input_shape is {tuple(input_shape)}, but a workload states its sizes; leave it out"
        )
    return source if isinstance(source, Workload) else load_workload(source)
