"""Which compiled engine a machine takes, and that nothing it leaves out is called by Python."""

from __future__ import annotations

import ast
import errno
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from npusim.ahead import examples
from npusim.kernels.estimate.work import Work
from npusim.machine.timing.fast import library
from npusim.machine.timing.fast.jit import compiled

ROOT = Path(__file__).parents[3]

#: What makes a function one for compiled code to call, and one for Python to call.
MARKS = {"compiled", "entry"}


def sources() -> Iterator[Path]:
    for folder in ("npusim", "kernels"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def marks_of(function: ast.FunctionDef) -> set[str]:
    return {one.id for one in function.decorator_list if isinstance(one, ast.Name)} & MARKS


def named_in(tree: ast.AST) -> set[str]:
    """Names that code looks up, as they stand or in a module."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


#: A function: its module and its name.
Key = tuple[str, str]


class Module(ast.NodeVisitor):
    """The marked functions of a module with what each names, and what all other code names."""

    def __init__(self, file: Path) -> None:
        parts = file.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts if parts[0] == "npusim" else ("npusim", *parts))
        self.marked: dict[str, tuple[set[str], set[str]]] = {}
        self.elsewhere: set[str] = set()
        self.imported: dict[str, Key] = {}
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {one.name: (node.module, one.name) for one in node.names}
        if "npusim.machine.timing.fast.jit" in {module for module, _ in self.imported.values()}:
            self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if marks := marks_of(node):
            self.marked[node.name] = marks, named_in(node)
        else:
            self.elsewhere |= named_in(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef):
            self.elsewhere |= named_in(node)
        else:
            super().generic_visit(node)

    def keys(self, names: set[str]) -> set[Key]:
        """The functions that names stand for here."""
        own = {name: (self.name, name) for name in self.marked}
        return {(self.imported | own).get(name, (self.name, name)) for name in names}


@cache
def modules() -> list[Module]:
    return [module for module in map(Module, sources()) if module.marked]


class _Inside:
    """A function of a library."""

    def __call__(self, *_: Any) -> None:
        pass


def _idle() -> None:
    pass


def _twice(number: int) -> int:
    return 2 * number


def test_all_that_is_compiled_is_an_entry_or_reached_from_one() -> None:
    """Else it would run as plain Python where the engine is a library, and nobody would know."""
    names: dict[Key, set[Key]] = {}
    entries: set[Key] = set()
    for module in modules():
        for name, (marks, named) in module.marked.items():
            names[module.name, name] = module.keys(named)
            entries |= {(module.name, name)} if "entry" in marks else set()
    assert sorted(name for _, name in entries) == sorted(library.ENTRIES)
    reached, left = set(entries), list(entries)
    while left:
        further = (names[left.pop()] & set(names)) - reached
        reached |= further
        left += further
    assert len(names) > 40
    assert set(names) - reached == set()


def test_python_calls_entries_only() -> None:
    inner = {
        (module.name, name)
        for module in modules()
        for name, (marks, _) in module.marked.items()
        if "entry" not in marks
    }
    for module in modules():
        assert module.keys(module.elsewhere) & inner == set(), module.name


def test_another_source_of_compiled_code_is_another_library() -> None:
    """The digest in a library's name is of every file that has compiled code."""
    own = {file.stem for file in library.HERE.glob("*.py") if file.name not in library._PLAIN}
    known = {f"npusim.machine.timing.fast.{name}" for name in own}
    known |= {f"npusim.{name.removesuffix('.py').replace('/', '.')}" for name in library._ESTIMATES}
    assert {module.name for module in modules()} <= known


def test_another_kind_of_argument_is_another_library() -> None:
    """A column more in ``Work`` once crashed with the library that was compiled before it."""
    kinds: set[type] = set()
    left: list[Any] = [*examples().values()]
    while left:
        one = left.pop()
        if isinstance(one, tuple):
            left += one
            kinds |= {type(one)} - {tuple}
    assert Work in kinds
    assert {Path(inspect.getfile(kind)).resolve() for kind in kinds} <= {
        file.resolve() for file in library.sources()
    }


#: The decorators of compiled code.
_MARKS = {"compiled", "entry"}


def check(file: Path) -> None:
    """Raise ``TypeError`` where compiled code of ``file`` assigns to a part of an array.

    Numba compiles that with a comparison of shapes that would raise, and for arrays with counts
    of references: a library has neither, and it is not always the linker that notices.
    """
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or not _MARKS.intersection(
            mark.id for mark in function.decorator_list if isinstance(mark, ast.Name)
        ):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Subscript) or isinstance(node.ctx, ast.Load):
                continue
            if any(isinstance(part, ast.Slice) for part in ast.walk(node.slice)):
                raise TypeError(
                    f"{file}:{node.lineno}: {function.name} assigns to a slice, "
                    f"{ast.unparse(node)}, which code compiled ahead of time cannot do; assign to "
                    "its elements in a loop"
                )


