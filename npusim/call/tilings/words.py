"""Choice of the tiling a kernel gets: its own rule's, the vendor's, or the one given.

The text of --tiling: a rule, ``FIELD=VALUE,...`` or ``@FILE``, of several kernels for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from npusim.base.errors import ArgumentError, told_as
from npusim.base.integers import digits
from npusim.base.yamltree import suggest

if TYPE_CHECKING:
    from npusim.kernels.vendor.cann import CannTiling


T = TypeVar("T")


def own_tiling(option: Any, kernel: str, kind: type[T], *, tuned: bool = False) -> T | None:
    """Tiling that the option ``tiling`` asks of a kernel without a vendor's rule.

    None where it is chosen: "auto", and "tuned", which goes on from there (``Call.tuned``).
    """
    asked = asked_tiling(option, kernel, kind, vendor=False, tuned=tuned)
    return asked if isinstance(asked, kind) else None


def asked_tiling(
    option: Any,
    kernel: str,
    kind: type[T],
    *,
    vendor: bool,
    library: bool = False,
    tuned: bool = True,
) -> T | CannTiling | Literal["auto", "tuned", "library", "production"]:
    """Tiling or rule that the option ``tiling`` asks of ``kernel``, of tilings of type ``kind``.

    It is one for all kernels, or a mapping from their names, where those it leaves out are
    "auto"; "tuned", the fastest that a search finds, is for kernels that can be ``tuned``. With
    ``vendor`` a ``CannTiling`` and "production", the vendor's rule, are allowed too, and with
    ``library`` or ``vendor`` "library", the vendor's rule of an older chip or a plain choice among
    the forms of kernel that the vendor's library has.
    """
    tiling = asked_of(option, kernel)
    if isinstance(tiling, kind) or (vendor and _is_cann(tiling)):
        return cast("T | CannTiling", tiling)
    if isinstance(tiling, str):
        if tiling == "auto":
            return "auto"
        if tuned and tiling == "tuned":
            return "tuned"
        if tiling == "library" and (library or vendor):
            return "library"
        if tiling == "production" and vendor:
            return "production"
    also = ", 'library'" if library or vendor else ""
    also += ", 'production', a npusim.kernels.vendor.cann.CannTiling" if vendor else ""
    raise ArgumentError(
        f"tiling is {tiling!r}; it must be 'auto'{also} or a {kind.__module__}.{kind.__name__}"
        + (", or 'tuned'" if tuned else "")
    )


def _is_cann(tiling: object) -> bool:
    """True if a tiling is in the vendor's words."""
    if isinstance(tiling, str):
        return False
    from npusim.kernels.vendor.cann import CannTiling  # noqa: PLC0415 - most tilings are words

    return isinstance(tiling, CannTiling)


def asked_of(option: Any, kernel: str) -> Any:
    """Value of the option ``tiling`` for ``kernel``: a word or a tiling; "auto" by default."""
    return option.get(kernel, "auto") if isinstance(option, Mapping) else option


def is_tuned(option: Any, kernel: str) -> bool:
    """True if the option ``tiling`` asks for the fastest tiling of ``kernel`` there is."""
    return bool(asked_of(option, kernel) == "tuned")


def is_library(option: Any, kernel: str) -> bool:
    """True if the option ``tiling`` asks for what the vendor's library does, or would do."""
    tiling = asked_of(option, kernel)
    return _is_cann(tiling) or tiling in ("library", "production")


def stands_for_library(tiling: object) -> bool:
    """True if the time of a tiling is compared with the library's: of all rules but "tuned"."""
    return isinstance(tiling, str) and tiling != "tuned"


# -- the text of --tiling: a rule, ``field=value,...`` or ``@file -------------------------------


_RULES = ("auto", "tuned", "library", "production")


