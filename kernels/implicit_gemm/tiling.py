"""The tile sizes of forward convolution and input gradient."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.kernels.estimate.checks import check_tiling
from npusim.language import ArgumentError

#: How outputs may be cut by stride and taps; see ``npusim.problem.axis``.
FORMS = ("window", "phases", "single", "taps")


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """One mmad is base_m positions x base_k x base_n channels (elements).

    An L1 slot of the input holds ``step_planes`` channel blocks of the slab, one of the weights
    ``step_columns`` columns of (c1, kh, kw). Slabs are for ``step_m`` tiles along M, weights in L1
    for ``step_n`` along N; a slot that holds all of K is loaded once for these. A core takes the
    slabs of ``single_core_m`` positions (whole rows) one after another; 0: slabs are shared out
    singly. With ``single_core_n`` cores share out blocks of so many positions, so many output
    channels and ``single_core_images``, image by image. With ``resident`` weights stay
    in L1 as long as the same are needed, which takes one slot that holds all columns; with
    ``resident_input`` the slab does, which takes ``step_planes`` of all planes. ``n_slowest`` goes
    through all slabs for the same output channels before it takes others. ``unit_flag`` overlaps a
    tile's last mmad with its drain, and the drain with the next tile. ``cores`` leaves all but so
    many cores idle (0: none). A tile has the slabs of so many ``images``. With ``even_n`` output
    channels are cut into tiles of nearly equal size, the larger ones spread evenly, rather than
    into tiles of ``base_n`` and a rest; there are as many. With ``zeros`` positions that no input
    reaches are stored with those between which they lie, where L0C drains through UB, rather than
    cleared before, if tiles have whole rows of one phase. With ``whole_rows`` a slab that is part
    of a row has the whole rows of the input behind it in L1, which one move brings for all planes,
    rather than just the pixels it reads; where the form is "window", nothing is inserted and slabs
    are of a multiple of 16 positions.

    ``form`` is one of ``FORMS``: "window" slides the filter over an input with zeros inserted in
    L1; "phases" computes positions of one residue modulo the inserted stride at a time, with the
    taps that reach it; "single" also takes positions one by one on an axis where each reads one
    input at most; "taps" adds up single taps, each with just the input it reads.
    """

    base_m: int
    base_n: int
    base_k: int
    step_planes: int = 1
    step_columns: int = 1
    l1_slots: int = 2
    weight_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    single_core_m: int = 0
    single_core_n: int = 0
    single_core_images: int = 1
    step_m: int = 1
    step_n: int = 1
    resident: bool = False
    form: str = "window"
    resident_input: bool = False
    n_slowest: bool = False
    unit_flag: bool = False
    cores: int = 0
    images: int = 1
    even_n: bool = False
    zeros: bool = False
    whole_rows: bool = False

    def __post_init__(self) -> None:
        counts = (
            *("step_planes", "step_columns", "images", "l1_slots", "weight_slots", "l0_slots"),
            *("l0c_slots", "single_core_images", "step_m", "step_n"),
        )
        check_tiling(self, sixteens=("base_n",), positive=("base_m", "base_k", *counts))
        if self.form not in FORMS:
            raise ArgumentError(f"tiling form is {self.form!r}; it is one of {', '.join(FORMS)}")
        if self.form != "window" and self.single_core_m:
            raise ArgumentError(
                f"tiling form {self.form!r} shares slabs out singly; leave single_core_m at 0"
            )
        if self.form == "taps" and self.images > 1:  # they would stack at a pitch for each tap
            raise ArgumentError(
                f"tiling images is {self.images}, but form 'taps' adds up reads of other rows for "
                "each tap; set images=1, or form='phases'"
            )
        if self.step_m > 1 and (self.form != "window" or self.images > 1):
            raise ArgumentError(
                f"tiling step_m is {self.step_m}, but only form 'window' of one image has several "
                "tiles in a slab; leave it at 1"
            )

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, planes {self.step_planes}, columns "
            f"{self.step_columns}, slots L1 {self.l1_slots}+{self.weight_slots} "
            f"L0 {self.l0_slots} L0C {self.l0c_slots}"
            + f", {self.step_m}x{self.step_n} tiles in L1" * (self.step_m * self.step_n > 1)
            + (f", {self.form}" if self.form != "window" else "")
            + "".join(f", {text}" for text, on in self._switches.items() if on)
        )

    @property
    def _switches(self) -> dict[str, bool]:
        """Words of reports for the switches that are on."""
        return {
            "weights stay": self.resident,
            "input stays": self.resident_input,
            "N slowest": self.n_slowest,
            f"{self.images} images": self.images > 1,
            "N evenly": self.even_n,
            "zeros between": self.zeros,
            "whole rows": self.whole_rows,
            "unit flag": self.unit_flag,
            f"{self.cores} cores": bool(self.cores),
        }
