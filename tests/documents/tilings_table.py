"""Tables of tilings, from what the commands of ``tests.call`` measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import exp, log
from typing import Any

from tests.documents.pages import ROOT

FILE = ROOT / "docs" / "model" / "tilings.json"
PROOFS = ROOT / "docs" / "model" / "tilings_proofs.json"
ABLATION = ROOT / "docs" / "model" / "tilings_ablation.json"
TUNED = ROOT / "docs" / "guide" / "tuning.json"
OTHERS = ROOT / "docs" / "guide" / "tilings_others.json"

#: A gradient whose bound is less than that of its time is far from it.
FAR_BELOW = 0.7

#: What gradients are called.
_NAMES = {"dx": "input", "dw": "filter"}


def _measured(part: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))[part]
    return rows


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def estimates() -> str:
    """Percentiles of estimate over simulated time."""
    rows = _measured("estimates")
    return _table(
        ("gradient", "tilings", "5 % below", "25 % below", "median", "25 % above", "5 % above"),
        (
            (
                f"{_NAMES[row['gradient']]}, {row['device']}",
                str(row["count"]),
                *(f"{value:.2f}" for value in row["percentiles"]),
            )
            for row in rows
        ),
    )


def ablation() -> str:
    """What each mechanism of a choice is worth."""
    rows = json.loads(ABLATION.read_text(encoding="utf-8"))
    return _table(
        ("without", "time, mean", "worst", "CPU of choices", "enlargements over 2 %"),
        (
            (
                row["without"],
                f"{100 * row['mean'] - 100:+.2f} %",
                f"{100 * row['worst'] - 100:+.1f} %",
                f"{row['cpu']:.2f}",
                str(row["slower"]),
            )
            for row in rows
        ),
    )


def tuned() -> str:
    """The vendor's, the automatic and the best tiling found, by layer."""
    rows = json.loads(TUNED.read_text(encoding="utf-8"))
    lines = _table(
        (
            *("layer", "gradient", "production", "auto", "tuned"),
            *("production / tuned", "auto / tuned", "verdict", "simulated"),
        ),
        (
            (
                f"{row['layer']}, batch {row['batch']}",
                row["gradient"],
                *(f"{row[name]:,}" for name in ("production", "auto", "tuned")),
                f"{row['production'] / row['tuned']:.2f}",
                f"{row['auto'] / row['tuned']:.3f}",
                f"{row['gap']:.0%} open" if row["gap"] else "proved",
                f"{row['simulated']:,} of {row['of']:,}",
            )
            for row in rows
        ),
    )
    ratios = [row["auto"] / row["tuned"] for row in rows]
    return (
        f"Geometric mean of auto / tuned: {_mean(ratios):.3f}, worst {max(ratios):.3f}.\n\n{lines}"
    )


def others() -> str:
    """The automatic tiling and the best of a search, by network and device."""
    rows = json.loads(OTHERS.read_text(encoding="utf-8"))
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['network']}, {row['device']}", []).append(row)
    lines = []
    for name, some in groups.items():
        ratios = [row["auto"] / row["tuned"] for row in some]
        worst = max(some, key=lambda row: float(row["auto"] / row["tuned"]))
        where = f"{worst['layer']}, {_NAMES[worst['gradient']]}"
        count = f"{sum(row['proved'] for row in some)} of {len(some)}"
        lines.append((name, count, f"{_mean(ratios):.3f}", f"{max(ratios):.3f}", where))
    return _table(("layers", "proved", "auto / tuned, mean", "worst", "of"), lines)


def bounds() -> str:
    """The problem's bound over the time of each gradient, with the verdict of a search."""
    rows = sorted(_measured("bounds"), key=lambda row: row["bound"] / row["cycles"])
    searches = {_name(row): row for row in json.loads(PROOFS.read_text(encoding="utf-8"))}
    lines, ratios, best, others = [], [], [], []
    for row in rows:
        found = searches.get(_name(row), {})
        if found.get("auto") != row["cycles"]:
            found = {}  # the search was for another automatic tiling
        ratios.append(row["bound"] / row["cycles"])
        best.append(row["bound"] / found.get("tuned", row["cycles"]))
        proved = found.get("gap") == 0
        if not (proved and best[-1] < FAR_BELOW):
            others.append(ratios[-1])
        lines.append(
            (
                _name(row),
                f"{row['cycles']:,}",
                f"{row['bound']:,}",
                row["of"],
                f"{ratios[-1]:.2f}",
                f"{best[-1]:.2f}" if found else "-",
                "proved" if proved else f"{found['gap']:.0%} open" if found else "-",
                f"{row['program']}, {row['share']:.0%}",
            )
        )
    head = (
        "gradient",
        "cycles",
        "least of any program",
        "by",
        "auto",
        "tuned",
        "verdict",
        "longest",
    )
    left_out = len(rows) - len(others)
    return (
        f"Geometric mean of {len(rows)}: {_mean(ratios):.3f} automatic, {_mean(best):.3f} tuned. "
        f"Of those below {FAR_BELOW} it is proved of {left_out} that no tiling is faster; "
        f"the other {len(others)} gradients have {_mean(others):.3f}, automatic.\n\n"
        f"{_table(head, lines)}"
    )


def _name(row: dict[str, Any]) -> str:
    return f"`{row['layer']}`, {_NAMES[row['gradient']]}"


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))
