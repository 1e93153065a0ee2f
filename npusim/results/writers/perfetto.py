"""A call's timeline as a Chrome trace that opens in ui.perfetto.dev, written as a stream.

One process per core with one track per pipe, where waits are slices too, named by their reason,
and arrows lead from what was waited for to what waited; and a process for the device that shows
kernels, launches, the bandwidth to and from GM and the rate of products. The bytes of the file
depend on the result alone.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from npusim.base.atomic_files import replacing
from npusim.base.integers import IntArray
from npusim.base.reasons import REASONS
from npusim.machine.device.spec import Device
from npusim.results.facts import metrics
from npusim.results.facts.call import CallFacts
from npusim.results.facts.tables import CallTimeline, call_timeline, within
from npusim.results.shown.figures.timeline import checked_window
from npusim.version import __version__

#: Samples of a counter over a call.
BUCKETS = 200
#: Rows turned into text at a time.
CHUNK_ROWS = 5_000
#: Instructions up to which arrows are drawn: what each waited for takes a simulation to tell.
FLOWS_LIMIT = 200_000
#: Process id of the device; cores follow from 1.
DEVICE_PID = 0

_PICOSECONDS = 10**12

#: How hard a trace is compressed: at gzip's usual level the file is a quarter smaller and takes two
#: thirds as long again to be written.
_LEVEL = 2


def save(
    result: CallFacts,
    path: Path,
    *,
    cores: Sequence[str] | None = None,
    window: tuple[float, float] | None = None,
) -> None:
    """Write ``result``'s trace to ``path``, compressed where it ends in ``.gz``.

    Of ``cores`` alone where some are named, and of the instructions that reach into ``window``,
    microseconds of the call. Raises ArgumentError where the timeline was not kept, for a core that
    the call does not use, and for a window without an instruction.
    """
    call = call_timeline(result.operator, result.runs)
    if window is not None:
        window = checked_window(result.time_us, window)
    shown = within(call, result.device, cores, window)
    _write(path, _about(result), _events(result, call, _Lane(), shown))


def save_both(a: CallFacts, b: CallFacts, path: Path) -> None:
    """Write the traces of two calls to one file, both from time 0: processes of A, then of B.

    Raises ArgumentError where a timeline was not kept.
    """
    calls = [call_timeline(result.operator, result.runs) for result in (a, b)]
    second = _Lane("B ", DEVICE_PID + 1 + len(calls[0].rows.cores))
    shown = [np.ones(len(call.rows.start), np.bool_) for call in calls]
    events = chain(
        _events(a, calls[0], _Lane("A "), shown[0]), _events(b, calls[1], second, shown[1])
    )
    _write(path, {"a": _about(a), "b": _about(b)}, events)


def save_step(result: Any, path: Path) -> None:
    """Write the operations and kernels of a ``StepResult``, phase by phase."""
    clock = _Clock(result.device)
    about = {
        "workload": result.workload.name,
        "device": result.device.name,
        "device_digest": result.device.digest(),
        "npusim_version": __version__,
    }
    tracks = ("phases", "operations", "launches and kernels")

    def events() -> Iterator[str]:
        yield from _name("process", f"device {result.device.name}", DEVICE_PID, 0)
        for track, name in enumerate(tracks, 1):
            yield from _name("thread", name, DEVICE_PID, track)
        now, ends = 0, dict[str, list[int]]()
        for operation in result.launched:
            first = now
            for run in operation.runs:
                start, args = now + run.launch_cycles, {"tiling": run.tiling, "cores": run.cores}
                yield _slice(clock, (DEVICE_PID, 3), f"launch {run.name}", now, start, {})
                now = start + run.cycles
                yield _slice(clock, (DEVICE_PID, 3), run.name, start, now, args)
            if operation.waiting_cycles:
                start, now = now, now + operation.waiting_cycles
                yield _slice(clock, (DEVICE_PID, 3), "wait for main memory", start, now, {})
            detail = {
                "kind": operation.kind,
                "read": operation.read_bytes,
                "written": operation.written_bytes,
            }
            yield _slice(clock, (DEVICE_PID, 2), operation.name, first, now, detail)
            ends.setdefault(operation.phase, [first, now])[1] = now
        for phase, (first, last) in ends.items():
            yield _slice(clock, (DEVICE_PID, 1), phase, first, last, {})

    _write(path, about, events())


class _Lane(NamedTuple):
    """Where a call stands among others: what its processes begin with, and their first number."""

    prefix: str = ""
    first: int = DEVICE_PID


def _about(result: CallFacts) -> dict[str, Any]:
    """Facts that are needed to reproduce a call."""
    return {
        "npusim_version": result.version,
        "operator": result.operator,
        "problem": result.problem,
        "device": result.device.name,
        "device_digest": result.device.digest(),
        "clock_hz": result.device.clock_hz,
        "tilings": [[run.name, run.tiling] for run in result.runs],
    }


def _write(path: Path, about: dict[str, Any], events: Iterable[str]) -> None:
    with _writer(path) as file:
        head = {"displayTimeUnit": "ns", "otherData": about}
        file.write(_json(head)[:-1] + ',"traceEvents":[\n')
        separator = ""
        for text in events:
            file.write(separator + text)
            separator = ",\n"
        file.write("\n]}\n")


@contextmanager
def _writer(path: Path) -> Iterator[TextIO]:
    """A text file at ``path``; gzip without name and time, which would differ between runs."""
    with replacing(path) as part, part.open("wb") as raw:
        target: Any = raw
        if path.suffix == ".gz":
            target = gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0)
        with target, io.TextIOWrapper(target, encoding="utf-8", newline="\n") as text:
            yield text


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _Clock:
    """Cycles to microseconds with six digits, in integers so that slices never overlap."""

    def __init__(self, device: Device) -> None:
        self._hz = device.clock_hz

    def picoseconds(self, cycles: int) -> int:
        """The whole picosecond a cycle starts in."""
        return cycles * _PICOSECONDS // self._hz

    def all_picoseconds(self, cycles: IntArray) -> IntArray:
        """The same of many cycles."""
        quotient, rest = divmod(_PICOSECONDS, self._hz)
        if int(cycles.max(initial=0)) * max(quotient + 1, rest) >= 1 << 63:
            return np.array([self.picoseconds(cycle) for cycle in cycles.tolist()], np.int64)
        return cycles * quotient + cycles * rest // self._hz

    def text(self, picoseconds: int) -> str:
        """Picoseconds as a JSON number of microseconds."""
        return f"{picoseconds // 10**6}.{picoseconds % 10**6:06d}"


class _Scene(NamedTuple):
    """Sources of events: a call, what is ``shown`` of it, numbers of cores and pipes."""

    result: CallFacts
    call: CallTimeline
    lane: _Lane
    shown: npt.NDArray[np.bool_]
    clock: _Clock
    pids: dict[str, int]
    tids: dict[str, int]


def _events(
    result: CallFacts, call: CallTimeline, lane: _Lane, shown: npt.NDArray[np.bool_]
) -> Iterator[str]:
    """Every event as JSON text: names of tracks, kernels, bandwidth, instructions ``shown``."""
    cores = sorted(call.rows.cores, key=metrics.core_key)
    pids = {core: pid for pid, core in enumerate(cores, start=lane.first + 1)}
    pipes = sorted(call.rows.pipes, key=metrics.pipe_key)
    tids = {pipe: tid for tid, pipe in enumerate(pipes, start=1)}
    scene = _Scene(result, call, lane, shown, _Clock(result.device), pids, tids)
    for part in (_names, _kernel_slices, _counters, _slices, _flows):
        yield from part(scene)


def _names(scene: _Scene) -> Iterator[str]:
    """Metadata: what processes and tracks are called, and their order on the screen."""
    result, call, lane, shown, _, pids, tids = scene
    rows = call.rows
    yield from _name("process", f"{lane.prefix}device {result.device.name}", lane.first, 0)
    yield from _name("thread", "kernels", lane.first, 1)
    used = np.unique(rows.core[shown] * len(rows.pipes) + rows.pipe[shown]).tolist()
    places = (divmod(place, len(rows.pipes)) for place in used)
    tracks = sorted((pids[rows.cores[core]], tids[rows.pipes[pipe]]) for core, pipe in places)
    owners = {owner for owner, _ in tracks}
    pipe_of = {tid: pipe for pipe, tid in tids.items()}
    for core, pid in pids.items():
        if pid not in owners and not shown.all():
            continue
        yield from _name("process", f"{lane.prefix}{core}", pid, 0)
        for owner, tid in tracks:
            if owner == pid:
                yield from _name("thread", pipe_of[tid], pid, tid)


def _name(kind: str, name: str, pid: int, tid: int) -> Iterator[str]:
    order = pid if kind == "process" else tid
    head = {"ph": "M", "pid": pid, "tid": tid}
    yield _json({**head, "name": f"{kind}_name", "args": {"name": name}})
    yield _json({**head, "name": f"{kind}_sort_index", "args": {"sort_index": order}})


#: What a kernel's slice tells.
_KERNEL_FACTS = ("tiling", "cycles", "cores", "instructions", "macs", "gm_bytes")


def _kernel_slices(scene: _Scene) -> Iterator[str]:
    """One slice per launch and per kernel on the device's own track."""
    runs, clock, pid = scene.result.runs, scene.clock, scene.lane.first
    names = metrics.titles(runs)
    for run, title, start in zip(runs, names, metrics.kernel_starts(runs), strict=True):
        args = {name: getattr(run, name) for name in _KERNEL_FACTS}
        yield _slice(clock, (pid, 1), f"launch {title}", start - run.launch_cycles, start, {})
        yield _slice(clock, (pid, 1), title, start, start + run.cycles, args)


