"""The tile sizes of the filter-gradient kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.kernels.estimate.checks import check_tiling
from npusim.kernels.parts.plane import Plane
from npusim.kernels.parts.plane import cut_plane as cut_axes
from npusim.language import ArgumentError
from npusim.problem.axis import WIDEST_FILTER
from npusim.problem.convolution import Convolution


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tile sizes in elements: one mmad is base_m x base_k x base_n; and who sums which tile when.

    ``slab_k`` output positions are brought to L1 at once (whole rows of the output where a row
    fits). K is cut in one of two ways:

    * without ``single_core_k`` into ``k_parts`` of all slabs of all images, and cores share out
      parts of tiles. Parts are added atomically, or, if ``deterministic``, written side by side
      for a sum in fixed order. A part runs over images with the slabs of each innermost;
    * into pieces of ``single_core_k`` positions (whole rows) of one image and depth, and cores
      share out blocks of ``single_core_m`` x ``single_core_n`` of dw for each piece. A core goes
      through the tiles of its block one after another and adds each.

    An L1 slot holds one slab for ``step_m`` tiles along M (dy), or ``step_n`` along N (x). There
    are ``l1_slots`` of each, or ``dy_slots`` and ``x_slots``; where a piece has at most
    ``dy_slabs`` (``x_slabs``) slabs they stay while the next tile needs the same. ``keeps`` "dy"
    lets the tiles along N go by for the same dy, "x" those along M for the same x.

    ``form`` "window" expands x by img2col, tiles have columns of all taps; with "taps" a tile has
    those of one tap, for which just the x it reads comes to L1. With "rows" only the rows of x that
    a strided filter of one row reads do. With "bands" a tile has columns of some neighbouring taps
    of one block of channels, and the x that these read comes to L1: of at most ``band_rows`` whole
    rows of the filter, or of ``band_columns`` of one row (0: all of them).

    With ``group`` a core takes so many tiles along N (``keeps`` "dy") or M ("x") in turn, all in
    ``passes`` parts of K: of a pass the operand that they share stays in L1 if it has no more slabs
    than may stay. The first pass writes a tile, the others add to it.

    A slab that is a whole plane may come with those of so many ``images`` in one load. Where each
    position reads one pixel, and the device transposes as it cuts img2col, steps go on from one
    of them to the next.
    ``unit_flag`` overlaps a tile's last mmad with its drain, and the drain with the next tile.
    ``cores`` leaves all but so many cores idle (0: none).
    """

    base_m: int
    base_n: int
    base_k: int
    slab_k: int
    k_parts: int = 1
    l1_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    deterministic: bool = False
    single_core_m: int = 0
    single_core_n: int = 0
    single_core_k: int = 0
    step_m: int = 1
    step_n: int = 1
    dy_slots: int = 0
    x_slots: int = 0
    dy_slabs: int = 1
    x_slabs: int = 1
    keeps: str = "dy"
    form: str = "window"
    unit_flag: bool = False
    cores: int = 0
    images: int = 1
    group: int = 1
    passes: int = 1
    band_rows: int = 0
    band_columns: int = 0

    def __post_init__(self) -> None:
        for name, words in (
            ("keeps", ("dy", "x")),
            ("form", ("window", "rows", "taps", "bands")),
        ):
            if getattr(self, name) not in words:
                known = " or ".join(map(repr, words))
                raise ArgumentError(f"tiling {name} is {getattr(self, name)!r}; it is {known}")
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=(
                *("slab_k", "k_parts", "l1_slots", "l0_slots", "l0c_slots"),
                *("step_m", "step_n", "dy_slabs", "x_slabs", "images", "group", "passes"),
                *(("single_core_m", "single_core_n") if self.single_core_k else ()),
            ),
        )
        if self.form != "window" and self.single_core_k:
            raise ArgumentError(
                f"tiling form {self.form!r} has no pieces of single_core_k; leave it out, or use "
                "'window'"
            )
        if self.images > 1 and (self.form in ("taps", "bands") or self.single_core_k):
            raise ArgumentError(
                f"tiling images is {self.images}; with form 'taps' or 'bands' or single_core_k "
                "each image is loaded by itself: leave it at 1"
            )
        if (self.band_rows or self.band_columns) and self.form != "bands":
            raise ArgumentError(
                f"tiling band_rows is {self.band_rows} and band_columns {self.band_columns}; only "
                "form 'bands' has them: leave both at 0"
            )
        if max(self.group, self.passes) > 1 and (self.single_core_k or self.k_parts > 1):
            raise ArgumentError(
                f"tiling group is {self.group} and passes {self.passes}; with single_core_k or "
                "k_parts other cores add to the same tile: leave both at 1"
            )
        if self.deterministic and self.single_core_k:
            raise ArgumentError(
                "deterministic: pieces of single_core_k add into the gradient in the order they "
                "finish; use tiling 'auto', or deterministic=False"
            )
        for name, have, held in (
            ("dy", self.slots_of_dy, self.dy_slabs),
            ("x", self.slots_of_x, self.x_slabs),
        ):
            if held > have:
                raise ArgumentError(
                    f"tiling {name}_slabs is {held}; no more than {name}_slots, {have}, can stay"
                )

    @property
    def slots_of_dy(self) -> int:
        """Slots of dy in L1."""
        return self.dy_slots or self.l1_slots

    @property
    def slots_of_x(self) -> int:
        """Slots of x in L1."""
        return self.x_slots or self.l1_slots

    def __str__(self) -> str:
        base = f"base {self.base_m}x{self.base_n}x{self.base_k}, slab {self.slab_k}"
        small = f"L0 {self.l0_slots} L0C {self.l0c_slots}"
        on = f", {self.form}" * (self.form != "window")
        if self.form == "bands":
            on += f" of {self.band_rows or 'all'} x {self.band_columns or 'all'} taps"
        on += f", {self.images} images" * (self.images > 1) + ", unit flag" * self.unit_flag
        if max(self.group, self.passes) > 1:
            on += f", {self.group} tiles for one {self.keeps}"
            on += f" in {self.passes} passes" * (self.passes > 1)
        on += f", {self.cores} cores" * bool(self.cores)
        if not self.single_core_k:
            alike = self.group == 1 and not (self.dy_slots or self.x_slots)
            l1 = f"{self.l1_slots}" if alike else f"{self.slots_of_dy}+{self.slots_of_x}"
            return f"{base}, K in {self.k_parts}, slots L1 {l1} {small}{on}"
        return (
            f"{base}, single core {self.single_core_m}x{self.single_core_n}x{self.single_core_k}, "
            f"slots dy {self.slots_of_dy} x {self.slots_of_x} {small}{on}"
        )


