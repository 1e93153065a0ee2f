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


def bound(device: Device, tile: TileWork, product: ProductCycles) -> Floats:
    """Cycles that no simulation of a candidate falls below, without what is beside the kernel.

    ``tile`` is the mean over all cores: these take their share of it, and each pipe and memory is
    as fast as alone. ``product`` gives the cycles of an mmad of mean sizes m, k and n.
    """
    step, rest = tile.step, tile.rest
    traffic = tile.traffic
    main = device.main_read_rate
    requests = traffic.requests - traffic.spared
    work = Work(
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
        shared=costs.read_rate(device, traffic.asked, requests),
        main=main,
        least=np.maximum(traffic.stored, traffic.missing / main),
    )
    items = tile.items / tile.cores
    return _longest(work, items, items / tile.first.every, items / tile.second.every)


def busy_cycles(work: Work) -> Floats:
    """Cycles of each candidate by its busiest pipe or memory alone, without what is beside.

    They are counted as the estimate does, so that no estimate is below them.
    """
    w: Any = work
    items = np.ceil(w.items / w.cores)
    return _longest(work, items, np.ceil(items / w.first_every), np.ceil(items / w.second_every))


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


def _longest(work: Work, items: Numbers, first_turns: Numbers, second_turns: Numbers) -> Floats:
    """Cycles of the busiest pipe or memory of a core with so many tiles.

    Its operands come so many ``first_turns`` and ``second_turns``.
    """
    w: Any = work
    steps = items * w.firsts * w.seconds * w.steps
    rests = steps / w.run
    l0 = (steps - rests) * (w.a + w.b) + rests * w.rest_l0
    cube = (steps - rests) * w.m + rests * w.rest_m
    firsts = w.firsts * first_turns
    seconds = w.firsts * w.seconds * second_turns
    size = firsts * w.first_bytes + seconds * w.second_bytes
    loads = firsts * w.first_start + seconds * w.second_start + size / w.rate
    loads = np.maximum(loads, size * w.cores / w.shared)
    pipes = (l0, cube, steps * w.issue, loads, items * w.pace, w.least)
    longest: Floats = reduce(np.maximum, pipes)
    return longest


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
