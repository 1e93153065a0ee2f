"""Names and arguments are written out: a misspelling is refused, by type checkers too.

Type checkers see the functions of the vendor interfaces and the columns of measured rows; what is
refused here was accepted while these were made when their modules were imported.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.compat import aclnn, ftdsp, tbe_dsl
from npusim.silicon.rows import CallRow, KernelRow

ROOT = Path(__file__).parents[1]

#: Modules of the vendor interfaces, and the files their functions are written in.
INTERFACES: dict[Any, str] = {
    aclnn: "acl*.py",
    ftdsp: "ftdsp.py",
    tbe_dsl: "tbe_dsl.py",
}

IMPORTS = """
import npusim
from npusim.compat import aclnn, ftdsp
from npusim.compat.tbe import dsl, tvm
from npusim.silicon.rows import CallRow, KernelRow

x = tvm.placeholder((1, 1, 7, 7, 16), dtype="float16")
dy = tvm.placeholder((1, 1, 7, 7, 16), dtype="float16")
para = {"strides": [1, 1], "padding": [0, 0, 0, 0], "dilations": [1, 1, 1, 1]}
map_ = npusim.spec((1, 4, 4, 1), "fp32")
row = KernelRow(id="a", chip="910B1", op="gemm", base_m=128)
"""

#: Statements that a type checker accepts, and how each is misspelled with the code of its error.
STATEMENTS = {
    "aclnn.aclnnConvolutionBackward(None, 0, None, None)": (
        ("aclnn.aclnnConvolutionBackwards(None, 0, None, None)", "attr-defined"),
        ("aclnn.aclnnConvolutionBackward(None, 0, None)", "call-arg"),
        ("aclnn.aclnnConvolutionBackward(None, None, None, None)", "arg-type"),
    ),
    "aclnn.aclnnMmGetWorkspaceSize(None, None, None, 0)": (
        ("aclnn.aclnnMmGetWorkspace(None, None, None, 0)", "attr-defined"),
        ("aclnn.aclnnMmGetWorkspaceSize(None, None, 0)", "call-arg"),
        ("aclnn.aclnnMmGetWorkspaceSize(None, None, out=None, cubeMath=0)", "call-arg"),
    ),
    "aclnn.ACL_FLOAT16": (("aclnn.ACL_FLOAT_16", "attr-defined"),),
    "ftdsp.fp_conv_grad_input_p": (
        ("ftdsp.fp_conv_grad_inputs_p", "attr-defined"),
        ("ftdsp.bf_conv_grad_input_p", "attr-defined"),
    ),
    "ftdsp.fp_conv_grad_filter_s(map_, map_, None, [1] * 18, 1, storage='gsm')": (
        ("ftdsp.fp_conv_grad_filter_s(map_, map_, None, [1] * 18, storage='gsm')", "call-arg"),
        ("ftdsp.fp_conv_grad_filter_s(map_, map_, None, [1] * 18, 1, store='gsm')", "call-arg"),
        ("ftdsp.fp_conv_grad_filter_s(map_, map_, None, [1] * 18, 1, check='yes')", "arg-type"),
    ),
    "dsl.conv2d_backprop_filter(x, dy, [16, 16, 1, 1], para)": (
        ("dsl.conv2d_backprop_filters(x, dy, [16, 16, 1, 1], para)", "attr-defined"),
        ("dsl.conv2d_backprop_filter(x, dy, [16, 16, 1, 1], parameters=para)", "call-arg"),
        ("dsl.conv2d_backprop_filter(x, dy, 16, para)", "arg-type"),
    ),
    "dsl.depthwise_conv2d_backprop_input(x, dy, [16, 1, 1, 1], [1, 16, 7, 7], para)": (
        ("dsl.depthwise_conv2d_backprop_input(x, dy, [16, 1, 1, 1], para)", "call-arg"),
    ),
    "KernelRow(id='b', chip='910B1', op='gemm', base_n=128)": (
        ("KernelRow(id='b', chip='910B1', op='gemm', base_p=128)", "call-arg"),
        ("KernelRow(id='b', chip='910B1', op='gemm', base_n='128')", "arg-type"),
        ("KernelRow(id='b', chip='910B1', base_n=128)", "call-arg"),
    ),
    "CallRow(id='c', chip='910B2', call='matmul', Ncols=16)": (
        ("CallRow(id='c', chip='910B2', call='matmul', columns=16)", "call-arg"),
    ),
    "row.base_m": (("row.base_mm", "attr-defined"),),
}


@pytest.mark.slow
def test_a_type_checker_refuses_every_misspelling(tmp_path: Path) -> None:
    lines, expected = IMPORTS.splitlines(), {}
    for statement, misspelled in STATEMENTS.items():
        lines.append(statement)
        for wrong, code in misspelled:
            lines.append(wrong)
            expected[len(lines)] = code
    file = tmp_path / "snippets.py"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    errors = re.findall(r"snippets\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    assert {int(line): code for line, code in errors} == expected, done.stdout + done.stderr


@pytest.mark.parametrize("module", INTERFACES, ids=lambda module: module.__name__)
def test_every_public_function_is_written_out(module: Any) -> None:
    """`rg "def NAME"` finds it; it says what it does, and types of its arguments and result."""
    files = sorted((ROOT / "npusim" / "compat").glob(INTERFACES[module]))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    written = {
        node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)
    }
    functions = {name: getattr(module, name) for name in module.__all__}
    functions = {name: f for name, f in functions.items() if hasattr(f, "__code__")}
    assert len(functions) > 8
    assert functions.keys() <= written
    for name, function in functions.items():
        assert function.__name__ == name
        assert getdoc(function), f"{name} has no docstring"
        takes = signature(function)
        assert takes.return_annotation is not takes.empty, f"{name} does not say what it returns"
        untyped = [p.name for p in takes.parameters.values() if p.annotation is p.empty]
        assert not untyped, f"{name} has arguments without types"


PHASES_ONE = [name for name in aclnn.__all__ if name.endswith("GetWorkspaceSize")]


@pytest.mark.parametrize("name", PHASES_ONE)
def test_both_phases_tell_their_own_name(name: str) -> None:
    """Null pointers are refused; the text begins with the call, and names its phase one."""
    aclnn.aclrtSetDevice("ascend910b2")
    call = name.removesuffix("GetWorkspaceSize")
    usual = {"int": 0, "bool": False}
    parameters = signature(getattr(aclnn, name)).parameters.values()
    status, size, executor = getattr(aclnn, name)(*(usual.get(p.annotation) for p in parameters))
    assert (status != aclnn.ACLNN_SUCCESS, size, executor) == (True, 0, None)
    assert str(aclnn.aclGetRecentErrMsg()).startswith(f"{call}: ")
    assert getattr(aclnn, call)(None, 0, None, None) == aclnn.ACLNN_ERR_PARAM_NULLPTR
    text = f"{call}: executor is null; pass what {name} returned"
    assert aclnn.aclGetRecentErrMsg() == text


DSP_FORMS = [name for name in ftdsp.__all__ if name != "using"]


@pytest.mark.parametrize("name", DSP_FORMS)
def test_each_form_of_the_dsp_library_runs_its_own_operator(name: str) -> None:
    """1x1 kernels of one channel: only the name tells operator, type, device and storage."""
    prefix, operator, storage = name[:2], name[3:-2], name[-1]
    kind = {"fp": "fp32", "hp": "fp16"}[prefix]
    param = [1, 4, 4, 1, 1, 4, 4, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]
    dy, second = npusim.spec((1, 4, 4, 1), kind), npusim.spec((1, 4, 4, 1), kind)
    if operator.endswith("input"):
        second = npusim.spec((1, 1, 1), kind)
    mask = [1] if storage == "s" else []
    result = getattr(ftdsp, name)(dy, second, None, param, *mask)
    assert (result.operator, result.dtype) == (operator, kind)
    assert result.device.name == {"fp": "ft78ne", "hp": "mt7004"}[prefix]
    other = {"s": "private", "p": "shared"}[storage]
    with pytest.raises(npusim.NpusimError, match=f"storage is '{other}'"):
        getattr(ftdsp, name)(dy, second, None, param, *mask, storage=other)


def test_misspellings_are_refused_when_they_run() -> None:
    assert not hasattr(aclnn, "aclnnConvolutionBackwards")
    assert not hasattr(ftdsp, "fp_conv_grad_inputs_p")
    wrong: Any = {"base_p": 128}
    with pytest.raises(TypeError, match="base_p"):
        KernelRow(id="b", chip="910B1", op="gemm", **wrong)
    with pytest.raises(TypeError, match="base_p"):
        CallRow(id="c", chip="910B2", call="matmul", **wrong)
    with pytest.raises(npusim.NpusimError, match="missing a required argument: 'param'; it takes"):
        getattr(ftdsp, DSP_FORMS[0])(None, None, None)
