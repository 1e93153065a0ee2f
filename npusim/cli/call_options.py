"""The options of a call: every operator, and ``kernel``, is a command below those that take one.

``kernel`` takes a kernel of a file, and is also spelled ``--kernel FILE.py:CLASS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError
from npusim.call.own_kernel import EXAMPLE
from npusim.cli.completion import complete_with, layer_names
from npusim.cli.machine_options import add_device_options, add_rules_option, add_simulation_options
from npusim.cli.parser import ASSIGNMENT, Parser, reader
from npusim.cli.readers import INTEGER
from npusim.cli.shared import Group, add_debug_option, add_json_option
from npusim.machine.program.build import is_tunable
from npusim.ops import CARDS
from npusim.ops.card import LIMITS, Card

#: The command below others that takes a kernel of a file.
OWN = "kernel"

#: The command below others that takes a step of a network.
NET = "net"

_ABOUT_NET = "a whole step of a network, with --mode eager or --mode graph"

#: The commands that take a call, and those that take a step of a network too.
_COMMANDS = ("run", "explain", "bound", "tune")
_OF_STEPS = ("explain", "bound")

_ABOUT_OWN = "a kernel of your own, from a file (also --kernel FILE.py:CLASS)"

#: Declares the options that a command adds to those of every call: given the parser of an operator
#: and the group of options that say how it is simulated.
AddOptions = Callable[[Parser, Group], None]


def add_calls(
    parser: Parser,
    add_options: AddOptions,
    *,
    numbers: bool,
    add_net: Callable[[Parser], None] | None = None,
) -> None:
    """Declare a command for every operator, and one for kernels of files, below ``parser``.

    Each has those of ``add_options`` besides the options of a call, with ``numbers`` those of
    operands and of the check, too. With ``add_net``, which declares its options, there is one for
    steps of networks. Reading all cards takes time: where the line names an operator
    its card alone is read.
    """
    named = named_operator(parser)
    is_listed = lists_operators(parser)
    parser.add_commands("operator", title="operators", required=True)
    for name in CARDS:
        about = CARDS[name].computes if is_listed else ""
        command = parser.add_command(name, about)
        command.elsewhere = _owners
        if is_listed or name == named:
            _add_operator(command, CARDS[name], add_options, numbers)
    kernel = parser.add_command(OWN, _ABOUT_OWN, _ABOUT_OWN[:1].upper() + _ABOUT_OWN[1:])
    kernel.elsewhere = _owners
    _add_own_kernel(kernel, parser.prog, add_options, numbers)
    if add_net is not None:
        net = parser.add_command(NET, _ABOUT_NET, _ABOUT_NET[:1].upper() + _ABOUT_NET[1:])
        net.elsewhere = _owners
        if NET in parser.line:
            add_net(net)


def named_operator(parser: Parser) -> str | None:
    """The operator, or ``kernel``, that the line of a parser names; None where it names none."""
    return next((word for word in parser.line if word in CARDS or word == OWN), None)


def lists_operators(parser: Parser) -> bool:
    """True where the line has a command and options alone: its help lists all operators."""
    return sum(not word.startswith("-") for word in parser.line) <= 1


@cache
def _owners() -> Mapping[str, Sequence[str]]:
    """The operators that have an option, where not all do."""
    owners: dict[str, list[str]] = {}
    for name, card in CARDS.items():
        flags = [_flag(option.name) for option in card.options]
        if len(card.dtypes) > 1:
            flags.append("--dtype")
        if "rules" not in card.without:
            flags.append("--rules")
        for flag in flags:
            owners.setdefault(flag, []).append(name)
    return owners


def _flag(option_name: str) -> str:
    return f"--{option_name.replace('_', '-')}"


# -- the line ----------------------------------------------------------------------------------


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the operator right behind its command, where it may also stand later.

    ``--kernel`` is the command for kernels of files, unless an operator has a filter of that name.
    """
    line = list(words)
    behind = next(place for place, word in enumerate(line) if word in _COMMANDS) + 1
    below = (NET,) if line[behind - 1] in _OF_STEPS else ()
    operator = next((place for place, word in enumerate(line) if word in CARDS or word in below), 0)
    if operator > behind:
        others = [*line[behind:operator], *line[operator + 1 :]]
        return [*line[:behind], line[operator], *others]
    if operator:
        return line
    line = [part for word in line for part in _spelled_out(word)]
    kernel = next((place for place, word in enumerate(line) if word in ("--kernel", OWN)), 0)
    if not kernel:
        return line
    file = line[kernel + 1 : kernel + 2]
    return [*line[:behind], OWN, *file, *line[behind:kernel], *line[kernel + 2 :]]


