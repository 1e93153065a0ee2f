"""The text of --tiling: a rule, ``FIELD=VALUE,...`` or ``@FILE``, of several kernels for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.base.integers import digits
from npusim.base.yamltree import suggest

_RULES = ("auto", "tuned", "library", "production")


def parse_tiling(text: str, kinds: Mapping[str, type[Any]]) -> Any:
    """A rule's name, the ``kind`` that ``base_m=128,base_n=256,...`` describes, or a mapping.

    Rules are "auto", "tuned", "library" and "production"; ``@FILE`` is a YAML or JSON file of a
    tiling in the vendor's words, ``catlass:FILE`` and ``ascendc:FILE`` are files of other words
    (``npusim.kernels.tilings.imported``). Of several kernels the text is
    ``KERNEL:FIELD=VALUE,...;KERNEL:...``; those it leaves out are "auto".
    """
    if text in _RULES:
        return text
    if len(kinds) == 1:
        return _one(text, *kinds.values())
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
        tilings[name] = _one(fields, kinds[name])
    return tilings


def _one(text: str, kind: type[Any]) -> Any:
    """One kernel's tiling."""
    if text in _RULES:
        return text
    if text.startswith("@"):
        from npusim.kernels.tilings.cann import load_cann_tiling  # noqa: PLC0415

        return load_cann_tiling(Path(text[1:]))
    source, _, file = text.partition(":")
    if file and source in ("catlass", "ascendc"):
        return _imported(source, Path(file), kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in fields:
            raise ArgumentError(f"--tiling: unknown field {name!r}{suggest(name, fields)}")
        if name in values:
            raise ArgumentError(f"--tiling gives {name} twice; keep one of them")
        values[name] = _value(name, value, type(fields[name].default))
    missing = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    ]
    if missing:
        raise ArgumentError(
            f"--tiling lacks {', '.join(missing)}, which has no default; complete it, or leave "
            "--tiling away (auto)"
        )
    return kind(**values)


def _imported(source: str, file: Path, kind: type[Any]) -> Any:
    """A file of somebody else's words: of a product, or (Ascend C) of a convolution's gradient."""
    from npusim.kernels.tilings import cann, imported, matmul  # noqa: PLC0415 - few calls have one

    if kind is matmul.Tiling:
        return getattr(imported, f"{source}_tiling")(file)
    if source == "catlass":
        raise ArgumentError(f"--tiling {source}:{file}: CATLASS tilings are for matmul")
    return cann.load_cann_tiling(file)


def _value(name: str, text: str, kind: type[Any]) -> int | str:
    """A field's value: an integer, or yes or no, or a word where the usual value is one."""
    if kind is str:
        return text
    if kind is bool:
        if text not in ("yes", "no"):
            raise ArgumentError(f"--tiling: {name} is {text!r}; it must be yes or no")
        return text == "yes"
    value = digits(text)
    if value is None:
        raise ArgumentError(f"--tiling: {name} is {brief(text)}; it must be an integer >= 1")
    return value
