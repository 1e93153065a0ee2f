"""A call on a command line: an operator with its sizes, or a kernel of a file, and the machine.

Every operator is a command of its own below those that take a call (``run``, ``explain``), and so
is ``kernel``, which is also spelled ``--kernel FILE.py:CLASS``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import BF16, DTYPES, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.resources import require_room
from npusim.base.yamltree import suggest
from npusim.call.options import Options
from npusim.call.own_kernel import EXAMPLE, load_kernel, make_kernel
from npusim.call.spec import Array, Operand, Spec, native
from npusim.call.tilings.words import parse_tiling
from npusim.cli.options import Parser, add_machine, add_options, add_simulation, collect, picked
from npusim.cli.own_kernel import kernel_card
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.build import is_tunable
from npusim.machine.program.traced import load_instructions
from npusim.ops import CARDS
from npusim.ops.card import LIMITS, Card, Output, Sample, Stated
from npusim.problem.limits.table import RULES
from npusim.results import Result

#: The command below others that takes a kernel of a file.
OWN = "kernel"

#: The commands that take a call.
_COMMANDS = ("run", "explain", "bound", "tune")

_ABOUT_OWN = "a kernel of your own, from a file (also --kernel FILE.py:CLASS)"


class Prepared(Struct, frozen=True, kw_only=True):
    """A call that is checked and can be run: what is to be computed, on which operands, and how."""

    card: Card[Any]
    problem: Any
    outputs: Sequence[Output[Any]]
    native: Mapping[str, Operand]
    plain: Mapping[str, Array]
    device: Device
    options: Mapping[str, Any]

    def run(self, **options: Any) -> Result:
        """The result; ``options`` are further keywords of the call."""
        return self.card.call(self.problem, self.native, {**self.options, **options})

    @property
    def sample(self) -> Sample[Any]:
        """The call for a float64 opinion."""
        return Sample(problem=self.problem, arrays=self.plain, device=self.device)


def add_calls(parser: Parser, *sections: str, numbers: bool) -> None:
    """Declare a command for every operator, and one for kernels of files, below ``parser``.

    Each has the options of ``sections`` besides those of a call, with ``numbers`` those of operands
    and of the check, too.
    """
    operators = parser.add_subparsers(
        dest="operator",
        metavar="OPERATOR",
        title="operators",
        required=True,
        action=_Operators,
    )

    @cache
    def declare(name: str) -> str:
        card, leaf = CARDS[name], operators.choices[name]
        leaf.description = card.computes
        if numbers:
            example = card.example.replace("npusim run ", f"{parser.prog} ")
            leaf.epilog = f"example:\n  {example}"
        _add_sizes(leaf, card)
        _add_call(leaf, card, sections, numbers)
        return card.computes

    for name in CARDS:
        leaf: Parser = operators.add_parser(name, help="")
        leaf.elsewhere = _owners
    assert isinstance(operators, _Operators)
    operators.declare = declare
    own: Parser = operators.add_parser(
        OWN,
        help=_ABOUT_OWN,
        description=_ABOUT_OWN[:1].upper() + _ABOUT_OWN[1:],
        epilog="example:\n  "
        f"{parser.prog} --kernel scale.py:Scale --arg count=4096 --device ascend910b2\n",
    )
    add_options(own, "kernel of a file", example=EXAMPLE)
    _add_call(own, None, sections, numbers)
    own.elsewhere = _owners


class _Operators(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The commands of operators, whose cards are read when one is named or all are listed."""

    #: Declares the options of an operator, once, and returns what it computes.
    declare: Callable[[str], str]

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if values[0] in CARDS:
            self.declare(values[0])
        super().__call__(parser, namespace, values, option_string)

    def _get_subactions(self) -> list[argparse.Action]:
        for listed in self._choices_actions:
            if listed.dest in CARDS:
                listed.help = self.declare(listed.dest)
        return self._choices_actions


