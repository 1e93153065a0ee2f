"""Changes that would make a call faster: simulated ones, each with what it saves.

A sentence names the change as a command or a call takes it, and the share of the time that goes
with it. What was not simulated is no advice; bounds say how far any advice can lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from npusim.base.errors import ArgumentError, NpusimError
from npusim.machine.device.resources import LAUNCHES, QUEUES, word_of
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.run import TIMELINE_LIMIT
from npusim.machine.timing.trace import Bound, KernelRun, Trace
from npusim.results.facts import metrics
from npusim.results.facts.number_text import counted, percent_text, us_text
from npusim.results.facts.replay import Replay
from npusim.results.facts.verdict import Trial, Verdict, halved, trials

#: From this share of the simulated time on, only less work for the bounding resource helps.
NEAR_BOUND = 0.9
#: Kernels that matter, at most.
MAX_KERNELS = 3
#: Kernels and launches below this share of the call are worth no sentence, nor is what saves less
#: of the time of its kernels.
WORTH_A_LINE = 0.05
#: Kernels below this share of the bound of their problem get a sentence why.
FAR_FROM_BOUND = 0.15
#: Parts of the device that a call is told to have faster, and figures that are named, at most.
MAX_PARTS, MAX_FIGURES = 3, 3
#: Parts that are tried besides launches, where these save most.
MORE_TRIALS = 4
#: Change of the time below which two times are called alike.
ALIKE = 0.005

#: What a program does to ask less of a part of the device, by the part or the kind of pipe.
_LESS_WORK = {
    LAUNCHES: "fewer kernels, or more work per call, would hide them",
    QUEUES: "so does issuing less to the full queue",
    "L2": "so does half the bytes from and to it, by larger tiles",
    "pipe S": "so do fewer and larger instructions",
    "pipe M": "so does half the multiplying, of padding above all",
    "pipe V": "so do half as many repeats; explain says which lines do not fill theirs",
    "pipe": "so does half its work: fewer bytes, or fewer and larger moves",
    "link": "so does half the bytes over it",
    "memory": "so does half the bytes from and to it",
}


class TimedChange(Protocol):
    """Parts of a result that advice looks at, under the names they have in results."""

    @property
    def device(self) -> Device:
        """Where it ran."""

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """Its kernels."""

    @property
    def replay(self) -> Replay | None:
        """How to time it again."""

    @property
    def cycles(self) -> int:
        """Of all kernels and launches."""

    @property
    def time_us(self) -> float:
        """The same in microseconds."""

    @property
    def verdict(self) -> Verdict | None:
        """The part of the device that holds it up most."""


class Advice(Struct, frozen=True, kw_only=True):
    """A change to a call of ``time_us``, with which it takes ``changed_us``, tilings as they are.

    ``figures`` are changes of the device as ``--set`` takes them, ``launch`` is how kernels are
    launched ("" as they are). Advice without either is on the kernel itself, or says what no
    change helps; ``changed_us`` is None where it promises nothing.
    """

    text: str
    time_us: float
    changed_us: float | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""

    @property
    def saves(self) -> float:
        """Share of the time that goes, 0 where nothing is promised."""
        if self.changed_us is None or not self.time_us:
            return 0.0
        return max(0.0, 1 - self.changed_us / self.time_us)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "text": self.text,
            "figures": dict(self.figures),
            "launch": self.launch,
            "changed_us": self.changed_us,
            "saves": self.saves,
        }


def major_kernels(runs: Sequence[KernelRun]) -> tuple[KernelRun, ...]:
    """At most ``MAX_KERNELS`` kernels that matter to the call's time, in call order."""
    total = metrics.total_cycles(runs)
    worthy = [run for run in runs if metrics.share(run.cycles, total) >= WORTH_A_LINE]
    largest = sorted(worthy, key=lambda run: -run.cycles)[:MAX_KERNELS]
    return tuple(run for run in runs if any(run is kernel for kernel in largest))


def advise(result: TimedChange) -> tuple[Advice, ...]:
    """Changes that would make a call faster, most first; then how far that can lead.

    Parts of the device are those tried for its verdict. A graph of launches, all cores of a chip,
    and an even share of the tasks are simulated where they may help.
    """
    tried = [*_faster_parts(result), *_of_launches(result), *_of_cores(result)]
    advice = sorted(tried, key=lambda change: -change.saves)
    near = [*_near_bounds(result)]
    if not any(change.saves for change in advice) and not near:
        advice += _nothing_alone(result)
    return (*advice, *near)


