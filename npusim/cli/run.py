"""``npusim run``: simulate one operator call, check its numbers, write what is asked for.

Every operator is a command of its own below ``run``, with the options of its card and those that
all calls share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from npusim.cli import artifacts
from npusim.cli.checks import Check, checked
from npusim.cli.console import print_json
from npusim.cli.machine import add_machine, add_simulation
from npusim.cli.operands import make_operands, read_operands
from npusim.cli.parser import Parser, assignment, collect
from npusim.cli.tiling import parse_tiling
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.dtypes import dtype
from npusim.errors import ArgumentError
from npusim.ops import CARDS
from npusim.ops.card import LIMITS, Card, Output, Sample, Stated
from npusim.ops.options import integer
from npusim.results import Result
from npusim.results.progress import ProgressBar


def add_arguments(parser: Parser) -> None:
    """Declare ``run`` and a command for every operator below it."""
    parser.epilog = (
        "'npusim run OPERATOR --help' lists the options of one.\n\nexamples:\n"
        + "".join(f"  {card.example}\n" for card in CARDS.values())
    )
    operators = parser.add_subparsers(
        dest="operator", metavar="OPERATOR", title="operators", required=True
    )
    owners: dict[str, list[str]] = {}
    for name, card in CARDS.items():
        for flag in _own_flags(card):
            owners.setdefault(flag, []).append(name)
    for name, card in CARDS.items():
        leaf: Parser = operators.add_parser(
            name,
            help=card.computes,
            description=card.computes,
            epilog=f"example:\n  {card.example}",
        )
        _add_operator(leaf, card)
        leaf.elsewhere = owners
        leaf.set_defaults(leaf=leaf)


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the operator right behind "run", where it may also stand later."""
    given = list(words)
    at = next((i for i, word in enumerate(given) if word in CARDS), 0)
    start = given.index("run") + 1
    return [*given[:start], given[at], *given[start:at], *given[at + 1 :]] if at > start else given


def _own_flags(card: Card[Any]) -> list[str]:
    """Options that not every operator has."""
    flags = [f"--{option.name.replace('_', '-')}" for option in card.options]
    flags += ["--dtype"] if len(card.dtypes) > 1 else []
    return flags + (["--rules"] if "rules" not in card.without else [])


def _add_operator(leaf: Parser, card: Card[Any]) -> None:
    """Declare the options of one operator."""
    about = "HxW stands for one entry per spatial dimension: 32, 14x14 or 4x16x16."
    many = any("HxW" in option.metavar for option in card.options)
    own = leaf.add_argument_group("sizes and settings", about if many else None)
    for option in card.options:
        flag = f"--{option.name.replace('_', '-')}"
        if option.read is None:
            own.add_argument(flag, action="store_true", default=None, help=option.help)
        else:
            own.add_argument(flag, type=option.read, metavar=option.metavar, help=option.help)
    _add_numbers(leaf, card)
    machine = leaf.add_argument_group("machine").add_argument
    add_machine(machine, usual=card.device or "", rules="rules" not in card.without)
    _add_simulation(leaf, card)
    artifacts.add_arguments(leaf)
    leaf.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON, nothing else, on stdout (default: a text report)",
    )
    # Suppressed, or its default would overwrite what stood before the operator.
    leaf.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show the traceback of an error (default: no)",
    )


def _add_numbers(leaf: Parser, card: Card[Any]) -> None:
    add = leaf.add_argument_group("numbers").add_argument
    layouts = dict.fromkeys(one.layout for one in card.inputs if one.layout)
    also = f", or in {' or '.join(layouts)}" if layouts else ""
    add(
        "--input",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=FILE",
        help="take an operand from a .npy file, in the layout of frameworks"
        f"{also}; repeatable; {', '.join(one.name for one in card.inputs)} (default: random, "
        "normal)",
    )
    names = [kind.name for kind in card.dtypes]
    if len(names) > 1:
        add(
            "--dtype",
            type=dtype,
            metavar="TYPE",
            help=f"element type of the operands: {' or '.join(names)} (default: as in --input, "
            f"else {names[0]})",
        )
    add("--seed", type=integer(0), default=0, metavar="N", help="of random inputs (default: 0)")
    add(
        "--timing-only",
        action="store_true",
        help="simulate the time but compute no numbers, at any size (default: both)",
    )
    limits = ", ".join(f"{limit:.0e} ({kind})" for kind, limit in LIMITS.items())
    add(
        "--check",
        action="store_true",
        help="compare every output with float64; status 1 if a relative error exceeds "
        f"{limits} (default: no)",
    )


