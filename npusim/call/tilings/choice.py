"""Automatic tilings: the best simulated one of those that closed forms hold to be fastest.

Closed forms err alike for tilings that are alike, so that a second one of these says little. What
is simulated are the best estimates of tilings that are not.

What was chosen is kept by what it depends on (``npusim.reuse.answers``): the kernel, and the
figures of the device that closed forms and simulations asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import islice
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar, cast

from npusim.base.digests import look_again
from npusim.base.errors import CapacityError
from npusim.base.records import growing, replace
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import changes, lay_out
from npusim.machine.program.kernel import Kernel
from npusim.machine.timing.run import new_l2, time_cycles
from npusim.machine.timing.trace import are_usual
from npusim.reuse.answers import Answers
from npusim.reuse.programs import content, program_of
from npusim.reuse.tracked_device import Name, TrackedDevice, names_of

K = TypeVar("K", bound=Kernel)

#: Kernels that are launched for the sake of one: itself, and others before and after it.
Around = Callable[[K], Sequence[Kernel]]

#: Candidates that are looked at; up to so many are simulated, while the next estimate is less than
#: the best time. To simulate three in any case took twice as long for 0.1 % of these times, and up
#: to eight a tenth longer for 0.01 % (configs/silicon/notes/tilings.md).
MOST_LEADING, MOST_SIMULATED = 32, 6

#: Leaders of lesser machines are simulated while their estimate is less than so many times the best
#: time, or the best estimate. To 1.06 it took a third more simulations of products for 0.1 %.
LESSER_MARGIN = 1.02

#: Instructions of all candidates at most, and those that any choice may take after its first; a
#: first one that has more may be followed by so many times its own. Building an instruction that
#: tasks do not share takes as long as simulating so many.
MOST_INSTRUCTIONS, FREE_INSTRUCTIONS, TIMES_FIRST = 2_000_000, 200_000, 2
BUILD_WEIGHT = 50

#: Tilings that differ in no other fields than these, and in numbers of slots, are alike. More of
#: them, or fewer fields, made gradients of ResNet-50, VGG-16 and MobileNet v2 slower on average.
#: With products that differ in their slabs alone simulated too, two of six were up to 5 % slower on
#: a larger machine.
ALIKE = ("base_k", "unit_flag", "step_ka", "step_kb")

#: Choices of this process, as the fields of a tiling by name.
CHOICES: Answers[dict[str, Any]] = Answers("choice", 4096, dict, dict)

#: Instructions that candidates took, with those beside them, and their cycles: no rows are made.
TRIED: Answers[list[int]] = Answers("tried", 4096, list, list)


def chosen(
    kernel: K,
    device: Device,
    groups: tuple[int, ...],
    *,
    warm: Collection[str] = (),
    launches: Around[K] | None = None,
    simulated: bool = True,
) -> K:
    """``kernel`` with its best tiling for the cores of ``groups``; the one it has is not looked at.

    ``warm`` names the tensors that the L2 is taken to hold. ``launches`` are what a candidate has
    to launch, by default itself and what goes ``before`` it; their time with launches counts. Of
    equal times the better estimate wins. Where nothing is ``simulated`` it is the best estimate,
    unless a choice was kept. Raises ``CapacityError`` if no tiling fits the device.
    """
    look_again()
    around = launches or _with_before
    held = tuple((t.name, t.size_bytes) for t in _by_name(kernel) if t.name in warm)
    key = _key(kernel, around, groups, held)
    found = CHOICES.find(key, device) if key is not None else None
    if found is not None:
        return _with(kernel, found.answer)
    trial = _Trial(device, groups, held)
    best = _best(kernel, trial, around, simulated=simulated)
    if simulated and key is not None:
        new = changes(kernel, best).items()
        tiled = {name: asdict(cast(Any, one)) for name, one in new if is_dataclass(one)}
        kept = dict(new) | tiled
        CHOICES.keep(key, device, trial.names, kept)
    return best


def _by_name(kernel: Kernel) -> list[Tensor]:
    """The tensors of a kernel in the order of their names."""
    return sorted(kernel.tensors, key=lambda tensor: tensor.name)


def _with_before(kernel: Kernel) -> Sequence[Kernel]:
    return (*kernel.before, kernel)


def _key(
    kernel: K, around: Around[K], groups: tuple[int, ...], held: Sequence[tuple[str, int]]
) -> str | None:
    """All that a choice depends on besides the device; None where it is not known."""
    what, rule = content(kernel), f"{around.__module__}.{around.__qualname__}"
    if what is None or "<" in rule:  # a function of a function may depend on more
        return None
    return hashlib.sha256(f"{what} {rule} {groups} {held}".encode()).hexdigest()[:32]


def _with(kernel: K, kept: dict[str, Any]) -> K:
    """``kernel`` with the changes of a choice."""
    values = {
        name: type(getattr(kernel, name))(**new) if isinstance(new, dict) else new
        for name, new in kept.items()
    }
    return replace(kernel, **values)


class _Trial:
    """Candidates timed on a device, and the figures that what came out rests on."""

    def __init__(
        self, device: Device, groups: tuple[int, ...], warm: Sequence[tuple[str, int]]
    ) -> None:
        self.device, self.groups, self._warm = device, groups, warm
        self._seen = TrackedDevice(device)
        self._names: frozenset[Name] = frozenset()

    @property
    def names(self) -> frozenset[Name]:
        """The figures behind what was told so far."""
        return self._names | self._seen.names

    @property
    def watched(self) -> Device:
        """The device, which notes what it is asked for."""
        return self._seen.device

    def contenders(
        self, kernel: Kernel, few: int
    ) -> tuple[Iterable[tuple[float, Kernel]], Iterable[tuple[float, Kernel]]]:
        """The candidates that closed forms hold to be the fastest, here and on lesser machines."""
        watched = self._seen.device
        cores = len(self.groups) * watched.core_kind(kernel.role).per_group
        return kernel.contenders(watched, cores, few, [name for name, _ in self._warm])

    def laid_out(self, kernel: Kernel) -> _Tried:
        """As of work that is too much to time; raises ``CapacityError`` where buffers have no room.

        What else may be wrong is found as the kernel is launched, which issues its tasks.
        """
        lay_out(kernel, self._seen.device, self.groups, issued=False)
        return _Tried(MOST_INSTRUCTIONS + 1, None)

    def run(self, kernels: Sequence[Kernel], left: int) -> _Tried:
        """Build kernels that are launched one after another; time them where work is ``left``.

        Vector ones run on the cores on which they end first, as a call launches them. Of such that
        were timed before nothing is built. Raises as ``build`` does.
        """
        watched, groups = self._seen.device, len(self.groups)
        kernels = [
            one.on_few(watched, groups * watched.core_kind(one.role).per_group) for one in kernels
        ]
        told = [content(kernel) for kernel in kernels] if are_usual() else [None]
        key = f"{self.groups} {self._warm} {told}" if None not in told else ""
        known = TRIED.find(key, self.device) if key else None
        if known is not None:
            self._names |= known.names
            work, cycles = known.answer
            return _Tried(work, cycles if work <= left else None)
        programs = [program_of(kernel, self.device, self.groups) for kernel in kernels]
        work = sum(one.instructions + BUILD_WEIGHT * one.emitted for one in programs)
        held = TrackedDevice(self.device)
        made: int | None = None
        if work <= left:
            l2 = new_l2(held.device, "fast")
            for name, size in self._warm:
                l2.preload(name, size)
            made = sum(time_cycles(program, l2) for program in programs)
        names = held.names.union(*(names_of(program.device) for program in programs))
        self._names |= names
        if key and made is not None:
            TRIED.keep(key, self.device, names, [work, made])
        return _Tried(work, made)


def fastest(
    plans: Sequence[Sequence[Kernel]], device: Device, groups: tuple[int, ...]
) -> Sequence[Kernel]:
    """The plan whose kernels, launched one after another, take the least simulated time.

    Plans do the same work; of equal times the earlier plan wins. A plan that has no room on the
    device is passed over; raises its ``CapacityError`` where no plan has.
    """
    trial = _Trial(device, groups, ())
    best, least = None, inf
    failed: CapacityError | None = None
    for plan in plans:
        try:
            tried = trial.run(plan, MOST_INSTRUCTIONS)
        except CapacityError as error:
            failed = error
            continue
        cycles = inf if tried.cycles is None else tried.cycles
        if best is None or cycles < least:
            best, least = plan, cycles
    if best is None:
        raise failed or CapacityError("there is no plan to choose from")
    return best


class _Tried(NamedTuple):
    """What it took to build and time some kernels, and their cycles.

    ``work`` counts instructions; ``cycles`` are None where this was too much to time them.
    """

    work: int
    cycles: int | None


class _Search(Generic[K]):
    """Candidates that are simulated one after another, and the best so far.

    ``time`` are its cycles, infinite before the first; ``failed`` is the error of one that has no
    room.
    """

    def __init__(self, trial: _Trial, around: Around[K], *, simulated: bool, every: bool) -> None:
        self._every = every  # what a tiling is held for depends on no other one
        self._trial, self._around, self._simulated = trial, around, simulated
        self._left, self._over = MOST_INSTRUCTIONS, False
        self._kernels: list[K] = []
        self._shapes: set[Hashable] = set()
        self.best: K | None = None
        self.time = inf
        self.failed: CapacityError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be looked at."""
        most = len(self._kernels) == MOST_SIMULATED and not self._every
        many = most or self._left < 0
        return self._over or (many and self.best is not None)

    @property
    def has_room(self) -> bool:
        """Whether instructions are left for one more."""
        return not self._over and self._left >= 0

    def has(self, candidate: K) -> bool:
        """Whether this very candidate was looked at."""
        return candidate in self._kernels

    def has_alike(self, candidate: K) -> bool:
        """Whether one was that is alike."""
        return _shape(candidate) in self._shapes

    def look_at(self, estimate: float, candidate: K) -> None:
        """Simulate a candidate, where this is not too much work."""
        trial, kernels = self._trial, self._around(candidate)
        try:
            tried = trial.run(kernels, self._left) if self._simulated else trial.laid_out(candidate)
        except CapacityError as error:  # closed forms do not see every byte
            self.failed = error
            return
        if not self._every:
            self._left -= tried.work
            if not self._kernels:
                self._left = min(self._left, max(FREE_INSTRUCTIONS, TIMES_FIRST * tried.work))
        self._kernels.append(candidate)
        self._shapes.add(_shape(candidate))
        if tried.cycles is None and self.best is not None:
            self._over = True  # an estimate says nothing against times of others
            return
        cycles = estimate if tried.cycles is None else tried.cycles
        if cycles < self.time:
            self.best, self.time = candidate, cycles


