"""YAML files as trees of text that know their file, line and path; nothing is guessed.

The only module that imports ``yaml``. Scalars stay text (a YAML loader would turn ``no`` into
False and ``12:30`` into 750); whoever reads a node decides what type the text must be.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from reprlib import repr as brief
from typing import Protocol

import yaml
from msgspec import Struct, field

from npusim.base.errors import CONTROL, ConfigError
from npusim.base.records import replace


class TextFile(Protocol):
    """A file that can be read: a ``pathlib.Path`` or a packaged resource."""

    def read_text(self, encoding: str) -> str:
        """Return the whole text."""


class YamlNode(Struct, frozen=True):
    """One value of a YAML file: text, a list of nodes, or nodes by key in file order.

    ``line`` counts from 1 and is the line of the value's key where it has one; ``path`` is
    dotted, such as ``layers[3].kernel``, and empty for the whole file.
    """

    value: str | list[YamlNode] | dict[str, YamlNode]
    file: str
    line: int
    path: str
    anchor: str | None = None  # of an alias: the path under which ``value`` was built

    def fail(self, message: str) -> ConfigError:
        """Return (not raise) the error ``file:line: path: message``."""
        return _error(self.file, self.line, self.path, message)

    def text(self) -> str:
        """Return the scalar's text; empty text is an error, so ``key:`` alone is one."""
        if not isinstance(self.value, str):
            raise self.fail(f"expected a single value, got {self._kind()}")
        if not self.value:
            raise self.fail("expected a value, got nothing; give one or remove the key")
        return self.value

    def flag(self) -> bool:
        """Yes or no, which it must be."""
        if self.text() not in ("yes", "no"):
            raise self.fail(f"expected yes or no, got {self.text()!r}")
        return self.text() == "yes"

    def integer(self, least: int | None = None) -> int:
        """Return the number that decimal digits write, of at least ``least`` where it is given."""
        # With it comes NumPy, which the words of a command line do without.
        from npusim.base.integers import digits  # noqa: PLC0415

        value = digits(self.text())
        if value is None or (least is not None and value < least):
            limit = "" if least is None else f" of at least {least}"
            raise self.fail(f"expected an integer{limit}, got {brief(self.text())}")
        return value

    def word(self, what: str, words: Iterable[str]) -> str:
        """Return the scalar's text, which must be one of the ``words`` of a kind, ``what``."""
        if self.text() not in (choices := tuple(words)):
            raise self.fail(f"unknown {what} {self.text()!r}{suggest(self.text(), choices)}")
        return self.text()

    def items(self) -> list[YamlNode]:
        """Return the nodes of a list."""
        if not isinstance(self.value, list):
            raise self.fail(f"expected a list, got {self._kind()}")
        return [self._here(node) for node in self.value]

    def mapping(
        self, required: Iterable[str] | None = None, optional: Iterable[str] = ()
    ) -> dict[str, YamlNode]:
        """Return nodes by key; called without arguments any key is allowed.

        Otherwise every key must be in ``required`` or ``optional`` and no required one missing.
        """
        if not isinstance(self.value, dict):
            raise self.fail(f"expected a mapping (key: value), got {self._kind()}")
        needed, extra = tuple(required or ()), tuple(optional)
        entries = {key: self._here(node) for key, node in self.value.items()}
        if required is None and not extra:
            return entries
        for key, node in entries.items():
            if key not in needed and key not in extra:
                raise node.fail(f"unknown key {key!r}{suggest(key, needed + extra)}")
        missing = [key for key in needed if key not in entries]
        if missing:
            word = "key" if len(missing) == 1 else "keys"
            raise self.fail(f"missing {word} {', '.join(map(repr, missing))}; add it here")
        return entries

    def _here(self, inner: YamlNode) -> YamlNode:
        """Return a node of ``value`` under this node's own path."""
        if self.anchor is None:
            return inner
        built = inner.path if inner.anchor is None else inner.anchor
        return replace(inner, path=self.path + inner.path[len(self.anchor) :], anchor=built)

    def _kind(self) -> str:
        """Return what the value is, in words."""
        if isinstance(self.value, str):
            return repr(self.value) if self.value else "nothing"
        return "a list" if isinstance(self.value, list) else "a mapping"


def suggest(word: str, words: Iterable[str], others: str = "") -> str:
    """Return the end of an "unknown" message: the nearest known word, or all of them.

    ``others`` is said in place of words that are too many to be told.
    """
    choices = list(words)
    near = nearest(word, choices)
    if near:
        return f"; did you mean {near!r}?"
    return f"; {others or 'known: ' + (', '.join(choices) or 'none')}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the known word that is most like ``word``, or has it between dots; "" without one."""
    choices = list(words)
    near = difflib.get_close_matches(word, choices, n=1)
    parts = [choice for choice in choices if word in choice.split(".")]
    return next(iter((*near, *parts)), "")


