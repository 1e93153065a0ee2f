"""The script that ``npusim gate`` runs in a process of each revision: lines in, answers out.

Its arguments are the file of the answers and the folder of the revision. It reads a list of lines
(words behind ``npusim``) as JSON, and writes an answer for each as a line of JSON: ``facts``, as
the command's --json has them, and ``error``, "" where there is none. Of the revision's npusim it
uses the part that all revisions have: the command line. Steps of an explanation get ``file``, the
path of their source below the folder ("" elsewhere), and ``text``, their line of it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import sys
from pathlib import Path
from typing import Any

#: The package whose files have the lines of emitted instructions.
_KERNELS = "npusim.kernels."


def work(answers: str, root: str) -> None:
    """Answer the lines of stdin one after another; each answer is written at once."""
    folder = Path(root)
    with contextlib.suppress(ImportError):  # in revisions that use all processors by themselves
        importlib.import_module("npusim.base.processes").work_for_another()
    with Path(answers).open("a", encoding="utf-8") as file, _store():
        for words in json.load(sys.stdin):
            before = set(sys.modules)
            answer = _answer(words)
            _locate(answer["facts"], folder)
            print(json.dumps(answer), file=file, flush=True)
            for name in sys.modules.keys() - before:  # of the folder of one kernel, not of the next
                if not name.startswith("npusim.") and _below(name, folder):
                    del sys.modules[name]


def _store() -> Any:
    """Open the user's cache of runs, where the revision has one, by the names it has had."""
    for module in ("npusim.reuse.answers", "npusim.reuse.cache"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(module).answers_in("")
    return contextlib.nullcontext()


def _answer(words: list[str]) -> dict[str, Any]:
    main = importlib.import_module("npusim.cli.main").main  # of the revision, like all of npusim
    out = io.StringIO()
    err = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: Any = main([*words, "--json"])
    except (Exception, SystemExit) as error:  # of the revision; the next line may lack it
        print(f"{type(error).__name__}: {error}", file=err)
        status = 1
    text = f"\n{out.getvalue()}"  # before the JSON stands what kernels print
    start = text.rfind("\n{\n")
    facts = json.loads(text[start:]) if start >= 0 else {}
    last_line = err.getvalue().strip().rpartition("\n")[2]
    message = last_line.removeprefix("npusim: error: ") or "it told nothing"
    return {"facts": facts, "error": message if status else ""}


def _below(name: str, root: Path) -> str:
    """The path of a module's file below a folder, "" where it lies elsewhere."""
    file = Path(getattr(sys.modules[name], "__file__", None) or "/").resolve()
    return str(file.relative_to(root)) if file.is_relative_to(root) else ""


def _locate(facts: dict[str, Any], root: Path) -> None:
    """Give the steps of an explanation the file and the text of their lines."""
    steps = [step for kernel in facts.get("kernels", ()) for step in kernel.get("path", ())]
    if not steps:
        return
    files = _sources(root)
    for step in steps:
        name, _, line = step["line"].rpartition(":")
        source, step["file"] = files.get(name, ("", ""))
        step["text"] = linecache.getline(source, int(line)).strip() if source else ""


def _sources(root: Path) -> dict[str, tuple[str, str]]:
    """The files of kernels by name: the full path, and the path below the folder."""
    files: dict[str, tuple[str, str]] = {}
    for name in sorted(sys.modules):
        path = _below(name, root)
        source = getattr(sys.modules[name], "__file__", None) or ""
        if name.startswith(_KERNELS):
            files.setdefault(Path(source).name, (source, path))
        elif path and not name.startswith("npusim."):  # a user's kernel goes before ours
            files[Path(source).name] = source, path
    return files


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != here]
    work(sys.argv[1], sys.argv[2])
