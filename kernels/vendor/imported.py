"""Tilings of other people's matrix products, which become ours when the product is known.

``catlass_tiling`` takes the choice of a CATLASS template under the names of its C++
(hicann/catlass, its examples and documents: ``L1TileShape``, ``DispatchPolicy``,
``BlockScheduler``), ``ascendc_tiling`` the fields of ``TCubeTiling`` (Ascend C API reference,
Matmul). Both are mappings, or JSON or YAML files of them; ``switches`` are npusim's own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from npusim.base.content import Content, require_content
from npusim.base.integers import ceil_div, digits
from npusim.base.yamltree import YamlNode, load_tree, suggest
from npusim.kernels.matmul.measured import (
    FINISHED,
    TemplateChoice,
    settings,
    template_values,
    words,
)
from npusim.kernels.matmul.tiling import Shape, Tiling
from npusim.language import ArgumentError, Device

#: What describes a tiling: words by name, or a file of them.
Words = Mapping[str, Any] | str | Path
_Read = tuple[str, dict[str, YamlNode]]


@dataclass(frozen=True)
class Imported:
    """A tiling as somebody else says it; ``tiling`` makes it ours for a product.

    ``source`` is what errors and notes call it, ``words`` are columns of a measured row where it is
    ``templates``, and else the fields of a ``TCubeTiling``.
    """

    source: str
    words: tuple[tuple[str, Any], ...]
    templates: bool

    def tiling(self, shape: Shape, device: Device, cores: int) -> tuple[Tiling, list[str]]:
        """The tiling of a product on so many cores, and notes on how its words were taken.

        Raises ``ArgumentError``, which names the source, for a word that does not fit the product.
        """
        try:
            if self.templates:
                tiling, notes = self._of_template(shape, device, cores)
            else:
                tiling, notes = _of_cube(dict(self.words), shape, cores)
        except ArgumentError as error:
            raise ArgumentError(f"{self.source}: {error}") from error
        if shape.groups == 1:
            return tiling, [f"tiling {self.source}: {note}" for note in notes]
        raise ArgumentError(
            f"{self.source} is for one product, the call has {shape.groups}; leave the batch out, "
            "or give a npusim.kernels.matmul.matmul.Tiling"
        )

    def _of_template(self, shape: Shape, device: Device, cores: int) -> tuple[Tiling, list[str]]:
        """The tiling of a measured row's words."""
        depth = shape.k * shape.dtype.values
        template = TemplateChoice(M=shape.m, N=shape.n, K=depth, **dict(self.words))
        sets = settings(template.switches, "gemm")
        values, notes = template_values(template, sets, device, shape.dtype, cores)
        used = ", ".join(template.switches) or "no switches"
        notes.append(f"tiles in the order {template.swizzle}; {used}")
        return Tiling(**values), notes


def _read(given: Words, name: str, needed: Sequence[str], more: Sequence[str]) -> _Read:
    """The name of a tiling, and its words with their lines, of which no other is known."""
    if isinstance(given, Mapping):
        text = json.dumps(given, indent=0, default=str)
        source = f"{name} tiling"
        return source, load_tree(text, source).mapping(needed, more)
    require_content(Path(given), (Content.TILING,), "a tiling")
    return f"{name}:{given}", load_tree(Path(given)).mapping(needed, more)


def _number(node: YamlNode, least: int = 1) -> int:
    text = {"true": "1", "false": "0"}.get(node.text().lower(), node.text())
    value = digits(text)
    if value is None or value < least:
        raise node.fail(f"expected an integer of at least {least}, got {brief(node.text())}")
    return value


#: Dispatch policies, and the words that measured rows have for them.
_POLICIES: dict[str, tuple[str, ...]] = {
    "Pingpong": (),
    "Preload": ("preload",),
    "FullLoadA": ("full_load_a",),
}
_FLAGS = {"ENABLE_UNIT_FLAG": "unit_flag", "ENABLE_SHUFFLE_K": "shuffle_k"}
_STAGES = ("L1A_STAGES", "L1B_STAGES", "L0_STAGES", "L0C_STAGES")