@cache
def _owners() -> Mapping[str, Sequence[str]]:
    """The operators that have an option, where not all do."""
    owners: dict[str, list[str]] = {}
    for name, card in CARDS.items():
        flags = [f"--{option.name.replace('_', '-')}" for option in card.options]
        flags += ["--dtype"] if len(card.dtypes) > 1 else []
        for flag in flags + (["--rules"] if "rules" not in card.without else []):
            owners.setdefault(flag, []).append(name)
    return owners


def arrange(words: Sequence[str]) -> list[str]:
    """A line with the operator right behind its command, where it may also stand later.

    ``--kernel`` is the command for kernels of files, unless an operator has a filter of that name.
    """
    given = list(words)
    start = next(i for i, word in enumerate(given) if word in _COMMANDS) + 1
    at = next((i for i, word in enumerate(given) if word in CARDS), 0)
    if not at:
        given = [part for word in given for part in _spelled_out(word)]
        at = next((i for i, word in enumerate(given) if word in ("--kernel", OWN)), 0)
        if at:
            given[at] = OWN
            file = given[at + 1 : at + 2]
            return [*given[:start], OWN, *file, *given[start:at], *given[at + 2 :]]
    return [*given[:start], given[at], *given[start:at], *given[at + 1 :]] if at > start else given


def _spelled_out(word: str) -> list[str]:
    """``--kernel=FILE`` as two words."""
    return ["--kernel", word.partition("=")[2]] if word.startswith("--kernel=") else [word]


def prepare(arguments: argparse.Namespace, *, timing_only: bool) -> Prepared:
    """The call that arguments state.

    Raises ``ArgumentError`` for what does not go together, before anything is computed.
    """
    card = card_of(arguments)
    asked = getattr(arguments, "dtype", None)
    if asked is not None and asked not in card.dtypes:
        names = " or ".join(one.name for one in card.dtypes)
        raise ArgumentError(f"--dtype is {asked}; {card.name} takes {names}")
    files = collect("--input", getattr(arguments, "input", []))
    stated = Stated(
        operator=card.name,
        options={"dtype": None} | vars(arguments),
        arrays=read_operands(card, files, asked),
        files=files,
    )
    device = _device(arguments, card)
    problem = card.problem(stated)
    seed = getattr(arguments, "seed", 0)
    native, plain = make_operands(card, problem, stated, seed=seed, timing_only=timing_only)
    return Prepared(
        card=card,
        problem=problem,
        outputs=card.outputs(problem),
        native=native,
        plain=plain,
        device=device,
        options=_options(arguments, card, device),
    )


def card_of(arguments: argparse.Namespace) -> Card[Any]:
    """The operator that arguments name, or the kernel of a file."""
    if arguments.operator != OWN:
        return CARDS[arguments.operator]
    if arguments.place.endswith(".jsonl"):
        return kernel_card(load_instructions(arguments.place))
    return kernel_card(make_kernel(load_kernel(arguments.place), collect("--arg", arguments.arg)))


def _add_sizes(leaf: Parser, card: Card[Any]) -> None:
    about = "HxW stands for one entry per spatial dimension: 32, 14x14 or 4x16x16."
    many = any("HxW" in option.metavar for option in card.options)
    own = leaf.add_argument_group("sizes and settings", about if many else None)
    for option in card.options:
        flag = f"--{option.name.replace('_', '-')}"
        if option.read is None:
            own.add_argument(flag, action="store_true", default=None, help=option.help)
        else:
            own.add_argument(flag, type=option.read, metavar=option.metavar, help=option.help)


def _add_call(leaf: Parser, card: Card[Any] | None, sections: Sequence[str], numbers: bool) -> None:
    """What all calls have; ``card`` is None for a kernel of a file."""
    _add_numbers(leaf, card, numbers)
    rules = card is not None and "rules" not in card.without
    usual = card.device or "" if card is not None else ""
    add_machine(leaf, usual=usual)
    if rules:
        add_options(leaf, "rules", rules=RULES, usual=Options.rules)
    if card is not None and "tiling" not in card.without:
        _add_tiling(leaf, card)
    add_simulation(leaf)
    for section in (*sections, "call", "debug"):
        add_options(leaf, section)
    leaf.set_defaults(leaf=leaf)


