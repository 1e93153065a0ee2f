"""``npusim run``: simulate one call, check its numbers, write what is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from npusim.base.errors import ArgumentError
from npusim.cli import artifacts, calls
from npusim.cli.checks import Check, checked
from npusim.cli.files import print_json, write_files
from npusim.cli.own_kernel import check_expected
from npusim.cli.parser import Parser
from npusim.ops import CARDS
from npusim.program.kernel import Kernel
from npusim.results import Result
from npusim.results.progress import ProgressBar, ProgressLines

#: A line with the operator right behind "run", where it may also stand later.
arrange = calls.arrange


def add_arguments(parser: Parser) -> None:
    """Declare ``run`` and a command for every operator below it."""
    parser.examples = _examples
    calls.add_calls(parser, "run", "files of a run", numbers=True)


def _examples() -> str:
    own = "".join(f"  {card.example}\n" for card in CARDS.values())
    return f"'npusim run OPERATOR --help' lists the options of one.\n\nexamples:\n{own}"


def execute(arguments: argparse.Namespace) -> int:
    """Run the call; the report comes first, so that nothing after it can lose it."""
    asked = {name: getattr(arguments, name) for name in artifacts.FILES}
    wanted: dict[str, Path] = {name: path for name, path in asked.items() if path is not None}
    _check_arguments(arguments, wanted)
    prepared = calls.prepare(arguments, timing_only=arguments.timing_only)
    if arguments.check and isinstance(prepared.problem, Kernel):
        check_expected(prepared.problem)
    if "output" in wanted:
        artifacts.check_output(wanted["output"], prepared.outputs)
    with ProgressBar() if sys.stderr.isatty() else ProgressLines() as progress:
        keep = True if {*artifacts.TIMELINES} & set(wanted) else arguments.timeline
        result = prepared.run(timeline=keep, progress=progress)
    checks = _report(arguments, result, prepared)
    write_files(arguments, **artifacts.writers(arguments, result, prepared))
    return 0 if all(check.passed for check in checks) else 1


def _check_arguments(arguments: argparse.Namespace, wanted: Mapping[str, Path]) -> None:
    """Refuse options that do not go together before anything is computed."""
    for option in ("check", "input"):
        if arguments.timing_only and getattr(arguments, option):
            raise ArgumentError(
                f"--{option} needs numbers, which --timing-only leaves out; drop one"
            )
    artifacts.check(wanted, arguments)


def _report(arguments: argparse.Namespace, result: Result, prepared: calls.Prepared) -> list[Check]:
    """Print the result, as text before it is checked, as JSON with the check in it."""
    told = {"time_range": result.time_range.to_json()} if arguments.range else {}
    if not arguments.json:
        sys.stdout.write(result.text())
        sys.stdout.flush()
    checks = checked(result, prepared.outputs, prepared.sample) if arguments.check else []
    if arguments.json:
        found = {
            "passed": all(check.passed for check in checks),
            "outputs": [check.to_json() for check in checks],
        }
        print_json({**result.to_json(), **told, "check": found if checks else None})
    else:
        for check in checks:
            print(check)
    sys.stdout.flush()
    return checks
