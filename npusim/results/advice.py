"""What would make a call faster: sentences drawn from bounds and from reasons of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from npusim.base.errors import ArgumentError
from npusim.base.reasons import BUSY, REASONS
from npusim.base.yamltree import load_tree
from npusim.results import metrics
from npusim.results.lines import percent_text
from npusim.results.record import Record
from npusim.timing.trace import Bound, KernelRun, Trace

#: From this share of the simulated time on, only less work for the bounding resource helps.
NEAR_BOUND = 0.9
#: Kernels that matter, at most.
MAX_KERNELS = 3
#: Kernels and launches below this share of the call are not worth a sentence.
WORTH_A_LINE = 0.05
#: Kernels below this share of the bound of their problem get a sentence why.
FAR_FROM_BOUND = 0.15

#: What helps a pipe that waits, by the reason.
_REMEDIES = {
    reason: remedy.text()
    for reason, remedy in load_tree(files("npusim.results") / "remedies.yaml").mapping().items()
}


def major_kernels(runs: Sequence[KernelRun]) -> tuple[KernelRun, ...]:
    """At most ``MAX_KERNELS`` kernels that matter to the call's time, in call order."""
    whole = metrics.total_cycles(runs)
    worthy = [run for run in runs if metrics.share(run.cycles, whole) >= WORTH_A_LINE]
    largest = sorted(worthy, key=lambda run: -run.cycles)[:MAX_KERNELS]
    return tuple(run for run in runs if any(run is one for one in largest))


def advise(runs: Sequence[KernelRun]) -> tuple[str, ...]:
    """One sentence per kernel that matters, largest first, and one on launches if they do."""
    lines = [_kernel_advice(run) for run in sorted(major_kernels(runs), key=lambda r: -r.cycles)]
    launches = sum(run.launch_cycles for run in runs)
    launch_share = metrics.share(launches, metrics.total_cycles(runs))
    if launch_share >= WORTH_A_LINE:
        lines.append(
            f"launches: {percent_text(launch_share)} of the call; fewer kernels, or more work "
            "per call, would hide them"
        )
    return tuple(lines)


def slow_kernels(result: Record, cycles: int) -> tuple[str, ...]:
    """A sentence for each kernel of at least ``cycles`` that is far from the bound of its problem.

    It says what the critical path is spent on. Kernels shorter than their launch are left out.
    """
    far = {
        at: least
        for at, run in enumerate(result.runs)
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
    return tuple(_why_slow(result.runs[at], least, traces[at]) for at, least in far.items())


def _why_slow(run: KernelRun, least: Bound, trace: Trace) -> str:
    step = trace.path[0]
    most = sorted(step.parts, key=lambda part: -step.parts[part])[:2]
    spent = ", ".join(f"{part} {percent_text(step.parts[part] / step.cycles)}" for part in most)
    return (
        f"{run.name} takes {run.cycles / max(1, least.cycles):.0f} times what any program for its "
        f"problem needs ({least.resource}): {percent_text(step.cycles / run.cycles)} of its "
        f"critical path are {step.count:,} x {step.work.op} on {step.work.pipe} ({spent})"
    )


def _other_programs(run: KernelRun) -> str:
    """What another program for the problem of a kernel at its bound could gain."""
    least = metrics.problem_bound(run)
    if least is None or not least.cycles or least.cycles >= NEAR_BOUND * run.cycles:
        return ""
    near, times = percent_text(metrics.share(least.cycles, run.cycles)), run.cycles / least.cycles
    return (
        f"; it is at {near} of the bound of its problem ({least.resource}), so that another tiling "
        f"or program could be up to {times:.1f} times as fast"
    )


def _kernel_advice(run: KernelRun) -> str:
    """Name the wall where the kernel is near it, else the wait of its busiest pipe."""
    bound = metrics.nearest_bound(run)
    if bound is not None and bound.cycles >= NEAR_BOUND * run.cycles:
        near = percent_text(metrics.share(bound.cycles, run.cycles))
        return (
            f"{run.name}: at {near} of its {bound.resource} bound; only less work for "
            f"{bound.resource}, or more of it, helps{_other_programs(run)}"
        )
    pipe = metrics.critical_pipe(metrics.pipe_shares(run))
    if pipe is None:
        return f"{run.name}: no pipe worked; nothing to improve"
    reasons = zip(pipe.busiest, REASONS, strict=True)
    worst, reason = max((one for one in reasons if one[1] != "busy"), key=lambda one: one[0])
    busy = percent_text(pipe.busiest[BUSY])
    behind = _behind_issue(run, pipe.busiest_core) if reason == "issue" else reason
    told = f"'{reason}'" + (f", as S waits for '{behind}'" if behind != reason else "")
    return (
        f"{run.name}: {pipe.pipe} of {pipe.busiest_core}, the busiest pipe, works {busy} and "
        f"loses {percent_text(worst)} to {told}: {_REMEDIES[behind]}"
    )


def _behind_issue(run: KernelRun, core: str) -> str:
    """What the scalar pipe of a core waits for most where it waits longer than it works."""
    scalar = metrics.reasons_of(run, core, "S")
    busy = scalar.get("busy", 0)
    waits = {why: n for why, n in scalar.items() if why not in ("busy", "not_started", "done")}
    return max(waits, key=lambda why: waits[why]) if sum(waits.values()) > busy else "issue"
