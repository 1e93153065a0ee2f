"""Command lines that npusim refuses: ``tests/data/refused_lines.yaml`` has what each is told."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.compiled

FILE = Path(__file__).parents[1] / "data" / "refused_lines.yaml"
TABLE: dict[str, str] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def renewed(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The sentences that were told; written to the file by ``make replay UPDATE=1``."""
    told: dict[str, str] = {}
    yield told
    if request.config.getoption("--update-replay"):
        head = "".join(
            f"{line}\n" for line in FILE.read_text("utf-8").splitlines() if line[0] == "#"
        )
        FILE.write_text(head + yaml.safe_dump(told, sort_keys=False, width=100), encoding="utf-8")


@pytest.mark.parametrize("line", TABLE)
def test_a_line_is_refused_before_anything_runs(
    line: str,
    renewed: dict[str, str],
    fails: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """With status 2 and one sentence, and no file is left."""
    monkeypatch.chdir(tmp_path)
    renewed[line] = fails(*shlex.split(line))
    assert renewed[line] == TABLE[line] or request.config.getoption("--update-replay")
    assert not list(tmp_path.iterdir())
