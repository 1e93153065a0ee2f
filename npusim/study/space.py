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
from npusim.base.yamltree import TextFile, YamlNode, load_tree
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

#: Values of a figure that are built into a device before a study starts, evenly spread; the others
#: are read only. A device that its values make impossible is a row with its error, as other points.
_BUILT = 64

_PLAIN = re.compile(r"-?\d{1,18}(?:\.\d{1,18}|/[1-9]\d{0,17})?", re.ASCII)
_RANGE = re.compile(r"(?P<first>[^:]+):(?P<last>[^:]+):(?P<times>\*)?(?P<step>[^:]+)")


@dataclass(frozen=True, kw_only=True)
class StudyAxis:
    """A name and the texts it takes; ``where`` makes an error that says where it is written."""

    name: str
    values: tuple[str, ...]
    where: Callable[[str], NpusimError] = field(default=ArgumentError, compare=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Study:
    """The points of a study, and what is measured there.

    ``fixed`` holds at all points; ``axes`` vary, combined as ``combine`` says. ``listed`` are
    points one by one, in place of axes. ``places`` make errors that say where a name is fixed.
    ``goals``, ``subject_to`` and ``trials`` are what an exploration makes small, within which
    limits, in how many points (0: it decides); ``goal_place`` makes errors that say where goals are
    written.
    """

    fixed: Setting
    axes: tuple[StudyAxis, ...] = ()
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
            counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ArgumentError(
                f"zip takes the first value of each name, then the second, so all need as many: "
                f"{counts}; make them equal, or leave zip out for all combinations"
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
        if not lengths:
            return 1
        return prod(lengths) if self.combine == "grid" else max(lengths)

    def points(self) -> Iterator[Setting]:
        """The points in order; of a grid the last axis changes fastest."""
        if self.listed:
            for setting in self.listed:
                yield {**self.fixed, **setting}
            return
        if not self.axes:
            yield dict(self.fixed)
            return
        names = [axis.name for axis in self.axes]
        values = [axis.values for axis in self.axes]
        rows = itertools.product(*values) if self.combine == "grid" else zip(*values, strict=True)
        for row in rows:
            yield {**self.fixed, **dict(zip(names, row, strict=True))}

    def beside(self, setting: Setting) -> tuple[str, ...]:
        """What a point of a grid has in common with those beside it along the last axis."""
        along = self.axes[-1].name if self.axes and self.combine == "grid" else ""
        return tuple(setting.get(name, "") for name in self.varied if name != along)

    def check(self) -> None:
        """Read every fixed text and every value of every axis before anything is simulated.

        Raises ``ConfigError`` or ``ArgumentError`` that says which, and where it is written.
        """
        base = self._check_fixed()
        for axis in self.axes:
            _check_axis(axis, base)
        for number, setting in enumerate(self.listed, 1):
            point = {**base, **setting}
            _readable(partial(split, point), ArgumentError, f"point {number}: ")

    def _check_fixed(self) -> dict[str, str]:
        """Read the fixed texts one by one; return them, with what is measured and on what."""
        first = next(self.points())
        subject = [name for name in (NETWORK, OPERATOR, DEVICE) if name in first]
        others = [name for name in self.fixed if name not in subject]
        base: dict[str, str] = {}
        for name in (*subject, *others):
            base[name] = first[name]
            if len(base) < min(2, len(first)):  # a setting needs what is measured, and on what
                continue
            place = self.places.get(name, ArgumentError)
            which = "" if name in self.places else f"{name}: "
            _readable(partial(split, base), place, which)
        return base


def _check_axis(axis: StudyAxis, base: Setting) -> None:
    """Read every value of an axis; of many values of a figure some are built into a device."""
    kind, clock_hz = _kind(axis.name, base)
    every = ceil_div(len(axis.values), _BUILT) if kind else 1
    last = len(axis.values) - 1
    for number, value in enumerate(axis.values):
        if number % every == 0 or number == last:
            read: Callable[[], Any] = partial(split, {**base, axis.name: value})
        else:
            read = partial(parse_quantity, value, kind, clock_hz)
        _readable(read, axis.where, f"{axis.name} = {value}: ")


def _readable(read: Callable[[], Any], where: Callable[[str], NpusimError], which: str) -> None:
    """Read something; raise its error by ``where``, with ``which`` it is at the beginning."""
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
) -> StudyAxis:
    """An axis from a list, or from a text: ``a,b,c``, ``first:last:step`` or ``first:last:*2``.

    Ends of a range belong to it, and have units where the figure has.
    """
    parts = _COMMA.split(values) if isinstance(values, str) else [str(value) for value in values]
    texts: list[str] = []
    for part in (part.strip() for part in parts):
        match = _RANGE.fullmatch(part)
        if match is None or part.startswith("{") or name in (DEVICE, NETWORK, OPERATOR):
            texts.append(part)
            continue
        with told_as(where, f"{name} = {part}: "):
            texts += _range(match, *_kind(name, fixed))
    repeated = [value for value, count in Counter(texts).items() if count > 1]
    if repeated:
        raise where(f"{name} has {', '.join(repeated)} twice; keep one of each")
    if not all(texts):
        raise where(f"{name} has an empty value; remove a comma, or give the value")
    return StudyAxis(name=name, values=tuple(texts), where=where)


def _kind(name: str, fixed: Setting) -> tuple[str, int]:
    """The quantity of a figure, "" for options, which are numbers, and the clock beside it."""
    subject = NETWORK in fixed or OPERATOR in fixed  # else it varies, and so do its options
    if DEVICE not in fixed or (subject and name in option_names(fixed)):
        return "", 1
    device = load_device(fixed[DEVICE])
    figure = figures(device).get(name)
    return figure.kind if figure is not None else "", device.clock_hz


def _range(match: re.Match[str], kind: str, clock_hz: int) -> Iterator[str]:
    """The texts of a range of numbers, or of quantities of a ``kind``."""
    is_factor = bool(match["times"])
    texts = [match["first"], match["last"]]
    if not is_factor:
        texts = [match["step"], *texts]
    if not kind:
        for text in texts:
            if not _PLAIN.fullmatch(text):
                raise ArgumentError(f"a range is first:last:step in numbers, and {text!r} is none")
    if is_factor and not _PLAIN.fullmatch(match["step"]):
        raise ArgumentError(f"a factor is a number such as *2, and *{match['step']} is none")
    if kind:
        numbers, text_of = in_one_unit(texts, kind, clock_hz)
    else:
        numbers, text_of = [Fraction(text) for text in texts], _plain
    first, last = numbers[-2:]
    step = Fraction(match["step"]) if is_factor else numbers[0]
    grows = (step > 1 and first > 0) if is_factor else step > 0
    if not grows or last < first:
        raise ArgumentError("a range goes upwards: first:last:step or first:last:*factor")
    for _ in range(_LONGEST):
        if first > last:
            return
        yield text_of(first)
        first = first * step if is_factor else first + step
    raise ArgumentError(f"the range has more than {_LONGEST:,} values; take larger steps")


def _plain(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else str(float(number))


# -- files -----------------------------------------------------------------------------------

#: Keys of a study file: what is measured on what, and all of them.
_SUBJECT = (DEVICE, NETWORK, OPERATOR)
_KEYS = (
    *_SUBJECT,
    "description",
    "options",
    "set",
    "vary",
    "combine",
    "points",
    "goals",
    "subject_to",
    "trials",
)


def load_study(source: TextFile | str) -> Study:
    """Read a study file. Raises ``ConfigError`` with file, line and the way out.

    A file of another kind is an ``ArgumentError`` that says what it is.
    """
    if isinstance(source, Path):
        require_content(source, (Content.STUDY,), "a study file")
    root = load_tree(source)
    tree = root.mapping((), _KEYS)
    nodes = _fixed_nodes(tree)
    if "points" in tree and "vary" in tree:
        raise tree["points"].fail("points stands in place of vary; keep one of them")
    fixed = {name: node.text() for name, node in nodes.items()}
    if OPERATOR in nodes:
        _read_at(nodes[OPERATOR], lambda: card_of(fixed))
    if DEVICE in nodes:
        _read_at(nodes[DEVICE], lambda: load_device(fixed[DEVICE]))
    axes = tree["vary"].mapping() if "vary" in tree else {}
    points = tree["points"].items() if "points" in tree else []
    goals = _read_goals(tree)
    with told_as(root.fail, caught=ArgumentError):
        study = Study(
            fixed=fixed,
            axes=tuple(_axis(name, node, fixed) for name, node in axes.items()),
            combine=tree["combine"].text() if "combine" in tree else "grid",
            listed=tuple(_setting(point) for point in points),
            description=tree["description"].text() if "description" in tree else "",
            places={name: node.fail for name, node in nodes.items()},
            goals=goals,
            goal_place=tree["goals"].fail if goals else ArgumentError,
            subject_to=_read_limits(tree),
            trials=_read_trials(tree),
        )
        study.check()
    return study


def _fixed_nodes(tree: Mapping[str, YamlNode]) -> dict[str, YamlNode]:
    """The names that a file fixes at all points; a name stated twice is an error."""
    nodes = {key: tree[key] for key in _SUBJECT if key in tree}
    for key in ("options", "set"):
        stated = tree[key].mapping() if key in tree else {}
        for name, node in stated.items():
            if name in nodes:
                raise node.fail(f"{name} is stated twice; keep one of them")
            nodes[name] = node
    return nodes


def _setting(point: YamlNode) -> Setting:
    """A point of a list, as texts by name."""
    return {name: node.text() for name, node in point.mapping().items()}


def _read_goals(tree: Mapping[str, YamlNode]) -> tuple[str, ...]:
    """The goals of an exploration, () where a file has none."""
    if "goals" not in tree:
        return ()
    names = tuple(item.text() for item in tree["goals"].items())
    return check_goals(names, tree["goals"].fail)


def _read_limits(tree: Mapping[str, YamlNode]) -> tuple[str, ...]:
    """The limits of an exploration."""
    items = tree["subject_to"].items() if "subject_to" in tree else []
    for item in items:
        _read_at(item, partial(limit, item.text()))
    return tuple(item.text() for item in items)


def _read_trials(tree: Mapping[str, YamlNode]) -> int:
    """The points that an exploration looks at, 0 where a file does not say."""
    if "trials" not in tree:
        return 0
    trials: int = _read_at(tree["trials"], lambda: parse_count(tree["trials"].text()))
    return trials


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


def _read_at(node: YamlNode, read: Callable[[], Any]) -> Any:
    """A value; its error says where ``node`` stands."""
    with told_as(node.fail, caught=ArgumentError):
        return read()


def _axis(name: str, node: YamlNode, fixed: Setting) -> StudyAxis:
    if isinstance(node.value, str):
        return make_axis(name, node.text(), fixed, node.fail)
    values = [item.text() for item in node.items()]
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
        return ",".join(_text(item) for item in value)
    return str(value)
