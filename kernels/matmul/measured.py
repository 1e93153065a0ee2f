"""A library template's choice for a matrix product, in columns and words, and what it is here.

Columns and words are those of measured kernels (``configs/silicon``). Rows of measurements and
tilings in the words of CATLASS (``npusim.kernels.vendor.imported``) both become a ``Tiling`` here,
and nowhere else.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from functools import cache
from math import gcd
from typing import Any

from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.language import ArgumentError, Device, DType, ceil_div

#: Words for library templates: these parse their tiling at run time, and walk tiles along M first.
LIBRARY = ("norm_template", "mdl_template")
#: Words for results that vector cores finish from global memory, within the same kernel.
FINISHED = ("per_token_dequant_on_aiv", "cv_fused_via_gm")


def table(name: str) -> list[dict[str, str]]:
    """Return the lines of a table that ships beside the measurements, by column."""
    text = (configs() / "silicon" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


@cache
def words() -> Mapping[str, tuple[frozenset[str], Mapping[str, Any]]]:
    """Return the words that ``switches`` may hold, from the table that explains them.

    With each the operations for which it is simulated and what it sets of their kernels.
    """
    return {
        entry["word"]: (frozenset(_split(entry["ops"])), dict(map(_setting, _split(entry["sets"]))))
        for entry in table("words.csv")
    }


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _setting(text: str) -> tuple[str, Any]:
    """Name and value of ``name``, ``name=2`` or ``name=text``."""
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value or True


def settings(switches: tuple[str, ...], op: str, kind: str = "") -> dict[str, Any]:
    """Return what switches set of the kernel of an operation, called ``kind`` in errors.

    Raises ``ArgumentError`` for a word that is not simulated for it.
    """
    found: dict[str, Any] = {}
    for word in switches:
        ops, sets = words().get(word, (frozenset(), {}))
        if op not in ops:
            raise ArgumentError(f"switches: {word} is not simulated for {kind or op}")
        found |= sets
    return found


@cache
def _spelled_orders() -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    """The ways to spell an order of tiles, and the columns each stands for."""
    return tuple(
        (re.compile(re.escape(entry.pop("form")).replace(r"\#", r"(\d{1,18})"), re.ASCII), entry)
        for entry in table("orders.csv")
    )


def spelled_order(text: str) -> dict[str, Any] | None:
    """Return what the columns of the order are for a text of ``swizzle``; None for no known form.

    The forms stand in ``configs/silicon/orders.csv``; "#" is a number, as a cell the first one.
    """
    for pattern, cells in _spelled_orders():
        found = pattern.fullmatch(text)
        if found is not None:
            stated = {c: found[1] if cell == "#" else cell for c, cell in cells.items() if cell}
            read: dict[str, Any] = {"window": int, "snake": "1".__eq__}
            return {column: read.get(column, str)(cell) for column, cell in stated.items()}
    return None


def columns_of(file: str) -> Any:
    """A base with a field for every column of a kind of file, as ``columns.csv`` lists them.

    Empty cells are None, or no words. ``holds`` and ``words`` are metadata for who reads cells.
    """
    columns = [
        (one["column"], Any, field(default=() if one["holds"] == "words" else None, metadata=one))
        for one in table("columns.csv")
        if one["file"] == file
    ]
    return make_dataclass(f"_{file}", columns, frozen=True, kw_only=True)


#: The columns of a measured kernel: sizes are elements, of block-scaled types values, steps base
#: blocks; ``buffers_l1`` are the slots of A and of B.
Template: Any = columns_of("kernels")


def template_values(
    row: Any, sets: dict[str, Any], device: Device, dtype: DType, cores: int
) -> tuple[dict[str, Any], list[str]]:
    """The fields of the ``Tiling`` of a template on so many cores, and what was taken for granted.

    ``sets`` is what its switches set. Raises ``ArgumentError`` with the column or word that says
    nothing known.
    """
    notes: list[str] = []
    values = {
        **_blocks(row, dtype),
        **_slabs(row, dtype, device, notes, sets.pop("scale", "")),
        **_slots(row),
        **_order(row, notes),
        **sets,
    }
    if "share_b_in_l1" in row.switches:
        values["base_m"] = ceil_div(row.M, 16) * 16
        values["single_core_m"] = 0
        notes.append("share_b_in_l1: the blocks of both callers are one tile")
    values |= _tail(row, values, cores)
    return values | _parts(row, values, cores), notes


def _blocks(row: Any, dtype: DType) -> dict[str, int]:
    """The base block and the single-core block."""
    same = ("base_m", "base_n", "single_core_m", "single_core_n")
    return {name: getattr(row, name) or 0 for name in same} | {"base_k": row.base_k // dtype.values}


def _slots(row: Any) -> dict[str, int]:
    """Slots per level; what is not stated is the pipelined template's two, one for L0C."""
    a, b = row.buffers_l1 or ((1, 1) if "norm_template" in row.switches else (2, 2))
    return {
        "l1a_slots": a,
        "l1b_slots": b,
        "l0_slots": row.buffers_l0 or 2,
        "l0c_slots": row.buffers_l0c or 1,
    }


