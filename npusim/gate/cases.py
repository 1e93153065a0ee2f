"""The cases of a gate: calls and networks as lines of commands, and what they may lose."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from npusim.base.resources import configs
from npusim.base.yamltree import Node, load_tree

#: Commands whose lines are cases.
COMMANDS = ("run", "net")

#: Keys of a gate file and of one of its cases, those that may be left out.
_OF_FILE, _OF_CASE = ("description", "tolerance", "devices"), ("name", "tolerance", "devices")


@dataclass(frozen=True)
class Tolerance:
    """What a case may lose: it is slower only by more than ``percent`` and more than ``cycles``."""

    percent: float = 1.0
    cycles: float = 100.0

    def exceeded(self, before: int, after: int) -> bool:
        """Whether both times differ by more."""
        return abs(after - before) > max(self.cycles, before * self.percent / 100)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call or network on one device: the ``words`` behind ``npusim``; ``node`` states it."""

    name: str
    words: tuple[str, ...]
    tolerance: Tolerance
    node: Node


def gate_file(given: str) -> Path:
    """A gate file: its path, or the name of one that ships."""
    if Path(given).suffix in (".yaml", ".yml"):
        return Path(given)
    return Path(str(configs() / "gates" / f"{given}.yaml"))


def read_cases(source: Path | str, name: str = "") -> tuple[Case, ...]:
    """The cases of a gate file, one for each device; text is called ``name`` in errors.

    Raises ``ConfigError`` with file and line for what is no gate, and for cases called alike.
    """
    root = load_tree(source, name)
    entries = root.mapping(("cases",), _OF_FILE)
    tolerance = _tolerance(entries.get("tolerance"), Tolerance())
    found: dict[str, Case] = {}
    for node in entries["cases"].items():
        for case in _cases(node, tolerance, entries.get("devices")):
            if case.name in found:
                line = found[case.name].node.line
                raise node.fail(
                    f"the case {case.name!r} is there already, in line {line}; give one of them "
                    "a name, or leave it out"
                )
            found[case.name] = case
    if not found:
        raise entries["cases"].fail("there is no case; add a line such as '- run: matmul ...'")
    return tuple(found.values())


def _cases(node: Node, tolerance: Tolerance, devices: Node | None) -> Iterator[Case]:
    """The cases that one entry states."""
    entries = node.mapping(optional=(*COMMANDS, *_OF_CASE))
    commands = [command for command in COMMANDS if command in entries]
    if len(commands) != 1:
        raise node.fail("a case has one of the keys 'run' and 'net': a line of that command")
    line = entries[commands[0]]
    try:
        words = shlex.split(line.text())
    except ValueError as error:
        raise line.fail(f"{error}; check its quotes") from error
    name = entries["name"].text() if "name" in entries else " ".join(words)
    own = entries.get("devices", devices)
    given = any(word.partition("=")[0] == "--device" for word in words)
    if given and "devices" in entries:
        raise entries["devices"].fail("the line has --device already; keep one of them")
    for device in [one.text() for one in own.items()] if own and not given else [""]:
        yield Case(
            name=f"{name} on {device}" if device else name,
            words=(commands[0], *words, *(("--device", device) if device else ())),
            tolerance=_tolerance(entries.get("tolerance"), tolerance),
            node=line,
        )


def _tolerance(node: Node | None, usual: Tolerance) -> Tolerance:
    entries = node.mapping(optional=("percent", "cycles")) if node is not None else {}
    return replace(usual, **{name: _number(one) for name, one in entries.items()})


def _number(node: Node) -> float:
    try:
        value = float(node.text())
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:  # refuses what is no number, too
        raise node.fail(f"expected a number from 0 on, got {node.text()!r}")
    return value
