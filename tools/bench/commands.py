"""Whole commands on one processor and on all: CPU and wall, as ratios to a plain loop.

The loop is that of ``tools.bench.history``, 20 million additions in a Python of its own, run in the
same round as what is compared with it. Each command runs with stores of its own that are empty, but
for those whose answers are known.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import npusim
from npusim.call.tilings.choice import chosen
from tools.bench import programs
from tools.bench.figures import Figure, Settings
from tools.bench.history import LOOP, NET, RUN
from tools.tilings.tables import gradients, launched

ROOT = Path(__file__).parents[2]

#: Seconds after which a process is ended.
PATIENCE = 1800

#: Images of the gradients that are searched, and loops that a search may take.
BATCH, MOST_LOOPS = 32, 8

_PRODUCT = "--device tiny --m 96 --k 128 --n 96"
_FILTER = (
    "--device ascend910b2 --cin 72 --cout 200 --size 27x43 --kernel 5x3 --stride 2x1 "
    "--padding 2,2,1,1 --batch 6"
)

#: Lines by what they show; FILE is a file of the run's own folder.
NETWORKS = {
    "net32": f"{NET} FILE",
    "net256": "npusim net resnet50 --device ascend910b2 --batch 256 --store FILE",
    "step910": "npusim net resnet50 --device ascend910 --batch 32 --mode graph --store FILE",
}
STUDIES = {
    "sweep": "npusim sweep net resnet50 --batch 32 --mode graph --device ascend910b2 --store FILE "
    "--vary groups=12:28:4 --vary l2.size=48MiB,96MiB,192MiB,384MiB",
    "explore": f"npusim explore matmul {_PRODUCT} --store FILE --trials 200 --vary groups=1:5:1 "
    "--vary memories.L1.size=8KiB:128KiB:12KiB --vary l2.size=128KiB,1MiB "
    "--vary cube.rates.fp16=16x16x16,16x16x16/4cycle",
    "swept": f"npusim explore matmul {_PRODUCT} --store FILE --trials 220 --vary groups=1:5:1 "
    "--vary memories.L1.size=8KiB:128KiB:12KiB --vary l2.size=128KiB,1MiB "
    "--vary cube.rates.fp16=16x16x16,16x16x16/4cycle",
}
VALIDATION = {"validate": "npusim validate"}
STARTS = {"smallest": RUN}
KNOWN = {"net32_known": f"{NET} FILE"}
PROOFS = {
    "proof_product": "npusim tune matmul --device ascend910b2 --m 1024 --k 1024 --n 1024 "
    "--store FILE --csv FILE.csv",
    "proof_filter": f"npusim tune conv2d_backprop_filter {_FILTER} --store FILE --csv FILE.csv",
}


class Spent(NamedTuple):
    """Seconds of a process and of those it started."""

    cpu: float
    wall: float


def networks(settings: Settings) -> Iterator[Figure]:
    """Networks with nothing in the store, and a step on a 910."""
    yield from _figures(NETWORKS, settings)


def studies(settings: Settings) -> Iterator[Figure]:
    """The sweep that README shows, and 220 designs of which 200 or all are looked at."""
    yield from _figures(STUDIES, settings)


def validation(settings: Settings) -> Iterator[Figure]:
    """All measured kernels."""
    yield from _figures(VALIDATION, settings)


def starts(settings: Settings) -> Iterator[Figure]:
    """The smallest run, and a network whose answers are known."""
    yield from _figures(STARTS, settings)
    yield from _figures(KNOWN, settings, known=True)


def proofs(settings: Settings) -> Iterator[Figure]:
    """Searches for the best tiling that end with a proof."""
    yield from _figures(PROOFS, settings)


def gradient_proofs(settings: Settings) -> Iterator[Figure]:
    """How many gradients of ResNet-50 are proved to have no better tiling, each in 8 loops.

    ``settings.divisor`` leaves out others, to try the benchmark itself.
    """
    device = npusim.load_device(programs.DEVICE)
    groups = tuple(range(device.groups))
    processors = sorted(os.sched_getaffinity(0))[:1]
    loop = statistics.median(spent([sys.executable, "-c", LOOP], processors).cpu for _ in range(3))
    budget = f"{MOST_LOOPS * loop:.0f}s"
    every = [*gradients(BATCH)][:: settings.divisor]
    taken, proved = [], 0
    for gradient in every:
        kernel = chosen(launched(gradient, device), device, groups)
        begun = time.process_time()
        tuned = npusim.tune(kernel, device=device, budget=budget, jobs=1, store=None)
        taken.append((time.process_time() - begun) / loop)
        proved += tuned.gap == 0
    note = (
        f"of {len(every)} gradients of ResNet-50, batch {BATCH}, 910B2, in {MOST_LOOPS} loops each"
    )
    yield Figure("commands.gradients.proved", proved, "proofs", note)
    yield Figure("commands.gradients.all", sum(taken), "loops", "CPU of these searches together")
    yield Figure("commands.gradients.longest", max(taken), "loops", "CPU of the longest")


def _figures(lines: dict[str, str], settings: Settings, *, known: bool = False) -> Iterator[Figure]:
    """Of each line the wall on one processor and on all; notes have the CPU, both in loops."""
    allowed = sorted(os.sched_getaffinity(0))
    kinds = {"one": allowed[:1], "all": allowed}
    for name, line in lines.items():
        rounds: dict[str, list[Spent]] = {kind: [] for kind in kinds}
        loops = []
        with tempfile.TemporaryDirectory() as folder:
            if known:
                _run(line, Path(folder, "known"), allowed)
            for number in range(settings.repeats):
                loops.append(spent([sys.executable, "-c", LOOP], allowed[:1]).cpu)
                for kind, processors in kinds.items():
                    file = Path(folder, "known" if known else f"{kind}{number}")
                    rounds[kind].append(_run(line, file, processors))
        loop = statistics.median(loops)
        for kind, processors in kinds.items():
            cpu, wall = (statistics.median(column) for column in zip(*rounds[kind], strict=True))
            note = (
                f"wall on {len(processors)} processors, CPU {cpu / loop:.2f} loops "
                f"of {loop:.2f} s: {line.replace(' --store FILE', '')}"
            )
            yield Figure(f"commands.{name}.{kind}", wall / loop, "loops", note)


def _run(line: str, file: Path, processors: Sequence[int]) -> Spent:
    """A line of npusim with its files named after ``file``, on some processors."""
    words = line.replace("FILE", str(file)).split()
    cache = {"NPUSIM_CACHE": str(file.parent)}
    return spent([sys.executable, "-m", *words], processors, cache)


def spent(
    command: Sequence[str], processors: Sequence[int], environment: dict[str, str] | None = None
) -> Spent:
    """Run a process on some processors, with bytecode in Python's cache; raises if it fails."""
    usual = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        env=usual | (environment or {}),
        check=True,
        timeout=PATIENCE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(cpu, wall)
