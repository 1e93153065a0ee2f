"""Kinds of layers that multiply no matrices: rows of ``configs/operations.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from npusim.base.resources import configs
from npusim.base.yamltree import YamlNode, load_tree

#: The kind of an operation of which only the name is known.
UNKNOWN = "unknown"

#: Kinds that work on rows, the elements along the last axis.
BY_ROW = ("softmax", "log_softmax", "layer_norm")


class KindRow(NamedTuple):
    """Facts of a kind that sources of networks need.

    ``torch`` and ``onnx`` are what the frameworks call its operations, where they have other names;
    ``numbers`` are the usual values of its numbers by their names, None where there is none.
    ``weighted`` says whether it has parameters of its own.
    """

    torch: tuple[str, ...]
    onnx: tuple[str, ...]
    numbers: Mapping[str, float | None]
    weighted: bool


def _row(node: YamlNode) -> KindRow:
    fields = node.mapping() if node.value is not None else {}

    def words(key: str) -> tuple[str, ...]:
        return tuple(fields[key].text().split()) if key in fields else ()

    numbers = fields["numbers"].mapping() if "numbers" in fields else {}
    usual = {
        name: None if value.text() == "none" else float(Fraction(value.text()))
        for name, value in numbers.items()
    }
    return KindRow(words("torch"), words("onnx"), usual, "parameters" in fields)


_TABLE = load_tree(configs() / "operations.yaml", "operations.yaml").mapping()

#: The rows by kind.
ROWS = {kind: _row(node) for kind, node in _TABLE["kinds"].mapping().items()}

#: Every kind of element-wise layer.
KINDS = tuple(ROWS)

#: Kinds that have weights of their own, so that a training step has their backward pass anyway.
WEIGHTED = tuple(kind for kind, row in ROWS.items() if row.weighted)

#: The usual numbers of kinds of which a layer may have others.
USUAL = {
    kind: tuple(value for value in row.numbers.values() if value is not None)
    for kind, row in ROWS.items()
    if row.numbers and None not in row.numbers.values()
}


def kinds_in(framework: str) -> dict[str, str]:
    """Kinds by the names of operations in a framework ("torch", "onnx"), where these are others."""
    return {name: kind for kind, row in ROWS.items() for name in getattr(row, framework)}


def listed(what: str, framework: str) -> tuple[str, ...]:
    """Names of a framework's operations that are "moves" or "constant"."""
    return tuple(_TABLE[what].mapping()[framework].text().split())
