"""Buffers of vector kernels in UB, and the largest pieces of work that a device has room for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from npusim.language import (
    BLOCK_BYTES,
    BufferHandle,
    CapacityError,
    DType,
    Language,
    SlotRegion,
    round_down,
    round_up,
)

#: Elements of a step of the library are whole repeats of the vector unit in fp16.
_REPEAT = 128


def library_step(ub_bytes: int, width: int) -> int:
    """Elements of a step of the vendor library's vector kernels, of a UB of so many bytes.

    Half of UB is for a second step, whether or not a kernel has one. Of the other half an element
    takes ``width`` numbers of 16 bits. Source: the schedules of the library's tensor compiler (CANN
    8.1, tbe/dsl/static_schedule: elewise_schedule.py, elewise_schedule_new.py).
    """
    return max(_REPEAT, round_down(ub_bytes // 2 // 2 // width, _REPEAT))


class UbBuffer(NamedTuple):
    """A buffer in UB: so many elements of a type (None: bytes) in each slot, and slots."""

    dtype: DType | None
    elements: int
    slots: int = 1

    @property
    def size(self) -> int:
        """Bytes it takes, each slot from a block on."""
        each = self.elements * (self.dtype.bytes if self.dtype else 1)
        return self.slots * round_up(each, BLOCK_BYTES)


def declare(
    k: Language, buffers: Mapping[str, UbBuffer], times: int = 1
) -> dict[str, BufferHandle]:
    """Buffers in UB by name, each of so many ``times`` its elements."""
    return {
        name: k.buffer(
            "UB",
            (times * buffer.elements,),
            buffer.dtype,
            slots=buffer.slots,
            name=f"{name}_ub",
        )
        for name, buffer in buffers.items()
    }


def converted(
    k: Language,
    region: SlotRegion,
    dtype: DType,
    to: DType,
    buffer: BufferHandle | None,
    *,
    saturate: bool = False,
) -> SlotRegion:
    """The elements of a region as type ``to``, in the next slot of a buffer.

    The region itself where there is no buffer, as the types are one.
    """
    if buffer is None:
        return region
    target = buffer.next().at(0, region.size // dtype.bytes * to.bytes)
    k.vec_cast(target, region, dtype, to, saturate=saturate)
    return target


def piece(
    k: Language,
    kernel: str,
    most: int,
    each: int,
    *,
    multiple: int = 1,
    least: int = 0,
    besides: int = 0,
) -> int:
    """Elements of the largest piece, at most ``most``, of which one takes ``each`` bytes of UB.

    ``each`` counts all slots of all buffers that hold the piece; ``besides`` is what others take.
    A piece is a ``multiple`` of elements, at least ``least``. Raises ``CapacityError`` where not
    even the smallest fits.
    """
    memory = k.memory("UB")
    least = max(least, multiple)
    fit = round_down(min(most, (memory.size_bytes - besides) // each), multiple)
    if fit < min(least, most):
        raise CapacityError(
            f"{kernel}: {k.device_name} has {memory.size_bytes} B of UB "
            f"(memories.{memory.name}.size), the smallest piece takes {least * each + besides} B; "
            "use a device with a larger UB"
        )
    return fit
