"""What ``npusim gate`` runs in a process of each revision: lines in, what they take out.

A script, given the file of the answers and the folder of the revision. It reads a list of lines
(words behind ``npusim``) as JSON, and writes an answer for each as a line of JSON: ``facts``, as
the command's --json tells them, and ``error``, "" where there is none. Of the revision's npusim it
uses what all revisions have: the command line. Steps of an explanation get ``file``, the path of
their source below the folder ("" elsewhere), and ``text``, their line of it.
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

#: Where emitted instructions have their lines.
_KERNELS = "npusim.kernels."


def work(answers: str, root: str) -> None:
    """Answer the lines of stdin one after another; each answer is written at once."""
    with Path(answers).open("a", encoding="utf-8") as told, _store():
        for words in json.load(sys.stdin):
            known = set(sys.modules)
            answer = _answer(words)
            _locate(answer["facts"], Path(root))
            print(json.dumps(answer), file=told, flush=True)
            for name in {*sys.modules} - known:  # of the folder of one kernel, not of the next
                if not name.startswith("npusim.") and _below(name, Path(root)):
                    del sys.modules[name]


def _store() -> Any:
    """Open the user's cache of runs, where the revision has one, by the names it has had."""
    for module in ("npusim.reuse.answers", "npusim.reuse.cache"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(module).answers_in("")
    return contextlib.nullcontext()


def _answer(words: list[str]) -> dict[str, Any]:
    main = importlib.import_module("npusim.cli.main").main  # of the revision, like all of npusim
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: Any = main([*words, "--json"])
    except (Exception, SystemExit) as error:  # of the revision; the next line may lack it
        print(f"{type(error).__name__}: {error}", file=err)
        status = 1
    text = f"\n{out.getvalue()}"  # before the JSON stands what kernels print
    at = text.rfind("\n{\n")
    facts = json.loads(text[at:]) if at >= 0 else {}
    said = err.getvalue().strip().rpartition("\n")[2].removeprefix("npusim: error: ")
    return {"facts": facts, "error": said or "it told nothing" if status else ""}


def _below(name: str, root: Path) -> str:
    """The path of a module's file below a folder, "" where it lies elsewhere."""
    file = Path(getattr(sys.modules[name], "__file__", None) or "/").resolve()
    return str(file.relative_to(root)) if file.is_relative_to(root) else ""


def _locate(facts: dict[str, Any], root: Path) -> None:
    steps = [step for one in facts.get("kernels", ()) for step in one.get("path", ())]
    if not steps:
        return
    files: dict[str, tuple[str, str]] = {}
    for name in sorted(sys.modules):
        path = _below(name, root)
        whole = getattr(sys.modules[name], "__file__", None) or ""
        if name.startswith(_KERNELS):
            files.setdefault(Path(whole).name, (whole, path))
        elif path and not name.startswith("npusim."):  # a user's kernel goes before ours
            files[Path(whole).name] = whole, path
    for step in steps:
        file, _, line = step["line"].rpartition(":")
        whole, step["file"] = files.get(file, ("", ""))
        step["text"] = linecache.getline(whole, int(line)).strip() if whole else ""


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != here]
    work(sys.argv[1], sys.argv[2])