def _spelled_out(word: str) -> list[str]:
    """``--kernel=FILE`` as two words."""
    if word.startswith("--kernel="):
        return ["--kernel", word.partition("=")[2]]
    return [word]


# -- one operator or kernel --------------------------------------------------------------------


def _add_operator(command: Parser, card: Card[Any], add_options: AddOptions, numbers: bool) -> None:
    """Declare the options of an operator."""
    command.description = card.computes
    if numbers:
        caller = command.prog.removesuffix(f" {card.name}")
        command.epilog = f"example:\n  {card.example.replace('npusim run ', f'{caller} ')}"
    _add_sizes(command, card)
    _add_numbers(command, card, numbers)
    machine = add_device_options(command, usual=card.device or "")
    if "rules" not in card.without:
        add_rules_option(machine)
    simulation = command.add_argument_group("simulation")
    if "tiling" not in card.without:
        _add_tiling(simulation, card)
    _add_rest(command, simulation, add_options)


def _add_own_kernel(command: Parser, caller: str, add_options: AddOptions, numbers: bool) -> None:
    """Declare the options of a kernel of a file."""
    command.epilog = (
        f"example:\n  {caller} --kernel scale.py:Scale --arg count=4096 --device ascend910b2\n"
    )
    command.add_argument(
        "place",
        metavar="FILE.py:CLASS",
        help="a class of npusim.language.Kernel in a file anywhere; the file alone if it has one; "
        "or FILE.jsonl, a file of instructions",
    )
    command.add_argument(
        "--arg",
        type=ASSIGNMENT,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a keyword of its class method {EXAMPLE!r}, or without one a field of the class: "
        "numbers, yes or no, words, tensors as 512x1024:fp16 or 512x1024:fp32:out; repeatable "
        "(default: as the class says)",
    )
    if numbers:
        group = command.add_argument_group("numbers")
        _add_input(group, "", "tensors that it reads")
        _add_number_options(group, "what its method 'expected' returns")
    add_device_options(command)
    _add_rest(command, command.add_argument_group("simulation"), add_options)


def add_needless_timing_only(simulation: Group) -> None:
    """Declare --timing-only of a command that computes no numbers, so that a line of run fits."""
    simulation.add_argument(
        "--timing-only",
        action="store_true",
        help="as 'npusim run' takes it; no numbers are computed here in any case",
    )


def _add_rest(command: Parser, simulation: Group, add_options: AddOptions) -> None:
    """Declare what every call has behind its operands and its machine."""
    add_simulation_options(simulation)
    add_options(command, simulation)
    add_json_option(command)
    add_debug_option(command)
    command.set_defaults(leaf=command)


def _add_sizes(command: Parser, card: Card[Any]) -> None:
    """Declare the options of an operator's own, as its card lists them."""
    about = "HxW stands for one entry per spatial dimension: 32, 14x14 or 4x16x16."
    has_sides = any("HxW" in option.metavar for option in card.options)
    group = command.add_argument_group("sizes and settings", about if has_sides else None)
    for option in card.options:
        flag = _flag(option.name)
        if option.read is None:
            group.add_argument(flag, action="store_true", default=None, help=option.help)
            continue
        action = group.add_argument(
            flag, type=reader(option.read), metavar=option.metavar, help=option.help
        )
        if option.name == "layer":
            complete_with(action, layer_names)


