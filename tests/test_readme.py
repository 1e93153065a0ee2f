"""The documents are true: their code runs, their commands work, their tables and links hold.

``python -m tests.test_readme`` renews what the simulator writes into them: the report in the README
and its picture.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from fnmatch import fnmatch
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import npusim
from npusim import layout as lay
from npusim.cli.main import COMMANDS, main
from npusim.dtypes import dtype
from npusim.errors import ArgumentError, RuleError
from npusim.limits.table import documented_operators, load_rules
from npusim.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_forward,
    conv_input_grad,
    relative_error,
)
from npusim.results.plots import figure_bytes
from npusim.torch.log import TOLERANCES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "timeline.png"
DOCUMENTS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md")

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.M | re.S)
_REPORT = re.compile(
    r"(?<=<!-- report: begin -->\n```text\n)(.*?)(?=```\n<!-- report: end -->)", re.S
)
_KERNELS = re.compile(
    r"(?<=<!-- kernels: begin -->\n```text\n)(.*?)(?=```\n<!-- kernels: end -->)", re.S
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:npusim|kernels|configs|tests|docs|\.ci)/[\w./-]*)`")


def blocks(language: str, document: str = "README.md") -> list[str]:
    """Fenced blocks of one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for _, kind, body in _FENCE.findall(text) if kind == language]


def shell_lines() -> list[str]:
    """Every command of the documents, continuation lines joined."""
    found = [body for name in DOCUMENTS for body in blocks("sh", name)]
    lines = "\n".join(found).replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def npusim_lines() -> list[str]:
    return [line for line in shell_lines() if line.startswith("npusim ")]


def table(first: str) -> dict[str, dict[str, str]]:
    """Rows of the README's table whose first heading is ``first``: row -> column -> cell."""
    lines = README.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[at:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def demo() -> npusim.Result:
    """The demo's call, shapes only: time does not depend on data."""
    x = npusim.spec((2, 16, 14, 14, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    return npusim.ops.conv2d_backprop_filter(x, x, [256, 256, 3, 3], para, device="ascend910")


def training_step() -> str:
    """What the README's convolution_backward example prints."""
    (code,) = (code for code in blocks("python") if "convolution_backward(" in code)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "README.md, step of training", "exec"), {"__name__": "readme"})
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"


class Case(NamedTuple):
    """One row of the table of operators: what it needs and how it is computed on a device.

    ``run`` returns pairs (result, float64 result); ``limit`` is the largest relative error.
    A product that refuses the row by its documentation does so for ``parameter``, and lacks
    ``word``.
    """

    role: str
    word: str
    parameter: str
    limit: float
    run: Callable[[str], Iterable[tuple[Any, Any]]]


def random(shape: tuple[int, ...], kind: str) -> Any:
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return values.astype(dtype(kind).numpy)


def first(r: npusim.Result) -> Any:
    return (r.outputs or ())[0]


def layer(kind: str, dims: int) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """dy, x and w of a 16 -> 32 channel layer, kernel 3, and the reference's geometry."""
    sizes = (3, 5, 6)[3 - dims :]
    x, dy = random((2, 16, *sizes), kind), random((2, 32, *sizes), kind)
    w = random((32, 16, *(3,) * dims), kind)
    return dy, x, w, ((1,) * dims, ((1, 1),) * dims, (1,) * dims, 1)


def convolution(kind: str, dims: tuple[int, ...], math: int) -> Callable[[str], Any]:
    """convolution_backward, plain and transposed, for each number of dimensions."""

    def run(device: str) -> Iterable[tuple[Any, Any]]:
        for d in dims:
            dy, x, w, how = layer(kind, d)
            options: dict[str, Any] = {"cube_math_type": math, "device": device, "padding": 1}
            back = npusim.ops.convolution_backward
            r = back(dy, x, w, (32,), **options)
            yield r.grad_input, conv_input_grad(dy, w, x.shape, *how)
            yield r.grad_weight, conv_filter_grad(x, dy, w.shape[2:], *how)
            yield r.grad_bias, conv_bias_grad(dy)
            r = back(x, dy, w, (16,), transposed=True, **options)
            yield r.grad_input, conv_forward(x, w, *how)
            yield r.grad_weight, conv_filter_grad(x, dy, w.shape[2:], *how)
            yield r.grad_bias, conv_bias_grad(x)

    return run


def tbe_filter(device: str) -> Iterable[tuple[Any, Any]]:
    dy, x, w, how = layer("fp16", 2)
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    r = npusim.ops.conv2d_backprop_filter(
        lay.to_5hd(x, 16), lay.to_5hd(dy, 16), w.shape, para, device=device
    )
    dw = lay.from_fracz(first(r).reshape(9, 2, 16, 16), w.shape, 1, 16)
    yield dw, conv_filter_grad(x, dy, (3, 3), *how)


def tbe_input(device: str) -> Iterable[tuple[Any, Any]]:
    dy, x, w, how = layer("fp16", 3)
    n, cin, *sizes = x.shape
    para = {"strides": [1] * 5, "pads": [1] * 6, "dilations": [1] * 5}
    groups = lay.group_dict(lay.group_plan(16, 32, 1, 16))
    r = npusim.ops.conv3d_backprop_input(
        lay.to_fracz_3d(w, 1, 16),
        lay.to_6hd(dy, 16),
        *(w.shape, [n, *sizes, cin], para | {"group_dict": groups}),
        device=device,
    )
    dx = lay.from_6hd(first(r).reshape(n, sizes[0], 1, *sizes[1:], 16), cin)
    yield dx, conv_input_grad(dy, w, x.shape, *how)


def fold(device: str) -> Iterable[tuple[Any, Any]]:
    for kind in ("fp16", "fp32"):
        grad = random((2, 3 * 9, 5 * 6), kind)
        r = npusim.ops.im2col_backward(grad, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), device=device)
        image = np.zeros((2, 3, 7, 8))
        patches = grad.reshape(2, 3, 3, 3, 5, 6)
        for kh, kw in np.ndindex(3, 3):
            image[:, :, kh : kh + 5, kw : kw + 6] += patches[:, :, kh, kw]
        yield first(r), image[:, :, 1:-1, 1:-1]