def catlass_tiling(given: Words) -> Imported:
    """The tiling of a CATLASS template's choice, for ``tiling=``.

    Tile shapes are [M, N, K] in elements; ``BlockScheduler`` is one of the forms of
    ``configs/silicon/orders.csv``. Raises ``ConfigError`` with the line for a word or value that is
    not known, or does not fit.
    """
    needed = ("L1TileShape", "L0TileShape", "DispatchPolicy")
    more = ("BlockScheduler", *_FLAGS, *_STAGES, "switches")
    source, nodes = _read(given, "catlass", needed, more)
    m, n, k = _shape(nodes["L1TileShape"])
    l0 = _shape(nodes["L0TileShape"])
    base_k = l0[2]
    if (m, n) != l0[:2] or k % base_k:
        raise nodes["L0TileShape"].fail(
            f"it is {l0}, L1TileShape {(m, n, k)}: M and N must be the same, K of L1 a multiple"
        )
    policy = _policy(nodes["DispatchPolicy"])
    order = nodes["BlockScheduler"].text() if "BlockScheduler" in nodes else "<1,0>"  # its own
    stages = {
        "L1A_STAGES": 1 if policy == "FullLoadA" else 2,
        "L1B_STAGES": 2,
        "L0_STAGES": 2,
        "L0C_STAGES": 1,
    }
    for word in _STAGES:
        if word in nodes:
            stages[word] = _number(nodes[word])
    columns = {
        "base_m": m,
        "base_n": n,
        "base_k": base_k,
        "step_ka": k // base_k,
        "step_kb": k // base_k,
        "buffers_l1": (stages["L1A_STAGES"], stages["L1B_STAGES"]),
        "buffers_l0": stages["L0_STAGES"],
        "buffers_l0c": stages["L0C_STAGES"],
        "switches": _switches(nodes, policy, order),
        "swizzle": order,
    }
    return Imported(source, tuple(columns.items()), templates=True)


def _policy(node: YamlNode) -> str:
    """The dispatch policy without the prefixes of its class."""
    name = node.text().removeprefix("Mmad").removeprefix("AtlasA2")
    if name not in _POLICIES:
        raise node.fail(f"unknown policy {name!r}{suggest(name, _POLICIES)}")
    return name


def _switches(nodes: Mapping[str, YamlNode], policy: str, order: str) -> tuple[str, ...]:
    """The words of measured rows for a policy, its flags, the order of tiles, and further ones."""
    switches = [*_POLICIES[policy]]
    switches += [word for flag, word in _FLAGS.items() if flag in nodes and _number(nodes[flag], 0)]
    if order == "Aswt":  # which cuts the tiles of a last round
        switches.append("aswt_tail_split")
    if "switches" in nodes:
        switches += map(_switch, nodes["switches"].items())
    return tuple(dict.fromkeys(switches))


def _shape(node: YamlNode) -> tuple[int, ...]:
    shape = tuple(map(_number, node.items()))
    if len(shape) != 3:
        raise node.fail(f"expected [M, N, K], such as [128, 256, 64], got {list(shape)}")
    return shape


def _switch(node: YamlNode) -> str:
    """A further word; those of work for vector cores are no part of a product."""
    word = node.text()
    if word not in words() or word in FINISHED or {"readers", "slots"} & set(words()[word][1]):
        raise node.fail(f"{word} is no word for a product; configs/silicon/words.csv has those")
    return word


