"""What the program writes into the documents: reports, tables, figures.

A section stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of a document.
``python -m tests.documents`` renews all of them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from statistics import fmean, median
from typing import Any

from importlinter.api import read_configuration

import npusim
from npusim.networks.rules.table import tables
from npusim.problem.work import (
    DEPTH_WISE,
    FILTER_GRADIENT,
    FORWARD,
    KERNEL,
    NETWORK_KINDS,
    PRODUCT,
)
from npusim.results.facts.other_chips import time_figures
from npusim.results.facts.spread import left_out_rows
from npusim.silicon.rows import NetworkRow
from npusim.silicon.sheet import shipped_sheets, shipped_steps
from npusim.silicon.stacks import stack_keywords
from npusim.workloads.kinds import KINDS
from tests.documents import kernels_910, tilings_table
from tests.documents.device_keys import KEY_TABLES
from tests.documents.kept_table import kept_rows
from tests.documents.language_table import language
from tests.documents.operator_table import operator_table
from tests.documents.pages import ROOT, blocks
from tools.scorecard.coverage import coverage
from tools.scorecard.evidence import SEEN_ROWS, kind_of, work_of
from tools.scorecard.mechanisms import CHOICES

SCORECARD = ROOT / "docs" / "scorecard" / "scorecard.txt"
MECHANISMS = SCORECARD.with_name("mechanisms.txt")
CALLS_OF_LAYERS = (PRODUCT, FORWARD, DEPTH_WISE, FILTER_GRADIENT)
SPEEDS = ROOT / "docs" / "model" / "speed.json"
STEPS = SPEEDS.with_name("steps.json")

#: Parts of a report that the README shows, by how they begin.
FIRST_PARTS = ("operator", "KERNELS", "WHERE", "WHAT WOULD")

#: Layers shown of the network.
LAYERS = 4

#: Tilings shown of the search, below the lines of the head.
TILINGS, HEAD = 7, 3


def fenced(body: str) -> str:
    return f"```text\n{body.rstrip()}\n```\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@cache
def demo() -> npusim.Result:
    """The demo's call, shapes only: time does not depend on data."""
    x, dy = (npusim.spec((2, 16, 14, 14, 16), "fp16") for _ in range(2))
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    return npusim.ops.conv2d_backprop_filter(x, dy, [256, 256, 3, 3], para, device="ascend910")


def report() -> str:
    return fenced(demo().text())


def short_report() -> str:
    """The parts of the demo's report that a newcomer reads first, without tilings and notes."""
    text = demo().text()
    parts = [part for part in text.split("\n\n") if part.startswith(FIRST_PARTS)]
    head, kernels, waits, advice = parts
    first_advice = advice.partition("\n- ")[0] + "\n- " + advice.split("\n- ")[1]
    return fenced("\n\n".join((head, kernels.partition("\ntiling")[0], waits, first_advice)))


def explanation() -> str:
    """What the guide's example of an explanation prints."""
    a, b = npusim.spec((33, 4096), "fp16"), npusim.spec((4096, 4096), "fp16")
    return fenced(npusim.ops.matmul(a, b, device="ascend910b2").explain().text())


def bound() -> str:
    """What the guide's example of a bound prints."""
    a, b = npusim.spec((33, 4096), "fp16"), npusim.spec((4096, 4096), "fp16")
    return fenced(npusim.ops.matmul(a, b, device="ascend910b2").bound(31).text())


def tuned_product() -> str:
    """The verdict and first rows of the guide's example of a search, without the time it took."""
    a, b = npusim.spec((128, 128), "fp16"), npusim.spec((128, 128), "fp16")
    printed = npusim.tune(npusim.ops.matmul, a, b, device="ascend910b2", store=None).text()
    verdict, _, rest = printed.partition("\n\n")
    verdict = re.sub(r";\s+[\d.]+\ss$", "", verdict, flags=re.M)
    rows = rest.splitlines()[: HEAD + TILINGS]
    return fenced("\n".join([verdict, "", *rows, "..."]))


def step() -> str:
    """What the example of the gradients of a convolution prints."""
    page = "docs/guide/gradients.md"
    code, *_ = blocks("python", page)  # the others print nothing
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "document"})
    return fenced("\n".join(line.rstrip() for line in printed.getvalue().splitlines()))


