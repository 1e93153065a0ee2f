"""Gauge of how the code reads, by room: ``python -m tools.size [--against REVISION]``.

Prints for every room (a package of ``npusim`` with its folders, a family of kernels, ``tests``,
``tools``) its lines and tokens of code, and how often it does what the habits of CONTRIBUTING.md
advise against. ``--against`` adds the difference to a revision, by default to the last release that
is tagged. Below stand the functions and files to read first. The gauge asserts nothing.

A line of code holds a token that is no comment and no docstring, so explanations cost nothing.
Imports, stubs and tables (literals of at least ``TABLE_LINES`` lines outside functions) are counted
apart, and so are the tokens of annotations.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TOPS = ("npusim", "kernels", "tests", "tools")

#: Names that say nothing of what they name.
EMPTY_NAMES = frozenset({
    "one", "found", "at", "own", "known", "made", "whole", "told", "left", "held", "given", "kept",
    "some",
})  # fmt: skip

#: First words of docstrings that are half a question.
QUESTIONS = ("What", "Whether")

#: A function with more tokens is long; one of so many lines with more tokens a line is dense.
LONG_TOKENS, DENSE_LINES, DENSE_TOKENS = 400, 12, 15

#: Lines from which a literal outside functions is a table.
TABLE_LINES = 5

#: Files with more lines, explanations included, are listed; and functions listed at most.
LONG_FILE, LISTED = 450, 12

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | ast.ClassDef | _Function
_LITERALS = ast.Tuple | ast.List | ast.Dict | ast.Set


class Function(NamedTuple):
    """A function: the place of its ``def``, and its lines and tokens of code."""

    place: str
    lines: int
    tokens: int

    @property
    def is_long(self) -> bool:
        """True for more than ``LONG_TOKENS`` tokens."""
        return self.tokens > LONG_TOKENS

    @property
    def is_dense(self) -> bool:
        """True for ``DENSE_LINES`` or more with over ``DENSE_TOKENS`` tokens a line."""
        return self.lines >= DENSE_LINES and self.tokens > DENSE_TOKENS * self.lines


@dataclass
class Gauge:
    """The counts of one room, or of several."""

    lines: int = 0
    tokens: int = 0
    imports: int = 0
    stubs: int = 0
    tables: int = 0
    annotations: int = 0
    empty_names: int = 0
    questions: int = 0
    functions: list[Function] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Gauge) -> Gauge:
        return Gauge(
            lines=self.lines + other.lines,
            tokens=self.tokens + other.tokens,
            imports=self.imports + other.imports,
            stubs=self.stubs + other.stubs,
            tables=self.tables + other.tables,
            annotations=self.annotations + other.annotations,
            empty_names=self.empty_names + other.empty_names,
            questions=self.questions + other.questions,
            functions=self.functions + other.functions,
            classes=self.classes + other.classes,
        )

    def figures(self) -> dict[str, float]:
        """The figures of a row of the report, by the head of their column."""
        return {
            "lines": self.lines,
            "tokens": self.tokens,
            "a line": round(self.tokens / self.lines, 1) if self.lines else 0.0,
            "imports": self.imports,
            "stubs": self.stubs,
            "tables": self.tables,
            "annotated": self.annotations,
            "empty": self.empty_names,
            "what": self.questions,
            "long": sum(function.is_long for function in self.functions),
            "dense": sum(function.is_dense for function in self.functions),
            "twice": sum(count > 1 for count in self.classes.values()),
        }


# -- one file --------------------------------------------------------------------------------------


def tokens_by_line(text: str) -> dict[int, int]:
    """Tokens of each line of a Python source that holds code."""
    return _tokens_by_line(text, list(ast.walk(ast.parse(text))))


def _tokens_by_line(text: str, nodes: Iterable[ast.AST]) -> dict[int, int]:
    documented: set[int] = set()
    for node in nodes:
        docstring = _docstring(node)
        if docstring is not None:
            documented.update(_lines_of(docstring))
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


def gauge_of(path: str, text: str) -> Gauge:
    """The counts of one file, of ``text``, at ``path`` below the top of the checkout."""
    if path.endswith(".pyi"):
        return Gauge(stubs=lines_of_code(text))
    nodes = list(ast.walk(ast.parse(text)))
    tokens = _tokens_by_line(text, nodes)
    imports = _lines_in(_imports(nodes), tokens)
    tables = _lines_in(_tables(nodes), tokens)
    code = tokens.keys() - imports - tables
    return Gauge(
        lines=len(code),
        tokens=sum(tokens[line] for line in code),
        imports=len(imports),
        tables=len(tables),
        annotations=sum(_tokens_of(ast.unparse(node)) for node in _annotations(nodes)),
        empty_names=sum(name in EMPTY_NAMES for name in _assigned(nodes)),
        questions=sum(_is_question(node) for node in nodes),
        functions=[_function(path, node, tokens) for node in _functions(nodes)],
        classes=Counter(node.name for node in nodes if isinstance(node, ast.ClassDef)),
    )


def _docstring(node: ast.AST) -> ast.Constant | None:
    """The node of a docstring, which begins a module, a class or a function."""
    if not isinstance(node, _Documented) or not node.body:
        return None
    first = node.body[0]
    value = first.value if isinstance(first, ast.Expr) else None
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return value if is_text and isinstance(value, ast.Constant) else None


def _is_question(node: ast.AST) -> bool:
    """True of a node whose docstring begins with one of ``QUESTIONS``."""
    docstring = _docstring(node)
    words = str(docstring.value).split() if docstring is not None else []
    return bool(words) and words[0].rstrip(",.") in QUESTIONS


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _lines_in(nodes: Iterable[ast.stmt], tokens: Mapping[int, int]) -> set[int]:
    """The lines of code that statements take."""
    return {line for node in nodes for line in _lines_of(node) if line in tokens}


def _imports(nodes: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _tables(nodes: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Assignments of long literals in modules and classes."""
    for owner in nodes:
        if not isinstance(owner, ast.Module | ast.ClassDef):
            continue
        for node in owner.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            if isinstance(node.value, _LITERALS) and len(_lines_of(node)) >= TABLE_LINES:
                yield node


