"""Memory of a training step over its launches: how long each value is there, and what it is.

A value is there from the operation that writes it to the last one that reads it before it is
written again, in every mode; each format of it is bytes of its own. Parameters, buffers, constants
and the optimizer's state are always there, and are updated in place. A view lies where its value
lies. What the step is given (images, indices, labels) is there from its beginning to its last
reader, its results to its end. Workspace is there while its operation runs.

What the framework has besides is in no count: its context, rounding and fragmentation of its
allocations, buffers of an exchange between cards, and values that a program of the user's keeps
though no operation reads them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from npusim.machine.device.spec import Device
from npusim.networks.plan.tasks import PLAIN, Placed, StoredValue
from npusim.networks.rules.values import PHASES, Training
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.results.facts.fact import row_of
from npusim.results.facts.memory_rows import HELD, MEMORY, HeldValue, MemoryColumns

Row = dict[str, Any]

#: The phase in which activations are computed.
FORWARD = PHASES[0]


class Life(Struct):
    """The time that a stored value is in memory, and what it ``holds``.

    It is there from launch ``first`` to launch ``last``, by their places in the step. ``operation``
    makes it, of ``layer``; both are "" where it was there before the step. ``copied`` is the life
    whose numbers it has in another format or type.
    """

    stored: StoredValue
    holds: str
    bytes: int
    first: int
    last: int
    operation: str = ""
    layer: str = ""
    readers: int = 0
    copied: Life | None = None


def lifetimes(launched: Sequence[LaunchedOperation], step: Training) -> tuple[Life, ...]:
    """The lives of all values of a step, in the order in which they begin."""
    lives = _Lives(launched, step)
    for place, operation in enumerate(launched):
        for stored in operation.reads:
            lives.read(place, stored)
        for stored in operation.writes:
            lives.write(place, stored)
    lives.add_parameters_that_nothing_reads()
    lives.end_results()
    lives.tell_copies()
    return tuple(sorted(lives.all, key=lambda life: life.first))


class _Lives:
    """Lives of values while the launches of a step are gone through."""

    def __init__(self, launched: Sequence[LaunchedOperation], step: Training) -> None:
        self.launched = launched
        self.step = step
        self.all: list[Life] = []
        #: The life that a read of a stored value is part of.
        self.current: dict[StoredValue, Life] = {}
        self.weights = {*step.parameters, *step.fixed}
        self.state = {*step.state}
        self.data = {*step.inputs, *step.targets}
        self.results = {step.home(name) for name in step.results}
        self.gradients = {step.home(f"{name}.gradient") for name in step.parameters}
        self.has_forward_pass = any(operation.phase == FORWARD for operation in launched)

    def read(self, place: int, stored: StoredValue) -> None:
        """Note that a launch reads a value."""
        life = self.current.get(stored)
        if life is None:
            life = self._given(place, stored)
        life.readers += 1
        life.last = max(life.last, place)

    def write(self, place: int, stored: StoredValue) -> None:
        """Note that a launch writes a value; an update takes the place of what it updates."""
        updated = StoredValue(self.step.updates.get(stored.name, ""), stored.format)
        if updated in self.current:
            self.current[stored] = self.current[updated]
            return
        operation = self.launched[place]
        self._begin(
            Life(
                stored,
                self._holds(operation, stored.name),
                operation.sizes[stored],
                place,
                place,
                operation.name,
                operation.layer,
                copied=self._copied(operation, stored.name),
            )
        )

    def add_parameters_that_nothing_reads(self) -> None:
        """Note parameters and state that are there though no launch of this pass reads them."""
        noted = {stored.name for stored in self.current}
        for name in (*self.step.parameters, *self.step.fixed, *self.step.state):
            if name not in noted:
                value = self.step.values[name]
                size = value.repeats * Placed(value, PLAIN).size_bytes
                self._begin(self._always(StoredValue(name, PLAIN), size))

    def end_results(self) -> None:
        """Leave results that nothing reads to the end of the step."""
        for stored, life in self.current.items():
            if life.readers == 0 and stored.name in self.results:
                life.last = len(self.launched) - 1

    def tell_copies(self) -> None:
        """Tell copies from values that only change their format.

        Of two that hold the same numbers the later one is a copy, unless nothing reads the first
        any more: then it is what the first was.
        """
        for life in self.all:
            if life.copied is not None:
                moved = life.copied.last == life.first
                life.holds = life.copied.holds if moved else "copies"

    def _copied(self, operation: LaunchedOperation, name: str) -> Life | None:
        """The life of which an operation makes a copy; None of a value of its own."""
        if name in self.gradients or not (operation.value or name in self.step.copies):
            return None
        return self.current[operation.reads[0]]

    def _begin(self, life: Life) -> Life:
        self.all.append(life)
        self.current[life.stored] = life
        return life

    def _given(self, place: int, stored: StoredValue) -> Life:
        """The life of a value that no launch writes.

        Data are there from the beginning, and what the forward pass leaves to a backward pass by
        itself. Bits of dropout and the gradient of an end that has no loss are made as they are
        read.
        """
        size = self.launched[place].sizes[stored]
        name = stored.name
        if name in self.weights or name in self.state:
            return self._begin(self._always(stored, size))
        if name in self.data:
            return self._begin(Life(stored, "data", size, 0, place))
        first = place if self.has_forward_pass else 0
        return self._begin(
            Life(stored, self._holds(self.launched[place], name), size, first, place)
        )

    def _always(self, stored: StoredValue, size: int) -> Life:
        """The life of a parameter, or of state."""
        holds = "state" if stored.name in self.state else "weights"
        return Life(stored, holds, size, 0, len(self.launched) - 1)

    def _holds(self, operation: LaunchedOperation, name: str) -> str:
        """What a value holds that an operation makes, or reads first."""
        if name in self.gradients:
            return "gradients"
        if name in self.step.updates:
            return "state" if self.step.updates[name] in self.state else "weights"
        made_forward = name in self.results or operation.phase == FORWARD
        return "activations" if made_forward else "gradients"


class StepMemory:
    """Memory over the launches of a step on a device: bytes by class while each runs."""

    def __init__(
        self, device: Device, launched: Sequence[LaunchedOperation], step: Training
    ) -> None:
        self.device = device
        self.launched = launched
        self.step = step
        self.lives = lifetimes(launched, step)

    @cached_property
    def columns(self) -> tuple[MemoryColumns, ...]:
        """Memory of each launch, in order."""
        begins: dict[int, list[Life]] = defaultdict(list)
        ends: dict[int, list[Life]] = defaultdict(list)
        for life in self.lives:
            begins[life.first].append(life)
            ends[life.last].append(life)
        sizes: Counter[str] = Counter()
        start_cycles = 0
        rows = []
        for place, operation in enumerate(self.launched):
            for life in begins[place]:
                sizes[life.holds] += life.bytes
            during = {**sizes, "workspace": workspace_bytes(operation)}
            for life in ends[place]:
                sizes[life.holds] -= life.bytes
            rows.append(
                MemoryColumns(
                    operation=operation.name,
                    kind=operation.kind,
                    phase=operation.phase,
                    layer=operation.layer,
                    start_us=self.device.time_us(start_cycles),
                    us=operation.us,
                    bytes=during,
                    after_bytes=sizes.total(),
                )
            )
            start_cycles += operation.cycles
        return tuple(rows)

    @property
    def values_bytes(self) -> int:
        """The most bytes that values take at once, without workspace."""
        rows = self.columns
        return max((row.total_bytes - row.bytes["workspace"] for row in rows), default=0)

    @property
    def peak(self) -> MemoryColumns:
        """The first moment of the most bytes."""
        return self.columns[self._peak_place]

    @property
    def peak_bytes(self) -> int:
        """The most bytes at once."""
        return self.peak.total_bytes

    @cached_property
    def _peak_place(self) -> int:
        rows = self.columns
        return max(range(len(rows)), key=lambda place: rows[place].total_bytes)

    def held(self) -> tuple[HeldValue, ...]:
        """The values that are there at the peak, the largest first."""
        place = self._peak_place
        lives = [life for life in self.lives if life.first <= place <= life.last]
        lives.sort(key=lambda life: -life.bytes)
        return tuple(
            HeldValue(
                value=life.stored.name,
                format=life.stored.format,
                holds=life.holds,
                layer=life.layer,
                operation=life.operation,
                bytes=life.bytes,
            )
            for life in lives
        )

    def rows(self) -> list[Row]:
        """``columns`` as plain values."""
        return [row_of(MEMORY, row) for row in self.columns]

    def peak_row(self) -> Row:
        """``peak`` as plain values."""
        return row_of(MEMORY, self.peak)

    def held_rows(self, most: int | None = None) -> list[Row]:
        """The largest values at the peak, so many or all, as plain values."""
        return [row_of(HELD, value) for value in self.held()[:most]]


def workspace_bytes(operation: LaunchedOperation) -> int:
    """Bytes that the kernels of an operation have between them; 0 where it has no time."""
    result = operation.timed.result
    return 0 if result is None else result.workspace_bytes
