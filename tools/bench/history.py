"""The cost of a release, as ratios to a plain loop: ``python -m tools.bench.history``.

Every figure is the CPU time of whole processes over that of 20 million additions in a Python of its
own, measured in turns, so that figures of different machines and days can be compared. The
measurements are printed beside those of the last release, a figure that is more than a fifth worse
as such. ``--release NAME`` writes them into the table as well, and draws it anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE, PLOT = ROOT / "docs/model/releases.csv", ROOT / "docs/model/releases.png"

#: A figure above so many times that of the last release is worse.
WORSE = 1.2

LOOP = "s = 0\nfor i in range(20_000_000): s += i"
RUN = "npusim run matmul --device ascend910b2 --m 16 --k 16 --n 16 --timing-only"
NET = "npusim net resnet50 --device ascend910b2 --batch 32 --store"

#: Prints the CPU seconds in which the engine simulates ten million instructions of a product.
ENGINE = """
import time
from npusim.machine.timing.fast.engine import FastEngine
from npusim.machine.timing.fast.l2 import FastL2
from npusim.machine.timing.trace import core_starts
from tools.bench import programs
import npusim
device = npusim.load_device(programs.DEVICE)
program = programs.on_all_cores(programs.square_matmul({size}), device)
engine = FastEngine(program, FastL2(device.l2), core_starts(program), keep_spans=False)
start = time.process_time()
engine.run()
print((time.process_time() - start) * 1e7 / program.instructions)
"""

#: Prints the CPU seconds in which a trace of a million instructions is written, compressed.
TRACE = """
import tempfile
import time
from pathlib import Path
import npusim
x = npusim.spec((8192, 8192), "fp16")
result = npusim.ops.matmul(x, x, device="ascend910b2", timeline=True)
with tempfile.TemporaryDirectory() as folder:
    start = time.process_time()
    result.save_trace(Path(folder, "trace.json.gz"))
    seconds = time.process_time() - start
print(seconds * 1e6 / sum(run.instructions for run in result.runs))
"""

#: What each figure is the CPU time of.
FIGURES = {
    "import": "`import npusim`",
    "smallest": f"`{RUN}`",
    "network": f"`{NET}`, with nothing in the store",
    "network_known": "the same again",
    "engine_4096": "ten million instructions of a product 4096^3 in the engine",
    "engine_16384": "the same of 16384^3",
    "engine_18176": "the same of 18176^3, whose rows lie in blocks of their own",
    "trace": "a trace of a million instructions, compressed",
}


def main() -> int:
    """Measure, compare with the last release, and write what was asked for; always 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.history", description=__doc__)
    parser.add_argument("--release", metavar="NAME", help="add a row of this name to the table")
    parser.add_argument("--repeats", type=int, default=3, help="runs per median (default: 3)")
    arguments = parser.parse_args()
    rows = list(csv.DictReader(TABLE.open(newline=""))) if TABLE.exists() else []
    found = measured(arguments.repeats)
    print(*compared(found, rows[-1] if rows else {}), sep="\n")
    if arguments.release:
        rows = [row for row in rows if row["release"] != arguments.release]
        rows.append({"release": arguments.release} | {k: f"{v:.3f}" for k, v in found.items()})
        with TABLE.open("w", newline="", encoding="utf-8") as table:
            writer = csv.DictWriter(table, ["release", *FIGURES], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        draw(rows, PLOT)
    return 0


def compared(found: Mapping[str, float], last: Mapping[str, str]) -> list[str]:
    """A line per figure: its value, that of the last release, and whether it is worse."""
    lines = [f"{'figure':14} {'loops':>8} {last.get('release', 'before'):>10}"]
    for name, value in found.items():
        before = last.get(name) or ""
        verdict = "  WORSE" if before and value > WORSE * float(before) else ""
        lines.append(f"{name:14} {value:8.3f} {before:>10}{verdict}  {FIGURES[name]}")
    return lines


def measured(repeats: int) -> dict[str, float]:
    """Medians of all figures, in loops."""
    rounds = []
    for _ in range(repeats + 1):
        loop = seconds("-c", LOOP)
        rounds.append({name: value / loop for name, value in _round().items()})
    # The first round fills the caches of bytecode and of compiled code.
    return {name: statistics.median(one[name] for one in rounds[1:]) for name in FIGURES}


def _round() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as stores:
        return {
            "import": seconds("-c", "import npusim"),
            "smallest": seconds("-m", *RUN.split(), stores=stores),
            "network": seconds("-m", *NET.split(), stores=stores),
            "network_known": seconds("-m", *NET.split(), stores=stores),
            "engine_4096": _told(ENGINE.format(size=4096)),
            "engine_16384": _told(ENGINE.format(size=16384)),
            "engine_18176": _told(ENGINE.format(size=18176)),
            "trace": _told(TRACE),
        }


def seconds(*arguments: str, stores: str = "") -> float:
    """CPU seconds of this interpreter with these arguments, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _python(*arguments, stores=stores)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _told(code: str) -> float:
    return float(json.loads(_python("-c", code)))


def _python(*arguments: str, stores: str = "") -> str:
    without = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = without | ({"NPUSIM_CACHE": stores} if stores else {})
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def draw(rows: list[dict[str, str]], file: Path) -> None:
    """The table as a picture: a bar per figure and release, in loops."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only the picture needs it

    names = [name for name in FIGURES if any(row[name] for row in rows)]
    height = 0.8 / len(rows)
    figure = Figure(figsize=(8, 1 + 0.22 * len(names) * (len(rows) + 1)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        at = [y + (place + 0.5) * height for y in range(len(names))]
        bars = axes.barh(at, [float(row[name] or "nan") for name in names], 0.9 * height)
        axes.bar_label(bars, [f" {row[name]}" for name in names], fontsize="small")
        bars.set_label(row["release"])
    axes.set_yticks([y + 0.4 for y in range(len(names))], names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("CPU time / 20 million additions")
    axes.legend(title="release", loc="lower right", frameon=False)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
