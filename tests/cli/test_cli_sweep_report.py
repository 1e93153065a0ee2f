"""``npusim sweep --report``: the page of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.cli.main import main

WORDS = ["sweep", "matmul", "--m", "16", "--k", "16", "--n", "16", "--device", "tiny", "--jobs",
         "1", "--vary", "clock=1GHz,2GHz"]  # fmt: skip


def test_the_name_of_a_folder_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.csv").mkdir()
    assert main([*WORDS, "--csv", str(tmp_path / "all.csv")]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "all.csv: a folder has this name; give a file's" in told.err


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