def _annotations(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        if isinstance(node, _Function) and node.returns is not None:
            yield node.returns


@cache
def _tokens_of(expression: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(expression).readline)
    return sum(token.type not in _NO_CODE for token in tokens)


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of variables and parameters, once for each place that binds them."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.arg):
            yield node.arg


def _functions(nodes: Iterable[ast.AST]) -> Iterator[_Function]:
    for node in nodes:
        if isinstance(node, _Function):
            yield node


def _function(path: str, node: _Function, tokens: Mapping[int, int]) -> Function:
    lines = [line for line in _lines_of(node) if line in tokens]
    place = f"{path}:{node.lineno} {node.name}"
    return Function(place, len(lines), sum(tokens[line] for line in lines))


# -- many files ------------------------------------------------------------------------------------


def files_here() -> dict[str, str]:
    """Texts of the Python files of this checkout, by their paths below its top.

    Links are left out: ``npusim/kernels`` would count the kernels twice.
    """
    paths = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py*"))]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in {".py", ".pyi"} and not _is_below_link(path)
    }


def _is_below_link(path: Path) -> bool:
    return path.resolve() != ROOT.resolve() / path.relative_to(ROOT)


def files_of(revision: str) -> dict[str, str]:
    """Texts of the Python files of a revision; raises ``CalledProcessError`` where git has none."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            content = tar.extractfile(member) if member.isfile() else None
            is_source = path.suffix in {".py", ".pyi"} and path.parts[0] in TOPS
            if content is not None and is_source:
                texts[member.name] = content.read().decode("utf-8")
    return texts


def last_release() -> str | None:
    """The tag of the last release, or None while there is none."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    described = subprocess.run(command, check=False, capture_output=True, text=True)
    return described.stdout.strip() or None


def room(path: str) -> str:
    """The room of a file: ``npusim/PACKAGE[/FOLDER]``, ``kernels/FAMILY``, ``tests`` or ``tools``.

    Files that lie beside folders belong to the folder above.
    """
    *folders, _ = path.split("/")
    depth = {"npusim": 3, "kernels": 2}.get(folders[0], 1)
    return "/".join(folders[:depth])


def rooms(texts: Mapping[str, str]) -> dict[str, Gauge]:
    """The counts by room, in the order of their names."""
    gauges: dict[str, Gauge] = {}
    for path, text in texts.items():
        name = room(path)
        gauges[name] = gauges.get(name, Gauge()) + gauge_of(path, text)
    return dict(sorted(gauges.items()))


def in_all(gauges: Mapping[str, Gauge]) -> dict[str, Gauge]:
    """Totals of the package with its kernels, and of tests with tools."""
    package = [gauge for name, gauge in gauges.items() if name.startswith(("npusim", "kernels"))]
    others = [gauge for name, gauge in gauges.items() if name.startswith(("tests", "tools"))]
    return {
        "npusim and kernels": reduce(Gauge.__add__, package, Gauge()),
        "tests and tools": reduce(Gauge.__add__, others, Gauge()),
    }


