"""The evidence of ``time_range``, ``configs/silicon/left_out.csv``: measured over predicted times.

Kernels are predicted by constants that were fitted without their shape, calls by choices that were
made without their group (``tools.scorecard.mechanisms``). Nothing is left out of other rows, which
few constants were fitted to: vector kernels, copies, transposes, and the steps of
``docs/model/steps.json``. Each tool renews its own rows; ``python -m tools.scorecard.evidence``
renews those of steps.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from math import log10
from pathlib import Path

from npusim.base.atomic_files import write
from npusim.machine.device.catalog import load_device
from npusim.problem.work import (
    DEPTH_WISE,
    ELEMENTWISE,
    FILTER_GRADIENT,
    FORWARD,
    KERNEL,
    LAYOUT,
    PRODUCT,
    step_of,
)
from npusim.results.facts.spread import LeftOutRow
from npusim.silicon.rows import CallRow, KernelRow, NetworkRow, Row
from npusim.silicon.score import is_scored, shape_of
from npusim.silicon.sheet import shipped_sheets, shipped_steps
from npusim.silicon.simulate import RowOutcome, device_name
from npusim.workloads import load_workload
from npusim.workloads.kind_of_network import kind_of_network

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "silicon" / "left_out.csv"
STEPS_FILE = ROOT / "docs" / "model" / "steps.json"

#: Classes of kernels by operation, of those that are no products.
OPERATIONS = {
    "add": ELEMENTWISE,
    "relu": ELEMENTWISE,
    "gelu": ELEMENTWISE,
    "gelu_eltwise": ELEMENTWISE,
    "copy_gm_l1": LAYOUT,
    "copy_gm_ub": LAYOUT,
    "nd2nz_vector": LAYOUT,
}

#: Rows on which figures were chosen that nothing is left out of, and which: they are not unseen.
SEEN_ROWS = {
    "N001": "figures of a 910 with the keys STEP and GRAPH, from the profile of the step",
}

#: Classes of calls that are no convolutions.
_CALLS = {"matmul": PRODUCT, "transpose": LAYOUT}

#: What is left out together.
Group = tuple[object, ...]

#: Families of calls that nobody listed the kernels of: what was launched is not known.
UNLISTED = ("KB-CONV", "KB-CONVT")


def work_of(row: Row) -> str:
    """The class of work of a measured row; "" for one that no range rests on."""
    if isinstance(row, NetworkRow):
        # Where reading images may have set the pace the device may have been faster.
        return step_of(kind_of(row)) if row.input_bound == "no" else ""
    if isinstance(row, CallRow):
        return "" if row.family in UNLISTED else _work_of_call(row)
    if is_scored(row):
        return KERNEL
    return OPERATIONS.get(row.op, "") if row.trust in ("A", "B") else ""


def _work_of_call(row: CallRow) -> str:
    if row.call in _CALLS:
        return _CALLS[row.call]
    if (row.groups or 1) > 1 and row.groups == min(row.Cin or 1, row.Cout or 1):
        return DEPTH_WISE
    filters = row.output_mask is not None and row.output_mask[1]
    return FILTER_GRADIENT if filters else FORWARD


def kind_of(row: NetworkRow) -> str:
    """The kind of a row's network, by its graph."""
    return kind_of_network(load_workload(row.network))


def group_of(row: Row) -> Group:
    """What is left out together: shapes, powers of ten of a family's work, a network on a chip."""
    if isinstance(row, NetworkRow):
        return row.network, row.chip
    if isinstance(row, KernelRow):
        return shape_of(row) if is_scored(row) else (row.family, row.chip)
    return row.family, row.chip, int(log10(row.work or 1))


def predicted(outcome: RowOutcome) -> LeftOutRow | None:
    """The row of the file of a prediction; None where there is none, or no range rests on it."""
    row = outcome.row
    if not isinstance(row, Row) or outcome.simulated is None:
        return None
    return left_out_row(row, outcome.simulated.time_us)


def left_out_row(row: Row, predicted_us: float) -> LeftOutRow | None:
    """The row of the file of a time; None where nothing was measured or no range rests on it.

    None rests on ``SEEN_ROWS``.
    """
    work = work_of(row)
    if not work or not row.time_us or row.id in SEEN_ROWS:
        return None
    product = load_device(device_name(row)[0]).product
    group = " ".join(map(str, group_of(row)))
    return LeftOutRow(row.id, product, work, group, float(row.time_us) / predicted_us)


def read(file: Path = FILE) -> list[LeftOutRow]:
    """The rows of the file, none where it is not there yet."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            LeftOutRow(row["id"], row["product"], row["work"], row["group"], float(row["ratio"]))
            for row in csv.DictReader(lines)
        ]


def renew(rows: Iterable[LeftOutRow], looked_at: Iterable[str], file: Path = FILE) -> None:
    """Write the file with these rows in place of those whose ids were ``looked_at``.

    Rows that are measured no more go.
    """
    sheets = (*shipped_sheets(), shipped_steps())
    places = {row.id: place for place, row in enumerate(r for s in sheets for r in s.rows)}
    replaced = set(looked_at)
    others = [row for row in read(file) if row.id not in replaced]
    known = [row for row in (*others, *rows) if row.id in places]
    known.sort(key=lambda row: places[row.id])
    lines = [",".join(LeftOutRow._fields)]
    lines += [",".join((*row[:-1], f"{row.ratio:.4f}")) for row in known]
    write(file, "\n".join(lines) + "\n")


def step_rows() -> list[LeftOutRow]:
    """The rows of the steps that ``make steps`` simulated last.

    None rests on a row whose source leaves the chip open: it was simulated on each.
    """
    times: dict[str, list[float]] = {}
    for point in json.loads(STEPS_FILE.read_text(encoding="utf-8")):
        times.setdefault(point["id"], []).append(point["simulated_us"])
    rows = (
        left_out_row(row, times[row.id][0])
        for row in shipped_steps().of(NetworkRow)
        if len(times[row.id]) == 1 and times[row.id][0] and work_of(row)
    )
    return [row for row in rows if row is not None]


if __name__ == "__main__":
    renew(step_rows(), [row.id for row in shipped_steps().rows])
