"""Type checkers see what is written out: a misspelled name or a wrong argument is refused.

A case is a program that is right and the same program with one mistake, which mypy must refuse on
the line with the mark, by this code. ``RIGHT`` and ``WRONG`` are checked in one run.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import npusim

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A right program, a mistake in it (the text and what stands there in its place), its code."""

    program: str
    right: str
    wrong: str
    code: str


_FILTER_GRADIENT = """
import npusim

x = npusim.spec((1, 1, 8, 8, 16), "fp16")
para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
result = npusim.ops.conv2d_backprop_filter(
    input_x=x, out_backprop=x, filter_sizes=[16, 16, 3, 3], para_dict=para, device="ascend910"
)
print(result.time_us)
"""

_DSP_GRADIENT = """
import npusim

x = npusim.spec((1, 8, 8, 16), "fp32")
result = npusim.ops.conv_grad_filter(x, x, [1] * 18, core_mask=0xF, storage="gsm", cores="0-3")
"""

CASES: Mapping[str, Case] = {
    "a misspelled operator": Case(
        _FILTER_GRADIENT,
        "ops.conv2d_backprop_filter",
        "ops.conv2d_backprop_filters",
        "attr-defined",
    ),
    "an operand that is not there": Case(_FILTER_GRADIENT, "input_x=x", "x=x", "call-arg"),
    "an operand that is left out": Case(
        _FILTER_GRADIENT, "input_x=x, out_backprop=x", "input_x=x", "call-arg"
    ),
    "an operand of a wrong type": Case(
        _FILTER_GRADIENT, "input_x=x", "input_x=(1, 1, 8, 8, 16)", "arg-type"
    ),
    "sizes of a wrong type": Case(
        _FILTER_GRADIENT, "filter_sizes=[16, 16, 3, 3]", "filter_sizes=16", "arg-type"
    ),
    "a misspelled keyword": Case(
        _FILTER_GRADIENT, 'device="ascend910"', 'devise="ascend910"', "call-arg"
    ),
    "a keyword of a wrong type": Case(
        _FILTER_GRADIENT, 'device="ascend910"', 'device="ascend910", check="yes"', "arg-type"
    ),
    "a misspelled part of a result": Case(
        _FILTER_GRADIENT, "result.time_us", "result.times_us", "attr-defined"
    ),
    "a DSP operator that is not there": Case(
        _DSP_GRADIENT, "ops.conv_grad_filter", "ops.conv_grad_weight", "attr-defined"
    ),
    "a misspelled argument of a DSP operator": Case(
        _DSP_GRADIENT, "core_mask=0xF", "mask=0xF", "call-arg"
    ),
    "a misspelled name of the facade": Case(
        _DSP_GRADIENT, "npusim.spec(", "npusim.specs(", "attr-defined"
    ),
    "a misspelled name of the kernel language": Case(
        "from npusim.language import Kernel\n", "import Kernel", "import Kernels", "attr-defined"
    ),
}


@cache
def errors() -> Mapping[str, list[str]]:
    """The codes of mypy's errors in each program, those of one case right and wrong."""
    from mypy import api  # noqa: PLC0415 - slow to import, and only slow tests need it

    with TemporaryDirectory() as folder:
        files: dict[str, str] = {}
        for number, (name, case) in enumerate(CASES.items()):
            programs = {
                f"right: {name}": case.program,
                f"wrong: {name}": case.program.replace(case.right, case.wrong),
            }
            for title, program in programs.items():
                file = Path(folder) / f"{title[:5]}_{number}.py"
                file.write_text(program, encoding="utf-8")
                files[file.name] = title
        options = ["--strict", "--explicit-package-bases", "--no-error-summary"]
        options += ["--config-file", str(ROOT / "pyproject.toml")]
        options += ["--python-executable", sys.executable, "--cache-dir", f"{folder}/cache"]
        printed, failed, _ = api.run([*options, *(f"{folder}/{file}" for file in files)])
        assert not failed, failed
    codes: dict[str, list[str]] = {title: [] for title in files.values()}
    for line in printed.splitlines():
        error = re.search(r"(\w+\.py):\d+: error: .*\[([\w-]+)\]$", line)
        if error is not None and error[1] in files:
            codes[files[error[1]]].append(error[2])
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_type_checkers_refuse(name: str) -> None:
    assert errors()[f"right: {name}"] == []
    assert CASES[name].code in errors()[f"wrong: {name}"]


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_a_mistake_in_one_place(name: str) -> None:
    case = CASES[name]
    assert case.program.count(case.right) == 1
    assert case.wrong != case.right


@pytest.mark.parametrize("name", npusim.ops.operators())
def test_an_operator_is_written_out(name: str) -> None:
    """A search for ``def NAME`` finds it, with its arguments, their types and what it returns."""
    function = npusim.ops.OPERATORS[name]
    assert inspect.getsource(function).startswith(f"def {name}(")
    signature = inspect.signature(function)
    assert signature.return_annotation == "Result"
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        assert parameter.kind is not inspect.Parameter.VAR_POSITIONAL, parameter
    *arguments, options = signature.parameters.values()
    assert len(arguments) >= 2
    assert options.kind is inspect.Parameter.VAR_KEYWORD
    assert str(options.annotation).startswith("Unpack[Keywords")


def test_a_wrong_argument_is_refused_at_once() -> None:
    call = npusim.ops.conv2d_backprop_filter
    x = npusim.spec((1, 1, 8, 8, 16), "fp16")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'input_x'"):
        call(x=x, out_backprop=x, filter_sizes=[16, 16, 3, 3], para_dict={})  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="conv2d_backprop_weight"):
        npusim.ops.conv2d_backprop_weight  # type: ignore[attr-defined]  # noqa: B018
