"""The rules of the house that the contracts of ``pyproject.toml`` (import-linter) do not state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from importlinter.api import read_configuration

ROOT = Path(__file__).parent.parent

#: Parts that know the machine and have never heard of convolution.
MACHINE = ("machine", "base/rounding.py")
FOREIGN = re.compile(
    r"convolution|dgrad|wgrad|backprop|deconv|conv[_ ]?[23]d|im2col", re.IGNORECASE
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, kernels included, by dotted name."""
    found = {}
    for folder, package in ((ROOT / "npusim", "npusim"), (ROOT / "kernels", "npusim.kernels")):
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


@cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imports(node: ast.AST) -> Iterator[str]:
    """Modules imported anywhere below ``node``; "a.b.c" also for "from a.b import c"."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            module = child.module or ""
            inner = [f"{module}.{alias.name}" for alias in child.names]
            known = [name for name in inner if name in modules()]
            yield from known
            if len(known) < len(inner):
                yield module
        else:
            yield from imports(child)


def test_the_walk_finds_the_package() -> None:
    assert {"npusim", "npusim.machine.isa.cube", "npusim.kernels.matmul.matmul"} <= set(modules())


def test_every_package_is_in_the_contract_of_floors() -> None:
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    layers: Any = contracts[0]["layers"]
    named = {name.strip().removeprefix("npusim.") for line in layers for name in line.split("|")}
    paths = [path for path in (ROOT / "npusim").iterdir() if path.suffix == ".py" or path.is_dir()]
    assert named == {path.stem for path in paths} - {"__init__", "__pycache__", "configs"}


def test_few_names_stand_at_the_top() -> None:
    tops = {name.split(".")[1] for name in modules() if "." in name}
    assert len(tops) <= 20


def test_lines_of_kernels_are_known_by_the_name_of_their_file() -> None:
    """Traces and explanations name a line by file and number, without the folder."""
    names = [
        file.name
        for module, file in modules().items()
        if module.startswith("npusim.kernels.") and issues_instructions(tree(file))
    ]
    assert len(names) > 40
    assert sorted(names) == sorted(set(names))


def issues_instructions(module: ast.Module) -> bool:
    """A function of the module takes the kernel language as ``k``."""
    return any(
        isinstance(node, ast.FunctionDef)
        and any(argument.arg == "k" for argument in node.args.args)
        for node in ast.walk(module)
    )


def test_only_the_folder_of_kernels_is_a_symbolic_link() -> None:
    folders = ("npusim", "kernels", "configs", "tests", "tools", "docs", "notebooks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    assert [path for path in paths if path.is_symlink()] == [ROOT / "npusim" / "kernels"]


def test_no_two_modules_need_each_other() -> None:
    graph = {
        name: {i for i in imports(tree(file)) if i in modules() and i != name}
        for name, file in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_files_are_written_beside_their_place() -> None:
    """What a caller names is replaced as a whole (``npusim.base.atomic_files``), or not touched."""
    for module, file in modules().items():
        text = file.read_text(encoding="utf-8")
        for pattern in (r"(\w+)\.write_(?:text|bytes)\(", r"(\w+)\.open\(\"[wxa]"):
            assert set(re.findall(pattern, text)) <= {"part"}, module
        for pattern in (r"\.to_csv\((\w+)", r"\.to_parquet\((\w+)"):
            assert set(re.findall(pattern, text)) <= {"self", "part"}, module


def machine_files() -> list[Path]:
    parts = [ROOT / "npusim" / part for part in MACHINE]
    return [f for part in parts for f in ([part] if part.suffix else sorted(part.rglob("*.py")))]


def test_the_machine_has_never_heard_of_convolution() -> None:
    for file in machine_files():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            assert not FOREIGN.search(line), f"{file.relative_to(ROOT)}:{number}: {line.strip()}"


#: Shells ask for completions through the environment, users name the place of their cache there and
#: how the engine is compiled; no result depends on any of it.
READS_THE_ENVIRONMENT = {
    "npusim.cli.completion",
    "npusim.base.resources",
    "npusim.machine.timing.fast.library",
}


def test_nothing_is_global_and_nothing_reads_the_environment() -> None:
    nodes = [(module, node) for module, file in modules().items() for node in ast.walk(tree(file))]
    for module, node in nodes:
        assert not isinstance(node, ast.Global), f"{module}:{node.lineno}: global"
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names), f"{module}: import *"
        if isinstance(node, ast.Attribute):
            reads = node.attr in {"environ", "getenv"} and module not in READS_THE_ENVIRONMENT
            assert not reads, f"{module}:{node.lineno}: environment"


def readme_of(file: Path) -> Path:
    """The README that speaks of a module: in its folder, or the nearest one above."""
    return next(folder / "README.md" for folder in file.parents if (folder / "README.md").exists())


def test_the_readme_of_a_package_names_its_files() -> None:
    unnamed = [
        module
        for module, file in modules().items()
        if file.name != "__init__.py" and file.parent != ROOT / "npusim"
        if not re.search(rf"\b{file.stem}\b", readme_of(file).read_text(encoding="utf-8"))
    ]
    assert not unnamed


def test_the_readme_of_a_package_is_a_page() -> None:
    pages = {readme_of(file) for file in modules().values()} - {ROOT / "README.md"}
    long = [page for page in pages if len(page.read_text(encoding="utf-8").splitlines()) > 40]
    assert not long
