"""Kills commands at work, at random moments, and compares what they answer afterwards.

    python -m tools.campaigns.kills                     # 26 kills of seed 0
    python -m tools.campaigns.kills net gate --kills 8 --seed 3

A command of ``tools.jobs`` runs with 1, 2 or 4 processes from empty stores; SIGKILL or SIGINT meets
it, or one of its helpers, at a moment drawn within the time that it takes undisturbed. Then it runs
again with the stores and files that are left. The answer must be that of an undisturbed run with
one process, to the byte. A command that lost a helper must give it at once, as one does whose
helper was interrupted, which is for the command to hear of; no helper may outlive its command.
Kills that come too late are not counted, and are drawn again.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from npusim.cli.commands import command_module
from npusim.cli.main import INTERRUPTED
from tools import jobs
from tools.jobs import Folder, Run

#: Commands that are killed, by their names in ``tools.jobs``; those that keep nothing unless they
#: are told to are told.
KEPT = {"net": " --store", "step": " --store", "sweep": "", "tune": "", "explore": ""}
NOT_KEPT = ("gate", "validate")
NAMES = (*KEPT, *NOT_KEPT)

#: What a search says that went on, and no undisturbed one does.
_KNOWN = re.compile(r", [\d,]+ known from before")

#: Seconds until helpers must have ended after their command.
PATIENCE = 20

#: Draws of a moment until a kind of kill is given up: the command is too short for it.
MOST_DRAWS = 30


class Kill(NamedTuple):
    """Which signal meets what: the command itself, or one of its helpers."""

    name: str
    jobs: int
    signal: signal.Signals
    of_helper: bool

    def __str__(self) -> str:
        whom = "helper" if self.of_helper else "command"
        return f"{self.name} --jobs {self.jobs}, {self.signal.name} of a {whom}"

    @property
    def words(self) -> list[str]:
        """The command line."""
        line = jobs.COMMANDS[self.name] + KEPT.get(self.name, "")
        return [*shlex.split(line), "--jobs", str(self.jobs)]


def kinds(names: list[str]) -> list[Kill]:
    """Every kind of kill of these commands."""
    return [
        Kill(name, count, number, of_helper)
        for name in names
        for count in (1, 2, 4)
        for number in (signal.SIGKILL, signal.SIGINT)
        for of_helper in ((False, True) if count > 1 else (False,))
    ]


def helpers(process: int) -> list[int]:
    """The processes that another one started."""
    with suppress(OSError):
        listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
        return [int(child) for child in listed.split()]
    return []


def undisturbed(kill: Kill) -> tuple[Run, float]:
    """A run from empty stores, and its seconds."""
    begun = time.monotonic()
    done = jobs.run(kill.words)
    return done, time.monotonic() - begun


def killed(kill: Kill, moment: float, wanted: str) -> str | None:
    """What is wrong after a kill ``moment`` seconds from the start; "" if nothing is.

    None where the command had ended, or had no helper at the moment or after it.
    """
    with tempfile.TemporaryDirectory(prefix="npusim-kills-") as name:
        folder = Folder(Path(name))
        process = folder.start(kill.words)
        time.sleep(moment)
        started = helpers(process)
        while kill.of_helper and not started and _runs(process):
            time.sleep(0.001)
            started = helpers(process)
        victims = started[-1:] if kill.of_helper else [process]
        if kill.of_helper and not any(map(_works, victims)):
            victims = []
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, kill.signal)
        first = folder.ended(process)
        left = _left(started)
        if not victims or (not kill.of_helper and first.status == 0):
            return None
        again = folder.ended(folder.start(kill.words))
        return _wrong(kill, first, again, wanted) or (f"helpers live on: {left}" if left else "")


def _wrong(kill: Kill, first: Run, again: Run, wanted: str) -> str:
    """What is wrong with a run that was met by a signal, or with the one after it."""
    if kill.of_helper:
        if first.failed or first.answer != wanted:
            return f"the run ended with {first.status}: {first.errors}{first.answer}"
    else:
        status = INTERRUPTED if kill.signal == signal.SIGINT else -kill.signal
        if first.status != status or "Traceback" in first.errors:
            return f"the run ended with {first.status}: {first.errors}"
    if again.failed or _KNOWN.sub("", again.answer) != wanted:
        return f"the run after it ended with {again.status}: {again.errors}{again.answer}"
    return ""


def _runs(process: int) -> bool:
    """Whether a child of this process has not ended; it is not waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _works(process: int) -> bool:
    """Whether a process runs, and is not one that ended and nobody waited for yet."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _left(processes: list[int]) -> list[int]:
    """Those of some helpers that run on after their command ended."""
    deadline = time.monotonic() + PATIENCE
    while left := [one for one in processes if Path(f"/proc/{one}").exists()]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def main() -> int:
    """Print a line per kill; 1 if an answer differed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.campaigns.kills")
    parser.add_argument("names", nargs="*", default=[*NAMES], metavar="NAME")
    parser.add_argument("--kills", type=int, default=26, help="kills that count (default: 26)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if unknown := {*arguments.names} - {*NAMES}:
        parser.error(f"no {', '.join(sorted(unknown))} here; there are {', '.join(NAMES)}")
    random, wanted, seconds = (
        Random(arguments.seed),
        dict[str, str](),
        dict[tuple[str, int], float](),
    )
    every, bad, done = kinds(arguments.names), 0, 0
    for kill in every:
        command_module(
            kill.words[0]
        )  # an interrupt within NumPy's own imports becomes another error
    while every and done < arguments.kills:
        for kill in random.sample(every, min(len(every), arguments.kills - done)):
            if kill.name not in wanted:
                wanted[kill.name] = undisturbed(kill._replace(jobs=1))[0].answer
            at = kill.name, kill.jobs
            if at not in seconds:
                seconds[at] = undisturbed(kill)[1]
            for _ in range(MOST_DRAWS):
                moment = random.uniform(0, seconds[at])
                wrong = killed(kill, moment, wanted[kill.name])
                if wrong is not None:
                    done += 1
                    bad += bool(wrong)
                    says = f"WRONG: {wrong[-2000:]}" if wrong else "equal"
                    print(f"{done:3} {kill}, after {moment:.2f} s: {says}", flush=True)
                    break
            else:
                every.remove(kill)
                print(f"    {kill}: never at work", flush=True)
    print(f"{done} kills, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
