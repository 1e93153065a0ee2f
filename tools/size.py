"""Lines of code of the package, by room: ``python -m tools.size`` prints the table.

A line of code holds a token that is neither a comment nor part of a docstring, so explanations cost
nothing. The table also has the tokens of a line, which show dense code, and lists the longest
files, to be read. Nothing here is a limit.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Files with more lines than this, explanations included, are listed.
LONG = 450

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tokens_by_line(text: str) -> dict[int, int]:
    """Tokens of each line of a Python source that holds code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    tokens: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.start[0] not in documented:
            tokens[token.start[0]] += 1
            for line in range(token.start[0] + 1, token.end[0] + 1):
                tokens[line] += 0  # a text of several lines is one token
    return dict(tokens)


def lines_of_code(text: str) -> int:
    """Lines of a Python source that hold code."""
    return len(tokens_by_line(text))


def files() -> list[Path]:
    """Python files of the package and of the kernels."""
    return [file for top in ("npusim", "kernels") for file in sorted((ROOT / top).rglob("*.py"))]


def room(file: Path) -> str:
    """The folder of the package that a file is in, or the folder of the files beside these."""
    return "/".join(file.relative_to(ROOT).parts[:-1][:2])


def report() -> list[str]:
    """The table of rooms, with their total, and the long files."""
    lines: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    long: list[str] = []
    for file in files():
        text = file.read_text(encoding="utf-8")
        by_line = tokens_by_line(text)
        lines[room(file)] += len(by_line)
        tokens[room(file)] += sum(by_line.values())
        length = len(text.splitlines())
        if length > LONG:
            long.append(f"{length:7,}  lines in {file.relative_to(ROOT)}")
    rows = [("in all", lines.total(), tokens.total())]
    rows = [(name, count, tokens[name]) for name, count in lines.most_common()] + rows
    table = [f"{count:7,} {total / count:6.1f}  {name}" for name, count, total in rows]
    return ["  lines tokens/line", *table, *long]


if __name__ == "__main__":
    print("\n".join(report()))
