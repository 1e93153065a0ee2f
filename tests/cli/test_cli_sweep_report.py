"""``npusim sweep --report``: the page of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.cli.main import main

WORDS = ["sweep", "matmul", "--m", "16", "--k", "16", "--n", "16", "--device", "tiny", "--jobs",
         "1", "--vary", "clock=1GHz,2GHz"]  # fmt: skip


def test_the_page_is_written_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "study.html"
    assert main([*WORDS, "--store", str(tmp_path / "s.db"), "--report", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {page}\n")
    told = page.read_text(encoding="utf-8")
    assert "<h1>matmul over clock</h1>" in told
    assert "with clock=2GHz" in told


def test_the_name_of_a_folder_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.csv").mkdir()
    assert main([*WORDS, "--csv", str(tmp_path / "all.csv")]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "all.csv: a folder has this name; give a file's" in told.err


def test_a_memory_that_a_link_holds_back_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "matmul", "--m", "64", "--k", "64", "--n", "64", "--device", "ascend910b2"]
    words += ["--jobs", "1", "--store", str(tmp_path / "s.db"), "--vary"]
    assert main([*words, "main_memory.read=1.2TB/s,2.4TB/s"]) == 0
    told = capsys.readouterr().out.partition("NOTES\n")[2]
    assert " ".join(told.split()).endswith(
        "- main_memory.read is 1333.3B/cycle (2400GB/s), of which links.hbm.rate lets "
        "888.89B/cycle (1600GB/s) through; raise both for a faster memory"
    )
    assert main([*words, "main_memory.read=1.2TB/s,1.4TB/s"]) == 0
    assert "links.hbm" not in capsys.readouterr().out


def test_points_that_fail_are_told_once_with_their_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "matmul", "--m", "16", "--k", "16", "--n", "16", "--device", "tiny"]
    words += ["--jobs", "1", "--store", str(tmp_path / "s.db")]
    words += ["--vary", "memories.L1.size=1KiB,64KiB", "--vary", "clock=1GHz,2GHz"]
    assert main(words) == 2
    told = capsys.readouterr().out
    assert told.count("failed, see below") == 2
    failed = " ".join(told.partition("FAILED\n")[2].split())
    assert failed.startswith("- memories.L1.size=1KiB, clock=1GHz and 1 other point: CapacityError")
    assert failed.endswith("no tiling fits, choose a device with larger memories")
    words[-3] = "memories.L1.size=" + ",".join(f"{n * 32}B" for n in range(2, 9))
    assert main(words) == 2
    assert "- 3 other errors; --csv FILE writes all of them" in capsys.readouterr().out
