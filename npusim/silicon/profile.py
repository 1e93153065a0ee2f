"""Profiles as they are: msprof's ``op_summary`` CSV, one row per launch of a kernel.

The columns are those that CANN's profiler documentation names, by any of the names that its
versions and the framework's ``kernel_details.csv`` give them. Launches that are alike (type,
operands, cores, and the choice beside the file) become one row with the medians.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief
from statistics import median
from typing import Any, NamedTuple

from npusim.base.errors import ArgumentError
from npusim.base.integers import digits
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.kernels.matmul.measured import table
from npusim.machine.device.files import ALIASES
from npusim.silicon.choices import Choices, beside, read_choices
from npusim.silicon.rows import ProfiledOperand, ProfiledRow, Unreadable
from npusim.silicon.sheet import Sheet, read_lines, read_sheet

#: The columns that are read of a profile, as ``configs/silicon/profile.csv`` lists them: "holds" is
#: their subject, "names" their names in lower case, without the unit. Busy times are called as the
#: fields of a row that hold them. Chips whose cores have cube and vector unit together name no kind
#: of core; where there are two kinds, each counts for its own kernels.
_READ = table("profile.csv")
_PIPES = [column["holds"] for column in _READ if column["holds"].endswith("_us")]

_UNIT = re.compile(r"(.*?)\s*\(([^()]*)\)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_SHAPE = re.compile(r"\d{1,9}(?:,\d{1,9})*", re.ASCII)
_EMPTY = ("", "N/A")

#: The factor by which a pipe may seem to work longer than its task lasts: counters are coarse.
_SLACK = 1.05

#: The names of element types in profiles, after an optional "DT_".
_DTYPES = {"FLOAT": "fp32", "FLOAT32": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16"}


def read_data(source: Path, chip: str | None, tilings: Path | None = None) -> Sheet:
    """Read a profile taken on ``chip``, or a file of kernels or calls, which names its chips.

    ``tilings`` is the YAML file with what a profile lacks; without one it is the file beside the
    profile with the same name. Raises ``ArgumentError`` or ``ConfigError`` with file and line.
    """
    if not is_profile(next(_table(source))[1]):
        return read_sheet(source)
    if chip is None:
        raise ArgumentError(f"{source}:1: a profile does not name its chip; give --device NAME")
    file = beside(source) if tilings is None else tilings
    choices = Choices() if file is None else read_choices(file)
    sheet = read_profile(source, ALIASES.get(chip, chip), choices)
    choices.check_used()
    return sheet


def is_profile(head: Sequence[str]) -> bool:
    """Return whether a header is that of a profile and not of measured kernels or calls."""
    names = {_bare(column)[0] for column in head}
    return bool(names & {"op type", "task duration", "task type", "accelerator core"})


def read_profile(source: Path, chip: str, choices: Choices) -> Sheet:
    """Read a profile taken on ``chip``.

    Raises ``ArgumentError`` with file and line for a file without rows, without a column that is
    needed, or with a time that is not in microseconds. A launch that cannot be read is
    ``Unreadable``.
    """
    lines = _table(source)
    head_line, head = next(lines)
    columns = _columns(f"{source}:{head_line}", head)
    unreadable: list[Unreadable] = []
    alike: dict[ProfiledRow, list[_Launch]] = {}
    for line, cells in lines:
        where = f"{source}:{line}"
        try:
            row, times = _read(columns, cells, chip, line, choices)
        except _WrongError as wrong:
            name = cells[columns["type"]] if columns["type"] < len(cells) else "row"
            unreadable.append(
                Unreadable(id=f"{name}:{line}", family=name, chip=chip, reason=f"{where}: {wrong}")
            )
            continue
        alike.setdefault(row, []).append(_Launch(where, times))
    if not unreadable and not alike:
        raise ArgumentError(
            f"{source}:{head_line}: there is no row below the header; export the profile"
        )
    measured = [_measured(row, launches) for row, launches in alike.items()]
    return Sheet(str(source), tuple(head), (*measured, *unreadable), ())


class _Launch(NamedTuple):
    """File and line of a launch, and its times in microseconds by the field of a row."""

    where: str
    times: dict[str, float]


class _WrongError(Exception):
    """The fault of one launch: a text without file and line."""


def _table(source: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a file with their numbers, the header first."""
    lines = read_lines(source)
    first = next(lines, None)
    if first is None:
        raise ArgumentError(f"{source}:1: the file is empty; expected a CSV with a header")
    yield first
    yield from lines


def _bare(column: str) -> tuple[str, str]:
    """Name in lower case and unit of a column; the unit is "" without one."""
    match = _UNIT.fullmatch(column)
    name, unit = (match[1], match[2]) if match else (column, "")
    return " ".join(name.lower().split()), unit.strip().lower()


