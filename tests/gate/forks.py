"""The worker of ``npusim gate`` as forks of one process that has imported npusim already.

Importing is nearly all that a gate of a small kernel costs. ``forked_workers`` of ``conftest.py``
sends the workers' commands here; tests of the real processes do without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from npusim.gate import trees, work

ROOT = Path(__file__).parents[2]

#: Commands that import what those of the tests import.
WARM_UP = (
    "run matmul --device tiny --m 16 --k 16 --n 16 --timing-only --json",
    "explain matmul --device tiny --m 16 --k 16 --n 16 --no-what-if --json",
)


class Forks:
    """Stands for ``subprocess`` in ``npusim.gate.trees``; ``close`` ends the process of forks."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        """Start the process that forks."""
        self._lock = Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.gate.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._server.communicate()

    def run(self, command: Sequence[str], **options: Any) -> Any:
        """Run a worker in a fork, one at a time, and any other command as it is."""
        if str(trees._WORKER) not in command:
            return subprocess.run(command, **options)  # noqa: PLW1510 - the caller says
        *_, answers, root = command
        request = {
            "answers": answers,
            "root": root,
            "lines": options["input"].decode(),
            "folder": str(options["cwd"]),
            "environment": dict(options["env"]),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._lock:
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            status = self._server.stdout.readline()
        assert status, "the process of forks ended"
        return subprocess.CompletedProcess(command, int(status))


def serve() -> None:
    """Answer each request, a line of stdin, in a fork; write its status as a line of stdout."""
    from npusim.cli.main import main  # noqa: PLC0415 - of the process of forks alone

    with contextlib.redirect_stdout(io.StringIO()):
        for line in WARM_UP:
            main(line.split())
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _answer(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


def _answer(request: Mapping[str, Any]) -> None:
    """Do what the worker's script does with the folder, environment and lines of a request."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.dont_write_bytecode = True
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.stdin = io.StringIO(request["lines"])
    with Path(os.devnull).open("w", encoding="utf-8") as sys.stdout:
        work.work(request["answers"], request["root"])
    os._exit(0)


if __name__ == "__main__":
    serve()
