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
from npusim.cli.readers import COUNT
from npusim.cli.shared import add_file_option, add_json_option
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
from npusim.gate.trees import Change, Line, Tree

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
    parser.add_argument(
        "--jobs",
        type=COUNT,
        default=2,
        metavar="N",
        help="processes that simulate at once (default: 2)",
    )
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
    kept = load(against) if against and against.endswith(".json") else None
    if against and kept is not None:
        require_case(against, kept, arguments.file, cases)
    commit = trees.commit_of(tree, against) if against else ""
    if against and kept is None and not commit:
        raise ArgumentError(
            f"--against {against!r} is no file ending in .json, and git knows no such revision in "
            f"{tree.root}; fetch it, or write a baseline with --save"
        )
    with ExitStack() as stack:

        @cache
        def other() -> Tree:
            return stack.enter_context(trees.revision(tree, commit))

        gate = _Gate({case.name: case for case in cases}, tree, other, arguments.jobs)
        after, *others = gate.times([tree, *([other()] if commit and kept is None else [])])
        stated = kept or _stated(tree, commit, arguments)
        found = judge(cases, {**stated, **(others[0] if others else {})}, after)
        found = gate.explained(found, commit) if commit else found
    judged = Judged(file=arguments.file, against=against or "", findings=found)
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
    jobs: int

    def times(self, among: Sequence[Tree]) -> list[dict[str, Times]]:
        """The times of all cases in each tree."""
        lines = [_timed(case) for case in self.cases.values()]
        trees.simulate(among, lines, self.jobs)
        told = (zip(self.cases, one.answers(lines), strict=True) for one in among)
        return [{name: times_of(answer) for name, answer in one} for one in told]

    def explained(self, found: Sequence[Finding], commit: str) -> tuple[Finding, ...]:
        """The findings, with changes and instructions for those that lost most."""
        slower = [one for one in found if one.verdict == "slower"]
        slower.sort(key=lambda one: (one.before or 0) - (one.after or 0))
        if not slower:
            return tuple(found)
        other = self.other()
        shown = slower[:_EXPLAINED]
        # A whole network is explained by its layer that lost most.
        parts = {one.case: one.part for one in reversed(slower) if one.part}
        why = {one: _why(self.cases[one.case], parts.get(one.case, one.part)) for one in shown}
        lines = [line for some in why.values() for line in some]
        trees.simulate([self.tree, other], lines, self.jobs)
        culprits = self._culprits([*dict.fromkeys(one.case for one in shown)], commit)
        told = {
            one: replace(
                one,
                grown=grown(_kernels(other, some), _kernels(self.tree, some)),
                culprits=tuple(culprits[one.case, one.part]),
            )
            for one, some in why.items()
        }
        return tuple(told.get(one, one) for one in found)

    def _culprits(self, names: Sequence[str], commit: str) -> dict[tuple[str, str], list[Change]]:
        """By case and part the changes that alone make it slower, those that cost most first."""
        other = self.other()
        lines = [_timed(self.cases[name]) for name in names]
        usual = [times_of(answer) for answer in other.answers(lines)]
        found: dict[tuple[str, str], list[Change]] = defaultdict(list)
        for change, answers in trees.alone(other, trees.changes(self.tree, commit), lines):
            for name, before, answer in zip(names, usual, answers, strict=True):
                for part, now in times_of(answer).items():
                    then = before.get(part)
                    if isinstance(then, int) and isinstance(now, int) and now > then:
                        made = replace(change, patch="", cycles=now - then)
                        found[name, part].append(made)
        for costs in found.values():
            costs.sort(key=lambda one: -one.cycles)
        return found


def _timed(case: Case) -> Line:
    """The line that times a case."""
    return (*case.words, *(("--timing-only",) if case.words[0] == "run" else ()))


def _why(case: Case, part: str) -> tuple[Line, ...]:
    """The lines that explain a case or a layer of it; none where no line does."""
    command, *words = case.words
    if command == "run":
        return (("explain", *words, "--no-what-if"),)
    asked, shared = parsed(case.words), []
    for at, word in enumerate(words):
        flag, equals, _ = word.partition("=")
        shared += words[at : at + 2 - bool(equals)] if flag in _SHARED else []
    layer = ("--layer", f"{asked.workload}/{part}", *shared, "--no-what-if")
    operators = _OPERATORS[asked.passes or "backward"] if part else ()
    return tuple(("explain", operator, *layer) for operator in operators)


def _kernels(tree: Tree, lines: Sequence[Line]) -> list[Step]:
    told = (one["facts"].get("kernels", ()) for one in tree.answers(lines))
    return [kernel for kernels in told for kernel in kernels]
