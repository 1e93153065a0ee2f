"""Many inputs, or inputs guided by what they reach: ``python -m tools.fuzz --help``."""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from npusim.base.errors import NpusimError

CORPUS = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"

#: CPU seconds after which an input counts as a finding.
MOST_SECONDS = 10


class TooSlowError(BaseException):
    """An input took longer than any may."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise ``TooSlowError`` after ``MOST_SECONDS`` of CPU time."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def corpus(name: str) -> list[str]:
    """The committed inputs of a target: each once broke something or reaches what others do not."""
    return [file.read_text(encoding="utf-8") for file in sorted((CORPUS / name).glob("*.txt"))]


def campaign(name: str, count: int, seed: int, findings: Path) -> tuple[Counter[str], float]:
    """Try ``count`` inputs of a target; what happened how often, and the slowest in CPU seconds."""
    from tools.fuzz.targets import TARGETS, tried  # noqa: PLC0415 - after the folder is chosen

    target, random = TARGETS[name], Random(f"{name} {seed}")
    texts = [*target.seeds(), *corpus(name)]
    outcomes, slowest, seen = Counter[str](), 0.0, set[str]()
    for _ in range(count):
        text = target.make(texts, random)
        begun = time.process_time()
        try:
            with limited():
                error = tried(target, text)
        except (TooSlowError, MemoryError) as late:
            error = late
        slowest = max(slowest, time.process_time() - begun)
        refused = isinstance(error, NpusimError)
        outcomes["taken" if error is None else "refused" if refused else "findings"] += 1
        if error is not None and not refused:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} {place.filename}:{place.lineno}"
            if kind not in seen:
                seen.add(kind)
                file = (
                    findings
                    / f"{name}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}.txt"
                )
                findings.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text.encode("utf-8", "surrogatepass"))
                print(f"{name}: {kind}: {error}; the input is in {file}", flush=True)
    return outcomes, slowest


@contextmanager
def watched() -> Iterator[None]:
    """Let Atheris see which lines are reached of modules that are imported in this block."""
    atheris: Any = import_module("atheris")  # optional, for this alone
    # Numba compiles byte code as it is written, not as Atheris changes it.
    with atheris.instrument_imports(
        include=["npusim"], exclude=["npusim.machine.timing.fast", "npusim.kernels"]
    ):
        yield


def guided(name: str, count: int, seed: int, findings: Path) -> bool:
    """Let Atheris (libFuzzer) change inputs so that they reach code that none has reached.

    It ends its process, so it has one; returns whether that found anything.
    """
    child = os.fork()
    if not child:
        try:
            _fuzz(name, count, seed, findings)
        finally:
            os._exit(1)  # Atheris has ended the process before
    return os.waitpid(child, 0)[1] != 0


def _fuzz(name: str, count: int, seed: int, findings: Path) -> None:
    from tools.fuzz.targets import TARGETS, tried  # noqa: PLC0415 - after the folder is chosen

    atheris: Any = import_module("atheris")
    target = TARGETS[name]

    def one(data: bytes) -> None:
        error = tried(target, data.decode("utf-8", "replace"))
        if error is not None and not isinstance(error, NpusimError):
            raise error

    grown = findings / f"grown-{name}"
    grown.mkdir(parents=True, exist_ok=True)
    for text in (*target.seeds(), *corpus(name)):
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
        (grown / digest).write_text(text, encoding="utf-8", errors="replace")
    options = [
        *(
            f"-runs={count}",
            f"-seed={seed + 1}",
            f"-timeout={MOST_SECONDS}",
            "-print_final_stats=1",
        ),
        f"-artifact_prefix={findings}/{name}-",
    ]
    atheris.Setup([sys.argv[0], str(grown), *options], one)
    atheris.Fuzz()


def main(words: list[str]) -> int:
    """Run a campaign; 1 if it found anything."""
    with watched() if "--guided" in words else nullcontext():
        return _main(words)


def _main(words: list[str]) -> int:
    from tools.fuzz.targets import TARGETS  # noqa: PLC0415 - after the folder is chosen

    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--count", type=int, default=1000, help="inputs per target (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes (0)")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="folder for them")
    parser.add_argument("--guided", action="store_true", help="by coverage, with Atheris")
    asked = parser.parse_args(words)
    found = False
    for name in asked.targets or TARGETS:
        if asked.guided:
            print(f"{name}:", flush=True)
            found |= guided(name, asked.count, asked.seed, asked.findings.absolute())
            continue
        begun = time.process_time()
        outcomes, slowest = campaign(name, asked.count, asked.seed, asked.findings.absolute())
        took = time.process_time() - begun
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found = found or bool(outcomes["findings"])
        print(
            f"{name}: {asked.count:,} inputs, {outcomes['taken']:,} taken, "
            f"{outcomes['refused']:,} refused, {outcomes['findings']} findings, {took:.0f} CPU s, "
            f"slowest {slowest:.1f} s, {memory} MiB",
            flush=True,
        )
    return int(found)


if __name__ == "__main__":
    warnings.simplefilter("error")
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NPUSIM_CACHE"] = folder
        arguments = [str(here / w) if w == "build/fuzz" else w for w in sys.argv[1:]]
        arguments += [] if "--findings" in arguments else ["--findings", str(here / "build/fuzz")]
        sys.path.insert(0, str(here))
        os.chdir(folder)  # commands write files
        tempfile.tempdir = folder
        try:
            status = main(arguments)
        finally:
            os.chdir(here)
    sys.exit(status)