def network() -> str:
    """The report of a network: some layers, and no notes."""
    printed = npusim.network("resnet50", device="ascend910b2", batch=32).text()
    lines = printed.partition("\nNOTES")[0].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("LAYERS")) + 1
    total = next(i for i, line in enumerate(lines) if line.startswith("total"))
    return fenced("\n".join([*lines[: first + LAYERS], "...", *lines[total:]]))


def training_step() -> str:
    """The report of a step of training, without its notes."""
    printed = npusim.step("resnet18", device="ascend910b2", batch=16, mode="graph").text()
    return fenced(printed.partition("\nNOTES")[0])


def elementwise_kinds() -> str:
    """The kinds of element-wise layers: those with kernels, and those that are priced as bytes."""
    rows = tables().rules
    kernels = ", ".join(f"`{name}`" for name in KINDS if name in rows)
    others = ", ".join(f"`{name}`" for name in KINDS if name not in rows)
    bytes_alone = (
        f"The time of others is that of the bytes they move: {others}, and what has no name here."
    )
    return f"{textwrap.fill(kernels, 100)}\n\n{textwrap.fill(bytes_alone, 100)}\n"


def what_is_kept() -> str:
    """How many kernels a changed figure simulates anew."""
    return table(("changed from what is kept", "kernels simulated, trials included"), kept_rows())


def assumed() -> str:
    """The share of assumed figures of each device, but for energy and area."""
    rows = []
    for name in npusim.devices():
        device = npusim.load_device(name)
        known = [device.provenance[path].confidence for path in time_figures(device)]
        rows.append((known.count("assumed") / len(known), name, len(known)))
    cells = (
        (f"`{name}`", str(count), f"{100 * share:.0f} %") for share, name, count in sorted(rows)
    )
    return table(("device", "figures", "assumed"), cells)


def _score(pattern: str) -> tuple[str, ...]:
    """The groups of the first line of the score card that begins with ``pattern``."""
    found = re.search(rf"^{pattern}", SCORECARD.read_text(encoding="utf-8"), re.M)
    assert found is not None, f"{SCORECARD.name} has no line {pattern!r}"
    return found.groups()


def _scored(figure: str) -> tuple[str, str]:
    """Points and value of a figure over the scored kernels."""
    points, value = _score(rf"{re.escape(figure)} +(\d+) +(.*?)$")
    return points, value


def _family(name: str) -> tuple[str, str, str, str]:
    """Rows compared, mean and median error, and rank correlation of a family."""
    figure = r"(-|[\d.]+(?: %)?)"
    line = rf"{re.escape(name)}  +\d+ +(\d+) +\d+ +\d+ +{figure} +{figure} +{figure}$"
    compared, mean, median, rank = _score(line)
    return compared, mean, median, rank


#: Calls of the library -> family and chip. Not in the headline: transposes, which no convolution
#: launches, and KernelBench, whose kernels nobody listed.
CALLS = {
    "matrix products of the library, 910B2": ("GEMM", "910B2"),
    "2-D convolutions of the library, 910B2": ("CONV2D-FWD", "910B2"),
    "2-D convolutions of the library, 950": ("CONV2D-FWD", "950PR"),
    "depth-wise convolutions of the library, 910B2": ("DW-CONV2D-FWD", "910B2"),
    "filter gradients of the library, 3-D, 910B2": ("DW3D", "910B2"),
    "filter gradients of the library, 3-D, 950": ("DW3D", "950PR"),
}
#: Other kernels -> their line among the families of the score card.
OTHERS = {
    "vector kernels that add, 910B1": "ASC-ADD on 910B1",
    "vector kernels that apply GELU, 950": "ASC-GELU",
    "copies between memories, 910B1": "ASC-COPY on 910B1",
    "copies between memories, 950": "ASC-COPY on 950PR",
}


