"""Public names of a package: its stub lists them, and each is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def homes(file: str) -> dict[str, str]:
    """The modules that have the public names of a package, whose ``__init__`` is ``file``.

    They are read from the lines ``from MODULE import NAME as NAME`` of the stub beside it, which
    type checkers read too.
    """
    text = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line.startswith("from ")]
    found = {words[-1]: words[1] for words in lines if "as" in words}
    return dict(sorted(found.items()))


def attached(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """What a package with a stub calls ``__getattr__``, ``__dir__`` and ``__all__`` (PEP 562).

    A name whose module is the package itself is a part of it.
    """
    known = homes(file)

    def found(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if known[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(known[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return found, lambda: sorted({*vars(sys.modules[package]), *known}), [*known]


class Lazy(Mapping[str, Any]):
    """A value for each of some names, found when it is asked for."""

    def __init__(self, names: Collection[str], find: Callable[[str], Any]) -> None:
        self.names, self.find = names, find

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
