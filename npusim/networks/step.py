"""One training step of a network as it runs: kernel after kernel, with what is launched between.

The graph of the network becomes operations (``training``), some of which one kernel computes
together; a plan gives each value a format (``layouts``, ``planning``); each operation is simulated
by itself (``launches``), equal ones once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from npusim.base.dtypes import FP16
from npusim.base.dtypes import dtype as element_type
from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.workers import Workers, check_jobs
from npusim.base.yamltree import suggest
from npusim.call.options import Options
from npusim.device.spec import Device
from npusim.networks.cards import Reduced, all_reduce, figures_of
from npusim.networks.launches import Launcher, Task
from npusim.networks.layouts import Plan
from npusim.networks.network import Timed
from npusim.networks.planning import (
    Formats,
    Launch,
    Simulated,
    each_call,
    launched,
    planned,
    problem,
    tasks,
)
from npusim.networks.rules import Fusion, tables
from npusim.networks.step_result import Launched, Setting, StepResult
from npusim.networks.training import Kinds, Operation, Training, training
from npusim.workloads import ConvLayer, Workload, read_network

#: How a step runs, and what its launches and layouts are unless asked for otherwise.
MODES = {"eager": ("single", "each_call", "none"), "graph": ("graph", "as_framework", "usual")}

#: How formats are chosen.
LAYOUTS = ("each_call", "as_framework", "best")


def step(
    workload: Any,
    input_shape: Sequence[int] | None = None,
    *,
    batch: int = 1,
    mode: str = "graph",
    passes: str = "training",
    layouts: str | None = None,
    fusions: str | Collection[str] | None = None,
    optimizer: str = "momentum",
    dtype: Any = "fp16",
    normalisation: Any = None,
    cards: int = 1,
    jobs: int = 1,
    store: str | Path | None = None,
    **options: Any,
) -> StepResult:
    """Time one training step of a network, with all that runs between its convolutions.

    ``workload`` and ``input_shape`` are as for ``npusim.network``; it needs a graph. The ``mode``
    says how a step runs: "eager" launches every operation by itself, which takes and leaves values
    as frameworks have them; "graph" replays a compiled graph, in which values stay in blocks of
    channels and one kernel does what several operations are. What belongs to a mode can be asked
    for by itself: ``layouts`` "each_call" (every operation converts), "as_framework" (blocks of
    channels throughout, conversions at the borders) or "best" (the least time, by an integer
    program that proves it); ``fusions`` "usual", "all", "none" or names of the table in
    ``configs/operations.yaml``; and the options ``launch`` and ``tiling``, which is "library"
    unless given, as frameworks call the vendor's kernels.

    ``passes`` is "training" (both passes and the ``optimizer``: "momentum", "sgd", "adam"),
    "forward" or "backward". Maps have the type ``dtype``, normalisations ``normalisation`` where it
    is another; what the cube cannot multiply is cast to fp16. Of several ``cards`` each has
    ``batch`` images, and gradients are exchanged beside the backward pass. Operations are simulated
    in ``jobs`` processes and kept in ``store`` as for ``npusim.network``. The keywords left are
    those of ``npusim.call.Options`` except ``timeline`` and ``check``: ``device`` is required.

    An operation that the device refuses does not stop the others: see ``StepResult.failed``. Raises
    ``ArgumentError`` for a workload without a graph, and for what the device has no figures of.
    """
    if batch < 1:
        raise ArgumentError(f"batch is {batch}; it must be at least 1 image")
    check_jobs(jobs)
    usual_of(mode)
    if passes not in ("training", "forward", "backward"):
        raise ArgumentError(f"passes is {passes!r}; it is one of forward, backward, training")
    net = read_network(workload, input_shape)
    given = options_of(step, mode, options)
    how = setting(
        given.machine,
        mode=mode,
        layouts=layouts,
        fusions=fusions,
        optimizer=optimizer,
        passes=passes,
        dtype=dtype,
        norm=normalisation,
        cards=cards,
    )
    with Workers(jobs) as workers:
        ready = prepared(net, given, how, batch=batch, workers=workers, store=store)
        times = ready.formats.times
        times.all((launch.name, task) for launch, task, _ in ready.todo)
    result = ready.result(times.known)
    if len(result.failed) == len(result.launched):
        first = result.failed[0]
        raise ArgumentError(
            f"no operation of {net.name} can be simulated; {first.name}: {first.timed.error}"
        )
    return result


def usual_of(mode: str) -> tuple[str, str, str]:
    """Launches, layouts and fusions of a mode; ``ArgumentError`` for an unknown one."""
    if mode not in MODES:
        known = ", ".join(MODES)
        raise ArgumentError(f"mode is {mode!r}{suggest(mode, MODES)}; it is one of {known}")
    return MODES[mode]


def options_of(function: Any, mode: str, options: Mapping[str, Any]) -> Options:
    """The options of what a public function calls in a mode, with the keywords it was given."""
    usual = {"launch": usual_of(mode)[0], "tiling": "library"}
    given = Options.of(function, {**usual, **options}, without=("timeline", "check", "layouts"))
    return replace(given, timeline=False)


def setting(
    device: Device,
    *,
    mode: str,
    layouts: str | None,
    fusions: str | Collection[str] | None,
    optimizer: str,
    passes: str,
    dtype: Any,
    norm: Any,
    cards: int,
) -> Setting:
    """The setting of a mode with what is asked for besides; ``ArgumentError`` for other values."""
    usual, maps = usual_of(mode), element_type(dtype)
    if layouts is not None and layouts not in LAYOUTS:
        hint = suggest(layouts, LAYOUTS)
        raise ArgumentError(f"layouts is {layouts!r}{hint}; it is one of {', '.join(LAYOUTS)}")
    if cards < 1:
        raise ArgumentError(f"cards is {cards}; it must be at least 1")
    if cards > 1:
        figures_of(device, cards)
    rates = device.cube.rates if device.cube else {}
    kinds = [kind for kind in (maps, FP16) if kind.name in rates and kind.bytes == 2]
    if not kinds:
        raise ArgumentError(
            f"mode is {mode!r}; the cube of {device.name} multiplies no {maps.name} and no fp16, "
            "which the kernels of a step take: use another device, or npusim.network for its layers"
        )
    names = tuple(one.name for one in chosen(usual[2] if fusions is None else fusions))
    return Setting(
        mode=mode,
        layouts=layouts or usual[1],
        fusions=names,
        optimizer=optimizer,
        passes=passes,
        kinds=Kinds(maps, kinds[0], maps if norm is None else element_type(norm)),
        cards=cards,
    )


class Prepared(Struct, frozen=True):
    """A step that is planned: what it computes, and what is launched for it, in order."""

    workload: Workload
    batch: int
    setting: Setting
    step: Training
    formats: Formats
    fused: Mapping[str, int]
    plan: Plan | None
    todo: tuple[tuple[Launch, Task, dict[str, int]], ...]

    def result(self, times: Mapping[Task, Timed]) -> StepResult:
        """The step, whose tasks take so long."""
        device, cards = self.formats.times.launcher.options.machine, self.setting.cards
        done = tuple(launched(self.todo, times))
        return StepResult(
            workload=self.workload,
            device=device,
            batch=self.batch,
            setting=self.setting,
            step=self.step,
            launched=done,
            fused=self.fused,
            plan=self.plan,
            reduced=_reduced(device, cards, self.step, done) if cards > 1 else None,
        )


def prepared(
    workload: Workload,
    options: Options,
    setting: Setting,
    *,
    batch: int,
    workers: Workers | None = None,
    store: str | Path | None = None,
    settings: Mapping[str, float] | None = None,
) -> Prepared:
    """Plan one step; ``settings`` are those of the optimizer.

    Operations are simulated in the processes of ``workers`` (None: in this one).
    """
    step = training(
        workload,
        batch,
        setting.kinds,
        passes=setting.passes,
        optimizer=setting.optimizer,
        settings=settings,
    )
    device = options.machine
    made = fused(step, chosen(setting.fusions), device)
    plain = setting.layouts == "each_call"
    launcher = Launcher(options, batch, plain=plain)
    formats = Formats(step, Simulated(launcher, store, workers or Workers(1)))
    fixed, plan = setting.layouts == "as_framework", None
    if plain:
        launches = each_call(step, formats)
    else:
        formats.simulate(fixed=fixed)
        plan = problem(step, formats, fixed=fixed).best()
        if not fixed:
            usual = problem(step, formats, fixed=True).best()
            plan = replace(plan, framework_us=usual.us)
        launches = planned(step, formats, plan, fixed=fixed)
    todo = tuple(tasks(launches, formats, device))
    return Prepared(workload, batch, setting, step, formats, made, plan, todo)


def _reduced(device: Device, cards: int, step: Training, done: Sequence[Launched]) -> Reduced:
    """The all-reduce of the gradients of parameters, in the order in which they are made."""
    wanted = {f"{name}.gradient" for name in step.parameters}
    now, end, ready = 0, 0, []
    for one in done:
        now += one.timed.cycles
        end = now if one.phase != "optimizer" else end
        found = [(device.time_us(now), one.sizes[name]) for name in one.writes if name in wanted]
        ready += found if not one.value else []
    return all_reduce(device, cards, ready, device.time_us(end))


# -- fusions: which operations one kernel computes together -------------------------------------


def chosen(fusions: str | Collection[str]) -> tuple[Fusion, ...]:
    """The rows of "usual", "all", "none", or of names; ``ArgumentError`` for an unknown name."""
    known = tables().fusions
    if fusions == "none":
        return ()
    if fusions in ("usual", "all"):
        return tuple(one for one in known if one.usual or fusions == "all")
    names = fusions.split(",") if isinstance(fusions, str) else list(fusions)
    for name in names:
        words = ("usual", "all", "none", *(one.name for one in known))
        if name not in words:
            raise ArgumentError(
                f"fusions: unknown name {name!r}{suggest(name, words)}; known are "
                f"{', '.join(words)}"
            )
    return tuple(one for one in known if one.name in names)


def fused(step: Training, fusions: Collection[Fusion], device: Device) -> dict[str, int]:
    """Rewrite the operations of a step; returns how often each fusion was made."""
    through_ub = not device.has_path("L0C", "GM")
    joining = _Joining(step, through_ub=through_ub)
    made = {fusion.name: joining.passes(fusion) for fusion in fusions}
    step.operations = joining.left()
    return {name: count for name, count in made.items() if count}


class _Joining:
    """The operations of a step while some become part of others, and leave their places empty.

    Places stay as they are, so that who writes a value is known by its place.
    """

    def __init__(self, step: Training, *, through_ub: bool) -> None:
        self.values, self.readers, self.through_ub = step.values, step.readers(), through_ub
        self.places: list[Operation | None] = [*step.operations]
        self.writers: dict[str, int] = {}
        for place, one in enumerate(step.operations):
            self.writers |= dict.fromkeys(one.writes, place)

    def left(self) -> list[Operation]:
        """The operations that are left, in order."""
        return [one for one in self.places if one is not None]

    def passes(self, fusion: Fusion) -> int:
        """Make a fusion wherever it applies, the last operations first; returns how often."""
        count = 0
        while True:
            joined = sum(self._join(fusion, at) for at in reversed(range(len(self.places))))
            if joined == 0:
                return count
            count += joined

    def _join(self, fusion: Fusion, at: int) -> bool:
        """Make the operation at this place part of one before it, if the fusion applies."""
        second = self.places[at]
        if second is None or second.kind != fusion.second or second.chain is None:
            return False
        reads = second.reads
        values = [self.values[name] for name in (*reads, *second.writes)]
        if len({value.shape for value in values if value.kind in ("map", "rows")}) > 1:
            return False  # blocks of other axes hold other elements
        before = {self.writers[name] for name in reads if name in self.writers}
        for place in sorted((place for place in before if place < at), reverse=True):
            first = self.places[place]
            assert first is not None
            if first.kind not in fusion.first or (first.core and not self.through_ub):
                continue
            inner = next(name for name in first.writes if name in reads)
            if not ((fusion.kept or self.readers[inner] == 1) and _dense(first)):
                continue
            if not fusion.kept and self._read_between(first, place, at):
                continue
            chain = second.chain
            if first.chain is not None:
                chain = first.chain.then(second.chain, inner, kept=fusion.kept)
            kind, stored = f"{first.kind} + {second.kind}", first.stored and fusion.kept
            one = replace(first, name=second.name, kind=kind, chain=chain, stored=stored)
            self.readers.subtract((*first.reads, *reads))
            self.readers.update(one.reads)
            self.places[place] = self.places[at] = None
            where = place if fusion.kept else at
            self.places[where] = one
            self.writers |= dict.fromkeys(one.writes, where)
            return True
        return False

    def _read_between(self, first: Operation, place: int, at: int) -> bool:
        """Whether an operation between two places reads a result of the first of them."""
        results = {*first.writes}
        between = (one for one in self.places[place + 1 : at] if one is not None)
        return any(not results.isdisjoint(one.reads) for one in between)


def _dense(one: Operation) -> bool:
    """Whether a product leaves its result in one piece, of blocks of channels.

    A strided gradient does so by phases; of a filter that is the whole input the product is one of
    plain matrices, which takes less time by more than what comes after it.
    """
    if isinstance(one.layer, ConvLayer) and one.layer.one_window and prod(one.layer.kernel) > 1:
        return False
    strided = isinstance(one.layer, ConvLayer) and set(one.layer.stride) != {1}
    return not (strided and one.core == "convolution.input")
