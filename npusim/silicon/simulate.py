"""One measured row on the device of its chip: the answer, or the reason why there is none.

Many rows are simulated at once, in processes of their own; a process that dies costs one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from npusim.base.records import replace
from npusim.base.workers import Workers as Processes
from npusim.kernels.matmul.measured import words
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.files import ALIASES, is_file
from npusim.machine.device.spec import Device
from npusim.silicon.call_rows import simulate_call_row, simulate_network_row
from npusim.silicon.gemm_rows import simulate_gemm_row
from npusim.silicon.profile_rows import simulate_profiled_row
from npusim.silicon.rows import (
    CallRow,
    Declined,
    KernelRow,
    NetworkRow,
    ProfiledRow,
    Row,
    SimulatedRow,
    Unreadable,
)
from npusim.silicon.stream_rows import simulate_stream_row

_VENDOR = "ascend"

#: Chips as measurements name them, and their devices.
CHIPS: Mapping[str, str] = {
    name.removeprefix(_VENDOR).upper(): name for name in devices() if name.startswith(_VENDOR)
} | {"A3": "ascend910c"}

#: A 910B whose bin is not known: the bin with as many cube or vector cores as the row used, the
#: larger one for other numbers of cores.
_FAMILY = "910B"
_SMALL_BIN = "910B3"
_LARGE_BIN = "910B1"
_SMALL_BIN_CORES = (20, 40)

#: What stands between the chips of a row whose source does not say on which of them it ran.
_OR = " or "

#: Products of matrices, alone or with the work of vector cores on the result.
GEMM_OPS = ("gemm", "batch_gemm", "gemm_gelu", "grouped_gemm_dequant_gelu")


@dataclass(frozen=True)
class RowOutcome:
    """A row and its simulation, or the reason why there is none: exactly one of them is there.

    ``failed`` tells an error of the simulator from a row that it declined.
    """

    row: Row | Unreadable
    simulated: SimulatedRow | None = None
    reason: str | None = None
    failed: bool = False

    @property
    def busy_us(self) -> Mapping[str, float | None]:
        """The busy times that were simulated, by pipe."""
        return {} if self.simulated is None else self.simulated.busy_us


def simulate_row(row: Row | Unreadable, figures: Mapping[str, str]) -> RowOutcome:
    """Simulate one row with some ``figures`` of its device changed; nothing is raised."""
    if isinstance(row, Unreadable):
        return RowOutcome(row, reason=row.reason)
    try:
        return RowOutcome(row, _simulated(row, figures))
    except Declined as declined:
        return RowOutcome(row, reason=str(declined))
    except Exception as error:  # one row must not cost the others
        return RowOutcome(row, reason=f"{type(error).__name__}: {error}", failed=True)


def device_name(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return the device of a row's chip, and notes; a device's own name is a chip too.

    Raises ``Declined`` for a chip without a device.
    """
    chip = row.chip
    notes: tuple[str, ...] = ()
    if chip == _FAMILY:
        cores = row.cores if isinstance(row, KernelRow) else None
        chip = _SMALL_BIN if cores in _SMALL_BIN_CORES else _LARGE_BIN
        notes = (f"the bin of this {_FAMILY} is not known: simulated as {chip}",)
    if chip in CHIPS:
        return CHIPS[chip], notes
    if chip in devices() or chip.endswith(".yaml"):
        return chip, ()
    if _OR in chip:
        raise Declined(
            f"chip {chip!r} is one of several: `npusim validate` simulates the row on each, and "
            "nothing is fitted to it"
        )
    raise Declined(
        f"chip {chip!r} has no device; known are {', '.join((*CHIPS, _FAMILY))}, the names that "
        "`npusim devices` lists, device files ending in .yaml, and several of these with "
        f"{_OR.strip()!r} between them"
    )


def of_each_chip(rows: Sequence[Row | Unreadable]) -> list[Row | Unreadable]:
    """Return rows, one whose source leaves its chip open as a row for each chip.

    Such a cell is "910 or 910B"; each of its rows has both as ``possible_chips``.
    """
    candidates: list[Row | Unreadable] = []
    for row in rows:
        candidates += [row] if isinstance(row, Unreadable) else _candidates(row)
    return candidates


def _candidates(row: Row) -> list[Row]:
    """The rows that one may be: itself, or one for each chip between which it is open."""
    chips = tuple(chip.strip() for chip in row.chip.split(_OR))
    if len(chips) == 1:
        return [row]
    return [replace(row, chip=chip, possible_chips=chips) for chip in chips]


