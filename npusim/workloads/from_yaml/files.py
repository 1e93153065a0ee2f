"""A workload file as a whole: its layers, and where it has one its graph.

``configs/README.md`` has every key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.base.yamltree import TextFile, YamlNode, load_tree
from npusim.workloads.from_yaml.chains import read_chains
from npusim.workloads.from_yaml.layers import StatedLayer, read_layer
from npusim.workloads.from_yaml.values import read_values
from npusim.workloads.graph import Workload

_OF_GRAPH = ("inputs", "parameters", "graph")


def workload(source: TextFile | str, name: str) -> Workload:
    """The network in a file, or in a text that is called ``name`` in errors, of one image.

    Raises ``ConfigError`` with file and line for what is wrong in it.
    """
    tree = load_tree(source, name if isinstance(source, str) else "")
    keys = tree.mapping(("description", "layers"), _OF_GRAPH)
    stated = keys["layers"].mapping()
    if not stated and "graph" not in keys:
        raise keys["layers"].fail("expected at least one layer")
    layers = [read_layer(key, node, first=i == 0) for i, (key, node) in enumerate(stated.items())]
    if "graph" in keys:
        return _of_graph(name, keys, layers)
    for key in ("inputs", "parameters"):
        if key in keys:
            raise keys[key].fail(f"{key} are read by chains; add a graph, or remove them")
    for layer in layers:
        if layer.states("shared"):
            raise layer.tree.mapping()["shared"].fail(
                "which uses of a layer share its parameters, a graph says; add one, or remove it"
            )
    return Workload(
        name=name,
        description=keys["description"].text(),
        layers=tuple(layer.layer for layer in layers),
    )


def _of_graph(name: str, keys: Mapping[str, YamlNode], layers: Sequence[StatedLayer]) -> Workload:
    """A workload whose counts, gradients and element-wise layers follow from its graph."""
    inputs, parameters = read_values(keys)
    description = keys["description"].text()
    network = read_chains(keys["graph"], name, description, layers, inputs, parameters)
    layer_by_name = {layer.name: layer for layer in network.layers}
    for stated in layers:
        fields = stated.tree.mapping()
        layer = layer_by_name.get(stated.layer.name)
        if layer is None:
            raise stated.tree.fail("no chain of the graph uses the layer; remove it, or use it")
        if stated.states("count") and stated.layer.count != layer.count:
            raise fields["count"].fail(
                f"count is {stated.layer.count}, but the graph uses the layer {layer.count} times; "
                "remove the count, which follows from the graph"
            )
        gradient = stated.layer.input_gradient
        if stated.states("input_gradient") and gradient != layer.input_gradient:
            raise fields["input_gradient"].fail(
                f"input_gradient is {'yes' if gradient else 'no'}, and the graph says otherwise; "
                "remove it: an input has a gradient behind what is trained, and none behind "
                "`> detach`"
            )
    return network
