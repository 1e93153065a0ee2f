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
from npusim.base.workers import job_count
from npusim.machine.timing.fast.library import environment_of, sources

#: A line of a command, and its answer: facts as its --json has them, and an error.
Line = tuple[str, ...]
Answer = Mapping[str, Any]

#: Variables by which git names its repository to programs it calls; another one must not see them.
_OF_HOOKS = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_COMMON_DIR")

#: The script that runs in a process of a revision.
_WORKER = Path(__file__).with_name("work.py")

#: Where the next file or the next change of a difference begins.
_PARTS = re.compile(r"^(?=diff --git |@@ )", re.MULTILINE)

#: The file of a difference, before and now; behind a name with spaces there is a tab.
_NAMES = re.compile(r"^(?:--- a|\+\+\+ b)/(.*?)\t?$", re.MULTILINE)

#: The most changes that are tried one by one.
_MOST = 24


def git(folder: Path, *words: str, stdin: str = "") -> str:
    """The output of git in ``folder``.

    Raises ``ArgumentError`` with git's own words where it fails, or is not there.
    """
    command = ["env"]
    for variable in _OF_HOOKS:
        command += ["-u", variable]
    command += ["git", "-C", str(folder), "-c", "core.quotepath=off", *words]
    done = subprocess.run(command, input=os.fsencode(stdin), capture_output=True, check=False)
    if done.returncode:
        message = os.fsdecode(done.stderr).strip().replace("\n", "; ")
        raise ArgumentError(f"git {words[0]} in {folder}: {message}")
    return os.fsdecode(done.stdout)


class Tree(Struct, frozen=True):
    """Files of a revision below ``root``; lines are run in ``folder``, which lies in it."""

    root: Path
    folder: Path
    _answers: dict[Line, Answer] = field(default_factory=dict)

    def answers(self, lines: Iterable[Line]) -> list[Answer]:
        """The answers of lines, each simulated once, in one process for all that are new.

        The answer of a line that ends the process is that it does; the next lines run in another.
        """
        wanted = [*lines]
        unanswered = [line for line in dict.fromkeys(wanted) if line not in self._answers]
        while unanswered:
            answers = self._run(unanswered)
            if len(answers) < len(unanswered):
                error = "the process that simulated it died; out of memory, perhaps"
                answers.append({"facts": {}, "error": error})
            self._answers.update(zip(unanswered, answers, strict=False))
            unanswered = unanswered[len(answers) :]
        return [self._answers[line] for line in wanted]

    def _run(self, lines: Sequence[Line]) -> list[Answer]:
        """The answers of lines, as far as the process that simulates them came."""
        with tempfile.TemporaryDirectory(prefix="npusim-gate-") as folder:
            file = Path(folder) / "answers"
            file.touch()
            subprocess.run(
                [sys.executable, str(_WORKER), str(file), str(self.root)],
                input=json.dumps(lines).encode(),
                stdout=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment_of(self.root),
                check=False,
            )
            complete = file.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half
        return [json.loads(line) for line in complete]


def simulate(trees: Sequence[Tree], lines: Sequence[Line], jobs: int | None) -> None:
    """Simulate lines in each tree, in up to ``jobs`` processes at once; trees keep the answers.

    None is one process per processor.
    """
    count = job_count(jobs)
    parts = max(1, min(count // len(trees), len(lines)))
    with ThreadPoolExecutor(count) as pool:
        running = [
            pool.submit(tree.answers, lines[part::parts]) for tree in trees for part in range(parts)
        ]
        for answers in running:
            answers.result()


def here() -> Tree:
    """The files as they are now: of the repository of this folder, or of the folder alone."""
    folder = Path.cwd()
    try:
        return Tree(Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n")), folder)
    except ArgumentError:
        return Tree(folder, folder)


def commit_of(tree: Tree, name: str) -> str:
    """The commit of a revision, or the last that changed a file ending in .json; "" without one."""
    if name.endswith(".json"):
        words = ["log", "-1", "--format=%H", "--", str(Path(name).absolute())]
    else:
        words = ["rev-parse", "--verify", f"{name}^{{commit}}"]
    try:
        return git(tree.root, *words).strip()
    except ArgumentError:
        return ""


@contextmanager
def revision(tree: Tree, commit: str) -> Iterator[Tree]:
    """The files of a commit, in a folder that is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="npusim-gate-") as temporary:
        root = Path(temporary).resolve() / tree.root.name
        git(tree.root, "worktree", "add", "--detach", "--quiet", str(root), commit)
        try:
            folder = root / tree.folder.relative_to(tree.root)
            yield Tree(root, folder if folder.is_dir() else root)
        finally:
            git(tree.root, "worktree", "remove", "--force", str(root))


@dataclass(frozen=True)
class SourceChange:
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


def changes(tree: Tree, commit: str) -> list[SourceChange]:
    """The differences of sources from a commit, each change that can be tried alone.

    Compiled code cannot, as each change of it would be compiled, nor can text that is no code.
    """
    compiled = tuple("/".join(source.parts[-3:]) for source in sources())
    changes: list[SourceChange] = []
    head = ""
    file = ""
    for part in _PARTS.split(_difference(tree, commit)):
        if not part.startswith("@@"):
            head = part
            names = _NAMES.findall(part)
            file = names[-1] if names else ""
            continue
        line, text = _first_code(part)
        if not text or file.endswith(compiled):
            continue
        if len(changes) < _MOST or changes[-1].file != file:
            changes.append(SourceChange(file, line, text, head + part))
        else:  # of many changes, those of a file at the end are tried together
            changes[-1] = replace(changes[-1], patch=changes[-1].patch + part)
    return changes


def _difference(tree: Tree, commit: str) -> str:
    """The difference of sources from a commit, as git writes it without lines around."""
    return git(
        tree.root,
        "diff",
        "--unified=0",
        "--no-color",
        "--no-ext-diff",
        "--no-renames",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        commit,
        "--",
        "*.py",
        "*.yaml",
        "*.yml",
    )


def _first_code(hunk: str) -> tuple[int, str]:
    """Number and text of a change's first line of code, which may be removed; "" without code."""
    head, *lines = hunk.split("\n")
    first = int(head.partition("+")[2].split()[0].split(",")[0])
    added = [line[1:].strip() for line in lines if line[:1] == "+"]
    for place, text in enumerate(added):
        if text and text[0] != "#":
            return max(1, first + place), text
    removed = [line[1:].strip() for line in lines if line[:1] == "-"]
    for text in removed:
        if text and text[0] != "#":
            return max(1, first), text
    return max(1, first), ""


def alone(
    tree: Tree, changes: Sequence[SourceChange], lines: Sequence[Line]
) -> Iterator[tuple[SourceChange, list[Answer]]]:
    """The answers of lines where each change in turn is made to a revision, and no other."""
    for number, change in enumerate(changes):
        git(tree.root, "apply", "--unidiff-zero", stdin=change.patch)
        _set_time(tree.root / change.file, 2 * number)
        yield change, Tree(tree.root, tree.folder).answers(lines)
        git(tree.root, "apply", "--unidiff-zero", "--reverse", stdin=change.patch)
        _set_time(tree.root / change.file, 2 * number + 1)


def _set_time(file: Path, seconds: int) -> None:
    """Give a file that is there a time of its own, by which Python knows compiled code."""
    if file.exists():
        os.utime(file, (seconds, seconds))
