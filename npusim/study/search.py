"""Explorations: Optuna looks for the points of a study that none beats in all goals.

Optuna proposes points and keeps what they gave. Every second proposal is a point beside one of the
best so far, as long as there are any: that finds the ends of a front, which sampling leaves open.
Points are measured as those of a sweep are, in processes and through the same store. A space with
no more points than are to be looked at is swept, which needs no Optuna.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError, told_as
from npusim.base.resources import optional
from npusim.base.workers import check_jobs, job_count
from npusim.results.writers.progress import in_notebooks, of_points
from npusim.reuse.store import Store, opened
from npusim.study.formula import goal, limit
from npusim.study.points import MeasuredPoint, keep_points, key_of, runs_beside, stored_point
from npusim.study.result import Exploration, unbeaten, values_of
from npusim.study.runner import Chunk, Progress, here, measure_all, probed, study_of
from npusim.study.space import Study, check_goals
from npusim.study.subject import Known, Row, Setting, Split

#: Points that are looked at where nothing else is said.
TRIALS = 100

#: Known points that Optuna may propose, one after another, before a new one is taken without it.
#: It does not notice that a point is known, and each of its proposals takes longer the more it was
#: told: after that many it may propose half as many the next time.
_AGAIN = 10

#: Points of the whole space that are drawn before the first that is left is taken.
_DRAWN = 100

Point = tuple[str, ...]


def explore(
    study: Study | str | Path | None = None,
    *,
    network: Any = None,
    operator: str | None = None,
    device: str | None = None,
    vary: Mapping[str, Any] | None = None,
    goals: Sequence[str] = (),
    subject_to: Sequence[str] = (),
    trials: int = 0,
    seed: int = 0,
    storage: str | Path = "",
    name: str = "",
    store: str | Path | None = "",
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Exploration:
    """Look for the designs that none beats, without measuring every point of a study.

    A study is given as to ``npusim.sweep``; its axes span the space. ``goals`` (of
    ``npusim.study.formula.GOALS``, or formulas of them such as "time_us*energy_uj"; default: those
    of the study file, else time_us and area_mm2) are all made small; ``subject_to`` are limits such
    as "area_mm2<=60", which points of the front keep.

    ``trials`` points are looked at (default: the file's, else 100), those that an exploration
    continued from ``storage`` has looked at not counted; a study of no more points is measured
    whole, in order. ``storage`` is a file, or a URL such as "sqlite:///explored.db", which Optuna's
    own tools open; there the exploration is called ``name`` (default: by its content).

    With ``jobs=1`` the same ``seed`` gives the same points. A point that the device refuses is kept
    with its error. Raises ``ConfigError`` or ``ArgumentError`` before the first point where a name,
    a value, a goal or a device is wrong; ``ArgumentError`` without Optuna (extra ``study``), which
    only a study that is measured whole, and not kept in a ``storage``, does without.
    """
    space = study_of(study, network, operator, device, vary, "grid", options)
    small = check_goals(goals or space.goals or ("time_us", "area_mm2"))
    limits = tuple(subject_to or space.subject_to)
    formulas = [*map(goal, small), *map(limit, limits)]
    columns = {name for formula in formulas for name in formula.names}
    check_searchable(space)
    if jobs is not None:
        check_jobs(jobs)
    count = trials or space.trials or TRIALS
    with opened(store, "sweeps") as points, in_notebooks(progress, of_points) as shown:
        report = shown or (lambda done, total, known: None)
        _require(sorted(columns), probed(space, points), space)
        if count >= len(space) and not storage:
            measured = measure_all(space, points, None, job_count(jobs), runs_beside(store), report)
            return Exploration(
                study=space,
                goals=small,
                limits=limits,
                points=tuple(zip(space.points(), measured, strict=True)),
                searched=None,
            )
        with _optuna_study(space, small, limits, seed, storage, name) as optuna_study:
            search = _Search(space, small, limits, points, optuna_study, seed)
            total = min(count, len(space) - len(search.measured))
            report(0, total, 0)
            for done in here(search.proposals(total), jobs, runs_beside(store)):
                search.tell_all(done)
                report(search.looked, total, search.from_store)
    return Exploration(
        study=space,
        goals=small,
        limits=limits,
        points=tuple(search.points()),
        searched=search.optuna,
    )


def check_searchable(study: Study) -> None:
    """Raise ``ArgumentError`` for a study that an exploration cannot search."""
    if study.listed or study.combine != "grid" or not study.axes:
        raise ArgumentError(
            "an exploration searches a grid: say what varies, as in --vary groups=12:36:12 "
            "(vary= in Python), and list no points"
        )


def _require(goals: Sequence[str], row: Mapping[str, Any], study: Study) -> None:
    """Raise where a measured row has no value for a goal."""
    for name in goals:
        if name not in row:
            what = "silicon" if name == "area_mm2" else "energy"
            raise study.goal_place(
                f"the device has no figures for the goal {name}; state {what} in its file, or "
                "leave the goal out"
            )


@contextmanager
def _optuna_study(
    space: Study,
    goals: Sequence[str],
    limits: Sequence[str],
    seed: int,
    storage: str | Path,
    name: str,
) -> Iterator[Any]:
    """The new or continued study of Optuna behind an exploration.

    Its connections to a database are closed at the end; who reads it afterwards opens new ones.
    """
    optuna = optional("optuna", "explore needs Optuna")
    axes = {axis.name: axis.values for axis in space.axes}
    about = {"fixed": dict(space.fixed), "axes": axes, "goals": list(goals), "of": _inputs(space)}
    if limits:
        about["subject_to"] = list(limits)
    place = str(storage)
    url = place if "://" in place else f"sqlite:///{place}"
    with ExitStack() as opened:
        broken: tuple[type[Exception], ...] = (OSError,)
        if place:  # without one, a database need not be loaded
            broken = (*broken, import_module("sqlalchemy.exc").SQLAlchemyError)
        with told_as(ArgumentError, f"the storage {place!r} cannot be used: ", broken):
            database = _database(optuna, url, opened) if place else None
            study = optuna.create_study(
                storage=database,
                study_name=name or f"npusim-{key_of(json.dumps(about, sort_keys=True))[:12]}",
                directions=["minimize"] * len(goals),
                sampler=_sampler(optuna, limits, seed),
                load_if_exists=True,
            )
            stored = study.user_attrs.get("npusim", about)
            if stored != json.loads(json.dumps(about)) and study.trials:
                raise ArgumentError(
                    f"{place} has an exploration {name!r} of something else, of files that were "
                    "edited since, or by another version; choose another name"
                )
            study.set_user_attr("npusim", about)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names of goals are experimental in Optuna
                study.set_metric_names(list(goals))
        yield study


def _inputs(space: Study) -> str:
    """A digest of the program, and of files that the values of a study name."""
    first = next(space.points())
    values: Known = {}
    settings = ({**first, axis.name: value} for axis in space.axes for value in axis.values)
    return key_of("\n".join(Split.of(setting, values).content for setting in settings))


def _sampler(optuna: Any, limits: Sequence[str], seed: int) -> Any:
    """A sampler of points; those beyond a limit count as worse than all within."""

    def beyond(trial: Any) -> list[float]:
        return [limit(text).value(trial.user_attrs["row"]) for text in limits]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # limits are experimental in Optuna
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=20, constraints_func=beyond if limits else None
        )


def _database(optuna: Any, url: str, opened: ExitStack) -> Any:
    """Optuna's storage in a database, whose connections ``opened`` closes."""
    database = optuna.storages.RDBStorage(url)
    opened.callback(database.engine.dispose)
    opened.callback(database.remove_session)
    return database


class _Search:
    """Proposes points, and tells Optuna what they gave."""

    def __init__(
        self,
        space: Study,
        goals: tuple[str, ...],
        limits: tuple[str, ...],
        store: Store,
        optuna: Any,
        seed: int,
    ) -> None:
        self.space = space
        self.goals = goals
        self.limits = limits
        self.store = store
        self.optuna = optuna
        self.random = random.Random(seed)
        self._values: Known = {}
        #: Points that were looked at, and trials of Optuna that are being measured, by number.
        self.measured: dict[Point, MeasuredPoint] = {}
        self.pending: dict[int, tuple[Any, Point]] = {}
        #: Known points that Optuna may propose before a new one is taken without it, and where it
        #: comes from: in turns from beside the best points and from the whole space.
        self.again = _AGAIN
        self.anywhere = False
        #: How many this search has looked at, and how many of them the store had.
        self.looked = 0
        self.from_store = 0
        for trial in optuna.trials:
            row = trial.user_attrs.get("row")
            if row is not None:
                point = tuple(trial.params[axis.name] for axis in space.axes)
                self.measured[point] = MeasuredPoint(row, trial.user_attrs["error"])

    def points(self) -> Iterator[tuple[Setting, MeasuredPoint]]:
        """Every point looked at, in order."""
        return ((self._setting(point), measured) for point, measured in self.measured.items())

    def proposals(self, count: int) -> Iterator[Chunk]:
        """``count`` points to measure; Optuna is told at once of those that the store has."""
        looks_at_all = count + len(self.measured) >= len(self.space)
        in_order = self._new_points() if looks_at_all else None
        for number in range(count):
            proposal = self._next(in_order, number)
            if proposal is None:
                return
            trial, point = proposal
            self.pending[trial.number] = trial, point
            parts = self._parts(point)
            stored = stored_point(self.store, key_of(parts.content))
            if stored is None:
                yield [(trial.number, parts)]
            else:
                self.from_store += 1
                self._tell(trial.number, stored)

    def tell_all(self, done: Sequence[tuple[int, MeasuredPoint]]) -> None:
        """Keep what was measured, and tell Optuna."""
        for number, measured in done:
            _, point = self.pending[number]
            keep_points(self.store, [(key_of(self._parts(point).content), measured)])
            self._tell(number, measured)

    def _tell(self, number: int, measured: MeasuredPoint) -> None:
        """Note a pending point as measured, and tell Optuna."""
        trial, point = self.pending.pop(number)
        self.measured[point] = measured
        self.looked += 1
        self._tell_optuna(trial, measured)

    def _tell_optuna(self, trial: Any, measured: MeasuredPoint | None) -> None:
        """Tell Optuna what a point gave; None of one that is still being measured."""
        if measured is not None:
            row = {name: value for name, value in measured.row.items() if name != "tilings"}
            trial.set_user_attr("row", row)
            trial.set_user_attr("error", measured.error)
        if measured is None or measured.error:
            self.optuna.tell(trial, state=import_module("optuna").trial.TrialState.FAIL)
        else:
            self.optuna.tell(trial, values_of(measured.row, self.goals))

    def _next(self, in_order: Iterator[Point] | None, number: int) -> tuple[Any, Point] | None:
        """A trial with a new point, of ``in_order`` where all are wanted; None where none is left.

        Every second one, by ``number``, is beside the best points.
        """
        if in_order is not None:
            point = next(in_order, None)
            return None if point is None else self._ask(point)
        if number % 2 == 1:
            point = self._beside()
            if point is not None:
                return self._ask(point)
        for _ in range(self.again):
            trial, proposed = self._ask(None)
            if self._is_new(proposed):
                self.again = min(2 * self.again, _AGAIN)
                return trial, proposed
            self._tell_optuna(trial, self.measured.get(proposed))
        self.again = max(self.again // 2, 1)
        point = None if self.anywhere else self._beside()
        self.anywhere = not self.anywhere
        point = point or self._drawn()
        return None if point is None else self._ask(point)

    def _ask(self, point: Point | None) -> tuple[Any, Point]:
        """A trial of Optuna and its point: the one given, else one that Optuna proposes."""
        if point is not None:
            names = [axis.name for axis in self.space.axes]
            self.optuna.enqueue_trial(dict(zip(names, point, strict=True)))
        trial = self.optuna.ask()
        texts = [trial.suggest_categorical(axis.name, axis.values) for axis in self.space.axes]
        return trial, tuple(texts)

    def _is_new(self, point: Point) -> bool:
        """True for a point that is neither measured nor being measured."""
        waiting = [other for _, other in self.pending.values()]
        return point not in self.measured and point not in waiting

    def _new_points(self) -> Iterator[Point]:
        """The points of the space that are new, in order."""
        space = product(*(axis.values for axis in self.space.axes))
        return (point for point in space if self._is_new(point))

    def _drawn(self) -> Point | None:
        """A new point from anywhere; None where none is left."""
        for _ in range(_DRAWN):
            point = tuple(self.random.choice(axis.values) for axis in self.space.axes)
            if self._is_new(point):
                return point
        return next(self._new_points(), None)

    def _beside(self) -> Point | None:
        """A new point one step from a point that none beats, or two steps; None without one."""
        near = self._best()
        for _ in range(2):
            near = list(dict.fromkeys(step for point in near for step in self._steps(point)))
            new = [point for point in near if self._is_new(point)]
            if new:
                return self.random.choice(new)
        return None

    def _best(self) -> list[Point]:
        """The points within the limits that none beats; where there are none, the nearest to it."""
        rows = {
            point: measured.row for point, measured in self.measured.items() if not measured.error
        }
        allowed = [point for point, row in rows.items() if self._beyond(row) <= 0]
        if allowed:
            values = [values_of(rows[point], self.goals) for point in allowed]
        else:
            allowed = list(rows)
            values = [(self._beyond(rows[point]),) for point in allowed]
        on_front = unbeaten(values)
        return [point for point, on in zip(allowed, on_front, strict=True) if on]

    def _beyond(self, row: Row) -> float:
        """The distance of a point beyond the limit that it keeps least."""
        return max((limit(text).value(row) for text in self.limits), default=0.0)

    def _steps(self, point: Point) -> Iterator[Point]:
        """The points one step along one axis away."""
        for number, axis in enumerate(self.space.axes):
            here = axis.values.index(point[number])
            for place in (here - 1, here + 1):
                if 0 <= place < len(axis.values):
                    yield (*point[:number], axis.values[place], *point[number + 1 :])

    def _parts(self, point: Point) -> Split:
        """The device and the options of a point, read."""
        return Split.of(self._setting(point), self._values)

    def _setting(self, point: Point) -> Setting:
        names = (axis.name for axis in self.space.axes)
        return {**self.space.fixed, **dict(zip(names, point, strict=True))}