# -- the report ------------------------------------------------------------------------------------


def report(
    texts: Mapping[str, str], earlier: Mapping[str, str] | None = None, *, totals_only: bool = False
) -> list[str]:
    """The table of rooms and totals, and what to read first.

    ``earlier`` texts add a row with the differences below every room and total that has any.
    """
    gauges = rooms(texts)
    totals = in_all(gauges)
    rows = totals if totals_only else gauges | totals
    before: dict[str, Gauge] = {}
    if earlier is not None:
        gauges_before = rooms(earlier)
        before = gauges_before | in_all(gauges_before)
    lines = [_heads()]
    for name, gauge in rows.items():
        lines += _row(name, gauge, before.get(name))
    gone = [name for name in before if name not in gauges | totals]
    if gone and not totals_only:
        lines.append(f"rooms that were: {', '.join(gone)}")
    return lines if totals_only else [*lines, "", *_to_read(texts, totals["npusim and kernels"])]


def _heads() -> str:
    return "".join(f"{head:>10}" for head in Gauge().figures()) + "  room"


def _row(name: str, gauge: Gauge, before: Gauge | None) -> list[str]:
    """The row of a room, and one of its differences where it was there and is another."""
    figures = gauge.figures()
    row = "".join(f"{value:>10,}" for value in figures.values()) + f"  {name}"
    if before is None or before.figures() == figures:
        return [row]
    earlier = before.figures()
    changes = [round(value - earlier[head], 1) for head, value in figures.items()]
    return [row, "".join(f"{change:>+10,}" if change else " " * 10 for change in changes)]


def _to_read(texts: Mapping[str, str], package: Gauge) -> list[str]:
    """The longest, densest and most branching functions, class names used twice, long files."""
    long = [function for function in package.functions if function.is_long]
    dense = [function for function in package.functions if function.is_dense]
    long.sort(key=lambda function: -function.tokens)
    dense.sort(key=lambda function: -function.tokens / function.lines)
    twice = sorted(name for name, count in package.classes.items() if count > 1)
    sizes = {path: len(text.splitlines()) for path, text in texts.items()}
    return [
        *_listed("tokens", [f"{function.tokens:7,}  {function.place}" for function in long]),
        *_listed(
            "tokens a line",
            [f"{function.tokens / function.lines:7.1f}  {function.place}" for function in dense],
        ),
        *_listed("cognitive complexity", _branching(texts)),
        f"class names used twice: {', '.join(twice)}",
        *_listed(
            "lines in a file",
            [f"{size:7,}  {path}" for path, size in sizes.items() if size > LONG_FILE],
        ),
    ]


def _listed(title: str, rows: Sequence[str]) -> list[str]:
    """The first rows below their title; how many more there are."""
    more = len(rows) - LISTED
    return [f"{title}:", *rows[:LISTED], *([f"         and {more} more"] if more > 0 else [])]


def _branching(texts: Mapping[str, str]) -> list[str]:
    """Functions of the package by cognitive complexity, the worst first."""
    try:
        from complexipy import code_complexity  # noqa: PLC0415 - of use to developers only
    except ImportError:
        return ["  `pip install complexipy` lists functions by cognitive complexity"]
    functions = [
        (function.complexity, f"{path}:{function.line_start} {function.name}")
        for path, text in texts.items()
        if path.endswith(".py") and path.startswith(("npusim", "kernels"))
        for function in code_complexity(text).functions
    ]
    functions.sort(reverse=True)
    return [f"{complexity:7,}  {place}" for complexity, place in functions]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 2 where git does not know the revision."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description=__doc__)
    parser.add_argument("--against", metavar="REVISION", help="show the difference to a revision")
    parser.add_argument("--totals", action="store_true", help="print the totals alone")
    options = parser.parse_args(arguments)
    revision = options.against or last_release()
    earlier = None
    if revision is not None:
        try:
            earlier = files_of(revision)
        except subprocess.CalledProcessError as error:
            print(f"tools.size: {error.stderr.decode().strip()}", file=sys.stderr)
            return 2
    print("\n".join(report(files_here(), earlier, totals_only=options.totals)))
    if revision is None:
        print("no release is tagged yet; --against REVISION shows the difference to a revision")
    return 0


if __name__ == "__main__":
    sys.exit(main())
