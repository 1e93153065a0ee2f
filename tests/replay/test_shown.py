"""Results show what they showed when ``tests/data/replay_shown.csv`` was written, to the letter.

Texts that are as they were are kept in ``build/replay``, so that a later run can show what differs.
Sentences of refusals are held by ``tests/problem/limits``, to ``tests/data/replay_refusals.csv``.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.replay import shown
from tests.replay.digests import SHOWN_FILE, Shown, read, short, write

pytestmark = [pytest.mark.replay, pytest.mark.compiled]

#: Where texts are kept between runs.
KEPT = Path(__file__).parents[2] / "build" / "replay"

#: Lines of a difference that are printed, and characters of one.
_LINES, _WIDTH = 60, 300


@pytest.fixture(autouse=True)
def as_wide_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and help of one width, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def lines_of(case: str, texts: shown.Shown) -> Iterator[Shown]:
    for kind, text in texts.items():
        yield Shown(case, kind, shown.made_with(kind), short([text.encode()]))


def kept(line: Shown) -> Path:
    return KEPT / line.case.replace(" ", "_") / line.kind.replace(" ", "_")


def difference(line: Shown, text: str, known: Shown | None) -> str:
    """What differs from the kept text where that is the right one, else where the new one is."""
    new = kept(line).with_suffix(".new")
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(text, encoding="utf-8")
    before = kept(line).read_text(encoding="utf-8") if kept(line).exists() else ""
    if known is None or short([before.encode()]) != known.digest:
        return f"{line.case}, {line.kind}: another text, now in {new}"
    changed = unified_diff(before.splitlines(), text.splitlines(), str(kept(line)), str(new), n=1)
    return "\n".join(part[:_WIDTH] for part, _ in zip(changed, range(_LINES), strict=False))


def test_what_is_shown_is_written_anew(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not request.config.getoption("--update-replay"):
        pytest.skip("only with --update-replay")
    found: list[Shown] = []
    for number, case in enumerate(shown.CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        found += lines_of(case, shown.shown(case, folder))
    write(SHOWN_FILE, Shown, found)


@pytest.mark.parametrize("case", shown.CASES)
def test_shown(case: str, tmp_path: Path) -> None:
    texts = shown.shown(case, tmp_path)
    lines = read(SHOWN_FILE, Shown)
    known_kinds = {key[1] for key in lines if key[0] == case}
    assert {kind for kind in known_kinds if shown.is_shown(case, kind)} == set(texts)
    wrong = []
    for line in lines_of(case, texts):
        known = lines.get(line.key)
        if known is not None and known.made_with != line.made_with:
            continue  # drawn or laid out by another version of a library
        if known == line:
            kept(line).parent.mkdir(parents=True, exist_ok=True)
            kept(line).with_suffix(".new").unlink(missing_ok=True)
            kept(line).write_text(texts[line.kind], encoding="utf-8")
        else:
            wrong.append(difference(line, texts[line.kind], known))
    assert not wrong, "\n\n".join(wrong)