def _faster_parts(result: TimedChange) -> Iterator[Advice]:
    """The parts of the device that save most if they are twice as fast.

    Where launches save most, also what saves most in the kernels.
    """
    tried = result.verdict.tried if result.verdict is not None else ()
    kernels = sum(run.cycles for run in result.runs)
    least_us = WORTH_A_LINE * result.device.time_us(kernels)
    if [part.name for part in tried] == [LAUNCHES] and _is_short(result):
        assert result.replay is not None
        call = result.device, result.time_us, result.runs, result.replay
        tried += trials(*call, besides=tried, least_us=least_us, most=MORE_TRIALS)
    worthy = [part for part in tried if result.time_us - part.double_us >= least_us]
    for trial in worthy[:MAX_PARTS]:
        us = _followed_us(result, trial)
        if result.time_us - us < least_us:
            continue
        saved = percent_text(1 - us / result.time_us)
        word = word_of(trial.name)
        yield Advice(
            text=f"{trial.name}: {halved(trial.name)} {saved} with `--set {word}=x2`"
            f"{figures_named(trial)}{_where(result, trial)}; "
            f"{less_work(result.device, trial.name)}",
            time_us=result.time_us,
            changed_us=us,
            figures={word: "x2"},
        )


def _followed_us(result: TimedChange, trial: Trial) -> float:
    """The time of a trial where vector kernels may take other cores: the longer of both."""
    if result.replay is None or not _is_short(result):
        return trial.double_us
    faster = result.device.replace(word_of(trial.name), "x2")
    us = result.replay.spread_us(faster)
    return trial.double_us if us is None else max(us, trial.double_us)


def figures_named(trial: Trial) -> str:
    """The figures that a word stands for, where these are a few and no pipe's."""
    if not 1 < len(trial.figures) <= MAX_FIGURES or trial.name.startswith("pipe "):
        return ""
    *others, last = trial.figures
    return f" ({', '.join(others)} and {last} together)"


def _where(result: TimedChange, trial: Trial) -> str:
    """The kernel that a part of the device holds up most, of a call of several."""
    if len(result.runs) < 2 or trial.name == LAUNCHES:
        return ""
    return f", most of it in {metrics.titles(result.runs)[trial.kernel]}"


def less_work(device: Device, name: str) -> str:
    """What a program does to ask less of a part of the device."""
    if name == device.main_memory_name:
        return _LESS_WORK["memory"]
    return _LESS_WORK.get(name) or _LESS_WORK.get(name.partition(" ")[0]) or _LESS_WORK["memory"]


def _of_launches(result: TimedChange) -> Iterator[Advice]:
    """A replayed graph, where launches are worth it and the device has its figures."""
    device = result.device
    launches = sum(run.launch_cycles for run in result.runs)
    share = metrics.share(launches, result.cycles)
    if share < WORTH_A_LINE or device.replays or device.graph is None or not _is_short(result):
        return
    assert result.replay is not None
    us = _changed_us(result.replay, device.launching("graph"))
    if us <= (1 - WORTH_A_LINE) * result.time_us:
        saved = percent_text(1 - us / result.time_us)
        yield Advice(
            text=f"launches: {percent_text(share)} of the call; in a replayed graph, "
            f"with `--launch graph`, it takes {us_text(us)} us, {saved} less",
            time_us=result.time_us,
            changed_us=us,
            launch="graph",
        )


def _changed_us(replay: Replay, device: Device) -> float:
    """The time on a variant of the device: how many cores vector kernels take is chosen anew."""
    us = replay.spread_us(device)
    return replay.time_us(device) if us is None else us


def _is_short(result: TimedChange) -> bool:
    """True for a call that is timed again for advice alone: it is known how, and soon done."""
    instructions = sum(run.instructions for run in result.runs)
    return result.replay is not None and instructions <= TIMELINE_LIMIT


def _of_cores(result: TimedChange) -> Iterator[Advice]:
    """Why cores are idle, or have more to do than others, in the kernels that matter."""
    if result.replay is None or not _is_short(result):
        return
    major = major_kernels(result.runs)
    names = metrics.titles(result.runs)
    programs = result.replay.programs(result.device)
    for place, (run, program) in enumerate(zip(result.runs, programs, strict=True)):
        if any(run is kernel for kernel in major):
            text = _idle(result, place, names[place], program)
            if text:
                yield Advice(text=text, time_us=result.time_us)
            yield from _uneven(result, place, names[place], program)


