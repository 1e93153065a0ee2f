"""The tilings a kernel can have on a device: which there are, and what memory each takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, TypeVar, cast

from msgspec import Struct

from npusim.base.errors import ArgumentError, CapacityError, ProgramError
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.program.build import lay_out
from npusim.program.kernel import Kernel
from npusim.program.language import Language

K = TypeVar("K", bound=Kernel)


class Fit(Struct, frozen=True):
    """Whether a kernel fits a device: bytes of its buffers by memory, or the reason why not.

    ``sizes`` are those of the memories. True where it fits.
    """

    bytes: dict[str, int]
    sizes: dict[str, int]
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    @property
    def share(self) -> dict[str, float]:
        """How much of each memory the buffers take, 0 to 1."""
        return {name: self.bytes[name] / self.sizes[name] for name in self.bytes}


def is_tunable(kind: type[Kernel]) -> bool:
    """Whether kernels of a kind have candidates of their own."""
    return bool(kind.choices) or kind.candidates is not Kernel.candidates


def candidates(kernel: K, device: str | Device, cores: int | None = None) -> Iterator[K]:
    """The legal tilings of a kernel: the same kernel with each, none that runs like another.

    ``cores`` are the cores it may use, all of its role by default.
    """
    machine = load_device(device)
    seen = set()
    for one in kernel.candidates(machine, cores or machine.count(kernel.role)):
        if fits(one, machine) and (alike := one.clipped) not in seen:
            seen.add(alike)
            yield cast(K, one)


def changes(kernel: Kernel, candidate: Kernel) -> dict[str, Any]:
    """The fields in which a candidate differs from the kernel."""
    names = [f.name for f in fields(candidate)]  # type: ignore[arg-type]
    values = {name: (getattr(kernel, name), getattr(candidate, name)) for name in names}
    return {name: new for name, (old, new) in values.items() if new != old}


def fits(kernel: Kernel, device: str | Device, *, issued: bool = True) -> Fit:
    """What a kernel's buffers take of the memories of a core, and whether the device can run it.

    ``reason`` is that of the kernel, of a memory too small, or of an instruction: the last only
    where these are ``issued``, which takes most of the time.
    """
    machine = load_device(device)
    k, reason = Language(machine, machine.core_kind(kernel.role), kernel.role), ""
    try:
        lay_out(kernel, machine, tuple(range(machine.groups)), k, issued=issued)
    except (ArgumentError, CapacityError, ProgramError) as error:
        reason = str(error)
    used: dict[str, int] = {}
    for handle in k.handles:
        memory = handle.buffer.memory
        used[memory] = used.get(memory, 0) + handle.buffer.slots * handle.buffer.slot_bytes
    return Fit(used, {name: machine.memory(name).size_bytes for name in used}, reason)
