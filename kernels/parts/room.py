"""How large the pieces of a vector kernel may be in the UB of a device."""

from __future__ import annotations

from npusim.language import CapacityError, Language, round_down


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
    memory, least = k.memory("UB"), max(least, multiple)
    fit = round_down(min(most, (memory.size_bytes - besides) // each), multiple)
    if fit < min(least, most):
        raise CapacityError(
            f"{kernel}: {k.device_name} has {memory.size_bytes} B of UB "
            f"(memories.{memory.name}.size), the smallest piece takes {least * each + besides} B; "
            "use a device with a larger UB"
        )
    return fit
