"""How many files a usual change touches, counted by where one name of its kind is spelled."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from npusim.machine.isa import ISA
from npusim.machine.program.language import Language

ROOT = Path(__file__).parents[1]

#: Figures that cost time, and the modules that spell them: the field of the device's part, and the
#: cost of the instruction. The check of a device file knows besides which paths need a window.
FIGURES = {
    "odd_block_conflict": {"npusim/machine/device/parts.py", "npusim/machine/isa/cube.py"},
    "row_cycles": {"npusim/machine/device/parts.py", "npusim/machine/isa/base.py"},
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
