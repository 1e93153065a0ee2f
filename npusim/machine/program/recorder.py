"""The common ground of the kernel language: declared buffers, and checked instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar

from npusim.base.dtypes import DType
from npusim.base.errors import CapacityError, ProgramError
from npusim.base.integers import ceil_div, round_up
from npusim.machine.device.parts import MEMORY_ROLES, CoreKind, Memory, Path
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Instruction
from npusim.machine.isa.operands import Buffer, GmRegion, Region, SlotRegion, Tensor
from npusim.machine.program.units import BufferHandle, Units, kernel_line

#: Instructions that a task may have: they are some hundred megabytes.
MOST_INSTRUCTIONS = 200_000

T = TypeVar("T")


class Decision(NamedTuple):
    """What a kernel decided by the figures of a device, and how."""

    decide: Callable[..., Any]
    given: tuple[Any, ...]
    made: Any

    def holds(self, device: Device) -> bool:
        """True if it is the same on a device."""
        return bool(self.decide(device, *self.given) == self.made)


class Recorder(Units):
    """Collects the instructions of one task at a time for one kind of core."""

    def __init__(
        self,
        device: Device,
        kind: CoreKind,
        role: str = "",
        handles: list[BufferHandle] | None = None,
    ) -> None:
        super().__init__(handles)
        self._device = device
        self.device_seen = False  # whether the kernel looked at more than the structure
        self.anywhere = False  # whether operands in UB may begin at any byte
        self.looked: set[str] = set()  # figures on which it depends what was issued
        self.decisions: list[Decision] = []  # and what was decided by figures
        self.kind = kind
        self.role = role or kind.roles[0]  # that of the kernel for which the cores work

    # -- buffers ---------------------------------------------------------------------------

    def buffer(
        self,
        memory: str,
        shape: tuple[int, ...],
        dtype: DType | None,
        *,
        slots: int = 1,
        name: str = "",
        unit_flag: bool = False,
        own_banks: bool = False,
    ) -> BufferHandle:
        """Declare ``slots`` pieces of ``shape`` elements in a private memory of the core.

        Without a ``dtype`` they are bytes, which instructions may take for elements of any type.
        ``unit_flag`` (L0C) lets mmads and drains of a slot overlap, each following the other by
        pieces of 512 B; ``own_banks`` puts every slot into banks of its own. Raises
        ``CapacityError`` with the arithmetic when the memory cannot hold them.
        """
        memory = self._device.called(memory)
        if memory not in map(self._device.called, self.kind.memories):
            if memory in MEMORY_ROLES:
                self._device.memory(memory)  # no core of the device has it: say what would help
            have = ", ".join(self.kind.memories)
            raise ProgramError(
                f"core kind {self.kind.name!r} of {self._device.name} has no {memory} "
                f"(it has: {have})"
            )
        spec = self._device.memory(memory)
        size = prod(shape) * (dtype.bytes if dtype else 1)
        if size <= 0 or slots < 1:
            raise ProgramError(
                f"buffer {name or memory} has shape {shape} and {slots} slots; "
                "both must be at least 1"
            )
        if unit_flag:
            self._check_unit_flag(memory)
        align = spec.align_bytes
        index = len(self.handles)
        buffer = Buffer(
            name or f"{memory.lower()}_{index}",
            memory,
            ceil_div(size, align) * align,
            slots,
            index,
            unit_flag,
            own_banks,
            dtype,
            align,
        )
        self._check_capacity(buffer, spec)
        self.handles.append(BufferHandle(buffer))
        return self.handles[-1]

    def _check_capacity(self, buffer: Buffer, memory: Memory) -> None:
        """Raise ``CapacityError`` with the arithmetic if ``memory`` has no room for one more."""
        every = [*(handle.buffer for handle in self.handles), buffer]
        here = [b for b in every if b.memory == memory.called]
        used = sum(b.slots * b.slot_bytes for b in here)
        if not memory.has_room(used):
            room = memory.size_bytes
            terms = " + ".join(f"{b.name} {b.slots}x{b.slot_bytes}" for b in here)
            raise CapacityError(
                f"{self._device.name}: buffer {buffer.name}: {memory.called} holds {room} B but "
                f"{terms} = {used} B; use smaller tiles or fewer slots (over by {used - room} B)"
            )

    def _check_unit_flag(self, memory: str) -> None:
        cube = self._device.cube
        if memory != "L0C":
            raise ProgramError(f"a buffer in {memory} has no unit flag; only those in L0C have")
        if cube is None or not cube.unit_flag or not self.has_path("L0C", "GM"):
            raise ProgramError(f"{self._device.name} has no unit flag; declare L0C without it")

    @property
    def device(self) -> Device:
        """The device with all its figures.

        A kernel that looks at it is built again for every variant; what ``memory``, ``has_path``,
        ``dtypes`` and ``device_name`` tell does not depend on figures that only cost time, and what
        is ``decided`` seldom does.
        """
        self.device_seen = True
        return self._device

    def decided(self, decide: Callable[..., T], *given: Any) -> T:
        """What a function of the device, and of what else is given, says: a number or the like.

        The kernel is built again for variants of which it says something else.
        """
        made = decide(self._device, *given)
        self.decisions.append(Decision(decide, given, made))
        return made

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the element types the device knows."""
        return self._device.dtypes

    @property
    def device_name(self) -> str:
        """Name of the device, for errors."""
        return self._device.name

    def memory(self, name: str) -> Memory:
        """Size and alignment of a private memory; ``ArgumentError`` where there is none."""
        return self._device.memory(name)

    def has_path(self, src: str, dst: str, variant: str = "") -> bool:
        """True if this kind of core can make the move."""
        return self._device.has_path(src, dst, variant)

    def pipe_of(self, src: str, dst: str) -> str:
        """Name of the pipe that makes the plain move, for flags."""
        return self._device.path(src, dst).pipe

    def _cycles(self, instructions: Sequence[Instruction]) -> int:
        """Cycles of instructions that may be issued; the program rests on the figures behind."""
        self.looked.update(name for i in instructions for name in i.figures())
        return sum(i.cost(self._device).cycles for i in instructions)

    def _path(self, src: str, dst: str, variant: str = "") -> Path:
        return self._device.path(src, dst, variant)

    def _issue(self, instruction: Instruction) -> None:
        facts = instruction.facts()
        if facts.pipe not in self.kind.pipes:
            have = ", ".join(self.kind.pipes)
            raise ProgramError(
                f"{instruction} runs on pipe {facts.pipe}, which core kind "
                f"{self.kind.name!r} of {self._device.name} lacks (it has: {have})"
            )
        instruction.check(self._device)
        for region in facts.reads:
            if isinstance(region, SlotRegion):
                self._check_slot(instruction, region)
        for region in facts.writes:
            if isinstance(region, SlotRegion):
                self._check_slot(instruction, region)
            else:
                _check_role(instruction, region)
        for region, dtype in instruction.typed(facts):
            holder = region.slot.buffer if isinstance(region, SlotRegion) else region.tensor
            if holder.dtype is not dtype and holder.dtype is not None:
                raise _other_type(instruction, region, holder, dtype)
        if self._issued == MOST_INSTRUCTIONS:
            raise ProgramError(
                f"{MOST_INSTRUCTIONS:,} instructions in one task; a loop of emit may not end, or "
                "the work is to be cut into more tasks"
            )
        self._issued += 1
        self.instructions.append(instruction)
        self.facts.append(facts)
        self.lines.append(kernel_line())

    def _check_slot(self, instruction: Instruction, region: SlotRegion) -> None:
        """Raise unless a slot is there still, and the operand in it begins where one may."""
        slot = region.slot
        buffer = slot.buffer
        handle = self.handles[buffer.index]
        age = handle.turns - 1 - slot.turn if slot.task >= handle.began else -1
        if not 0 <= age < buffer.slots:
            raise _stale(region, age)
        if slot.task < handle.task:
            self._use(region)
        grain = instruction.begins.get(buffer.memory, buffer.align)
        apart = instruction.row_step(region)
        if region.offset % grain == 0 == apart % grain or (self.anywhere and buffer.memory == "UB"):
            return
        where = f"has rows {apart} B apart"
        if region.offset % grain:
            where = f"begins at byte {region.offset}"
        raise ProgramError(
            f"{instruction}: {region} {where}; operands of {instruction.op} in {region.memory} of "
            f"{self._device.name}, and their rows, begin at multiples of {grain} B: lay it out at "
            f"byte {round_up(region.offset, grain)}"
            + (f" with rows {round_up(apart, grain)} B apart" if apart else "")
            + ", or in a buffer of its own"
        )