@growing()
def _best(kernel: K, trial: _Trial, around: Around[K], *, simulated: bool) -> K:
    search = _Search(trial, around, simulated=simulated, every=kernel.ranks_by_bound)
    _look(search, *trial.contenders(kernel, MOST_LEADING))
    if search.best is None:
        raise search.failed or CapacityError(f"{kernel.name}: no tiling fits {trial.device.name}")
    if simulated and search.has_room:
        for one in search.best.as_with_less_l2(trial.watched):
            search.look_at(search.time, cast(K, one))
    return search.best


def _look(
    search: _Search[K],
    leaders: Iterable[tuple[float, Kernel]],
    of_lesser: Iterable[tuple[float, Kernel]],
) -> None:
    """Look at the leader, at those of lesser machines, and at others while they may be faster."""
    others = iter(leaders)
    least = inf
    for least, ranked in islice(others, 1):
        search.look_at(least, cast(K, ranked))
    for estimate, ranked in of_lesser:
        if search.is_over:
            break
        most = LESSER_MARGIN * max(least, search.time)
        if estimate < most and not search.has(cast(K, ranked)):
            search.look_at(estimate, cast(K, ranked))
    for estimate, ranked in others:
        if search.is_over or estimate >= search.time:
            break
        if not search.has_alike(cast(K, ranked)):
            search.look_at(estimate, cast(K, ranked))


def _shape(kernel: Kernel) -> Hashable:
    """What tilings that are alike have in common."""
    tiling = getattr(kernel, "tiling", None)
    names = (field.name for field in fields(tiling)) if is_dataclass(tiling) else ()
    return tuple(
        (name, getattr(tiling, name))
        for name in names
        if name not in ALIKE and not name.endswith("_slots")
    )
