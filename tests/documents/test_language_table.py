"""The page about kernels lists the whole language."""

from __future__ import annotations

import npusim.language
from npusim.language import Language
from tests.documents.language_table import CHAPTERS, INSIDE, chapter, language, public
from tests.documents.pages import text


def test_every_method_is_in_one_chapter() -> None:
    listed = [name for title in CHAPTERS for name in chapter(title)]
    assert len(listed) == len(set(listed))
    assert set(listed) == public(Language) - INSIDE


def test_every_method_says_what_it_does() -> None:
    rows = [line for line in language().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for row in rows:
        call, what = row.strip("| ").split(" | ")
        assert what.endswith((".", "`")), call
        assert "DType(" not in call


def test_the_page_uses_the_one_public_place() -> None:
    page = text("docs/guide/kernel.md")
    assert "from npusim.language import" in page
    assert "npusim.program" not in page
    for name in npusim.language.__all__:
        assert getattr(npusim.language, name) is not None
