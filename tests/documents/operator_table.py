"""The table of operators and devices: each cell is what ``npusim run ... --check`` says."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import NamedTuple

import npusim
from npusim.cli import run
from npusim.cli.main import parser
from npusim.errors import ArgumentError, RuleError
from npusim.limits.table import documented_operators, load_rules
from npusim.ops import CARDS

#: A layer of 16 -> 32 channels with a kernel of 3 in each dimension.
LAYER = "--batch 2 --cin 16 --cout 32 --padding 1 --size {} --kernel {}"
LAYERS = {1: LAYER.format("6", "3"), 2: LAYER.format("5x6", "3x3"), 3: LAYER.format("3x5x6", "3")}


class Case(NamedTuple):
    """One row of the table: the calls that it stands for.

    A product that refuses them by its documentation does so for ``parameter``, and lacks ``word``.
    """

    word: str
    parameter: str
    calls: tuple[str, ...]


def backward(options: str, *dims: int) -> tuple[str, ...]:
    """convolution_backward, plain and transposed, for each number of dimensions."""
    layers = [f"convolution_backward {LAYERS[d]} {options}" for d in dims]
    return tuple(f"{layer} {form}" for layer in layers for form in ("", "--transposed"))


def dsp(dtype: str) -> tuple[str, ...]:
    layer = "--cin 4 --cout 8 --size 5x6 --kernel 3"
    return (f"deconv_grad_filter {layer} --dtype {dtype}",)


#: Rows of the table of operators.
CASES = {
    "conv2d_backprop_filter": Case("fp16", "", (f"conv2d_backprop_filter {LAYERS[2]}",)),
    "conv3d_backprop_input": Case("fp16", "", (f"conv3d_backprop_input {LAYERS[3]}",)),
    "convolution_backward, 1-D and 2-D": Case("fp16", "", backward("", 1, 2)),
    "convolution_backward, 3-D": Case("3-D", "weight.shape", backward("", 3)),
    "convolution_backward, bf16": Case("bf16", "grad_output.dtype", backward("--dtype bf16", 2)),
    **{
        f"convolution_backward, fp32 {name}": Case(
            word, parameter, backward(f"--dtype fp32 --cube-math-type {number}", 2)
        )
        for name, word, parameter, number in (
            ("kept", "fp32", "cube_math_type", 0),
            ("as HF32", "HF32", "cube_math_type", 3),
            ("as fp16", "fp16", "", 2),
        )
    },
    "im2col_backward, fp16 and fp32": Case(
        "fp16",
        "",
        tuple(
            f"im2col_backward --batch 2 --channels 3 --size 5x6 --kernel 3 --padding 1 {dtype}"
            for dtype in ("--dtype fp16", "--dtype fp32")
        ),
    ),
    "deconv_grad_filter, fp32": Case("fp32", "", dsp("fp32")),
    "deconv_grad_filter, fp16": Case("fp16", "dtype", dsp("fp16")),
    "matmul, fp16": Case("fp16", "", ("matmul --m 33 --k 20 --n 17",)),
}


#: Column of the table -> its devices; the bins of a chip have the same limits.
COLUMNS = {
    "ascend910b[1-4]" if name == "ascend910b1" else name: name
    for name in npusim.devices()
    if name not in {"ascend910b2", "ascend910b3", "ascend910b4"}
}


def cell(row: str, name: str, engine: str = "fast") -> str:
    """What the table says about a row on a device, found by running its calls."""
    case, operator = CASES[row], row.partition(",")[0]
    device, role = npusim.load_device(name), CARDS[operator].role
    own = operator not in documented_operators() or not load_rules(device.product, operator).note
    try:
        for call in case.calls:
            words = ["run", *call.split(), "--device", name, "--engine", engine, "--check"]
            with redirect_stdout(StringIO()) as printed:
                assert run.execute(parser(words).parse_args(words)) == 0, printed.getvalue()
    except RuleError as error:
        word = case.word if error.parameter == case.parameter else error.parameter
        return f"no {word}{'' if own else '*'}"
    except ArgumentError:
        has_role = any(role in kind.roles for kind in device.cores.values())
        return f"no {case.word if has_role else role.replace('dsp', 'DSP')}"
    return "works" if own else "works*"


def operator_table() -> str:
    """The table as Markdown; takes a while, because it runs every call."""
    head = f"| operator | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}\n"
    rows = []
    for row in CASES:
        name, comma, rest = row.partition(",")
        cells = " | ".join(cell(row, device) for device in COLUMNS.values())
        rows.append(f"| `{name}`{comma}{rest} | {cells} |\n")
    return head + "".join(rows)