def dsp_filter(kind: str) -> Callable[[str], Any]:
    def run(device: str) -> Iterable[tuple[Any, Any]]:
        # What a transposed layer maps x to has dy's size: dy is the plain convolution's input.
        x, dy, how = random((1, 4, 5, 6), kind), random((1, 8, 7, 8), kind), ((1, 1), ((0, 0),) * 2)
        param = [1, 5, 6, 4, 1, 7, 8, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
        r = npusim.ops.deconv_grad_filter(
            lay.nchw_to_nhwc(dy), lay.nchw_to_nhwc(x), param, device=device
        )
        want = conv_filter_grad(dy, x, (3, 3), *how, (1, 1), 1)  # (in_c, out_c, KH, KW)
        yield first(r), want.transpose(1, 2, 3, 0).reshape(1, 8 * 9, 4)

    return run


def product(device: str) -> Iterable[tuple[Any, Any]]:
    a, b = random((33, 20), "fp16"), random((20, 17), "fp16")
    yield first(npusim.ops.matmul(a, b, device=device)), a.astype(float) @ b.astype(float)


SUMS = 1e-5  # relative error of fp32 sums of exact products

#: Rows of the table of operators.
CASES = {
    "conv2d_backprop_filter": Case("cube", "fp16", "", SUMS, tbe_filter),
    "conv3d_backprop_input": Case("cube", "fp16", "", TOLERANCES["fp16"], tbe_input),
    **{
        f"convolution_backward, {name}": Case(
            "cube", word, parameter, TOLERANCES[limit], convolution(kind, dims, math)
        )
        for name, word, parameter, limit, kind, dims, math in (
            ("1-D and 2-D", "fp16", "", "fp16", "fp16", (1, 2), 0),
            ("3-D", "3-D", "weight.shape", "fp16", "fp16", (3,), 0),
            ("bf16", "bf16", "grad_output.dtype", "bf16", "bf16", (2,), 0),
            ("fp32 kept", "fp32", "cube_math_type", "fp32", "fp32", (2,), 0),
            ("fp32 as HF32", "HF32", "cube_math_type", "hf32", "fp32", (2,), 3),
            ("fp32 as fp16", "fp16", "", "fp16", "fp32", (2,), 2),
        )
    },
    "im2col_backward, fp16 and fp32": Case("vector", "fp16", "", 2 * TOLERANCES["fp16"], fold),
    "deconv_grad_filter, fp32": Case("dsp", "fp32", "", SUMS, dsp_filter("fp32")),
    "deconv_grad_filter, fp16": Case("dsp", "fp16", "", TOLERANCES["fp16"], dsp_filter("fp16")),
    "matmul, fp16": Case("cube", "fp16", "", SUMS, product),
}


def outcome(case: Case, operator: str, name: str) -> str:
    """The cell of one row and device, found by running the case."""
    device = npusim.load_device(name)
    own = operator not in documented_operators() or not load_rules(device.product, operator).note
    try:
        for got, want in case.run(name):
            assert relative_error(got, want) <= case.limit
    except RuleError as error:
        word = case.word if error.parameter == case.parameter else error.parameter
        return f"no {word}{'' if own else '*'}"
    except ArgumentError:
        has_role = any(case.role in kind.roles for kind in device.cores.values())
        return f"no {case.word if has_role else case.role.replace('dsp', 'DSP')}"
    return "works" if own else "works*"


def slug(heading: str) -> str:
    """The anchor of a heading, as forges make it."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the block writes its files
    code = blocks("python")[number]
    if "import torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, f"README.md, Python block {number}", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert bool(printed) == ("print(" in code)
    written = re.findall(r'"([\w.]+\.(?:json|html|png))"', code)
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)


def test_python_blocks_were_found() -> None:
    assert len(blocks("python")) == 6
    for word in ("class Scale(Kernel)", "convolution_backward(", "import torch"):
        assert sum(word in code for code in blocks("python")) == 1


@pytest.mark.parametrize("line", npusim_lines())
def test_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
    for option, file in pairwise(words):
        if option in ("--trace", "--plot", "--report", "--output"):
            assert (tmp_path / file).stat().st_size > 1000


def test_the_kinds_of_commands_are_known() -> None:
    # Whatever else a document tells people to type needs a check of its own here.
    others = {line for line in shell_lines() if not line.startswith("npusim ")}
    assert others == {
        *(f"make {target}" for target in ("demo", "test", "check", "slow", "bench")),
        "python -m tests.test_readme",
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in others - {"python -m tests.test_readme"}:
        assert re.search(rf"^{line.split()[1]}:", makefile, re.M), line


def test_the_demo_is_the_one_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    recipe = next(line for line in makefile.splitlines() if "$(BIN)/npusim run" in line)
    typed = " ".join(recipe.replace("$(BIN)/", "").replace("$(OUT)/", "").split())
    assert typed in npusim_lines()


def test_the_report_is_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(next(line for line in npusim_lines() if "--check" in line))[1:]
    kept = words[: words.index("--check")]
    assert main([*kept, "--timing-only"]) == 0
    (shown,) = _REPORT.findall(README.read_text(encoding="utf-8"))
    renew = "the README is out of date; renew it with: python -m tests.test_readme"
    assert capsys.readouterr().out == shown == demo().text(), renew


def test_every_title_of_the_report_is_explained() -> None:
    text = README.read_text(encoding="utf-8")
    (report,) = _REPORT.findall(text)
    after = text.partition("<!-- report: end -->")[2].partition("\n## ")[0]
    explained = " ".join(re.findall(r"\*\*(.*?)\*\*", after))
    titles = re.findall(r"^([a-z]{4,}|[A-Z]+(?: [A-Z]+)*)\b(?= {2,}| \(|$)", report, re.M)
    assert {"operator", "KERNELS", "TRAFFIC", "NOTES"} <= set(titles)
    kernels = set(demo().kernels["name"])
    assert [title for title in titles if title not in explained and title not in kernels] == []
    reasons = re.search(r"^ +pipe +core +(.*)$", report, re.M)
    assert reasons is not None
    assert all(f"`{reason}`" in after for reason in reasons[1].split())


def test_the_kernels_are_what_the_step_of_training_prints() -> None:
    (shown,) = _KERNELS.findall(README.read_text(encoding="utf-8"))
    assert training_step() == shown, "renew the README with: python -m tests.test_readme"


def test_the_table_of_operators_is_complete() -> None:
    rows = table("operator")
    assert list(rows) == list(CASES)
    assert sorted({row.partition(",")[0] for row in rows}) == npusim.operators()
    for cells in rows.values():
        for device in npusim.devices():
            assert sum(fnmatch(device, column) for column in cells) == 1, device


@pytest.mark.parametrize("device", npusim.devices())
@pytest.mark.parametrize("row", CASES)
def test_the_table_of_operators_is_true(row: str, device: str) -> None:
    (cell,) = (text for column, text in table("operator")[row].items() if fnmatch(device, column))
    assert outcome(CASES[row], row.partition(",")[0], device) == cell


def test_the_shares_of_assumed_figures_are_true() -> None:
    text = README.read_text(encoding="utf-8").partition("The assumed share:")[2].partition(".")[0]
    stated = {name: int(share) for name, share in re.findall(r"`(\w+)`\s(\d+)\s%", text)}
    computed = {}
    for name in npusim.devices():
        known = [figure.confidence for figure in npusim.load_device(name).provenance.values()]
        computed[name] = round(100 * known.count("assumed") / len(known))
    assert stated == computed


def test_the_table_of_commands_is_complete() -> None:
    assert set(table("command")) == {f"npusim {name}" for name in COMMANDS}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in _LINK.findall(text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / document).parent / name if name else ROOT / document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), target
    for path in _PATH.findall(text):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_the_picture_is_small() -> None:
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert 5_000 < len(data) < 100_000


def renew() -> None:
    """Write what the demo and the step of training print into the README, and the picture."""
    text = README.read_text(encoding="utf-8")
    result = demo()
    text = _REPORT.sub(lambda _: result.text(), text)
    README.write_text(_KERNELS.sub(lambda _: training_step(), text), encoding="utf-8")
    launch_us = result.device.time_us(result.runs[0].launch_cycles)
    axes = result.plot_timeline(cores=("core0",), window=(0.97 * launch_us, result.time_us))
    PICTURE.write_bytes(figure_bytes(axes, "png"))
    print(f"renewed {README.name} and {PICTURE.name}")


if __name__ == "__main__":
    renew()
