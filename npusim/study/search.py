"""Explorations: Optuna looks for the points of a study that none beats in all goals.

Optuna proposes points and keeps what they gave. Every second proposal is a point beside one of the
best so far, as long as there are any: that finds the ends of a front, which sampling leaves open.
Points are measured as those of a sweep are, in processes and through the same store.
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
from npusim.base.workers import check_jobs
from npusim.results.writers.progress import in_notebooks, of_points
from npusim.reuse.store import Store, opened
from npusim.study.formula import goal, limit
from npusim.study.result import Exploration, unbeaten, values_of
from npusim.study.runner import Chunk, Progress, cpus, here, probed, study_of
from npusim.study.space import Study, check_goals
from npusim.study.subject import (
    Known,
    Measured,
    Row,
    Setting,
    Split,
    keep,
    key_of,
    known_of,
    runs_beside,
)

#: Points that are looked at where nothing else is said.
TRIALS = 100

#: Points that Optuna may propose again, one after another, before the next that is left is taken.
_AGAIN = 10

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
    continued from ``storage`` has looked at not counted; a study of fewer points is measured whole.
    ``storage`` is a file, or a URL such as "sqlite:///explored.db", which Optuna's
    own tools open; there the exploration is called ``name`` (default: by its content).

    With ``jobs=1`` the same ``seed`` gives the same points. A point that the device refuses is kept
    with its error. Raises ``ConfigError`` or ``ArgumentError`` before the first point where a name,
    a value, a goal or a device is wrong; ``ArgumentError`` without Optuna (extra ``study``).
    """
    made = study_of(study, network, operator, device, vary, "grid", options)
    wanted = check_goals(goals or made.goals or ("time_us", "area_mm2"))
    limits = tuple(subject_to or made.subject_to)
    needed = {name for one in (*map(goal, wanted), *map(limit, limits)) for name in one.names}
    check_searchable(made)
    if jobs is not None:
        check_jobs(jobs)
    count = trials or made.trials or TRIALS
    with opened(store, "sweeps") as kept, in_notebooks(progress, of_points) as shown:
        report = shown or (lambda done, total, known: None)
        _require(sorted(needed), probed(made, kept), made)
        with _optuna_study(made, wanted, limits, seed, storage, name) as theirs:
            search = _Search(made, wanted, limits, kept, theirs, seed)
            total = min(count, len(made) - len(search.known))
            report(0, total, 0)
            for done in here(search.proposals(total), jobs or cpus(), runs_beside(store)):
                search.tell_all(done)
                report(search.looked, total, search.found)
    return Exploration(
        study=made,
        goals=wanted,
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
    """Raise where what is measured has no value for a goal."""
    for wanted in goals:
        if wanted not in row:
            what = "silicon" if wanted == "area_mm2" else "energy"
            raise study.goal_place(
                f"the device has no figures for the goal {wanted}; state {what} in its file, or "
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
    about |= {"subject_to": list(limits)} if limits else {}
    place = str(storage)
    url = place if "://" in place else f"sqlite:///{place}"
    with ExitStack() as opened:
        broken = (OSError, import_module("sqlalchemy.exc").SQLAlchemyError)
        with told_as(ArgumentError, f"the storage {place!r} cannot be used: ", broken):
            rows = _database(optuna, url, opened) if place else None
            made = optuna.create_study(
                storage=rows,
                study_name=name or f"npusim-{key_of(json.dumps(about, sort_keys=True))[:12]}",
                directions=["minimize"] * len(goals),
                sampler=_sampler(optuna, limits, seed),
                load_if_exists=True,
            )
            held = made.user_attrs.get("npusim", about)
            if held != json.loads(json.dumps(about)) and made.trials:
                raise ArgumentError(
                    f"{place} has an exploration {name!r} of something else, of files that were "
                    "edited since, or by another version; choose another name"
                )
            made.set_user_attr("npusim", about)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names of goals are experimental in Optuna
                made.set_metric_names(list(goals))
        yield made


def _inputs(space: Study) -> str:
    """A digest of what files hold that the values of a study name, and of the program."""
    first, values = next(space.points()), Known()
    ends = ({**first, axis.name: value} for axis in space.axes for value in axis.values)
    return key_of("\n".join(Split.of(setting, values).content for setting in ends))


def _sampler(optuna: Any, limits: Sequence[str], seed: int) -> Any:
    """Proposes points; those beyond a limit count as worse than all within."""

    def beyond(trial: Any) -> list[float]:
        return [limit(text).value(trial.user_attrs["row"]) for text in limits]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # limits are experimental in Optuna
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=20, constraints_func=beyond if limits else None
        )


def _database(optuna: Any, url: str, opened: ExitStack) -> Any:
    """Optuna's storage in a database, whose connections ``opened`` closes."""
    made = optuna.storages.RDBStorage(url)
    opened.callback(made.engine.dispose)
    opened.callback(made.remove_session)
    return made


class _Search:
    """Proposes points, and tells Optuna what they gave."""

    def __init__(
        self,
        space: Study,
        goals: tuple[str, ...],
        limits: tuple[str, ...],
        kept: Store,
        optuna: Any,
        seed: int,
    ) -> None:
        self.space, self.goals, self.limits = space, goals, limits
        self.kept, self.optuna = kept, optuna
        self.random = random.Random(seed)
        self._values: Known = {}
        self.known: dict[Point, Measured] = {}
        self.pending: dict[int, tuple[Any, Point]] = {}
        self.looked = self.found = 0
        for trial in optuna.trials:
            row = trial.user_attrs.get("row")
            if row is not None:
                point = tuple(trial.params[axis.name] for axis in space.axes)
                self.known[point] = Measured(row, trial.user_attrs["error"])

    def points(self) -> Iterator[tuple[Setting, Measured]]:
        """Every point looked at, in order."""
        return ((self._setting(point), one) for point, one in self.known.items())

    def proposals(self, count: int) -> Iterator[Chunk]:
        """``count`` points to measure, those that the store knows told at once."""
        whole = self._rest() if count + len(self.known) >= len(self.space) else None
        for number in range(count):
            found = self._next(whole, number)
            if found is None:
                return
            trial, point = found
            setting = self._setting(point)
            parts = Split.of(setting, self._values)
            one = known_of(self.kept, key_of(parts.content))
            self.pending[trial.number] = trial, point
            if one is None:
                yield [(trial.number, parts)]
            else:
                self.found += 1
                self._tell(trial.number, one)

    def tell_all(self, done: Sequence[tuple[int, Measured]]) -> None:
        """Keep what was measured, and tell Optuna."""
        for number, one in done:
            parts = Split.of(self._setting(self.pending[number][1]), self._values)
            keep(self.kept, [(key_of(parts.content), one)])
            self._tell(number, one)

    def _tell(self, number: int, one: Measured) -> None:
        trial, point = self.pending.pop(number)
        self.known[point] = one
        self.looked += 1
        self._note(trial, one)

    def _note(self, trial: Any, one: Measured | None) -> None:
        """Tell Optuna what a point gave; None of one that is still being measured."""
        if one is not None:
            row = {name: value for name, value in one.row.items() if name != "tilings"}
            trial.set_user_attr("row", row)
            trial.set_user_attr("error", one.error)
        if one is None or one.error:
            self.optuna.tell(trial, state=import_module("optuna").trial.TrialState.FAIL)
        else:
            self.optuna.tell(trial, values_of(one.row, self.goals))

    def _next(self, whole: Iterator[Point] | None, number: int) -> tuple[Any, Point] | None:
        """A trial with a point neither known nor being measured; None where none is left."""
        if whole is not None:
            chosen = next(whole, None)
            return None if chosen is None else self._ask(chosen)
        if number % 2 and (beside := self._beside()) is not None:
            return self._ask(beside)
        for _ in range(_AGAIN):
            trial, point = self._ask(None)
            if self._is_new(point):
                return trial, point
            self._note(trial, self.known.get(point))
        chosen = self._beside() or next(self._rest(), None)
        return None if chosen is None else self._ask(chosen)

    def _ask(self, point: Point | None) -> tuple[Any, Point]:
        names = [axis.name for axis in self.space.axes]
        if point is not None:
            self.optuna.enqueue_trial(dict(zip(names, point, strict=True)))
        trial = self.optuna.ask()
        asked = (trial.suggest_categorical(axis.name, axis.values) for axis in self.space.axes)
        return trial, tuple(asked)

    def _is_new(self, point: Point) -> bool:
        return point not in self.known and all(point != one for _, one in self.pending.values())

    def _rest(self) -> Iterator[Point]:
        every = product(*(axis.values for axis in self.space.axes))
        return (point for point in every if self._is_new(point))

    def _beside(self) -> Point | None:
        """A new point one step from a point that none beats, or two steps; None without one."""
        measured = [(p, one.row) for p, one in self.known.items() if not one.error]
        allowed = [(p, row) for p, row in measured if self._beyond(row) <= 0]
        values = [values_of(row, self.goals) for _, row in allowed]
        if not allowed:  # towards what is
            allowed, values = measured, [(self._beyond(row),) for _, row in measured]
        near = [p for (p, _), on in zip(allowed, unbeaten(values), strict=True) if on]
        for _ in range(2):
            near = list(dict.fromkeys(step for point in near for step in self._steps(point)))
            new = [point for point in near if self._is_new(point)]
            if new:
                return self.random.choice(new)
        return None

    def _beyond(self, row: Row) -> float:
        """How far a point is beyond the limit that it keeps least."""
        return max((limit(text).value(row) for text in self.limits), default=0.0)

    def _steps(self, point: Point) -> Iterator[Point]:
        """The points one step along one axis away."""
        for i, axis in enumerate(self.space.axes):
            at = axis.values.index(point[i])
            for step in (at - 1, at + 1):
                if 0 <= step < len(axis.values):
                    yield (*point[:i], axis.values[step], *point[i + 1 :])

    def _setting(self, point: Point) -> Setting:
        names = (axis.name for axis in self.space.axes)
        return {**self.space.fixed, **dict(zip(names, point, strict=True))}
