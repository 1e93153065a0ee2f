"""Networks in ONNX files, read into the graph that everything else takes."""

from __future__ import annotations

from npusim.workloads.from_onnx.reader import workload

__all__ = ["workload"]
