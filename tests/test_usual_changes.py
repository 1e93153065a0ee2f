"""Usual changes touch few modules: those in which one name of each kind is spelled are counted.

Docstrings are left out, for they speak of a number without making it; so is the package's data.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "npusim"


def names_spelled(tree: ast.Module) -> Iterator[str]:
    """Names, attributes, keywords and texts of a module that are no docstrings."""
    documents = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, documents) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            docstrings.add(first.value)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.arg(arg=name):
                yield name
            case ast.Constant(value=str(name)) if node not in docstrings:
                yield name


def package_modules_that_spell(name: str) -> list[str]:
    """The modules of the package that spell a name in their code."""
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if name in text and name in names_spelled(ast.parse(text)):
            modules.append(path.relative_to(PACKAGE).as_posix())
    return modules


#: A number of reports, and the modules that spell it: where it is computed, and its rows in the
#: tables of facts. ``problem_us`` is four numbers of one name: the least time of a call, of a
#: kernel, of all launches of a kernel in a network, and of a layer.
NUMBERS = {
    "energy_uj": ["results/facts/energy.py", "results/facts/point.py"],
    "static_uj": ["results/facts/energy.py", "results/facts/point.py"],
    "problem_us": [
        "networks/network.py",
        "results/facts/call.py",
        "results/facts/network_rows.py",
        "results/facts/tables.py",
    ],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_reports_stands_where_it_is_computed_and_in_its_rows(name: str) -> None:
    modules = package_modules_that_spell(name)
    assert modules, f"{name} is still a number of reports"
    assert set(modules) <= set(NUMBERS[name]), "the list may only get shorter"
