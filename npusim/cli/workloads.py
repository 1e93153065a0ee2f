"""``npusim workloads``: the named lists of layers, and the layers of one."""

from __future__ import annotations

import argparse

from npusim.cli.console import print_json, print_table
from npusim.cli.parser import Parser, add_show
from npusim.workloads import ConvLayer, Workload, load_workload, workloads


def add_arguments(parser: Parser) -> None:
    """Declare ``workloads`` and ``workloads show``."""
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    about = "show the layers of a workload, which 'npusim run' takes as --layer WORKLOAD/LAYER"
    add_show(parser, about, "a workload's name")


def execute(arguments: argparse.Namespace) -> int:
    """Print the table of workloads or the layers of one."""
    if arguments.action == "show":
        _show(load_workload(arguments.name), arguments.json)
    else:
        _list([load_workload(name) for name in workloads()], arguments.json)
    return 0


def _list(loaded: list[Workload], as_json: bool) -> None:
    rows = [(w.name, len(w.layers), sum(x.count for x in w.layers), w.description) for w in loaded]
    if as_json:
        keys = ("name", "shapes", "layers", "description")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    head = ("workload", "shapes", "layers", "description")
    print_table(head, [tuple(map(str, row)) for row in rows], (0, 3))


#: What JSON tells of a layer besides its output; a promise to users.
_KEYS = (
    *("name", "cin", "cout", "spatial", "kernel", "stride", "padding", "dilation"),
    *("groups", "count"),
)


def _show(workload: Workload, as_json: bool) -> None:
    if as_json:
        layers = [
            {**{key: getattr(x, key) for key in _KEYS}, "output": x.out} for x in workload.layers
        ]
        print_json({"name": workload.name, "description": workload.description, "layers": layers})
        return
    print(f"{workload.name}: {workload.description}\n")
    head = (
        "layer",
        "cin",
        "cout",
        "size",
        "kernel",
        "stride",
        "padding",
        "dilation",
        "groups",
        "output",
        "count",
    )
    print_table(head, [_cells(layer) for layer in workload.layers], 1)


def _cells(layer: ConvLayer) -> tuple[str, ...]:
    def sizes(values: tuple[int, ...]) -> str:
        return "x".join(map(str, values))

    # As --padding of 'npusim run' takes it: one number where all sides are alike.
    sides = [side for both in layer.padding for side in both]
    pads = str(sides[0]) if len(set(sides)) == 1 else ",".join(map(str, sides))
    return (
        layer.name,
        str(layer.cin),
        str(layer.cout),
        sizes(layer.spatial),
        sizes(layer.kernel),
        sizes(layer.stride),
        pads,
        sizes(layer.dilation),
        str(layer.groups),
        sizes(layer.out),
        str(layer.count),
    )
