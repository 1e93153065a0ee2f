"""Tilings in the words of the vendor's kernels: reading them, and the check that they fit buffers.

A ``CannTiling`` says how one launch cuts a matrix product M x N x K; which convolution axis is
which, and how our kernels run it, is in ``cann_input`` and ``cann_filter``. The words
are those of the open CANN kernels (hicann/ops-nn, conv3d_backprop_{input,filter}_v2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from npusim.base.content import Content, require_content
from npusim.base.integers import digits
from npusim.base.yamltree import TextFile, load_tree, suggest
from npusim.kernels.matmul.measured import table
from npusim.language import ArgumentError, CapacityError, Device


@dataclass(frozen=True, kw_only=True)
class CannTiling:
    """Sizes in elements, steps in base blocks, slots per buffer (2: ping-pong).

    ``single_core_*`` is what a core takes at a time, ``base_*`` one mmad. One L1 slot of A holds
    ``step_m * base_m`` by ``step_ka * base_k``, one of B ``step_n * base_n`` by ``step_kb *
    base_k``. ``iterate_order`` 0 goes along M in the outer loop (A stays in L1), 1 along N.
    ``left`` are words that were given and have no counterpart.
    """

    single_core_m: int
    single_core_n: int
    single_core_k: int
    base_m: int
    base_n: int
    base_k: int
    step_ka: int
    step_kb: int
    step_m: int = 1
    step_n: int = 1
    al1: int = 2
    bl1: int = 2
    al0: int = 2
    bl0: int = 2
    cl0: int = 1
    iterate_order: int = 0
    left: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, word in _WORDS.items():
            value = getattr(self, name)
            least = 0 if name == "iterate_order" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(
                    f"CANN tiling: {word} is {value!r}; it must be an integer >= {least}"
                )
        for name in ("base_m", "base_n", "base_k"):
            if getattr(self, name) % 8:
                raise ArgumentError(
                    f"CANN tiling: {_WORDS[name]} is {getattr(self, name)}; it must be a multiple "
                    "of 16 (8 along a 32-bit K)"
                )
        if self.iterate_order > 1:
            raise ArgumentError(
                f"CANN tiling: iterateOrder is {self.iterate_order}; it is 0 (M) or 1 (N)"
            )

    @property
    def words(self) -> dict[str, int]:
        """The fields under the vendor's names, as ``cann_tiling`` and tiling files take them."""
        return {word: getattr(self, name) for name, word in _WORDS.items()}

    @classmethod
    def of_base(cls, m: int, n: int, k: int, **more: Any) -> CannTiling:
        """The tiling with ``more`` fields whose cores take one base tile at a time."""
        sizes = {
            "base_m": m,
            "base_n": n,
            "base_k": k,
            "single_core_m": m,
            "single_core_n": n,
            "single_core_k": k,
        }
        return cls(**{**sizes, **more})

    @property
    def shared(self) -> dict[str, Any]:
        """The fields that tilings of both of our kernels have in common with this one.

        Raises ``ArgumentError`` where L0A and L0B have other slots than each other, which our
        kernels take in turns together, or where one K step is no multiple of the other.
        """
        if max(self.step_ka, self.step_kb) % min(self.step_ka, self.step_kb):
            raise ArgumentError(
                f"CANN tiling: stepKa is {self.step_ka}, stepKb {self.step_kb}; the larger must be "
                "a multiple of the smaller"
            )
        if self.al0 != self.bl0:
            raise ArgumentError(
                f"CANN tiling: al0Pbuffer is {self.al0}, bl0Pbuffer {self.bl0}; these kernels feed "
                "L0A and L0B in step, give both the same"
            )
        return {
            "base_m": self.base_m,
            "base_n": self.base_n,
            "base_k": self.base_k,
            "single_core_m": self.single_core_m,
            "l0_slots": self.al0,
            "l0c_slots": self.cl0,
        }

    def __str__(self) -> str:
        text = (
            f"single {self.single_core_m}x{self.single_core_n}x{self.single_core_k}, base "
            f"{self.base_m}x{self.base_n}x{self.base_k}, steps M {self.step_m} N {self.step_n} Ka "
            f"{self.step_ka} Kb {self.step_kb}, slots A1 {self.al1} B1 {self.bl1} A0 {self.al0} B0 "
            f"{self.bl0} C0 {self.cl0}"
        )
        if self.left:
            text += f"; not modelled: {', '.join(self.left)}"
        return text