def _columns(where: str, head: Sequence[str]) -> dict[str, int]:
    """The place of every column that is read, by its subject."""
    places: dict[str, int] = {}
    units: dict[str, str] = {}
    for place, column in enumerate(head):
        name, unit = _bare(column)
        if name in places:
            raise ArgumentError(f"{where}: column {column!r} is there twice; keep one of them")
        places[name] = place
        units[name] = unit
    columns: dict[str, int] = {}
    for read in _READ:
        subject, names = read["holds"], read["names"].split(";")
        present = [name for name in names if name in places]
        if present:
            columns[subject] = places[present[0]]
        elif read["needed"]:
            near = suggest(names[0], places)
            raise ArgumentError(
                f"{where}: no column {names[0]!r}{near if 'did you mean' in near else ''}; export "
                "the profile with types, shapes and times of operators"
            )
        is_time = subject == "duration" or subject in _PIPES
        for name in present:
            if is_time and units[name] != "us":
                raise ArgumentError(
                    f"{where}: column {head[places[name]]!r}: expected microseconds, '(us)'; "
                    "convert its numbers and rename it"
                )
    return columns


def _read(
    columns: Mapping[str, int], cells: Sequence[str], chip: str, line: int, choices: Choices
) -> tuple[ProfiledRow, dict[str, float]]:
    """The row that a launch shares with those that are alike, and its times.

    Raises ``_WrongError`` for a cell that cannot be read.
    """
    if len(cells) <= max(columns.values()):
        raise _WrongError(f"{len(cells)} cells, fewer than the header has columns")
    text = {subject: cells[place].strip() for subject, place in columns.items()}
    kind = text["type"]
    if kind in _EMPTY:
        raise _WrongError("no op type")
    operands = _operands(text, "input")
    results = _operands(text, "output")
    cores = _cores(text.get("cores", ""))
    times = _times(text)
    launch = {
        "op_name": text.get("name", ""),
        "op_type": kind,
        "input_shapes": _plain(text["input shapes"]),
        "lines": str(line),
    }
    row = ProfiledRow(
        id="",
        chip=chip,
        op=kind,
        family=kind,
        cores=cores,
        task=text.get("task", "").upper(),
        operands=operands,
        results=results,
        choice=choices.of(launch),
        time_kind="task",
    )
    return row, times


def _cores(text: str) -> int | None:
    """The cores of a launch; None where the profile does not say, or says 0."""
    if text in _EMPTY:
        return None
    cores = digits(text)
    if cores is None:
        raise _WrongError(f"block dim: expected a number of cores, got {brief(text)}")
    return cores or None


def _times(text: Mapping[str, str]) -> dict[str, float]:
    """The times of a launch, by the field of a row."""
    times = {"time_us": _time("task duration", text["duration"])}
    if not times["time_us"]:
        raise _WrongError("task duration: expected a time above 0")
    for column in _PIPES:
        if text.get(column, "") in _EMPTY:
            continue
        pipe = column.removesuffix("_us")
        times[column] = _time(pipe, text[column])
        if times[column] > _SLACK * times["time_us"]:
            raise _WrongError(
                f"{pipe} works {times[column]:g} us in a task of {times['time_us']:g} us; are "
                "both in microseconds?"
            )
    return times


def _time(name: str, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise _WrongError(f"{name}: expected a number of microseconds, got {text!r}")
    return float(text)


def _plain(text: str) -> str:
    """A list as it was before CSV quoted its quotes, without blanks."""
    return text.replace('"', "").replace(" ", "")


def _operands(text: Mapping[str, str], side: str) -> tuple[ProfiledOperand, ...]:
    """The operands of one side; those that a call left out have no shape and are left out."""
    shapes = _listed(text[f"{side} shapes"])
    types = _listed(text.get(f"{side} types", ""))
    formats = _listed(text.get(f"{side} formats", ""))
    operands = []
    for place, shape in enumerate(shapes):
        kind = types[place].upper() if place < len(types) else ""
        form = formats[place].upper() if place < len(formats) else ""
        if not shape:
            continue
        if not _SHAPE.fullmatch(shape):
            raise _WrongError(f"{side} shapes: expected sizes such as 16,512, got {shape!r}")
        kind = kind.removeprefix("DT_")
        name = _DTYPES.get(kind, kind.lower())
        operands.append(ProfiledOperand(tuple(map(int, shape.split(","))), name, form or "ND"))
    if not operands:
        raise _WrongError(f"{side} shapes are empty; a kernel without shapes cannot be simulated")
    return tuple(operands)


def _listed(text: str) -> list[str]:
    return [] if text in _EMPTY else _plain(text).split(";")


def _measured(row: ProfiledRow, launches: Sequence[_Launch]) -> ProfiledRow:
    """The row with the medians of its launches; a pipe that one of them lacks is left out."""
    where = launches[0].where
    shared = set.intersection(*(set(launch.times) for launch in launches))
    medians: dict[str, Any] = {}
    for column in sorted(shared):
        value = median(launch.times[column] for launch in launches)
        if value:
            medians[column] = value
    if "cube_us" not in medians and "aiv_mte2_us" in medians:
        medians.setdefault("mte2_us", medians["aiv_mte2_us"])
    name = f"{row.op}:{where.rpartition(':')[2]}"
    return replace(row, id=name, where=where, launches=len(launches), **medians)
