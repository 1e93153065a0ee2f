"""What a profiler reports of a kernel: busy times of its pipes, and time beside the kernel's own.

Busy times are cycles in which a pipe holds an instruction: at full speed, slowed by others, or
following another pipe piece by piece under the unit flag, which the measured fixpipe times under
that flag contain. A profiler divides their sum by the cores a kernel was launched on, whether or
not each of them had work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from npusim.base.integers import ceil_div
from npusim.base.reasons import FOLLOW
from npusim.machine.device.parts import Launch
from npusim.machine.device.pipes import facts
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts.least import on_silicon, program_ends
from npusim.results.facts.metrics import working
from npusim.silicon.sheet import Declined, KernelRow, Simulated


def groups_of(row: KernelRow, device: Device, role: str, column: str = "cores") -> range:
    """The core groups that a row's cores fill, all without a number.

    Raises ``Declined`` for more than there are; ``column`` is where their number stands.
    """
    each = device.core_kind(role).per_group
    groups = ceil_div(row.cores, each) if row.cores else device.groups
    if groups > device.groups:
        raise Declined(
            f"{column} is {row.cores}, but {device.name} has {device.groups * each} {role} cores"
        )
    return range(groups)


def reported(
    run: KernelRun,
    row: KernelRow,
    device: Device,
    role: str,
    notes: Sequence[str],
    *,
    cores: int | None = None,
    started: int = 0,
    parses: bool = True,
    blind: Collection[str] = (),
) -> Simulated:
    """Return what a profiler reports of the run of a row's kernel, comparable to the row.

    ``cores`` are as of ``busy_us``, ``parses`` as of ``launch_cycles``; a launch starts at least so
    many cores as ``started``. Of pipes that are ``blind`` nothing is told.
    """
    launch = device.launch
    # The cycle of the kernel's own in which its last core started.
    last = launch.cycles(role, run.cores) - run.launch_cycles
    many = max(run.cores, started)
    beside = launch_cycles(launch, row.time_kind, role, many, parses=parses, started=last)
    busy = busy_us(run, device, cores=cores, statistic=row.busy_statistic or "mean")
    return Simulated(
        time_us=device.time_us(run.cycles + beside),
        busy_us={**busy, **dict.fromkeys(blind)},
        kernels=(run.name,),
        notes=tuple(notes),
        bounds=on_silicon(device, (*run.problem_bounds, *run.bounds)),
        from_memory_us=program_ends(device, [run]).cold.us,
    )


def busy_us(
    run: KernelRun, device: Device, *, cores: int | None = None, statistic: str = "mean"
) -> dict[str, float]:
    """Microseconds by the profiler's name of the pipe; pipes that did nothing have no entry.

    ``cores`` is the number of cores launched, if that is not all those in ``run``; ``statistic``
    is "mean" or "median" over them. The loads of a vector core are listed under both names that
    profilers give them. Where vector cores work beside cube cores, each kind is averaged over those
    of its own that took part, and pipes of both have the time of the cube cores under the first
    name.
    """
    cube = {row.core for row in run.pipes if row.pipe == "M"}
    cycles: dict[tuple[bool, str], list[int]] = {}
    for row in run.pipes:
        key = bool(cube) and row.core not in cube, row.pipe
        cycles.setdefault(key, []).append(working(row) + row.cycles[FOLLOW])
    partners = [row.core for row in run.pipes if row.core not in cube and working(row)]
    found: dict[str, float] = {}
    for (partner, pipe), counts in sorted(cycles.items()):  # cube cores come first
        names = facts(pipe).profiled
        if cube:
            names = names[1:] or names if partner and (False, pipe) in cycles else names[:1]
        many = len(set(partners)) if partner else cores or len(counts)
        for name in names if any(counts) else ():
            found.setdefault(name, device.time_us(_over_cores(counts, many, statistic)))
    return found


def _over_cores(counts: list[int], cores: int, statistic: str) -> float:
    """Mean or median over ``cores`` cores, of which those that no row tells of did nothing."""
    if statistic == "mean":
        return sum(counts) / cores
    return median(sorted(counts, reverse=True)[:cores])


def launch_cycles(
    launch: Launch,
    time_kind: str | None,
    role: str,
    cores: int,
    *,
    parses: bool = True,
    started: int = 0,
) -> int:
    """Cycles beside the kernel's own that a time of ``time_kind`` contains.

    A task has the whole launch. The time of a core begins after it, but contains the parse of a
    tiling at run time, where the kernel has one (``parses``); one phase contains neither. The last
    core ``started`` in this cycle of the kernel's own, which is part of the launch: the slowest
    core is taken to be the last.
    """
    whole = launch.cycles(role, cores, parses=parses)
    parsing = whole - launch.cycles(role, cores, parses=False)
    alone = {"core_max": parsing, "core_avg": parsing, "compute_only": 0}
    return alone.get(time_kind or "", whole) - started