#: Fields of ``TCubeTiling`` that must be there.
_CUBE = (
    "singleCoreM",
    "singleCoreN",
    "singleCoreK",
    "baseM",
    "baseN",
    "baseK",
    "depthA1",
    "depthB1",
    "stepKa",
    "stepKb",
)
#: Sizes of the product, which a call knows too.
_PROBLEM = ("M", "N", "Ka", "Kb")
#: Fields that are usual without being said.
_USUAL = {
    "stepM": 1,
    "stepN": 1,
    "iterateOrder": 0,
    "dbL0A": 2,
    "dbL0B": 2,
    "dbL0C": 1,
    "usedCoreNum": 0,
}
#: Tiles of the L2 in the struct of the library's own product: how many along an axis, of so many
#: blocks, and along which axis they follow each other (0: M first, as in ``iterateOrder``). A 0 of
#: the others cuts nothing.
_L2 = {
    "l2MTileCnt": 0,
    "l2NTileCnt": 0,
    "l2MTileBlock": 0,
    "l2NTileBlock": 0,
    "l2IterateOrder": 0,
}
#: The same in the words of the struct's source.
_L2_ALSO = {
    "mTileCntL2": "l2MTileCnt",
    "nTileCntL2": "l2NTileCnt",
    "mTileBlock": "l2MTileBlock",
    "nTileBlock": "l2NTileBlock",
}
#: Fields that have no counterpart here.
_LEFT_OUT = (
    "isBias",
    "transLength",
    "shareMode",
    "shareL1Size",
    "shareL0CSize",
    "shareUbSize",
    "batchM",
    "batchN",
    "singleBatchM",
    "singleBatchN",
    "depthAL1CacheUB",
    "depthBL1CacheUB",
    "BatchNum",
    "mxTypePara",
    "reserved",
    "tilingEnable",
    "calOrder",
    "l2CacheFlag",
    "transA",
    "transB",
    "nd2nzA",
    "nd2nzB",
    "isNzA",
    "isNzB",
    "isHf32",
    "baseAN",
    "baseAD",
    "baseBN",
    "baseBD",
    "ALayoutInfoB",
    "ALayoutInfoS",
    "ALayoutInfoN",
    "ALayoutInfoG",
    "ALayoutInfoD",
    "BLayoutInfoB",
    "BLayoutInfoS",
    "BLayoutInfoN",
    "BLayoutInfoG",
    "BLayoutInfoD",
    "CLayoutInfoB",
    "CLayoutInfoS1",
    "CLayoutInfoN",
    "CLayoutInfoG",
    "CLayoutInfoS2",
)


def _of_cube(words: dict[str, Any], shape: Shape, cores: int) -> tuple[Tiling, list[str]]:
    """The tiling of a ``TCubeTiling``, and notes on what is not modelled."""
    values = shape.dtype.values
    step_a = words["stepM"] * words["stepKa"]
    step_b = words["stepN"] * words["stepKb"]
    depth = words["singleCoreK"] // values
    _require_problem(words, shape)
    _require_at_most(words, cores)
    _require_multiple(words, "depthA1", "stepM * stepKa", step_a)
    _require_multiple(words, "depthB1", "stepN * stepKb", step_b)
    order, notes = _l2_order(words, shape)
    not_modelled = [word for word in _LEFT_OUT if word in words]
    if not_modelled:
        notes.append(f"not modelled: {', '.join(not_modelled)}")
    tiling = Tiling(
        base_m=words["baseM"],
        base_n=words["baseN"],
        base_k=words["baseK"] // values,
        single_core_m=words["singleCoreM"],
        single_core_n=words["singleCoreN"],
        single_core_k=depth if depth < shape.k else 0,
        cores=words["usedCoreNum"],
        step_ka=words["stepKa"],
        l1a_slots=words["depthA1"] // step_a,
        step_kb=words["stepKb"],
        l1b_slots=words["depthB1"] // step_b,
        l0_slots=words["dbL0A"],
        l0c_slots=words["dbL0C"],
        strided=True,
        n_inner=words["iterateOrder"] == 1,
        **order,
    )
    return tiling, notes


def _require_problem(words: Mapping[str, Any], shape: Shape) -> None:
    """Raise ``ArgumentError`` where the words state another product, or L0B other slots."""
    k = shape.k * shape.dtype.values
    sizes = {"M": shape.m, "N": shape.n, "Ka": k, "Kb": k}
    stated = {word: size for word, size in sizes.items() if word in words}
    for word, size in (stated | {"dbL0B": words["dbL0A"]}).items():
        if words[word] != size:
            raise ArgumentError(f"{word} is {words[word]}; it must be {size} in this call")


