"""What the L2 holds between kernels: values as queues of lines, held to a count of every line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.device.parts import L2Cache
from npusim.networks.plan.l2_lines import L2Lines, L2Traffic
from npusim.networks.plan.tasks import BLOCKED, PLAIN, StoredValue
from npusim.networks.run.step import PreparedStep
from tests.networks.line_count import (
    Access,
    CrossingBytes,
    accesses,
    crossing,
    line_by_line,
    on_device,
    operands,
    plan,
)

#: A line of the L2s here, in bytes.
LINE = 512


def l2_of(lines: int) -> L2Cache:
    """An L2 of so many lines."""
    spec = load_device("ascend910b2").l2
    assert spec is not None
    assert spec.sector_bytes == LINE
    return replace(spec, size_bytes=lines * LINE)


def value(name: str) -> StoredValue:
    """A plain value."""
    return StoredValue(name, PLAIN)


def test_values_share_the_room_and_the_oldest_leaves_first() -> None:
    lines = L2Lines(l2_of(100))
    assert not lines.read(value("a"), 60 * LINE)
    assert not lines.read(value("b"), 40 * LINE)
    assert lines.read(value("a"), 60 * LINE)
    assert not lines.read(StoredValue("a", BLOCKED), LINE), "each format has a place of its own"
    assert lines.moved() == L2Traffic(fetched=101 * LINE)
    assert not lines.read(value("b"), 40 * LINE), "its first line has left"
    assert lines.moved() == L2Traffic(fetched=40 * LINE)


def test_what_is_dirty_is_written_back_when_others_need_its_room() -> None:
    lines = L2Lines(l2_of(100))
    lines.write(value("a"), 60 * LINE)
    lines.read(value("b"), 40 * LINE)
    assert lines.moved() == L2Traffic(fetched=40 * LINE, dirty=60 * LINE)
    lines.read(value("c"), 10 * LINE)
    assert lines.moved() == L2Traffic(fetched=10 * LINE, written_back=10 * LINE, dirty=50 * LINE)
    lines.read(value("a"), 60 * LINE)  # comes back clean; its own rest leaves first
    assert lines.moved() == L2Traffic(fetched=60 * LINE, written_back=50 * LINE)
    lines.read(value("d"), 100 * LINE)  # nothing that is clean is written
    assert lines.moved() == L2Traffic(fetched=100 * LINE)


def test_what_nothing_reads_any_more_is_written_back_too() -> None:
    lines = L2Lines(l2_of(100))
    lines.write(value("a"), 60 * LINE)
    lines.read(value("a"), 60 * LINE)
    lines.unread(value("a"))
    lines.read(value("b"), 90 * LINE)
    assert lines.moved() == L2Traffic(90 * LINE, 50 * LINE, unread=50 * LINE, dirty=10 * LINE)
    lines.write(value("a"), 60 * LINE)  # new numbers, which somebody may read
    lines.read(value("c"), 100 * LINE)
    assert lines.moved().unread == 10 * LINE


def test_a_value_larger_than_the_l2_leaves_its_end_there() -> None:
    lines = L2Lines(l2_of(100))
    lines.write(value("a"), 150 * LINE)
    assert lines.moved() == L2Traffic(written_back=50 * LINE, dirty=100 * LINE)
    assert not lines.read(value("a"), 150 * LINE)
    assert lines.moved() == L2Traffic(fetched=150 * LINE, written_back=100 * LINE)


def test_bytes_are_those_of_whole_lines() -> None:
    lines = L2Lines(l2_of(100))
    lines.read(value("a"), LINE + 1)
    lines.write(value("b"), 1)
    assert lines.moved() == L2Traffic(fetched=2 * LINE, dirty=LINE)


def test_without_an_l2_every_byte_crosses() -> None:
    lines = L2Lines(None)
    lines.write(value("a"), 5)
    assert not lines.read(value("a"), 5)
    assert lines.moved() == L2Traffic(fetched=5, written_back=5)


@pytest.mark.parametrize("seed", range(40))
def test_they_are_those_of_every_line_by_itself(seed: int) -> None:
    """Random reads and writes of values of all sizes, the L2's and twice that among them.

    That a value of which a part is there misses as a whole is one of the things that this proves.
    """
    rng = np.random.default_rng(seed)
    room = int(rng.integers(4, 60))
    sizes = rng.integers(1, rng.choice([room // 2, room, 2 * room]) + 1, 8).tolist()
    lines = L2Lines(l2_of(room))
    used: list[Access] = []
    totals = np.zeros(2, int)
    for name, write in zip(rng.integers(0, 8, 80).tolist(), rng.random(80) < 0.4, strict=True):
        place = value(str(name))
        size = sizes[name] * LINE - int(rng.integers(0, LINE))
        if write:
            lines.write(place, size)
        else:
            lines.read(place, size)
        used.append(Access(place, size, bool(write)))
        moved = lines.moved()
        totals += (moved.fetched, moved.written_back)
        counted = line_by_line(used, room * LINE, LINE)
        assert CrossingBytes(int(totals[0]), int(totals[1]), moved.dirty) == counted


#: Networks, and the sizes of an L2 that stand to a batch of 1 as 48, 192 and 384 MiB do to 32.
NETWORKS = ("resnet50", "vgg16", "mobilenet_v2", "densenet121", "convnext_tiny")
SIZES = ("1.5MiB", "6MiB", "12MiB")

#: Lines that are longer than those of any device, of which a count takes less time.
LONG = 16 * 1024


@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_moves_what_a_count_of_its_lines_does(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more with a larger L2."""
    ready = plan(network, "ascend910b2", 1, monkeypatch)
    used = list(accesses(ready))
    moved = []
    for size in SIZES:
        device = load_device("ascend910b2", {"l2.size": size, "l2.sector": f"{LONG}B"})
        assert device.l2 is not None
        planned = crossing(on_device(ready, device))
        assert planned == line_by_line(used, device.l2.size_bytes, LONG)
        moved.append(planned)
    for smaller, larger in pairwise(moved):
        assert larger.fetched <= smaller.fetched
        assert larger.written_back <= smaller.written_back
    assert moved[0].written_back > moved[-1].written_back


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_results_of_the_optimizer_take_the_place_of_what_they_update(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An L2 with room for each place once reads each once, and writes nothing back."""
    ready = plan("resnet18", "ascend910b2", 1, monkeypatch, mode)
    names = {used.place[0] for launch in operands(ready) for used in launch}
    assert any(name.endswith(".v") for name in names)
    assert not any(name.endswith("v_new") for name in names)
    sizes = {used.place: -(-used.size // LONG) * LONG for used in accesses(ready)}
    enough = f"{sum(sizes.values())}B"
    device = load_device("ascend910b2", {"l2.size": enough, "l2.sector": f"{LONG}B"})
    assert crossing(on_device(ready, device))[:2] == (read_first(ready, sizes), 0)


def read_first(ready: PreparedStep, sizes: Mapping[tuple[str, str], int]) -> int:
    """Bytes of the places that are read before anything is written to them."""
    first: dict[tuple[str, str], bool] = {}
    for place, _, write in accesses(ready):
        first.setdefault(place, write)
    return sum(sizes[place] for place, write in first.items() if not write)
