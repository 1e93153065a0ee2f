"""Rows of two steps that fuse different operations, brought together before they are compared.

A chip whose convolution adds the bias has the kind "convolution output + bias" where another has
"convolution output" and "bias"; its operation of that kind is called as the last of the operations
that it replaces. Without this such rows have no partner, or one that does less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from npusim.results.facts.differences import Row, numbered
from npusim.results.facts.fact import names_of
from npusim.results.facts.step_rows import KIND, KINDS, OPERATION, OPERATIONS

#: A phase, and a kind or the name of an operation.
Place = tuple[str, str]

#: What stands between kinds that one kernel computes together.
FUSED = " + "

#: The kernels that an operation launches, however often it runs.
LAUNCHES = "launches"


class Matched(NamedTuple):
    """Rows of both steps that do the same, added up; {} where a step has none."""

    name: str
    a: Row
    b: Row


# -- kinds of operations -----------------------------------------------------------------------


def kinds(a: Sequence[Row], b: Sequence[Row]) -> Iterator[Matched]:
    """Kinds of both steps by phase; those of b alone come last.

    Kinds that are fused on one side only, and all that are fused with them, are one row. A kind of
    two phases says which: "linear, backward".
    """
    first, second = _by_phase_and_kind(a), _by_phase_and_kind(b)
    keys = list(dict.fromkeys([*first, *second]))
    groups = _groups(keys, set(first), set(second))
    rows: dict[Place, list[Place]] = {}
    for key in keys:
        rows.setdefault(groups[key], []).append(key)
    phases: dict[str, set[str]] = {}
    for phase, name in rows:
        phases.setdefault(name, set()).add(phase)
    for (phase, name), members in rows.items():
        yield Matched(
            f"{name}, {phase}" if len(phases[name]) > 1 else name,
            _sum([first[key] for key in members if key in first]),
            _sum([second[key] for key in members if key in second]),
        )


def _by_phase_and_kind(rows: Sequence[Row]) -> dict[Place, Row]:
    return {(row["phase"], row["kind"]): row for row in rows}


def _groups(keys: Sequence[Place], first: set[Place], second: set[Place]) -> dict[Place, Place]:
    """By phase and kind the phase and the name of the row that it is part of."""
    linked: dict[Place, set[str]] = {}  # by phase and plain kind: the kinds of its group
    for phase, kind in keys:
        on_both_sides = (phase, kind) in first and (phase, kind) in second
        plain = kind.split(FUSED)
        if on_both_sides or len(plain) == 1:
            continue
        together: set[str] = set(plain)
        for name in plain:
            together |= linked.get((phase, name), set())
        for name in together:
            linked[phase, name] = together
    groups = {}
    for phase, kind in keys:
        together = set.union(*(linked.get((phase, n), set()) for n in kind.split(FUSED)))
        groups[phase, kind] = (phase, _group_name(together, phase, keys) if together else kind)
    return groups


def _group_name(together: set[str], phase: str, keys: Sequence[Place]) -> str:
    """The plain kinds of a group, those of the longest fused kind first."""
    fused = [kind.split(FUSED) for of, kind in keys if of == phase and FUSED in kind]
    inside = [plain for plain in fused if together.issuperset(plain)]
    inside.sort(key=lambda plain: -len(plain))
    return FUSED.join(dict.fromkeys(name for plain in inside for name in plain))


def _sum(rows: Sequence[Row]) -> Row:
    if not rows:
        return {}
    return _sums(rows, names_of(KINDS, KIND))


def _sums(rows: Sequence[Row], names: Sequence[str]) -> Row:
    """The sums of facts of rows, of those that are numbers in all of them."""
    sums: Row = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if all(isinstance(value, int | float) for value in values):
            sums[name] = sum(values)
    return sums


# -- operations --------------------------------------------------------------------------------


def operations(a: Sequence[Row], b: Sequence[Row]) -> Iterator[Matched]:
    """Operations of both steps by phase and name, in the order of launch; those of b alone last.

    An operation that is fused on one side only has as its partner the operations of its name and
    those just before it that are fused into it; ``kind`` then lists all of them. A name of two
    phases says which: "conv1.bias, backward"; the second of a phase is called "name #2". Rows have
    ``launches``, how many kernels they launch. Conversions are no operations.
    """
    first, second = _by_phase_and_name(a), _by_phase_and_name(b)
    replaced_in_a, replaced_in_b = _replaced(second, first), _replaced(first, second)
    parts = {key for replaced in (replaced_in_a, replaced_in_b) for key in _all_of(replaced)}
    keys = [key for key in {**first, **second} if key not in parts]
    for key, name in _names(keys):
        yield Matched(name, _joined(first, key, replaced_in_a), _joined(second, key, replaced_in_b))


def conversions(a: Sequence[Row], b: Sequence[Row]) -> Iterator[Matched]:
    """Conversions of both steps by phase and value, all of a value as one row, with ``launches``.

    A value that is converted in two phases says which: "conv1, backward".
    """
    first, second = _by_phase_and_value(a), _by_phase_and_value(b)
    for key, name in _names(list({**first, **second})):
        yield Matched(name, first.get(key, {}), second.get(key, {}))


def _names(keys: Sequence[Place]) -> Iterator[tuple[Place, str]]:
    """The name of each row, with its phase where another phase has one of that name."""
    phases: dict[str, set[str]] = {}
    for phase, name in keys:
        phases.setdefault(name, set()).add(phase)
    for phase, name in keys:
        yield (phase, name), f"{name}, {phase}" if len(phases[name]) > 1 else name


def _by_phase_and_name(rows: Sequence[Row]) -> dict[Place, Row]:
    """Operations by phase and name, without conversions."""
    operations = [_counted(row) for row in rows if not row["converts"]]
    keyed: dict[Place, Row] = {}
    for phase in dict.fromkeys(row["phase"] for row in operations):
        of_phase = numbered([row for row in operations if row["phase"] == phase], "operation")
        keyed |= {(phase, name): row for name, row in of_phase.items()}
    return keyed


def _by_phase_and_value(rows: Sequence[Row]) -> dict[Place, Row]:
    """Conversions by phase and the value that they convert, added up."""
    members: dict[Place, list[Row]] = {}
    for row in rows:
        if row["converts"]:
            members.setdefault((row["phase"], row["converts"]), []).append(_counted(row))
    return {key: _added(of_value, of_value[0]["kind"]) for key, of_value in members.items()}


def _counted(row: Row) -> Row:
    """An operation with how many kernels it launches."""
    return {**row, LAUNCHES: len(row["kernels"]) * row.get("count", 1)}


def _added(rows: Sequence[Row], kind: str) -> Row:
    """Operations as one that is called as the last of them."""
    errors = [row["error"] for row in rows if row["error"]]
    return {
        **rows[-1],
        **_sums(rows, (*names_of(OPERATIONS, OPERATION), LAUNCHES)),
        "kind": kind,
        "error": errors[0] if errors else "",
    }


def _all_of(replaced: Mapping[Place, Sequence[Place]]) -> Iterator[Place]:
    for parts in replaced.values():
        yield from parts


def _replaced(fused: Mapping[Place, Row], plain: Mapping[Place, Row]) -> dict[Place, list[Place]]:
    """By an operation of ``fused`` those of ``plain`` that it replaces besides that of its name.

    These are operations that ``fused`` lacks: those of its name behind it, as a sum and what is
    applied to it are called alike, and the nearest before it. Others may stand between them, as a
    gradient can wait for the one to which it is added.
    """
    order = list(plain)
    places = {key: place for place, key in enumerate(order)}
    alone = {key for key in order if key not in fused}
    replaced: dict[Place, list[Place]] = {}
    for key, row in fused.items():
        missing = Counter(row["kind"].split(FUSED))
        if key not in places or missing.total() == 1:
            continue
        missing -= Counter(plain[key]["kind"].split(FUSED))
        place = places[key]
        behind = [after for after in order[place + 1 :] if _same_name(plain, key, after)]
        parts: list[Place] = []
        for candidate in [*behind, *reversed(order[:place])]:
            if not missing:
                break
            kinds_of_candidate = Counter(plain[candidate]["kind"].split(FUSED))
            in_phase = candidate[0] == key[0]
            if candidate in alone and in_phase and kinds_of_candidate <= missing:
                missing -= kinds_of_candidate
                alone.remove(candidate)
                parts.append(candidate)
        if parts:
            replaced[key] = parts
    return replaced


def _same_name(rows: Mapping[Place, Row], first: Place, second: Place) -> bool:
    return first[0] == second[0] and rows[first]["operation"] == rows[second]["operation"]


def _joined(
    rows: Mapping[Place, Row], key: Place, replaced: Mapping[Place, Sequence[Place]]
) -> Row:
    """The row of a key with those that are fused into it added; {} where there is none."""
    row = rows.get(key, {})
    parts = replaced.get(key, ())
    if not parts:
        return row
    order = [name for name in rows if name == key or name in parts]
    members = [rows[name] for name in order]
    return _added(members, ", ".join(member["kind"] for member in members))
