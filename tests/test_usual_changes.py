"""How many files a usual change touches, counted by where one name of its kind is spelled.

Each test names the files that a newcomer has to write or edit. The lists may only get shorter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def spelled(name: str, *folders: str, without: tuple[str, ...] = ()) -> set[str]:
    """Files below ``folders`` that spell ``name`` outside of docstrings and comments.

    ``without`` are folders whose files do not count.
    """
    files: set[str] = set()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            place = file.relative_to(ROOT).as_posix()
            if not file.is_file() or any(place.startswith(f"{other}/") for other in without):
                continue
            if any(re.search(rf"\b{name}\b", word) for word in _words(file)):
                files.add(place)
    return files


def _words(file: Path) -> Iterator[str]:
    """Names and texts of a Python source, docstrings left out; the lines of a table of data."""
    if file.suffix in (".yaml", ".csv"):
        yield file.read_text(encoding="utf-8")
    if file.suffix not in (".py", ".pyi"):
        return
    module = ast.parse(file.read_text(encoding="utf-8"))
    texts = {  # statements that are nothing but a text
        id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in texts:
                yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias | ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg


@pytest.mark.parametrize(
    ("operator", "module"),
    [
        ("im2col_backward", "windows"),
        ("depthwise_conv2d_backprop_filter", "compiled"),
        ("depthwise_conv2d_backprop_input", "compiled"),
        ("conv_grad_input", "dsp_gradients"),
    ],
)
def test_an_operator_is_a_module_and_a_line(operator: str, module: str) -> None:
    """Its kernels, its documented limits, and forms in other libraries are changes of their own."""
    others = ("npusim/kernels", "npusim/compat", "npusim/torch")
    files = spelled(operator, "npusim", without=others)
    assert files == {"npusim/ops/__init__.pyi", f"npusim/ops/{module}.py"}
    stub = (ROOT / "npusim" / "ops" / "__init__.pyi").read_text(encoding="utf-8")
    lines = [line for line in stub.splitlines() if re.search(rf"\b{operator}\b", line)]
    assert len(lines) == 1