def errors() -> str:
    """Errors of times that nothing was fitted to, by kind of work, and how rows were left out."""
    count = _scored("time, mean absolute error")[0]
    by_shape = "left out by shape and switch, {} over shapes"
    known = [_scored(by_shape.format(what))[1] for what in ("mean", "median")]
    shipped = [_scored(f"time by family and shape, {what}")[1] for what in ("mean", "median")]
    what = "matrix products with a known tiling (910B1, 910C, 950)"
    rows = [(what, count, "shape and switch", *known, " / ".join(shipped))]
    rows += [(words, *_by_mechanism(*of)) for words, of in CALLS.items()]
    for (kind, chip), unseen in _step_errors().items():
        figures = f"{_percent(fmean(unseen))} / {_percent(median(unseen))}"
        what = f"steps of {kind} networks, {chip}"
        rows.append((what, str(len(unseen)), "nothing", "-", "-", figures))
    head = ("what", "measured", "left out by", "mean error", "median error", "as shipped")
    return table(head, rows)


def short_errors() -> str:
    """Errors of times by what was measured: kernels, calls of the library, steps."""
    count = _scored("time, mean absolute error")[0]
    by_shape = "left out by shape and switch, {} over shapes"
    mean, middle = (_scored(by_shape.format(what))[1] for what in ("mean", "median"))
    calls = {words: _by_mechanism(*of) for words, of in CALLS.items()}
    sizes = [int(row[0]) for row in calls.values()]
    means = [float(row[2].removesuffix(" %")) for row in calls.values()]
    over_all = sum(size * error for size, error in zip(sizes, means, strict=True)) / sum(sizes)
    rows = [
        ("matrix products whose tiling is known", count, f"{mean}, median {middle}, left out"),
        (
            "calls of the vendor's library (products, convolutions, gradients)",
            str(sum(sizes)),
            f"{over_all:.1f} %, by class {min(means)} to {max(means)} %, left out",
        ),
    ]
    for kind, unseen in errors_by_kind().items():
        figures = "none measured"
        if unseen:
            figures = f"{_percent(fmean(unseen))}, median {_percent(median(unseen))}"
        rows.append((f"training steps of {kind} networks", str(len(unseen)), figures))
    return table(("what", "measured", "mean error of the time"), rows)


def _by_mechanism(family: str, chip: str) -> tuple[str, str, str, str, str]:
    """Calls of a family, how they were left out, mean and median of errors left out and shipped."""
    line = rf"^{family} +{chip} +(\d+) +\d+" + 4 * r" +([\d.]+ %)" + "$"
    found = re.search(line, MECHANISMS.read_text(encoding="utf-8"), re.M)
    assert found is not None, f"{MECHANISMS.name} has no line of {family} on {chip}"
    count, mean, middle, left_out, left_out_middle = found.groups()
    return count, "mechanism", left_out, left_out_middle, f"{mean} / {middle}"


def _steps() -> dict[str, list[dict[str, Any]]]:
    """Simulations of measured steps, from ``make steps``, by row: one for each possible chip."""
    points: dict[str, list[dict[str, Any]]] = {}
    for point in json.loads(STEPS.read_text(encoding="utf-8")):
        points.setdefault(point["id"], []).append(point)
    return points


def _step_errors() -> dict[tuple[str, str], list[float]]:
    """Absolute errors of unseen steps by kind of network and chip, in the order of ``STEPS``.

    Steps for which reading images may have set the pace are left out, and so are rows on which
    figures were chosen (``SEEN_ROWS``) and rows whose source leaves the chip open.
    """
    simulated = _steps()
    found: dict[tuple[str, str], list[float]] = {}
    for row in shipped_steps().of(NetworkRow):
        first, *others = simulated[row.id]
        error = first["error"]
        unseen = row.id not in SEEN_ROWS and not others
        if work_of(row) and error is not None and unseen:
            found.setdefault((kind_of(row), row.chip), []).append(abs(error))
    order = {kind: place for place, kind in enumerate(NETWORK_KINDS)}
    return dict(sorted(found.items(), key=lambda entry: (order[entry[0][0]], entry[0][1])))


def errors_by_kind() -> dict[str, list[float]]:
    """The same of every kind, on all chips."""
    by_kind: dict[str, list[float]] = {kind: [] for kind in NETWORK_KINDS}
    for (kind, _), unseen in _step_errors().items():
        by_kind[kind] += unseen
    return by_kind


#: Ends of the sizes by which errors are listed: measured microseconds, and how they are called.
SIZES = (
    (1e1, "below 10 us"),
    (1e2, "10 to 100 us"),
    (1e3, "0.1 to 1 ms"),
    (float("inf"), "above 1 ms"),
)

