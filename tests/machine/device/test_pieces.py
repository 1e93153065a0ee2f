"""Rows of which a load from GM takes blocks whole, and the rest in pieces."""

from __future__ import annotations

from fractions import Fraction

import pytest

import npusim
from npusim.machine.device.catalog import load_device
from npusim.machine.device.parts import Path

CUT = Path(
    name="GM->L1.nd2nz",
    pipe="MTE2",
    startup_cycles=41,
    bytes_per_cycle=Fraction(171),
    row_cycles=Fraction(17, 5),
    piece_bytes=512,
)


def by_hand(row_bytes: int, start: int) -> int:
    """A row cut at every block of 512 B; of a part of a block its 256, its 128 and the rest."""
    parts, at, end = [], start, start + row_bytes
    while at < end:
        stop = min(end, (at // 512 + 1) * 512)
        parts.append(stop - at)
        at = stop
    cut = [part for part in parts if part < 512]
    pieces = int(512 in parts)  # whole blocks follow each other as one
    for part in cut:
        pieces += (part & 256 > 0) + (part & 128 > 0) + (part & 127 > 0)
    return pieces


@pytest.mark.parametrize("pitch", [512, 2080, 8000, 30, 4096])
def test_pieces_are_those_counted_by_hand(pitch: int) -> None:
    for row_bytes, offset in ((128, 0), (160, 0), (384, 96), (512, 0), (640, 1280), (2048, 32)):
        want = sum(by_hand(row_bytes, offset + i * pitch) for i in range(100))
        assert CUT.pieces(100, row_bytes, offset, pitch) == want


def test_rows_of_whole_blocks_and_of_powers_of_two_are_one_piece() -> None:
    assert [CUT.pieces(1, size) for size in (32, 128, 256, 512, 1024, 4096)] == [1] * 6
    assert [CUT.pieces(1, size) for size in (160, 384, 640, 416, 928)] == [2, 2, 2, 3, 4]


def test_a_path_without_pieces_takes_rows_whole() -> None:
    whole = load_device("ascend950pr").path("GM", "L1", "nd2nz")
    assert whole.pieces(128, 640, 32, 2080) == 128


def test_the_published_loads_are_met_better_than_by_their_bytes() -> None:
    """128 rows of 256, 384, 416 and 1024 B on a 910B1: 805, 1107, 1829 and 1181 cycles."""
    path = load_device("ascend910b1").path("GM", "L1", "nd2nz")
    times = [float(path.row_cycles) * path.pieces(128, size) for size in (256, 384, 416)]
    assert times[0] < times[1] < times[2]  # not so the bytes, of which 416 are hardly more
    assert times[2] / times[0] == 3


def test_a_piece_has_quarters_of_whole_blocks() -> None:
    device = load_device("ascend910b2")
    with pytest.raises(npusim.ConfigError, match="must be a multiple of 128 B"):
        device.replace("paths.GM->L1.nd2nz.piece", "192B")
    with pytest.raises(npusim.ConfigError, match="only nd2nz paths cut rows"):
        device.replace("paths.GM->UB.piece", "512B")
    assert device.replace("paths.GM->L1.nd2nz.piece", "256B")
