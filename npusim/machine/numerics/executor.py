"""Runs a program on arrays: what it computes, in the chip's arithmetic and its own order.

Fresh buffer slots are poisoned (every byte 0xFF: NaN in each float type, -1 in integers), so a
kernel that forgets a load gives a wrong number, not a lucky one. Cores run one after another in
core order as far as barriers and flags between cores let them; atomics therefore add in task
order, never by time.

Where cores cannot meet, those with the same templates run side by side, as one batch of NumPy
calls: the result is the same to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from threadpoolctl import ThreadpoolController

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.machine.isa.base import Signal
from npusim.machine.numerics.memory import POISON, CoreMemory, GlobalMemory
from npusim.machine.program.flags import Flags
from npusim.machine.program.lower import located
from npusim.machine.program.program import READ, Program, Template
from npusim.machine.program.races import Accesses, Use

__all__ = ["POISON", "execute"]

Array = npt.NDArray[Any]
Progress = Callable[[int], None]

#: Multiply-adds from which threads win more than they cost.
THREADED_MACS = 1 << 22

#: Most cores in a batch: more do not fit the cache together, fewer cost more calls.
BATCH = 8


def execute(
    program: Program, arrays: Mapping[str, Array], progress: Progress | None = None
) -> None:
    """Run ``program`` on the arrays of its tensors, in place.

    Arrays are C-contiguous with the tensors' sizes. Raises ``ProgramError`` with the kernel
    line for an access outside a tensor, and for programs whose barriers or flags never meet.
    """
    tensors = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    sharing = sharing_of(program, tensors)
    _keep_freed_memory()
    # An mmad is a small product: BLAS threads cost more in hand-over than they win.
    with _blas().limit(limits=1, user_api="blas"):
        if sharing.apart:
            _run_side_by_side(program, GlobalMemory(tensors, sharing.constant), sharing, progress)
        else:
            _run_in_turns(program, GlobalMemory(tensors), progress)


@cache
def _keep_freed_memory() -> None:
    """Let the C library reuse freed arrays instead of giving them back and clearing new ones.

    glibc raises its limits for that to the largest block freed so far, up to 32 MiB; batches
    allocate and free arrays of a few hundred KiB all the time. Untouched, the block costs nothing.
    """
    np.empty(31 << 20, np.uint8)


@cache
def _blas() -> ThreadpoolController:
    """The thread pools of the libraries loaded; looking for them takes longer than small runs."""
    return ThreadpoolController()


# -- whether the order of cores can matter -----------------------------------------------------


class Sharing(Struct, frozen=True):
    """``apart``: no core can see what another does, so that only stores may have to be ordered.

    Tensors in ``constant`` are never stored to, those in ``ordered`` by several tasks in the
    same place.
    """

    apart: bool
    constant: frozenset[str]
    ordered: frozenset[str]


def sharing_of(program: Program, tensors: Mapping[str, Array]) -> Sharing:
    """How the cores of ``program`` share ``tensors``, its tensors as bytes."""
    uses = Accesses(program).uses
    loads, stores = (
        {name for name, some in uses.items() if any((use.kind == READ) is read for use in some)}
        for read in (True, False)
    )
    meet = any(one.between_cores for t in program.templates for one in t.instructions)
    seen = any(np.may_share_memory(tensors[a], tensors[b]) for a in loads for b in stores)
    aliased = any(np.may_share_memory(tensors[a], tensors[b]) for a in stores for b in stores - {a})
    if meet or seen or aliased:
        return Sharing(False, frozenset(), frozenset())
    ordered = frozenset(name for name in stores if _overlap(uses[name]))
    return Sharing(True, frozenset(loads), ordered)


def _overlap(uses: list[Use]) -> bool:
    """True if two stores into a tensor, of which these are the ``uses``, touch the same byte."""
    hulls, rows = [], []
    for use in (use for use in uses if use.kind != READ):
        region = use.region
        starts = use.starts[:, None] + np.arange(region.rows) * region.pitch
        rows.append((starts.reshape(-1), region.row_bytes))
        hulls.append((use.starts, (region.rows - 1) * region.pitch + region.row_bytes))
    return not _disjoint(hulls) and not _disjoint(rows)


def _disjoint(pieces: list[tuple[IntArray, int]]) -> bool:
    """True if no two pieces (starts, length) of bytes overlap."""
    starts = np.concatenate([starts for starts, _ in pieces])
    ends = np.concatenate([starts + length for starts, length in pieces])
    order = np.argsort(starts)
    return bool((ends[order][:-1] <= starts[order][1:]).all())


# -- side by side ------------------------------------------------------------------------------


def _run_side_by_side(
    program: Program, gm: GlobalMemory, sharing: Sharing, progress: Progress | None
) -> None:
    """All cores, none of which sees what another does; then the stores whose order matters."""
    workers = (os.cpu_count() or 1) if program.macs >= THREADED_MACS else 1
    batches = [CoreMemory(program, gm, c, sharing.ordered) for c in _alike(program, workers)]
    lock, done = Lock(), 0

    def run(batch: CoreMemory) -> None:
        nonlocal done
        for template in batch.units():
            _run(template, range(len(template.instructions)), batch)
            if progress is not None:
                with lock:
                    done += len(template.instructions) * len(batch.cores)
                    progress(done)

    if workers == 1:
        for batch in batches:
            run(batch)
    else:
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(run, batches):
                pass
    places = {core: (b, i) for b in batches for i, core in enumerate(b.cores)}
    with np.errstate(all="ignore"):
        for _, (batch, i) in sorted(places.items(), key=lambda item: item[0]):
            batch.catch_up(i)


def _alike(program: Program, workers: int) -> list[list[int]]:
    """Cores that run the same templates, in batches small enough to share out to ``workers``."""
    of = np.array([v.template for v in program.variants], np.int64)
    found: dict[bytes, list[int]] = {}
    for i, core in enumerate(program.cores):
        found.setdefault(of[core.variants].tobytes(), []).append(i)
    most = BATCH if workers == 1 else BATCH // 2  # smaller ones are shared out more evenly
    return [
        part.tolist()
        for cores in found.values()
        for part in np.array_split(cores, -(-len(cores) // most))
    ]


def _run(template: Template, part: range, memory: CoreMemory) -> None:
    """The instructions ``part`` of a template."""
    # Overflow and NaN are results on the chip, not accidents of the simulation.
    with np.errstate(all="ignore"):
        for i in part:
            instruction = template.instructions[i]
            try:
                instruction.execute(memory)
            except ProgramError:
                with located(template.lines[i], instruction):
                    raise


# -- in turns ----------------------------------------------------------------------------------


def _run_in_turns(program: Program, gm: GlobalMemory, progress: Progress | None) -> None:
    """One core after another, each as far as barriers and flags let it."""
    sync = _CoreSync(program, progress)
    running = {
        i: _run_core(i, CoreMemory(program, gm, (i,)), sync) for i in range(len(program.cores))
    }
    while running:
        before = sync.events
        for i in list(running):
            if next(running[i], "end") == "end":
                del running[i]
        if running and sync.events == before:
            names = ", ".join(program.cores[i].name for i in running)
            raise ProgramError(
                f"{program.kernel} hangs: {names} wait for a barrier or flag that never comes"
            )


class _CoreSync:
    """Barriers and flags between cores, as counts; ``events`` counts any progress."""

    def __init__(self, program: Program, progress: Progress | None) -> None:
        self.progress = progress
        self.working = len(program.working)
        self.arrived: dict[int, int] = {}
        self.program, self.setting = program, Flags(program)
        self.flags: dict[tuple[int, int], int] = {}  # counts not waited for, by core and event
        self.events = 0
        self.done = 0  # instructions of finished units, all cores

    def send(self, sender: int, signal: Signal) -> None:
        """Set a flag; an error where one of a group cannot count so far.

        Whether it happens on a chip depends on how far its core is behind; here that is as far as
        the order of the program allows. Flags for all cores count each setter apart, chips do not.
        """
        most = self.program.device.sync.core_event_count
        for core in self.setting.set(sender, signal):
            key = core, signal.event
            self.flags[key] = self.flags.get(key, 0) + 1
            if signal.scope == "group" and self.flags[key] > most:
                names = [self.program.cores[i].name for i in (sender, core)]
                raise ProgramError(
                    f"{names[0]} may set flag {signal.event} {most + 1} times before {names[1]} "
                    f"waits for one of them; a flag of {self.program.device.name} counts to {most} "
                    f"(sync.core_event_count), so let {names[0]} wait for {names[1]} in between"
                )

    def take(self, core: int, event: int, count: int) -> bool:
        """Take so many counts of a flag, if it has them; whether it had."""
        left = self.flags.get((core, event), 0) - count
        if left >= 0:
            self.flags[core, event] = left
        return left >= 0

    def end_unit(self, template: Template) -> None:
        self.events += 1
        self.done += len(template.instructions)
        if self.progress is not None:
            self.progress(self.done)


def _run_core(core: int, batch: CoreMemory, sync: _CoreSync) -> Iterator[str]:
    """One core; yields whenever it has to wait for another."""
    barriers = 0
    for template in batch.units():
        first = 0
        for i, instruction in enumerate(template.instructions):
            if not instruction.between_cores:
                continue
            _run(template, range(first, i), batch)
            first = i + 1
            if instruction.meets:
                sync.arrived[barriers] = sync.arrived.get(barriers, 0) + 1
                sync.events += 1
                while sync.arrived[barriers] < sync.working:
                    yield "barrier"
                barriers += 1
            if instruction.awaits is not None:
                while not sync.take(core, *instruction.awaits):
                    yield "flag"
            if instruction.signals is not None:
                with located(template.lines[i], instruction):
                    sync.send(core, instruction.signals)
            sync.events += 1
        _run(template, range(first, len(template.instructions)), batch)
        sync.end_unit(template)
