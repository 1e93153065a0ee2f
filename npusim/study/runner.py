"""Sweeps: every point of a study measured once, kept at once, and never twice.

Sensitivities are sweeps too: how far each varied name moves a goal, from one end of its values to
the other.

Points are measured in this process, in processes of this computer, or on Dask.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from npusim.base.errors import (
    ArgumentError,
    NpusimError,
    PassingError,
    StoreError,
    naming,
    told_as,
)
from npusim.base.integers import ceil_div
from npusim.base.records import replace
from npusim.base.resources import optional
from npusim.base.sent import Work, answered, packed, unpacked
from npusim.base.workers import AHEAD, Workers, check_jobs, is_worth, job_count
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figure_text, figures
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.shown.figures import studies
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.progress import in_notebooks, of_points
from npusim.reuse.answers import answers_in
from npusim.reuse.store import Store, opened
from npusim.study.formula import goal as goal_of
from npusim.study.points import MeasuredPoint, keep_points, key_of, runs_beside, stored_point
from npusim.study.result import SweepResult, Tabled
from npusim.study.space import Study, StudyAxis, check_goals, load_study, make_study
from npusim.study.subject import (
    DEVICE,
    NETWORK,
    OPERATOR,
    Known,
    Row,
    Setting,
    Split,
    measure,
    option_names,
)

#: Seconds that a chunk of points should take: long beside handing it over, short to lose.
_CHUNK_S = 0.5
#: Points of the largest chunk.
_MOST = 256

#: Seconds that chunks gain with each worker: a scheduler hands out some 400 in a second, and is to
#: have time left.
_TASK_S = 0.01

#: Called as progress(done, total, known): points so far, of how many, of which were in the store.
Progress = Callable[[int, int, int], None]


def sweep(
    study: Study | str | Path | None = None,
    *,
    network: Any = None,
    operator: str | None = None,
    device: str | None = None,
    vary: Mapping[str, Any] | None = None,
    combine: str = "grid",
    store: str | Path | None = "",
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SweepResult:
    """Measure every point of a study: a network or an operator, over figures and options.

    ``study`` is the path of a study file, or a ``Study``; without one, ``network`` or ``operator``
    says what is measured on ``device``, ``options`` what holds at every point (names of figures of
    the device in a mapping ``set``), and ``vary`` maps names to lists, or to texts such as
    ``"8:48:4"`` and ``"256KiB,1MiB"``. ``combine`` is "grid" or "zip".

    Points are measured in ``jobs`` processes (None: one per processor), if they are worth their
    start, or by a Dask ``scheduler`` such as ``"tcp://host:8786"``. Each is kept in ``store`` at
    once ("": a file in the user's cache, None: nowhere), by what it depends on, so that a second
    run computes what is missing; the runs of its kernels are kept beside it, so that after one
    changed figure only what this figure touches is simulated. A point that the device refuses is a
    row with its error. ``progress`` is told of points that are done; without it a notebook shows a
    bar.

    Raises ``ConfigError`` or ``ArgumentError`` before the first point where a name, a value or a
    device is wrong, or the device cannot run what is measured.
    """
    space = study_of(study, network, operator, device, vary, combine, options)
    if jobs is not None:
        check_jobs(jobs)
    with opened(store, "sweeps") as points, in_notebooks(progress, of_points) as shown:
        report = shown or (lambda done, total, known: None)
        probed(space, points)
        runs = runs_beside(store)
        measured = measure_all(space, points, scheduler, job_count(jobs), runs, report)
    return SweepResult(study=space, measured=measured)


def measure_all(
    space: Study,
    points: Store,
    scheduler: str | None,
    jobs: int,
    runs: Runs,
    report: Progress,
) -> tuple[MeasuredPoint, ...]:
    """Every point of a study in its order; those that ``points`` lacks are measured and kept there.

    ``runs`` is the file of runs of kernels, and ``report`` is told of points that are done.
    """
    values: Known = {}
    texts = list(space.points())
    settings = [Split.of(setting, values) for setting in texts]
    keys = [key_of(parts.content) for parts in settings]
    alike = dict(zip(keys, map(space.beside, texts), strict=True))
    measured: dict[str, MeasuredPoint] = {}
    for key in dict.fromkeys(keys):
        stored = stored_point(points, key)
        if stored is not None:
            measured[key] = stored
    missing = {key: parts for key, parts in zip(keys, settings, strict=True) if key not in measured}
    total = len(set(keys))
    stored_count = len(measured)
    report(stored_count, total, stored_count)
    for batch in _measured(missing, alike, scheduler, jobs, runs):
        keep_points(points, batch.items())
        measured |= batch
        report(len(measured), total, stored_count)
    return tuple(measured[key] for key in keys)


def study_of(
    study: Study | str | Path | None,
    network: Any,
    operator: str | None,
    device: str | None,
    vary: Mapping[str, Any] | None,
    combine: str,
    options: Mapping[str, Any],
) -> Study:
    """The study that the arguments of ``sweep`` state."""
    arguments = {NETWORK: network, OPERATOR: operator, DEVICE: device, **options}
    arguments |= arguments.pop("set", None) or {}
    fixed = {name: value for name, value in arguments.items() if value is not None}
    if study is None:
        return make_study(fixed, vary, combine)
    if fixed or vary:
        names = ", ".join([*fixed, *(vary or {})])
        raise ArgumentError(f"a study states everything, so {names} cannot be given too")
    return study if isinstance(study, Study) else load_study(Path(study))


def probed(study: Study, points: Store) -> Mapping[str, Any]:
    """Measure each device once with no figure varied, and return the row of the last of them.

    Raises where a device cannot run what the study measures.
    """
    first = next(study.points())
    options = option_names(first)
    plain = {name: text for name, text in first.items() if name in study.fixed or name in options}
    axis = next((axis for axis in study.axes if axis.name == DEVICE), None)
    if axis is None:
        return _probed(plain, first.get(DEVICE), points, ArgumentError)
    row: Mapping[str, Any] = {}
    for device in axis.values:
        row = _probed({**plain, DEVICE: device}, device, points, axis.where)
    return row


def _probed(
    setting: Setting, device: str | None, points: Store, where: Callable[[str], NpusimError]
) -> Mapping[str, Any]:
    """The row of a setting, kept among the ``points``; ``where`` raises its error on ``device``."""
    parts = Split.of(setting, {})
    key = key_of(parts.content)
    measured = stored_point(points, key)
    if measured is None:
        measured = _measure_one(parts)
    keep_points(points, [(key, measured)])
    if measured.error:
        raise where(f"{device}: {measured.error}")
    return measured.row


def _measured(
    missing: Mapping[str, Split],
    alike: Mapping[str, Hashable],
    scheduler: str | None,
    jobs: int,
    runs: Runs,
) -> Iterator[dict[str, MeasuredPoint]]:
    """Points by key as they become known; the first tells how long one takes.

    Of those that are ``alike`` one process measures as many as it can: it knows most runs.
    """
    if not missing:
        return
    keys = list(missing)
    begin = time.perf_counter()
    yield {keys[0]: _measure_one(missing[keys[0]], runs)}
    seconds = max(time.perf_counter() - begin, 1e-4)
    rest = list(enumerate(missing.values()))[1:]

    def chunks(workers: int) -> Iterator[Chunk]:
        """Pieces of the rest, the longer the more workers take them from one hand."""
        chunk_seconds = max(_CHUNK_S, workers * _TASK_S)
        share = ceil_div(len(rest), 4 * workers)
        length = max(1, min(int(chunk_seconds / seconds), _MOST, share))
        return (rest[start : start + length] for start in range(0, len(rest), length))

    if scheduler:
        ready = on_dask(chunks, scheduler)
    else:
        processes = jobs if is_worth(seconds, len(rest), jobs) else 1
        kinds = [alike[key] for key in keys]
        ready = here(list(chunks(processes)), processes, runs, lambda chunk: kinds[chunk[0][0]])
    for done in ready:
        yield {keys[number]: measured for number, measured in done}


# -- sensitivities ------------------------------------------------------------------------------


def sensitivities(
    study: Study | str | Path | None = None,
    *,
    network: Any = None,
    operator: str | None = None,
    device: str | None = None,
    vary: Mapping[str, Any] | None = None,
    goal: str = "time_us",
    store: str | Path | None = "",
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sensitivities:
    """Move each varied name to its first and to its last value, the others as they are.

    As they are is the device's own figure, of an option the middle one of its values. A study is
    given, measured and kept as by ``npusim.sweep``; ``goal`` is one of ``npusim.explore``.
    """
    space = study_of(study, network, operator, device, vary, "grid", options)
    check_goals((goal,))
    axes = [axis for axis in space.axes if axis.name not in (NETWORK, OPERATOR, DEVICE)]
    if len(axes) < len(space.axes) or not axes:
        raise ArgumentError("sensitivities are of figures and options: vary some, and no device")
    unmoved = _unmoved_options(space.fixed, axes)
    ends = [
        {**unmoved, axis.name: value}
        for axis in axes
        for value in (axis.values[0], axis.values[-1])
    ]
    listed = replace(space, axes=(), listed=(unmoved, *ends))
    result = sweep(listed, store=store, jobs=jobs, progress=progress)
    first = result.measured[0]
    if not set(goal_of(goal).names) <= first.row.keys():
        raise ArgumentError(f"nothing moves {goal}: {first.error or 'no figures'}")
    own = [_unmoved_text(space.fixed, unmoved, axis.name) for axis in axes]
    return Sensitivities(goal=goal, axes=tuple(axes), own=tuple(own), result=result)


def _unmoved_options(fixed: Setting, axes: list[StudyAxis]) -> Setting:
    """The values of options where they are not moved: the middle ones."""
    options = option_names(fixed)
    return {axis.name: axis.values[len(axis.values) // 2] for axis in axes if axis.name in options}


def _unmoved_text(fixed: Setting, unmoved: Setting, name: str) -> str:
    """The value of a name where it is not moved, as text; a figure's is the device's."""
    if name in unmoved or DEVICE not in fixed:
        return unmoved.get(name, "")
    device = load_device(fixed[DEVICE])
    return figure_text(figures(device)[name], device.clock_hz)


@dataclass(frozen=True, kw_only=True)
class Sensitivities(Tabled):
    """A goal with every name at its ends; ``result`` has the points that were measured."""

    goal: str
    axes: tuple[StudyAxis, ...]
    own: tuple[str, ...]
    result: SweepResult

    def __repr__(self) -> str:
        """One line: the goal, and the name that moves it most."""
        most = self.rows()[0]["name"]
        return f"<Sensitivities of {self.goal} to {len(self.axes)} names, most to {most}>"

    @property
    def base(self) -> float:
        """The goal with nothing moved."""
        return goal_of(self.goal).value(self.result.measured[0].row)

    def rows(self) -> list[Row]:
        """A row per name, the one that moves the goal most first; failed ends have no value."""
        rows = []
        ends = self.result.measured[1:]
        firsts, lasts = ends[::2], ends[1::2]
        for axis, unmoved, first, last in zip(self.axes, self.own, firsts, lasts, strict=True):
            at_first = self._value(first)
            at_last = self._value(last)
            values = [value for value in (at_first, at_last, self.base) if value is not None]
            rows.append(
                {
                    "name": axis.name,
                    "own": unmoved,
                    "first": axis.values[0],
                    "last": axis.values[-1],
                    f"{self.goal} first": at_first,
                    f"{self.goal} last": at_last,
                    "swing": max(values) - min(values),
                    "error": first.error or last.error,
                }
            )
        return sorted(rows, key=lambda row: -row["swing"])

    def _value(self, measured: MeasuredPoint) -> float | None:
        """The goal at a point; None where it failed."""
        return None if measured.error else goal_of(self.goal).value(measured.row)

    @cached_property
    def table(self) -> DataFrame:
        """``rows`` as a data frame."""
        rows = self.rows()
        return frame(rows, list(rows[0]))

    def plot(self, ax: Axes | None = None) -> Axes:
        """A tornado: a bar per name from the goal at its first to that at its last value."""
        return draw(studies.tornado(self.goal, self.base, self.rows()), ax)


# -- where points are measured ---------------------------------------------------------------------


#: Numbered points that are measured together, as what was read, and what became of them.
Chunk = Sequence[tuple[int, Split]]
Done = list[tuple[int, MeasuredPoint]]

#: The file of runs of kernels ("": one of the user's cache), or None.
Runs = str | Path | None


def look(chunk: Chunk, runs: Runs = None) -> Done:
    """Measure points; what a device refuses is told, not raised.

    Runs of kernels are kept in the file ``runs`` and found there again. Raises ``StoreError`` for
    that file, and ``TaskError`` for code that is wrong; both name the point.
    """
    measured = []
    with answers_in(runs):
        for number, parts in chunk:
            with naming(parts.describe):
                measured.append((number, _measured_or_refused(parts)))
    return measured


def _measure_one(parts: Split, runs: Runs = None) -> MeasuredPoint:
    """Measure one point; see ``look``."""
    ((_, measured),) = look([(0, parts)], runs)
    return measured


def _measured_or_refused(parts: Split) -> MeasuredPoint:
    """The row of a point, or the error of its refusal; raises ``StoreError``."""
    try:
        return MeasuredPoint(measure(parts))
    except StoreError:
        raise
    except (NpusimError, MemoryError) as error:
        return failure(error)


def failure(error: Exception) -> MeasuredPoint:
    """The entry of a point that failed; one that lacked memory may pass another time."""
    passing = isinstance(error, PassingError | MemoryError)
    return MeasuredPoint({}, f"{type(error).__name__}: {error}", passing)


def here(
    chunks: Iterable[Chunk],
    jobs: int | None,
    runs: Runs = None,
    kind: Callable[[Chunk], Hashable] | None = None,
) -> Iterator[Done]:
    """Measure chunks in ``jobs`` processes (1: this one); results come as they are ready.

    Those of one ``kind``, where they are listed, have runs in common. Of chunks whose process dies
    every point has one of its own, so that the deadly one is known.
    """
    with Workers(jobs) as workers:
        points = partial(map, lambda point: [point])
        measure_chunk = partial(look, runs=runs)
        for _, done in workers.each(measure_chunk, chunks, _chunk_name, _dead, points, kind):
            yield done


def _chunk_name(chunk: Chunk) -> str:
    """The name of points that are measured together."""
    first = chunk[0][1].describe()
    return f"{first} and {len(chunk) - 1} more" if len(chunk) > 1 else first


def _dead(chunk: Chunk) -> Done:
    died = MeasuredPoint({}, "the worker process died; out of memory, perhaps", passing=True)
    return [(number, died) for number, _ in chunk]


def on_dask(chunks: Callable[[int], Iterator[Chunk]], scheduler: str) -> Iterator[Done]:
    """Measure chunks on a Dask cluster; a worker that dies has its chunks measured elsewhere.

    ``chunks`` makes them for a number of workers.
    Raises ``ArgumentError`` where Dask is missing or the scheduler does not answer.
    """
    distributed = optional("dask.distributed", "a scheduler needs Dask", "distributed")
    silent = (OSError, ValueError, TimeoutError)
    with told_as(ArgumentError, f"the scheduler {scheduler!r} does not answer: ", silent):
        client = distributed.Client(scheduler, timeout="10s")
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            warnings.warn(
                f"the scheduler {scheduler!r} has no workers: the sweep waits for one; "
                f"`dask worker {scheduler}` starts one",
                stacklevel=2,
            )
            client.wait_for_workers(1)
            threads = sum(client.nthreads().values())
        # Packed here, as Dask may pickle in a thread of its own while points are being read.
        code = packed(Work(look))
        futures = (
            client.submit(answered, code, packed(chunk), pure=False, retries=5)
            for chunk in chunks(threads)
        )
        ready = distributed.as_completed(islice(futures, 2 * AHEAD * threads))
        for future in ready:
            yield unpacked(future.result())
            ready.update(islice(futures, 1))
