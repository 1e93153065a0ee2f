"""Classes of work: what measured times are compared in, and how far a simulated one may be off."""

from __future__ import annotations

#: A matrix product or another kernel of the cube whose tiling is stated.
KERNEL = "kernel"

#: Operators of a library, whose tiling follows a rule: matrix products; forward convolutions and
#: input gradients; these and filter gradients with one channel a group; filter gradients.
PRODUCT = "library product"
FORWARD = "forward"
DEPTH_WISE = "depth-wise"
FILTER_GRADIENT = "filter gradient"

#: Kernels between: vector work on maps; copies, transposes and conversions of layouts.
ELEMENTWISE = "element-wise"
LAYOUT = "layout"

#: Kinds of networks (``npusim.workloads.kind_of_network``), and what a step of each is called.
RESIDUAL_NETWORK = "residual"
PLAIN_NETWORK = "plain"
POOLED_NETWORK = "pooled or concatenated"
DEPTH_WISE_NETWORK = "depth-wise"
ATTENTION_NETWORK = "attention"
NETWORK_KINDS = (
    RESIDUAL_NETWORK,
    PLAIN_NETWORK,
    POOLED_NETWORK,
    DEPTH_WISE_NETWORK,
    ATTENTION_NETWORK,
)


def step_of(kind: str) -> str:
    """The class of the steps of a kind of network."""
    return f"step of a {kind} network"


STEPS = tuple(step_of(kind) for kind in NETWORK_KINDS)
