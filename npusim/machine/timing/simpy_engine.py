"""The readable engine: one SimPy process per pipe, one per scalar unit, one for the fabric.

Everything a process waits for is a counter that only grows: instructions issued to, started
on and completed by each pipe; cores arrived at a barrier; counts of a flag between cores.
Order inside one cycle does not matter for counters; for the shared links it is fixed: transfers
that finish, then transfers that begin in (core, pipe, index) order, then one new sharing of
bandwidth.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
import simpy
from msgspec import Struct, field

from npusim.base.integers import IntArray
from npusim.base.reasons import (
    BANDWIDTH,
    BARRIER,
    BUSY,
    DONE,
    FLAG,
    FOLLOW,
    ISSUE,
    NOT_STARTED,
    QUEUE,
    REASONS,
)
from npusim.machine.isa.base import Cost, Instruction
from npusim.machine.program.flags import Flags
from npusim.machine.program.lower import Wait
from npusim.machine.program.program import MOVE, READ, CoreProgram, Flow, Program
from npusim.machine.timing.fabric import Fabric
from npusim.machine.timing.l2 import Fetches, L2State
from npusim.machine.timing.links import WEIGHT_BITS, Links, occupied, parts, waiting
from npusim.machine.timing.outcome import Outcome, PipeSpans, Progress, hangs, outside

Process = Generator[simpy.Event, Any, None]

#: Sharing is settled after everything else that happens in a cycle (SimPy: larger is later).
_SETTLE = 9


class Counter:
    """A count that only grows; remembers when it reached each value."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.times: list[int] = []
        self._asked = 0  # keeps waiters of one count in order
        self._waiting: list[tuple[int, int, simpy.Event]] = []

    @property
    def value(self) -> int:
        """The count now."""
        return len(self.times)

    def add(self) -> None:
        """Count one up and wake whoever waited for it."""
        self.times.append(int(self.env.now))
        while self._waiting and self._waiting[0][0] <= self.value:
            heapq.heappop(self._waiting)[2].succeed()

    def reach(self, count: int) -> Process:
        """Wait until the count is at least ``count``."""
        if self.value < count:
            event = self.env.event()
            self._asked += 1
            heapq.heappush(self._waiting, (count, self._asked, event))
            yield event

    def time_of(self, count: int) -> int:
        """Cycle at which the count reached ``count``; 0 for counts that always held."""
        return self.times[count - 1] if count > 0 else 0


class Step(NamedTuple):
    """One instruction of one unit, ready to run: waits are absolute counts."""

    instruction: Instruction
    cost: Cost
    flow: Flow | None
    waits: list[Wait]
    bases: list[int]
    line: str
    template: int
    place: int  # in the template
    iteration: int  # of the innermost loop, -1 outside of loops


class _Core(Struct):
    """Counters and accounts of one core."""

    number: int
    program: CoreProgram
    issued: list[Counter]
    started: list[Counter]
    done: list[Counter]
    barriers: int = 0  # met so far
    flags: dict[int, Counter] = field(default_factory=dict)
    flags_used: dict[int, int] = field(default_factory=dict)  # counts waited for so far
    account: list[list[int]] = field(default_factory=list)