def _add_simulation(leaf: Parser, card: Card[Any]) -> None:
    add = leaf.add_argument_group("simulation").add_argument
    several = (
        f"; of several kernels KERNEL:base_m=128,...;KERNEL:production ({', '.join(card.tilings)})"
        if len(card.tilings) > 1
        else ""
    )
    add(
        "--tiling",
        default="auto",
        metavar="FIELD=VALUE,...",
        help="auto (the default), production (the vendor's rule) or library (our choice among the "
        "vendor's forms), both for gradients of filter and input, tile sizes in elements such as "
        f"base_m=128,base_n=256,..., or @FILE (in the vendor's words){several}",
    )
    add_simulation(add)
    add(
        "--range",
        action="store_true",
        help="time the call again with every assumed or fitted figure it rests on at the ends of "
        "its range, and report the range of the time (default: no)",
    )
    add(
        "--timeline",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep a row per instruction (default: up to 200,000 instructions a kernel, and "
        "whenever a file needs it)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run the call; the report comes first, so that nothing after it can lose it."""
    card = CARDS[arguments.operator]
    _check_arguments(arguments, card)
    files, kind = collect("--input", arguments.input), getattr(arguments, "dtype", None)
    stated = Stated(
        operator=card.name,
        options={"dtype": None} | vars(arguments),
        arrays=read_operands(card, files, kind),
        files=files,
    )
    device = _device(arguments, card)
    problem = card.problem(stated)
    outputs = card.outputs(problem)
    artifacts.check_output(arguments, outputs)
    native, plain = make_operands(
        card, problem, stated, seed=arguments.seed, timing_only=arguments.timing_only
    )
    with ProgressBar() as progress:
        result = card.call(problem, native, _options(arguments, card, device, progress))
    sample = Sample(problem=problem, arrays=plain, device=device)
    checks = _report(arguments, result, outputs, sample)
    lines, failures = artifacts.write_all(arguments, result, outputs, problem)
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    if failures:
        raise ArgumentError("; ".join(failures))
    return 0 if all(check.passed for check in checks) else 1


def _check_arguments(arguments: argparse.Namespace, card: Card[Any]) -> None:
    """Refuse options that do not go together before anything is computed."""
    kind = getattr(arguments, "dtype", None)
    if kind is not None and kind not in card.dtypes:
        names = " or ".join(one.name for one in card.dtypes)
        raise ArgumentError(f"--dtype is {kind}; {card.name} takes {names}")
    for option in ("check", "input"):
        if arguments.timing_only and getattr(arguments, option):
            raise ArgumentError(
                f"--{option} needs numbers, which --timing-only leaves out; drop one"
            )
    artifacts.check(arguments)


def _device(arguments: argparse.Namespace, card: Card[Any]) -> Device:
    """The device named, or the operator's usual one, with figures changed."""
    name = arguments.device or card.device
    if name is None:
        raise ArgumentError(f"{card.name} needs --device NAME; 'npusim devices' lists the names")
    return load_device(name, collect("--set", arguments.set))


def _options(
    arguments: argparse.Namespace, card: Card[Any], device: Device, progress: ProgressBar
) -> dict[str, Any]:
    """The keywords of the operator."""
    keep = True if artifacts.needs_timeline(arguments) else arguments.timeline
    rules = {} if "rules" in card.without else {"rules": arguments.rules}
    return rules | {
        "device": device,
        "cores": arguments.cores,
        "tiling": parse_tiling(arguments.tiling, card.tilings),
        "engine": arguments.engine,
        "timeline": keep,
        "start": arguments.start,
        "progress": progress,
    }


def _report(
    arguments: argparse.Namespace,
    result: Result,
    outputs: Sequence[Output[Any]],
    sample: Sample[Any],
) -> list[Check]:
    """Print the result, as text before it is checked, as JSON with the check in it."""
    told = {"time_range": result.time_range.to_json()} if arguments.range else {}
    if not arguments.json:
        sys.stdout.write(result.text())
        sys.stdout.flush()
    checks = checked(result, outputs, sample) if arguments.check else []
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
