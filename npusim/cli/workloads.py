"""``npusim workloads``: the named lists of layers, and the layers of one."""

from __future__ import annotations

import argparse

from npusim.cli.console import print_json, print_table
from npusim.cli.parser import Parser, add_show
from npusim.ops.card import sizes
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
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    about = "show the layers of a workload, which 'npusim run' takes as --layer WORKLOAD/LAYER"
    show = add_show(parser, about, "a workload's name")
    show.add_argument("--yaml", action="store_true", help="print a workload file (default: no)")
    show.add_argument(
        "--input-shape",
        type=sizes(1),
        metavar="CxHxW",
        help="of one image, where a file ending in .onnx leaves it open (default: as in the file)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the table of workloads or the layers of one."""
    if arguments.action == "show":
        workload = read_network(arguments.name, arguments.input_shape)
        if arguments.yaml:
            print(workload_yaml(workload), end="")
        else:
            _show(workload, arguments.json)
    else:
        _list([load_workload(name) for name in workloads()], arguments.json)
    return 0


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
    *("name", "cin", "cout", "spatial", "kernel", "stride", "padding", "dilation"),
    *("groups", "transposed", "output_padding", "rows", "count", "input_gradient", "macs"),
)


def _show(workload: Workload, as_json: bool) -> None:
    if as_json:
        layers = [
            {key: getattr(x, key, None) for key in _KEYS} | {"output": getattr(x, "out", None)}
            for x in workload.layers
        ]
        others = [vars(x) for x in workload.elementwise]
        about = {"name": workload.name, "description": workload.description}
        print_json({**about, "layers": layers, "elementwise": others})
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
    if workload.elementwise:
        sizes = [
            (x.kind, "x".join(map(str, x.shape)), "x".join(map(str, x.out)), str(x.count))
            for x in workload.elementwise
        ]
        print()
        print_table(("element-wise", "input", "output", "count"), sizes, 3)


def _cells(layer: Layer) -> tuple[str, ...]:
    if isinstance(layer, LinearLayer):
        size = f"{layer.rows} rows"
        blank = ("-",) * 5
        return (layer.name, str(layer.cin), str(layer.cout), size, *blank, size, str(layer.count))

    def by(values: tuple[int, ...]) -> str:
        return "x".join(map(str, values))

    # As --padding of 'npusim run' takes it: one number where all sides are alike.
    sides = [side for both in layer.padding for side in both]
    pads = str(sides[0]) if len(set(sides)) == 1 else ",".join(map(str, sides))
    back = " transposed" if layer.transposed else ""
    return (
        layer.name,
        str(layer.cin),
        str(layer.cout),
        by(layer.spatial),
        by(layer.kernel) + back,
        by(layer.stride),
        pads,
        by(layer.dilation),
        str(layer.groups),
        by(layer.out),
        str(layer.count),
    )