def _require_at_most(words: Mapping[str, Any], cores: int) -> None:
    """Raise ``ArgumentError`` for what these kernels, or the call's cores, do not have."""
    limits = {"stepM": 1, "stepN": 1, "iterateOrder": 1, "usedCoreNum": cores, "l2IterateOrder": 1}
    for word, limit in limits.items():
        if words[word] > limit:
            raise ArgumentError(f"{word} is {words[word]}; it must be at most {limit} here")


def _require_multiple(words: Mapping[str, Any], word: str, factors: str, step: int) -> None:
    """Raise ``ArgumentError`` where L1 does not hold whole steps."""
    if words[word] % step:
        raise ArgumentError(f"{word} is {words[word]}; it must be a multiple of {factors} = {step}")


def _l2_order(words: Mapping[str, Any], shape: Shape) -> tuple[dict[str, Any], list[str]]:
    """The order of blocks in tiles of the L2, as fields of a ``Tiling``, and a note.

    A tile of the L2 is a window of blocks along M or N, so tiles follow each other as the library's
    do. Inside a tile blocks are walked along one axis and then along the other.
    """
    blocks_m = ceil_div(shape.m, words["singleCoreM"])
    blocks_n = ceil_div(shape.n, words["singleCoreN"])
    tile_m = _l2_blocks(words, "M", blocks_m)
    tile_n = _l2_blocks(words, "N", blocks_n)
    cut_m = tile_m < blocks_m
    cut_n = tile_n < blocks_n
    if not cut_m and not cut_n:
        return {}, []
    n_first = words["l2IterateOrder"] == 1
    inside = "M"
    order: dict[str, Any]
    if not cut_m:
        order = {}  # a tile has all of M, along which blocks follow each other anyway
    elif n_first or not cut_n:
        order = {"window": tile_m}
    else:
        order = {"n_fastest": True, "window": tile_n}
        inside = "N"
    note = (
        f"tiles of {tile_m} x {tile_n} blocks in the L2, walked {'N' if n_first else 'M'} "
        f"first; inside a tile blocks follow each other along {inside}, the library's own order "
        "there is not modelled"
    )
    return order, [note]


def _l2_blocks(words: Mapping[str, Any], axis: str, blocks: int) -> int:
    """Blocks of a tile of the L2 along an axis that has so many; ``ArgumentError`` for a misfit."""
    count = words[f"l2{axis}TileCnt"]
    size = words[f"l2{axis}TileBlock"]
    if not count and not size:
        return blocks
    size = size or ceil_div(blocks, count)
    fitting = ceil_div(blocks, size)
    if count and count != fitting:
        raise ArgumentError(
            f"l2{axis}TileCnt is {count}; the call has {blocks} blocks of singleCore{axis} along "
            f"{axis}, which are {fitting} tiles of l2{axis}TileBlock = {size}"
        )
    return min(size, blocks)


def ascendc_tiling(given: Words) -> Imported:
    """The tiling of an Ascend C ``TCubeTiling``, for ``tiling=``.

    ``M``, ``N``, ``Ka`` and ``Kb`` come from the call where they are missing. The words for tiles
    of the L2 (``l2MTileCnt``, ``l2MTileBlock``, ...) that the struct of the library's own product
    has become windows of blocks. Fields without a counterpart are named by a note of the result.
    Raises ``ConfigError`` with the line for a field that is unknown or missing, and for what is no
    count.
    """
    more = (*_PROBLEM, *_USUAL, *_L2, *_L2_ALSO, *_LEFT_OUT)
    source, nodes = _read(given, "ascendc", _CUBE, more)
    zero = ("iterateOrder", "usedCoreNum", *_L2, *_LEFT_OUT)
    fields: dict[str, int] = {}
    for stated, node in nodes.items():
        word = _L2_ALSO.get(stated, stated)
        if word in fields:
            raise node.fail(f"{word} and {stated} say the same; keep one of them")
        fields[word] = _number(node, 0 if word in zero else 1)
    return Imported(source, tuple((_USUAL | _L2 | fields).items()), templates=False)