def _add_numbers(command: Parser, card: Card[Any], numbers: bool) -> None:
    """Declare the operands of an operator, and with ``numbers`` their files and the check."""
    names = [dtype.name for dtype in card.dtypes]
    if not numbers:
        if len(names) > 1:
            _add_dtype(command.add_argument_group("operands"), names, names[0])
        return
    group = command.add_argument_group("numbers")
    layouts = dict.fromkeys(operand.layout for operand in card.inputs if operand.layout)
    packed = f", or in {' or '.join(layouts)}" if layouts else ""
    form = f", in the layout of frameworks{packed}"
    _add_input(group, form, ", ".join(operand.name for operand in card.inputs))
    if len(names) > 1:
        _add_dtype(group, names, f"as in --input, else {names[0]}")
    _add_number_options(group, "float64")


def _add_input(group: Group, form: str, operands: str) -> None:
    """Declare the files of operands; ``form`` says in which layout, ``operands`` of which."""
    group.add_argument(
        "--input",
        type=ASSIGNMENT,
        action="append",
        default=[],
        metavar="NAME=FILE",
        help=f"take an operand from a .npy file{form}; repeatable; {operands} "
        "(default: random, normal)",
    )


def _add_dtype(group: Group, names: Sequence[str], usual: str) -> None:
    """Declare the element type, one of those that the operator takes."""

    def read(text: str) -> DType:
        try:
            return dtype(text)
        except ArgumentError:
            raise ArgumentError(f"unknown dtype {text!r}; use one of {', '.join(names)}") from None

    group.add_argument(
        "--dtype",
        type=reader(read),
        metavar="TYPE",
        help=f"element type of the operands: {' or '.join(names)} (default: {usual})",
    )


def _add_number_options(group: Group, opinion: str) -> None:
    """Declare whether and how numbers are computed; ``opinion`` is what checks compare with."""
    limits = ", ".join(f"{limit:.0e} ({name})" for name, limit in LIMITS.items())
    group.add_argument(
        "--seed", type=INTEGER, default=0, metavar="N", help="of random inputs (default: 0)"
    )
    group.add_argument(
        "--timing-only",
        action="store_true",
        help="simulate the time but compute no numbers, at any size (default: both)",
    )
    group.add_argument(
        "--check",
        action="store_true",
        help=f"compare every output with {opinion}; status 1 if a relative error exceeds {limits}; "
        "and look for accesses to global memory that nothing orders (default: no)",
    )


def _add_tiling(group: Group, card: Card[Any]) -> None:
    """Declare the tile sizes, of one kernel or of several."""
    text = _tiling_choices(card)
    if len(card.tilings) > 1:
        names = ", ".join(kernel.name for kernel in card.tilings)
        text += f"; of several kernels KERNEL:FIELD=VALUE,...;KERNEL:production ({names})"
    group.add_argument("--tiling", metavar="FIELD=VALUE,...", help=text)


def _tiling_choices(card: Card[Any]) -> str:
    """The ways to state a tiling of an operator's kernels, in words."""
    sizes = [field.name for tiling in card.tilings.values() for field in fields(tiling)]
    examples = "=...,".join(list(dict.fromkeys(sizes))[:2])
    vendors = [kernel.name for kernel in card.tilings if kernel.vendor_rule]
    choices = ["auto (the default)"]
    if any(is_tunable(kernel) for kernel in card.tilings):
        choices.append("tuned (the fastest that a search finds)")
    if vendors:
        whose = f", for {' and '.join(vendors)}" if len(vendors) < len(card.tilings) else ""
        choices.append(f"production (the rule of the vendor's library{whose})")
        choices.append("library (its public rules on a 910, 310 and 310P, else our choice)")
    choices.append(f"tile sizes in elements such as {examples}=...")
    if vendors:
        choices.append("@FILE or ascendc:FILE (in the vendor's words)")
    if any(kernel.name == "matmul" for kernel in card.tilings):
        choices.append("catlass:FILE or ascendc:FILE (a CATLASS template's choice, a TCubeTiling)")
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
