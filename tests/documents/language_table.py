"""The kernel language as tables: every method a kernel author calls, from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from fnmatch import fnmatch

from npusim.language import DType, Language
from npusim.machine.isa.operands import Slot, Tensor
from npusim.machine.program.units import BufferHandle

#: Chapter -> patterns of the names of its methods; the first chapter that fits has a method.
CHAPTERS = {
    "Declare and ask": ("buffer", "memory", "has_path", "pipe_of", "dtypes", "device*", "decided"),
    "Move": ("data_move", "nd2nz", "load*", "col2img", "fill"),
    "Multiply, and drain the sums": ("mmad", "fixpipe*"),
    "Vectors": ("vec_*",),
    "On a DSP": ("dsp_*",),
    "Order": ("*flag", "*barrier"),
    "Repeat": ("loop", "once"),
}

#: What calls the language while it builds a program, not a kernel.
INSIDE = {"begin_task", "end_task", "end_tasks"}

_PLACES = (
    (BufferHandle, "buffer", ("next", "last")),
    (Slot, "slot", ("at", "fractals", "behind")),
    (Tensor, "tensor", ("at",)),
)


def public(cls: type) -> set[str]:
    """Names of the methods and properties without an underscore."""
    found = inspect.getmembers(cls, lambda x: inspect.isfunction(x) or isinstance(x, property))
    return {name for name, _ in found if not name.startswith("_")}


def language() -> str:
    """The tables of operands and of methods."""
    operands = [_row(cls, called, name) for cls, called, names in _PLACES for name in names]
    parts = [_table("Operands", operands)]
    parts += [_table(title, [_row(Language, "k", n) for n in chapter(title)]) for title in CHAPTERS]
    return "\n".join(parts)


def chapter(title: str) -> list[str]:
    """The methods of a chapter, pattern by pattern in the order of their definition."""
    names = [n for cls in reversed(Language.__mro__) for n in vars(cls) if n in public(Language)]
    fits = [n for pattern in CHAPTERS[title] for n in names if fnmatch(n, pattern)]
    return [name for name in fits if name not in INSIDE]


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"| {call} | {what} |\n" for call, what in rows)
    return f"### {title}\n\n| call | what it does |\n| --- | --- |\n{lines}"


def _row(cls: type, called: str, name: str) -> tuple[str, str]:
    member = inspect.getattr_static(cls, name)
    what = " ".join((inspect.getdoc(member) or "").split())
    return f"`{called}.{name}{_arguments(member)}`", re.sub(r"``(.*?)``", r"`\1`", what)


def _arguments(member: object) -> str:
    """The arguments as they are written in a call; nothing for a property."""
    if isinstance(member, property):
        return ""
    assert inspect.isfunction(member)
    rest = list(inspect.signature(member).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in rest]
    return str(inspect.Signature([_named(p) for p in bare]))


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """With a dtype as default by its name."""
    if not isinstance(parameter.default, DType):
        return parameter
    return parameter.replace(default=_Name(parameter.default.name.upper()))


class _Name(str):
    """Text that is shown as it stands."""

    def __repr__(self) -> str:
        return str(self)
