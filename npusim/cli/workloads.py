"""``npusim workloads``: the named lists of layers, and the layers of one."""

from __future__ import annotations

import argparse
from typing import Any

from npusim.cli.files import print_json, print_table
from npusim.cli.net import add_padding_option, add_sizes_option, sizes_of_inputs
from npusim.cli.parser import Parser
from npusim.cli.shared import add_show_command
from npusim.results.facts.number_text import alike_text, sizes_text
from npusim.results.writers.text_layout import wrap
from npusim.workloads import (
    Layer,
    LinearLayer,
    Workload,
    load_workload,
    read_network,
    workload_yaml,
    workloads,
)


def add_arguments(parser: Parser) -> None:
    """Declare ``workloads`` and ``workloads show``."""
    about = "show the layers of a workload, which 'npusim run' takes as --layer WORKLOAD/LAYER"
    show = add_show_command(
        parser, about, "a workload's name, or a file: YAML, ONNX or a topology's CSV"
    )
    show.add_argument("--yaml", action="store_true", help="print a workload file (default: no)")
    add_padding_option(
        show, "of a SCALE-Sim topology, as `npusim net --padding` takes it (default: none)"
    )
    add_sizes_option(
        show,
        "of one image, where a file ending in .onnx leaves it open; once for each input where it "
        "has several (default: as in the file)",
    )


def execute(arguments: argparse.Namespace) -> None:
    """Print the table of workloads or the layers of one."""
    if arguments.action == "show":
        sizes = sizes_of_inputs(arguments)
        workload = read_network(arguments.name, **sizes, padding=arguments.padding)
        if arguments.yaml:
            print(workload_yaml(workload), end="")
        else:
            _show(workload, arguments.json)
    else:
        _list([load_workload(name) for name in workloads()], arguments.json)


def _list(loaded: list[Workload], as_json: bool) -> None:
    rows = [
        (w.name, len(w.layers), sum(x.count for x in w.layers), w.macs, w.description)
        for w in loaded
    ]
    if as_json:
        keys = ("name", "shapes", "layers", "macs", "description")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    head = ("workload", "shapes", "layers", "GMACs", "description")
    cells = [(name, str(a), str(b), f"{macs / 1e9:.2f}", text) for name, a, b, macs, text in rows]
    print_table(head, cells, (0, 4))


#: What JSON tells of a layer besides its output; a promise to users.
_KEYS = (
    "name",
    "cin",
    "cout",
    "spatial",
    "kernel",
    "stride",
    "padding",
    "dilation",
    "groups",
    "transposed",
    "output_padding",
    "rows",
    "products",
    "n",
    "count",
    "input_gradient",
    "weight_gradient",
    "macs",
)


def _show(workload: Workload, as_json: bool) -> None:
    if as_json:
        print_json(_object(workload))
        return
    print(f"{workload.name}: {workload.description}\n")
    for note in workload.notes:
        print("\n".join([*wrap(f"note: {note}", later="  "), ""]))
    head = ("layer", "cin", "cout", "size", "kernel", "pad", "dilation", "groups", "output", "n")
    cells = [_cells(layer) for layer in workload.layers]
    # Few networks have these: a column of ones would not leave room for the others.
    ones = [place for place in (6, 7) if {row[place] for row in cells} <= {"1", "-"}]
    print_table(_without(head, ones), [_without(row, ones) for row in cells], 1)
    if workload.elementwise:
        sizes = [
            (x.kind, sizes_text(x.shape), sizes_text(x.out), str(x.count))
            for x in workload.elementwise
        ]
        print()
        print_table(("element-wise", "input", "output", "count"), sizes, 3)


def _object(workload: Workload) -> dict[str, Any]:
    """A workload as plain values."""
    notes = {"notes": workload.notes} if workload.notes else {}
    return {
        "name": workload.name,
        "description": workload.description,
        **notes,
        "layers": [
            {
                **{key: getattr(layer, key, None) for key in _KEYS},
                "output": getattr(layer, "out", None),
            }
            for layer in workload.layers
        ],
        "elementwise": [vars(layer) for layer in workload.elementwise],
        "nodes": [
            {
                "layer": getattr(node.layer, "name", None),
                "kind": getattr(node.layer, "kind", None),
                "name": node.name,
                "inputs": node.inputs,
            }
            for node in workload.nodes
        ],
    }


def _without(row: tuple[str, ...], places: list[int]) -> tuple[str, ...]:
    return tuple(cell for place, cell in enumerate(row) if place not in places)


def _cells(layer: Layer) -> tuple[str, ...]:
    if isinstance(layer, LinearLayer):
        size = f"{layer.rows} rows"
        blank = ("-",) * 4
        return (layer.name, str(layer.cin), str(layer.cout), size, *blank, size, str(layer.count))

    # As options of 'npusim run' take it: one number where all sides are alike.
    stride = f"/{alike_text(layer.stride)}"
    if stride == "/1":
        stride = ""
    even = all(before == after for before, after in layer.padding)
    sides = [str(side) for both in layer.padding for side in both]
    pads = alike_text(tuple(before for before, _ in layer.padding)) if even else ",".join(sides)
    back = " transposed" if layer.transposed else ""
    return (
        layer.name,
        str(layer.cin),
        str(layer.cout),
        sizes_text(layer.spatial),
        f"{alike_text(layer.kernel)}{stride}{back}",
        pads,
        alike_text(layer.dilation),
        str(layer.groups),
        sizes_text(layer.out),
        str(layer.count),
    )
