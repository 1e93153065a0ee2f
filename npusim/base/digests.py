"""Digests of an answer's inputs, by content: values, the sources of npusim, what a class reaches.

Answers are kept by their code as it was imported, not as its files are later. ``program`` names
the sources of npusim; a process in which one was imported anew has answers of its own. ``code_of``
names what a class runs, looked at in memory, so that a method put in its place counts too.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from npusim.base.dtypes import DType
from npusim.base.records import compared_fields
from npusim.base.resources import configs
from npusim.version import __version__

#: When this process began, as far as files are concerned.
_BEGAN = time.time_ns()

_PACKAGE = Path(__file__).parents[1]

#: Folders of Python's own library.
_STANDARD = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")
)


@cache
def _files() -> dict[str, str]:
    """The sources of npusim and its kernels: modules by the path of their file."""
    # In a checkout the kernels are a linked folder, which a search follows only where told to.
    start = len(str(_PACKAGE.parent)) + 1
    files = sorted(
        os.path.join(folder, name)  # noqa: PTH118 - ten times as fast as paths
        for folder, _, names in os.walk(_PACKAGE, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    return {file: file[start:-3].replace(os.sep, ".") for file in files}


@cache
def _limits() -> tuple[str, ...]:
    """The files of documented limits, which calls are held against as the sources read them."""
    folder = Path(str(configs())) / "constraints"
    return tuple(str(file) for file in sorted(folder.glob("*.yaml")))


def _name(files: Iterable[str]) -> str:
    """A digest of version and files, or a word of this process alone where a file changed."""
    digest = hashlib.sha256(__version__.encode())
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:32] if as_imported() else uuid.uuid4().hex


@cache
def limits() -> str:
    """The name of all documented limits."""
    return _name(_limits())


def as_imported() -> bool:
    """True while no source and no file of limits was written since this process began."""
    try:
        states = [os.stat(file) for file in (*_files(), *_limits())]  # noqa: PTH116 - many
    except OSError:  # one was removed
        return False
    return max(max(state.st_mtime_ns, state.st_ctime_ns) for state in states) < _BEGAN


class _Imported:
    """The modules of npusim as they were imported first, and a word that tells later ones apart."""

    def __init__(self) -> None:
        self.anew = ""
        self._specs: dict[str, Any] = {}
        self._count = 0

    def look(self) -> None:
        """Take another word where a module was imported anew since the last look."""
        modules = sys.modules
        changed = [
            name
            for name, spec in self._specs.items()
            if name in modules and getattr(modules[name], "__spec__", None) is not spec
        ]
        for name in changed:
            self._specs[name] = getattr(modules[name], "__spec__", None)
        if changed:
            self.anew = uuid.uuid4().hex
        if len(modules) != self._count:  # there may be further ones
            self._count = len(modules)
            for name, module in [*modules.items()]:
                if name.startswith("npusim."):
                    self._specs.setdefault(name, getattr(module, "__spec__", None))


_imported = _Imported()


def look_again() -> None:
    """Notice modules of npusim that were imported anew; done where calls begin."""
    _imported.look()


def imported_anew() -> str:
    """A word that changes when modules of npusim are imported anew; empty before."""
    return _imported.anew


@cache
def _sources() -> str:
    return _name(_files())


def program() -> str:
    """The name of the sources that answers are made by, as of the last look.

    It is that of version and sources, the same for all processes that run them; one whose sources
    are not as they were when it began, or which imported some anew, has a name of its own.
    """
    return f"{_sources()}{imported_anew()}"


#: Digests of classes of npusim by what was looked at: their own names and those of their modules.
_KNOWN: dict[type, tuple[list[Any], list[int], str]] = {}


def code_of(kind: type) -> str:
    """A digest of all code and constants that a class reaches by the names its methods use.

    What lies in npusim itself, its kernels excepted, in installed packages or in Python's own is
    known by name alone. A class of npusim is looked at again when a name in it, or in its module,
    stands for another object; one of anybody's own each time.
    """
    if not kind.__module__.startswith("npusim."):
        return _Reach(kind).digest
    objects: list[Any] = [imported_anew()]
    for base in kind.__mro__:
        if _is_own(base.__module__):
            objects += vars(base).values()
            objects += vars(sys.modules[base.__module__]).values()
    ids = [*map(id, objects)]
    looked_at = _KNOWN.get(kind)
    if looked_at is None or looked_at[1] != ids:
        # The objects are kept, so that no other one gets the identity of one that is gone.
        looked_at = (objects, ids, _Reach(kind).digest)
        _KNOWN[kind] = looked_at
    return looked_at[2]


def own_modules(kind: type) -> list[ModuleType]:
    """The modules that a class reaches and that lie outside npusim and installed packages."""
    names = {name for name in _Reach(kind).modules if not name.startswith("npusim.")}
    return [sys.modules[name] for name in sorted(names - {"__main__"}) if name in sys.modules]


def content_of(value: Any) -> str:
    """All that a value holds, as text: numbers, words, arrays, and records of npusim's own classes.

    Fields that a record leaves out of comparisons are left out here. Raises ``TypeError`` for
    anything else.
    """
    if isinstance(value, DType):
        return value.name
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(content_of, value))})"
    if isinstance(value, Mapping):
        pairs = (f"{content_of(key)}:{content_of(each)}" for key, each in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype}{value.shape}{digest}"
    return _record(value)


@lru_cache(maxsize=1024)
def _record(value: Any) -> str:
    """A kernel or what it is made of, of which others are made too."""
    kind = type(value)
    names = compared_fields(kind)
    if names and kind.__module__.startswith("npusim."):
        parts = (f"{name}={content_of(getattr(value, name))}" for name in names)
        return f"{kind.__module__}.{kind.__qualname__}({','.join(parts)})"
    raise TypeError(kind)


@lru_cache(maxsize=4096)
def _is_own(module: str) -> bool:
    """True if code of a module may change: that of kernels, and what is installed nowhere."""
    if module.partition(".")[0] == "npusim":
        return module.startswith("npusim.kernels.")
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module == "__main__"
    place = Path(file).resolve()
    installed = {"site-packages", "dist-packages"} & {*place.parts}
    return not (installed or str(place).startswith(_STANDARD))


#: Of a class: what is no part of what it does, or follows from the rest.
_NO_PART = frozenset(("_abc_impl", "__dataclass_fields__", "__dataclass_params__"))

#: Where wrappers of functions keep what they wrap.
_INSIDE = ("__func__", "fget", "func", "__wrapped__")

_WORD = re.compile(r"\w+")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _Part(NamedTuple):
    """The text of a function or class, the code it names, and what the text was made of.

    ``code`` is the function or class itself, ``inside`` what it has besides its names, and
    ``spaces`` are the names of the modules that it reads, as they were.
    """

    code: Any
    inside: list[Any]
    spaces: list[_Space]
    text: str
    named: list[Any]


class _Space(NamedTuple):
    """The names of a module, what they stood for, and the identities of that.

    The objects are kept, so that no other one gets the identity of one that is gone.
    """

    names: dict[str, Any]
    objects: list[Any]
    ids: list[int]

    @classmethod
    def of(cls, names: dict[str, Any]) -> _Space:
        objects = [*names.values()]
        return cls(names, objects, [*map(id, objects)])


#: Parts by the identity of their code: most classes reach the same functions.
_PARTS: dict[int, _Part] = {}


class _Reach:
    """Things that a class reaches, as texts: code by name, and constants."""

    def __init__(self, kind: type) -> None:
        self.modules: set[str] = set()
        self._texts: set[str] = set()
        self._seen: dict[int, Any] = {}
        self._todo: list[Any] = []
        self._named: list[Any] = []
        self._read: list[_Space] = []
        self._spaces: dict[int, _Space] = {}
        self._unchanged: dict[int, bool] = {}
        self._short(kind)
        self._note_named()
        while self._todo:
            code = self._todo.pop()
            self._texts.add(self._part(code).text)
            self._note_named()

    @property
    def digest(self) -> str:
        """Of all texts."""
        return hashlib.sha256("\n".join(sorted(self._texts)).encode()).hexdigest()[:32]

    def _note_named(self) -> None:
        """Look later at code that was named, unless it is known."""
        for code in self._named:
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                self.modules.add(code.__module__)
                self._todo.append(code)
        self._named = []

    def _part(self, code: Any) -> _Part:
        """The part of a function or class: of before, where nothing that it was made of changed."""
        inside = _inside(code)
        part = _PARTS.get(id(code))
        if part is not None and part.code is code:
            same = [*map(id, part.inside)] == [*map(id, inside)]
            if same and all(map(self._is_unchanged, part.spaces)):
                self._named = part.named
                return part
        self._read = []
        parts = self._of_class(code) if isinstance(code, type) else self._of_function(code)
        text = f"{code.__module__}.{code.__qualname__}: {' '.join(parts)}"
        part = _Part(code, inside, self._read, text, self._named)
        _PARTS[id(code)] = part
        return part

    def _space(self, names: dict[str, Any]) -> dict[str, Any]:
        """The names of a module, noted as read."""
        space = self._spaces.get(id(names))
        if space is None:
            space = self._spaces[id(names)] = _Space.of(names)
        self._read.append(space)
        return names

    def _is_unchanged(self, space: _Space) -> bool:
        """True where the names of a module stand for what they stood for."""
        unchanged = self._unchanged.get(id(space))
        if unchanged is None:
            unchanged = [*map(id, space.names.values())] == space.ids
            self._unchanged[id(space)] = unchanged
            if unchanged:  # further parts share it
                self._spaces.setdefault(id(space.names), space)
        return unchanged

    def _short(self, value: Any) -> str:
        """A text for a value; code is looked at later, and stands here by its name."""
        if isinstance(value, FunctionType | type):
            if _is_own(value.__module__):
                self._named.append(value)
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, Mapping):
            value = tuple(value.items())
        if isinstance(value, tuple | list):
            return f"({','.join(map(self._short, value))})"
        if isinstance(value, set | frozenset):
            return f"{{{','.join(sorted(map(self._short, value)))}}}"
        inside = next((i for name in _INSIDE if (i := getattr(value, name, None))), None)
        if inside is not None:
            return f"{type(value).__name__} {self._short(inside)}"
        self._short(type(value))
        return _text(value)

    def _of_class(self, kind: type) -> Iterator[str]:
        yield from map(self._short, kind.__bases__)
        module = sys.modules.get(kind.__module__)
        of_module = {} if module is None else self._space(vars(module))
        annotations = " ".join(map(str, vars(kind).get("__annotations__", {}).values()))
        for name in sorted(of_module.keys() & {*_WORD.findall(annotations)}):
            yield self._short(of_module[name])
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, FunctionType) or not (name in _NO_PART or name[:2] == "__"):
                yield f"{name}={self._short(value)}"

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        yield code_text(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        yield from map(self._short, (function.__defaults__, function.__kwdefaults__, cells))
        names = _names(function.__code__)
        of_module = self._space(function.__globals__)
        for name in sorted(names & of_module.keys()):
            value = of_module[name]
            yield f"{name}={self._short(value)}"
            if isinstance(value, ModuleType) and _is_own(value.__name__):
                within = self._space(vars(value))
                for inner in sorted(names & within.keys()):
                    yield f"{inner}={self._short(within[inner])}"


def _inside(code: Any) -> list[Any]:
    """What a class or function has itself."""
    if isinstance(code, type):
        return [*code.__bases__, *vars(code).values()]
    cells = [cell.cell_contents for cell in code.__closure__ or ()]
    return [code.__code__, code.__defaults__, code.__kwdefaults__, code.__globals__, *cells]


def _text(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return _ADDRESS.sub("", repr(value))


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """Every name that code uses, that of functions within it included."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)


@lru_cache(maxsize=4096)
def code_text(code: CodeType) -> str:
    """Text of what code does, wherever it stands."""
    consts = (
        code_text(constant)
        if isinstance(constant, CodeType)
        else str(sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant))
        for constant in code.co_consts
    )
    named = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    caught = getattr(code, "co_exceptiontable", b"")
    return f"{code.co_code.hex()} {caught.hex()} {named} {counts} [{'; '.join(consts)}]"
