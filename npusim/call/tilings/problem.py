"""Problem that is tuned: a kernel on a device, and how long a candidate takes there.

No candidate is faster than its lower bound in closed form. A kernel that states none has one from
its program, which is the larger of two kinds: the slowest core as if it were alone, and the bytes
that all cores move together over what they share, from the first one that can move on, and with
what the last one still leaves to do. To find it takes about as long as a simulation.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.digests import code_of, program
from npusim.base.errors import ArgumentError, CapacityError, PassingError, ProgramError
from npusim.base.integers import RATE_BITS, fixed_rate
from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.program import program as flows
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Least
from npusim.machine.program.program import Program
from npusim.machine.timing.bounds import link_bounds
from npusim.machine.timing.fast.l2 import FastL2
from npusim.machine.timing.fast.path import NONE, Alone, Once
from npusim.machine.timing.fast.tables import Tables
from npusim.machine.timing.outcome import L2
from npusim.machine.timing.run import launch_cycles, new_l2, time_cycles
from npusim.machine.timing.trace import core_starts


def least_of_program(program: Program, *, cold: bool) -> int:
    """Cycles that no simulation of ``program`` falls below, launch excluded.

    ``cold`` says that the L2 holds nothing before, so that every byte comes from main memory once.
    """
    alone = Alone(program, core_starts(program))
    earliest = alone.earliest()
    bounds = [earliest.end, *(bound.cycles for bound in link_bounds(program))]
    sizes = _Sizes(program)
    once = alone.read_once() if cold else Once(0, 0)
    for begin, cycles, rest in (
        (earliest.first_read, sizes.reading(program.device, once), earliest.tail),
        (earliest.first_write, _writing(program.device, sizes.written), 0),
    ):
        if begin < NONE:
            bounds.append(begin + int(cycles) + rest)
    return max(0, *bounds)


class _Sizes:
    """Bytes of all cores: read, written, and what requests for rows add to reads that hit."""

    def __init__(self, program: Program) -> None:
        self.read = self.written = 0
        self.requests = 0.0
        self.steepest = 0.0  # most request per byte
        l2 = program.device.l2
        atomic = l2.atomic_factor if l2 is not None else 1
        for count, template in zip(program.unit_counts.tolist(), program.templates, strict=True):
            for flow in template.flows:
                if flow is None or flow.region is None:
                    continue
                if flow.kind == flows.READ:
                    ratio = flow.request / flow.region.row_bytes
                    self.read += count * flow.size
                    # The engine rounds what requests take of each transfer down.
                    self.requests += count * max(0.0, flow.size * ratio - 1)
                    self.steepest = max(self.steepest, ratio)
                else:
                    factor = atomic if flow.kind == flows.ATOMIC else 1
                    self.written += count * flow.size * factor

    def reading(self, device: Device, once: Once) -> float:
        """Cycles of all reads, some of which come from main memory in any case.

        What else does costs its rate there; what does not costs the requests of a hit.
        """
        size, fetched = self.read + once.beside, once.fetched
        main = fixed_rate(device.main_read_bytes_per_cycle) / (1 << RATE_BITS)
        if device.l2 is None:
            return size / main
        rate = fixed_rate(device.l2.read_bytes_per_cycle) / (1 << RATE_BITS)

        def cached(missing: float) -> float:
            return (size + max(0.0, self.requests - missing * self.steepest)) / rate

        low, high = float(min(fetched, size)), float(size)
        if cached(low) <= low / main:
            return fetched / main
        # More misses take less of the L2 and more of main memory: the best is where both are equal.
        for _ in range(40):
            middle = (low + high) / 2
            if cached(middle) > middle / main:
                low = middle
            else:
                high = middle
        return min(cached(high), low / main)


def _writing(device: Device, size: float) -> float:
    """Cycles of all writes at the rate at which cores share the L2, or main memory without one."""
    shared = device.l2 if device.l2 is not None else device.main_memory
    return size / (fixed_rate(shared.write_bytes_per_cycle) / (1 << RATE_BITS))


# -- what is tuned ---------------------------------------------------------------------------------


#: Fields of a candidate by name: what makes one of the kernel that is tuned.
Changes = Mapping[str, Any]


class Found(NamedTuple):
    """Finding on a candidate: cycles with every launch, or why it cannot run.

    ``alike`` names what an engine sees of it: two candidates with the same are one. ``gm_bytes``
    are read from or written to global memory by all cores.
    """

    cycles: int = 0
    alike: str = ""
    reason: str = ""
    gm_bytes: int = 0


class TuningProblem(Struct, frozen=True, dict=True):
    """A kernel whose tiling is sought, on some core groups of a device.

    ``l2`` is the L2 as it is before the kernel, None if empty. Cycles are those of the kernel, of
    what its tiling needs before it, and of the launches of all.
    """

    kernel: Kernel
    device: Device
    groups: tuple[int, ...]
    l2: L2 | None = None

    @property
    def cores(self) -> int:
        """Cores that a candidate may use."""
        return len(self.groups) * self.device.core_kind(self.kernel.role).per_group

    @cached_property
    def key(self) -> str:
        """A digest of all that the cycles of a candidate depend on besides its changes."""
        content = () if self.l2 is None else tuple(self.l2.content())
        parts = (
            f"{program()} {code_of(type(self.kernel))}",
            f"{type(self.kernel).__qualname__} {_without_tiling(self.kernel)}",
            f"{self.device.digest()} {self.groups} {content}",
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def candidate(self, changes: Changes) -> Kernel:
        """The kernel with some fields changed."""
        return replace(self.kernel, **changes)

    def candidates(self) -> Iterator[tuple[Kernel, int]]:
        """The kernel's own, each with a lower bound on its cycles in closed form."""
        for candidate, least in self.kernel.bounded(self.device, self.cores):
            yield candidate, self.with_launch(candidate, least)

    def least(self, candidate: Kernel) -> int:
        """A lower bound on the cycles of any kernel, in closed form."""
        return self.with_launch(candidate, candidate.least(self.device, self.cores))

    def with_launch(self, candidate: Kernel, least: Least) -> int:
        """Cycles at least with the launch, and with what goes before."""
        launch = self.device.launch.beside(candidate.role, least.cores)
        return least.cycles + launch + self._before(least.before)[0]

    def bound(self, candidate: Kernel) -> Found:
        """A lower bound from the built program, or the reason why it cannot run."""
        return self._found(candidate, lambda built, _: self._least(built))

    def time(self, candidate: Kernel) -> Found:
        """The simulated cycles, or the reason why it cannot run."""
        return self._found(candidate, time_cycles)

    def _found(self, candidate: Kernel, cycles_of: Callable[[Program, L2], int]) -> Found:
        """What ``cycles_of`` says of the program of a candidate, and what goes before it."""
        try:
            built = self._built(candidate)
        except PassingError:  # it says nothing of the candidate
            raise
        except (ArgumentError, CapacityError, ProgramError) as error:
            return Found(reason=str(error))
        before, l2 = self._before(candidate.before)
        moved = sum(n for (src, dst, _), n in built.moves.items() if "GM" in (src, dst))
        own_l2 = copy.deepcopy(l2)
        assert isinstance(own_l2, FastL2)
        seen = f"{Tables(built, own_l2).digest()} {launch_cycles(built)} {len(candidate.before)}"
        return Found(before + cycles_of(built, own_l2), seen, gm_bytes=moved)

    def _least(self, built: Program) -> int:
        """A lower bound on the cycles of a program with its launch."""
        return least_of_program(built, cold=self.l2 is None) + launch_cycles(built)

    def _built(self, candidate: Kernel) -> Program:
        return build(candidate, self.device, self.groups)

    def _before(self, needed: tuple[Kernel, ...]) -> tuple[int, L2]:
        """Cycles of what a candidate needs before it, and the L2 that this leaves."""
        if needed not in self._times_before:
            start = new_l2(self.device, "fast") if self.l2 is None else copy.deepcopy(self.l2)
            cycles = sum(time_cycles(self._built(kernel), start) for kernel in needed)
            self._times_before[needed] = (cycles, start)
        return self._times_before[needed]

    @cached_property
    def _times_before(self) -> dict[tuple[Kernel, ...], tuple[int, L2]]:
        return {}


