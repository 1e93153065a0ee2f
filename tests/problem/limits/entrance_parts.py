"""What entrances are made of: operands, refusals, command lines."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import npusim
from npusim.base.dtypes import DTYPES
from npusim.base.errors import ArgumentError, RuleError
from npusim.call.spec import Spec
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device

Facts = dict[str, Any]
#: Sends a call to a device and says what became of it: an error, a status with its text, or a text.
Entrance = Callable[[Facts, Device], "RuleError | tuple[int, str] | str"]

KNOWN = {kind.name: kind for kind in DTYPES}


class CannotSay(Exception):  # noqa: N818 - no error: the entrance has no words for the call
    """An entrance cannot express a call."""


def caught(call: Callable[[], Any]) -> RuleError:
    """The refusal of a call."""
    with pytest.raises(ArgumentError) as error:
        call()
    assert isinstance(error.value, RuleError), str(error.value)
    return error.value


def tensor(facts: Mapping[str, Any], name: str) -> Spec:
    """An operand of NumPy's world: it has a shape and a type npusim knows."""
    shape, kind = facts[f"{name}.shape"], facts[f"{name}.dtype"]
    if shape is None or kind not in KNOWN:
        raise CannotSay
    return npusim.spec(shape, kind)


def run(operator: str, device: Device, words: list[str]) -> str:
    """What the command line prints on stderr; devices are known there by name."""
    if load_device(device.name) != device or re.search(r"\d{10}", " ".join(words)):
        raise CannotSay  # one knows devices by name there, and no number of ten digits
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        main(["run", operator, "--device", device.name, "--timing-only", *words])
    return told.getvalue()


def by(values: Any) -> str:
    """Sizes as the command line takes them."""
    return "x".join(map(str, values))
