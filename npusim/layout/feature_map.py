"""Feature maps: NCHW and NHWC, 5HD (NC1HWC0) and 6HD (NDC1HWC0)."""

from __future__ import annotations

from npusim.integers import ceil_div
from npusim.layout.blocks import (
    Array,
    check_positive,
    check_rank,
    check_shape,
    fresh,
    join_axis,
    split_axis,
)


def to_5hd(x: Array, c0: int) -> Array:
    """Turn (N, C, H, W) into (N, C1, H, W, C0): channel c goes to block c div C0, place c mod C0.

    A 1-D feature map is one with H = 1.
    """
    check_rank("to_5hd", x, "N, C, H, W")
    check_positive("to_5hd", "c0", (c0,))
    return fresh(split_axis(x, 1, c0).transpose(0, 1, 3, 4, 2))


def from_5hd(x: Array, channels: int) -> Array:
    """Turn (N, C1, H, W, C0) into (N, ``channels``, H, W), dropping the padding."""
    check_rank("from_5hd", x, "N, C1, H, W, C0")
    check_positive("from_5hd", "channels C0", (channels, x.shape[4]))
    n, _, h, w, c0 = x.shape
    why = f"{channels} channels in blocks of {c0}"
    check_shape("from_5hd", x, (n, ceil_div(channels, c0), h, w, c0), why)
    return fresh(join_axis(x.transpose(0, 1, 4, 2, 3), 1, channels))


def to_6hd(x: Array, c0: int) -> Array:
    """Turn (N, C, D, H, W) into (N, D, C1, H, W, C0); channels go where ``to_5hd`` puts them."""
    check_rank("to_6hd", x, "N, C, D, H, W")
    check_positive("to_6hd", "c0", (c0,))
    return fresh(split_axis(x, 1, c0).transpose(0, 3, 1, 4, 5, 2))


def from_6hd(x: Array, channels: int) -> Array:
    """Turn (N, D, C1, H, W, C0) into (N, ``channels``, D, H, W), dropping the padding."""
    check_rank("from_6hd", x, "N, D, C1, H, W, C0")
    check_positive("from_6hd", "channels C0", (channels, x.shape[5]))
    n, d, _, h, w, c0 = x.shape
    why = f"{channels} channels in blocks of {c0}"
    check_shape("from_6hd", x, (n, d, ceil_div(channels, c0), h, w, c0), why)
    return fresh(join_axis(x.transpose(0, 2, 5, 1, 3, 4), 1, channels))


def nchw_to_nhwc(x: Array) -> Array:
    """Turn (N, C, H, W) into (N, H, W, C)."""
    check_rank("nchw_to_nhwc", x, "N, C, H, W")
    return fresh(x.transpose(0, 2, 3, 1))


def nhwc_to_nchw(x: Array) -> Array:
    """Turn (N, H, W, C) into (N, C, H, W)."""
    check_rank("nhwc_to_nchw", x, "N, H, W, C")
    return fresh(x.transpose(0, 3, 1, 2))
