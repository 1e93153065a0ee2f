"""Networks of PyTorch modules: the graph that ``torch.export`` has of a forward pass, read."""

from __future__ import annotations

from npusim.workloads.from_torch.entry import workload

__all__ = ["workload"]
