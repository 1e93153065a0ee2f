"""Tilings and attributes of the kernels of a profile, from a YAML file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from npusim.base.errors import told_as
from npusim.base.integers import digits
from npusim.base.yamltree import YamlNode, load_tree
from npusim.kernels.vendor.cann import CannTiling, cann_tiling

#: Words for a tiling by rule. "vendor" is the rule of the vendor's library.
AUTO = "auto"
VENDOR = "vendor"

#: Keys by which an entry says which launches it is for.
SELECTORS = ("op_name", "op_type", "input_shapes", "lines")
_TILINGS = ("tiling", "vendor_tiling")

#: One launch of a kernel as a profile names it: texts by selector, and one line of the profile.
Launch = Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """The entry of a kernel beside the profile.

    ``tiling`` is "" where none is stated, "auto", "vendor", a ``CannTiling``, or the fields of the
    kernel's own tiling. ``attributes`` are the operator's. ``where`` is file and line.
    """

    tiling: str | CannTiling | tuple[tuple[str, int | bool], ...] = ""
    attributes: tuple[tuple[str, Any], ...] = ()
    where: str = ""

    def get(self, name: str, usual: Any = None) -> Any:
        """Return an attribute."""
        return dict(self.attributes).get(name, usual)


#: The choice of a kernel that has no entry.
NOTHING = Choice()


@dataclass(frozen=True)
class Choices:
    """The choices of a file in their order: the first that fits a launch holds for it."""

    entries: tuple[tuple[YamlNode, Mapping[str, str], Choice], ...] = ()
    used: set[int] = field(default_factory=set)

    def of(self, launch: Launch) -> Choice:
        """Return the choice of the first entry that a launch fits."""
        for place, (_, wanted, choice) in enumerate(self.entries):
            if all(_fits(launch, key, text) for key, text in wanted.items()):
                self.used.add(place)
                return choice
        return NOTHING

    def check_used(self) -> None:
        """Raise ``ConfigError`` for an entry that no launch fits, which is a slip of the pen."""
        for place, (node, wanted, _) in enumerate(self.entries):
            if place not in self.used:
                selected = ", ".join(f"{key} {text}" for key, text in wanted.items()) or "anything"
                raise node.fail(
                    f"no row of the profile has {selected} that no entry above takes; correct it "
                    "or remove the entry"
                )


def beside(profile: Path) -> Path | None:
    """Return the YAML file of the same name beside a profile, if there is one."""
    file = profile.with_suffix(".yaml")
    return file if file.is_file() else None


def read_choices(source: Path) -> Choices:
    """Read a file of choices.

    Raises ``ConfigError`` with file and line for anything that is not understood.
    """
    entries = load_tree(source).mapping(("kernels",))["kernels"].items()
    return Choices(tuple(_entry(node) for node in entries))


def _entry(node: YamlNode) -> tuple[YamlNode, Mapping[str, str], Choice]:
    keys = node.mapping((), (*SELECTORS, *_ATTRIBUTES, *_TILINGS))
    wanted = {key: keys[key].text().replace(" ", "") for key in SELECTORS if key in keys}
    if "lines" in wanted:
        parts = wanted["lines"].split(",")
        if not all(_lines(part)[0] for part in parts):
            raise keys["lines"].fail("expected lines of the profile such as 12 or 12-40,57")
    attributes = [(key, read(keys[key])) for key, read in _ATTRIBUTES.items() if key in keys]
    if "tiling" in keys and "vendor_tiling" in keys:
        raise keys["vendor_tiling"].fail("there is a 'tiling' too; keep one of them")
    choice = Choice(_tiling(keys), tuple(attributes), f"{node.file}:{node.line}")
    return node, wanted, choice


def _tiling(keys: Mapping[str, YamlNode]) -> str | CannTiling | tuple[tuple[str, int | bool], ...]:
    """The tiling an entry names: a rule, fields, or the vendor's words."""
    if "vendor_tiling" in keys:
        node = keys["vendor_tiling"]
        with told_as(node.fail):
            return cann_tiling({key: value.integer() for key, value in node.mapping().items()})
    if "tiling" not in keys:
        return ""
    node = keys["tiling"]
    if isinstance(node.value, str):
        if node.value not in (AUTO, VENDOR):
            raise node.fail(
                f"expected {AUTO}, {VENDOR} or the fields of a tiling, got {node.value!r}"
            )
        return node.value
    return tuple(
        (key, value.flag() if value.text() in ("yes", "no") else value.integer())
        for key, value in node.mapping().items()
    )


def _fits(launch: Launch, key: str, text: str) -> bool:
    if key == "lines":
        line = int(launch[key])
        return any(low <= line <= high for low, high in map(_lines, text.split(",")))
    return fnmatchcase(launch[key].replace(" ", ""), text)


def _lines(text: str) -> tuple[int, int]:
    """First and last of "12" or "12-40"; zeros where it is neither."""
    first, dash, last = text.partition("-")
    start = digits(first)
    end = digits(last if dash else first)
    return (0, 0) if start is None or end is None else (start, end)


def _sizes(node: YamlNode) -> tuple[int, ...]:
    numbers = [digits(part) for part in node.text().split("x")]
    sizes = tuple(number for number in numbers if number is not None)
    if len(sizes) < len(numbers):
        shown = brief(node.text())
        raise node.fail(f"expected numbers with x between them, such as 3x3, got {shown}")
    return sizes


#: Readers of an operator's attributes.
_ATTRIBUTES: Mapping[str, Callable[[YamlNode], Any]] = {
    "transpose_a": YamlNode.flag,
    "transpose_b": YamlNode.flag,
    "kernel": _sizes,
    "stride": _sizes,
    "padding": _sizes,
    "dilation": _sizes,
    "perm": _sizes,
    "groups": YamlNode.integer,
    "cin": YamlNode.integer,
    "cout": YamlNode.integer,
}
