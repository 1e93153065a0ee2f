"""``npusim gate``: cases of a file in two revisions; status 1 where one got slower, or fails."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache

from msgspec import Struct

from npusim.base.atomic_files import write
from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.records import replace
from npusim.cli.files import check_files, print_result, write_files
from npusim.cli.main import FAILED, parsed
from npusim.cli.parser import Parser
from npusim.cli.shared import add_file_option, add_jobs_option, add_json_option
from npusim.gate import trees
from npusim.gate.judged import (
    Case,
    Finding,
    Judged,
    Step,
    Times,
    gate_file,
    grown,
    judge,
    load,
    read_cases,
    require_case,
    save,
    shipped_gates,
    times_of,
)
from npusim.gate.trees import Line, SourceChange, Tree

#: Findings that are explained, those that lost most.
_EXPLAINED = 8

#: Operators that run a layer in the passes of a network, and the options they share with it.
_OPERATORS = {
    "forward": ("convolution",),
    "backward": ("convolution_backward",),
    "training": ("convolution", "convolution_backward"),
}
_SHARED = ("--batch", "--dtype", "--device", "--set", "--cores", "--rules", "--launch", "--engine")


def add_arguments(parser: Parser) -> None:
    """Declare ``gate``."""
    parser.epilog = """\
examples:
  npusim gate gate.yaml --against main
  npusim gate gate.yaml --save baseline.json
  npusim gate gate.yaml --against baseline.json --junit gate.xml --github
"""
    shipped = ", ".join(shipped_gates())
    parser.add_argument(
        "file",
        metavar="FILE",
        help=f"a gate file, ending in .yaml, or one that ships: {shipped}",
    )
    parser.add_argument(
        "--against",
        metavar="WHAT",
        help="a revision of the git repository of this folder, such as main, or a file ending in "
        ".json that --save wrote (default: nothing is compared)",
    )
    add_jobs_option(parser, "simulate cases")
    parser.add_argument(
        "--github",
        action="store_true",
        help="print annotations, too, which GitHub shows on the lines (default: no)",
    )
    add_json_option(
        parser, "print the findings as JSON, nothing else, on stdout (default: a text report)"
    )
    files = parser.add_argument_group("files to write")
    add_file_option(
        files, "--save", "the times as they are now, as a baseline, .json (default: none)"
    )
    add_file_option(
        files, "--junit", "the cases as a suite of tests in JUnit's XML, .xml (default: none)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print what became of the cases; status 1 where one of them fails the gate."""
    against = arguments.against
    cases = read_cases(gate_file(arguments.file))
    if against is None and arguments.save is None:
        raise ArgumentError("--against or --save is missing: what to compare with, or to write")
    check_files(arguments, save=(".json",), junit=(".xml",))
    tree = trees.here()
    for case in cases:
        _check(case)
    baseline = load(against) if against and against.endswith(".json") else None
    if against and baseline is not None:
        require_case(against, baseline, arguments.file, cases)
    commit = trees.commit_of(tree, against) if against else ""
    if against and baseline is None and not commit:
        raise ArgumentError(
            f"--against {against!r} is no file ending in .json, and git knows no such revision in "
            f"{tree.root}; fetch it, or write a baseline with --save"
        )
    with ExitStack() as stack:

        @cache
        def revision() -> Tree:
            return stack.enter_context(trees.revision(tree, commit))

        gate = _Gate({case.name: case for case in cases}, tree, revision, arguments.jobs)
        compares_revision = bool(commit) and baseline is None
        if compares_revision:
            after, before = gate.times([tree, revision()])
        else:
            (after,) = gate.times([tree])
            before = {}
        stated = baseline or _stated(tree, commit, arguments)
        findings = judge(cases, {**stated, **before}, after)
        if commit:
            findings = gate.explained(findings, commit)
    judged = Judged(file=arguments.file, against=against or "", findings=findings)
    print_result(judged, arguments.json)
    if arguments.github:
        print(judged.for_github(), end="", file=sys.stderr if arguments.json else None)
    write_files(
        arguments,
        save=lambda path: save(path, after),
        junit=lambda path: write(path, judged.junit()),
    )
    return FAILED if judged.failed else 0


def _check(case: Case) -> None:
    """Refuse a line that its command would refuse, before anything is simulated."""
    try:
        parsed(case.words)
    except (ArgumentError, SystemExit) as error:
        what = "asks for help" if isinstance(error, SystemExit) else str(error)
        raise case.node.fail(f"npusim {case.words[0]}: {what}") from error