def _element_type(names: Sequence[str], text: str) -> DType:
    """A reader of element types, whose error lists those that the operator takes."""
    try:
        return dtype(text)
    except ArgumentError:
        raise ArgumentError(f"unknown dtype {text!r}; use one of {', '.join(names)}") from None


def _add_numbers(leaf: Parser, card: Card[Any] | None, numbers: bool) -> None:
    names = [one.name for one in card.dtypes] if card is not None else []
    if numbers:
        layouts = dict.fromkeys(one.layout for one in card.inputs if one.layout) if card else {}
        also = f", or in {' or '.join(layouts)}" if layouts else ""
        form = f", in the layout of frameworks{also}" if card else ""
        which = ", ".join(one.name for one in card.inputs) if card else "tensors that it reads"
        add_options(leaf, "inputs", form=form, which=which)
    if len(names) > 1:
        add_options(
            leaf,
            "operands",
            **{"group": "numbers" if numbers else "operands", "types": " or ".join(names)},
            **{"element type": partial(_element_type, names)},
            usual=f"{'as in --input, else ' if numbers else ''}{names[0]}",
        )
    if numbers:
        limits = ", ".join(f"{limit:.0e} ({name})" for name, limit in LIMITS.items())
        by = "float64" if card is not None else "what its method 'expected' returns"
        add_options(leaf, "numbers", limits=limits, by=by)


def _add_tiling(leaf: Parser, card: Card[Any]) -> None:
    fields = dict.fromkeys(one.name for kind in card.tilings.values() for one in fields_of(kind))
    vendors = [kernel.name for kernel in card.tilings if kernel.vendor_rule]
    whose = f", for {' and '.join(vendors)}" if len(vendors) < len(card.tilings) else ""
    choices = ["auto (the default)"]
    if any(is_tunable(kernel) for kernel in card.tilings):
        choices.append("tuned (the fastest that a search finds)")
    if vendors:
        choices.append(f"production (the rule of the vendor's library{whose})")
        choices.append("library (its public rules on a 910, 310 and 310P, else our choice)")
    choices.append(f"tile sizes in elements such as {'=...,'.join(list(fields)[:2])}=...")
    if vendors:
        choices.append("@FILE or ascendc:FILE (in the vendor's words)")
    if any(kernel.name == "matmul" for kernel in card.tilings):
        choices.append("catlass:FILE or ascendc:FILE (a CATLASS template's choice, a TCubeTiling)")
    text = f"{', '.join(choices[:-1])} or {choices[-1]}"
    if len(card.tilings) > 1:
        names = ", ".join(kernel.name for kernel in card.tilings)
        text += f"; of several kernels KERNEL:FIELD=VALUE,...;KERNEL:production ({names})"
    group = leaf.add_argument_group("simulation")
    group.add_argument("--tiling", metavar="FIELD=VALUE,...", help=text)


def _device(arguments: argparse.Namespace, card: Card[Any]) -> Device:
    """The device named, or the operator's usual one, with figures changed."""
    name = arguments.device or card.device
    if name is None:
        raise ArgumentError(f"{card.name} needs --device NAME; 'npusim devices' lists the names")
    return load_device(name, collect("--set", arguments.set))


def _options(arguments: argparse.Namespace, card: Card[Any], device: Device) -> dict[str, Any]:
    """The keywords of the operator that a command line states."""
    rules = " rules" * ("rules" not in card.without)
    options = {"device": device, **picked(arguments, f"cores engine launch start{rules}")}
    if "tiling" not in card.without and arguments.tiling is not None:
        kinds = {kernel.name: kind for kernel, kind in card.tilings.items()}
        options["tiling"] = parse_tiling(arguments.tiling, kinds)
    if getattr(arguments, "check", False):
        options["check"] = True
    return options


# -- operands ---------------------------------------------------------------------------------