def comes_whole(shape: Convolution, plane: Plane) -> bool:
    """Tell whether the only slab of ``plane`` reads a plane of x from its corner on, one per image.

    Then those of several images lie equally far apart in x and in dy.
    """
    rows, columns = plane.rows, plane.columns
    if not shape.out[0] == shape.spatial[0] == shape.kernel[0] == len(rows) == len(columns) == 1:
        return False
    extents = int(rows.count[0]), int(columns.count[0])
    if extents != shape.out[1:] or rows.first_real[0] or columns.first_real[0]:
        return False
    # Over whole rows of x the window finds as many positions as a row of dy has.
    pads = int(columns.before[0]) + int(columns.after[0])
    reach = shape.spatial[2] + pads - shape.dilation[2] * (shape.kernel[2] - 1) - 1
    return reach // shape.step(2) + 1 == shape.out[2]


def rows_follow(shape: Convolution, plane: Plane) -> bool:
    """Tell whether the rows of x that the only slab reads lie evenly apart through all planes.

    Then one move brings those of all. Rows are of one tap each.
    """
    rows = plane.rows
    return len(rows) == 1 and int(rows.real[0]) * shape.step(1) == shape.spatial[1]


def runs_on(shape: Convolution, form: str) -> bool:
    """Tell whether steps of K may go on from one whole plane to the next.

    Then the pixels of a plane are one row of an img2col map whose filter rows are channel blocks:
    each position reads one pixel, pixels of positions lie evenly apart, and nothing is padded.
    """
    if shape.taps > 1 or any(map(any, shape.padding[1:])):
        return False
    follow = all(shape.spatial[i] == shape.out[i] * shape.step(i) for i in (1, 2))
    return follow and (form == "rows" or (form == "window" and shape.step(1) == 1))


def require_form(shape: Convolution, t: Tiling) -> None:
    """Raise ``ArgumentError`` for a form that the gradient of ``shape`` cannot have."""
    under_window = {"window": (1, 2), "rows": (2,), "taps": (), "bands": ()}[t.form]
    if not all(shape.axis(i).fits_window(whole=True) for i in under_window):
        raise ArgumentError(
            f"tiling form is {t.form!r}, but img2col loads know strides to 63, and padding, "
            "filters and dilation to 255; use form 'taps', or tiling 'auto'"
        )
    if t.form == "bands":
        rows, columns = widest_band(shape, t)
        whole = columns >= shape.kernel[2] or rows == 1
        fits = shape.axis(1).fits_bands and shape.axis(2).fits_bands
        if not (whole and fits and max(rows, columns) <= WIDEST_FILTER):
            raise ArgumentError(
                f"tiling form is 'bands' of {rows} x {columns} taps of a filter of "
                f"{shape.kernel[1]} x {shape.kernel[2]}; a band is whole rows or part of one, with "
                f"at most {WIDEST_FILTER} rows and columns, and img2col loads know strides to 63, "
                "and padding and dilation to 255: choose other bands, or form 'taps'"
            )
    if t.single_core_k and t.single_core_n < shape.c0:
        raise ArgumentError(
            f"tiling single_core_n is {t.single_core_n}, but the {shape.c0} channels of a block "
            f"are one core's; it must be >= {shape.c0}"
        )
    if t.form == "rows" and shape.kernel[1] != 1:
        raise ArgumentError(
            f"tiling form is 'rows', but the {shape.kernel[1]} rows of the filter read "
            "neighbouring rows of x; use form 'window', or tiling 'auto'"
        )
    if t.images == 1:
        return
    plane = cut_plane(shape, t.slab_k, form=t.form)
    evenly = t.form == "window" or rows_follow(shape, plane)
    if not (evenly and comes_whole(shape, plane)):
        raise ArgumentError(
            f"tiling images is {t.images}, but images come together only where a "
            f"slab is a whole plane of a 2-D map; give slab_k {prod(shape.out[1:])}, or "
            "leave images at 1"
        )


def widest_band(shape: Convolution, t: Tiling) -> tuple[int, int]:
    """The most rows and columns of the filter of ``shape`` in a band of a tiling."""
    return t.band_rows or shape.kernel[1], t.band_columns or shape.kernel[2]


def cut_plane(
    shape: Convolution,
    slab_k: int,
    height: int = 0,
    form: str = "window",
    widest: tuple[int, int] = (WIDEST_FILTER, WIDEST_FILTER),
) -> Plane:
    """Slabs of about ``slab_k`` positions of one output plane, without those that read padding.

    With ``height`` no slab goes across a multiple of so many rows; ``widest`` are rows and columns
    of the filter in a band of the form "bands".
    """
    axes = shape.axis(1), shape.axis(2)
    return cut_axes(*axes, slab_k, height, multiple=16, form=form, widest=widest).live()
