"""A search from beginning to end, and its result: the best tiling, whether that is proved, all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from npusim.base.atomic_files import replacing
from npusim.base.errors import CapacityError
from npusim.base.workers import check_jobs
from npusim.call.tilings.problem import TuningProblem, tiling_of
from npusim.call.tilings.proof import (
    ILLEGAL,
    OPEN,
    PRUNED,
    SAME,
    SIMULATED,
    BestFirstSearch,
    Budget,
    Progress,
    SearchWorkers,
    TilingRow,
)
from npusim.machine.program.build import Fit, fits
from npusim.machine.program.kernel import Kernel
from npusim.results.saved import Answer
from npusim.results.writers import text_layout as lines
from npusim.results.writers.progress import in_notebooks
from npusim.reuse.store import opened

if TYPE_CHECKING:
    import pandas as pd

#: Candidates in all, and of each state.
Counts = dict[str, int]


class Tuned(Answer, Struct, frozen=True, dict=True):
    """Result of tuning a kernel.

    ``rows`` has a ``TilingRow`` per candidate, the kernel that was given first. Cycles are those of
    the kernel with its launch and with what its tiling needs before it, such as clearing.
    """

    problem: TuningProblem
    rows: tuple[TilingRow, ...]
    seconds: float
    #: Candidates whose time a store had.
    from_store: int = 0

    def __repr__(self) -> str:
        """One line: kernel, device, candidates, the best time."""
        best = f"best {self.time_us:.3f} us" if self.leading else "none runs"
        where = f"{self.problem.kernel.name} on {self.problem.device.name}"
        return f"<Tuned {where}: {len(self.rows):,} candidates, {best}>"

    @cached_property
    def leading(self) -> tuple[TilingRow, ...]:
        """The simulated candidates, best first."""
        rows = [row for row in self.rows if row.state == SIMULATED]
        return tuple(sorted(rows, key=lambda row: row.cycles))

    @property
    def _winner(self) -> TilingRow:
        if not self.leading:
            reasons = [row.reason for row in self.rows if row.reason]
            raise CapacityError(
                f"{self.problem.kernel.name}: no candidate runs on {self.problem.device.name}: "
                f"{reasons[0] if reasons else 'there is none'}"
            )
        return self.leading[0]

    @property
    def best(self) -> Kernel:
        """The kernel with the fastest tiling simulated."""
        return self._winner.kernel

    @property
    def tiling(self) -> Any:
        """The fastest tiling: the kernel's field ``tiling``, else its chosen fields by name."""
        tiling = getattr(self.best, "tiling", None)
        return tiling_of(self.best) if tiling is None else tiling

    @property
    def cycles(self) -> int:
        """Cycles of the best, launches included."""
        return self._winner.cycles

    @property
    def time_us(self) -> float:
        """Microseconds of the best, launches included."""
        return self.problem.device.time_us(self.cycles)

    @property
    def proved(self) -> bool:
        """True if no other candidate can be faster on simulated time."""
        return self.gap == 0

    @property
    def gap(self) -> float:
        """Share of the time that a candidate not simulated may save: 0.05 is 5 %; 0 is a proof."""
        rows = (row for row in self.rows if row.state == OPEN)
        least = min((row.lower_bound for row in rows if row.lower_bound < self.cycles), default=inf)
        return 0.0 if least == inf else 1 - least / self.cycles

    @property
    def verdict(self) -> str:
        """Sentence on whether the best is proved, and among how many tilings."""
        legal = self.counts["candidates"] - self.counts[ILLEGAL]
        if self.proved:
            return f"proved best of {legal:,} tilings on simulated time"
        return f"not proved: one of {self.counts[OPEN]:,} tilings left may take {self.gap:.1%} less"

    @cached_property
    def counts(self) -> Counts:
        """Candidates in all, and how many of them are in which state.

        Those that run like others ("same") were simulated, and are none of the candidates.
        """
        states = Counter(row.state for row in self.rows)
        return {"candidates": sum(states.values()) - states[SAME]} | {
            state: states[state] for state in (SIMULATED, SAME, PRUNED, ILLEGAL, OPEN)
        }

    def fit(self, row: TilingRow) -> Fit:
        """Bytes of the buffers of one candidate."""
        return fits(row.kernel, self.problem.device, issued=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per candidate: simulated ones by time, then the others by their bound.

        Columns are the fields of the tiling; bytes and share of each memory; ``bound`` and
        ``cycles`` (NaN unless simulated), launches included; ``gm_bytes`` that all cores read and
        write; ``state``, and the ``reason`` why an illegal one is. What a candidate takes of the
        memories and moves is NaN where closed forms ruled it out and no program was built.
        """
        import pandas as pd  # noqa: PLC0415 - it takes as long to load as a small search

        rows = sorted(
            (row for row in self.rows if row.state != SAME),
            key=lambda row: (row.state != SIMULATED, row.state == ILLEGAL, row.lower_bound),
        )
        records = []
        for row in rows:
            record = tiling_of(row.kernel)
            if row.cycles or row.reason:
                fit = self.fit(row)
                record |= {f"{name}_bytes": size for name, size in fit.bytes.items()}
                record |= {f"{name}_share": share for name, share in fit.share.items()}
            record |= {
                "bound": row.least,
                "cycles": row.cycles or None,
                "gm_bytes": row.gm_bytes or None,
                "state": row.state,
                "reason": row.reason,
            }
            records.append(record)
        frame = pd.DataFrame(records)
        for name in ("cycles", "gm_bytes"):
            if name in frame:
                frame[name] = frame[name].astype("float64")
        return frame

    def to_csv(self, file: str | Path) -> None:
        """Write ``table`` as a CSV file."""
        with replacing(file) as part:
            self.table.to_csv(part, index=False)

    def plot(self, file: str | Path, x: str = "", y: str = "") -> None:
        """Draw a heat map over two fields and both Pareto fronts: a .png or .svg file.

        ``x`` and ``y`` are fields of the tiling, by default the first two that vary. A cell is the
        fastest tiling simulated there; hatched cells have no legal tiling.
        """
        from npusim.results.shown.figures.studies import searched  # noqa: PLC0415 - drawn when asked for
        from npusim.results.writers.plots import draw_grid, save_plot  # noqa: PLC0415

        title = f"{self.problem.kernel.name} on {self.problem.device.name}"
        figures = searched(self.table, list(tiling_of(self.best)), x, y)
        save_plot(file, draw_grid, figures, 3, (16, 4.8), title)

    def save_plot(self, path: str | Path) -> None:
        """Write the figure of ``plot``, which always goes to a file."""
        self.plot(path)

    def to_json(self, most: int = 10) -> dict[str, Any]:
        """The verdict and the leading ``most`` candidates as plain values."""
        return {
            "kernel": self.problem.kernel.name,
            "device": self.problem.device.name,
            "cycles": self.cycles,
            "time_us": self.time_us,
            "proved": self.proved,
            "gap": self.gap,
            **self.counts,
            "tiling": tiling_of(self.best),
            "leading": [
                {"cycles": row.cycles, "tiling": tiling_of(row.kernel)}
                for row in self.leading[:most]
            ],
        }

    def text(self, most: int = 10) -> str:
        """The verdict and the leading ``most`` candidates, for a terminal."""
        shown = self.leading[:most]
        varying = _varying([tiling_of(row.kernel) for row in shown])
        memories = list(self.fit(shown[0]).bytes)
        head = ["cycles", "us", "of best", *varying, *memories]
        table = []
        for row in shown:
            fields, fit = tiling_of(row.kernel), self.fit(row)
            table.append(
                [
                    f"{row.cycles:,}",
                    f"{self.problem.device.time_us(row.cycles):,.2f}",
                    f"{row.cycles / self.cycles:.3f}",
                    *(_value(fields[name]) for name in varying),
                    *(f"{fit.share.get(name, 0):.0%}" for name in memories),
                ]
            )
        texts = {
            name for name, value in tiling_of(shown[0].kernel).items() if isinstance(value, str)
        }
        aligned_left = [i for i, name in enumerate(head) if name in varying and name in texts]
        return (
            "\n".join([*_verdict(self), "", *lines.table(head, table, aligned_left, lines.WIDTH)])
            + "\n"
        )

    def __str__(self) -> str:
        return self.text()


def _verdict(tuned: Tuned) -> list[str]:
    """Lines on the best and how sure it is; a tiling stays in one piece, to be copied."""
    counts, device = tuned.counts, tuned.problem.device
    original = next((row for row in tuned.rows if row.state == SIMULATED), None)
    best = f"{tuned.problem.kernel.name} on {device.name}: {tuned.cycles:,} cycles, "
    best += f"{tuned.time_us:,.2f} us with launches"
    if original is not None and original.cycles > tuned.cycles:
        best += f"; as it was given {original.cycles:,} ({original.cycles / tuned.cycles:.2f}x)"
    looked = (
        f"{counts[SIMULATED]:,} simulated and {counts[SAME]:,} that run like these, "
        f"{counts[PRUNED]:,} ruled out by bounds, "
        f"{counts[ILLEGAL]:,} do not run; "
        f"{tuned.seconds:.1f}\u00a0s"
    )
    if tuned.from_store:
        looked += f", {tuned.from_store:,} known from before"
    lines_shown = [
        line for text in (best, tuned.verdict, looked) for line in lines.wrap(text, later="  ")
    ]
    return [*lines_shown, f"tiling: {_words(tuned)}"]


def _words(tuned: Tuned) -> str:
    """The fields of the best tiling that are not as usual, as --tiling takes them."""
    record = getattr(tuned.best, "tiling", None)
    usual = {f.name: f.default for f in fields(record)} if record is not None else {}
    tiling = tiling_of(tuned.best)
    chosen = {name: value for name, value in tiling.items() if usual.get(name, "") != value}
    return ",".join(f"{name}={_value(value)}" for name, value in chosen.items())


def _varying(tilings: list[dict[str, Any]]) -> list[str]:
    """Fields in which the tilings differ, or all if they do not."""
    names = [name for name in tilings[0] if len({repr(t[name]) for t in tilings}) > 1]
    return names or list(tilings[0])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


# -- a search from beginning to end -------------------------------------------------------------


def search(
    problem: TuningProblem,
    seeds: tuple[Kernel, ...],
    among: Iterable[Kernel] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - immutable
    jobs: int | None = None,
    store: str | Path | None = "",
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """The search itself; ``seeds`` are simulated whatever their bounds.

    Where candidates are the kernel's own, those one step from the best are looked at too, until
    none of them is better.
    """
    check_jobs(jobs)
    begun = time.monotonic()
    candidates = problem.candidates()
    if among is not None:
        candidates = ((candidate, problem.least(candidate)) for candidate in among)
    with (
        in_notebooks(progress, _of_tilings) as report,
        opened(store, "tuned") as answers,
        SearchWorkers(problem, answers, jobs) as workers,
    ):
        looking = BestFirstSearch(problem, candidates, seeds, budget, report)
        looking.begin(workers)
        if among is None:
            looking.lead(_leaders(problem), workers)
            looking.around(workers)
        looking.run(workers)
        if among is None:
            looking.around(workers)
        looking.end()
    spent = time.monotonic() - begun
    return Tuned(problem, tuple(looking.rows), spent, workers.from_store)


#: Candidates with the best estimates that a search with a budget looks at before all others.
_LEADING = 32


def _leaders(problem: TuningProblem) -> list[Kernel]:
    """Those of the problem's kernel, the best first; none where no tiling is known to fit."""
    kernel = problem.kernel
    warm = [t.name for t in kernel.tensors if t.role != "out"] if problem.l2 is not None else []
    with suppress(CapacityError):
        return [
            candidate
            for _, candidate in kernel.ranked(problem.device, problem.cores, _LEADING, warm)
        ]
    return []


def _of_tilings(far: Progress) -> tuple[str, int, int]:
    """Label, done and total of a search, for a bar."""
    return "tilings ruled out", far.settled, far.candidates
