"""What would shorten a step: changes of how it runs and of its device, each a whole new step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from npusim.base.errors import ArgumentError, NpusimError
from npusim.call.options import Progress
from npusim.machine.device.resources import word_of
from npusim.machine.device.spec import LAUNCH_MODES, Device
from npusim.networks.plan.tasks import Task
from npusim.networks.rules.table import tables
from npusim.networks.run.setting import StepRequest
from npusim.networks.run.step import LAYOUTS, time_step
from npusim.networks.run.step_result import StepResult
from npusim.networks.timed import Timed
from npusim.results.alternatives import Alternatives
from npusim.results.facts.number_text import counted
from npusim.results.facts.step_alternatives import Alternative
from npusim.results.shown.network_words import asked
from npusim.version import __version__


class Change(Struct, frozen=True, kw_only=True):
    """A change of a step: what it is, the option that makes it, and what it changes.

    ``request`` are arguments of ``npusim.step``, ``options`` its further keywords, ``figures``
    those of the device by path or word. Tasks that are ``tuned`` have automatic tilings.
    """

    name: str
    option: str
    request: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    tuned: Collection[Task] = ()


def alternatives(
    step: StepResult,
    *,
    jobs: int | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Alternatives:
    """What would shorten a step: formats, fusions, launches, cards, memories, tilings, batches.

    Each change is simulated by a whole new step, its plan included, in ``jobs`` processes and with
    ``store`` as for ``npusim.step``; none are added up. ``progress`` is called as that of a call,
    with the change. Raises ``ArgumentError`` for a result that is not of ``npusim.step``.
    """
    if step.request is None:
        raise ArgumentError(
            f"{step.workload.name}: this result was not made by npusim.step, so it is not known "
            "how it was asked for; take the result of npusim.step"
        )
    every = [*changes(step, step.request)]
    rows = []
    for done, change in enumerate(every):
        if progress is not None:
            progress(change.name, "alternatives", done, len(every))
        rows.append(tried(step, step.request, change, jobs=jobs, store=store))
    rows.sort(key=lambda row: -(row.saves if row.saves is not None else -1.0))
    facts = step.asked()
    return Alternatives(
        workload=step.workload.name,
        description=step.workload.description,
        asked=f"batch {step.batch}, {step.setting.passes}, {asked(facts)}",
        version=__version__,
        device=step.device.name,
        device_digest=step.device.digest(),
        time_us=step.time_us,
        images_per_second=step.images_per_second,
        rows=tuple(rows),
    )


def changes(step: StepResult, request: StepRequest) -> Iterator[Change]:
    """Every change that a step could have."""
    for layouts in LAYOUTS:
        if layouts != step.setting.layouts:
            name = f"layouts {layouts}"
            yield Change(name=name, option=f"--layouts {layouts}", request={"layouts": layouts})
    yield from _of_fusions(step)
    for launch in LAUNCH_MODES:
        if launch != step.device.launch_mode and step.device.graph is not None:
            name = "launches of a replayed graph" if launch == "graph" else "launches one by one"
            yield Change(name=name, option=f"--launch {launch}", options={"launch": launch})
    if step.device.cards is not None:
        cards = 2 * step.setting.cards
        yield Change(name=f"{cards} cards", option=f"--cards {cards}", request={"cards": cards})
    yield from _of_memories(step.device)
    yield from _of_tilings(step, request)
    sizes = [2 * step.batch]
    if step.batch > 1:
        sizes.append(step.batch // 2)
    for batch in sizes:
        yield Change(name=f"batch {batch}", option=f"--batch {batch}", request={"batch": batch})


def _of_fusions(step: StepResult) -> Iterator[Change]:
    """Each fusion that was made left out, and each that was not asked for put in."""
    chosen = step.setting.fusions
    for fusion in tables().fusions:
        if fusion.name not in chosen:
            names = (*chosen, fusion.name)
            yield _with_fusions(f"with the fusion {fusion.name}", names)
        elif step.fused.get(fusion.name):
            names = tuple(name for name in chosen if name != fusion.name)
            yield _with_fusions(f"without the fusion {fusion.name}", names)


def _with_fusions(change: str, names: tuple[str, ...]) -> Change:
    """A change to these fusions and no others."""
    text = ",".join(names) or "none"
    return Change(name=change, option=f"--fusions {text}", request={"fusions": names or "none"})


def _of_memories(device: Device) -> Iterator[Change]:
    """Main memory twice as fast, the L2 twice as fast and twice as large."""
    word = word_of(device.main_memory_name)
    figures = {f"{device.main_memory_name} twice as fast": word}
    if device.l2 is not None:
        figures |= {"L2 twice as fast": "l2", "L2 twice as large": "l2.size"}
    for name, path in figures.items():
        yield Change(name=name, option=f"--set {path}=x2", figures={path: "x2"})


def _of_tilings(step: StepResult, request: StepRequest) -> Iterator[Change]:
    """Automatic tilings of the operations that lose most, where rules of the library are taken."""
    if request.options.get("tiling", "library") != "library":
        return
    replays = {id(loss.alike.call.replay) for loss in step.losses}
    tuned = [
        task
        for task, timed in step.simulated.items()
        if timed.result is not None and id(timed.result.replay) in replays
    ]
    if tuned:
        name = f"automatic tilings of {counted(len(tuned), 'operation')} that lose most"
        yield Change(name=name, option="", tuned=tuned)
    yield Change(
        name="automatic tilings of all", option="--tiling auto", options={"tiling": "auto"}
    )


def tried(
    step: StepResult,
    request: StepRequest,
    change: Change,
    *,
    jobs: int | None = None,
    store: str | Path | None = None,
) -> Alternative:
    """The step with a change; the reason where there is none."""
    try:
        result = _changed(step, request, change, jobs, store)
    except NpusimError as error:
        return Alternative(change=change.name, option=change.option, error=str(error))
    if len(result.failed) > len(step.failed):
        names = ", ".join(operation.name for operation in result.failed)
        return Alternative(
            change=change.name, option=change.option, error=f"not simulated: {names}"
        )
    before_us = step.time_us / step.batch
    return Alternative(
        change=change.name,
        option=change.option,
        time_us=result.time_us,
        images_per_second=result.images_per_second,
        saves=1 - result.time_us / result.batch / before_us,
    )


def _changed(
    step: StepResult,
    request: StepRequest,
    change: Change,
    jobs: int | None,
    store: str | Path | None,
) -> StepResult:
    """A whole new step with a change; of the same device it knows what was simulated before."""
    device = step.device
    # The device of a step launches as its mode says; what is replaced is that of the file.
    options = {**request.options, "progress": None, **change.options}
    options["device"] = device.launching("single")
    for path, value in change.figures.items():
        options["device"] = options["device"].replace(path, value)
    changed = structs.replace(request, **change.request, jobs=jobs, options=options)
    layouts = changed.layouts or step.setting.layouts
    alike = (layouts == "each_call") == (step.setting.layouts == "each_call")
    known: Mapping[Task, Timed] = {}
    if alike and not (change.figures or change.options or change.tuned):
        known = step.simulated
    return time_step(changed, store=store, known=known, tuned=change.tuned)