def _stated(tree: Tree, commit: str, arguments: argparse.Namespace) -> dict[str, Times]:
    """The cases that the gate file had in a commit, with no times."""
    file = gate_file(arguments.file).resolve()
    if commit and file.is_relative_to(tree.root):
        path = file.relative_to(tree.root).as_posix()
        with suppress(ArgumentError, ConfigError):
            text = trees.git(tree.root, "show", f"{commit}:{path}")
            return {case.name: {} for case in read_cases(text, path)}
    return {}


class _Gate(Struct, frozen=True):
    """Cases by name, the files as they are, and those of the revision they are held against."""

    cases: Mapping[str, Case]
    tree: Tree
    other: Callable[[], Tree]
    jobs: int | None

    def times(self, among: Sequence[Tree]) -> list[dict[str, Times]]:
        """The times of all cases in each tree."""
        lines = [_timed(case) for case in self.cases.values()]
        trees.simulate(among, lines, self.jobs)
        times = []
        for tree in among:
            answers = zip(self.cases, tree.answers(lines), strict=True)
            times.append({name: times_of(answer) for name, answer in answers})
        return times

    def explained(self, findings: Sequence[Finding], commit: str) -> tuple[Finding, ...]:
        """The findings, with changes and instructions for those that lost most."""
        slower = [finding for finding in findings if finding.verdict == "slower"]
        slower.sort(key=_gained)
        if not slower:
            return tuple(findings)
        other = self.other()
        shown = slower[:_EXPLAINED]
        # A whole network is explained by its layer that lost most.
        parts = {finding.case: finding.part for finding in reversed(slower) if finding.part}
        lines_of = {
            finding: _why(self.cases[finding.case], parts.get(finding.case, finding.part))
            for finding in shown
        }
        lines = [line for explaining in lines_of.values() for line in explaining]
        trees.simulate([self.tree, other], lines, self.jobs)
        names = list(dict.fromkeys(finding.case for finding in shown))
        culprits = self._culprits(names, commit)
        explained = {
            finding: replace(
                finding,
                grown=grown(_kernels(other, explaining), _kernels(self.tree, explaining)),
                culprits=tuple(culprits[finding.case, finding.part]),
            )
            for finding, explaining in lines_of.items()
        }
        return tuple(explained.get(finding, finding) for finding in findings)

    def _culprits(
        self, names: Sequence[str], commit: str
    ) -> dict[tuple[str, str], list[SourceChange]]:
        """By case and part the changes that alone make it slower, those that cost most first."""
        other = self.other()
        lines = [_timed(self.cases[name]) for name in names]
        usual = [times_of(answer) for answer in other.answers(lines)]
        culprits: dict[tuple[str, str], list[SourceChange]] = defaultdict(list)
        for change, answers in trees.alone(other, trees.changes(self.tree, commit), lines):
            for name, before, answer in zip(names, usual, answers, strict=True):
                for part, now in times_of(answer).items():
                    then = before.get(part)
                    if isinstance(then, int) and isinstance(now, int) and now > then:
                        culprit = replace(change, patch="", cycles=now - then)
                        culprits[name, part].append(culprit)
        for changes in culprits.values():
            changes.sort(key=lambda change: -change.cycles)
        return culprits


def _gained(finding: Finding) -> int:
    """Cycles that a case gained, below 0 where it lost."""
    return (finding.before or 0) - (finding.after or 0)


def _timed(case: Case) -> Line:
    """The line that times a case."""
    if case.words[0] == "run":
        return (*case.words, "--timing-only")
    return tuple(case.words)


def _why(case: Case, part: str) -> tuple[Line, ...]:
    """The lines that explain a case or a layer of it; none where no line does."""
    command, *words = case.words
    if command == "run":
        return (("explain", *words, "--no-what-if"),)
    if not part:
        return ()
    arguments = parsed(case.words)
    layer = ("--layer", f"{arguments.workload}/{part}", *_shared_words(words), "--no-what-if")
    operators = _OPERATORS[arguments.passes or "backward"]
    return tuple(("explain", operator, *layer) for operator in operators)


def _shared_words(words: Sequence[str]) -> list[str]:
    """The options of a network's line, with their values, that its operators take too."""
    shared: list[str] = []
    for place, word in enumerate(words):
        flag, equals, _ = word.partition("=")
        if flag in _SHARED:
            shared.append(word)
            if not equals:
                shared += words[place + 1 : place + 2]
    return shared


def _kernels(tree: Tree, lines: Sequence[Line]) -> list[Step]:
    """The kernels that explanations speak of."""
    kernels: list[Step] = []
    for answer in tree.answers(lines):
        kernels += answer["facts"].get("kernels", ())
    return kernels
