"""Usual changes stay small: in how many modules one has to write.

The numbers may fall. One that rises says that a fact has begun to stand in two places.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
