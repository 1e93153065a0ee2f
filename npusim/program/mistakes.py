"""What is wrong with a program that a device can run; looked for where numbers are computed."""

from __future__ import annotations

from npusim.program.accesses import Accesses
from npusim.program.program import Program
from npusim.program.races import check_races
from npusim.program.written import check_elements, check_outputs, check_slots


def check_mistakes(program: Program, whole: str | None = None) -> None:
    """Raise ``ProgramError`` for the first mistake of a program whose accesses lie in its tensors.

    With ``whole``, where the kernel stands (``file.py:line: ``), it has to write all its outputs.
    """
    accesses = Accesses(program)
    check_slots(program)
    check_elements(accesses)
    check_races(accesses)
    if whole is not None:
        check_outputs(accesses, whole)