def _idle(result: TimedChange, place: int, name: str, program: Program) -> str:
    """Why a kernel leaves cores idle; "" where it does not, or where its plan does not say."""
    assert result.replay is not None
    used, every = len(program.working), len(program.cores)
    if used >= every:
        return ""
    tasks = sum(core.tasks for core in program.cores)
    runs = f"{name} runs on {used} of {every} cores"
    us = result.replay.on_all_cores_us(place) if tasks > used else None
    if us is None:
        few = tasks <= used and not program.roles[1:]
        return f"{runs}: it has {counted(tasks, 'task')}, one for each of these" if few else ""
    more = us / result.time_us - 1
    if more > ALIKE:
        effect = f"the call takes {us_text(us)} us, {percent_text(more)} longer"
    elif more < -ALIKE:
        effect = f"the call takes {us_text(us)} us, {percent_text(-more)} less"
    else:
        effect = "the call takes as long"
    return f"{runs}: left to all of them {effect}"


def _uneven(result: TimedChange, place: int, name: str, program: Program) -> Iterator[Advice]:
    """An even share of a kernel's tasks, where a core has more of them than it need have."""
    assert result.replay is not None
    counts = [core.tasks for core in program.cores]
    even = -(-sum(counts) // max(1, len(counts)))
    if max(counts, default=0) <= even:
        return
    try:
        us = result.replay.evenly_us(place)
    except NpusimError:  # tasks that rest on those before them on their core
        return
    if us is not None and us <= (1 - WORTH_A_LINE) * result.time_us:
        saved = percent_text(1 - us / result.time_us)
        yield Advice(
            text=f"{name}: one core has {max(counts)} of the {sum(counts)} tasks; balance them "
            f"over the {len(counts)} cores, at most {even} each: saves {saved}",
            time_us=result.time_us,
            changed_us=us,
        )


def _near_bounds(result: TimedChange) -> Iterator[Advice]:
    """The kernels that a part of the device holds up all the time, and what others could gain."""
    for run in sorted(major_kernels(result.runs), key=lambda run: -run.cycles):
        bound = metrics.nearest_bound(run)
        if bound is not None and bound.cycles >= NEAR_BOUND * run.cycles:
            near = percent_text(metrics.share(bound.cycles, run.cycles))
            text = (
                f"{run.name}: at {near} of its {bound.resource} bound; only less work for "
                f"{bound.resource}, or more of it, helps{_other_programs(run)}"
            )
            yield Advice(text=text, time_us=result.time_us)


def _nothing_alone(result: TimedChange) -> Iterator[Advice]:
    """Advice where no single change saves enough."""
    verdict = result.verdict
    if verdict is None:
        return
    text = f"no part of the device saves {percent_text(WORTH_A_LINE)} alone if it is twice as fast"
    if verdict.saves is None:
        text = f"{verdict.text()}; the call was not timed again to try changes"
    yield Advice(text=text, time_us=result.time_us)


def slow_kernels(result: TimedChange, cycles: int) -> tuple[str, ...]:
    """A sentence for each kernel of at least ``cycles`` that is far from the bound of its problem.

    It says what the critical path is spent on. Kernels shorter than their launch are left out.
    """
    far = {
        place: least
        for place, run in enumerate(result.runs)
        if (least := metrics.problem_bound(run)) is not None
        and run.cycles > max(cycles, run.launch_cycles)
        and least.cycles < FAR_FROM_BOUND * run.cycles
    }
    if not far or result.replay is None:
        return ()
    try:
        traces = result.replay.traces(result.device)
    except ArgumentError:  # too many instructions
        return ()
    return tuple(
        _why_slow(result.runs[place], least, traces[place]) for place, least in far.items()
    )


def _why_slow(run: KernelRun, least: Bound, trace: Trace) -> str:
    return (
        f"{run.name} takes {run.cycles / max(1, least.cycles):.0f} times what any program for its "
        f"problem needs ({least.resource}): {path_text(run, trace)}"
    )


def path_text(run: KernelRun, trace: Trace) -> str:
    """What most of the critical path of a kernel is spent on."""
    step = trace.path[0]
    most = sorted(step.parts, key=lambda part: -step.parts[part])[:2]
    spent = ", ".join(f"{part} {percent_text(step.parts[part] / step.cycles)}" for part in most)
    return (
        f"{percent_text(step.cycles / run.cycles)} of its critical path are {step.count:,} x "
        f"{step.work.op} on {step.work.pipe} ({spent})"
    )


def _other_programs(run: KernelRun) -> str:
    """Gains that another program could have for the problem of a kernel at its bound."""
    least = metrics.problem_bound(run)
    if least is None or not least.cycles or least.cycles >= NEAR_BOUND * run.cycles:
        return ""
    near, times = percent_text(metrics.share(least.cycles, run.cycles)), run.cycles / least.cycles
    return (
        f"; it is at {near} of the bound of its problem ({least.resource}), so that another tiling "
        f"or program could be up to {times:.1f} times as fast"
    )
