"""Launches of a step, in order: ways of operations, their formats, and what the L2 holds.

Each operation is simulated by itself, equal ones once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, Protocol

from npusim.base.dtypes import DType
from npusim.machine.device.spec import Device
from npusim.networks.plan.addresses import Addresses
from npusim.networks.plan.formats import FormatPlan, FormatProblem, FormatWay
from npusim.networks.plan.join_split import parts_of
from npusim.networks.plan.l2_lines import L2Lines, L2Traffic
from npusim.networks.plan.tasks import (
    FRACTAL,
    PLAIN,
    Placed,
    StoredValue,
    Task,
    conversion_task,
    formats_of,
    task,
)
from npusim.networks.rules.values import SLICE, VIEW, Operation, Training, Value
from npusim.networks.timed import Timed
from npusim.ops.blocked_gradients import FEW_CHANNELS
from npusim.problem.convolution import Convolution
from npusim.workloads import ConvLayer


class Times(Protocol):
    """Facts of kernels that a plan needs: their times, and how they take values."""

    @property
    def c0(self) -> int:
        """Channels of a block."""

    @property
    def fractals(self) -> bool:
        """Return whether weights of products are converted to fractals."""

    def as_product(self, operation: Operation, dtype: DType) -> bool:
        """Return whether plain operands of a convolution are multiplied as matrices."""

    def replaced(self, operation: Operation, dtype: DType) -> Convolution | None:
        """The convolution whose gradient is computed in place of that of a layer, None for it."""

    def all(self, tasks: Iterable[tuple[str, Task]]) -> None:
        """Work out the times of tasks that are not known."""

    def __getitem__(self, what: Task) -> Timed:
        """The time of a task."""


class Formats:
    """The ways of a step's operations, and what it costs to convert its values.

    ``as_framework`` has no ways in which a framework's kernels do not run: MindSpore registers its
    Slice for plain values alone (ops/_op_impl/tbe/slice.py; Concat and Split for blocks too), so
    that a concatenation of unequal parts has its gradient in plain maps, by conversions there and
    back.
    """

    def __init__(self, step: Training, times: Times, *, as_framework: bool = False) -> None:
        self.step = step
        self.times = times
        self.as_framework = as_framework
        #: What operations leave that take blocks of channels for the sake of numbers by channel.
        self.by_channel = {
            name
            for operation in step.operations
            if _by_channel(operation)
            for name in operation.writes
        }
        #: The formats of bits for which an operation leaves no choice.
        self.bits = self._settled()

    def ways(self, operation: Operation) -> list[dict[str, str]]:
        """The formats of all values of an operation, for each way to run it.

        Bits have the same format in all operations that use them, because no kernel converts them:
        where one of these takes only blocks, or only plain values, so do the others. Bits that are
        not settled in this way are plain in the first way of every operation that uses them, and in
        blocks in the last.
        """
        return _taking(self._possible(operation), self.bits)

    def _settled(self) -> dict[str, str]:
        """The formats of bits by name, of those for which an operation leaves no choice.

        What one operation settles may leave another no choice of its other bits, so that operations
        are asked until nothing new is settled.
        """
        users = []
        for operation in self.step.operations:
            used = (*operation.reads, *operation.writes)
            bits = [name for name in used if self.step.values[name].kind == "bits"]
            if bits:
                users.append((self._possible(operation), bits))
        settled: dict[str, str] = {}
        while True:
            before = len(settled)
            for ways, bits in users:
                first, *others = _taking(ways, settled)
                alike = (name for name in bits if all(way[name] == first[name] for way in others))
                settled |= {name: first[name] for name in alike}
            if len(settled) == before:
                return settled

    def _possible(self, operation: Operation) -> list[dict[str, str]]:
        """The ways of an operation by itself, whatever others do with its values."""
        names = tuple(dict.fromkeys((*operation.reads, *operation.outputs, *operation.writes)))
        values = {name: self.step.values[name] for name in names}
        several = {name: formats_of(value) for name, value in values.items()}
        plain = {name: formats[0] for name, formats in several.items()}
        blocked = plain | {
            name: formats[-1] for name, formats in several.items() if values[name].kind != "matrix"
        }
        parts = parts_of(operation, values)
        if parts is not None:
            registered = operation.core != SLICE or not self.as_framework
            in_blocks = registered and parts.in_blocks(self.times.c0)
            return [plain, blocked] if in_blocks else [plain]
        core = operation.core.removesuffix("_gradient")
        if core.startswith("convolution"):
            return self._ways_of_convolutions(operation, plain, blocked)
        if core in _BLOCKED or _by_channel(operation):
            return [blocked]
        weights = operation.inputs[1] if operation.core in _FRACTAL else ""
        if weights and values[weights].kind == "matrix" and self.times.fractals:
            return [plain, plain | {weights: FRACTAL}]
        return self._ways_of_elements(operation, values, plain, blocked)

    def _ways_of_convolutions(
        self, operation: Operation, plain: dict[str, str], blocked: dict[str, str]
    ) -> list[dict[str, str]]:
        """The ways of a convolution: of blocks of channels, unless operators compute it otherwise.

        Where plain operands are matrices they are multiplied. A single element of each channel lies
        much alike in both formats; other filters take several times as long in blocks. A gradient
        that is computed as that of another convolution has a plain map, and a plain filter where
        that changes too. Of few channels it is the only way.
        """
        dtype = self.step.values[operation.inputs[0]].dtype
        layer = operation.layer
        assert isinstance(layer, ConvLayer)
        if self.times.as_product(operation, dtype):
            return [plain] if prod(layer.kernel) > 1 else [plain, blocked]
        other = self.times.replaced(operation, dtype)
        if other is None:
            return [blocked]
        first, second = operation.inputs
        (result,) = operation.outputs
        if operation.core == "convolution.weight":
            plain_names = [first, result]
        elif other.cin != layer.cin:  # pixels are channels, of the filter too
            plain_names = [second, result]
        else:
            plain_names = [result]
        mixed = blocked | {name: plain[name] for name in plain_names}
        return [mixed] if layer.cin <= FEW_CHANNELS else [mixed, blocked]

    def _ways_of_elements(
        self,
        operation: Operation,
        values: Mapping[str, Value],
        plain: dict[str, str],
        blocked: dict[str, str],
    ) -> list[dict[str, str]]:
        """The ways of an operation that goes through its values element by element, or plain."""
        maps = {value.shape for value in values.values() if value.kind in ("map", "rows")}
        if operation.core:
            takes_plain = operation.core != "traffic"
        else:
            takes_plain = operation.chain is not None and operation.chain.by_row
        if takes_plain or len(maps) > 1 or values.keys() & {*self.step.inputs}:
            return [plain]  # blocks of other axes hold other elements; data are cast as they come
        if any(value.kind == "rows" for value in values.values()):
            bits = {name for name, value in values.items() if value.kind == "bits"}
            return [blocked if bits & self.by_channel else plain]  # they lie as they were left
        return [plain] if blocked == plain else [plain, blocked]

    def task(
        self, operation: Operation, formats: Mapping[str, str], warm: Collection[str] = ()
    ) -> Task:
        """The task of an operation."""
        return task(operation, self.step.values, formats, warm)

    def conversion(self, name: str, format: str, *, warm: bool = False) -> Task | None:
        """The task that converts a value, None where nothing does."""
        value = self.step.values[name]
        if len(formats_of(value)) < 2 or value.kind == "bits":
            return None
        return conversion_task(value, format, warm=warm)

    def us(self, operation: Operation, formats: Mapping[str, str]) -> float:
        """Microseconds of an operation, each time that it runs, in these formats."""
        if operation.core == VIEW:
            return 0.0
        return operation.count * self.times[self.task(operation, formats)].us

    def size(self, name: str, format: str) -> int:
        """Bytes of a value in a format, each time that it is there."""
        value = self.step.values[name]
        return value.repeats * Placed(value, format, self.times.c0).size_bytes

    def simulate(self, *, fixed: bool) -> None:
        """Simulate the ways of all operations, in processes if there are several.

        Conversions that the ways may need are simulated too: whether they do is asked later.
        """
        first = -1 if fixed else 0
        tasks: list[tuple[str, Task]] = []
        read: dict[StoredValue, None] = {}
        for operation in self.step.operations:
            for way in self.ways(operation)[first:]:
                read.update(dict.fromkeys(StoredValue(name, way[name]) for name in operation.reads))
                if operation.core != VIEW:
                    tasks.append((operation.name, self.task(operation, way)))
        for name, format in read:
            conversion = self.conversion(name, format)
            if conversion is not None:
                tasks.append((f"{name} to {format}", conversion))
        self.times.all(tasks)

    def cost(self, name: str, format: str) -> float | None:
        """Microseconds to convert a value to a format."""
        what = self.conversion(name, format)
        return None if what is None else self.step.values[name].repeats * self.times[what].us

    def possible(self, name: str, format: str) -> float | None:
        """Nothing to convert a value to a format; None where no kernel does."""
        return None if self.conversion(name, format) is None else 0.0


def _taking(ways: Sequence[dict[str, str]], bits: Mapping[str, str]) -> list[dict[str, str]]:
    """The ways that have ``bits``, those among their values, in these formats."""
    return [way for way in ways if all(way[name] == bits[name] for name in bits.keys() & way)]


#: Products whose matrix of weights lies in fractals where no load of rows makes these.
_FRACTAL = ("linear.output", "linear.input")


def _by_channel(operation: Operation) -> bool:
    """Return whether it is a chain with numbers for each channel."""
    chain = operation.chain
    return chain is not None and bool(chain.vectors or chain.sums) and not chain.by_row


#: Kernels of their own that read and write blocks of channels, as do those of their gradients.
_BLOCKED = ("max_pool", "avg_pool", "upsample", "interpolate")


class PlannedLaunch(NamedTuple):
    """A launch: an operation with the formats of its values, or a conversion of one.

    Plain ``views`` lie where the values lie that they are views of.
    """

    operation: Operation | None
    formats: Mapping[str, str]
    views: Mapping[str, str]
    value: str = ""
    home: str = ""
    format: str = ""

    @property
    def name(self) -> str:
        """The operation, or what is converted to which format."""
        return self.operation.name if self.operation else f"{self.value} to {self.format}"

    @property
    def is_view(self) -> bool:
        """Return whether nothing is launched: the operation has its operand with other axes."""
        return self.operation is not None and self.operation.core == VIEW

    @property
    def reads(self) -> list[StoredValue]:
        """The values that it reads, as they are stored."""
        op = self.operation
        read = [(n, self.formats[n]) for n in op.reads] if op else [(self.value, self.home)]
        return [
            StoredValue(self._home(name) if format == PLAIN else name, format)
            for name, format in read
        ]

    def _home(self, name: str) -> str:
        while name in self.views:
            name = self.views[name]
        return name

    @property
    def writes(self) -> list[StoredValue]:
        """The values that it writes, as they are stored."""
        if self.operation is None:
            return [StoredValue(self.value, self.format)]
        return [StoredValue(name, self.formats[name]) for name in self.operation.writes]


def each_call(step: Training, formats: Formats) -> Iterator[PlannedLaunch]:
    """The launches where every operation takes plain values and leaves plain ones.

    Bits that an operation makes or reads in blocks alone lie so, and all that use them take their
    other values in blocks too.
    """
    for operation in step.operations:
        way = formats.ways(operation)[0]
        for name in operation.reads:
            if way[name] != PLAIN and formats.conversion(name, way[name]):
                yield PlannedLaunch(None, {}, step.views, name, PLAIN, way[name])
        yield PlannedLaunch(operation, way, step.views)
        for name in operation.writes:
            if way[name] != PLAIN and formats.conversion(name, PLAIN):
                yield PlannedLaunch(None, {}, step.views, name, way[name], PLAIN)


def problem(step: Training, formats: Formats, *, fixed: bool, timed: bool = True) -> FormatProblem:
    """The choice of formats; ``fixed`` leaves each operation and parameter its blocked one.

    Where it is not ``timed`` nothing is simulated and nothing takes any time.
    Data come as frameworks have them; parameters and the optimizer's state may stay in any format
    between steps, but in the same one.
    """
    ways = []
    for operation in step.operations:
        possible = formats.ways(operation)
        ways.append(
            [
                FormatWay(
                    formats.us(operation, way) if timed else 0.0,
                    {name: way[name] for name in operation.reads},
                    {name: way[name] for name in operation.writes},
                )
                for way in (possible[-1:] if fixed else possible)
            ]
        )
    written = {name for operation in step.operations for name in operation.writes}
    outside: dict[str, Sequence[str]] = {}
    read = (name for operation in step.operations for name in operation.reads)
    for name in read:
        if name in written:
            continue
        several = formats_of(step.values[name])
        kind = step.values[name].kind
        usual = several[-1:] if kind == "weight" else several[:1]
        free = kind == "bits"  # they are drawn as they are read
        free |= kind == "weight" and not fixed
        free |= kind == "map" and name not in step.inputs  # a parameter that is read as a map
        outside[name] = several if free else usual
    pairs = [(old, new) for new, old in step.updates.items() if old in outside]
    return FormatProblem(ways, formats.cost if timed else formats.possible, outside, pairs)


def planned(
    step: Training, formats: Formats, plan: FormatPlan, *, fixed: bool
) -> Iterator[PlannedLaunch]:
    """The launches under a plan: a conversion just before the first operation that needs it."""
    waiting = {(conversion.value, conversion.format) for conversion in plan.conversions}
    for operation, number in zip(step.operations, plan.ways, strict=True):
        way = formats.ways(operation)[-1 if fixed else number]
        for name in operation.reads:
            if (name, way[name]) in waiting:
                waiting.discard((name, way[name]))
                yield PlannedLaunch(None, {}, step.views, name, plan.homes[name], way[name])
        yield PlannedLaunch(operation, way, step.views)


class LaunchTask(NamedTuple):
    """A launch, its task, the bytes of the values that it uses, and what they move of the L2."""

    launch: PlannedLaunch
    task: Task
    sizes: dict[StoredValue, int]
    l2: L2Traffic


def tasks(
    launches: Iterable[PlannedLaunch], formats: Formats, device: Device
) -> Iterator[LaunchTask]:
    """The launches with the task of each, after what the ones before left in the L2.

    A launch reads its operands one after another, then writes its results. Values lie where
    ``Addresses`` puts them.
    """
    computed = [(launch, launch.reads, launch.writes) for launch in launches if not launch.is_view]
    step = formats.step
    used = [(reads, writes) for _, reads, writes in computed]
    addresses = Addresses(used, step.updates, {*step.results})
    lines = L2Lines(device.l2)
    for number, (launch, reads, writes) in enumerate(computed):
        sizes = {stored: formats.size(*stored) for stored in (*reads, *writes)}
        warm = [
            lines.read(addresses.block(stored, sizes[stored]), sizes[stored]) for stored in reads
        ]
        for stored in writes:
            lines.write(addresses.block(stored, sizes[stored]), sizes[stored])
        for block in addresses.after(number):
            lines.unread(block)
        yield LaunchTask(launch, _task(launch, formats, warm), sizes, lines.moved())


def _task(launch: PlannedLaunch, formats: Formats, warm: Sequence[bool]) -> Task:
    """The task of a launch that finds those of its operands in the L2 that are ``warm``."""
    operation = launch.operation
    if operation is None:
        conversion = formats.conversion(launch.value, launch.format, warm=any(warm))
        assert conversion is not None
        return conversion
    names = [name for name, in_l2 in zip(operation.reads, warm, strict=True) if in_l2]
    return formats.task(operation, launch.formats, names)