def read_operands(
    card: Card[Any], files: Mapping[str, str], stated: DType | None
) -> dict[str, Array]:
    """The arrays in ``files`` (operand -> path), of the type ``stated`` or one the card allows."""
    known = {one.name: one for one in card.inputs}
    for name in files:
        if name not in known:
            raise ArgumentError(f"--input {name}=...: unknown operand{suggest(name, known)}")
    dtypes = tuple(one for one in card.dtypes if one in DTYPES) if stated is None else (stated,)
    return {
        name: _read(name, Path(file), tuple(map(known[name].dtype, dtypes)))
        for name, file in files.items()
    }


def make_operands(
    card: Card[Any], problem: Any, stated: Stated, *, seed: int, timing_only: bool
) -> tuple[dict[str, Operand], dict[str, Array]]:
    """Every operand as the operator takes it, and as frameworks have it.

    Those without file are random, from a normal distribution, of the type stated, else of the
    first file's, else of the card's usual one; or specs where only time is asked for.
    """
    files = [dtype(array.dtype) for array in stated.arrays.values()]
    found = stated["dtype"] or next((k for k in files if k in card.dtypes), card.dtypes[0])
    if not timing_only:
        _require_memory(card, problem, stated, found)
    native: dict[str, Operand] = {}
    plain: dict[str, Array] = {}
    for number, one in enumerate(card.inputs):
        if not one.wanted(problem):
            continue
        forms = one.forms(problem)
        own = one.dtype(found)
        if one.name in stated.arrays:
            given = stated.arrays[one.name]
            if given.shape not in forms.values():
                wanted = " or ".join(f"{shape} ({axes})" for axes, shape in forms.items())
                raise ArgumentError(f"{stated.file(one.name)}; this call takes {wanted}")
        elif timing_only:
            native[one.name] = Spec([*forms.values()][-1], own)
            continue
        else:
            # A stream per operand: giving one as a file leaves the numbers of the others alone.
            stream = np.random.default_rng([seed, number])
            shape = next(iter(forms.values()))
            if own not in DTYPES:
                raise ArgumentError(f"no array holds {own}: it is timed only; add --timing-only")
            given = stream.standard_normal(shape, dtype=np.float32)
            given = (given * 32).clip(-127, 127) if own.kind == "int" else given
            given = given.astype(own.numpy)
        native[one.name] = one.native(problem, given)
        plain[one.name] = one.plain(problem, given)
    return native, plain


def _require_memory(card: Card[Any], problem: Any, stated: Stated, found: DType) -> None:
    """Raise ``CapacityError`` where this computer could not hold the operands that are random.

    A normal distribution gives fp32; there is one array of the type, one in the operator's layout.
    """
    need = sum(
        prod(next(iter(one.forms(problem).values()))) * (4 + 2 * one.dtype(found).bytes)
        for one in card.inputs
        if one.wanted(problem) and one.name not in stated.arrays
    )
    require_room(
        f"{card.name}: random operands take", need, "choose --timing-only, or smaller sizes"
    )


def _read(name: str, path: Path, dtypes: tuple[DType, ...]) -> Array:
    """The array in a ``.npy`` file, of one of ``dtypes``; fp32 is rounded to bf16 if due."""
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ArgumentError(
            f"--input {name}={path}: cannot be read: {why}; give a file that numpy.save wrote"
        ) from error
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"--input {name}={path}: holds several arrays; give a .npy file with one"
        )
    array = native(array)
    if array.dtype == np.dtype("V2"):  # numpy.load's name for what numpy.save knew as bfloat16
        array = array.view(BF16.numpy)
    if dtypes == (BF16,) and array.dtype == np.float32:
        array = array.astype(BF16.numpy)
    if array.dtype not in [one.numpy for one in dtypes]:
        raise ArgumentError(
            f"--input {name}={path} is {array.dtype.name}; this call takes "
            f"{' or '.join(one.numpy.name for one in dtypes)}"
        )
    return cast(Array, array)
