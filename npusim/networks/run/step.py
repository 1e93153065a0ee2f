"""One training step of a network as it runs: kernel after kernel, with what is launched between.

The graph of the network becomes operations (``rules/training.py``), some of which one kernel
computes together (``plan/fusions.py``); a plan gives each value a format (``plan/formats.py``) and
orders the launches (``plan/launch_order.py``); each operation is simulated by itself
(``launches.py``), equal ones once (``simulated.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.dtypes import FP16
from npusim.base.dtypes import dtype as element_type
from npusim.base.errors import ArgumentError
from npusim.base.records import collecting_seldom, replace
from npusim.base.workers import Workers, check_jobs
from npusim.base.yamltree import suggest
from npusim.call.options import Options
from npusim.machine.device.spec import Device
from npusim.networks.plan.formats import FormatPlan
from npusim.networks.plan.fusions import chosen, fused
from npusim.networks.plan.launch_order import (
    Formats,
    LaunchTask,
    Times,
    each_call,
    planned,
    problem,
    tasks,
)
from npusim.networks.plan.tasks import Task
from npusim.networks.rules.training import training
from npusim.networks.rules.values import PHASES, Kinds, Operation, Training
from npusim.networks.run.all_reduce import all_reduce_of, figures_of
from npusim.networks.run.fitting import largest_fitting
from npusim.networks.run.implausible import AutomaticTilings
from npusim.networks.run.launched_operation import CONVERSIONS, LaunchedOperation
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.memory import StepMemory, workspace_bytes
from npusim.networks.run.only_plan import OnlyPlan
from npusim.networks.run.setting import Setting, StepRequest
from npusim.networks.run.simulated import SimulatedTasks, TasksBySize
from npusim.networks.run.step_result import StepResult
from npusim.networks.timed import Timed
from npusim.workloads import ElementwiseLayer, Workload, read_network
from npusim.workloads.graph import MULTIPLIES
from npusim.workloads.repetition import for_batch


class Usual(NamedTuple):
    """The launches and fusions of a mode, unless asked for otherwise."""

    launch: str
    fusions: str


#: How a step runs.
MODES = {
    "eager": Usual(launch="single", fusions="none"),
    "graph": Usual(launch="graph", fusions="usual"),
}

#: How formats are chosen.
LAYOUTS = ("each_call", "as_framework", "best")


@collecting_seldom()
def step(
    workload: Any,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Any = None,
    loss: Any = None,
    targets: Any = None,
    batch: int = 1,
    mode: str = "graph",
    passes: str = "training",
    layouts: str | None = None,
    fusions: str | Collection[str] | None = None,
    optimizer: str = "momentum",
    dtype: Any = "fp16",
    normalisation: Any = None,
    cards: int = 1,
    jobs: int | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> StepResult:
    """Time one training step of a network, with all that runs between its convolutions.

    ``workload``, ``input_shape``, ``inputs``, ``loss`` and ``targets`` are as for
    ``npusim.network``; it needs a graph. The ``mode``
    says how a step runs: "eager" launches every operation by itself, which takes and leaves values
    as frameworks have them on this device (``usual_layouts``); "graph" replays a compiled graph, in
    which values stay in blocks of channels and one kernel does what several operations are. What
    belongs to a mode can be asked for by itself: ``layouts`` "each_call" (every operation
    converts), "as_framework" (blocks of channels throughout, conversions at the borders) or "best"
    (the least time, by an integer program that proves it); ``fusions`` "usual" (those of a
    framework's own passes), "graph_engine" (those of the vendor's graph engine), "all", "none" or
    names of the table in ``configs/operations.yaml``; and the options ``launch`` and ``tiling``,
    which is "library" unless given, as frameworks call the vendor's kernels.

    ``passes`` is "training" (both passes and the ``optimizer``: "momentum", "sgd", "adam"),
    "forward" or "backward". Maps have the type ``dtype``; what the cube cannot multiply is cast to
    fp16. Normalisations read and write maps of the type ``normalisation``, with a cast before and
    one behind each where that is not ``dtype``; their statistics, scales and shifts are fp32 in any
    case. Of several ``cards`` each has
    ``batch`` images, and gradients are exchanged beside the backward pass. Operations are simulated
    in ``jobs`` processes and kept in ``store`` as for ``npusim.network``; so many processes also
    find what the result is asked for later, such as its verdict. The keywords left are those of
    ``npusim.call.Options`` except ``timeline`` and ``check``: ``device`` is required.

    An operation that the device refuses does not stop the others: see ``StepResult.failed``. Raises
    ``ArgumentError`` for a workload without a graph, and for what the device has no figures of.
    """
    request = StepRequest(
        workload=workload,
        input_shape=input_shape,
        inputs=inputs,
        loss=loss,
        targets=targets,
        batch=batch,
        mode=mode,
        passes=passes,
        layouts=layouts,
        fusions=fusions,
        optimizer=optimizer,
        dtype=dtype,
        normalisation=normalisation,
        cards=cards,
        jobs=jobs,
        options=options,
    )
    return time_step(request, store=store)


def time_step(
    request: StepRequest,
    *,
    store: str | Path | None = None,
    known: Mapping[Task, Timed] | None = None,
    tuned: Collection[Task] = (),
) -> StepResult:
    """The step that is asked for; raises as ``step`` does.

    Tasks that are ``known``, on the same device and with the same options, are not simulated again.
    Those that are ``tuned``, whatever the L2 holds when they begin, have automatic tilings.
    """
    if request.batch < 1:
        raise ArgumentError(f"batch is {request.batch}; it must be at least 1 image")
    check_jobs(request.jobs)
    usual_of(request.mode)
    passes = request.passes
    if passes not in ("training", "forward", "backward"):
        raise ArgumentError(f"passes is {passes!r}; it is one of forward, backward, training")
    net = read_network(
        request.workload,
        request.input_shape,
        inputs=request.inputs,
        loss=request.loss,
        targets=request.targets,
        batch=request.batch,
    )
    setting_options = options_of(step, request.mode, request.options)
    how = setting(
        setting_options.machine,
        mode=request.mode,
        layouts=request.layouts,
        fusions=request.fusions,
        optimizer=request.optimizer,
        passes=passes,
        dtype=request.dtype,
        norm=request.normalisation,
        cards=request.cards,
    )
    with Workers(request.jobs) as workers:
        ready = prepared(
            net,
            setting_options,
            how,
            workers=workers,
            store=store,
            known=known,
            tuned=tuned,
        )
        times = ready.times
        times.all((each.launch.name, each.task) for each in ready.todo)
    result = replace(ready.result(times.known), request=request, simulated=times.known)
    if len(result.failed) == len(result.launched):
        first = result.failed[0]
        raise ArgumentError(
            f"no operation of {net.name} can be simulated; {first.name}: {first.timed.error}"
        )
    if result.fits:
        return result
    smallest = smallest_network(
        request.workload,
        request.input_shape,
        inputs=request.inputs,
        loss=request.loss,
        targets=request.targets,
    )
    return replace(result, fitting_batch=fitting_batch(smallest, setting_options, result))


def usual_of(mode: str) -> Usual:
    """Launches and fusions of a mode; ``ArgumentError`` for an unknown one."""
    if mode not in MODES:
        modes = ", ".join(MODES)
        raise ArgumentError(f"mode is {mode!r}{suggest(mode, MODES)}; it is one of {modes}")
    return MODES[mode]


def usual_layouts(mode: str, device: Device) -> str:
    """The layouts of a mode on a device, unless asked for otherwise: a word of ``LAYOUTS``.

    A compiled graph keeps its values in blocks of channels. Single calls leave theirs so where
    frameworks let tensors have private formats (``Device.private_formats``); elsewhere every call
    converts what it reads and writes.
    """
    stays_in_blocks = mode == "graph" or device.private_formats
    return "as_framework" if stays_in_blocks else "each_call"


def options_of(function: Any, mode: str, options: Mapping[str, Any]) -> Options:
    """The options of what a public function calls in a mode, with the keywords it was given."""
    usual = {"launch": usual_of(mode).launch, "tiling": "library"}
    read = Options.of(function, {**usual, **options}, without=("timeline", "check", "layouts"))
    return replace(read, timeline=False)


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
    usual = usual_of(mode)
    maps = element_type(dtype)
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
    names = tuple(fusion.name for fusion in chosen(usual.fusions if fusions is None else fusions))
    return Setting(
        mode=mode,
        layouts=layouts or usual_layouts(mode, device),
        fusions=names,
        optimizer=optimizer,
        passes=passes,
        kinds=Kinds(maps, kinds[0], maps if norm is None else element_type(norm)),
        cards=cards,
    )


class PreparedStep(Struct, frozen=True):
    """A step that is planned: what it computes, and what is launched for it, in order.

    ``only`` as of ``StepPlan``.
    """

    workload: Workload
    setting: Setting
    step: Training
    formats: Formats
    times: SimulatedTasks
    fused: Mapping[str, int]
    plan: FormatPlan | None
    only: bool
    todo: tuple[LaunchTask, ...]

    def result(self, times: Mapping[Task, Timed]) -> StepResult:
        """The step, whose tasks take so long."""
        device = self.times.launcher.options.machine
        done = tuple(_launched(self.step, self.todo, times))
        return StepResult(
            workload=self.workload,
            device=device,
            batch=self.workload.batch,
            setting=self.setting,
            step=self.step,
            launched=done,
            fused=self.fused,
            planned=OnlyPlan.of(self.step, self.times) if self.only else self.plan,
            reduced=all_reduce_of(device, self.setting.cards, self.step, done),
            automatic=AutomaticTilings.of(
                [launch.task for launch in self.todo], self.times.launcher, self.times.store
            ),
        )


def prepared(
    workload: Workload,
    options: Options,
    setting: Setting,
    *,
    workers: Workers | None = None,
    store: str | Path | None = None,
    settings: Mapping[str, float] | None = None,
    known: Mapping[Task, Timed] | None = None,
    tuned: Collection[Task] = (),
) -> PreparedStep:
    """Plan one step; ``settings`` are those of the optimizer.

    ``known`` and ``tuned`` are those of ``time_step``. Operations are simulated in the processes of
    ``workers`` (None: in this one).
    """
    launcher = replace(
        _launcher(options, setting), tuned=frozenset(task._replace(warm=()) for task in tuned)
    )
    times = SimulatedTasks(launcher, store, workers or Workers(1), dict(known or {}))
    planned_step = plan_of(workload, setting, options.machine, times, settings)
    return PreparedStep(workload=workload, setting=setting, times=times, **planned_step._asdict())


class StepPlan(NamedTuple):
    """Operations of a step with the formats of their values, and what is launched, in order.

    An ``only`` plan is one that no times decided, and has none.
    """

    step: Training
    formats: Formats
    fused: Mapping[str, int]
    plan: FormatPlan | None
    only: bool
    todo: tuple[LaunchTask, ...]


def _launcher(options: Options, setting: Setting) -> OperationLauncher:
    """The launcher of the operations of a step."""
    return OperationLauncher(options, plain=setting.layouts == "each_call")


def plan_of(
    workload: Workload,
    setting: Setting,
    device: Device,
    times: Times,
    settings: Mapping[str, float] | None = None,
) -> StepPlan:
    """Plan one step by the ``times`` of its tasks; ``settings`` are those of the optimizer."""
    step = training(
        workload,
        setting.kinds,
        passes=setting.passes,
        optimizer=setting.optimizer,
        settings=settings,
    )
    fused_counts = fused(step, chosen(setting.fusions), device, times.as_product)
    fixed = setting.layouts == "as_framework"
    formats = Formats(step, times, as_framework=fixed)
    plan = problem(step, formats, fixed=True, timed=False).only if fixed else None
    only = plan is not None
    if setting.layouts == "each_call":
        launches = each_call(step, formats)
    elif plan is not None:
        launches = planned(step, formats, plan, fixed=True)
    else:
        formats.simulate(fixed=fixed)
        plan = problem(step, formats, fixed=fixed).best()
        if not fixed:
            framework = Formats(step, times, as_framework=True)
            framework.simulate(fixed=True)
            usual = problem(step, framework, fixed=True).best()
            plan = replace(plan, framework_us=usual.us)
        launches = planned(step, formats, plan, fixed=fixed)
    todo = tuple(tasks(launches, formats, device))
    return StepPlan(step, formats, fused_counts, plan, only, todo)


def planned_memory(workload: Workload, options: Options, setting: Setting) -> StepMemory:
    """Memory of the values of a step, which nothing simulates: there is no workspace in it.

    Where formats are open, those that move the fewest bytes stand for those of the least time.
    """
    device = options.machine
    planned_step = plan_of(workload, setting, device, TasksBySize(_launcher(options, setting)))
    untimed: dict[Task, Timed] = defaultdict(partial(Timed, None, "planned, not simulated"))
    launched = tuple(_launched(planned_step.step, planned_step.todo, untimed))
    return StepMemory(device, launched, planned_step.step)


def smallest_network(
    source: Any,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Any = None,
    loss: Any = None,
    targets: Any = None,
) -> Workload:
    """The network for one image, or for those of its file: its batches are multiples of these."""
    if isinstance(source, Workload) and source.reread is None:
        return source
    return read_network(source, input_shape, inputs=inputs, loss=loss, targets=targets)


def fitting_batch(smallest: Workload, options: Options, result: StepResult) -> int:
    """A batch below that of a ``result`` whose values fit its card, 0 where there is none.

    Beside these there is room for as much workspace as the larger step has. ``smallest`` is its
    network for the fewest images. Nothing is simulated.
    """

    def size_of(count: int) -> int:
        network = for_batch(smallest, count * smallest.batch)
        return planned_memory(network, options, result.setting).values_bytes

    workspace = max(workspace_bytes(operation) for operation in result.launched)
    room = result.card_bytes - workspace
    return smallest.batch * largest_fitting(size_of, room, result.batch // smallest.batch)


def _launched(
    step: Training,
    todo: Sequence[LaunchTask],
    times: Mapping[Task, Timed],
) -> Iterator[LaunchedOperation]:
    """The launches with their times."""
    phase = PHASES[0]
    for launch, what, sizes, l2 in todo:
        op = launch.operation
        phase = op.phase if op else phase
        yield LaunchedOperation(
            name=launch.name,
            kind=op.kind if op else CONVERSIONS,
            phase=phase,
            layer=getattr(op and op.layer, "name", ""),
            timed=times[what],
            reads=tuple(launch.reads),
            writes=tuple(launch.writes),
            sizes=sizes,
            l2=l2,
            value=launch.value,
            format=launch.format,
            count=op.count if op else step.values[launch.value].repeats,
            label=_label(op),
        )


def _label(operation: Operation | None) -> str:
    """The name that notes give to the kind of an operation's layer."""
    layer = operation.layer if operation is not None else None
    if isinstance(layer, ElementwiseLayer):
        return layer.called.removeprefix(MULTIPLIES) or layer.kind
    return operation.kind if operation is not None else ""
