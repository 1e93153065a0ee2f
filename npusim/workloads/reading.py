"""Networks by name, file or module: the one door to all sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from npusim.base.content import Content, content_of, require_content
from npusim.base.errors import ArgumentError, shown
from npusim.base.records import collecting_seldom
from npusim.base.resources import configs
from npusim.base.yamltree import suggest
from npusim.workloads.from_scalesim import workload as from_topology
from npusim.workloads.from_yaml.files import workload as from_layers
from npusim.workloads.graph import Workload
from npusim.workloads.layers import ConvLayer, LinearLayer
from npusim.workloads.repetition import for_batch

_FOLDER = configs() / "workloads"
_SUFFIX = ".yaml"

#: What a file of a network may be, and the endings of their names.
_NETWORKS = (Content.WORKLOAD, Content.TOPOLOGY, Content.ONNX)
_ENDINGS = (".yaml", ".yml", ".csv", ".onnx")


def workloads() -> list[str]:
    """Return the names of the workloads that ship, sorted."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def load_workload(name_or_path: str | Path) -> Workload:
    """Read a workload that ships (by name) or a file, YAML or a SCALE-Sim topology, for one image.

    Raises ``ArgumentError`` or ``ConfigError`` for what is no such file, or wrong in it.
    """
    return _loaded(name_or_path)


def _loaded(name_or_path: str | Path, padding: str | None = None) -> Workload:
    """The same, with the padding of a topology."""
    path = _file_of(name_or_path)
    if path is None:
        names = workloads()
        if name_or_path not in names:
            raise ArgumentError(
                f"unknown workload {name_or_path!r} (a file of your own needs its path, which ends "
                f"in .yaml, .csv or .onnx){suggest(str(name_or_path), names)}"
            )
        return _shipped(str(name_or_path))
    require_content(path, _NETWORKS, "a network")
    if content_of(path) is Content.TOPOLOGY or path.suffix.lower() == ".csv":
        return from_topology(path, padding)
    return from_layers(path, shown(path.stem))


@lru_cache(maxsize=16)
def _shipped(name: str) -> Workload:
    """A workload that ships; its file is read once."""
    return from_layers(_FOLDER / (name + _SUFFIX), name)


def _file_of(source: str | PathLike[str]) -> Path | None:
    """The file that is meant; None for the name of a workload that ships.

    A file is one that exists, whatever its ending, or has the ending of a network's file.
    """
    path = Path(source)
    if isinstance(source, str) and source in workloads():
        return None
    named = not isinstance(source, str) or source.lower().endswith(_ENDINGS)
    return path if named or path.is_file() else None


@collecting_seldom()
def read_network(
    source: Any,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Any = None,
    batch: int = 1,
    padding: str | None = None,
    loss: Any = None,
    targets: Any = None,
    unrolled: bool = False,
) -> Workload:
    """The network of a workload (by name, path or itself), a file or a ``torch.nn.Module``.

    Files are YAML files of layers, ONNX files and SCALE-Sim topologies (CSV), recognised by what
    they hold. The network has the sizes that it has for ``batch`` images. ``input_shape`` is that
    of one image without the batch, ``inputs`` are the inputs where there are several or one is no
    image (``npusim.workloads.from_torch``, ``from_onnx``): a module needs one of them, an ONNX file
    where it leaves sizes open. The cells of recurrent layers are one node with a count, or
    ``unrolled`` into as many. ``loss`` and ``targets`` are those of a module's training step.
    ``padding`` says how that of a topology is taken, "none" (usual), "included" or "same"
    (``npusim.workloads.from_scalesim.PADDINGS``). Raises ``ArgumentError`` where one of them is
    missing or has no meaning, and for a file of another kind.
    """
    if batch < 1:
        raise ArgumentError(f"batch is {batch}; it must be at least 1 image")
    if input_shape is not None and inputs is not None:
        raise ArgumentError("input_shape and inputs both say what the network gets; leave one out")
    if not isinstance(source, (str, PathLike, Workload)):
        _refuse_padding(padding)
        return _of_module(
            source,
            inputs if inputs is not None else input_shape,
            batch=batch,
            loss=loss,
            targets=targets,
            unrolled=unrolled,
        )
    if loss is not None or targets is not None:
        raise ArgumentError("loss and targets are those of a torch.nn.Module; leave them out")
    path = None if isinstance(source, Workload) else _file_of(source)
    content = content_of(path) if path is not None else None
    if content is not Content.TOPOLOGY:
        _refuse_padding(padding)
    if path is not None and (content is Content.ONNX or path.suffix.lower() == ".onnx"):
        from npusim.workloads.from_onnx import (  # noqa: PLC0415  # the package is heavy
            workload as from_file,
        )

        require_content(path, (Content.ONNX,), "an ONNX file")
        return from_file(path, input_shape, inputs=inputs, batch=batch, unrolled=unrolled)
    if input_shape is not None:
        raise ArgumentError(
            f"input_shape is {tuple(input_shape)}, but a workload states its sizes; leave it out"
        )
    if inputs is not None:
        raise ArgumentError(f"inputs are {inputs}, but a workload states its sizes; leave them out")
    if isinstance(source, Workload):
        return for_batch(source, batch)
    file = source if isinstance(source, str) else Path(source)
    return for_batch(_loaded(file, padding), batch)


def _of_module(module: Any, inputs: Any, **more: Any) -> Workload:
    """The network of a module by its inputs."""
    from npusim.workloads.from_torch import (  # noqa: PLC0415  # PyTorch is heavy
        workload as from_module,
    )

    if inputs is None:
        raise ArgumentError(
            "a torch.nn.Module needs input_shape, that of one image without the batch, such as "
            "(3, 224, 224), or inputs, one for each that its forward takes"
        )
    return from_module(module, inputs, **more)


def _refuse_padding(padding: str | None) -> None:
    if padding is not None:
        raise ArgumentError(
            f"padding is {padding!r}, but only a SCALE-Sim topology leaves it open; leave it out"
        )


def find_layer(place: str) -> ConvLayer:
    """Return a convolution by ``workload/layer``, such as ``resnet50/res4_3x3``."""
    workload, slash, name = place.rpartition("/")
    if not (slash and workload and name):
        raise ArgumentError(f"expected WORKLOAD/LAYER such as resnet50/conv1, got {place!r}")
    layer = load_workload(workload).layer(name)
    if isinstance(layer, LinearLayer):
        batch = f" --batch {layer.stack}" if layer.products else ""
        raise ArgumentError(
            f"{place} is a linear layer, {layer.cin} -> {layer.cout}; `npusim run matmul --m "
            f"{layer.all_rows} --k {layer.cin} --n {layer.cout}{batch}` is its forward product"
        )
    return layer
