"""The documents are true: their code runs, their commands work, their tables and links hold."""

from __future__ import annotations

import csv
import pkgutil
import re
import shlex
from dataclasses import fields
from itertools import pairwise, product
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from npusim.base.reasons import REASONS
from npusim.call.options import Options
from npusim.cli.main import main
from npusim.study.space import make_axis
from tests.documents.__main__ import LABEL, PICTURE, SWEEP, SWEPT, digest, sweep_words
from tests.documents.pages import (
    DOCUMENTS,
    ROOT,
    files,
    npusim_lines,
    prose,
    sections,
    shell_lines,
    slug,
    table,
    text,
)
from tests.documents.sections import SECTIONS, demo
from tests.sampled import slow_if

REPORT = "docs/reference/report.md"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:npusim|kernels|configs|tests|docs|\.ci)/[\w./-]*)`")

_NAME = re.compile(r'"(npusim[\w.]*)"')
_TARGET = re.compile(r"\bmake ([a-z]+)\b")

#: Whatever else a document tells people to type needs a check of its own here.
OTHER_COMMANDS = {"python -m tests.documents"}

#: Parts of lines that take seconds or minutes, and what stands for them but in `make slow`.
LONG = {
    "net resnet50 --device ascend910b2 --batch 32": "net dcgan --device ascend910b2 --batch 2",
    "net resnet18 --device ascend910b2 --batch 16": "net resnet18 --device ascend910b2 --batch 1",
    "validate --scored --chip 950PR": "validate --family CS-MM",
    "tune conv2d_backprop_filter --layer resnet50/res4_3x3 --batch 2": (
        "tune conv2d_backprop_filter --cin 16 --cout 32 --size 7 --kernel 3 --budget 40"
    ),
    "sweep net resnet18": "sweep net dcgan --gradients weight --jobs 1",
    "explore matmul --m 96 --k 256 --n 160": "explore matmul --m 32 --k 64 --n 48",
}
LINES = npusim_lines()
SMALL = {line: line.replace(long, LONG[long]) for line in LINES for long in LONG if long in line}

#: Lines of the README; what does not fit belongs into ``docs``.
README_LINES = 215


@pytest.mark.parametrize(
    "line",
    [
        *(SMALL.get(line, line) for line in LINES),
        *(pytest.param(x, marks=pytest.mark.slow) for x in SMALL),
    ],
)
def test_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, code in files().items():  # that the reader has saved
        (tmp_path / name).write_text(code, encoding="utf-8")
    words = shlex.split(line)[1:]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
    for option, file in pairwise(words):
        if option in ("--trace", "--plot", "--report", "--output"):
            assert (tmp_path / file).stat().st_size > 1000


def test_every_long_line_is_there() -> None:
    assert all(any(long in line for line in LINES) for long in LONG)


def test_the_other_commands_are_known() -> None:
    others = {line for line in shell_lines() if not line.startswith(("npusim ", "make "))}
    assert others == OTHER_COMMANDS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_targets_of_make_exist(document: str) -> None:
    for span in re.findall(r"`([^`]*)`", prose(document)) + shell_lines():
        for target in _TARGET.findall(span):
            assert re.search(rf"^{target}:", text("Makefile"), re.M), span


def test_the_demo_is_the_one_of_the_makefile() -> None:
    makefile = text("Makefile").replace("\\\n", " ")
    recipe = next(line for line in makefile.splitlines() if "$(BIN)/npusim run" in line)
    typed = " ".join(recipe.replace("$(BIN)/", "").replace("$(OUT)/", "").split())
    assert typed in npusim_lines()


#: Sections that take seconds; replayed calls and texts notice what moves them.
LONG_SECTIONS = ("network", "training step", "tuned product", "what is kept")


@pytest.mark.parametrize(
    "name", [slow_if(name in LONG_SECTIONS, name) for name in SECTIONS if name != "operators"]
)
def test_sections_are_what_the_program_prints(name: str) -> None:
    found = {page: sections(page)[name] for page in DOCUMENTS if name in sections(page)}
    assert found, f"no document shows {name}"
    want = SECTIONS[name]()
    for page, shown in found.items():
        assert shown == want, f"{page} is out of date; renew it: python -m tests.documents {name}"


def test_every_section_has_a_source() -> None:
    assert {name for page in DOCUMENTS for name in sections(page)} == set(SECTIONS)


def test_the_report_is_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(next(line for line in npusim_lines() if "--report" in line))[1:]
    assert main([*words[: words.index("--check")], "--timing-only"]) == 0
    assert capsys.readouterr().out == demo().text()


def test_every_title_of_the_report_is_explained() -> None:
    report = demo().text()
    after = text(REPORT).partition("<!-- report: end -->")[2]
    explained = " ".join(re.findall(r"\*\*(.*?)\*\*", after))
    titles = re.findall(r"^([a-z]{4,}|[A-Z]+(?: [A-Z]+)*)\b(?= {2,}| \(|$)", report, re.M)
    assert {"operator", "KERNELS", "TRAFFIC", "NOTES"} <= set(titles)
    kernels = set(demo().kernels["name"])
    assert [title for title in titles if title not in explained and title not in kernels] == []
    reasons = [line.split("`")[1] for line in after.splitlines() if line.startswith("| `")]
    assert tuple(reasons) == REASONS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_lead_somewhere(document: str) -> None:
    here = ROOT / document
    for target in _LINK.findall(prose(document)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = here.parent / name if name else here
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), target
    for path in _PATH.findall(text(document)):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_the_sweep_of_the_readme_has_the_times_behind_its_picture() -> None:
    with Image.open(ROOT / SWEEP) as image:
        assert image.info[LABEL] == digest(ROOT / SWEPT), (
            "renew it: python -m tests.documents sweep"
        )
    assert (ROOT / SWEEP).stat().st_size < 100_000


def _swept() -> list[dict[str, str]]:
    """The points of the README's sweep as they were when its picture was drawn."""
    with (ROOT / SWEPT).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_sweep_has_the_points_of_its_command() -> None:
    words = sweep_words()
    varied = [words[i + 1].partition("=") for i, word in enumerate(words) if word == "--vary"]
    names = [name for name, _, _ in varied]
    values = [make_axis(name, text, {"device": "ascend910b2"}).values for name, _, text in varied]
    assert [tuple(row[name] for name in names) for row in _swept()] == list(product(*values))


def test_the_words_below_the_sweep_say_what_its_times_are() -> None:
    words = " ".join(prose("README.md").split())
    found = re.search(
        r"(\d+) in place of (\d+) save (\d+) % with (\d+ MiB) and (\d+) % with (\d+ MiB)", words
    )
    assert found is not None
    times = {(row["groups"], row["l2.size"]): float(row["time_us"]) for row in _swept()}
    more, fewer, *saved = found.groups()
    for percent, size in zip(saved[::2], saved[1::2], strict=True):
        l2 = size.replace(" ", "")
        assert float(percent) == round(100 * (1 - times[more, l2] / times[fewer, l2]))


@pytest.mark.slow  # its network and others are replayed
@pytest.mark.parametrize("row", range(len(_swept())))
def test_the_times_of_the_sweep_are_what_its_command_simulates(row: int, tmp_path: Path) -> None:
    point = _swept()[row]
    words = sweep_words()
    for i, word in enumerate(words):
        if word == "--vary":
            name = words[i + 1].partition("=")[0]
            words[i + 1] = f"{name}={point[name]}"
    files = ["--csv", str(tmp_path / "point.csv"), "--store", str(tmp_path / "store.sqlite")]
    assert main([*words, *files, "--jobs", "1"]) == 0
    with (tmp_path / "point.csv").open(encoding="utf-8") as file:
        (measured,) = csv.DictReader(file)
    assert float(measured["time_us"]) == pytest.approx(float(point["time_us"]), abs=0.01), (
        "the README's second picture is out of date; renew it: python -m tests.documents sweep"
    )


@pytest.mark.parametrize("name", sorted(set(_NAME.findall(text("docs/hooks.py")))))
def test_the_python_interface_of_the_site_is_there(name: str) -> None:
    assert pkgutil.resolve_name(name)


def test_the_readme_stays_short() -> None:
    assert len(text("README.md").splitlines()) <= README_LINES


def test_the_readme_leads_to_every_guide() -> None:
    linked = _LINK.findall(text("README.md"))
    assert [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs/guide").glob("*.md"))] == sorted(
        link for link in linked if link.startswith("docs/guide/")
    )


def test_the_table_of_keywords_is_complete() -> None:
    page = prose("docs/guide/operator-call.md")
    assert list(table(page)) == [field.name for field in fields(Options)]


def test_the_picture_is_that_of_the_demo(tmp_path: Path) -> None:
    """But for fonts: as large, and nearly all points of the same colour."""
    (line,) = re.findall(r"^\t.*npusim (run .*)$", text("Makefile").replace("\\\n", " "), re.M)[:1]
    main(shlex.split(line.replace("$(OUT)", str(tmp_path))))
    drawn, shipped = (plt.imread(file) for file in (tmp_path / "timeline.png", ROOT / PICTURE))
    assert drawn.shape == shipped.shape
    assert (drawn == shipped).all(axis=2).mean() > 0.97
    assert (ROOT / PICTURE).stat().st_size < 100_000
