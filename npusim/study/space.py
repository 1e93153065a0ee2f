"""The points of a study: what is fixed, what varies over which values, and how they combine."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from npusim.base.content import Content, require_content
from npusim.base.errors import ArgumentError, NpusimError, told_as
from npusim.base.integers import ceil_div
from npusim.base.quantities import in_one_unit, parse_count, parse_quantity
from npusim.base.yamltree import Node, TextFile, load_tree
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.study.formula import GOALS, goal, limit
from npusim.study.subject import DEVICE, NETWORK, OPERATOR, Setting, card_of, option_names, split

#: How axes combine: every combination, or the first values, the second values, and so on.
COMBINE = ("grid", "zip")

#: Points of one study: beyond it a typing error is more likely than patience.
MOST_POINTS = 10_000_000

#: Values of one range.
_LONGEST = 100_000

#: A comma between values, not within the keys of a part that is put in.
_COMMA = re.compile(r",(?![^{]*\})")

#: Of the values of a figure so many are built into a device before a study starts; the others are
#: read. A device that its values make impossible is a row with its error, as other points are.
_BUILT = 64

_PLAIN = re.compile(r"-?\d{1,18}(?:\.\d{1,18}|/[1-9]\d{0,17})?", re.ASCII)
_RANGE = re.compile(r"(?P<first>[^:]+):(?P<last>[^:]+):(?P<times>\*)?(?P<step>[^:]+)")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A name and the texts it takes; ``where`` makes an error that says where it is written."""

    name: str
    values: tuple[str, ...]
    where: Callable[[str], NpusimError] = field(default=ArgumentError, compare=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Study:
    """What is measured at which points.

    ``fixed`` holds at all points; ``axes`` vary, combined as ``combine`` says. ``listed`` are
    points one by one, in place of axes. ``places`` make errors that say where a name is fixed.
    ``goals``, ``subject_to`` and ``trials`` are what an exploration makes small, within which
    limits, in how many points (0: it decides); ``goal_place`` makes errors that say where goals are
    written.
    """

    fixed: Setting
    axes: tuple[Axis, ...] = ()
    combine: str = "grid"
    listed: tuple[Setting, ...] = ()
    description: str = ""
    places: Mapping[str, Callable[[str], NpusimError]] = field(default_factory=dict, compare=False)
    goals: tuple[str, ...] = ()
    subject_to: tuple[str, ...] = ()
    trials: int = 0
    goal_place: Callable[[str], NpusimError] = field(default=ArgumentError, compare=False)

    def __repr__(self) -> str:
        """One line: what is measured, over what, at how many points."""
        what = self.fixed.get(NETWORK) or self.fixed.get(OPERATOR, "")
        over = f" over {', '.join(self.varied)}" if self.varied else ""
        return f"<Study {what}{over}: {len(self):,} points>"

    def __post_init__(self) -> None:
        if (NETWORK in self.names) == (OPERATOR in self.names):
            raise ArgumentError("a study measures a network or an operator: name one of them")
        if self.combine not in COMBINE:
            raise ArgumentError(f"combine is {self.combine!r}; it is one of {', '.join(COMBINE)}")
        for axis in self.axes:
            if not axis.values:
                raise axis.where(f"{axis.name} has no values; give at least one")
            if axis.name in self.fixed:
                raise axis.where(f"{axis.name} is fixed and varied; keep one of them")
        lengths = {axis.name: len(axis.values) for axis in self.axes}
        if self.combine == "zip" and len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ArgumentError(
                f"zip takes the first value of each name, then the second, so all need as many: "
                f"{told}; make them equal, or leave zip out for all combinations"
            )
        if len(self) > MOST_POINTS:
            raise ArgumentError(f"the study has {len(self):,} points; at most {MOST_POINTS:,} run")

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a point sets."""
        listed = itertools.chain.from_iterable(self.listed)
        return tuple(dict.fromkeys((*self.fixed, *(axis.name for axis in self.axes), *listed)))

    @property
    def varied(self) -> tuple[str, ...]:
        """The names that differ between points."""
        return tuple(name for name in self.names if name not in self.fixed)

    def __len__(self) -> int:
        """Number of points."""
        if self.listed:
            return len(self.listed)
        lengths = [len(axis.values) for axis in self.axes]
        return (prod(lengths) if self.combine == "grid" else max(lengths)) if lengths else 1

    def points(self) -> Iterator[Setting]:
        """The points in order; of a grid the last axis changes fastest."""
        if self.listed:
            yield from ({**self.fixed, **one} for one in self.listed)
            return
        values = [axis.values for axis in self.axes]
        rows = itertools.product(*values) if self.combine == "grid" else zip(*values, strict=True)
        for row in rows if values else [()]:
            yield {**self.fixed, **dict(zip((a.name for a in self.axes), row, strict=True))}

    def check(self) -> None:
        """Read every fixed text and every value of every axis before anything is simulated.

        Raises ``ConfigError`` or ``ArgumentError`` that says which, and where it is written.
        """
        first = next(self.points())
        subject = [name for name in (NETWORK, OPERATOR, DEVICE) if name in first]
        base: dict[str, str] = {}
        for name in (*subject, *(name for name in self.fixed if name not in subject)):
            base[name] = first[name]
            if len(base) >= min(2, len(first)):  # what is measured, and on what
                place = self.places.get(name, ArgumentError)
                which = "" if name in self.places else f"{name}: "
                _readable(partial(split, base), place, which)
        for axis in self.axes:
            kind, clock_hz = _kind(axis.name, base)
            every = ceil_div(len(axis.values), _BUILT) if kind else 1
            for nth, value in enumerate(axis.values):
                which = f"{axis.name} = {value}: "
                if nth % every and nth != len(axis.values) - 1:
                    _readable(partial(parse_quantity, value, kind, clock_hz), axis.where, which)
                else:
                    given = {**base, axis.name: value}
                    _readable(partial(split, given), axis.where, which)
        for number, setting in enumerate(self.listed, 1):
            given = {**base, **setting}
            _readable(partial(split, given), ArgumentError, f"point {number}: ")


def _readable(read: Callable[[], Any], where: Callable[[str], NpusimError], which: str) -> None:
    try:
        read()
    except NpusimError as error:
        text = str(error)
        raise where(text if text.startswith(which) else which + text) from error


def make_axis(
    name: str,
    values: Any,
    fixed: Setting,
    where: Callable[[str], NpusimError] = ArgumentError,
) -> Axis:
    """An axis from a list, or from a text: ``a,b,c``, ``first:last:step`` or ``first:last:*2``.

    Ends of a range belong to it, and have units where the figure has.
    """
    parts = _COMMA.split(values) if isinstance(values, str) else [str(value) for value in values]
    found: list[str] = []
    for part in (part.strip() for part in parts):
        match = _RANGE.fullmatch(part)
        if match is None or part.startswith("{") or name in (DEVICE, NETWORK, OPERATOR):
            found.append(part)
            continue
        with told_as(where, f"{name} = {part}: "):
            found += _range(match, *_kind(name, fixed))
    twice = [value for value, count in Counter(found).items() if count > 1]
    if twice:
        raise where(f"{name} has {', '.join(twice)} twice; keep one of each")
    if not all(found):
        raise where(f"{name} has an empty value; remove a comma, or give the value")
    return Axis(name=name, values=tuple(found), where=where)


def _kind(name: str, fixed: Setting) -> tuple[str, int]:
    """The quantity of a figure, "" for options, which are numbers, and the clock beside it."""
    subject = NETWORK in fixed or OPERATOR in fixed  # else it varies, and so do its options
    if DEVICE not in fixed or (subject and name in option_names(fixed)):
        return "", 1
    device = load_device(fixed[DEVICE])
    figure = figures(device).get(name)
    return figure.kind if figure is not None else "", device.clock_hz


def _range(match: re.Match[str], kind: str, clock_hz: int) -> Iterator[str]:
    """The texts of a range of numbers or quantities."""

    texts = [match["step"], match["first"], match["last"]][bool(match["times"]) :]
    for text in texts if not kind else ():
        if not _PLAIN.fullmatch(text):
            raise ArgumentError(f"a range is first:last:step in numbers, and {text!r} is none")
    if match["times"] and not _PLAIN.fullmatch(match["step"]):
        raise ArgumentError(f"a factor is a number such as *2, and *{match['step']} is none")
    if kind:
        (*by, first, last), told = in_one_unit(texts, kind, clock_hz)
    else:
        (*by, first, last), told = [Fraction(text) for text in texts], _plain
    step = Fraction(match["step"]) if match["times"] else by[0]
    grows = step > 1 and first > 0 if match["times"] else step > 0
    if not grows or last < first:
        raise ArgumentError("a range goes upwards: first:last:step or first:last:*factor")
    for _ in range(_LONGEST):
        if first > last:
            return
        yield told(first)
        first = first * step if match["times"] else first + step
    raise ArgumentError(f"the range has more than {_LONGEST:,} values; take larger steps")


def _plain(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else str(float(number))


# -- files -----------------------------------------------------------------------------------

_SUBJECT, _SEARCHED = (DEVICE, NETWORK, OPERATOR), ("goals", "subject_to", "trials")
_KEYS = (*_SUBJECT, "description", "options", "set", "vary", "combine", "points", *_SEARCHED)


def load_study(source: TextFile | str) -> Study:
    """Read a study file. Raises ``ConfigError`` with file, line and the way out.

    A file of another kind is an ``ArgumentError`` that says what it is.
    """
    if isinstance(source, Path):
        require_content(source, (Content.STUDY,), "a study file")
    root = load_tree(source)
    tree = root.mapping((), _KEYS)
    nodes = {key: tree[key] for key in _SUBJECT if key in tree}
    for key in ("options", "set"):
        for name, node in (tree[key].mapping() if key in tree else {}).items():
            if name in nodes:
                raise node.fail(f"{name} is stated twice; keep one of them")
            nodes[name] = node
    if "points" in tree and "vary" in tree:
        raise tree["points"].fail("points stands in place of vary; keep one of them")
    fixed = {name: node.text() for name, node in nodes.items()}
    axes = tree["vary"].mapping() if "vary" in tree else {}
    if OPERATOR in nodes:
        _named(nodes[OPERATOR], lambda: card_of(fixed))
    if DEVICE in nodes:
        _named(nodes[DEVICE], lambda: load_device(fixed[DEVICE]))
    listed = tree["points"].items() if "points" in tree else []
    with told_as(root.fail, caught=ArgumentError):
        study = Study(
            fixed=fixed,
            axes=tuple(_axis(name, node, fixed) for name, node in axes.items()),
            combine=tree["combine"].text() if "combine" in tree else "grid",
            listed=tuple({n: v.text() for n, v in one.mapping().items()} for one in listed),
            description=tree["description"].text() if "description" in tree else "",
            places={name: node.fail for name, node in nodes.items()},
            **_search(tree),
        )
        study.check()
    return study


def _search(tree: Mapping[str, Node]) -> dict[str, Any]:
    """What an exploration looks for, as fields of a study."""
    found: dict[str, Any] = {}
    if "goals" in tree:
        node = tree["goals"]
        names = tuple(item.text() for item in node.items())
        check_goals(names, node.fail)
        found |= {"goals": names, "goal_place": node.fail}
    if "subject_to" in tree:
        for item in tree["subject_to"].items():
            _named(item, partial(limit, item.text()))
            found["subject_to"] = (*found.get("subject_to", ()), item.text())
    if "trials" in tree:
        found["trials"] = _named(tree["trials"], lambda: parse_count(tree["trials"].text()))
    return found


def check_goals(
    names: Sequence[str], where: Callable[[str], NpusimError] = ArgumentError
) -> tuple[str, ...]:
    """Goals; ``where`` makes the error for one that nothing measures, or one twice."""
    with told_as(where):
        for name in names:
            goal(name)
    if not names or len(set(names)) < len(names):
        raise where(
            f"goals are {', '.join(names) or 'missing'}; name each once, of {', '.join(GOALS)}"
        )
    return tuple(names)


def _named(node: Node, read: Callable[[], Any]) -> Any:
    with told_as(node.fail, caught=ArgumentError):
        return read()


def _axis(name: str, node: Node, fixed: Setting) -> Axis:
    values: Any = node.text() if isinstance(node.value, str) else [*map(Node.text, node.items())]
    return make_axis(name, values, fixed, node.fail)


def make_study(
    fixed: Mapping[str, Any], vary: Mapping[str, Any] | None = None, combine: str = "grid"
) -> Study:
    """A study from plain values; ``vary`` has a list or a text (see ``make_axis``) by name."""
    texts = {name: _text(value) for name, value in fixed.items() if value is not None}
    axes = tuple(make_axis(name, _texts(values), texts) for name, values in (vary or {}).items())
    study = Study(fixed=texts, axes=axes, combine=combine)
    study.check()
    return study


def _texts(values: Any) -> Any:
    return values if isinstance(values, str) else [_text(value) for value in values]


def _text(value: Any) -> str:
    """A value as a command line has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_text(one) for one in value)
    return str(value)
