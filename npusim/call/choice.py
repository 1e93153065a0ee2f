"""Automatic tilings: the best simulated one of those that closed forms hold to be fastest.

What was chosen is kept in memory by content, so that the same kernel on the same machine is
chosen for once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar, cast

from npusim.device.spec import Device
from npusim.errors import CapacityError
from npusim.program.build import build, lay_out
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.timing.run import new_l2, time_program

K = TypeVar("K", bound=Kernel)

#: Kernels that are launched for the sake of one: itself, and others before and after it.
Launches = Callable[[K], Sequence[Kernel]]

#: Candidates that are simulated at most, and instructions of all of them; building an instruction
#: that tasks do not share takes as long as simulating so many.
MOST_SIMULATED = 8
MOST_INSTRUCTIONS = 2_000_000
BUILD_WEIGHT = 50

#: The simulated time of one in twenty candidates is below this part of its estimate: later ones
#: whose estimate is so much longer than the best time found are not simulated.
OPTIMISM = 0.92


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
    best: tuple[float, K] | None = None
    failed: CapacityError | None = None
    left = MOST_INSTRUCTIONS
    for estimate, one in kernel.ranked(device, cores, MOST_SIMULATED):
        if best is not None and (left < 0 or estimate * OPTIMISM > best[0]):
            break
        candidate = cast(K, one)
        try:
            if not simulated:
                lay_out(candidate, device, groups)
                return candidate
            programs = [build(launch, device, groups) for launch in around(candidate)]
        except CapacityError as error:  # closed forms do not see every byte
            failed = error
            continue
        left -= sum(program.instructions for program in programs)
        left -= sum(BUILD_WEIGHT * len(t.instructions) for p in programs for t in p.templates)
        cycles = _cycles(programs, device, warm) if left >= 0 else estimate
        if best is None or cycles < best[0]:
            best = (cycles, candidate)
    if best is None:
        raise failed or CapacityError(f"{kernel.name}: no tiling fits {device.name}")
    return best[1]


def _cycles(programs: Sequence[Program], device: Device, warm: tuple[str, ...]) -> int:
    """Simulated cycles of some programs one after another, launches included."""
    l2 = new_l2(device, "fast")
    for tensor in {t.name: t for program in programs for t in program.tensors}.values():
        if tensor.name in warm and tensor.size_bytes:
            l2.preload(tensor.name, tensor.size_bytes)
    runs = [time_program(program, l2, timeline=False) for program in programs]
    return sum(run.cycles + run.launch_cycles for run in runs)
