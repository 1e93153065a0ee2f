"""Programs of this process, taken over where the figures that building them read are the same."""

from __future__ import annotations

from npusim.base.digests import code_of, content_of
from npusim.machine.device.spec import Device
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.program import Program
from npusim.machine.program.recost import structure
from npusim.reuse.answers import Answers
from npusim.reuse.tracked_device import TrackedDevice, names_of

#: Instructions above which a program is long.
_LONG = 50_000

#: Programs that are not long, and the latest long ones. A step launches what its plan chooses with
#: another L2 than the candidates had, after all of them: a network of 300 operations has some 800,
#: of 35 KB each.
PROGRAMS: Answers[Program] = Answers("program", 4096)
LONG_PROGRAMS: Answers[Program] = Answers("long program", 32)


def content(kernel: Kernel) -> str | None:
    """All that a kernel's program depends on besides the device, as text.

    None where it is not known: of kernels that are no part of npusim, and of fields that hold
    other things than numbers, words and records of them.
    """
    try:
        return f"{content_of(kernel)} {code_of(type(kernel))}"
    except TypeError:
        return None


def program_of(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """The program of a kernel, whose device notes figures as that of ``TrackedDevice`` does.

    One of the latest that were built is taken over where it would be built alike, as in the launch
    that follows a choice. Raises as ``npusim.machine.program.build.build`` does.
    """
    text = content(kernel)
    if text is None:
        return build(kernel, TrackedDevice(device).device, groups)
    key = f"{groups} {text}"
    stored = PROGRAMS.find(key, device) or LONG_PROGRAMS.find(key, device)
    if stored is None:
        program = build(kernel, TrackedDevice(device).device, groups)
        answers = LONG_PROGRAMS if program.instructions > _LONG else PROGRAMS
        answers.keep(key, device, names_of(program.device), program)
        return program
    return stored.answer.on(TrackedDevice(device, stored.names).device)


def varied_program_of(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """As ``program_of``, for a device that notes nothing, whose variants are to be timed.

    They have programs that are made of this one (``npusim.machine.program.recost``).
    """
    program = program_of(kernel, device, groups)
    # Its structure is one of parts that note what is read, which equal no others.
    known = program.structure is not None
    return program.on(device, structure(device, kernel.roles) if known else None)
