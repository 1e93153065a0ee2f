"""The call that a command line states, checked before anything is computed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.call.own_kernel import load_kernel, make_kernel
from npusim.call.spec import Array, Operand
from npusim.call.tilings.words import parse_tiling
from npusim.cli.call_options import OWN
from npusim.cli.operands import make_operands, read_operands
from npusim.cli.own_kernel import kernel_card
from npusim.cli.parser import collect, picked
from npusim.cli.shared import changed_figures
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.traced import load_instructions
from npusim.ops import CARDS
from npusim.ops.card import Card, Output, Sample, Stated
from npusim.results import Result


class PreparedCall(Struct, frozen=True, kw_only=True):
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


def prepare(arguments: argparse.Namespace, *, timing_only: bool) -> PreparedCall:
    """The call that arguments state.

    Raises ``ArgumentError`` for what does not go together, before anything is computed.
    """
    card = card_of(arguments)
    kind = getattr(arguments, "dtype", None)
    if kind is not None and kind not in card.dtypes:
        names = " or ".join(dtype.name for dtype in card.dtypes)
        raise ArgumentError(f"--dtype is {kind}; {card.name} takes {names}")
    files = collect("--input", getattr(arguments, "input", []))
    stated = Stated(
        operator=card.name,
        options={"dtype": None} | vars(arguments),
        arrays=read_operands(card, files, kind),
        files=files,
    )
    device = _device(arguments, card)
    problem = card.problem(stated)
    seed = getattr(arguments, "seed", 0)
    native, plain = make_operands(card, problem, stated, seed=seed, timing_only=timing_only)
    return PreparedCall(
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


def _device(arguments: argparse.Namespace, card: Card[Any]) -> Device:
    """The device named, or the operator's usual one, with figures changed."""
    name = arguments.device or card.device
    if name is None:
        raise ArgumentError(f"{card.name} needs --device NAME; 'npusim devices' lists the names")
    return load_device(name, changed_figures(arguments))


def _options(arguments: argparse.Namespace, card: Card[Any], device: Device) -> dict[str, Any]:
    """The keywords of the operator that a command line states."""
    names = ["cores", "engine", "launch", "start"]
    if "rules" not in card.without:
        names.append("rules")
    options = {"device": device, **picked(arguments, names)}
    if "tiling" not in card.without and arguments.tiling is not None:
        kinds = {kernel.name: kind for kernel, kind in card.tilings.items()}
        options["tiling"] = parse_tiling(arguments.tiling, kinds)
    if getattr(arguments, "check", False):
        options["check"] = True
    return options
