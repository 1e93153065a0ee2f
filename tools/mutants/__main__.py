"""Mutants: small changes to the code, each of which some test should notice (``make mutants``).

Cosmic Ray makes them and runs the tests; a random sample of each package is enough to say how
many live. They are made in a copy of the tree, so that a stop leaves nothing changed.

    python -m tools.mutants machine/isa machine/numerics --count 40 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import toml
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build" / "mutants"

#: Tests of each package: those that come fast, then those that hold its figures and numbers in
#: whole calls. The second are run only where the first see nothing.
TESTS = {
    "machine/isa": ("tests/machine/isa", "tests/replay"),
    "machine/program": ("tests/machine/program tests/machine/isa", "tests/replay"),
    "machine/timing": (
        "tests/machine/timing/test_timing_by_hand.py tests/machine/timing/test_fabric.py "
        "tests/machine/timing/test_l2.py",
        "tests/machine/timing tests/replay",
    ),
    "machine/numerics": ("tests/machine/numerics tests/machine/isa", "tests/replay"),
    "problem/limits": ("tests/problem/limits", "tests/compat"),
    "results": ("tests/results", "tests/cli"),
}

#: Code that is compiled is not Python when it runs: each mutant would have to be compiled.
LEFT_OUT = {"machine/timing": ("fast",)}

#: Changes that no test can or should see: those of annotations, and keywords of declarations.
SILENT = ("core/ReplaceBinaryOperator_BitOr", "core/RemoveDecorator")

#: Seconds until a mutant that never ends counts as noticed.
TIMEOUT_S = 900.0


def main() -> int:
    """Make the mutants asked for, run the tests on each, print the score and who lived."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("packages", nargs="*", choices=[*TESTS, []], help="default: all")
    parser.add_argument("--count", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    _copy()
    lived = 0
    for package in arguments.packages or TESTS:
        lived += _package(package, arguments.count, arguments.seed)
    return 1 if lived else 0


def _copy() -> None:
    """The tree as it is, without what git ignores."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def _package(package: str, count: int, seed: int) -> int:
    """The score of one package; how many of its mutants lived."""
    label = package.replace("/", "-")
    session = COPY / f"{label}.sqlite"
    config = COPY / f"{label}.toml"
    config.write_text(toml.dumps({"cosmic-ray": _config(package)}), encoding="utf-8")
    _cosmic_ray("init", config.name, session.name)
    with use_db(session, WorkDB.Mode.open) as base:
        total = _sample(base, count, random.Random(seed))
    _cosmic_ray("exec", config.name, session.name)
    with use_db(session, WorkDB.Mode.open) as base:
        return _told(package, total, base)


def _config(package: str) -> dict[str, object]:
    runs = [_pytest(tests) for tests in TESTS[package]]
    return {
        "module-path": f"npusim/{package}",
        "timeout": TIMEOUT_S,
        "excluded-modules": [f"npusim/{package}/{part}/*.py" for part in LEFT_OUT.get(package, ())],
        "test-command": f"sh -c {shlex.quote(' && '.join(runs))}",
        "distributor": {"name": "local"},
    }


def _pytest(tests: str) -> str:
    return f"{shlex.quote(sys.executable)} -m pytest -x -q -p no:cacheprovider {tests}"


def _cosmic_ray(*words: str) -> None:
    # The copy's own modules, not those of the environment's installation.
    environment = os.environ | {"PYTHONPATH": str(COPY), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "cosmic_ray.cli", *words]
    subprocess.run(command, cwd=COPY, env=environment, check=True)


def _sample(base: WorkDB, count: int, chosen: random.Random) -> int:
    """Leave ``count`` mutants to do; of how many."""
    items = [item for item in base.work_items if _tells(item)]
    keep = {item.job_id for item in chosen.sample(items, min(count, len(items)))}
    drop = [item.job_id for item in base.work_items if item.job_id not in keep]
    base.set_multiple_results(drop, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(items)


def _tells(item: WorkItem) -> bool:
    return not any(m.operator_name.startswith(SILENT) for m in item.mutations)


def _told(package: str, total: int, base: WorkDB) -> int:
    """Print who was noticed and who lived."""
    done = [r for _, r in base.results if r.worker_outcome != WorkerOutcome.SKIPPED]
    counts = Counter(str(r.test_outcome.value) for r in done if r.test_outcome is not None)
    lived = [r for r in done if r.test_outcome is not None and r.test_outcome.value == "survived"]
    print(f"{package}: {len(lived)} of {len(done)} lived, of {total:,} possible; {dict(counts)}")
    for result in lived:
        print(_changed(str(result.diff).splitlines()))
    sys.stdout.flush()
    return len(lived)


def _changed(diff: Sequence[str]) -> str:
    """The file, the place and the changed lines of a diff."""
    kept = [line for line in diff if line[:1] in "+-@" and not line.startswith("+++")]
    return "\n".join(f"  {line}" for line in kept)


if __name__ == "__main__":
    raise SystemExit(main())
