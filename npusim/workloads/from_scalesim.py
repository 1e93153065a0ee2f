"""SCALE-Sim's topologies: networks as CSV, one layer a row, each row with a comma at its end.

Convolutions have the columns ``Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width,
Channels, Num Filter, Strides`` (or ``Stride height, Stride width``), products of matrices ``Layer,
M, N, K``: (M, K) by (K, N). Source: the topologies and the README that SCALE-Sim ships.

SCALE-Sim knows no padding: it computes a valid convolution of the map that a row states, which may
be the map of the network or that map with its zeros around it. ``PADDINGS`` are the ways to take a
row, and the workload's notes say which was taken.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from npusim.base.content import bare
from npusim.base.errors import ArgumentError, shown, told_as
from npusim.base.integers import digits
from npusim.base.yamltree import nearest, suggest, unreadable
from npusim.workloads.graph import Workload
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer

#: How the padding of convolutions is taken, and what a note says of it.
PADDINGS: Mapping[str, str] = {
    "none": (
        "maps have the sizes that the file states and no padding, as SCALE-Sim computes them; "
        "zeros that they may contain count as data"
    ),
    "included": (
        "the sizes of maps that the file states contain K - 1 zeros for a filter of K taps, which "
        "are taken out and become padding: outputs have the sizes of SCALE-Sim"
    ),
    "same": (
        "K - 1 zeros for a filter of K taps are put around the maps that the file states: outputs "
        "are larger than those of SCALE-Sim"
    ),
}

#: Columns by their bare names, and what they hold.
_CONVOLUTION = {
    "layername": "name",
    "layer": "name",
    "ifmapheight": "height",
    "ifmapwidth": "width",
    "filterheight": "kernel_height",
    "filterwidth": "kernel_width",
    "channels": "cin",
    "numfilter": "cout",
    "numfilters": "cout",
    "strides": "stride",
    "stride": "stride",
    "strideheight": "stride_height",
    "stridewidth": "stride_width",
}
_PRODUCT = {"layername": "name", "layer": "name", "m": "m", "n": "n", "k": "k"}

_SIZES = ("height", "width", "kernel_height", "kernel_width", "cin", "cout")


def workload(path: str | Path, padding: str | None = None) -> Workload:
    """The layers of a topology, one image, in the order of the file.

    ``padding`` is one of ``PADDINGS``, None for "none". Layers of one name are numbered. Nothing is
    known of what reads what, so the workload has no graph. Raises ``ArgumentError`` with file and
    line for a file that is no topology, a cell that is no size, and a filter beyond its map.
    """
    file = Path(path)
    way = "none" if padding is None else padding
    if way not in PADDINGS:
        names = ", ".join(PADDINGS)
        raise ArgumentError(f"padding is {padding!r}{suggest(way, PADDINGS)}; it is one of {names}")
    rows = _rows(file)
    line, head = next(rows, (1, []))
    columns = _columns(f"{file}:{line}", head)
    layers: list[Layer] = []
    for line, cells in rows:
        where = f"{file}:{line}"
        row = _row(where, columns, cells)
        name = _unlike(row["name"], [layer.name for layer in layers])
        trained = bool(layers)  # before the first layer nothing is trained
        if "m" in columns:
            layers.append(_product(where, row, name, trained=trained))
        else:
            layers.append(_convolution(where, row, name, way, trained=trained))
    if not layers:
        raise ArgumentError(f"{file}: the topology has no layer; add a row for each")
    products = "m" in columns
    if products and padding not in (None, "none"):
        raise ArgumentError(
            f"{file} lists products of matrices, which have no padding; leave it out"
        )
    padding_text = "" if products else f", padding {way}"
    return Workload(
        name=shown(file.stem),
        description=f"{shown(file.name)} (SCALE-Sim topology{padding_text}), one image",
        layers=tuple(layers),
        notes=() if products else tuple(_notes(shown(file.name), padding, way)),
    )


def _notes(file: str, padding: str | None, way: str) -> Iterator[str]:
    """Notes of the padding that was assumed, and of how to ask for another."""
    stated = f"padding {way}" if padding is not None else f"padding {way}, as nothing was asked for"
    others = " or ".join(name for name in PADDINGS if name != way)
    asked = f"--padding {others}, padding= of npusim.workloads.read_network"
    yield f"{file}: {stated}: {PADDINGS[way]} (another way: {asked})"


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each line that is not blank, without empty cells at its end."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{file}: {unreadable(error)}") from error
    reader = csv.reader(io.StringIO(text))
    with told_as(ArgumentError, f"{file}: no CSV: ", csv.Error):
        for line in reader:
            cells = [cell.strip() for cell in line]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield reader.line_num, cells


def _columns(where: str, head: Sequence[str]) -> list[str]:
    """The meaning of each column; ``ArgumentError`` for a header of neither form."""
    names = [bare(column) for column in head]
    meanings = _PRODUCT if {"m", "n", "k"} <= {*names} else _CONVOLUTION
    columns = []
    for column, name in zip(head, names, strict=True):
        if name not in meanings:
            near = nearest(name, meanings)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ArgumentError(f"{where}: unknown column {column!r}{hint}; {_FORMS}")
        if meanings[name] in columns:
            raise ArgumentError(f"{where}: column {column!r} is there twice; keep one of them")
        columns.append(meanings[name])
    needed = ["name", "m", "n", "k"] if meanings is _PRODUCT else ["name", *_SIZES]
    if meanings is _CONVOLUTION and "stride" not in columns:
        needed += ["stride_height", "stride_width"]
    for what in needed:
        if what not in columns:
            raise ArgumentError(f"{where}: no column for the {what.replace('_', ' ')}; {_FORMS}")
    return columns


_FORMS = (
    "a topology has the columns 'Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter "
    "Width, Channels, Num Filter, Strides,' or 'Layer, M, N, K,'"
)


def _row(where: str, columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    if len(cells) != len(columns):
        raise ArgumentError(
            f"{where}: {len(cells)} cells under {len(columns)} columns; each row has all of them"
        )
    return dict(zip(columns, cells, strict=True))


def _size(where: str, row: Mapping[str, str], what: str) -> int:
    """An integer of at least 1."""
    value = digits(row[what])
    if not value:
        raise ArgumentError(
            f"{where}: {what.replace('_', ' ')}: expected an integer of at least 1, got "
            f"{row[what]!r}"
        )
    return value


def _unlike(name: str, others: Sequence[str]) -> str:
    """A name that no other layer has, and that may stand behind ``WORKLOAD/``."""
    plain = shown(name.replace("/", "_"))
    number = 1
    unused = plain
    while unused in others:
        number += 1
        unused = f"{plain}_{number}"
    return unused


def _product(where: str, row: Mapping[str, str], name: str, *, trained: bool) -> LinearLayer:
    m = _size(where, row, "m")
    n = _size(where, row, "n")
    k = _size(where, row, "k")
    return LinearLayer(name=name, rows=m, cin=k, cout=n, input_gradient=trained)


def _convolution(
    where: str, row: Mapping[str, str], name: str, padding: str, *, trained: bool
) -> ConvLayer:
    sizes = {what: _size(where, row, what) for what in _SIZES}
    strides = ("stride", "stride") if "stride" in row else ("stride_height", "stride_width")
    kernel = (sizes["kernel_height"], sizes["kernel_width"])
    spatial = []
    pads = []
    for axis, taps in zip(("height", "width"), kernel, strict=True):
        zeros = 0 if padding == "none" else taps - 1
        size = sizes[axis] - zeros if padding == "included" else sizes[axis]
        if size < 1 or size + zeros < taps:
            raise ArgumentError(
                f"{where}: the filter has {taps} taps along the {axis}, the map {sizes[axis]}"
                f"{f' with {zeros} zeros in it' if padding == 'included' else ''}; the filter must "
                "fit into the map (with --padding same the map is stated without zeros)"
            )
        spatial.append(size)
        pads.append((zeros // 2, zeros - zeros // 2))
    return ConvLayer(
        name=name,
        cin=sizes["cin"],
        cout=sizes["cout"],
        spatial=tuple(spatial),
        kernel=kernel,
        stride=tuple(_size(where, row, what) for what in strides),
        padding=tuple(pads),
        input_gradient=trained,
    )
