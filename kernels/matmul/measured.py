"""A library template's choice for a matrix product, in columns and words, and its tiling here.

Columns and words are those of measured kernels (``configs/silicon``). Rows of measurements and
tilings in the words of CATLASS (``npusim.kernels.vendor.imported``) both become a ``Tiling`` here,
and nowhere else.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any, NamedTuple

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

    With each the operations for which it is simulated, and the settings it makes of their kernels.
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
    """Return the settings that switches make of the kernel of an operation.

    ``kind`` is the operation's name in errors. Raises ``ArgumentError`` for a word that is not
    simulated for it.
    """
    values: dict[str, Any] = {}
    for word in switches:
        ops, sets = words().get(word, (frozenset(), {}))
        if op not in ops:
            raise ArgumentError(f"switches: {word} is not simulated for {kind or op}")
        values |= sets
    return values


@cache
def _spelled_orders() -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    """The ways to spell an order of tiles, and the columns each stands for."""
    return tuple(
        (re.compile(re.escape(entry.pop("form")).replace(r"\#", r"(\d{1,18})"), re.ASCII), entry)
        for entry in table("orders.csv")
    )


def spelled_order(text: str) -> dict[str, Any] | None:
    """Return the columns of the order for a text of ``swizzle``; None for a form not known.

    The forms stand in ``configs/silicon/orders.csv``; "#" is a number, as a cell the first one.
    """
    for pattern, cells in _spelled_orders():
        match = pattern.fullmatch(text)
        if match is None:
            continue
        columns: dict[str, Any] = {c: cell for c, cell in cells.items() if cell}
        for column, cell in columns.items():
            if cell == "#":
                columns[column] = match[1]
        if "window" in columns:
            columns["window"] = int(columns["window"])
        if "snake" in columns:
            columns["snake"] = columns["snake"] == "1"
        return columns
    return None


@dataclass(frozen=True, kw_only=True)
class TemplateChoice:
    """A library template's choice for a product, in columns of a measured kernel.

    Sizes are elements, of block-scaled dtypes values; steps are base blocks; ``buffers_l1`` are the
    slots of A and of B. None, or no words, is an empty cell. ``configs/silicon/README.md`` explains
    every column.
    """

    M: int | None = None
    N: int | None = None
    K: int | None = None
    single_core_m: int | None = None
    single_core_n: int | None = None
    single_core_k: int | None = None
    base_m: int | None = None
    base_n: int | None = None
    base_k: int | None = None
    step_ka: int | None = None
    step_kb: int | None = None
    buffers_l1: tuple[int, int] | None = None
    buffers_l0: int | None = None
    buffers_l0c: int | None = None
    switches: tuple[str, ...] = ()
    swizzle: str | None = None
    order: str | None = None
    fastest: str | None = None
    inner: str | None = None
    window: int | None = None
    last_window: str | None = None
    snake: bool | None = None
    scale_steps: int | None = None

    @property
    def sizes(self) -> ProductSizes:
        """The sizes that every choice states; ``ArgumentError`` for a column that is empty."""
        return ProductSizes(
            m=_stated("M", self.M),
            n=_stated("N", self.N),
            k=_stated("K", self.K),
            base_m=_stated("base_m", self.base_m),
            base_n=_stated("base_n", self.base_n),
            base_k=_stated("base_k", self.base_k),
        )


class ProductSizes(NamedTuple):
    """The sizes of a product and of its base blocks, as the columns have them."""

    m: int
    n: int
    k: int
    base_m: int
    base_n: int
    base_k: int

    @property
    def tiles(self) -> int:
        """The base blocks of the result."""
        return ceil_div(self.m, self.base_m) * ceil_div(self.n, self.base_n)

    @property
    def last_tile(self) -> tuple[int, int]:
        """Rows and columns of the last base block of the result."""
        return (self.m - 1) % self.base_m + 1, (self.n - 1) % self.base_n + 1


def _stated(column: str, value: int | None) -> int:
    if value is None:
        raise ArgumentError(f"{column} is empty: a product needs it")
    return value


def template_values(
    choice: TemplateChoice, sets: dict[str, Any], device: Device, dtype: DType, cores: int
) -> tuple[dict[str, Any], list[str]]:
    """The fields of the ``Tiling`` of a template on so many cores, and notes on assumptions.

    ``sets`` are the settings of its switches. Raises ``ArgumentError`` with the column or word that
    says nothing known.
    """
    notes: list[str] = []
    sizes = choice.sizes
    scale = sets.pop("scale", "")
    values: dict[str, Any] = {
        **_blocks(choice, dtype),
        **_slabs(choice, dtype, device, notes, scale),
        **_slots(choice),
        **_order(choice, notes),
        **sets,
    }
    if "share_b_in_l1" in choice.switches:
        values["base_m"] = ceil_div(sizes.m, 16) * 16
        values["single_core_m"] = 0
        notes.append("share_b_in_l1: the blocks of both callers are one tile")
    values |= _tail(choice, cores, strided=values["strided"])
    values |= _parts(choice, values, cores)
    return values, notes


def _blocks(choice: TemplateChoice, dtype: DType) -> dict[str, int]:
    """The base block and the single-core block."""
    sizes = choice.sizes
    return {
        "base_m": sizes.base_m,
        "base_n": sizes.base_n,
        "base_k": sizes.base_k // dtype.values,
        "single_core_m": choice.single_core_m or 0,
        "single_core_n": choice.single_core_n or 0,
    }


def _slots(choice: TemplateChoice) -> dict[str, int]:
    """Slots per level; where none are stated, the pipelined template's two, one for L0C."""
    if choice.buffers_l1 is not None:
        a, b = choice.buffers_l1
    else:
        a = b = 1 if "norm_template" in choice.switches else 2
    return {
        "l1a_slots": a,
        "l1b_slots": b,
        "l0_slots": choice.buffers_l0 or 2,
        "l0c_slots": choice.buffers_l0c or 1,
    }