class SimpyEngine:
    """Runs a program once; ``run`` returns its outcome."""

    def __init__(
        self,
        program: Program,
        l2: L2State,
        starts: IntArray,
        *,
        keep_spans: bool,
        progress: Progress | None = None,
    ) -> None:
        self.program = program
        self.device = program.device
        self.l2 = l2
        self.env = simpy.Environment()
        self.scalar = program.pipes.index("S")
        self.links = Links(program.device, [core.group for core in program.cores])
        self.fabric = Fabric(self.links.capacities, self.links.turning)
        self.joining: list[tuple[tuple[int, int, int], Step, simpy.Event]] = []
        self.transfers: dict[int, simpy.Event] = {}
        self.serial = 0
        self.fetches = Fetches(l2.sector)
        self.waiting = waiting(program.device.l2)
        self.timer = 0  # only the latest timer of the fabric counts
        self.settling = False
        self.barriers: dict[int, Counter] = {}
        self.hits: dict[tuple[str, str], list[int]] = {}
        self.fetched = self.evicted = 0
        self.completed = 0
        self.progress = progress
        self.spans: list[tuple[int, ...]] | None = [] if keep_spans else None
        self.starts: list[int] = starts.tolist()  # of the cores
        self.cores = [self._core(i, core) for i, core in enumerate(program.cores)]
        self.flags = Flags(program)

    def run(self) -> Outcome:
        """Simulate to the end.

        Raises ``ProgramError`` naming a stuck pipe and its kernel line if the program hangs.
        """
        running = []
        for core in self.cores:
            running.append((core, self.scalar, self.env.process(self._issue(core))))
            running += [
                (core, pipe, self.env.process(self._run_pipe(core, pipe)))
                for pipe in range(len(self.program.pipes))
                if pipe != self.scalar
            ]
        self.env.run()
        for core, pipe, process in running:
            if process.is_alive:
                done = core.done[pipe].value
                raise hangs(self.program, core.number, pipe, done, self._latest())
        if self.progress is not None:
            self.progress(self.completed)
        cycles = self._latest()
        for core in self.cores:
            for pipe, row in enumerate(core.account):
                self._close(core, pipe, row, cycles)
        spans = None
        if self.spans is not None:
            spans = PipeSpans(*np.array(self.spans, np.int64).reshape(-1, 9).T)
        return Outcome(
            cycles,
            np.array([c.account for c in self.cores], np.int64),
            {key: (hit, miss, fetched) for key, (hit, miss, fetched) in self.hits.items()},
            self.fetched,
            self.evicted,
            spans,
        )

    # -- processes -------------------------------------------------------------------------

    def _issue(self, core: _Core) -> Process:
        """The scalar unit: issues in program order, held back by its cost and full queues."""
        row = core.account[self.scalar]
        row[NOT_STARTED] = self.starts[core.number]
        yield self.env.timeout(self.starts[core.number])
        counts = [0] * len(self.program.pipes)
        depth = [self.device.pipe(p).queue_depth for p in self.program.pipes]
        for pipe, step in self._steps(core):
            if pipe == self.scalar:
                yield from self._run_scalar(core, step, counts[pipe], row)
            else:
                began = self.env.now
                yield from core.started[pipe].reach(counts[pipe] - depth[pipe] + 1)
                row[QUEUE] += int(self.env.now - began)
                yield self.env.timeout(step.cost.issue)
                row[BUSY] += step.cost.issue
                core.issued[pipe].add()
            counts[pipe] += 1
        row[DONE] = int(self.env.now)  # turned into the rest of the makespan at the end

    def _run_scalar(self, core: _Core, step: Step, index: int, row: list[int]) -> Process:
        """An ordering instruction on the scalar pipe: it holds up everything behind it."""
        began = int(self.env.now)
        for pipe, count, _ in step.waits:
            yield from core.done[pipe].reach(count)
        reason = step.waits[0][2] if step.waits else BARRIER
        if step.instruction.awaits is not None:
            reason = FLAG
        if step.instruction.meets:
            yield from self._meet(core)
        yield from self._wait_core_flag(core, step)
        start = int(self.env.now)
        row[reason] += start - began
        yield self.env.timeout(step.cost.cycles)
        row[BUSY] += step.cost.cycles
        self._complete(core, self.scalar, index, step, start, reason, start - began)

    def _run_pipe(self, core: _Core, pipe: int) -> Process:
        """One in-order pipe: waits for issue and operands, works, completes."""
        row = core.account[pipe]
        free_at = 0
        for index, (_, step) in enumerate(self._steps(core, pipe)):
            yield from core.issued[pipe].reach(index + 1)
            for other, count, why in step.waits:
                counters = core.started if why == FOLLOW else core.done
                yield from counters[other].reach(count)
            flagged = yield from self._wait_core_flag(core, step)
            yield from self._lag(core.started, step, step.cost.lag_start)
            start = int(self.env.now)
            reason = self._blame(core, pipe, index, step, flagged)
            issued = core.issued[pipe].time_of(index + 1)
            if index == 0:
                row[NOT_STARTED] += issued
                free_at = issued
            ready_at = max(free_at, issued) if reason == FOLLOW else free_at
            row[ISSUE] += ready_at - free_at  # at the head of its queue it holds the pipe
            row[reason] += start - ready_at
            core.started[pipe].add()
            streaming = index > 0 and start == free_at
            yield from self._work(core, pipe, index, step, streaming=streaming)
            worked = int(self.env.now)
            alone = step.cost.cycles + (0 if streaming else step.cost.idle_head)
            row[BUSY] += alone
            row[BANDWIDTH] += worked - start - alone
            yield from self._lag(core.done, step, step.cost.lag_end)
            end = int(self.env.now)
            row[FOLLOW] += end - worked
            self._complete(core, pipe, index, step, start, reason, start - free_at)
            free_at = end
        row[DONE] = free_at

    def _lag(self, counters: list[Counter], step: Step, lag: int) -> Process:
        """Stay ``lag`` cycles behind the instructions that the unit flag makes it follow."""
        for other, count, why in step.waits:
            if why == FOLLOW and count > 0:
                yield from counters[other].reach(count)
                latest = counters[other].time_of(count) + lag
                if self.env.now < latest:
                    yield self.env.timeout(latest - self.env.now)

    def _work(self, core: _Core, pipe: int, index: int, step: Step, *, streaming: bool) -> Process:
        """The time an instruction occupies its pipe."""
        head = 0 if streaming else step.cost.idle_head
        if step.flow is None:
            yield self.env.timeout(step.cost.cycles + head)
            return
        earliest = int(self.env.now) + head + step.cost.cycles
        yield self.env.timeout(head + step.cost.startup)
        drained = self.env.event()
        self.joining.append(((core.number, pipe, index), step, drained))
        self._settle_later()
        yield drained
        if self.env.now < earliest:
            yield self.env.timeout(earliest - self.env.now)

    # -- the shared links ------------------------------------------------------------------

    def _settle_later(self) -> None:
        """Settle once, after everything else of this cycle."""
        if not self.settling:
            self.settling = True
            event = self.env.event()
            event.callbacks = [self._settle]
            event._ok = True
            event._value = None
            self.env.schedule(event, priority=_SETTLE)  # type: ignore[arg-type]

    def _settle(self, _: simpy.Event) -> None:
        """Begin the transfers of this cycle in order, share the links, set the next alarm."""
        self.settling = False
        self._finish_transfers()
        for place, step, drained in sorted(self.joining, key=lambda item: item[0]):
            self._join(place[0], step, drained)
        self.joining.clear()
        self.fabric.rerate()
        self.timer += 1
        alarm = self.fabric.next_finish()
        if alarm is not None:
            timeout = self.env.timeout(alarm - int(self.env.now), value=self.timer)
            timeout.callbacks.append(self._alarm)

    def _alarm(self, event: simpy.Event) -> None:
        if event.value == self.timer:
            self._finish_transfers()
            self._settle_later()

    def _finish_transfers(self) -> None:
        for transfer in self.fabric.advance(int(self.env.now)):
            self.fetches.landed(transfer)
            self.transfers.pop(transfer).succeed()

    def _join(self, core: int, step: Step, drained: simpy.Event) -> None:
        """Start the parts of a core's transfer draining."""
        flow = step.flow
        assert flow is not None
        self.serial += 1
        transfer = self.serial
        self.transfers[transfer] = drained
        sizes = [flow.size] if flow.kind == MOVE else self._look_up(step, flow, transfer)
        for part, size in zip(parts(flow), sizes, strict=True):
            if size:
                cap = part.cap_with(self.waiting)
                self.fabric.join(transfer, size, cap, self.links.uses(part, core))

    def _look_up(self, step: Step, flow: Flow, transfer: int) -> list[int]:
        """Look a transfer's bytes up in the L2; returns the sizes of its parts."""
        region, base = flow.region, step.bases[flow.base] if flow.base >= 0 else 0
        assert region is not None
        offset = region.offset + base
        if offset < 0 or offset + flow.extent > region.tensor.size_bytes:
            raise outside(step.line, step.instruction, flow, base, step.iteration)
        place = region.tensor.name, offset, region.rows, region.row_bytes, region.pitch
        if flow.kind != READ:
            evicted = self.l2.store(*place, flow.regions, flow.apart)
            self.evicted += evicted
            return [flow.size, evicted]
        access = self.l2.touch(*place, write=False)
        self.evicted += access.evicted
        seen = self.hits.setdefault((region.tensor.name, flow.peer), [0, 0, 0])
        seen[0] += access.hit
        seen[1] += flow.size - access.hit
        seen[2] += access.fetched
        self.fetched += access.fetched
        for other in self.fetches.awaited(transfer, access, *place):
            self.fabric.follow(transfer, other)
        occupancy = occupied(access.hit, region.row_bytes, flow.request)
        occupancy += (flow.size - access.hit) * self.waiting >> WEIGHT_BITS
        occupied_by = [occupancy, 0] if access.hit == flow.size else [0, occupancy]
        return [*occupied_by, access.fetched, access.evicted]

    # -- between cores ---------------------------------------------------------------------

    def _meet(self, core: _Core) -> Process:
        """Arrive at the core's next barrier and wait for all cores that work."""
        barrier = self.barriers.setdefault(core.barriers, Counter(self.env))
        core.barriers += 1
        barrier.add()
        yield from barrier.reach(len(self.program.working))

    def _wait_core_flag(self, core: _Core, step: Step) -> Generator[simpy.Event, Any, int]:
        """Wait for a flag from another core; returns when it came (0 if none is needed)."""
        if step.instruction.awaits is None:
            return 0
        event, more = step.instruction.awaits
        need = core.flags_used.get(event, 0) + more
        core.flags_used[event] = need
        counter = self._flag(core, event)
        yield from counter.reach(need)
        return counter.time_of(need)

    def _flag(self, core: _Core, event: int) -> Counter:
        return core.flags.setdefault(event, Counter(self.env))

    # -- bookkeeping -----------------------------------------------------------------------

    def _core(self, number: int, program: CoreProgram) -> _Core:
        pipes = self.program.pipes
        issued, started, done = ([Counter(self.env) for _ in pipes] for _ in range(3))
        account = [[0] * len(REASONS) for _ in pipes]
        return _Core(number, program, issued, started, done, account=account)

    def _steps(self, core: _Core, only: int | None = None) -> Iterator[tuple[int, Step]]:
        """(pipe, step) of a core's instructions in program order, of one pipe or of all."""
        totals = [0] * len(self.program.pipes)
        core_program = core.program
        for unit, (variant, bases) in enumerate(
            zip(core_program.variants, core_program.bases, strict=True)
        ):
            chosen = self.program.variants[variant]
            template = self.program.templates[chosen.template]
            offsets = bases.tolist()
            for i, pipe in enumerate(template.lowered.pipes):
                if only is None or pipe == only:
                    waits = [(q, n + totals[q], why) for q, n, why in chosen.waits[i]]
                    yield (
                        pipe,
                        Step(
                            template.instructions[i],
                            template.costs[i],
                            template.flows[i],
                            waits,
                            offsets,
                            template.lines[i],
                            chosen.template,
                            i,
                            int(core_program.iterations[unit]),
                        ),
                    )
            totals = [a + b for a, b in zip(totals, template.lowered.totals, strict=True)]

    def _blame(self, core: _Core, pipe: int, index: int, step: Step, flagged: int) -> int:
        """The reason satisfied last; ties go to the first in the order of ``REASONS``."""
        causes = [(core.issued[pipe].time_of(index + 1), -ISSUE)]
        for q, n, why in step.waits:
            if why == FOLLOW and n > 0:
                causes.append((core.started[q].time_of(n) + step.cost.lag_start, -why))
            elif why != FOLLOW:
                causes.append((core.done[q].time_of(n), -why))
        if flagged:
            causes.append((flagged, -FLAG))
        return -max(causes)[1]

    def _complete(
        self, core: _Core, pipe: int, index: int, step: Step, start: int, reason: int, waited: int
    ) -> None:
        """Record the end of an instruction and let others see it."""
        signal = step.instruction.signals
        if signal is not None:
            for other in self.flags.set(core.number, signal):
                self._flag(self.cores[other], signal.event).add()
        core.done[pipe].add()
        self.completed += 1
        if self.spans is not None:
            end, why = int(self.env.now), reason if waited else BUSY
            place = (core.number, pipe, index, step.template, step.place)
            self.spans.append((*place, start, end, why, waited))
        if self.progress is not None and self.completed % 1000 == 0:
            self.progress(self.completed)

    def _latest(self) -> int:
        """The last cycle in which a core started, or an instruction ended or was issued."""
        counters = [c for core in self.cores for c in (*core.done, *core.issued) if c.times]
        return max([*self.starts, *(c.times[-1] for c in counters)], default=0)

    def _close(self, core: _Core, pipe: int, row: list[int], cycles: int) -> None:
        """Fill a pipe's account up to the makespan."""
        if pipe != self.scalar and not core.done[pipe].value:
            row[NOT_STARTED] = cycles
        else:
            row[DONE] = cycles - row[DONE]