def tiling_of(kernel: Kernel) -> dict[str, Any]:
    """The fields of a kernel's tiling by name, or those it has choices of."""
    tiling = getattr(kernel, "tiling", None)
    if is_dataclass(tiling):
        return {f.name: getattr(tiling, f.name) for f in fields(tiling)}
    return {name: getattr(kernel, name) for name in kernel.choices}


def _without_tiling(kernel: Kernel) -> str:
    chosen_fields = {"tiling", *kernel.choices}
    values = {f.name: getattr(kernel, f.name) for f in fields(kernel)}  # type: ignore[arg-type]
    return repr({name: value for name, value in values.items() if name not in chosen_fields})


def neighbours(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel with one field of its tiling changed by a step, as far as its checks allow.

    A number is halved, doubled and moved by one and by sixteen; a switch is turned. Numbers that
    are 0 mean "left to the kernel" and stay, and so do words. With one more slot of L0 steps are
    also as much shorter, so that it has room.
    """
    tiling = getattr(kernel, "tiling", None)
    if not is_dataclass(tiling) or isinstance(tiling, type):
        return
    for tiling_field in fields(tiling):
        for value in _steps(getattr(tiling, tiling_field.name)):
            with suppress(ArgumentError):
                changed = replace(tiling, **{tiling_field.name: value})
                yield replace(kernel, tiling=changed)
    slots = getattr(tiling, "l0_slots", 0)
    depth = getattr(tiling, "base_k", 0)
    less = depth * slots // (slots + 1) // 16 * 16
    if less:
        with suppress(ArgumentError):
            changed = replace(tiling, l0_slots=slots + 1, base_k=less)
            yield replace(kernel, tiling=changed)


def _steps(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if not isinstance(value, int) or value < 1:
        return []
    steps = (value // 2, value * 2, value - 16, value + 16, value - 1, value + 1)
    return [step for step in dict.fromkeys(steps) if step > 0 and step != value]
