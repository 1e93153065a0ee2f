"""The documents, and the parts of their Markdown that tests look at."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Documents that stay beside what they describe; ``docs/hooks.py`` gives them pages of the site.
ELSEWHERE = (
    *("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("configs/README.md", "configs/silicon/README.md", "tools/README.md"),
    *("configs/silicon/notes/tilings.md", "configs/silicon/notes/tried.md"),
)

#: Pages of the site that `make docs` writes; the repository does not keep them.
WRITTEN = ("docs/reference/command-line.md",)

_PAGES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]

#: Every document by its path from the root.
DOCUMENTS = (*ELSEWHERE, *(page for page in _PAGES if page not in WRITTEN))

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.M | re.S)
_SECTION = re.compile(r"(?<=<!-- )([\w ]+): begin -->\n(.*?)<!-- \1: end(?= -->)", re.S)
_CODE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def prose(document: str) -> str:
    """The document without its fenced blocks."""
    return _CODE.sub("", text(document))


def blocks(language: str, document: str) -> list[str]:
    """Fenced blocks of one language."""
    return [body for _, kind, body in _FENCE.findall(text(document)) if kind == language]


def python_blocks() -> dict[str, str]:
    """Every Python block, by document and number."""
    found = {name: blocks("python", name) for name in DOCUMENTS}
    return {f"{name}, {i}": code for name, codes in found.items() for i, code in enumerate(codes)}


def files() -> dict[str, str]:
    """Python blocks that are files, by the name in their first line."""
    named = {code: re.match(r"# (\w+\.py)\n", code) for code in python_blocks().values()}
    return {match[1]: code for code, match in named.items() if match is not None}


def shell_lines() -> list[str]:
    """Every distinct command of the documents, continuation lines joined."""
    found = [body for name in DOCUMENTS for body in blocks("sh", name)]
    lines = "\n".join(found).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))


def npusim_lines() -> list[str]:
    return [line for line in shell_lines() if line.startswith("npusim ")]


def sections(document: str) -> dict[str, str]:
    """What stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``, by name."""
    return dict(_SECTION.findall(text(document)))


def with_section(page: str, name: str, content: str) -> str:
    """The page with another content of one section, if it has that section."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, found, rest = page.partition(begin)
    return head + begin + content + end + rest.partition(end)[2] if found else page


def table(markdown: str) -> dict[str, dict[str, str]]:
    """The first table of a text: row -> column -> cell, without code marks."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines
    ]
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def slug(heading: str) -> str:
    """The anchor of a heading, as forges and the site make it."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")
