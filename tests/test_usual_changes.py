"""How many files a usual change touches, counted by where one name of its kind is spelled.

Each test names the files that a newcomer has to write or edit. The lists may only get shorter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
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


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path, kernels included."""
    files = [*(ROOT / "npusim").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]
    return {
        str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(files)
        if not file.is_relative_to(ROOT / "npusim" / "kernels")
    }


def words(module: ast.Module) -> Iterator[str]:
    """String constants of a module that are no docstrings or other loose strings."""
    loose = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


def spelled_in(*names: str) -> set[str]:
    """The modules in which a string is one of ``names``, and no sentence that has it."""
    return {path for path, module in modules().items() if not set(names).isdisjoint(words(module))}


#: An option of a command, and the modules that have to know its name.
OPTIONS = {
    "--trace": {"npusim/cli/compare.py", "npusim/cli/run.py"},  # an option of each
    "--cores": {"npusim/cli/gate.py", "npusim/cli/machine_options.py"},  # the gate passes it on
    "--launch": {"npusim/cli/gate.py", "npusim/cli/machine_options.py"},
    "--measured": {"npusim/cli/bound.py"},
    "--set": {"npusim/cli/gate.py", "npusim/cli/shared.py"},
    "--tiling": {"npusim/cli/call_options.py"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_declared_once(option: str) -> None:
    """Besides, the module that reads it has its value as ``arguments.NAME``."""
    assert spelled_in(option) <= OPTIONS[option]


#: Options of a network, as studies name them.
NETWORK_OPTIONS = ("every_input", "layouts", "fusions", "normalisation", "cards")


@pytest.mark.parametrize("option", NETWORK_OPTIONS)
def test_an_option_of_a_network_is_one_row(option: str) -> None:
    """Neither commands nor studies name it; the functions have it as an argument."""
    flag = f"--{option.replace('_', '-')}"
    spelled = spelled_in(option, flag)
    assert "npusim/networks/options.py" in spelled
    assert not [path for path in spelled if path.startswith(("npusim/cli/", "npusim/study/"))]
