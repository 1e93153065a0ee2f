"""The parts of a gate: its file, what grew, verdicts, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.base.yamltree import load_tree
from npusim.cli.main import parsed
from npusim.gate import trees
from npusim.gate.judged import (
    Case,
    Finding,
    Judged,
    Times,
    Tolerance,
    gate_file,
    grown,
    judge,
    load,
    read_cases,
    require_case,
    save,
    times_of,
)
from tests.tables import rows

ROOT = Path(__file__).parents[2]


def test_a_case_is_a_line_on_each_device() -> None:
    first, second, third, fourth = read_cases(
        "tolerance: {percent: 2}\n"
        "devices: [tiny, ascend910]\n"
        "cases:\n"
        "  - run: matmul --m 2 --n '3'\n"
        "  - {run: matmul --device=tiny, name: small, tolerance: {cycles: 7}}\n"
        "  - {net: resnet50, devices: [ascend910], tolerance: {percent: 0, cycles: 0}}\n"
    )
    assert first.name == "matmul --m 2 --n 3 on tiny"
    assert first.words == ("run", "matmul", "--m", "2", "--n", "3", "--device", "tiny")
    assert second.words[-1] == "ascend910"
    assert first.tolerance == Tolerance(percent=2, cycles=100)
    assert (third.name, third.words) == ("small", ("run", "matmul", "--device=tiny"))
    assert third.tolerance == Tolerance(percent=2, cycles=7)
    assert fourth.words == ("net", "resnet50", "--device", "ascend910")
    assert fourth.tolerance == Tolerance(percent=0, cycles=0)


@pytest.mark.parametrize(
    ("percent", "cycles", "before", "after", "exceeded"),
    [
        (10, 0, 1000, 1100, False),
        (10, 0, 1000, 1105, True),  # a tenth of the new time would be more
        (10, 0, 1000, 895, True),
        (10, 200, 1000, 1150, False),  # both must be exceeded
        (1, 20, 1000, 1015, False),
        (1, 20, 1000, 1021, True),
    ],
)
def test_a_tolerance_is_the_larger_of_a_share_of_the_old_time_and_of_cycles(
    percent: float, cycles: float, before: int, after: int, exceeded: bool
) -> None:
    assert Tolerance(percent=percent, cycles=cycles).exceeded(before, after) == exceeded


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({}, {"": 10}, "new"),
        ({"": 10, "a": 5}, {"": 10}, "gone"),
        ({"": "no room"}, {"": 10}, "new"),
        ({"": 10}, {"": "no room"}, "fails"),
        ({"": 10}, {"": 10}, ""),
        ({"": 10}, {"": 11}, "slower"),
        ({"": 10}, {"": 9}, "faster"),
    ],
)
def test_a_verdict_is_of_the_new_time(before: Times, after: Times, verdict: str) -> None:
    (case,) = read_cases("tolerance: {percent: 0, cycles: 0}\ncases: [{run: matmul, name: m}]\n")
    *_, last = judge([case], {"m": before}, {"m": after})
    assert last.verdict == verdict


@rows("tests/data/mistakes/gate.yaml", "mistakes_name_file_and_line", "text, said")
def test_mistakes_name_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_cases(text, "gate")
    assert str(error.value).startswith(said)


def test_gates_that_ship_can_be_read() -> None:
    names = [one.name for one in (configs() / "gates").iterdir()]
    assert {"resnet50.yaml", "kernels.yaml"} <= {*names}
    for name in names:
        assert read_cases(gate_file(name.partition(".")[0]))


def step(line: int, text: str, cycles: int, **parts: int) -> dict[str, Any]:
    own = {"pipe": "MTE2", "op": "data_move", "line": f"k.py:{line}", "cycles": cycles}
    return {**own, "file": "k.py", "text": text, "parts": parts or {"bytes": cycles}}


def kernel(*path: dict[str, Any], launch: int = 10) -> dict[str, Any]:
    return {"name": "k", "launch_cycles": launch, "path": list(path)}


def test_a_line_is_the_same_wherever_it_has_gone() -> None:
    before = [kernel(step(5, "load(a)", 100), step(6, "load(b)", 50, bytes=30, gap=20))]
    after = [kernel(step(9, "load(b)", 80, bytes=35, gap=45), step(15, "load(a)", 100))]
    (one,) = grown(before, after)
    assert (one.line, one.text, one.cycles, one.reason) == (9, "load(b)", 30, "gap")
    assert str(one) == "k: MTE2 data_move k.py:9: +30 cycles, mostly gap"


def test_an_edited_line_is_the_one_that_is_left() -> None:
    before = [kernel(step(5, "load(a)", 100), step(6, "load(b)", 50))]
    (one,) = grown(before, [kernel(step(5, "load(a)", 100), step(6, "load(b, 2)", 70))])
    assert (one.text, one.cycles) == ("load(b, 2)", 20)


def test_another_kernel_and_its_launch_grew_from_nothing() -> None:
    first = kernel(step(5, "load(a)", 100))
    found = grown([first], [first, kernel(step(5, "load(a)", 70), launch=90)])
    assert [(one.kernel, one.op, one.cycles) for one in found] == [
        ("k #2", "launch", 90),
        ("k #2", "data_move", 70),
    ]
    assert grown([first, first], [first]) == ()


CASE, OTHER = read_cases(
    "tolerance: {percent: 10, cycles: 5}\ncases:\n  - run: a\n  - {run: b, name: 'b %,:'}\n"
)


@rows("tests/data/rows/gate.yaml", "verdicts", "before, after, verdict")
def test_verdicts(before: int | str | None, after: int | str, verdict: str) -> None:
    (one,) = judge([CASE], {"a": {"": before}} if before is not None else {}, {"a": {"": after}})
    assert one.verdict == verdict
    assert one.message == (after if isinstance(after, str) else "")
    assert Judged(file="f", against="g", findings=(one,)).failed == (
        (one,) if verdict in ("slower", "fails") else ()
    )


def test_layers_are_judged_by_themselves() -> None:
    found = judge([CASE], {"a": {"": 300, "x": 200, "y": 100}}, {"a": {"": 308, "x": 240, "z": 68}})
    assert [(one.part, one.verdict) for one in found] == [
        ("", ""),
        ("x", "slower"),
        ("z", "new"),
        ("y", "gone"),
    ]


def test_times_of_what_was_told() -> None:
    assert times_of({"facts": {"cycles": 7}, "error": ""}) == {"": 7}
    assert times_of({"facts": {}, "error": "no"}) == {"": "no"}
    layers = [{"layer": "a", "cycles": 3, "error": ""}, {"layer": "b", "cycles": 4, "error": ""}]
    assert times_of({"facts": {"cycles": 7, "layers": layers}, "error": ""}) == {
        "": 7,
        "a": 3,
        "b": 4,
    }
    layers[1] = {"layer": "b", "cycles": 0, "error": "too large"}
    told = {"facts": {"cycles": 3, "layers": layers}, "error": "1 of 2 layers were not simulated"}
    assert times_of(told) == {"a": 3, "b": "too large"}


def test_a_baseline_comes_back(tmp_path: Path) -> None:
    times: dict[str, Times] = {"a": {"": 7}, "b": {"": "no"}}
    save(tmp_path / "base.json", times)
    assert load(str(tmp_path / "base.json")) == times


@rows("tests/data/mistakes/gate.yaml", "what_is_no_baseline", "text, said")
def test_what_is_no_baseline(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError) as caught:
        load(str(file))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_baseline_has_one_of_the_cases_at_least() -> None:
    require_case("b.json", {"a": {"": 7}, "old": {"": 1}}, "gate.yaml", (CASE, OTHER))
    with pytest.raises(ArgumentError) as caught:
        require_case("b.json", {"old": {"": 1}}, "gate.yaml", (CASE, OTHER))
    assert str(caught.value).startswith(
        "b.json has none of the 2 cases of gate.yaml (its cases: 'old'); "
    )
    with pytest.raises(ArgumentError, match=r"its cases: none"):
        require_case("b.json", {}, "gate.yaml", (CASE, OTHER))


def test_cases_and_layers_are_counted_and_never_read_as_factors() -> None:
    findings = (
        Finding(case="a", before=5, after=5),
        *(Finding(case="net", part=name, before=5, after=5) for name in ("", "conv1", "conv2")),
    )
    passed = Judged(file="f", against="g", findings=findings).text()
    assert passed.startswith("2 cases and 2 layers as before, within the tolerance\n")
    failed = replace(findings[2], verdict="slower", after=900)
    text = Judged(file="f", against="g", findings=(failed,)).text()
    assert "gate f against g fails: 1 layer slower or failing\n" in text


def test_times_that_are_only_written_down_pass_against_nothing() -> None:
    new = Finding(case="a", verdict="new", after=5)
    text = Judged(file="f", against="", findings=(new,)).text()
    assert text.endswith("gate f: 1 case simulated; nothing is compared without --against\n")
    assert "passes" not in text
    broken = Judged(file="f", against="", findings=(replace(new, verdict="fails", message="no"),))
    assert "gate f fails: 1 case failing; nothing is compared" in broken.text()


def test_what_is_told_of_each_verdict() -> None:
    cases: tuple[Case, ...] = (CASE, OTHER)
    found = judge(
        cases,
        {"a": {"": 100}, "b %,:": {"": 100}, "old": {"": 1}},
        {"a": {"": "line 1\nline\x1b2"}, "b %,:": {"": 50}},
    )
    judged = Judged(file="f.yaml", against="main", findings=found)
    text = judged.text()
    assert "b %,:     100     50  -50.0%  faster" in text
    assert text.endswith(
        "gate f.yaml against main fails: 1 case slower or failing\n"
        "to accept the times as they are: npusim gate f.yaml --save BASELINE.json, and\n"
        "  --against that; or a wider tolerance of the case\n"
    )
    assert judged.for_github() == (
        "::error title=npusim gate%3A a is fails::line 1%0Aline\x1b2\n"
        "::notice title=npusim gate%3A b %25%2C%3A is faster::-50 cycles (-50.0%25)\n"
    )
    xml = judged.junit()
    assert '<failure type="fails" message="line 1&#10;line\\x1b2">' in xml
    assert '<testcase classname="old" name="old"><skipped message="the case is gone" />' in xml
    assert "<system-out>faster -50 cycles (-50.0%)</system-out>" in xml
    passed = Judged(file="f", against="g", findings=(Finding(case="a", before=5, after=5),))
    assert passed.text() == "1 case as before, within the tolerance\n\ngate f against g passes\n"


def test_the_workflow_and_the_hook_call_it_as_it_is() -> None:
    workflow = load_tree(ROOT / "docs" / "guide" / "gate_workflow.yaml").mapping()
    steps = workflow["jobs"].mapping()["gate"].mapping()["steps"].items()
    lines = [step.mapping()["run"].text() for step in steps if "run" in step.mapping()]
    (line,) = [one for one in lines if one.startswith("npusim gate")]
    arguments = parsed(line.replace("${{ github.base_ref }}", "main").split()[1:])
    assert (arguments.against, arguments.github) == ("origin/main", True)
    (hook,) = load_tree(ROOT / ".pre-commit-hooks.yaml").items()
    entry = hook.mapping()
    words = [*entry["entry"].text().split()[1:], *(one.text() for one in entry["args"].items())]
    assert parsed(words).file == "gate.yaml"


def test_changes_name_files_that_are_gone_and_names_with_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone.py", "my own.py"):
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    trees.git(tmp_path, "init", "--quiet")
    trees.git(tmp_path, "add", ".")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    trees.git(tmp_path, *author, "commit", "--quiet", "--message", "both")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "my own.py").write_text("x = 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = trees.changes(trees.here(), "HEAD")
    assert [(one.file, one.text) for one in found] == [("gone.py", "x = 1"), ("my own.py", "x = 2")]
