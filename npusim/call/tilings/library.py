"""Tilings of the vendor's library, each worked out once.

They are kept by what they depend on (``npusim.reuse.answers``): the layer, the cores, and the
figures of the device that the rule asked for.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from npusim.base.digests import content_of
from npusim.base.dtypes import DType
from npusim.kernels.filter_gradient.tiling import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.tiling import Tiling as GemmTiling
from npusim.kernels.vendor import library
from npusim.kernels.vendor.library import LibraryTiling
from npusim.machine.device.spec import Device
from npusim.problem.convolution import Convolution
from npusim.reuse.answers import Answers
from npusim.reuse.tracked_device import TrackedDevice


def _to_json(ruled: LibraryTiling) -> dict[str, Any]:
    return ruled._asdict() | {"tiling": asdict(ruled.tiling)}


def _from_json(fields: dict[str, Any]) -> LibraryTiling:
    kind = FilterTiling if "slab_k" in fields["tiling"] else GemmTiling
    return LibraryTiling(**fields | {"tiling": kind(**fields["tiling"])})


#: Tilings of this process.
_TILED: Answers[LibraryTiling] = Answers("library tiling", 1024, _to_json, _from_json)


def tiled(kernel: Any, c: Convolution, device: Device, cores: int, dtype: DType) -> LibraryTiling:
    """As ``npusim.kernels.vendor.library.tiled``; one that is known is not worked out again."""
    key = f"{kernel.__qualname__} {content_of(c)} {cores} {dtype}"
    known = _TILED.find(key, device)
    if known is not None:
        return known.answer
    watched = TrackedDevice(device)
    ruled = library.tiled(kernel, c, watched.device, cores, dtype)
    _TILED.keep(key, device, watched.names, ruled)
    return ruled
