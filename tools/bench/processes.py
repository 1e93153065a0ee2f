"""Speed as a shell sees it: whole processes, start-up included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from tools.bench.figures import Figure, Settings, medians

BATCHES = (32, 256)

#: Seconds after which a process is ended.
PATIENCE = 120


def network(settings: Settings) -> Iterator[Figure]:
    """``npusim net resnet50``: input and filter gradient of all 53 convolutions, timing only."""
    for batch in BATCHES:
        command = ["-m", "npusim", "net", "resnet50", "--device", "ascend910b2"]
        command += ["--batch", str(batch), *_engine(settings)]
        python(*command)  # caches are warm, as for every call but a user's first
        (seconds,) = medians(settings.repeats, partial(python, *command))
        yield Figure(f"network.batch{batch}", seconds, "s", " ".join(["npusim", *command[2:]]))


def startup(settings: Settings) -> Iterator[Figure]:
    """The time of importing npusim, and of the smallest run of all."""
    sizes = [word for name in "mkn" for word in (f"--{name}", "16")]
    command = ["-m", "npusim", "run", "matmul", "--device", "ascend910b2", *sizes, "--timing-only"]
    command += _engine(settings)
    works = (("-c", ""), ("-c", "import npusim"), tuple(command))
    for work in works:
        python(*work)
    nothing, npusim, run = medians(settings.repeats, *(partial(python, *work) for work in works))
    note = f"import npusim, less {nothing:.3f} s for the interpreter"
    yield Figure("startup.import", npusim - nothing, "s", note)
    yield Figure("startup.smallest_run", run, "s", " ".join(["npusim", *command[2:]]))


def _engine(settings: Settings) -> list[str]:
    """The option that chooses the engine, if one was chosen."""
    return ["--engine", settings.engine] if settings.engine else []


def python(*arguments: str) -> None:
    """Run this interpreter to its end; raises ``SubprocessError`` if it fails or takes too long."""
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