#: Columns of the errors by size: classes of work, and the products of the chips.
SIZED = {
    "kernels": ((KERNEL,), ("a2", "a3", "950")),
    "calls, 910B2": (CALLS_OF_LAYERS, ("a2",)),
    "calls, 950": (CALLS_OF_LAYERS, ("950",)),
}


def errors_by_size() -> str:
    """Mean errors of rows that were left out, by power of ten of the measured time."""
    measured = {row.id: row.time_us or 0.0 for sheet in shipped_sheets() for row in sheet.rows}
    rows = []
    least = 0.0
    for most, words in SIZES:
        cells = [words]
        for works, products in SIZED.values():
            unseen = [
                abs(1 / row.ratio - 1)
                for row in left_out_rows()
                if row.work in works
                and row.product in products
                and least <= measured[row.id] < most
            ]
            cells.append(f"{_percent(fmean(unseen))} of {len(unseen)}" if unseen else "-")
        rows.append(cells)
        least = most
    return table(("measured time", *SIZED), rows)


def ranges() -> str:
    """The range of every class that was measured, and how many rows others hold."""
    rows = [
        (
            entry.work,
            entry.product,
            str(entry.rows),
            f"{entry.factor:.2f}",
            f"{100 * entry.alone / entry.rows:.0f} %",
            f"{100 * entry.with_group / entry.rows:.0f} %",
        )
        for entry in coverage(left_out_rows())
    ]
    head = ("class", "product", "rows", "factor", "inside, left out alone", "with its group")
    return table(head, rows)


def choices() -> str:
    """What was chosen by looking at measured rows, and at which."""
    rows = [
        (choice.name, choice.chip, ", ".join(f"`{name}`" for name in choice.decided_by))
        for choice in CHOICES
    ]
    seen = [(what, row, "this row alone") for row, what in SEEN_ROWS.items()]
    return table(("choice", "chip or row", "decided by rows of"), [*rows, *seen])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def steps() -> str:
    """Every measured step: what it took, what was simulated, or why not."""
    points, rows = _steps(), []
    for row in shipped_steps().of(NetworkRow):
        keywords = stack_keywords(row)
        types = keywords.get("dtype", "fp16")
        if "normalisation" in keywords:
            types += f", normalisation {keywords['normalisation']}"
        asked = (
            f"{row.network}, batch {row.batch}, {types}",
            kind_of(row),
            f"{row.cards} x {row.chip}",
            f"{row.mode}",
        )
        measured = f"{(row.time_us or 0) / 1e3:.1f}"
        simulated, error = _simulated_step(points[row.id])
        if row.input_bound != "no" and simulated != "-":
            error += " (images may set the pace)"
        rows.append((row.id, *asked, measured, simulated, error))
    head = (
        "row",
        "step",
        "kind",
        "cards",
        "mode",
        "measured ms",
        "simulated ms",
        "error, or why none",
    )
    return table(head, rows)


def _simulated_step(points: list[dict[str, Any]]) -> tuple[str, str]:
    """Milliseconds and error of a step, of one whose chip is open on each; "-" and why, else."""
    for point in points:
        if point["error"] is None:
            return "-", textwrap.shorten(point.get("reason") or "", 75, placeholder=" ...")
    times = [f"{point['simulated_us'] / 1e3:.1f}" for point in points]
    errors = [f"{100 * point['error']:+.0f} %" for point in points]
    if len(points) == 1:
        return times[0], errors[0]
    chips = [point["chip"] for point in points]
    each = ", ".join(f"{time} on a {chip}" for time, chip in zip(times, chips, strict=True))
    return each, f"{' or '.join(errors)}, counted in no mean"


def step_parts() -> str:
    """The parts of the step that has a profile."""
    (row,) = (row for row in shipped_steps().of(NetworkRow) if row.busy_us)
    (found,) = _steps()[row.id]
    rows = []
    for part, us in row.busy_us.items():
        error = found[f"{part}_us"] / us - 1
        words = part.replace("_", " ")
        rows.append((words, f"{us:,.0f}", f"{found[f'{part}_us']:,.0f}", f"{100 * error:+.0f} %"))
    return table(("part of the step", "measured us", "simulated us", "error"), rows)


