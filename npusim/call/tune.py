"""``npusim.tune``: the fastest tiling of a kernel, or of the kernel that an operator launches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.call.call import planning
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.call.tilings.choice import chosen as automatic
from npusim.call.tilings.problem import TuningProblem
from npusim.call.tilings.proof import Budget, Progress
from npusim.call.tilings.tuned import Tuned, search
from npusim.machine.device.catalog import parse_core_mask
from npusim.machine.device.spec import Device
from npusim.machine.program.build import is_tunable
from npusim.machine.program.kernel import Kernel
from npusim.machine.timing.run import new_l2
from npusim.results import Result


def tune(
    what: Kernel | Callable[..., Result],
    *operands: Array | Spec | None,
    device: str | Device,
    kernel: str = "",
    cores: Any = None,
    launch: str = Options.launch,
    start: str = "cold",
    among: Iterable[Kernel] | None = None,
    budget: int | str | None = None,
    jobs: int | None = None,
    store: str | Path | None = "",
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Tuned:
    """Search the tilings of a kernel for the fastest, and prove that no other is faster.

    ``what`` is a kernel, or an operator with its ``operands`` and ``options``: then it is the
    kernel it launches, ``kernel`` by name where there are several, and what "auto" chooses, the
    vendor's rule and the library's forms are looked at too. Candidates are those of the
    kernel, or the kernels ``among``. ``launch`` is "single" or "graph" as in ``Options``, and
    ``start`` "cold", or "warm" with its inputs in the L2.
    ``budget`` ends the search before the proof: so many simulations, or a time such as "30s".
    ``jobs`` processes look at candidates (None: one per processor, where the work is worth their
    start). What is found is kept in the file ``store`` ("": one in the user's cache; None:
    nowhere), so that a search that was stopped goes on where it was.
    ``progress`` is called after each step.

    Raises ``ArgumentError`` for a kernel without candidates, and ``CapacityError`` from the result
    if none of them runs.
    """
    machine = Options(device=device, launch=launch, start=start).machine
    seeds = list[Kernel]()
    groups = parse_core_mask(cores, machine)
    if isinstance(what, Kernel):
        if operands or options or kernel:
            names = ["operands", *options] if operands else list(options)
            named = ", ".join(names) or "kernel"
            raise ArgumentError(f"tune: {named} have no meaning for a kernel; leave them out")
        chosen = what
    else:
        options |= {"device": machine, "cores": cores, "launch": launch}
        with planning() as kernels:
            what(*operands, **options)
        chosen = _chosen(kernels, kernel, getattr(what, "__name__", "the call"))
        warm = [t.name for t in chosen.tensors if t.role != "out"] if start == "warm" else []
        seeds += _by_rules(what, operands, options, chosen, groups, warm)
    if among is None and not is_tunable(type(chosen)):
        raise ArgumentError(
            f"tune: kernel {chosen.name} has no candidates; state its choices, give it a method "
            "candidates, or pass kernels as among"
        )
    l2 = None
    if start == "warm":
        l2 = new_l2(machine, "fast")
        for tensor in chosen.tensors:
            if tensor.role != "out":
                l2.preload(tensor.name, tensor.size_bytes)
    problem = TuningProblem(chosen, machine, groups, l2)
    return search(problem, (chosen, *seeds), among, Budget.of(budget), jobs, store, progress)


def _by_rules(
    what: Callable[..., Result],
    operands: tuple[Any, ...],
    options: dict[str, Any],
    kernel: Kernel,
    groups: tuple[int, ...],
    warm: Collection[str],
) -> list[Kernel]:
    """The kernel as "auto" tiles it, the vendor's rule, and the library's forms, where they do."""
    rivals = []
    with suppress(CapacityError):  # as for a kernel that has no estimates to rank
        rivals.append(automatic(kernel, options["device"], groups, warm=warm))
    for rule in ("production", "library"):
        with suppress(ArgumentError, CapacityError), planning() as kernels:
            what(*operands, **options | {"tiling": {kernel.name: rule}})
            tilings = (
                getattr(planned, "tiling", None)
                for planned in kernels
                if planned.name == kernel.name
            )
            rivals += [replace(kernel, tiling=tiling) for tiling in tilings]
    return rivals


def _chosen(kernels: list[Kernel], name: str, operator: str) -> Kernel:
    """The one kernel asked for, among those an operator launches."""
    kernels = [candidate for candidate in kernels if is_tunable(type(candidate))]
    names = ", ".join(dict.fromkeys(candidate.name for candidate in kernels))
    if not kernels:
        raise ArgumentError(f"tune: {operator} launches no kernel with tilings to choose from")
    matching = [candidate for candidate in kernels if name in ("", candidate.name)]
    if not matching:
        raise ArgumentError(
            f"tune: {operator} launches no kernel {name!r} to tune (it has: {names})"
        )
    if len({candidate.name for candidate in matching}) > 1:
        raise ArgumentError(f"tune: {operator} launches {names}; say which one as kernel=...")
    return matching[0]
