"""The documents are true: their code runs, their commands work, their tables and links hold.

``python -m tests.test_readme`` renews what the simulator writes into them: the report in the README
and its picture.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import npusim
from npusim.cli.main import COMMANDS, main
from npusim.cli.run import OPERATORS
from npusim.results.plots import figure_bytes

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "timeline.png"
DOCUMENTS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md")

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.M | re.S)
_REPORT = re.compile(
    r"(?<=<!-- report: begin -->\n```text\n)(.*?)(?=```\n<!-- report: end -->)", re.S
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
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def demo() -> npusim.Result:
    """The demo's call, shapes only: time does not depend on data."""
    x = npusim.spec((2, 16, 14, 14, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    return npusim.ops.conv2d_backprop_filter(x, x, [256, 256, 3, 3], para, device="ascend910")


def slug(heading: str) -> str:
    """The anchor of a heading, as forges make it."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the block writes its files
    code = blocks("python")[number]
    exec(compile(code, f"README.md, Python block {number}", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert bool(printed) == ("print(" in code)
    written = re.findall(r'"([\w.]+\.(?:json|html|png))"', code)
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)


def test_python_blocks_were_found() -> None:
    assert len(blocks("python")) == 3
    assert sum("class Scale(Kernel)" in code for code in blocks("python")) == 1


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


def test_the_table_of_operators_is_complete() -> None:
    rows = table("operator")
    assert sorted(rows) == npusim.operators() == sorted(OPERATORS)
    for name, cells in rows.items():
        assert sorted(cells) == npusim.devices()
        assert set(cells.values()) == {"yes"}, name


@pytest.mark.parametrize("device", npusim.devices())
@pytest.mark.parametrize("operator", npusim.operators())
def test_the_table_of_operators_is_true(
    operator: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {
        "conv2d_backprop_filter": "--cin 16 --cout 32 --size 6 --kernel 3 --padding 1",
        "matmul": "--m 33 --k 20 --n 17",
    }
    words = ["run", operator, "--device", device, *sizes[operator].split(), "--check"]
    assert main(words) == 0
    assert capsys.readouterr().out.rstrip().endswith("pass")


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
    """Write the demo's report into the README, and its picture."""
    text = README.read_text(encoding="utf-8")
    result = demo()
    README.write_text(_REPORT.sub(lambda _: result.text(), text), encoding="utf-8")
    launch_us = result.device.time_us(result.runs[0].launch_cycles)
    axes = result.plot_timeline(cores=("core0",), window=(0.97 * launch_us, result.time_us))
    PICTURE.write_bytes(figure_bytes(axes, "png"))
    print(f"renewed {README.name} and {PICTURE.name}")


if __name__ == "__main__":
    renew()
