"""Profiler reports of a kernel: busy times of its pipes, and time beside the kernel's own.

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
from npusim.silicon.rows import Declined, KernelRow, SimulatedRow


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
) -> SimulatedRow:
    """Return the report of a profiler on the run of a row's kernel, comparable to the row.

    ``cores`` are as of ``busy_us``, ``parses`` as of ``launch_cycles``; a launch starts at least
    ``started`` cores. Pipes that are ``blind`` have no busy time.
    """
    launch = device.launch
    # The cycle of the kernel's own in which its last core started.
    last_start = launch.cycles(role, run.cores) - run.launch_cycles
    launch_share = launch_cycles(
        launch,
        row.time_kind,
        role,
        max(run.cores, started),
        parses=parses,
        started=last_start,
    )
    busy: dict[str, float | None] = {
        **busy_us(run, device, cores=cores, statistic=row.busy_statistic or "mean")
    }
    for pipe in blind:
        busy[pipe] = None
    return SimulatedRow(
        time_us=device.time_us(run.cycles + launch_share),
        busy_us=busy,
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
    cube_cores = {row.core for row in run.pipes if row.pipe == "M"}
    cycles: dict[tuple[bool, str], list[int]] = {}
    for row in run.pipes:
        is_partner = bool(cube_cores) and row.core not in cube_cores
        cycles.setdefault((is_partner, row.pipe), []).append(working(row) + row.cycles[FOLLOW])
    partners = {row.core for row in run.pipes if row.core not in cube_cores and working(row)}
    busy: dict[str, float] = {}
    for (is_partner, pipe), counts in sorted(cycles.items()):  # cube cores come first
        if not any(counts):
            continue
        names = facts(pipe).profiled
        if cube_cores:
            of_both = is_partner and (False, pipe) in cycles
            names = names[1:] or names if of_both else names[:1]
        averaged = len(partners) if is_partner else cores or len(counts)
        for name in names:
            busy.setdefault(name, device.time_us(_over_cores(counts, averaged, statistic)))
    return busy


def _over_cores(counts: list[int], cores: int, statistic: str) -> float:
    """Mean or median over ``cores`` cores; those without a count did nothing."""
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
    with_parsing = launch.cycles(role, cores, parses=parses)
    if time_kind in ("core_max", "core_avg"):
        return with_parsing - launch.cycles(role, cores, parses=False) - started
    if time_kind == "compute_only":
        return -started
    return with_parsing - started
