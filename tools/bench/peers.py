"""Other people's simulators on the same work, in the same run.

A peer is asked for what it can express: products of matrices. The filter gradient of a
convolution is one, of gradOutput (Cout x positions) and the unfolded image (positions x
Cin * Kh * Kw); what the peer leaves out of it is printed with its figures.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import npusim
from npusim.workloads import ConvLayer, load_workload
from tools.bench import programs
from tools.bench.figures import Figure, NotAvailableError, Settings, medians, timed

#: Network whose filter gradients are compared, batch 1.
NETWORK = "resnet50"

#: Seconds a peer may spend on layers; after that no new one begins.
PEER_SECONDS = 200


@dataclass(frozen=True)
class Product:
    """C[m, n] = A[m, k] @ B[k, n]."""

    m: int
    n: int
    k: int

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.m * self.n * self.k


#: A peer: simulates one product, returns the cycles it reports.
Peer = Callable[[Product], float]


def version(package: str, module: str) -> str:
    """The installed version of a peer; raises ``NotAvailableError`` where there is none."""
    if importlib.util.find_spec(module) is None:
        raise NotAvailableError(f"{package} is not installed; pip install -e '.[bench]'")
    return f"{package} {importlib.metadata.version(package)}"


def compare(settings: Settings, name: str, title: str, peer: Peer) -> Iterator[Figure]:
    """Figures of ``peer`` and of npusim on one product and on the layers of ``NETWORK``.

    The peer runs each once, npusim as often as the settings say.
    """
    yield from _one_product(settings, name, title, peer)
    yield from _layers(settings, name, title, peer)


def _one_product(settings: Settings, name: str, title: str, peer: Peer) -> Iterator[Figure]:
    size, engine = 1024 // settings.divisor, programs.engine_name(settings)
    cycles = 0.0

    def run() -> None:
        nonlocal cycles
        cycles = peer(Product(size, size, size))

    seconds = timed(run)
    yield Figure(
        f"{name}.matmul", seconds, "s", f"{title}, once: {size}^3 on one core, {cycles:,.0f} cycles"
    )
    x = npusim.spec((size, size), "fp16")
    works = [
        partial(
            npusim.ops.matmul, x, x, device=programs.DEVICE, cores=c, engine=engine, timeline=False
        )
        for c in ("0", None)
    ]
    cycles_of = [work().cycles for work in works]
    times = medians(settings.repeats, *works)
    for label, own, ours in zip(("one_core", "all_cores"), cycles_of, times, strict=True):
        note = f"over npusim ({engine}) on {programs.DEVICE}: {ours:.4f} s, {own:,} cycles"
        yield Figure(f"{name}.matmul_ratio_{label}", seconds / ours, "x", note)


def _layers(settings: Settings, name: str, title: str, peer: Peer) -> Iterator[Figure]:
    """The first layers of the network, as many as the peer's time allows."""
    layers, seconds = load_workload(NETWORK).convolutions, 0.0
    done: list[ConvLayer] = []
    for layer in layers:
        if seconds > PEER_SECONDS:
            break
        seconds += timed(partial(peer, filter_product(layer)))
        done.append(layer)
    macs, total = (sum(filter_product(layer).macs for layer in some) for some in (done, layers))
    what = (
        f"{len(done)} of the {len(layers)} distinct filter gradients of {NETWORK}, batch 1 "
        f"({macs / total:.0%} of the multiply-adds)"
    )
    yield Figure(f"{name}.layers", seconds, "s", f"{title}, once, one core: {what}, as products")

    def ours() -> None:
        for layer in done:
            filter_gradient(layer, programs.engine_name(settings))

    ours()
    (own,) = medians(settings.repeats, ours)
    note = f"over npusim, all cores, layout conversions included: {own:.3f} s"
    yield Figure(f"{name}.layers_ratio", seconds / own, "x", note)


def filter_product(layer: ConvLayer) -> Product:
    """The product that the layer's filter gradient is, batch 1."""
    return Product(layer.cout, layer.cin * math.prod(layer.kernel), math.prod(layer.out))


def filter_gradient(layer: ConvLayer, engine: str) -> None:
    """The filter gradient of ``layer`` on all cores, batch 1, timing only."""
    kernel = (layer.cout, layer.cin // layer.groups, *layer.kernel)
    npusim.ops.convolution_backward(
        npusim.spec((1, layer.cout, *layer.out), "fp16"),
        npusim.spec((1, layer.cin, *layer.spatial), "fp16"),
        npusim.spec(kernel, "fp16"),
        None,
        layer.stride,
        [before for before, _ in layer.padding],
        layer.dilation,
        output_mask=(False, True, False),
        device=programs.DEVICE,
        engine=engine,
        timeline=False,
    )
