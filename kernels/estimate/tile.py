"""A tile of the result as its family states it, and the two answers that follow from one.

A family (``kernels/matmul/space.py`` and the like) says what a core loads, multiplies and drains
for a tile, as a ``TileWork`` of columns with an entry for each candidate. ``estimate`` makes the
work of a core out of it, which ``pipeline`` follows through its pipes. ``bound`` are cycles that no
simulation falls below.

Both are stated by the same functions of sizes; only the sizes differ. An estimate takes those of
the busiest core, a bound the mean over all cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np

from npusim.kernels.estimate import costs
from npusim.kernels.estimate.work import Floats, Work
from npusim.language import Device
from npusim.machine.device.parts import Path
from npusim.machine.isa.base import Numbers
from npusim.machine.timing.links import ONE, waiting

#: How many of the cores drain their tiles at the same time; fitted to simulated kernels.
DRAINING = 0.9

#: Cycles of an mmad of so many elements m, k and n.
ProductCycles = Callable[[Numbers, Numbers, Numbers], Numbers]

R = TypeVar("R", bound=tuple[Any, ...])


class OperandLoads(NamedTuple):
    """Loads of an operand to L1.

    Each takes ``start`` cycles beside those of its ``size`` in bytes, into one of ``slots``; in so
    many of them, those ``beside``, bytes come that come at less than the path's rate. The operand
    comes anew every ``every`` tiles of a core. Of the first ``until`` tiles the L2 lacks it in each
    ``period``-th, and ``copies`` cores ask for the same at once; all of these wait until one has
    ``fetched`` it, so many times the bytes of the load. Bounds leave this out.
    Its bytes are so many ``rows`` in GM at most, which bounds need of what the L2 lacks.
    """

    start: Numbers
    size: Numbers
    slots: Numbers
    every: Numbers = 1
    period: Numbers = 1
    until: Numbers = 0
    copies: Numbers = 1
    beside: Numbers = 0
    fetched: Numbers = 1
    rows: Numbers = np.inf


class CubeStep(NamedTuple):
    """The loads to L0 of a step along K, ``a`` and ``b`` cycles, and its product.

    The product is of ``m`` x ``k`` x ``n`` elements. Of the columns so many are ``used`` on average
    (None: all), and a mean tile takes as much less time for them. ``issue`` are
    cycles of the scalar pipe, which runs ``ahead`` of the cube by so many steps; after a gap
    ``a_head`` and ``m_head`` cycles more pass.
    """

    a: Numbers
    b: Numbers
    m: Numbers
    k: Numbers
    n: Numbers
    issue: Numbers
    ahead: Numbers
    a_head: Numbers
    m_head: Numbers
    used: Numbers | None = None


class WayOut(NamedTuple):
    """The way out of a tile: cycles alone, and cycles after which the next one can follow.

    It writes so many bytes, requests of atomic adds included, in ``moves`` that follow each other.
    For a share of its time it has ``blocked`` the scalar pipe.
    """

    cycles: Numbers
    pace: Numbers
    written: Numbers
    moves: Numbers = 1
    blocked: Numbers = 0


class SharedBytes(NamedTuple):
    """Bytes of all cores.

    They are ``asked`` of the L2 in so many ``requests``, of which it makes none for the ``spared``
    that come from main memory; ``missing`` bytes do, at ``main`` bytes per cycle as write-backs
    leave it. All stores take ``stored`` cycles.
    """

    asked: Numbers
    requests: Numbers
    missing: Numbers
    stored: Numbers
    main: Numbers
    spared: Numbers = 0


class TileWork(NamedTuple):
    """Tiles of the result, their loops and what a core does in each.

    ``items`` tiles are shared out to ``cores``. For each there are ``firsts`` loads of the first
    operand, for each of these ``seconds`` of the second, for each of these so many ``steps``. Every
    ``run``-th step is the ``rest`` of a load. Loads take the path ``port``.

    Of the steps that read a load there are as many as the ``last`` one has at least, 0 if that is
    not known; estimates leave it out.
    """

    cores: Numbers
    items: Numbers
    firsts: Numbers
    seconds: Numbers
    steps: Numbers
    run: Numbers
    first: OperandLoads
    second: OperandLoads
    step: CubeStep
    rest: CubeStep
    drain: WayOut
    traffic: SharedBytes
    port: Path
    step_slots: Numbers
    drain_slots: Numbers
    unit_flag: Numbers
    beside: Numbers
    last: Numbers = 0


def estimate(device: Device, tile: TileWork, math: str) -> Work:
    """The work of a core under each candidate, as ``pipeline`` follows it.

    ``tile`` is that of the busiest core. Cores share the way out and the bandwidth of the L2.
    """
    step, rest = tile.step, tile.rest
    shared = DRAINING * tile.drain.written * tile.cores / costs.write_rate(device)
    drain = np.maximum(tile.drain.cycles, shared)
    # Under the unit flag the next tile follows the last of several drains.
    lag = costs.unit_flag_lag(device) + (drain - drain / tile.drain.moves)
    traffic = tile.traffic
    return Work(
        **_counted(tile),
        first_period=tile.first.period,
        first_until=tile.first.until,
        first_copies=tile.first.copies,
        second_period=tile.second.period,
        second_until=tile.second.until,
        second_copies=tile.second.copies,
        m=_used(step, costs.product_cycles(device, step.m, step.k, step.n, math)),
        rest_m=_used(rest, costs.product_cycles(device, rest.m, rest.k, rest.n, math)),
        drain=drain,
        pace=np.maximum(tile.drain.pace, shared),
        stall=drain * tile.drain.blocked,
        lag=np.where(tile.unit_flag > 0, lag, -1.0),
        shared=costs.read_rate(device, traffic.asked, traffic.requests),
        main=traffic.main,
        least=np.maximum(traffic.stored, traffic.missing / traffic.main),
        first_beside=tile.first.beside,
        second_beside=tile.second.beside,
        first_alone=_alone_rate(tile.port, tile.first),
        second_alone=_alone_rate(tile.port, tile.second),
        missed=costs.missed(device, traffic.asked, traffic.requests),
        drain_head=costs.way_out(device).idle_head_cycles,
    )


class Tiles(NamedTuple):
    """What holds for some core: it has as much work as the ``mean`` over all; it has a ``largest``
    tile; it has as many as their number over that of the cores, rounded up, none of which is
    smaller than the ``least``."""

    mean: TileWork
    largest: TileWork
    least: TileWork


def bound(device: Device, tiles: Tiles, products: tuple[ProductCycles, ProductCycles]) -> Floats:
    """Cycles that no simulation of a candidate falls below, without what is beside the kernel.

    Each pipe and memory is as fast as alone, but before it come the first loads, and behind it the
    last drain. ``products`` give the cycles of an mmad of mean sizes m, k and n, and of true ones.
    """
    mean, largest, least = tiles
    main = device.main_read_rate
    traffic = mean.traffic
    of_mean, of_least = _alone(mean, products[0]), _alone(least, products[1])
    of_largest = _alone(largest, products[1])
    share = mean.items / mean.cores
    most = np.ceil(least.items / least.cores)
    busy = _pipes(of_mean, share, share / mean.first.every, share / mean.second.every)
    whole = _pipes(
        of_least,
        most,
        np.maximum(1, most / least.first.every),
        np.maximum(1, most / least.second.every),
    )
    single, others = _pipes(of_largest, 1, 1, 1), np.maximum(0, np.floor(share) - 1)
    beside = _pipes(of_least, others, 0, 0)
    edges = _edges(device, least, of_least, _pipes(of_mean, 1, 1, 1))
    requests = np.maximum(0, traffic.requests - traffic.spared)
    asked = busy.size * mean.cores / costs.read_rate(device, traffic.asked, requests)
    waited = traffic.missing * waiting(device.l2) / ONE / device.shared_read_rate
    first = np.minimum(least.first.start, least.second.start)
    in_turn = (
        _in_turn(mean, of_mean, busy),
        _in_turn(least, of_least, whole),
        _in_turn(largest, of_largest, single),
    )
    times = [
        edges.l0 + reduce(np.maximum, (busy.l0, whole.l0, single.l0 + beside.l0)) + edges.drain,
        edges.cube
        + reduce(np.maximum, (busy.cube, whole.cube, single.cube + beside.cube))
        + edges.behind_cube,
        edges.out + reduce(np.maximum, (busy.out, whole.out, single.out + beside.out)),
        reduce(np.maximum, (busy.loads, whole.loads, single.loads)) + edges.behind_load,
        reduce(np.maximum, in_turn) + edges.drain,
        _with_drains(device, mean, of_mean, share, busy),
        _with_drains(device, least, of_least, most, whole),
        first + asked + waited + edges.behind_load,
        first + traffic.missing / main + edges.behind_load,
        edges.out + traffic.stored,
        busy.issue,
    ]
    longest: Floats = reduce(np.maximum, times)
    return longest


def _lacking(operand: OperandLoads) -> Numbers:
    """1 where the L2 lacks an operand of which loads are the same or have nothing in common."""
    return (np.asarray(operand.until) > 0) & np.isfinite(operand.rows)


def _in_turn(tile: TileWork, work: Work, pipes: _Pipes) -> Numbers:
    """Cycles of loads that wait until their slot of L1 was read, and of what reads it in turn.

    Where an operand that comes anew for every tile has one slot, its next load follows the loads to
    L0 of the one before, but for that of the other operand which is the first or the last of them.
    If both have one, and come as often, the other waits behind it in the pipe.
    """
    first, second, step = tile.first, tile.second, tile.step
    alone = [(operand.slots == 1) & (operand.every <= 1) for operand in (first, second)]
    size = [operand.start + operand.size / tile.port.rate for operand in (first, second)]
    counts = pipes.firsts, pipes.seconds
    both = step.a + step.b
    chains = [
        np.where(one, count * (cycles - np.maximum(step.a, step.b)) + pipes.l0, 0)
        for one, count, cycles in zip(alone, counts, size, strict=True)
    ]
    paired = alone[0] & alone[1] & (tile.seconds == 1)
    chains.append(np.where(paired, counts[0] * (size[0] + size[1] - both) + pipes.l0, 0))
    longest: Numbers = reduce(np.maximum, chains)
    return longest


def _with_drains(
    device: Device, tile: TileWork, work: Work, items: Numbers, pipes: _Pipes
) -> Numbers:
    """Cycles of products and drains that follow each other in one slot of L0C.

    Under the unit flag a drain begins with the last product at the earliest. The next tile follows
    the start of its last move, and ends its first product after that. Over UB a slot is free
    earlier.
    """
    if not device.has_path("L0C", "GM"):
        return 0
    w: Any = work
    drain = tile.drain.cycles
    begun = device.cube.startup_cycles if device.cube else 0
    over = np.minimum(drain / tile.drain.moves, w.m)
    flagged = begun + drain - over - np.maximum(w.m, w.rest_m)
    more = np.where(tile.unit_flag > 0, flagged, drain)
    return np.where(tile.drain_slots == 1, pipes.cube + items * more, 0)


class _Edges(NamedTuple):
    """Cycles of a core before pipes begin at the earliest, and behind them.

    Before the loads to ``l0``, the ``cube`` and the way ``out``; behind the last load to L0 there
    is a ``drain``, ``behind_cube`` what is left of it, and ``behind_load`` what the last load to L1
    brings for the cube, and its drain.
    """

    l0: Numbers
    cube: Numbers
    out: Numbers
    drain: Numbers
    behind_cube: Numbers
    behind_load: Numbers


def fresh_cycles(device: Device, port: Path, operand: OperandLoads) -> Numbers:
    """Cycles at least of the bytes of a load of what no core has fetched before, without its start.

    Where the L2 lacks it, none has it sooner than main memory brings it to one. Others may fetch
    the sectors at both ends of a row on account of what lies beside it.
    """
    sector = device.l2.sector_bytes if device.l2 is not None else 0
    sure = np.maximum(0, operand.size - 2 * sector * np.asarray(operand.rows, np.float64))
    return np.maximum(operand.size / port.rate, _lacking(operand) * sure / port.memory_rate)


def _edges(device: Device, least: TileWork, work: Work, item: _Pipes) -> _Edges:
    """The edges of a core whose tiles are none smaller than the ``least``.

    ``item`` is the mean work of a tile: if that of the least is as much, all are alike.
    """
    w: Any = work
    step = least.step
    loads = [
        operand.start + fresh_cycles(device, least.port, operand)
        for operand in (least.first, least.second)
    ]
    both = loads[0] + loads[1]
    of_least = _pipes(work, 1, 1, 1)
    # The pipe has one operand in L0 when the other comes to L1: how long that took is known where
    # all tiles are alike.
    alike = np.isclose(of_least.l0, item.l0)
    shorter = np.minimum(loads[0], loads[1])
    begin = np.maximum(shorter, np.where(alike, both - np.maximum(step.a, step.b), 0))
    ready = both + np.minimum(step.a, step.b)
    # Under the unit flag a drain follows the last product.
    out = ready + of_least.cube - np.where(least.unit_flag > 0, np.maximum(w.m, w.rest_m), 0)
    drain = least.drain.pace
    behind = np.where(least.unit_flag > 0, 0, drain)
    # Of the last load's first step the other operand may be in L0 before.
    last = least.last
    into = np.maximum(0, last * (step.a + step.b) - np.maximum(step.a, step.b)) + drain
    product = np.minimum(1, last) * np.minimum(step.a, step.b) + last * w.m + behind
    return _Edges(
        l0=begin,
        cube=ready,
        out=out,
        drain=drain,
        behind_cube=behind,
        behind_load=np.maximum(into, product),
    )


def _alone(tile: TileWork, product: ProductCycles) -> Work:
    """The work of a core that has all memories for itself."""
    step, rest = tile.step, tile.rest
    return Work(
        **_counted(tile),
        first_period=1,
        first_until=0,
        first_copies=1,
        second_period=1,
        second_until=0,
        second_copies=1,
        m=_used(step, product(step.m, step.k, step.n)),
        rest_m=_used(rest, product(rest.m, rest.k, rest.n)),
        drain=tile.drain.cycles,
        pace=tile.drain.pace,
        stall=0,
        lag=-1.0,
        shared=np.inf,
        main=np.inf,
        least=0,
    )


def busy_cycles(work: Work) -> Floats:
    """Cycles of each candidate by its busiest pipe or memory alone, without what is beside.

    They are counted as the estimate does, so that no estimate is below them.
    """
    w: Any = work
    items = np.ceil(w.items / w.cores)
    turns = [np.ceil(items / every) for every in (w.first_every, w.second_every)]
    pipes = _pipes(work, items, *turns)
    loads = np.maximum(pipes.loads, pipes.size * w.cores / w.shared)
    longest: Floats = reduce(
        np.maximum, (pipes.l0, pipes.cube, pipes.issue, loads, pipes.out, w.least)
    )
    return longest


def _alone_rate(port: Path, operand: OperandLoads) -> Numbers:
    """Bytes per cycle of loads of what the L2 lacks, if one core has main memory for itself."""
    return np.minimum(port.rate, port.memory_rate / operand.fetched)


def _counted(tile: TileWork) -> dict[str, Any]:
    """The columns of ``Work`` that estimates and bounds count alike."""
    first, second = tile.first, tile.second
    step, rest = tile.step, tile.rest
    return {
        "cores": tile.cores,
        "items": tile.items,
        "firsts": tile.firsts,
        "seconds": tile.seconds,
        "steps": tile.steps,
        "first_start": first.start,
        "first_bytes": first.size,
        "second_start": second.start,
        "second_bytes": second.size,
        "first_every": first.every,
        "second_every": second.every,
        "first_slots": first.slots,
        "second_slots": second.slots,
        "a": step.a,
        "b": step.b,
        "run": tile.run,
        "step_slots": tile.step_slots,
        "rest_l0": rest.a + rest.b,
        "a_head": step.a_head,
        "m_head": step.m_head,
        "issue": step.issue,
        "ahead": step.ahead,
        "drain_slots": tile.drain_slots,
        "rate": tile.port.rate,
        "beside": tile.beside,
    }


class _Pipes(NamedTuple):
    """Cycles in which the pipes of a core are busy: loads to L0, the cube, the scalar pipe that
    issues, loads to L1, and the way out. Of both operands there are so many loads, and bytes."""

    l0: Numbers
    cube: Numbers
    issue: Numbers
    loads: Numbers
    out: Numbers
    firsts: Numbers
    seconds: Numbers
    size: Numbers


def _pipes(work: Work, items: Numbers, first_turns: Numbers, second_turns: Numbers) -> _Pipes:
    """The pipes of a core with so many tiles, whose operands come so many turns."""
    w: Any = work
    steps = items * w.firsts * w.seconds * w.steps
    rests = steps / w.run
    firsts = w.firsts * first_turns
    seconds = w.firsts * w.seconds * second_turns
    size = firsts * w.first_bytes + seconds * w.second_bytes
    return _Pipes(
        l0=(steps - rests) * (w.a + w.b) + rests * w.rest_l0,
        cube=(steps - rests) * w.m + rests * w.rest_m,
        issue=steps * w.issue,
        loads=firsts * w.first_start + seconds * w.second_start + size / w.rate,
        out=items * w.pace,
        firsts=firsts,
        seconds=seconds,
        size=size,
    )


def _used(step: CubeStep, cycles: Numbers) -> Numbers:
    """Cycles of the product of a step, less those for columns that tiles lack on average."""
    return cycles if step.used is None else cycles * step.used / step.n


def step_of(
    device: Device,
    into: tuple[Path, Path],
    moves: tuple[Numbers, Numbers],
    cycles: tuple[Numbers, Numbers],
    product: tuple[Numbers, Numbers, Numbers],
    used: Numbers | None = None,
) -> CubeStep:
    """A step of so many ``moves`` along both paths to L0, which take so many ``cycles``.

    ``product`` are its elements m, k and n.
    """
    a, b = into
    pipe = device.pipe(b.pipe)
    queued = np.maximum(1, pipe.queue_depth // (np.asarray(moves[0]) + np.asarray(moves[1])))
    return CubeStep(
        a=cycles[0],
        b=cycles[1],
        m=product[0],
        k=product[1],
        n=product[2],
        issue=moves[0] * a.issue_cycles + moves[1] * b.issue_cycles + 1,
        ahead=np.minimum(device.pipe("M").queue_depth, queued),
        a_head=a.idle_head_cycles,
        m_head=device.cube.idle_head_cycles if device.cube else 0,
        used=used,
    )


def in_step(
    a: OperandLoads, b: OperandLoads, last_a: Numbers, last_b: Numbers, rounds: Numbers
) -> tuple[OperandLoads, OperandLoads]:
    """Loads of two operands by cores that go through them in step, as they wait for each other.

    The last tile takes so much of a load of each, ``last_a`` and ``last_b``. Its core comes to the
    operand that it shares with others sooner, by what it lacks of the other one. Of a core's
    ``rounds`` tiles one is fetched like this: others find more in the L2.
    """
    fetched_a, fetched_b = a.size * a.fetched, b.size * b.fetched
    less_a = fetched_a * np.maximum(0, 1 - last_a)
    less_b = fetched_b * np.maximum(0, 1 - last_b)
    by_a = less_a >= less_b
    left_a = np.maximum(1, fetched_a - np.where(by_a, 0, less_b))
    left_b = np.maximum(1, fetched_b - np.where(by_a, less_a, 0))
    return (
        a._replace(fetched=1 + (left_a / a.size - 1) / rounds),
        b._replace(fetched=1 + (left_b / b.size - 1) / rounds),
    )


def swapped(swap: Numbers, first: R, second: R) -> tuple[R, R]:
    """Two records of columns, each taken for the other where ``swap`` says so."""
    if not np.any(swap):
        return first, second
    pairs = list(zip(first, second, strict=True))
    kind = type(first)
    return (
        kind(*(np.where(swap, other, mine) for mine, other in pairs)),
        kind(*(np.where(swap, mine, other) for mine, other in pairs)),
    )
