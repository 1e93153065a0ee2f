"""The benchmark that remembers says what became worse, and draws its table."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench import commands, history


def test_what_is_a_fifth_worse_is_called_so() -> None:
    last = {"release": "0.1", "import": "0.100", "smallest": "0.300", "network": ""}
    found = {"import": 0.119, "smallest": 0.361, "network": 9.0}
    title, *lines = history.compared(found, last)
    assert "0.1" in title
    assert [line.split()[0] for line in lines if "WORSE" in line] == ["smallest"]


def test_the_table_has_the_figures_of_today(tmp_path: Path) -> None:
    with history.TABLE.open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert rows
    assert set(rows[-1]) == {"release", *history.FIGURES}
    history.draw(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_a_process_takes_cpu_time() -> None:
    assert history.seconds("-c", "sum(range(10**6))") > 0


def test_a_command_runs_on_the_processors_that_it_is_given() -> None:
    one = sorted(os.sched_getaffinity(0))[:1]
    told = f"import os, sys; sum(range(10**6)); sys.exit(os.sched_getaffinity(0) != {{*{one}}})"
    spent = commands.spent([sys.executable, "-c", told], one)
    assert spent.cpu > 0
    assert spent.wall > 0
    with pytest.raises(subprocess.CalledProcessError):
        commands.spent([sys.executable, "-c", "raise SystemExit(1)"], one)
