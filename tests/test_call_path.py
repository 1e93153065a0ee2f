"""The path of one call: how many modules it enters, and between how many pairs of them it goes.

Whoever follows a call through the code reads these modules: their number may not grow unnoticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import npusim
from npusim.cli.main import main

pytestmark = pytest.mark.compiled

#: The most modules, and pairs of a caller and the one it enters. More needs a sentence in
#: CHANGELOG.md.
RUN = (89, 237)
CALL = (54, 156)


def entered(call: Callable[[], object]) -> tuple[int, int]:
    """Modules that a call enters and pairs of these, the second time it is made in a process."""
    modules: set[str] = set()
    pairs: set[tuple[str, str]] = set()

    def name(frame: FrameType | None) -> str:
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module.startswith("npusim"):
                return module
            frame = frame.f_back
        return ""

    def follow(frame: FrameType, event: str, _: Any) -> None:
        function = frame.f_code.co_flags & 1  # not the body of a class or a module
        if event != "call" or not function or name(frame) != frame.f_globals.get("__name__"):
            return
        modules.add(name(frame))
        caller = name(frame.f_back)
        if caller and caller != name(frame):
            pairs.add((caller, name(frame)))

    call()
    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(modules), len(pairs)


def test_a_command_enters_a_limited_number_of_modules(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --check"
    modules, pairs = entered(lambda: main(words.split()))
    assert "pass" in capsys.readouterr().out
    assert modules > 40  # it was followed at all
    assert (modules <= RUN[0], pairs <= RUN[1]) == (True, True), f"{modules} modules, {pairs} pairs"


def test_an_operator_enters_fewer() -> None:
    a, b = npusim.spec((64, 64), "fp16"), npusim.spec((64, 64), "fp16")
    modules, pairs = entered(lambda: npusim.ops.matmul(a, b, device="ascend910b2"))
    assert modules > 25
    assert (modules <= CALL[0], pairs <= CALL[1]) == (True, True), (
        f"{modules} modules, {pairs} pairs"
    )
