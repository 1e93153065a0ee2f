"""Lines of code of the package, by room: ``python -m tests.size`` prints the table.

A line of code holds a token that is neither a comment nor part of a docstring, so what explains the
code costs nothing. ``TOTAL`` is the one limit: a change may lower it and none may raise it.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: The most lines of code that `npusim/` and `kernels/` may have together.
TOTAL = 46_600

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> int:
    """How many lines of a Python source hold code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - documented)


def rooms() -> Counter[str]:
    """Lines of code by room: a folder of the package, or the files beside these folders."""
    sizes: Counter[str] = Counter()
    for top in ("npusim", "kernels"):
        for file in sorted((ROOT / top).rglob("*.py")):
            folder = file.relative_to(ROOT).parts[:-1]
            sizes["/".join(folder[:2])] += lines_of_code(file.read_text(encoding="utf-8"))
    return sizes


if __name__ == "__main__":
    sizes = rooms()
    for room, lines in sizes.most_common():
        print(f"{lines:7,}  {room}")
    print(f"{sizes.total():7,}  in all; at most {TOTAL:,}")