def _stale(region: SlotRegion, age: int) -> ProgramError:
    """The error for a slot that was taken ``age`` turns before the last one of its buffer."""
    buffer = region.slot.buffer
    if age < 0:
        return ProgramError(
            f"{region} belongs to another task; take slots with next() or last() where used"
        )
    turns = age - buffer.slots + 1
    return ProgramError(
        f"{region} was overwritten {turns} turn{'s' * (turns > 1)} ago: "
        f"{buffer.name} has {buffer.slots} slots; use it earlier or declare more"
    )


def _check_role(instruction: Instruction, region: GmRegion) -> None:
    """Raise if what is written is only read."""
    if region.tensor.role == "in":
        raise ProgramError(
            f"{instruction} writes {region.tensor.name}, a tensor of role 'in'; give it "
            "the role 'out', or 'inout' if the kernel also reads it"
        )


def _other_type(
    instruction: Instruction, region: Region, holder: Tensor | Buffer, dtype: DType
) -> ProgramError:
    """The error for an operand that holds elements of another type than is named."""
    if isinstance(region, GmRegion):
        return ProgramError(
            f"{instruction} moves {dtype}, {holder.name} holds {holder.dtype}; name the tensor's "
            "type, and convert in a buffer (vec_cast)"
        )
    return ProgramError(
        f"{instruction} takes {region} for {dtype}, buffer {holder.name} holds {holder.dtype}; "
        "name that type, convert with vec_cast, or declare the buffer without a type if it holds "
        "bytes"
    )