def other_chip(row: Row, name: str, device: Device) -> str:
    """Return the reason why a row was not measured on ``device``, called ``name``, or "".

    A row of a shipped chip is one of a user's device file, too, where the file builds on that chip.
    """
    try:
        measured = device_name(row)[0]
    except Declined as declined:
        return str(declined)
    names = {name, device.name}
    if is_file(name):
        names |= {origin.inherited for origin in device.provenance.values()}
    return "" if measured in names else f"measured on {row.chip}, which is not {device.name}"


def on_device(rows: Sequence[Row | Unreadable], name: str) -> list[Row | Unreadable]:
    """Return rows as of one device: a shipped one or a device file, in place of their chips.

    A row of another chip is ``Unreadable``, with the reason; one whose chip is open is a row of the
    device if that is possible. Raises ``ArgumentError`` or ``ConfigError`` for a device that does
    not exist or cannot be read.
    """
    name = ALIASES.get(name, name)
    device = load_device(name)
    return [_on(row, name, device) for row in rows]


def _on(row: Row | Unreadable, name: str, device: Device) -> Row | Unreadable:
    """Return a row as of one device; ``Unreadable`` where it was measured on another chip."""
    if isinstance(row, Unreadable):
        return row
    reasons = []
    for candidate in _candidates(row):
        reason = other_chip(candidate, name, device)
        if not reason:
            return replace(candidate, chip=name)
        reasons.append(reason)
    reason = "; ".join(reasons)
    reason += "; leave out --device, or give a device file that builds on that chip"
    return Unreadable(id=row.id, family=row.family, chip=row.chip, reason=reason)


def _simulated(row: Row, figures: Mapping[str, str]) -> SimulatedRow:
    if isinstance(row, KernelRow):
        _require_known_words(row)
    name, notes = device_name(row)
    if isinstance(row, NetworkRow) and row.pieces:
        figures = {**figures, "cards.pieces": str(row.pieces)}
    simulated = _dispatch(row, _device(name, tuple(figures.items())))
    return replace(simulated, notes=(*notes, *simulated.notes))


def _require_known_words(row: KernelRow) -> None:
    """Raise ``Declined`` for a word of ``switches`` that no table explains."""
    for word in row.switches:
        if word not in words():
            raise Declined(f"switches: the word {word!r} is not known")


@lru_cache(maxsize=16)
def _device(name: str, figures: tuple[tuple[str, str], ...]) -> Device:
    """Return a device with changed figures, which many rows share."""
    return load_device(name, dict(figures))


def _dispatch(row: Row, device: Device) -> SimulatedRow:
    if isinstance(row, CallRow):
        return simulate_call_row(row, device)
    if isinstance(row, NetworkRow):
        return simulate_network_row(row, device)
    if isinstance(row, ProfiledRow):
        return simulate_profiled_row(row, device)
    if row.op in GEMM_OPS:
        return simulate_gemm_row(row, device)
    return simulate_stream_row(row, device)


# -- many rows ---------------------------------------------------------------------------------

#: A row and the figures of its device that differ from the file.
Task = tuple[Row | Unreadable, Mapping[str, str]]

#: Called as progress(done, total) after every row.
Progress = Callable[[int, int], None]


class RowWorkers(Processes):
    """Context manager that simulates rows in ``jobs`` processes; with 1, in this one."""

    def outcomes(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[RowOutcome]:
        """Return the outcome of every task, in their order; long ones are simulated first."""
        efforts = [effort(row) for row, _ in tasks]
        order = sorted(range(len(tasks)), key=efforts.__getitem__, reverse=True)
        outcomes: dict[int, RowOutcome] = {}
        sorted_tasks = [tasks[place] for place in order]
        for place, outcome in self.each(_outcome_of, sorted_tasks, _row_name, _dead):
            outcomes[order[place]] = outcome
            if progress is not None:
                progress(len(outcomes), len(tasks))
        return [outcomes[place] for place in range(len(tasks))]


def _outcome_of(task: Task) -> RowOutcome:
    return simulate_row(*task)


def _row_name(task: Task) -> str:
    """The name of a row in errors."""
    return f"row {task[0].id}"


def _dead(task: Task) -> RowOutcome:
    """The outcome of a row whose process died."""
    reason = "the process that simulated it was ended from outside; is memory short?"
    return RowOutcome(task[0], reason=reason, failed=True)


def effort(row: Row | Unreadable) -> int:
    """Return roughly the number of products of base blocks that a simulation of the row issues."""
    if isinstance(row, Unreadable):
        return 0
    if isinstance(row, NetworkRow):
        return 10**6 * (row.batch or 1)
    if isinstance(row, CallRow):
        return (row.work or 0) // (2 * 128**3)
    blocks = row.batch or 1
    for size, base in ((row.M, row.base_m), (row.N, row.base_n), (row.K, row.base_k)):
        blocks *= -(-(size or 1) // (base or 128))
    return blocks
