"""Revisions of a repository as folders, the processes that simulate in them, and single changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.machine.timing.fast.library import environment_of, sources

#: A line of a command, and what it told: facts as its --json has them, and an error.
Line = tuple[str, ...]
Answer = Mapping[str, Any]

#: What git tells those it calls of their repository, and which must not be told of another one.
_OF_HOOKS = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_COMMON_DIR")

#: What is run in a process of a revision.
_WORKER = Path(__file__).with_name("work.py")

#: Where the next file or the next change of a difference begins.
_PARTS = re.compile(r"^(?=diff --git |@@ )", re.MULTILINE)

#: The file of a difference, before and now; behind a name with spaces there is a tab.
_NAMES = re.compile(r"^(?:--- a|\+\+\+ b)/(.*?)\t?$", re.MULTILINE)

#: Changes that are tried one by one.
_MOST = 24


def git(folder: Path, *words: str, given: str = "") -> str:
    """What git prints in ``folder``; ``given`` is its input.

    Raises ``ArgumentError`` with git's own words where it fails, or is not there.
    """
    without = [part for name in _OF_HOOKS for part in ("-u", name)]
    command = ["env", *without, "git", "-C", str(folder), "-c", "core.quotepath=off", *words]
    done = subprocess.run(command, input=os.fsencode(given), capture_output=True, check=False)
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().replace("\n", "; ")
        raise ArgumentError(f"git {words[0]} in {folder}: {said}")
    return os.fsdecode(done.stdout)


class Tree(Struct, frozen=True):
    """Files of a revision below ``root``; lines are run in ``folder``, which lies in it."""

    root: Path
    folder: Path
    _answers: dict[Line, Answer] = field(default_factory=dict)

    def answers(self, lines: Iterable[Line]) -> list[Answer]:
        """What lines tell, each simulated once, in a process of its own for all that are new.

        Of a line that ends the process, the answer is that it does; those after it have another.
        """
        asked = [*lines]
        left = [line for line in dict.fromkeys(asked) if line not in self._answers]
        while left:
            told = self._run(left)
            if len(told) < len(left):
                what = "the process that simulated it died; out of memory, perhaps"
                told.append({"facts": {}, "error": what})
            self._answers.update(zip(left, told, strict=False))
            left = left[len(told) :]
        return [self._answers[line] for line in asked]

    def _run(self, lines: Sequence[Line]) -> list[Answer]:
        with tempfile.TemporaryDirectory(prefix="npusim-gate-") as made:
            file = Path(made) / "answers"
            file.touch()
            subprocess.run(
                [sys.executable, str(_WORKER), str(file), str(self.root)],
                input=json.dumps(lines).encode(),
                stdout=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment_of(self.root),
                check=False,
            )
            whole = file.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half
        return [json.loads(line) for line in whole]


def simulate(among: Sequence[Tree], lines: Sequence[Line], jobs: int) -> None:
    """Simulate lines in each tree, in up to ``jobs`` processes at once; trees keep the answers."""
    parts = max(1, jobs // len(among))
    asked = [(tree, lines[at::parts]) for tree in among for at in range(parts)]
    with ThreadPoolExecutor(jobs) as pool:
        _ = [*pool.map(lambda one: one[0].answers(one[1]), asked)]


def here() -> Tree:
    """The files as they are now: of the repository of this folder, or of the folder alone."""
    folder = Path.cwd()
    try:
        return Tree(Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n")), folder)
    except ArgumentError:
        return Tree(folder, folder)


def commit_of(tree: Tree, name: str) -> str:
    """The commit of a revision, or the last that changed a file ending in .json; "" without one."""
    log = ("log", "-1", "--format=%H", "--", str(Path(name).absolute()))
    words = log if name.endswith(".json") else ("rev-parse", "--verify", f"{name}^{{commit}}")
    try:
        return git(tree.root, *words).strip()
    except ArgumentError:
        return ""


@contextmanager
def revision(tree: Tree, commit: str) -> Iterator[Tree]:
    """The files of a commit, in a folder that is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="npusim-gate-") as made:
        root = Path(made).resolve() / tree.root.name
        git(tree.root, "worktree", "add", "--detach", "--quiet", str(root), commit)
        try:
            folder = root / tree.folder.relative_to(tree.root)
            yield Tree(root, folder if folder.is_dir() else root)
        finally:
            git(tree.root, "worktree", "remove", "--force", str(root))


@dataclass(frozen=True)
class Change:
    """Lines of a file that differ from a revision: the first of them as it is now, and git's patch.

    With this change alone a call takes ``cycles`` more than in the revision.
    """

    file: str
    line: int
    text: str
    patch: str = ""
    cycles: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.cycles:+,} cycles alone: {self.text}"


def changes(tree: Tree, commit: str) -> list[Change]:
    """What differs from a commit in sources, each change that can be tried alone.

    Compiled code cannot, as each change of it would be compiled, nor can what is no code.
    """
    words = ("--unified=0", "--no-color", "--no-ext-diff", "--no-renames", "--src-prefix=a/")
    named = ("--dst-prefix=b/", commit, "--", "*.py", "*.yaml", "*.yml")
    compiled = tuple("/".join(source.parts[-3:]) for source in sources())
    found: list[Change] = []
    head = file = ""
    for part in _PARTS.split(git(tree.root, "diff", *words, *named)):
        if not part.startswith("@@"):
            head, file = part, "".join(_NAMES.findall(part)[-1:])
            continue
        line, text = _first(part)
        if not text or file.endswith(compiled):
            continue
        if len(found) < _MOST or found[-1].file != file:
            found.append(Change(file, line, text, head + part))
        else:  # of many changes, those of a file at the end are tried together
            found[-1] = replace(found[-1], patch=found[-1].patch + part)
    return found


def _first(hunk: str) -> tuple[int, str]:
    """The first line of code of a change, or what it removes; of no code there is no text."""
    head, *lines = hunk.split("\n")
    now, gone = ([one[1:].strip() for one in lines if one[:1] == mark] for mark in "+-")
    code = [*enumerate(now), *((0, text) for text in gone)]
    place, text = next((one for one in code if one[1] and one[1][0] != "#"), (0, ""))
    return max(1, int(head.partition("+")[2].split()[0].split(",")[0]) + place), text


def alone(
    tree: Tree, tried: Sequence[Change], lines: Sequence[Line]
) -> Iterator[tuple[Change, list[Answer]]]:
    """What lines tell where each change in turn is made to a revision's ``tree``, and no other."""
    for number, one in enumerate(tried):
        for turn, way in enumerate(((), ("--reverse",))):
            git(tree.root, "apply", "--unidiff-zero", *way, given=one.patch)
            if (tree.root / one.file).exists():  # Python knows compiled code by the file's time
                os.utime(tree.root / one.file, (2 * number + turn,) * 2)
            if not turn:
                yield one, Tree(tree.root, tree.folder).answers(lines)
