"""The values of a workload file that no chain makes: inputs, and parameters that chains name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from npusim.base.yamltree import YamlNode
from npusim.workloads.from_yaml.shapes import SIZES, sizes_of, sizes_text
from npusim.workloads.graph import INPUT, Input, Parameter

_INTEGERS = "integers"
_UNTRAINED = "untrained"
_NAME = re.compile(r"[^\W\d][\w.-]*")


def read_values(keys: Mapping[str, YamlNode]) -> tuple[list[Input], list[Parameter]]:
    """The inputs and parameters that a file states, by the keys at its top.

    The first input is called ``INPUT``. Raises ``ConfigError`` with file and line.
    """
    inputs = []
    if "inputs" in keys:
        for name, node in keys["inputs"].mapping().items():
            shape, integers = _read(name, node, _INTEGERS)
            inputs.append(Input(name, shape, integers))
        if not inputs or inputs[0].name != INPUT:
            raise keys["inputs"].fail(f"the first input is called {INPUT}; state all inputs")
    parameters = []
    if "parameters" in keys:
        for name, node in keys["parameters"].mapping().items():
            if name in {item.name for item in inputs} | {INPUT}:
                raise node.fail(f"{name} is an input already; give one of them another name")
            shape, untrained = _read(name, node, _UNTRAINED)
            parameters.append(Parameter(name, shape, trained=not untrained))
    return inputs, parameters


def _read(name: str, node: YamlNode, word: str) -> tuple[tuple[int, ...], bool]:
    """The shape of a value, and whether a ``word`` stands behind it."""
    if not _NAME.fullmatch(name):
        raise node.fail(f"{name!r} is no name for a value; take a word such as x")
    if not isinstance(node.value, str):
        return (1, *(item.integer(1) for item in node.items())), False
    sizes, _, last = node.text().rpartition(" ")
    text = sizes if last == word else node.text()
    if not re.fullmatch(SIZES, text):
        raise node.fail(
            f"expected the sizes of an image such as [3, 224, 224], or 8 x [64] or number, and "
            f"perhaps {word}, got {node.text()!r}"
        )
    return sizes_of(text), last == word


def value_text(shape: tuple[int, ...], word: str = "") -> str:
    """A shape as the value of a key, with a word behind it where there is one."""
    text = sizes_text(shape)
    if text.startswith("[") and word:
        text = f"1 x {text}"
    return f"{text} {word}" if word else text


def input_line(item: Input) -> str:
    """An input as a key with its value."""
    return f"  {item.name}: {value_text(item.shape, _INTEGERS if item.integers else '')}"


def parameter_line(parameter: Parameter) -> str:
    """A parameter as a key with its value."""
    note = "" if parameter.trained else _UNTRAINED
    return f"  {parameter.name}: {value_text(parameter.shape, note)}"