def unreadable(error: OSError | ValueError) -> str:
    """Return why a file of text cannot be read, in words."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"cannot be read as UTF-8 text: {error}"


def read_text(source: TextFile | str, name: str = "") -> tuple[str, str]:
    """Return text and name of a file (a path object), or of text called ``name`` in errors."""
    if isinstance(source, str):
        return source, name or "<text>"
    file = name or str(source)
    try:
        size = source.stat().st_size if isinstance(source, Path) else 0
        if size <= MOST_BYTES:
            return source.read_text(encoding="utf-8"), file
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {unreadable(error)}") from error
    raise ConfigError(
        f"{file}: the file has {size:,} bytes, at most {MOST_BYTES:,} are read; split it"
    )


def load_tree(source: TextFile | str, name: str = "") -> YamlNode:
    """Read a YAML file (a path object) or YAML text (a ``str``, called ``name`` in errors)."""
    text, file = read_text(source, name)
    try:
        root = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _error(file, line, "", f"not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, UnicodeEncodeError) as error:
        raise _error(file, 1, "", f"not valid YAML: {error}") from error
    if root is None:
        raise _error(file, 1, "", "the file is empty; expected a mapping (key: value)")
    return _Builder(file).node(root, "", root.start_mark.line + 1)


def _composed(text: str) -> yaml.Node | None:
    """The root node of ``text``, by libyaml where that is built in, which is ten times as fast.

    It recurses without a limit: text that may nest deeply is left to Python's own loader, and so is
    what it refuses, for the words of the error. Both are loaders of plain text: others look for a
    type of each value, which nobody asks for and which takes as long again.
    """
    shallow = len(text) <= _SHALLOW_CHARACTERS and all(
        text.count(mark) <= _SHALLOW_MARKS for mark in ("[", "{", "- -", "- ?", "? -", "? ?")
    )
    if shallow and hasattr(yaml, "CBaseLoader"):
        with suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=yaml.CBaseLoader)
    return yaml.compose(text, Loader=yaml.BaseLoader)


def _error(file: str, line: int, path: str, message: str) -> ConfigError:
    """Return the error in the one form all of them have."""
    return ConfigError(f"{file}:{line}: {path}: {message}" if path else f"{file}:{line}: {message}")


#: Text within these bounds nests a few thousand deep at most: indents grow with the depth.
_SHALLOW_CHARACTERS, _SHALLOW_MARKS = 1_000_000, 2000

#: Size of a file, and values in one: far more than any written by hand or by a program has.
MOST_BYTES = 16 << 20
MOST_NODES = 1_000_000


class _Builder(Struct):
    """Turns composed YAML nodes of one file into ``YamlNode``.

    An alias shares the content of its anchor, which gets the alias' path when it is looked at:
    copies would grow exponentially where aliases contain aliases.
    """

    file: str
    done: dict[int, YamlNode | None] = field(default_factory=dict)  # None: being converted

    def node(self, raw: yaml.Node, path: str, line: int) -> YamlNode:
        """Convert one node, or return what it has been converted to."""
        if id(raw) in self.done:
            converted = self.done[id(raw)]
            if converted is None:
                message = "the alias refers to itself; write the value out"
                raise _error(self.file, line, path, message)
            anchor = converted.anchor or converted.path
            return YamlNode(converted.value, self.file, line, path, anchor)
        if len(self.done) >= MOST_NODES:
            message = f"the file has more than {MOST_NODES:,} values; split it"
            raise _error(self.file, line, path, message)
        self.done[id(raw)] = None
        value: str | list[YamlNode] | dict[str, YamlNode]
        if isinstance(raw, yaml.MappingNode):
            value = self._mapping(raw, path)
        elif isinstance(raw, yaml.SequenceNode):
            value = [
                self.node(item, f"{path}[{i}]", item.start_mark.line + 1)
                for i, item in enumerate(raw.value)
            ]
        else:
            value = self._scalar(raw, path, line)
        node = YamlNode(value, self.file, line, path)
        self.done[id(raw)] = node
        return node

    def _scalar(self, raw: yaml.Node, path: str, line: int) -> str:
        """The text of a value or a key, which may be printed as it is."""
        text = str(raw.value)
        if CONTROL.search(text):
            message = f"{text!r} has a control character; write it without"
            raise _error(self.file, line, path, message)
        return text

    def _mapping(self, raw: yaml.MappingNode, path: str) -> dict[str, YamlNode]:
        """Convert a mapping's entries, refusing a second use of a key."""
        entries: dict[str, YamlNode] = {}
        for key_node, value in raw.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(self.file, line, path, "a key must be plain text, not a collection")
            key = self._scalar(key_node, path, line)
            where = f"{path}.{key}" if path else key
            if key in entries:
                first = entries[key].line
                message = f"duplicate key {key!r}, first used in line {first}; keep one of them"
                raise _error(self.file, line, where, message)
            entries[key] = self.node(value, where, line)
        return entries