def library_910() -> str:
    """Kernels of convolutions on a 910 by tiling."""
    head = ("pass", "measured", *(f"`{tiling}`" for tiling in kernels_910.TILINGS))
    return table(head, kernels_910.table_rows())


def other_errors() -> str:
    """Errors of times of kernels beside the headline, with the constants that ship."""
    head = ("what", "measured", "mean error", "median error", "rank correlation")
    return table(head, ((words, *_family(name)) for words, name in OTHERS.items()))


def busy() -> str:
    """Errors of busy times, and of the direction of a change, over the scored kernels."""
    names = {
        "cube busy": "cube busy, mean absolute error",
        "MTE1 busy": "mte1 busy, mean absolute error",
        "MTE2 busy": "mte2 busy, mean absolute error",
        "MTE2 busy, where it is the busiest pipe": "mte2 busy where it is the busiest pipe, mean",
        "fixpipe busy": "fixpipe busy, mean absolute error",
        "fixpipe busy, except under the serial library template": "fixpipe busy outside the serial"
        " template",
        "direction of the change in pairs that differ by more than 2 %": "pairs that differ, "
        "direction",
    }
    rows = [(words, *_scored(figure)) for words, figure in names.items()]
    return table(("figure", "kernels or pairs", "mean error"), rows)


def _speed_rows() -> dict[str, tuple[str, str]]:
    """Figure -> (value with unit, what was run), from ``make speed``."""
    found = json.loads(SPEEDS.read_text(encoding="utf-8"))["benchmarks"]
    rows = {}
    for benchmark in found.values():
        for figure in benchmark["figures"]:
            rows[figure["name"]] = (_rounded(figure["value"], figure["unit"]), figure["note"])
    return rows


def _rounded(value: float, unit: str) -> str:
    """Two significant digits, which is more than the noise leaves."""
    kept = float(f"{value:.2g}")
    if kept >= 1e6:
        return f"{kept / 1e6:g} million {unit}"
    return f"{kept:,.12g} {'times' if unit == 'x' else unit}"


def speeds() -> str:
    """Every figure of the benchmarks, and the machine."""
    machine = json.loads(SPEEDS.read_text(encoding="utf-8"))["machine"]
    rows = ((f"`{name}`", *row) for name, row in _speed_rows().items())
    head = ("figure", "value", "what was run")
    return f"{textwrap.fill(f'{machine}.', 100)}\n\n{table(head, rows)}"


def speed() -> str:
    """The figures that a newcomer wants."""
    rows = _speed_rows()
    shown = {
        "build.run": "a matrix product of ten million instructions on 24 cores, built and timed",
        "reference.ratio": 'the same engine, compared with the readable one (`engine="simpy"`)',
        "network.batch32": "`npusim net resnet50`, batch 32",
        "startup.smallest_run": "the smallest `npusim run`",
    }
    return table(("what", "speed"), ((words, rows[name][0]) for name, words in shown.items()))


#: Section -> what it holds.
def floors() -> str:
    """The contract of floors in ``pyproject.toml``, lowest floor first."""
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    layers: Any = contracts[0]["layers"]
    lines = [line.replace("npusim.", "") for line in reversed(layers)]
    packages = [[f"`{name.strip()}`" for name in line.split("|")] for line in lines]
    rows = [(str(floor), " ".join(names)) for floor, names in enumerate(packages, 1)]
    return table(("floor", "packages"), rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "report": report,
    "floors": floors,
    "short report": short_report,
    "explanation": explanation,
    "bound": bound,
    "language": language,
    "step": step,
    "network": network,
    "tuned product": tuned_product,
    "training step": training_step,
    "elementwise kinds": elementwise_kinds,
    "what is kept": what_is_kept,
    "assumed": assumed,
    "errors": errors,
    "short errors": short_errors,
    "errors by size": errors_by_size,
    "ranges": ranges,
    "choices": choices,
    "steps": steps,
    "parts of a step": step_parts,
    "kernels of a 910": library_910,
    "other errors": other_errors,
    "busy": busy,
    "speed": speed,
    "estimates of tilings": tilings_table.estimates,
    "ablation of tilings": tilings_table.ablation,
    "bounds of tilings": tilings_table.bounds,
    "tuned tilings": tilings_table.tuned,
    "other tilings": tilings_table.others,
    "speeds": speeds,
    "operators": operator_table,
    **KEY_TABLES,
}
