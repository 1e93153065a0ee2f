"""The building's floors: who may import whom, which words stay out, how large things may grow.

The order is written down once, here. A module that breaks it is in the wrong place, or the
order has to be changed on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.size import lines_of_code, report

ROOT = Path(__file__).parent.parent

#: Ground floor first; a module may import from its own package and from floors below it.
FLOORS = [
    "npusim.version",
    "npusim.base",
    "npusim.reuse.store",
    "npusim.problem.layouts",
    "npusim.problem",
    "npusim.workloads",
    "npusim.machine.device",
    "npusim.reuse.cache",
    "npusim.machine.isa",
    "npusim.machine.program",
    "npusim.language",
    "npusim.machine.numerics",
    "npusim.machine.timing",
    "npusim.reuse",
    "npusim.results",
    "npusim.problem.limits",
    "npusim.kernels",
    "npusim.tuning",
    "npusim.call",
    "npusim.ops",
    "npusim.ahead",
    "npusim.networks.rules",
    "npusim.networks",
    "npusim.compat",
    "npusim.torch",
    "npusim.silicon",
    "npusim.study",
    "npusim.calibration",
    "npusim",  # the public names
    "npusim.gate",
    "npusim.cli",
    "npusim.__main__",
]

#: Packages of others that exactly one module imports, or the modules of one package.
ONE_IMPORTER = {
    "yaml": "npusim.base.yamltree",
    "simpy": "npusim.machine.timing.simpy_engine",
    "matplotlib": "npusim.results.writers.plots",
    "bokeh": "npusim.results.writers.web.charts",
    "jinja2": "npusim.results.writers.web.page",
    "numba": "npusim.machine.timing.fast",
}

#: Parts that know the machine and have never heard of convolution.
MACHINE = ("device", "isa", "program", "timing", "numerics", "base/rounding.py")
FOREIGN = re.compile(
    r"convolution|dgrad|wgrad|backprop|deconv|conv[_ ]?[23]d|im2col", re.IGNORECASE
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, kernels included, by dotted name."""
    found = {}
    for folder, package in ((ROOT / "npusim", "npusim"), (ROOT / "kernels", "npusim.kernels")):
        for file in sorted(folder.rglob("*.py")):
            if file == ROOT / "npusim" / "kernels.py":
                continue  # stands for the folder at the top
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


@cache
def tree(file: Path) -> ast.Module:
    """A module with the public names that a stub beside it lists."""
    stub = file.with_suffix(".pyi")
    parts = [one.read_text(encoding="utf-8") for one in (file, stub) if one.exists()]
    return ast.parse("\n".join(parts), str(file))


def imports(node: ast.AST, *, typing_too: bool = True) -> Iterator[str]:
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
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            if typing_too:
                yield from imports(child)
        else:
            yield from imports(child, typing_too=typing_too)


def floor(module: str) -> str:
    """The floor a module is on: the longest name in the list that it is or lies under."""
    fits = [name for name in FLOORS if module == name or module.startswith(f"{name}.")]
    best = max(fits, key=len)
    assert best != "npusim" or module == "npusim", f"{module} is on no floor; add it to the list"
    return best


def test_the_walk_finds_the_package() -> None:
    assert {
        "npusim",
        "npusim.machine.isa",
        "npusim.machine.isa.cube",
        "npusim.kernels.matmul.matmul",
    } <= set(modules())
    for name in FLOORS:
        assert any(floor(module) == name for module in modules()), f"{name} does not exist"


def test_imports_point_down() -> None:
    upward = [
        f"{module} is on floor {floor(module)} and imports {name} from above"
        for module, file in modules().items()
        for name in imports(tree(file))
        if name.split(".")[0] == "npusim"
        and FLOORS.index(floor(name)) > FLOORS.index(floor(module))
    ]
    assert not upward


def test_sources_of_networks_do_not_know_each_other() -> None:
    """Rooms of ``npusim.workloads`` share the graph; only ``reading``, above them, has them all."""
    package = "npusim.workloads"
    rooms = {name for name in modules() if name.startswith(f"{package}.from_")}
    sources = {".".join(name.split(".")[:3]) for name in rooms}
    assert {f"{package}.from_torch", f"{package}.from_onnx", f"{package}.from_yaml"} <= sources
    for module in rooms:
        source = ".".join(module.split(".")[:3])
        others = sources - {source} | {f"{package}.reading"}
        known = {".".join(name.split(".")[:3]) for name in imports(tree(modules()[module]))}
        assert not known & others, module


def test_no_file_is_a_symbolic_link() -> None:
    folders = ("npusim", "kernels", "configs", "tests", "tools", "docs", "notebooks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    assert [path for path in paths if path.is_symlink()] == []


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


def test_one_module_imports_each_library() -> None:
    users = {
        (library.split(".")[0], name)
        for name, file in modules().items()
        for library in imports(tree(file), typing_too=False)
    }
    for library, owner in ONE_IMPORTER.items():
        importers = [name for one, name in users if one == library]
        assert importers
        assert all(name == owner or name.startswith(f"{owner}.") for name in importers), importers


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


def test_lines_of_code_leave_out_what_explains() -> None:
    text = '"""Module."""\n\n# why\ndef f(a):\n    """What."""\n    return (\n        a\n    )\n'
    assert lines_of_code(text) == 4


def test_the_sizes_of_all_rooms_are_listed() -> None:
    names = {line.split()[-1] for line in report()}
    assert {"kernels", "npusim/isa", "npusim/cli", "all"} <= names


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
