"""Automatic tilings: the best simulated one of those that closed forms hold to be fastest.

What was chosen is kept in memory by content, so that the same kernel on the same machine is
chosen for once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import fields, is_dataclass
from math import log2
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from npusim.device.spec import Device
from npusim.errors import CapacityError
from npusim.program.build import build, lay_out
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.timing.run import new_l2, time_program

K = TypeVar("K", bound=Kernel)

#: Kernels that are launched for the sake of one: itself, and others before and after it.
Launches = Callable[[K], Sequence[Kernel]]

#: Candidates that are looked at, and simulated of them at most; instructions of all of these, where
#: building one that tasks do not share takes as long as simulating so many.
MOST_LEADING = 16
MOST_SIMULATED = 8
MOST_INSTRUCTIONS = 1_000_000
BUILD_WEIGHT = 50

#: A candidate is simulated if it is expected to take less than this part of the best time found.
WORTHWHILE = 0.99

#: How fast likeness fades: two tilings are alike by exp(-FADING) if one size is twice the other's
#: or one switch is set differently.
FADING = 0.5


class Kept:
    """The latest choices, by what they depend on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: OrderedDict[Hashable, Kernel] = OrderedDict()

    def get(self, key: Hashable) -> Kernel | None:
        """What was chosen, if it is still kept."""
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def put(self, key: Hashable, kernel: Kernel) -> None:
        """Keep a choice; the one not asked for longest makes room."""
        self._found[key] = kernel
        while len(self._found) > self.most:
            self._found.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()


#: Choices made by this process.
KEPT = Kept(4096)

#: Programs of the latest choice, by kernel, device and groups: it is launched next as a rule.
_built: dict[Hashable, Program] = {}


def program_of(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """The program of a kernel; one that was built to choose it is handed on, once.

    Raises as ``build`` does.
    """
    return _built.pop((kernel, device.digest(), groups), None) or build(kernel, device, groups)


def chosen(
    kernel: K,
    device: Device,
    groups: tuple[int, ...],
    *,
    warm: Collection[str] = (),
    launches: Launches[K] | None = None,
    simulated: bool = True,
) -> K:
    """``kernel`` with its best tiling for the cores of ``groups``; the one it has is not looked at.

    ``warm`` names the tensors that the L2 is taken to hold. ``launches`` are what a candidate has
    to launch, by default itself and what goes ``before`` it; their time with launches counts. Of
    equal times the better estimate wins. Where nothing is ``simulated`` it is the best estimate,
    unless a choice was kept. Raises ``CapacityError`` if no tiling fits the device.
    """
    around = launches or (lambda one: (*one.before, one))
    held = tuple(sorted(t.name for t in kernel.tensors if t.name in warm))
    key = (kernel, device.digest(), groups, held)
    found = KEPT.get(key)
    if found is None:
        found = _best(kernel, device, groups, held, around, simulated=simulated)
        if simulated:
            KEPT.put(key, found)
    return cast(K, found)


def _best(
    kernel: K,
    device: Device,
    groups: tuple[int, ...],
    warm: tuple[str, ...],
    around: Launches[K],
    *,
    simulated: bool,
) -> K:
    cores = len(groups) * device.core_kind(kernel.role).per_group
    ranked = kernel.ranked(device, cores, MOST_LEADING)
    outlook = _Outlook([time for time, _ in ranked], [one for _, one in ranked])
    best: tuple[float, K] | None = None
    _built.clear()
    failed: CapacityError | None = None
    left, runs = MOST_INSTRUCTIONS, 0
    while runs < MOST_SIMULATED and (at := outlook.first) is not None:
        if best is not None and (left < 0 or outlook.expected[at] >= WORTHWHILE * best[0]):
            break
        candidate = cast(K, ranked[at][1])
        try:
            if not simulated:
                lay_out(candidate, device, groups)
                return candidate
            programs = [build(launch, device, groups) for launch in around(candidate)]
        except CapacityError as error:  # closed forms do not see every byte
            failed = error
            outlook.leave_out(at)
            continue
        left, runs = left - sum(program.instructions for program in programs), runs + 1
        left -= sum(BUILD_WEIGHT * len(t.instructions) for p in programs for t in p.templates)
        cycles = _cycles(programs, device, warm) if left >= 0 else ranked[at][0]
        outlook.learn(at, cycles)
        if best is None or cycles < best[0]:
            best = (cycles, candidate)
            _built.clear()
            for launch, program in zip(around(candidate), programs, strict=True):
                _built[launch, device.digest(), groups] = program
    if best is None:
        raise failed or CapacityError(f"{kernel.name}: no tiling fits {device.name}")
    return best[1]


class _Outlook:
    """What candidates are expected to take: their estimates, as far out as those of like ones.

    ``expected`` are cycles, infinite for what was tried.
    """

    def __init__(self, estimates: Sequence[float], candidates: Sequence[Kernel]) -> None:
        self.estimates = np.array(estimates, np.float64)
        self.expected = self.estimates.copy()
        self._tried = np.zeros(len(candidates), np.bool_)
        self._places = _places([getattr(one, "tiling", None) for one in candidates])
        self._likeness = np.zeros(len(candidates))  # to all that were simulated, in sum
        self._errors = np.zeros(len(candidates))  # logarithms, by likeness

    @property
    def first(self) -> int | None:
        """The candidate that is expected to be the fastest, if one is left."""
        if self._tried.all():
            return None
        return int(np.argmin(self.expected))

    def leave_out(self, at: int) -> None:
        """Candidate ``at`` does not run."""
        self._tried[at] = True
        self.expected[at] = np.inf

    def learn(self, at: int, cycles: float) -> None:
        """Candidate ``at`` takes so many cycles; like ones are as far from their estimates."""
        apart = ((self._places - self._places[at]) ** 2).sum(axis=1)
        likeness = np.exp(-FADING * apart)
        self._likeness += likeness
        self._errors += likeness * np.log(cycles / self.estimates[at])
        # The mean of what was found, as far as there is anything alike.
        error = self._errors / np.maximum(1.0, self._likeness)
        self.expected = self.estimates * np.exp(error)
        self._tried[at] = True
        self.expected[self._tried] = np.inf


def _places(tilings: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Where tilings are in a space in which twice a size and one switch are at distance one.

    Words are switches, and so are numbers that may be 0, which stands for something else.
    """
    columns = []
    for field in fields(tilings[0]) if is_dataclass(tilings[0]) else ():
        values = [getattr(tiling, field.name) for tiling in tilings]
        if isinstance(values[0], str):
            columns.append([float(value != values[0]) for value in values])
        elif min(values) == 0:
            columns.append([float(value > 0) for value in values])
        else:
            columns.append([log2(value) for value in values])
    return np.array(columns, np.float64).reshape(-1, len(tilings)).T


def _cycles(programs: Sequence[Program], device: Device, warm: tuple[str, ...]) -> int:
    """Simulated cycles of some programs one after another, launches included."""
    l2 = new_l2(device, "fast")
    for tensor in {t.name: t for program in programs for t in program.tensors}.values():
        if tensor.name in warm and tensor.size_bytes:
            l2.preload(tensor.name, tensor.size_bytes)
    runs = [time_program(program, l2, timeline=False) for program in programs]
    return sum(run.cycles + run.launch_cycles for run in runs)
