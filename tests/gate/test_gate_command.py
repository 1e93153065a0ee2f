"""``npusim gate`` on a repository of one kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from npusim.cli.main import main
from tests.gate.conftest import GATE, SCALE, commit, git
from tests.tables import rows

Capture = pytest.CaptureFixture[str]

BOTH = ["--kernel scale.py:Scale --device tiny", "twenty on tiny"]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def gate(capsys: Capture, *words: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """The findings of a gate by case."""
    capsys.readouterr()
    assert main(["gate", "gate.yaml", *words, "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] == (not status)
    return {one["case"]: one for one in told["findings"]}


def test_nothing_changed(repository: Path, capsys: Capture) -> None:
    found = gate(capsys, "--against", "main")
    assert [*found] == BOTH
    for one in found.values():
        assert one["verdict"] == ""
        assert one["before"] == one["after"] > 0
    assert git(repository, "worktree", "list").count("\n") == 1, "nothing is left behind"
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.usefixtures("forked_workers")
def test_a_lost_double_buffer_is_found_among_other_changes(
    repository: Path, capsys: Capture
) -> None:
    buffer = 'a_ub = k.buffer("UB", (4096,), FP16, slots=2)'
    edit(repository / "scale.py", buffer, buffer.replace("2)", "1)"))
    edit(repository / "scale.py", "shape = (chunks * 4096,)", "shape = (4096 * chunks,)  # as many")
    edit(
        repository / "scale.py",
        "        start = ",
        "        # where chunks begin\n        start = ",
    )
    found = gate(capsys, "--against", "main", status=1)
    assert [*found] == BOTH
    for one in found.values():
        assert one["verdict"] == "slower"
        (culprit,) = one["culprits"]
        assert (culprit["file"], culprit["line"]) == ("scale.py", line_of(buffer))
        assert culprit["cycles"] == one["after"] - one["before"]
        assert sum(step["cycles"] for step in one["grown"]) >= culprit["cycles"]
        assert one["grown"][0]["file"] == "scale.py"
        assert one["grown"][0]["text"].startswith(("k.data_move", "k.vec_scalar"))


def line_of(text: str) -> int:
    """The number of a line of the kernel as it is committed."""
    return [line.strip() for line in SCALE.split("\n")].index(text) + 1


@pytest.mark.usefixtures("forked_workers")
def test_text_junit_and_annotations(repository: Path, capsys: Capture, tmp_path: Path) -> None:
    barrier, multiply = "            k.pipe_barrier()\n", "            k.vec_scalar("
    edit(repository / "scale.py", multiply, barrier + multiply)
    file = tmp_path / "gate.xml"
    assert main(["gate", "gate.yaml", "--against", "main", "--github", "--junit", str(file)]) == 1
    out = capsys.readouterr().out
    line = line_of('k.vec_scalar("muls", b, a, 2.0, FP16)')
    assert f"  changed  scale.py:{line}: +" in out
    assert "  grew     scale: " in out
    assert "gate gate.yaml against main fails: 2 cases slower or failing\n" in out
    notes = [text for text in out.split("\n") if text.startswith("::")]
    assert len(notes) == 2
    head = f"::error file=scale.py,line={line},title=npusim gate%3A twenty on tiny is slower::+"
    assert notes[1].startswith(head)
    suite = ElementTree.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert [one.get("name") for one in suite] == BOTH
    assert f"scale.py:{line}" in (suite[0][0].text or "")


@pytest.mark.usefixtures("forked_workers")
def test_a_baseline_is_kept_and_accepted_anew(repository: Path, capsys: Capture) -> None:
    assert main(["gate", "gate.yaml", "--save", "base.json"]) == 0
    commit(repository)
    assert [one["verdict"] for one in gate(capsys, "--against", "base.json").values()] == ["", ""]
    edit(repository / "scale.py", "slots=2", "slots=1")
    slower = gate(capsys, "--against", "base.json", status=1)
    for one in slower.values():
        assert [culprit["file"] for culprit in one["culprits"]] == ["scale.py"]
    commit(repository)
    gate(capsys, "--against", "base.json", "--save", "base.json", status=1)
    gate(capsys, "--against", "base.json")
    edit(repository / "scale.py", "slots=1", "slots=2")
    faster = gate(capsys, "--against", "base.json")
    assert [one["verdict"] for one in faster.values()] == ["faster", "faster"]
    assert [one["before"] for one in faster.values()] == [one["after"] for one in slower.values()]


@pytest.mark.usefixtures("forked_workers")
def test_a_baseline_needs_no_git(
    repository: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent))
    (repository / ".git").rename(repository.parent / "git")
    assert main(["gate", "gate.yaml", "--save", "base.json"]) == 0
    edit(repository / "scale.py", "slots=2", "slots=1")
    found = gate(capsys, "--against", "base.json", status=1)
    assert [one["verdict"] for one in found.values()] == ["slower", "slower"]
    assert [one["culprits"] for one in found.values()] == [[], []]


@pytest.mark.usefixtures("forked_workers")
def test_new_gone_and_failing_cases(repository: Path, capsys: Capture) -> None:
    edit(repository / "gate.yaml", "    name: twenty\n", "    name: another\n")
    (repository / "new.py").write_text(SCALE.replace('"scale"', '"new"'), encoding="utf-8")
    with (repository / "gate.yaml").open("a", encoding="utf-8") as file:
        file.write("  - run: --kernel new.py:Scale --device tiny\n")
    found = gate(capsys, "--against", "main")
    assert {name: one["verdict"] for name, one in found.items()} == {
        BOTH[0]: "",
        "another on tiny": "",  # its line runs there, too
        "--kernel new.py:Scale --device tiny": "new",
        "twenty on tiny": "gone",
    }
    edit(repository / "scale.py", "FP16, slots=2)", "FP16, slots=2000)")
    found = gate(capsys, "--against", "main", status=1)
    assert found[BOTH[0]]["verdict"] == "fails"
    assert "UB" in found[BOTH[0]]["message"]
    assert found[BOTH[0]]["before"] > 0


def test_a_process_that_dies_fails_its_case_alone(repository: Path, capsys: Capture) -> None:
    shape = "        shape = (chunks"
    edit(repository / "scale.py", shape, f"        chunks == 40 and os._exit(3)\n{shape}")
    edit(repository / "scale.py", "import numpy as np\n", "import os\n\nimport numpy as np\n")
    found = gate(capsys, "--against", "main", status=1)
    assert [one["verdict"] for one in found.values()] == ["fails", ""]
    assert found[BOTH[0]]["message"].startswith("the process that simulated it died")


@pytest.mark.usefixtures("forked_workers")
def test_each_folder_has_its_own_modules(repository: Path, capsys: Capture) -> None:
    """Two kernels that import files of one name, each from its own folder."""
    for folder, size in (("one", 4), ("two", 8)):
        (repository / folder).mkdir()
        (repository / folder / "sizes.py").write_text(f"CHUNKS = {size}\n", encoding="utf-8")
        text = SCALE.replace("chunks: int = 40", "chunks: int = CHUNKS")
        text = text.replace(
            "import numpy as np\n", "import numpy as np\nfrom sizes import CHUNKS\n"
        )
        (repository / folder / "scale.py").write_text(text, encoding="utf-8")
    lines = [f"  - run: --kernel {name}/scale.py:Scale --device tiny\n" for name in ("one", "two")]
    (repository / "gate.yaml").write_text("cases:\n" + "".join(lines), encoding="utf-8")
    found = gate(capsys, "--against", "main", "--jobs", "1")
    one, two = (case["after"] for case in found.values() if case["verdict"] == "new")
    assert one < two


@pytest.mark.usefixtures("forked_workers")
def test_a_network_is_held_layer_by_layer(repository: Path, capsys: Capture) -> None:
    (repository / "net.yaml").write_text(
        "description: two layers\nlayers:\n"
        "  a: {cin: 16, cout: 16, spatial: [8, 8], kernel: 3, padding: 1}\n"
        "  b: {cin: 16, cout: 32, spatial: [8, 8], kernel: 3, padding: 1}\n",
        encoding="utf-8",
    )
    (repository / "gate.yaml").write_text(
        "cases:\n  - {net: net.yaml, devices: [ascend910]}\n", encoding="utf-8"
    )
    assert main(["gate", "gate.yaml", "--save", "base.json"]) == 0
    commit(repository)
    kept = json.loads((repository / "base.json").read_text(encoding="utf-8"))
    (times,) = kept["npusim_gate"].values()
    assert [*times] == ["", "a", "b"]
    assert times[""] == times["a"] + times["b"]
    edit(repository / "base.json", f'"b": {times["b"]}', f'"b": {times["b"] // 2}')
    capsys.readouterr()
    assert main(["gate", "gate.yaml", "--against", "base.json"]) == 1
    assert "net.yaml on ascend910: b" in capsys.readouterr().out


def test_mistakes(repository: Path, capsys: Capture) -> None:
    def fails(*words: str) -> str:
        assert main(["gate", *words]) == 2
        return capsys.readouterr().err

    assert "--against or --save is missing" in fails("gate.yaml")
    assert "'nowhere' is no file ending in .json, and git knows no such revision" in fails(
        "gate.yaml", "--against", "nowhere"
    )
    assert "gate.yaml: cannot be read" in fails("none/gate.yaml", "--against", "main")
    (repository / "base.json").write_text("{}", encoding="utf-8")
    assert "is no baseline of a gate" in fails("gate.yaml", "--against", "base.json")
    (repository / "base.json").write_text('{"npusim_gate": {}}', encoding="utf-8")
    assert "base.json has none of the 2 cases of gate.yaml" in fails(
        "gate.yaml", "--against", "base.json"
    )
    assert "--junit gate.txt: the file's name must end in .xml" in fails(
        "gate.yaml", "--against", "main", "--junit", "gate.txt"
    )


@rows("tests/data/mistakes/gate.yaml", "lines_that_no_command_takes_are_told_by_line", "line, said")
def test_lines_that_no_command_takes_are_told_by_line(
    line: str, said: str, repository: Path, capsys: Capture
) -> None:
    (repository / "gate.yaml").write_text(f"{GATE}  - {line}\n", encoding="utf-8")
    assert main(["gate", "gate.yaml", "--against", "main"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"npusim: error: gate.yaml:{GATE.count(chr(10)) + 1}: cases[2].")
    assert said in err


def test_a_hook_of_git_may_run_it(
    repository: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git tells hooks where its index is; that of another folder must not be written."""
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", ".git/index")
    gate(capsys, "--against", "main")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert git(repository, "status", "--porcelain") == ""