def test_compiled_code_assigns_to_elements_only() -> None:
    for file in library.sources():
        check(file)


@pytest.mark.parametrize("line", ["a[1:n] = 3", "a[:] += n", "a[0, :n], n = n, 3", "del a[1:]"])
def test_assignments_to_slices_are_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "engine.py"
    lines = ["@compiled", "def sums(a, n):", "    part = a[1:n]", f"    {line}", "    return part"]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TypeError, match=r"engine.py:4: sums assigns to a slice, a\[.*in a loop"):
        check(file)
    file.write_text("\n".join(lines[1:]), encoding="utf-8")  # not compiled: all is allowed
    check(file)


def test_a_library_is_not_made_of_code_that_needs_python() -> None:
    import numba  # noqa: PLC0415

    from npusim.machine.timing.fast import ahead  # noqa: PLC0415

    def strict(a: np.ndarray[Any, Any], n: int) -> None:
        if n < 0:
            raise ValueError("less than nothing")
        a[0] = n

    function = cast(Any, numba.njit)(_nrt=False)(strict)
    with pytest.raises(TypeError, match=r"strict needs .*, which a library cannot have"):
        ahead.translated({function: (np.zeros(1, np.int64), 1)})


def test_a_library_that_comes_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has asked before, and then waits for the compiler."""
    monkeypatch.setattr(library, "found", lambda: None)
    assert library.entry(_idle) is None
    monkeypatch.setattr(library, "found", lambda: Path(library.name("generic")))
    monkeypatch.setattr(library, "CDLL", lambda _: {"_idle": _Inside()})
    call = library.entry(_idle)
    assert call is not None
    call()


def test_a_full_disk_costs_the_cache_of_compiled_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caching = pytest.importorskip("numba.core.caching")
    tried = []

    def full(*_: Any) -> None:
        tried.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(library, "found", lambda: None)
    monkeypatch.setattr(library, "folder", lambda: tmp_path)
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    twice = compiled(_twice)
    assert (twice(21), tried) == (42, [1])


@pytest.mark.skipif(library.levels() == ("generic",), reason="this machine is no x86-64")
@pytest.mark.parametrize(
    ("told", "levels"),
    [
        (library._NEEDED | {"sse2"}, ("x86-64-v3", "x86-64-v2")),
        (library._NEEDED - {"avx2"}, ("x86-64-v2",)),
        (set(), ("x86-64-v2",)),
    ],
)
def test_a_machine_takes_the_library_of_its_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: set[str], levels: tuple[str, ...]
) -> None:
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "HERE", tmp_path)
    monkeypatch.setattr(library, "folder", lambda: tmp_path)
    monkeypatch.setattr(library, "_features", lambda: told)
    (tmp_path / library.name("x86-64-v2")).touch()
    library.found.cache_clear()
    assert library.levels() == levels
    assert library.found() == tmp_path / library.name("x86-64-v2")
    library.found.cache_clear()
    (tmp_path / library.name("x86-64-v3")).touch()
    assert library.found() == tmp_path / library.name(levels[0])
    library.found.cache_clear()
