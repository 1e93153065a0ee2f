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

from npusim.machine.isa import ISA
from npusim.machine.program.language import Language

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
    "--trace": {  # an option of each
        "npusim/cli/compare.py",
        "npusim/cli/net.py",
        "npusim/cli/run.py",
    },
    "--cores": {"npusim/cli/gate.py", "npusim/cli/machine_options.py"},  # the gate passes it on
    "--launch": {"npusim/cli/gate.py", "npusim/cli/machine_options.py"},
    "--measured": {"npusim/cli/bound.py"},
    "--set": {"npusim/cli/gate.py", "npusim/cli/shared.py"},
    # Of a call, which may state tile sizes, and of all kernels of a network.
    "--tiling": {"npusim/cli/call_options.py", "npusim/cli/machine_options.py"},
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


#: Figures that cost time, and the modules that spell them: the field of the device's part, and the
#: cost of the instruction. The check of a device file knows besides which paths need a window.
FIGURES = {
    "odd_block_conflict": {"npusim/machine/device/parts.py", "npusim/machine/isa/cube.py"},
    "row_cycles": {
        "npusim/machine/device/parts.py",
        "npusim/machine/isa/base.py",
        "kernels/estimate/streams.py",  # of pieces inside UB, which are no instructions there
    },
    "conflict_cycles": {"npusim/machine/device/parts.py", "npusim/machine/isa/base.py"},
    "unaligned_cycles": {"npusim/machine/device/parts.py", "npusim/machine/isa/base.py"},
    "elements_per_cycle": {"npusim/machine/device/parts.py", "npusim/machine/isa/base.py"},
    "window_bytes": {
        "npusim/machine/device/checks.py",
        "npusim/machine/device/parts.py",
        "npusim/machine/isa/dma.py",
    },
}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_device_figure_that_costs_time_takes_two_files(figure: str) -> None:
    """Estimates and bounds of tilings ask the instruction, and do not know the figure."""
    assert _modules_with(figure) == FIGURES[figure]


#: What the kernel language calls an instruction, where it has a word of its own.
WORDS = {"drain": "fixpipe"}

#: The modules besides three that know an instruction: others that are made of it, estimates that
#: ask what it takes, what orders flags, and reports that look at products.
KNOWN_BESIDES = {
    "data_move": {"npusim/machine/program/fixpipe.py"},
    "mmad": {
        "kernels/estimate/costs.py",
        "kernels/vendor/imported.py",
        "npusim/machine/timing/critical.py",
    },
    "vec_cast": {"npusim/machine/isa/dsp.py"},
    "vec_dup": {"kernels/estimate/costs.py", "npusim/machine/program/fixpipe.py"},
    "dsp_gemm": {
        "kernels/dsp/filter_tiling.py",
        "kernels/dsp/filter_work.py",
        "npusim/machine/timing/critical.py",
    },
    "set_flag": {"npusim/machine/program/build.py", "npusim/machine/program/lower.py"},
    "wait_flag": {"npusim/machine/program/build.py", "npusim/machine/program/lower.py"},
}


@pytest.mark.parametrize("name", ISA)
def test_an_instruction_takes_three_files(name: str) -> None:
    """Its class, its row of the table, and the method of the kernel language."""
    kind = ISA[name]
    assert callable(getattr(Language, WORDS.get(name, name)))
    own = kind.__module__.replace(".", "/") + ".py"
    language = "fixpipe" if name in WORDS else "language"
    three = {own, "npusim/machine/isa/__init__.py", f"npusim/machine/program/{language}.py"}
    assert _modules_with(kind.__name__) == three | KNOWN_BESIDES.get(name, set())


def _modules_with(name: str) -> set[str]:
    """Modules of the package that spell a name as an attribute, field, argument or text."""
    return {module for module, names in _names_by_module().items() if name in names}


@cache
def _names_by_module() -> dict[str, set[str]]:
    """The names that each module of the package and of the kernels spells."""
    files = [file for folder in ("npusim", "kernels") for file in (ROOT / folder).rglob("*.py")]
    spelled = dict[str, set[str]]()
    for file in sorted(files):
        module = file.relative_to(ROOT).as_posix()
        if not module.startswith("npusim/kernels/"):  # a link to kernels/
            tree = ast.parse(file.read_text(encoding="utf-8"))
            spelled[module] = {name for node in ast.walk(tree) for name in _names(node)}
    return spelled


def _names(node: ast.AST) -> tuple[str, ...]:
    """Names that a node of a syntax tree spells."""
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.keyword | ast.arg):
        return (node.arg or "",)
    if isinstance(node, ast.ClassDef | ast.alias):
        return (node.name,)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    return ()


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
