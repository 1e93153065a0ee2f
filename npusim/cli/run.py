"""``npusim run``: simulate one operator call, check its numbers, write what is asked for."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npusim.cli import (
    artifacts,
    conv_backward,
    conv_filter,
    conv_input,
    convolution,
    deconv_filter,
    im2col,
    matmul,
)
from npusim.cli.console import print_json
from npusim.cli.machine import add_machine, add_simulation, element_type
from npusim.cli.parser import Parser, assignment, collect, integer
from npusim.cli.problem import LIMITS, Inputs, Operator, Prepared, returned
from npusim.cli.tiling import parse_tiling
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.errors import ArgumentError
from npusim.reference import relative_error
from npusim.results import Result
from npusim.results.progress import ProgressBar

#: Every operator by name.
OPERATORS: Mapping[str, Operator] = {
    "conv2d_backprop_filter": conv_filter.OPERATOR,
    "conv3d_backprop_input": conv_input.OPERATOR,
    "convolution_backward": conv_backward.OPERATOR,
    "deconv_grad_filter": deconv_filter.OPERATOR,
    "im2col_backward": im2col.OPERATOR,
    "matmul": matmul.OPERATOR,
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """How far an output is from a float64 computation, in relative Frobenius norm."""

    output: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; NaN is not."""
        return self.error <= self.limit

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"check  {self.output} against float64: relative error {self.error:.1e} "
            f"(limit {self.limit:.1e}): {'pass' if self.passed else 'fail'}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; an error that is no finite number is null, as JSON has none."""
        return {
            "output": self.output,
            "relative_error": self.error if math.isfinite(self.error) else None,
            "limit": self.limit,
            "passed": self.passed,
        }


def add_arguments(parser: Parser) -> None:
    """Declare ``run``."""
    lines = "".join(f"  {operator.example}\n" for operator in OPERATORS.values())
    parser.epilog = f"examples:\n{lines}"
    parser.add_argument(
        "operator",
        metavar="OPERATOR",
        choices=list(OPERATORS),
        help=f"{', '.join(OPERATORS)} (see 'npusim ops')",
    )
    convolution.add_arguments(parser)
    for operator in OPERATORS.values():
        if operator.add_arguments is not None:
            operator.add_arguments(parser)
    _add_numbers(parser)
    usual = "ft78ne for deconv_grad_filter; the others need one"
    add_machine(parser.add_argument_group("machine").add_argument, usual=usual)
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
        help=f"take an operand from a .npy file; repeatable; {_operands()}. Channels come first "
        "(deconv_grad_filter: last); the operators on fractals also take their own layouts "
        "(default: random, normal)",
    )
    add(
        "--dtype",
        type=element_type,
        metavar="TYPE",
        help="element type of the operands: fp16, bf16 or fp32 as far as the operator has it; "
        "bf16 is rounded from float32 files (default: as in --input, else the operator's first: "
        "fp32 for deconv_grad_filter, fp16 for the others)",
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
        help="compare every output with float64; status 1 if a relative error exceeds "
        f"{', '.join(f'{limit:.0e} ({kind})' for kind, limit in LIMITS.items())} (default: no)",
    )


def _operands() -> str:
    """The operands of every operator."""
    return "; ".join(f"{name}: {', '.join(op.inputs)}" for name, op in OPERATORS.items())


def _add_simulation(parser: Parser) -> None:
    group = parser.add_argument_group("simulation")
    add = group.add_argument
    add(
        "--tiling",
        default="auto",
        metavar="FIELD=VALUE,...",
        help="auto (the default), production (the vendor's rule), tile sizes in elements such as "
        "base_m=128,base_n=256,..., or @FILE (in the vendor's words); of several kernels "
        "KERNEL:base_m=128,...;KERNEL:production",
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
    operator = OPERATORS[arguments.operator]
    _check_arguments(arguments, operator)
    inputs = Inputs(
        operator.inputs,
        collect("--input", arguments.input),
        seed=arguments.seed,
        timing_only=arguments.timing_only,
        allowed=operator.dtypes,
        stated=arguments.dtype,
    )
    device = _device(arguments, operator)
    prepared = operator.prepare(arguments, inputs, device)
    artifacts.check_output(arguments, prepared)
    result = _simulate(arguments, prepared, device)
    checks = _report(arguments, prepared, result)
    lines, failures = artifacts.write_all(arguments, result, prepared)
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    if failures:
        raise ArgumentError("; ".join(failures))
    return 0 if all(check.passed for check in checks) else 1


def _check_arguments(arguments: argparse.Namespace, operator: Operator) -> None:
    """Refuse options that do not go together before anything is computed."""
    for option in dict.fromkeys(option for o in OPERATORS.values() for option in o.options):
        if option not in operator.options and getattr(arguments, option) is not None:
            owners = [name for name, other in OPERATORS.items() if option in other.options]
            raise ArgumentError(
                f"{_flag(option)} is an option of {', '.join(owners)}; {arguments.operator} takes "
                f"{', '.join(map(_flag, operator.options))}"
            )
    if arguments.dtype is not None and arguments.dtype not in operator.dtypes:
        raise ArgumentError(
            f"--dtype is {arguments.dtype}; {arguments.operator} takes "
            f"{' or '.join(kind.name for kind in operator.dtypes)}"
        )
    for option in ("check", "input"):
        if arguments.timing_only and getattr(arguments, option):
            raise ArgumentError(
                f"--{option} needs numbers, which --timing-only leaves out; drop one"
            )
    artifacts.check(arguments)


def _device(arguments: argparse.Namespace, operator: Operator) -> Device:
    """The device named, or the operator's usual one, with figures changed."""
    name = arguments.device or operator.device
    if name is None:
        raise ArgumentError(
            f"{arguments.operator} needs --device NAME; 'npusim devices' lists the names"
        )
    return load_device(name, collect("--set", arguments.set))


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _simulate(arguments: argparse.Namespace, prepared: Prepared, device: Device) -> Result:
    keep = True if artifacts.needs_timeline(arguments) else arguments.timeline
    with ProgressBar() as progress:
        return prepared.run(
            device=device,
            cores=arguments.cores,
            tiling=parse_tiling(arguments.tiling, prepared.tiling),
            rules=arguments.rules,
            engine=arguments.engine,
            timeline=keep,
            start=arguments.start,
            progress=progress,
        )


def _report(arguments: argparse.Namespace, prepared: Prepared, result: Result) -> list[Check]:
    """Print the result, as text before it is checked, as JSON with the check in it."""
    told = {"time_range": result.time_range.to_json()} if arguments.range else {}
    if not arguments.json:
        sys.stdout.write(result.text())
        sys.stdout.flush()
    checks = _checked(prepared, result) if arguments.check else []
    if arguments.json:
        checked = {
            "passed": all(check.passed for check in checks),
            "outputs": [check.to_json() for check in checks],
        }
        print_json({**result.to_json(), **told, "check": checked if checks else None})
    else:
        for check in checks:
            print(check)
    sys.stdout.flush()
    return checks


def _checked(prepared: Prepared, result: Result) -> list[Check]:
    """One check per output asked for."""
    return [
        Check(
            output=name,
            error=relative_error(output.framework(returned(result, name)), output.expected()),
            limit=output.limit,
        )
        for name, output in prepared.outputs.items()
    ]