def _word(field: str) -> str:
    """The vendor's word for a field: ``baseM``, ``al1Pbuffer``."""
    first, *rest = field.split("_")
    return first + "".join(map(str.capitalize, rest or ["pbuffer"]))


#: Field by field, the vendor's word.
_WORDS = {f.name: _word(f.name) for f in fields(CannTiling) if f.name != "left"}

#: What other releases call the slots; a word may stand for both operands.
_OTHER_WORDS = {
    "dbL1": ("al1", "bl1"),
    "dbL1A": ("al1",),
    "dbL1B": ("bl1",),
    "dbL0": ("al0", "bl0"),
    "dbL0A": ("al0",),
    "dbL0B": ("bl0",),
    "dbL0C": ("cl0",),
}


@cache
def _left_out() -> frozenset[str]:
    """Further fields of the structs of both gradients, as the vendor's own tests have them.

    They are the problem, which the call states, what has no counterpart, and columns about it.
    """
    files = ("golden_tilings_input.csv", "golden_tilings_filter.csv")
    return frozenset(word for file in files for word in table(file)[0]).difference(_WORDS.values())


def cann_tiling(words: Mapping[str, Any]) -> CannTiling:
    """The tiling that a mapping in the vendor's words describes (``baseM``, ``dbL0C``, ...).

    It may be the whole struct of a gradient's kernel; ``CannTiling.left`` has what is not modelled
    of it. One of input gradients says N as ``singleCoreCin``, and takes all of K. Raises
    ``ArgumentError`` for a word that is unknown, given twice, or missing.
    """
    names_of = {word: (name,) for name, word in _WORDS.items()} | _OTHER_WORDS
    values: dict[str, Any] = {"left": tuple(word for word in words if word in _left_out())}
    for word, value in words.items():
        if word in values["left"]:
            continue
        if word not in names_of:
            raise ArgumentError(f"CANN tiling: unknown word {word!r}{suggest(word, names_of)}")
        for name in names_of[word]:
            if name in values:
                raise ArgumentError(f"CANN tiling: {word} gives {_WORDS[name]} twice; keep one")
            values[name] = value
    if "singleCoreCin" in words and "baseK" in words:
        usual = {"single_core_n": words["singleCoreCin"], "single_core_k": words["baseK"]}
        values = usual | values
    missing = [
        _WORDS[f.name] for f in fields(CannTiling) if f.default is MISSING and f.name not in values
    ]
    if missing:
        raise ArgumentError(f"CANN tiling lacks {', '.join(missing)}; add them")
    return CannTiling(**values)


def load_cann_tiling(source: TextFile) -> CannTiling:
    """The tiling in a YAML or JSON file of the vendor's words; see ``cann_tiling``."""
    if isinstance(source, Path):
        require_content(source, (Content.TILING,), "a tiling")
    words: dict[str, int | None] = {}
    for word, node in load_tree(source).mapping().items():
        value = digits(node.text())
        if value is None and word not in _left_out():
            raise node.fail(f"expected an integer, got {brief(node.text())}")
        words[word] = value
    return cann_tiling(words)


def check_fits(t: CannTiling, device: Device, element: int, l1: tuple[int, int]) -> None:
    """Raise ``CapacityError`` with the arithmetic where a buffer is too small.

    ``element`` is the bytes of an operand element, ``l1`` the bytes of one L1 slot of A and of B.
    """
    a0 = t.base_m * t.base_k
    b0 = t.base_k * t.base_n
    c0 = t.base_m * t.base_n
    _check(device, "L1", ("A", t.al1, l1[0]), ("B", t.bl1, l1[1]))
    _check(device, "L0A", (f"baseM {t.base_m} x baseK {t.base_k}", t.al0, a0 * element))
    _check(device, "L0B", (f"baseK {t.base_k} x baseN {t.base_n}", t.bl0, b0 * element))
    _check(device, "L0C", (f"baseM {t.base_m} x baseN {t.base_n}", t.cl0, c0 * 4))


def _check(device: Device, memory: str, *terms: tuple[str, int, int]) -> None:
    """Raise ``CapacityError`` unless a memory holds the terms: (name, slots, bytes of a slot)."""
    used = sum(slots * size for _, slots, size in terms)
    capacity = device.memory(memory).size_bytes
    if used > capacity:
        sums = " + ".join(f"{name} {slots} x {size} B" for name, slots, size in terms)
        raise CapacityError(
            f"CANN tiling on {device.name}: {memory} holds {capacity} B but {sums} = {used} B; use "
            f"smaller tiles, steps or fewer slots (over by {used - capacity} B)"
        )
