"""Kernels from a file of anybody's: the class that a text names, and an object of it made of words.

The text is ``FILE.py:CLASS``, or the file alone where it defines one kernel. What a kernel computes
on is said as ``NAME=VALUE``: the keywords of the class method ``example``, which returns a kernel,
or without one the fields of the class. Values are read by the annotation of the parameter.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from inspect import Parameter, isabstract, signature
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, cast, get_type_hints

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError, NpusimError
from npusim.base.yamltree import suggest
from npusim.call.tilings.words import read_fields
from npusim.machine.isa.operands import ROLES, Tensor
from npusim.machine.program.kernel import Kernel

#: Class method of a kernel that makes one of sizes.
EXAMPLE = "example"


def load_kernel(place: str) -> type[Kernel]:
    """The kernel class that ``FILE.py:CLASS`` names; the file is read anew.

    Raises ``ArgumentError`` where there is no such file or class, or where the file fails.
    """
    file, name = _parted(place)
    module = _module(file)
    every = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Kernel)
    ]
    concrete = {kind.__name__: kind for kind in every if not isabstract(kind)}
    defined_here = {
        name: kind for name, kind in concrete.items() if kind.__module__ == module.__name__
    }
    if name in concrete:
        return _named(concrete[name], file)
    if name:
        hint = (
            suggest(name, defined_here)
            if defined_here
            else f"; it defines {_lacking(every, module)}"
        )
        raise ArgumentError(f"{file} has no kernel {name!r}{hint}")
    if len(defined_here) != 1:
        have = f"the kernels {', '.join(defined_here)}" if defined_here else _lacking(every, module)
        raise ArgumentError(f"{file} defines {have}; name one as {file}:CLASS, a class of Kernel")
    return _named(next(iter(defined_here.values())), file)


def _lacking(every: Sequence[type[Kernel]], module: ModuleType) -> str:
    """Reasons why none of the classes of a file is a kernel, as far as it has any."""
    reasons = [
        f"{kind.__name__}, which lacks the method {' and '.join(sorted(kind.__abstractmethods__))}"
        for kind in every
        if kind.__module__ == module.__name__
    ]
    return f"no kernel but {' and '.join(reasons)}" if reasons else "no kernel"


def make_kernel(kind: type[Kernel], arguments: Mapping[str, str]) -> Kernel:
    """A kernel of a class: ``arguments`` are texts by the name of a parameter.

    Raises ``ArgumentError`` for an unknown name, a text that is no such value, and what is missing.
    """
    make: Callable[..., Any] = getattr(kind, EXAMPLE, kind)
    takes = parameters(kind)
    for name in arguments:
        if name not in takes:
            raise ArgumentError(f"{kind.__name__} has no argument {name!r}{suggest(name, takes)}")
    missing = [
        name
        for name, parameter in takes.items()
        if parameter.default is Parameter.empty and name not in arguments
    ]
    if missing:
        raise ArgumentError(
            f"{kind.__name__} needs {', '.join(missing)}; give {_examples(takes, missing)}"
        )
    values = {name: read_value(name, takes[name], text) for name, text in arguments.items()}
    try:
        kernel = make(**values)
    except NpusimError:
        raise
    except Exception as error:
        raise ArgumentError(f"{_where(error)}{kind.__name__}: {_words(error)}") from error
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"{kind.__name__}.{EXAMPLE} returned {kernel!r}; it must return a kernel"
        )
    return kernel


def parameters(kind: type[Kernel]) -> dict[str, Parameter]:
    """Parameters that ``make_kernel`` takes for a class, by name, with types resolved."""
    make = getattr(kind, EXAMPLE, None)
    hints = _hints(kind if make is None else getattr(make, "__func__", make))
    by_name = signature(kind if make is None else make).parameters
    return {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in by_name.items()
    }


def read_value(name: str, parameter: Parameter, text: str) -> Any:
    """The value of a parameter, read by its type, or where none is said by that of its default."""
    wanted = parameter.annotation
    if wanted is Parameter.empty:
        wanted = str if parameter.default in (None, Parameter.empty) else type(parameter.default)
    if isinstance(wanted, UnionType):  # of "int | None" what can be said in words
        wanted = next(kind for kind in wanted.__args__ if kind is not NoneType)
    try:
        return _read(name, wanted, text)
    except TypeError as error:
        way = f"give the class a class method {EXAMPLE!r} that takes numbers and words"
        raise ArgumentError(f"{name} is {text!r}; {error}: {way}") from error
    except (ValueError, ArgumentError) as error:
        what = f"; {error}" if isinstance(error, ArgumentError) else ""
        raise ArgumentError(f"{name} is {text!r}; it must be {_form(wanted)}{what}") from error


def _read(name: str, wanted: Any, text: str) -> Any:
    if wanted in _READERS:
        return _READERS[wanted](text)
    if wanted is Tensor:
        return _tensor(name, text)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return _record(name, wanted, text)
    raise TypeError(f"there is no text for {getattr(wanted, '__name__', wanted)}")


def _flag(text: str) -> bool:
    return ("no", "yes").index(text) == 1


#: How a text becomes a value of a type.
_READERS: Mapping[Any, Callable[[str], Any]] = {
    bool: _flag,
    int: lambda text: int(text, 0),
    float: float,
    str: str,
    DType: dtype,
}


def _record(name: str, kind: type[Any], text: str) -> Any:
    """A dataclass such as a tiling, of ``FIELD=VALUE,...``."""
    hints = _hints(kind)

    def read(field: Field[Any], value: str) -> Any:
        return _read(f"{name}.{field.name}", hints.get(field.name, str), value)

    return kind(**read_fields(text, kind, read))


def _tensor(name: str, text: str) -> Tensor:
    """The tensor ``512x1024:fp16`` or ``512x1024:fp16:out``, called as its parameter."""
    shape, *rest = text.split(":")
    if len(rest) not in (1, 2) or rest[1:] not in ([], *([role] for role in ROLES)):
        raise ValueError(text)
    sizes = tuple(int(size) for size in shape.split("x"))
    if min(sizes) < 1:
        raise ArgumentError("every size is at least 1")
    return Tensor(name, sizes, dtype(rest[0]), *rest[1:])


def _form(wanted: Any) -> str:
    """Form of the text of a value."""
    forms = {
        bool: "yes or no",
        int: "an integer",
        float: "a number",
        DType: "an element type such as fp16",
        Tensor: f"SIZExSIZE:TYPE or SIZExSIZE:TYPE:ROLE, the role of {', '.join(ROLES)}",
    }
    if wanted not in forms and isinstance(wanted, type) and is_dataclass(wanted):
        return "FIELD=VALUE,... of " + ", ".join(
            record_field.name for record_field in fields(wanted)
        )
    return forms.get(wanted, "text")


def _examples(takes: Mapping[str, Parameter], names: list[str]) -> str:
    """Examples of how missing arguments could be given."""
    usual = {int: "64", bool: "yes", float: "1.5", DType: "fp16", Tensor: "512x512:fp16"}
    return " ".join(f"{name}={usual.get(takes[name].annotation, '...')}" for name in names)


def _parted(place: str) -> tuple[Path, str]:
    """The file and the class that a text names."""
    before, dot, after = place.rpartition(".py")
    if not dot or (after and not after.startswith(":")):
        raise ArgumentError(f"kernel is {place!r}; it must be FILE.py:CLASS")
    return Path(f"{before}.py"), after[1:]


def _module(file: Path) -> ModuleType:
    """The file as a module; what lies in its folder can be imported while it is read."""
    if not file.is_file():
        raise ArgumentError(f"there is no file {str(file)!r}; correct the path of the kernel")
    name = f"npusim_kernel_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ArgumentError(f"{_where(error, file)}{_words(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _named(kind: type[Kernel], file: Path) -> type[Kernel]:
    """The class, if it says what reports call it."""
    if not isinstance(getattr(kind, "name", None), str):
        raise ArgumentError(f'{file}: {kind.__name__} has no name; write name = "..." into it')
    return kind


def _hints(of: Any) -> dict[str, Any]:
    """Annotations as types, without what cannot be resolved."""
    try:
        return get_type_hints(of)
    except (NameError, TypeError):
        return cast("dict[str, Any]", getattr(of, "__annotations__", {}))


def _where(error: Exception, file: Path | None = None) -> str:
    """``file.py:line: `` of what failed in somebody's file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [f for f in frames if file is None or Path(f.filename).resolve() == file.resolve()]
    return f"{Path(own_frames[-1].filename).name}:{own_frames[-1].lineno}: " if own_frames else ""


def _words(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