def _slice(
    clock: _Clock, track: tuple[int, int], name: str, begin: int, end: int, args: dict[str, Any]
) -> str:
    """A slice of a track, from one cycle to another."""
    first, last = clock.picoseconds(begin), clock.picoseconds(end)
    return (
        f'{{"ph":"X","pid":{track[0]},"tid":{track[1]},"ts":{clock.text(first)},'
        f'"dur":{clock.text(last - first)},"name":{_json(name)},"args":{_json(args)}}}'
    )


def gm_pipes(device: Device, call: CallTimeline) -> tuple[str, ...]:
    """The pipes of a timeline that own a path from or to GM, in hardware order."""
    touching = {path.pipe for path in device.paths.values() if "GM" in (path.src, path.dst)}
    return tuple(sorted(touching & set(call.rows.pipes), key=metrics.pipe_key))


def done_by(
    call: CallTimeline, pipe: str, edges: npt.NDArray[np.int64], amounts: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """How much of the ``amounts`` of its instructions ``pipe`` has done by each cycle of ``edges``.

    That is on all cores; what an instruction does is spread evenly over its cycles.
    """
    rows = call.rows
    chosen = (rows.pipe == rows.pipes.index(pipe)) & (amounts > 0)
    start, size = rows.start[chosen], amounts[chosen].astype(np.float64)
    end = np.maximum(rows.end[chosen], start + 1)
    rate = size / (end - start)
    times, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    if not len(times):
        return np.zeros(len(edges))
    step = np.zeros(len(times))
    np.add.at(step, place, np.concatenate([rate, -rate]))
    moved = np.concatenate([[0.0], np.cumsum(np.cumsum(step)[:-1] * np.diff(times))])
    return np.asarray(np.interp(edges, times, moved))


def _counters(scene: _Scene) -> Iterator[str]:
    """Work of pipes over equal buckets of the call: GM bandwidth, and products of the cube."""
    result, call, *_ = scene
    rows, total = call.rows, result.cycles
    if not total:
        return
    edges = np.unique(np.linspace(0, total, BUCKETS + 1).astype(np.int64))
    multiplying = [rows.pipes[pipe] for pipe in np.unique(rows.pipe[rows.macs > 0]).tolist()]
    for name, pipes, amounts, unit in (
        ("GM bandwidth (GB/s)", gm_pipes(result.device, call), rows.bytes, 1e9),
        ("multiply-adds (TFLOPS)", multiplying, 2 * rows.macs, 1e12),
    ):
        done = {pipe: done_by(call, pipe, edges, amounts) / unit for pipe in pipes}
        yield from _counter(scene, name, edges, done)


def _counter(
    scene: _Scene, name: str, edges: npt.NDArray[np.int64], done: dict[str, npt.NDArray[Any]]
) -> Iterator[str]:
    """A counter with one series per pipe: what each has ``done`` by the ``edges``, per second."""
    result, _, lane, _, clock, *_ = scene
    seconds = np.diff(edges) / result.device.clock_hz
    rates = {
        pipe: [*np.maximum(0, np.diff(what) / seconds).tolist(), 0.0] for pipe, what in done.items()
    }
    for bucket, edge in enumerate(edges.tolist() if rates else ()):
        args = ",".join(f"{_json(pipe)}:{values[bucket]:.3f}" for pipe, values in rates.items())
        yield (
            f'{{"ph":"C","pid":{lane.first},"ts":{clock.text(clock.picoseconds(edge))},'
            f'"name":{_json(name)},"args":{{{args}}}}}'
        )


class _SliceTexts(NamedTuple):
    """Parts of the text of a slice that many slices share, by their numbers in a timeline.

    ``heads`` are by core and pipe, ``names`` by instruction, ``waits`` by reason and instruction,
    ``ends`` by reason waited for (0: none) and line.
    """

    heads: list[str]
    names: list[str]
    waits: list[str]
    ends: list[str]


def _slice_texts(scene: _Scene) -> _SliceTexts:
    rows = scene.call.rows
    lines = [f',"line":{_json(line)}}}}}' for line in rows.lines]
    reasons = ["", *(f',"reason":"{reason}"' for reason in REASONS)]
    return _SliceTexts(
        heads=[
            f'{{"ph":"X","pid":{scene.pids[name]},"tid":{scene.tids[track]},"ts":'
            for name in rows.cores
            for track in rows.pipes
        ],
        names=[f'"name":{_json(op)},"args":{{' for op in rows.ops],
        waits=[
            f'"cat":"wait","name":"waits: {reason}","args":{{"before":{_json(op)}}}}}'
            for reason in REASONS
            for op in rows.ops
        ],
        ends=[reason + line for reason in reasons for line in lines],
    )


def _slices(scene: _Scene) -> Iterator[str]:
    """One slice per instruction in the order of the timeline, before it one of its wait.

    Microseconds and picoseconds are written side by side: a number with six digits.
    """
    rows, clock = scene.call.rows, scene.clock
    heads, names, waits, ends = _slice_texts(scene)
    length = lru_cache(CHUNK_ROWS)(clock.text)  # most slices are as long as others

    @cache
    def done(op: int, size: int, macs: int) -> str:
        """Name of an instruction and its counts that are not 0."""
        counts = (("bytes", size), ("macs", macs))
        numbers = "".join(f'"{name}":{count},' for name, count in counts if count)
        return f'{names[op]}{numbers}"waited":'

    places = np.flatnonzero(scene.shown)
    for first in range(0, len(places), CHUNK_ROWS):
        of = places[first : first + CHUNK_ROWS]
        start, waited, op = rows.start[of], rows.waited[of], rows.op[of].astype(np.int64)
        since, begin, end = map(clock.all_picoseconds, (start - waited, start, rows.end[of]))
        reason = rows.reason[of].astype(np.int64)
        closing = np.where(waited > 0, reason + 1, 0) * len(rows.lines) + rows.line[of]
        track = rows.core[of].astype(np.int64) * len(rows.pipes) + rows.pipe[of]
        columns = (
            *(track, *divmod(since, 10**6), begin - since, *divmod(begin, 10**6), end - begin),
            *(waited, reason * len(rows.ops) + op, closing),
        )
        work = zip(op.tolist(), rows.bytes[of].tolist(), rows.macs[of].tolist(), strict=True)
        events: list[str] = []
        for track_number, s, s6, w, b, b6, d, late, wait, close, what in zip(
            *(column.tolist() for column in columns), work, strict=True
        ):
            head = heads[track_number]
            if late:
                events.append(f'{head}{s}.{s6:06d},"dur":{length(w)},{waits[wait]}')
            events.append(f'{head}{b}.{b6:06d},"dur":{length(d)},{done(*what)}{late}{ends[close]}')
        yield ",\n".join(events)


def _flows(scene: _Scene) -> Iterator[str]:
    """An arrow from each instruction that another waited for to that other.

    It leaves where the first ends, or where it starts if the other follows it piece by piece.
    """
    result, call, _, shown, clock, pids, tids = scene
    rows = call.rows
    if result.replay is None or len(rows.start) > FLOWS_LIMIT:
        return
    first, number = 0, min(pids.values(), default=0) * 10**9  # none of a call beside it has it
    for causes in result.replay.causes(result.device):
        for row in np.flatnonzero(causes >= 0).tolist():
            cause, to = first + int(causes[row]), first + row
            if not (shown[cause] and shown[to]):
                continue
            reason = REASONS[int(rows.reason[to])]
            begin, end = (
                clock.picoseconds(int(column[cause])) for column in (rows.start, rows.end)
            )
            leaves = max(begin, min(end, clock.picoseconds(int(rows.start[to]))) - 1)
            arrives = clock.picoseconds(int(rows.start[to]))
            for phase, row_number, when in (("s", cause, leaves), ("f", to, arrives)):
                pid = pids[rows.cores[rows.core[row_number]]]
                tid = tids[rows.pipes[rows.pipe[row_number]]]
                bound = ',"bp":"e"' if phase == "f" else ""
                yield (
                    f'{{"ph":"{phase}","pid":{pid},"tid":{tid},"ts":{clock.text(when)},'
                    f'"id":{number},"cat":"{reason}","name":"{reason}"{bound}}}'
                )
            number += 1
        first += len(causes)
