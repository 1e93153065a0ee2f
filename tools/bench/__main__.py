"""Benchmarks: ``python -m tools.bench`` (or ``make bench``) prints rates and ratios of one run.

Names on the command line choose among them, ``--json`` prints for machines. Figures are medians
of three. Nothing is asserted: machines differ, and noise is not a bug.

Each benchmark runs in a process of its own, so that none inherits another's caches or threads.
This process imports nothing heavy: a child's peak memory is never less than what its parent
held when it started it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tools.bench.figures import CATALOGUE, PEERS, Figure, Settings

ROOT = Path(__file__).parents[2]

#: Seconds after which a benchmark is ended, whatever it does.
PATIENCE = 3600

#: Lines of a failed benchmark's standard error that are shown.
LAST = 8

#: Packages whose versions matter for speed.
PACKAGES = ("numpy", "numba", "simpy")


def main() -> int:
    """Run what the command line asks for; 1 if a benchmark failed, else 0."""
    arguments = _arguments()
    settings = Settings(
        engine=arguments.engine, repeats=arguments.repeats, divisor=4 if arguments.small else 1
    )
    names = arguments.names or [n for n in CATALOGUE if arguments.peers or n not in PEERS]
    machine = _machine()
    if not arguments.json:
        print(machine, f"Medians of {settings.repeats}.", sep="\n", flush=True)
    found = {name: _run(name, settings, quiet=arguments.json) for name in names}
    if arguments.json:
        report = {"machine": machine, "settings": dataclasses.asdict(settings), "benchmarks": found}
        print(json.dumps(report, indent=2))
    return int(any(each["problem"] for each in found.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="speed of npusim")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CATALOGUE))
    parser.add_argument("--engine", default="", help="timing engine (default: npusim's own)")
    parser.add_argument("--repeats", type=int, default=3, help="calls per median (default: 3)")
    parser.add_argument(
        "--small", action="store_true", help="large products a quarter as wide: a rehearsal"
    )
    parser.add_argument(
        "--peers", action="store_true", help=f"also {' and '.join(PEERS)}: several minutes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in CATALOGUE]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(CATALOGUE)}")
    return arguments


def _run(name: str, settings: Settings, *, quiet: bool) -> dict[str, Any]:
    """Figures and remarks of one benchmark; ``problem`` says why there are not more, or is None."""
    command = [sys.executable, "-m", "tools.bench.child", name]
    found: dict[str, Any] = {"figures": [], "remarks": [], "problem": None}
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(settings))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        timer = threading.Timer(PATIENCE, child.kill)
        timer.start()
        assert child.stdout is not None
        for line in child.stdout:
            _keep(json.loads(line), found, quiet=quiet)
        code = child.wait()
        ended = not timer.is_alive()
        timer.cancel()
        if code:
            errors.seek(0)
            last = "\n".join(errors.read().splitlines()[-LAST:])
            found["problem"] = f"ended after {PATIENCE} s" if ended else last or f"exit {code}"
            if not quiet:
                print(f"{name}: {found['problem']}", flush=True)
    return found


def _keep(line: dict[str, Any], found: dict[str, Any], *, quiet: bool) -> None:
    """Add one line of a child to what was found, and show it."""
    if "figure" in line:
        found["figures"].append(line["figure"])
    else:
        found["remarks"].append(line["remark"])
    if not quiet:
        print(Figure(**line["figure"]) if "figure" in line else line["remark"], flush=True)


def _machine() -> str:
    """Processor, cores, load, interpreter and packages, in words."""
    versions = ", ".join(map(_version, PACKAGES))
    return (
        f"{_processor()}, {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} at the start), "
        f"{platform.system()}, Python {platform.python_version()}, {versions}"
    )


def _version(package: str) -> str:
    """The package and its installed version."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def _processor() -> str:
    """The processor's model where the system tells, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]} ({platform.machine()})" if models else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
