"""Memory of values that nothing reads any more, which other values get."""

from __future__ import annotations

from npusim.networks.plan.addresses import Addresses, Block
from npusim.networks.plan.tasks import PLAIN, StoredValue

Launch = tuple[list[StoredValue], list[StoredValue]]


def value(name: str) -> StoredValue:
    return StoredValue(name, PLAIN)


def launch(reads: str, writes: str) -> Launch:
    """What a launch reads and writes, by names with spaces between."""
    return [value(name) for name in reads.split()], [value(name) for name in writes.split()]


def blocks(
    launches: list[Launch],
    sizes: dict[str, int],
    updates: dict[str, str] | None = None,
    kept: set[str] | None = None,
) -> dict[str, Block]:
    """The block of each value; each has 1000 bytes where ``sizes`` says nothing."""
    addresses = Addresses(launches, updates or {}, kept or set())
    placed = {}
    for number, (reads, writes) in enumerate(launches):
        for stored in (*reads, *writes):
            placed[stored.name] = addresses.block(stored, sizes.get(stored.name, 1000))
        addresses.after(number)
    return placed


CHAIN = [launch("x", "a"), launch("a", "b"), launch("b", "c"), launch("c", "d")]


def test_a_value_gets_the_block_of_one_that_is_dead_when_it_is_written() -> None:
    # ``a`` is read as ``b`` is written, so that ``c`` is the first to get its block.
    placed = blocks(CHAIN, {})
    assert placed["c"] == placed["a"]
    assert placed["d"] == placed["b"]
    assert len({*placed.values()}) == 3


def test_a_block_goes_to_values_of_its_size_alone() -> None:
    placed = blocks(CHAIN, {"c": 1025})
    assert placed["c"] != placed["a"]
    assert placed["d"] in (placed["a"], placed["b"])
    rounded = blocks(CHAIN, {"c": 1024})
    assert rounded["c"] == rounded["a"], "both are two granules of 512 bytes"


def test_what_is_there_before_the_step_and_its_results_keep_their_blocks() -> None:
    launches = [launch("x", "a"), launch("a w", "b"), launch("b", "c"), launch("c", "d")]
    placed = blocks(launches, {}, kept={"a"})
    assert len({placed[name] for name in ("x", "w", "a")}) == 3
    assert not {placed["x"], placed["w"], placed["a"]} & {placed["c"], placed["d"]}


def test_an_update_lies_where_what_it_updates_lies() -> None:
    launches = [launch("w", "gradient"), launch("w gradient", "w_new")]
    placed = blocks(launches, {}, updates={"w_new": "w"})
    assert placed["w_new"] == placed["w"] != placed["gradient"]