def _slabs(row: Any, dtype: DType, device: Device, notes: list[str], scale: str) -> dict[str, int]:
    """Base blocks per copy of A, of B and of scales; these are for ``scale``, "8 base block"."""
    step_a, step_b = row.step_ka, row.step_kb
    if step_a is None or step_b is None:
        step_a = step_b = _unstated_step(row, dtype, device, notes)
    steps = {"step_ka": step_a, "step_kb": step_b}
    if row.scale_steps is not None:
        return steps | {"step_scale": row.scale_steps}
    if scale:
        number, what = scale.split(" ", 1)
        count = int(number)
        blocks = {"slab of A": count * step_a, "base block": count}
        steps["step_scale"] = blocks.get(what, count // row.base_k)
    if "scale_coalesced" in row.switches:
        steps["step_scale"] = ceil_div(row.K, row.base_k)
        notes.append("scale_coalesced: one copy of scales is taken to serve all of K")
    return steps


def _unstated_step(row: Any, dtype: DType, device: Device, notes: list[str]) -> int:
    """The library's, where it chose: as many base blocks as fit L1 twice, of rows in few pieces."""
    if not {"mdl_template", "mix_mode"} & set(row.switches):
        raise ArgumentError("step_ka and step_kb are empty: the depth of a copy is not stated")
    base = row.base_m + row.base_n
    deep = row.base_k * dtype.bytes // dtype.values
    step = device.memory("L1").size_bytes // 2 // (base * deep)
    piece = device.path("GM", "L1", "nd2nz").piece_bytes
    whole = piece // gcd(piece, deep) if piece else 1  # blocks that end with a piece
    step -= step % whole if step > whole else 0
    notes.append(f"steps are not stated: {step} base blocks, as many as fit L1 twice")
    return int(max(1, min(step, ceil_div(row.K, row.base_k))))


def _order(row: Any, notes: list[str]) -> dict[str, Any]:
    """The order of blocks, and of the tiles inside one."""
    stated = _stated_order(row)
    if (stated.order, stated.fastest, stated.window) == (None, None, None):
        notes.append("the order of tiles is not stated: along M first, core stride")
    order: dict[str, Any] = {
        "strided": stated.order != "contiguous",
        "n_fastest": stated.fastest == "n",
        "n_inner": stated.inner == "n",
        "window": stated.window or 0,
        "last_wide": stated.last_window == "joined",
        "snake": bool(stated.snake),
    }
    if any(word in row.switches for word in ("l2_split", "l2_split_m2")):
        order |= _halves(row)
    return order


def _stated_order(row: Any) -> Any:
    """The row with the columns of its order, which an older file spells in ``swizzle``."""
    if row.order is not None or row.swizzle is None:
        return row
    columns = spelled_order(row.swizzle)
    if columns is None:
        raise ArgumentError(
            f"swizzle: {row.swizzle!r} is not known; state order, fastest and window"
        )
    if any(word in row.switches for word in LIBRARY):
        columns.pop("inner", None)
    return replace(row, **columns)


def _halves(row: Any) -> dict[str, Any]:
    """Two passes, the upper half of M before the lower."""
    if row.single_core_m is None:
        raise ArgumentError("single_core_m is empty: the halves of M need it")
    blocks = ceil_div(row.M, row.single_core_m)
    return {"window": ceil_div(blocks, 2), "snake": False, "n_fastest": False}


def _tiles(row: Any) -> int:
    return int(ceil_div(row.M, row.base_m) * ceil_div(row.N, row.base_n))


def _tail(row: Any, values: dict[str, Any], cores: int) -> dict[str, int]:
    """How the tiles of a last round that leaves cores idle are cut.

    In two along N; or into equal parts along M and N by the rule of the adaptive sliding window,
    which is also what evening out a round comes to.
    """
    left = _tiles(row) % cores
    if not left or not values["strided"]:
        return {}
    if "tail_tile_split_n2" in row.switches:
        return {"tail_n": 2} if 2 * left <= cores else {}
    if not any(word in row.switches for word in ("aswt_tail_split", "tail_rebalance")):
        return {}
    along_m, along_n = window_tail(cores // left, _last(row, "M"), _last(row, "N"))
    return {"tail_m": along_m, "tail_n": along_n}


def _last(row: Any, axis: str) -> int:
    """Elements of the last tile along an axis."""
    size: int = getattr(row, axis)
    return int((size - 1) % getattr(row, f"base_{axis.lower()}")) + 1


def window_tail(cores: int, rows: int, columns: int) -> tuple[int, int]:
    """Parts along M and N of a tile of the last round for which there are ``cores`` cores.

    The rule of catlass' adaptive sliding window: as many parts as cores along both axes, at most
    one per element of the last tile, and then fewer along the axis with more parts, M if they are
    as many, until there is a core for each.
    """
    along_m, along_n = min(rows, cores), min(columns, cores)
    while along_m * along_n > cores:
        if along_m >= along_n:
            along_m -= 1
        else:
            along_n -= 1
    return along_m, along_n


def _parts(row: Any, values: dict[str, Any], cores: int) -> dict[str, int]:
    """The depth of a part of K, where its parts are computed by different cores."""
    if "streamk2" in row.switches:
        if _tiles(row) * 2 > cores:
            raise ArgumentError(
                f"switches: streamk2 with {_tiles(row)} tiles on {cores} cores would split only "
                "those of the last round, which is not simulated"
            )
        parts = 2
    elif "multi_core_split_k" in row.switches:
        parts = cores // _tiles(row)
    else:
        return {}
    unit = values["base_k"] * max(values["step_ka"], values["step_kb"])
    depth: int = row.K * values["base_k"] // row.base_k
    return {"single_core_k": ceil_div(ceil_div(depth, max(parts, 1)), unit) * unit}
