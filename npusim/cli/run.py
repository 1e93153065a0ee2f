"""``npusim run``: simulate one operator call, check its numbers, write what is asked for."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from npusim.cli import artifacts, conv_filter, matmul
from npusim.cli.console import print_json
from npusim.cli.parser import Parser, assignment, collect, integer
from npusim.cli.problem import Inputs, Prepared, parse_tiling
from npusim.cli.progress import ProgressBar
from npusim.device.catalog import load_device
from npusim.errors import ArgumentError
from npusim.numerics.reference import relative_error
from npusim.results import Result

#: Largest relative error (Frobenius norms) that --check lets pass. fp32 sums of exact fp16
#: products stay near 1e-7; a wrong or missing block gives about 1.
CHECK_LIMIT = 1e-5

#: The module with the options of every operator.
OPERATORS: Mapping[str, ModuleType] = {
    "conv2d_backprop_filter": conv_filter,
    "matmul": matmul,
}

_EXAMPLES = """examples:
  npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --batch 2 \\
      --check --trace trace.json
  npusim run matmul --device ascend910b2 --m 512 --k 1024 --n 512 --cores 0-7 --timing-only
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """How far the numbers are from a float64 computation, in relative Frobenius norm."""

    what: str
    error: float

    @property
    def passed(self) -> bool:
        """Whether the error is within ``CHECK_LIMIT``; NaN is not."""
        return self.error <= CHECK_LIMIT

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"check  {self.what} against float64: relative error {self.error:.1e} "
            f"(limit {CHECK_LIMIT:.0e}): {'pass' if self.passed else 'fail'}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; an error that is no finite number is null, as JSON has none."""
        return {
            "relative_error": self.error if math.isfinite(self.error) else None,
            "limit": CHECK_LIMIT,
            "passed": self.passed,
        }


def add_arguments(parser: Parser) -> None:
    """Declare ``run``."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "operator",
        metavar="OPERATOR",
        choices=list(OPERATORS),
        help=f"{' or '.join(OPERATORS)} (see 'npusim ops')",
    )
    for operator in OPERATORS.values():
        operator.add_arguments(parser)
    _add_numbers(parser)
    _add_machine(parser)
    _add_simulation(parser)
    artifacts.add_arguments(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON, nothing else, on stdout (default: a text report)",
    )


def _add_numbers(parser: Parser) -> None:
    group = parser.add_argument_group("numbers")
    add = group.add_argument
    add(
        "--input",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=FILE",
        help="take an operand from a .npy file; repeatable. Convolutions: x and dy, float16, "
        "NCHW or 5HD (N, C1, H, W, 16); matmul: a and b (default: random fp16, normal)",
    )
    add("--seed", type=integer(0), default=0, metavar="N", help="of random inputs (default: 0)")
    add(
        "--timing-only",
        action="store_true",
        help="simulate the time but compute no numbers, at any size (default: both)",
    )
    add(
        "--check",
        action="store_true",
        help=f"compare with float64; status 1 if the relative error exceeds {CHECK_LIMIT:.0e} "
        "(default: no)",
    )


def _add_machine(parser: Parser) -> None:
    group = parser.add_argument_group("machine")
    add = group.add_argument
    add(
        "--device",
        required=True,
        metavar="NAME",
        help="a device (see 'npusim devices') or a file ending in .yaml",
    )
    add(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="PATH=VALUE",
        help="change a figure of the device, such as memories.L1.size=2MiB; repeatable "
        "(default: none)",
    )
    add(
        "--cores",
        metavar="GROUPS",
        help="core groups such as 0-3,5 (a lone number is a group), or a bit mask such as 0b1111 "
        "or 0xf (default: all)",
    )


def _add_simulation(parser: Parser) -> None:
    group = parser.add_argument_group("simulation")
    add = group.add_argument
    add(
        "--tiling",
        default="auto",
        metavar="FIELD=VALUE,...",
        help="tile sizes in elements, such as base_m=128,base_n=256,... (default: auto)",
    )
    add(
        "--start",
        choices=("cold", "warm"),
        default="cold",
        help="L2 empty, or with the inputs in it (default: cold)",
    )
    add("--engine", default="simpy", metavar="NAME", help="simulation engine (default: simpy)")
    add(
        "--timeline",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep a row per instruction (default: up to 200,000 instructions a kernel, and "
        "whenever a file needs it)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run the call; the report comes first, so that nothing after it can lose it."""
    _check_arguments(arguments)
    operator = OPERATORS[arguments.operator]
    files = collect("--input", arguments.input)
    inputs = Inputs(operator.INPUTS, files, arguments.seed, arguments.timing_only)
    prepared: Prepared = operator.prepare(arguments, inputs)
    result = _simulate(arguments, prepared)
    check = _report(arguments, prepared, result)
    lines, failures = artifacts.write_all(arguments, result, prepared)
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    if failures:
        raise ArgumentError("; ".join(failures))
    return 1 if check is not None and not check.passed else 0


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together before anything is computed."""
    own = OPERATORS[arguments.operator].OPTIONS
    for name, other in OPERATORS.items():
        for option in other.OPTIONS:
            if option not in own and getattr(arguments, option) is not None:
                raise ArgumentError(
                    f"--{option} is an option of {name}; {arguments.operator} takes "
                    f"{', '.join(f'--{word}' for word in own)}"
                )
    for option in ("check", "input"):
        if arguments.timing_only and getattr(arguments, option):
            raise ArgumentError(
                f"--{option} needs numbers, which --timing-only leaves out; drop one"
            )
    artifacts.check(arguments)


def _simulate(arguments: argparse.Namespace, prepared: Prepared) -> Result:
    keep = True if artifacts.needs_timeline(arguments) else arguments.timeline
    with ProgressBar() as progress:
        return prepared.run(
            device=load_device(arguments.device, collect("--set", arguments.set)),
            cores=_cores(arguments.cores),
            tiling=parse_tiling(arguments.tiling, prepared.tiling),
            engine=arguments.engine,
            timeline=keep,
            start=arguments.start,
            progress=progress,
        )


def _cores(text: str | None) -> str | int | None:
    """A mask if its prefix says so; any other text is a list of groups, decimal numbers too."""
    if text is None or not text.lower().startswith(("0b", "0x")):
        return text
    try:
        return int(text, 0)
    except ValueError:
        raise ArgumentError(
            f"--cores is {text!r}; it must be groups such as 0-3,5, or a mask such as 0b1111 or 0xf"
        ) from None


def _report(arguments: argparse.Namespace, prepared: Prepared, result: Result) -> Check | None:
    """Print the result, as text before it is checked, as JSON with the check in it."""
    if not arguments.json:
        sys.stdout.write(result.text())
        sys.stdout.flush()
    check = _checked(prepared, result) if arguments.check else None
    if arguments.json:
        print_json({**result.to_json(), "check": check and check.to_json()})
    elif check is not None:
        print(check)
    sys.stdout.flush()
    return check


def _checked(prepared: Prepared, result: Result) -> Check:
    array = result.outputs[0] if result.outputs else None
    if array is None:
        raise ArgumentError(f"--check: {result.operator} returned no array to compare")
    error = relative_error(prepared.framework(array), prepared.expected())
    return Check(what=prepared.what, error=error)