def parse_tiling(text: str, kinds: Mapping[str, type[Any]]) -> Any:
    """A rule's name, the ``kind`` that ``base_m=128,base_n=256,...`` describes, or a mapping.

    Rules are "auto", "tuned", "library" and "production"; ``@FILE`` is a YAML or JSON file of a
    tiling in the vendor's words, ``catlass:FILE`` and ``ascendc:FILE`` are files of other words
    (``npusim.kernels.vendor.imported``). Of several kernels the text is
    ``KERNEL:FIELD=VALUE,...;KERNEL:...``; those it leaves out are "auto".
    """
    if text in _RULES:
        return text
    if len(kinds) == 1:
        return _tiling_of(text, *kinds.values())
    tilings: dict[str, Any] = {}
    for part in text.split(";"):
        name, colon, fields = (word.strip() for word in part.partition(":"))
        if not colon:
            raise ArgumentError(
                f"--tiling is {text!r}; this call has several kernels, so it must be "
                f"KERNEL:FIELD=VALUE,...;... with KERNEL one of {', '.join(kinds)}"
            )
        if name not in kinds:
            raise ArgumentError(f"--tiling: unknown kernel {name!r}{suggest(name, kinds)}")
        if name in tilings:
            raise ArgumentError(f"--tiling names {name} twice; keep one of them")
        tilings[name] = _tiling_of(fields, kinds[name])
    return tilings


def _tiling_of(text: str, kind: type[Any]) -> Any:
    """One kernel's tiling."""
    if text in _RULES:
        return text
    if text.startswith("@"):
        from npusim.kernels.vendor.cann import load_cann_tiling  # noqa: PLC0415

        return load_cann_tiling(Path(text[1:]))
    source, _, file = text.partition(":")
    if file and source in ("catlass", "ascendc"):
        return _imported(source, Path(file), kind)
    with told_as(ArgumentError, "--tiling: "):
        values = read_fields(text, kind, _value)
    return kind(**values)


def read_fields(
    text: str, kind: type[Any], read: Callable[[dataclasses.Field[Any], str], Any]
) -> dict[str, Any]:
    """The values of a dataclass that ``FIELD=VALUE,...`` gives, by field.

    ``read`` makes a value of a text; an ``ArgumentError`` of it gets the field's name. Raises
    ``ArgumentError`` for a field that is unknown, given twice, or missing.
    """
    by_name = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in by_name:
            raise ArgumentError(f"unknown field {name!r}{suggest(name, by_name)}")
        if name in values:
            raise ArgumentError(f"{name} is given twice; keep one of them")
        with told_as(ArgumentError, f"{name} is {brief(value)}; ", ArgumentError):
            values[name] = read(by_name[name], value)
    lacking = [
        name
        for name, field in by_name.items()
        if field.default is field.default_factory is dataclasses.MISSING and name not in values
    ]
    if lacking:
        raise ArgumentError(f"it lacks {', '.join(lacking)}, which has no default; complete it")
    return values


def _imported(source: str, file: Path, kind: type[Any]) -> Any:
    """A file of somebody else's words: of a product, or (Ascend C) of a convolution's gradient."""
    from npusim.kernels.matmul.tiling import Tiling  # noqa: PLC0415 - few calls have one
    from npusim.kernels.vendor import cann, imported  # noqa: PLC0415

    if kind is Tiling:
        return getattr(imported, f"{source}_tiling")(file)
    if source == "catlass":
        raise ArgumentError(f"--tiling {source}:{file}: CATLASS tilings are for matmul")
    return cann.load_cann_tiling(file)


def _value(field: dataclasses.Field[Any], text: str) -> int | str:
    """A field's value: an integer, or yes or no, or a word where the usual value is one."""
    kind = type(field.default)
    if kind is str:
        return text
    if kind is bool:
        if text not in ("yes", "no"):
            raise ArgumentError("it must be yes or no")
        return text == "yes"
    value = digits(text)
    if value is None:
        raise ArgumentError("it must be an integer >= 1")
    return value
