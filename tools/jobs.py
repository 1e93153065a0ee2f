"""Runs every command that has ``--jobs`` again and again, from empty stores, and compares answers.

Each command runs with 1, 2 and 4 processes. Every run starts with nothing known: its process is a
fork of one that has imported npusim and simulated nothing, and its stores are a folder of its own.
A run fails that ends with an error, prints a traceback, or answers otherwise than the first one.

    python -m tools.jobs                        # each 20 times
    python -m tools.jobs net step --times 5 --jobs 1 2
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from npusim.base import workers
from npusim.cli.main import main as npusim

#: Files that the commands read, by name.
FILES = {
    "block.yaml": """\
description: a residual block
layers:
  one: {cin: 3, cout: 16, spatial: [8, 8], kernel: 3, padding: 1}
  two: {cin: 16, cout: 16, spatial: [8, 8], kernel: 3, padding: 1}
  fc: {cin: 16, cout: 10, rows: 1, bias: yes}
graph:
  - x = input > one > batch_norm > relu
  - y = x > two > batch_norm
  - x = y + x > relu
  - x > avg_pool > fc
""",
    "gate.yaml": """\
cases:
- {run: matmul --m 512 --k 256 --n 512, devices: [ascend910b2, tiny]}
- {net: block.yaml, devices: [ascend910b2]}
""",
    "rows.csv": """\
id,chip,op,M,N,K,dtype_in,dtype_out,layout_a,layout_b,base_m,base_n,base_k,step_ka,step_kb,time_kind,time_us,trust
r1,910B2,gemm,1024,1024,1024,fp16,fp32,ND,ND,128,256,64,4,4,task,30,A
r2,910B2,gemm,2048,1024,1024,fp16,fp32,ND,ND,128,256,64,4,4,task,40,A
r3,910B2,gemm,1024,3072,1024,fp16,fp32,ND,ND,128,256,64,4,4,task,50,A
r4,910B2,gemm,512,512,1024,fp16,fp32,ND,ND,128,256,64,4,4,task,20,A
""",
    "tiny-card.yaml": """\
base: ascend910b2
name: tiny-card
description: a card that holds a few images
main_memory: {size: 4MiB}
""",
    "constants.yaml": """\
constants:
- {path: l2.read, devices: [ascend910b2], low: 3TB/s, high: 5.2TB/s}
""",
}

_BLOCK = "block.yaml --device ascend910b2"
_PRODUCT = "matmul --m 512 --k 256 --n 512 --device ascend910b2"
_VARY = "--vary memories.L1.size=256KiB,384KiB,512KiB --vary clock=1GHz,1.5GHz,1.8GHz"

#: Command lines by name, of small work for several cores; ``--jobs`` is added.
COMMANDS = {
    "net": f"net {_BLOCK} --batch 4 --json",
    "step": f"net {_BLOCK} --batch 4 --mode graph --layouts best --json",
    "eager": f"net {_BLOCK} --batch 4 --mode eager --json",
    "bound": f"bound net {_BLOCK} --batch 4 --mode graph --json",
    "alternatives": f"explain net {_BLOCK} --batch 4 --mode graph --alternatives --json",
    "largest-batch": "net block.yaml --device tiny-card.yaml --mode graph --largest-batch --json",
    "sweep": f"sweep {_PRODUCT} {_VARY} --csv sweep.csv",
    "sweep-net": f"sweep net {_BLOCK} --vary batch=1,2,3 --csv sweep.csv",
    "explore": f"explore {_PRODUCT} {_VARY} --goals time_us,buffer_bytes",
    "tornado": f"explore {_PRODUCT} {_VARY} --trials 0 --tornado tornado.svg",
    "tune": "tune matmul --m 64 --k 64 --n 64 --device tiny --csv tune.csv",
    "validate": "validate --data rows.csv --json",
    "fit": "fit --data rows.csv --device ascend910b2 --constants constants.yaml --json",
    "gate": "gate gate.yaml --save gate.json --json",
}

#: Names of files whose content is a part of the answer.
_ANSWERS = (".csv", ".json")

#: Seconds of work; a line is broken before them where they are long.
_SECONDS = re.compile(r"\s+[\d.]+ s\b")


class Run(NamedTuple):
    """The end of one run: exit status, what it printed, the files it wrote, and its errors."""

    status: int
    answer: str
    errors: str

    @property
    def failed(self) -> bool:
        """True if it ended with an error, or with a traceback of any thread."""
        return self.status != 0 or "Traceback" in self.errors


class Folder:
    """A folder with what commands read and write, their stores, and what they print."""

    def __init__(self, root: Path) -> None:
        self.work, self.results = root / "work", root / "results"
        self.results.mkdir()
        prepare(self.work)

    def start(self, words: list[str]) -> int:
        """Start a command line in a process of its own, and return the number of the process."""
        child = os.fork()
        if not child:
            self._run_in_child(words)
        return child

    def ended(self, child: int) -> Run:
        """Wait for the end of a process that was started last."""
        _, status = os.waitpid(child, 0)
        printed, errors = (
            (self.results / name).read_text(encoding="utf-8")
            if (self.results / name).exists()
            else ""
            for name in ("out", "err")
        )
        return Run(os.waitstatus_to_exitcode(status), answer(printed, self.work), errors)

    def _run_in_child(self, words: list[str]) -> None:
        """Run a command line in this process and end it; nothing of it returns."""
        status = 1
        try:
            os.chdir(self.work)
            os.environ["NPUSIM_CACHE"] = str(self.results / "stores")
            for number, name in ((1, "out"), (2, "err")):
                file = os.open(self.results / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, number)
                os.close(file)
            workers._WORTH = 0  # points as few as these would not be worth processes
            status = npusim(words)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


def run(words: list[str]) -> Run:
    """Run a command line in a process of its own, in a new folder with ``FILES`` and no stores."""
    with tempfile.TemporaryDirectory(prefix="npusim-jobs-") as name:
        folder = Folder(Path(name))
        return folder.ended(folder.start(words))


def prepare(folder: Path) -> None:
    """Make a folder with what the commands read."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def answer(printed: str, folder: Path) -> str:
    """The output of a command and the files it wrote, without the seconds that it took."""
    written = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in _ANSWERS and path.name not in FILES and path.name[0] != "."
    )
    texts = [printed, *(path.read_text(encoding="utf-8") for path in written)]
    return _SECONDS.sub(" ? s", "\n".join(texts))


def main() -> int:
    """Print a line per command and number of processes; 1 if a run failed or differed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.jobs")
    parser.add_argument("names", nargs="*", default=[*COMMANDS], metavar="NAME")
    parser.add_argument("--times", type=int, default=20, help="runs of each (default: 20)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    arguments = parser.parse_args()
    bad = 0
    for name in arguments.names:
        first = None
        for jobs in arguments.jobs:
            begun = time.monotonic()
            runs = [
                run([*shlex.split(COMMANDS[name]), "--jobs", str(jobs)])
                for _ in range(arguments.times)
            ]
            first = first or runs[0]
            failed = [one for one in runs if one.failed]
            differing = [one for one in runs if not one.failed and one.answer != first.answer]
            bad += len(failed) + len(differing)
            seconds = time.monotonic() - begun
            print(
                f"{name:10} --jobs {jobs}: {len(runs)} runs, {len(failed)} failed, "
                f"{len(differing)} differ, {seconds:.0f} s",
                flush=True,
            )
            for one in (failed or differing)[:1]:
                print((one.errors or one.answer)[-2000:])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