def _slabs(
    choice: TemplateChoice, dtype: DType, device: Device, notes: list[str], scale: str
) -> dict[str, int]:
    """Base blocks per copy of A, of B and of scales; these are for ``scale``, "8 base block"."""
    step_a, step_b = choice.step_ka, choice.step_kb
    if step_a is None or step_b is None:
        step_a = step_b = _unstated_step(choice, dtype, device, notes)
    steps = {"step_ka": step_a, "step_kb": step_b}
    if choice.scale_steps is not None:
        return steps | {"step_scale": choice.scale_steps}
    sizes = choice.sizes
    if scale:
        number, unit = scale.split(" ", 1)
        count = int(number)
        blocks = {"slab of A": count * step_a, "base block": count}
        steps["step_scale"] = blocks.get(unit, count // sizes.base_k)
    if "scale_coalesced" in choice.switches:
        steps["step_scale"] = ceil_div(sizes.k, sizes.base_k)
        notes.append("scale_coalesced: one copy of scales is taken to serve all of K")
    return steps


def _unstated_step(choice: TemplateChoice, dtype: DType, device: Device, notes: list[str]) -> int:
    """The library's, where it chose: as many base blocks as fit L1 twice, of rows in few pieces."""
    if not {"mdl_template", "mix_mode"} & set(choice.switches):
        raise ArgumentError("step_ka and step_kb are empty: the depth of a copy is not stated")
    sizes = choice.sizes
    row_bytes = sizes.base_k * dtype.bytes // dtype.values
    block_bytes = (sizes.base_m + sizes.base_n) * row_bytes
    step = device.memory("L1").size_bytes // 2 // block_bytes
    piece = device.path("GM", "L1", "nd2nz").piece_bytes
    piece_blocks = piece // gcd(piece, row_bytes) if piece else 1  # blocks that end with a piece
    if step > piece_blocks:
        step -= step % piece_blocks
    notes.append(f"steps are not stated: {step} base blocks, as many as fit L1 twice")
    return max(1, min(step, ceil_div(sizes.k, sizes.base_k)))


def _order(choice: TemplateChoice, notes: list[str]) -> dict[str, Any]:
    """The order of blocks, and of the tiles inside one."""
    stated = _stated_order(choice)
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
    if "l2_split" in choice.switches or "l2_split_m2" in choice.switches:
        order |= _halves(choice)
    return order


def _stated_order(choice: TemplateChoice) -> TemplateChoice:
    """The choice with the columns of its order, which an older file spells in ``swizzle``."""
    if choice.order is not None or choice.swizzle is None:
        return choice
    columns = spelled_order(choice.swizzle)
    if columns is None:
        raise ArgumentError(
            f"swizzle: {choice.swizzle!r} is not known; state order, fastest and window"
        )
    if any(word in choice.switches for word in LIBRARY):
        columns.pop("inner", None)
    return replace(choice, **columns)


def _halves(choice: TemplateChoice) -> dict[str, Any]:
    """Two passes, the upper half of M before the lower."""
    if choice.single_core_m is None:
        raise ArgumentError("single_core_m is empty: the halves of M need it")
    blocks = ceil_div(choice.sizes.m, choice.single_core_m)
    return {"window": ceil_div(blocks, 2), "snake": False, "n_fastest": False}


def _tail(choice: TemplateChoice, cores: int, *, strided: bool) -> dict[str, int]:
    """The cuts of the tiles of a last round that leaves cores idle.

    In two along N; or into equal parts along M and N by the rule of the adaptive sliding window,
    which is also what evening out a round comes to.
    """
    sizes = choice.sizes
    last_round = sizes.tiles % cores
    if not last_round or not strided:
        return {}
    if "tail_tile_split_n2" in choice.switches:
        return {"tail_n": 2} if 2 * last_round <= cores else {}
    if "aswt_tail_split" not in choice.switches and "tail_rebalance" not in choice.switches:
        return {}
    rows, columns = sizes.last_tile
    along_m, along_n = window_tail(cores // last_round, rows, columns)
    return {"tail_m": along_m, "tail_n": along_n}


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


def _parts(choice: TemplateChoice, values: dict[str, Any], cores: int) -> dict[str, int]:
    """The depth of a part of K, where its parts are computed by different cores."""
    sizes = choice.sizes
    if "streamk2" in choice.switches:
        if sizes.tiles * 2 > cores:
            raise ArgumentError(
                f"switches: streamk2 with {sizes.tiles} tiles on {cores} cores would split only "
                "those of the last round, which is not simulated"
            )
        parts = 2
    elif "multi_core_split_k" in choice.switches:
        parts = max(cores // sizes.tiles, 1)
    else:
        return {}
    unit = values["base_k"] * max(values["step_ka"], values["step_kb"])
    depth = sizes.k * values["base_k"] // sizes.base_k
    return {"single_core_k": ceil_div(ceil_div(depth, parts), unit) * unit}
