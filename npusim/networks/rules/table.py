"""Operations of layers going forward and backward: the tables of ``configs/operations.yaml``.

They say which operations each kind of layer has, which of them are chains of element-wise steps,
which of these one kernel computes together, and what an optimizer does with a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.resources import configs
from npusim.base.yamltree import YamlNode, load_tree, suggest
from npusim.kernels.vector.elementwise import Step
from npusim.kernels.vector.expression import BY_ROW

#: The word for the fusions that the vendor's graph engine makes.
ENGINE = "graph_engine"


class OperationForm(NamedTuple):
    """An operation of a layer: its row of ``CHAINS`` or its own kernel, and its values.

    ``kind`` is what reports count it as.
    """

    name: str
    op: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class KindRule(NamedTuple):
    """The operations of a kind of layer; gradients of what is among ``passes_on`` pass as they are.

    ``parameters`` and what is ``kept`` for the backward pass have kinds of values; "of x" says that
    one has the size of the input, not of the output. ``numbers`` are the names of its layer's.
    """

    forward: tuple[OperationForm, ...]
    backward: tuple[OperationForm, ...] = ()
    parameters: Mapping[str, str] = {}
    kept: Mapping[str, str] = {}
    numbers: tuple[str, ...] = ()
    passes_on: tuple[str, ...] = ()


class Chain(NamedTuple):
    """Element-wise ``steps`` on values: maps and bits that are read and written, and vectors.

    ``sums`` are vectors, with what is added up to them over all but the channels. With ``rows``
    vectors hold numbers for the elements of a row, which nothing reduces. ``library_width`` is how
    many numbers of 16 bits the vendor's library counts for an element in UB, 0 where that is not
    known, as of several operations together.
    """

    steps: tuple[Step, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    sums: tuple[tuple[str, str], ...] = ()
    rows: bool = False
    library_width: int = 0

    @property
    def by_row(self) -> bool:
        """Return whether it is about rows, the elements along the last axes of plain maps."""
        return self.rows or any(step.operation in BY_ROW for step in self.steps)

    def then(self, other: Chain, inner: str, *, kept: bool) -> Chain:
        """This chain and one that reads its result ``inner``, which is ``kept`` in memory or not.

        ``inner`` may also be what a core makes, of which this chain has nothing.
        """
        results = {*self.writes, inner}
        return Chain(
            (*self.steps, *other.steps),
            _each((*self.reads, *(v for v in other.reads if v not in results))),
            _each((*(v for v in self.writes if kept or v != inner), *other.writes)),
            _each((*self.vectors, *other.vectors)),
            (*self.sums, *other.sums),
            self.rows or other.rows,
        )

    def renamed(self, names: Mapping[str, str]) -> Chain:
        """The same with other ``names``; values without one are called after their places."""
        new_names = dict(names)
        for i, step in enumerate(self.steps):
            new_names.setdefault(step.result, f"t{i}")

        def each(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new_names[value] for value in values)

        steps = tuple(
            step._replace(
                result=new_names[step.result],
                a=new_names[step.a],
                b=new_names[step.b] if step.b and isinstance(step.b, str) else step.b,
                mask=new_names[step.mask] if step.mask else "",
            )
            for step in self.steps
        )
        sums = tuple((new_names[vector], new_names[value]) for vector, value in self.sums)
        return Chain(
            steps,
            each(self.reads),
            each(self.writes),
            each(self.vectors),
            sums,
            self.rows,
            self.library_width,
        )


def _each(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


class ChainLine(NamedTuple):
    """A line of a chain in words: ``result = operation operands``, or ``result += operand``.

    The second is a sum over all but the channels, and has no ``operation``.
    """

    result: str
    operation: str
    operands: tuple[str, ...]


class ChainRow(NamedTuple):
    """A chain in words: its lines, what it writes, and its vectors.

    One that is ``exact`` is computed in the type of its maps, others in fp32. ``rows`` and
    ``library_width`` are those of ``Chain``.
    """

    lines: tuple[ChainLine, ...]
    writes: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    exact: bool = False
    rows: bool = False
    library_width: int = 0

    @property
    def summed(self) -> tuple[str, ...]:
        """The vectors that are sums."""
        return tuple(line.result for line in self.lines if not line.operation)


class Fusion(NamedTuple):
    """Operations of kind ``second`` that read a result of ``first`` become part of its kernel.

    The result itself stays in memory where it is ``kept``; else nobody else may read it. A kernel
    of a product can have a chain behind it on chips that drain L0C through UB. ``usual`` are those
    that the passes of a framework make, ``engine`` those of the vendor's graph engine.
    """

    name: str
    first: tuple[str, ...]
    second: str
    kept: bool = False
    usual: bool = True
    engine: bool = True


class Update(NamedTuple):
    """A chain of an optimizer, what it keeps of a parameter, and whether only weights have it."""

    op: str
    state: tuple[str, ...]
    weights: bool


class OperationTables(Struct, frozen=True):
    """The tables, by names."""

    settings: Mapping[str, float]
    optimizers: Mapping[str, tuple[Update, ...]]
    rules: Mapping[str, KindRule]
    chains: Mapping[str, ChainRow]
    fusions: tuple[Fusion, ...]


@cache
def tables() -> OperationTables:
    """The tables that ship; ``ConfigError`` names the line of one that is not as it should be."""
    root = load_tree(configs() / "operations.yaml", "operations.yaml")
    parts = root.mapping(
        ("settings", "optimizers", "layers", "kinds", "moves", "constant", "chains", "fusions")
    )
    rows = {**parts["layers"].mapping(), **parts["kinds"].mapping()}
    chains = {name: _row(node) for name, node in parts["chains"].mapping().items()}
    return OperationTables(
        {name: _number(node) for name, node in parts["settings"].mapping().items()},
        {
            name: tuple(_update(op, row, chains) for op, row in node.mapping().items())
            for name, node in parts["optimizers"].mapping().items()
        },
        {name: _rule(node) for name, node in rows.items() if _computes(node)},
        chains,
        tuple(_fusion(name, node) for name, node in parts["fusions"].mapping().items()),
    )


def _number(node: YamlNode) -> float:
    try:
        return float(node.text())
    except ValueError:
        raise node.fail(f"expected a number, got {node.text()!r}") from None


def _update(op: str, node: YamlNode, chains: Mapping[str, ChainRow]) -> Update:
    if op not in chains:
        raise node.fail(f"there is no chain {op!r}{suggest(op, chains)}")
    whose, *state = node.text().replace(",", " ").split()
    return Update(op, tuple(state), whose == "weights")


def _computes(node: YamlNode) -> bool:
    """Return whether a row says what its kind computes; what else has the rule of traffic."""
    return "forward" in node.mapping()


def _rule(node: YamlNode) -> KindRule:
    keys = ("torch", "onnx", "numbers", "parameters", "keeps", "forward", "backward", "passes_on")
    parts = node.mapping((), keys)

    def words(key: str) -> dict[str, str]:
        entries = parts[key].mapping() if key in parts else {}
        return {name: entry.text() for name, entry in entries.items()}

    def forms(key: str) -> tuple[OperationForm, ...]:
        entries = parts[key].mapping() if key in parts else {}
        return tuple(_form(name, entry) for name, entry in entries.items())

    def listed(key: str) -> tuple[str, ...]:
        return tuple(parts[key].text().split()) if key in parts else ()

    return KindRule(
        forms("forward"),
        forms("backward"),
        words("parameters"),
        words("keeps"),
        tuple(words("numbers")),
        listed("passes_on"),
    )


def _form(name: str, node: YamlNode) -> OperationForm:
    parts = [part.strip() for part in node.text().split(",")]
    values = [tuple(words.split()) for words in parts[-1].split("->")]
    if len(parts) != 3 or len(values) != 2:
        raise node.fail("expected: row or kernel, what it counts as, what it reads -> writes")
    return OperationForm(name, parts[0], parts[1], *values)


def _row(node: YamlNode) -> ChainRow:
    parts = node.mapping(("steps",), ("writes", "vectors", "exact", "rows", "library_width"))
    steps = parts["steps"]
    lines = tuple(_line(steps, line.split()) for line in steps.text().strip().split("\n"))

    def words(key: str) -> tuple[str, ...]:
        return tuple(parts[key].text().split()) if key in parts else ()

    return ChainRow(
        lines,
        words("writes"),
        words("vectors"),
        exact="exact" in parts,
        rows="rows" in parts,
        library_width=int(_number(parts["library_width"])) if "library_width" in parts else 0,
    )


def _line(node: YamlNode, words: Sequence[str]) -> ChainLine:
    """The line of a chain that has these words."""
    fault = _fault(words)
    if fault:
        raise node.fail(f"{' '.join(words)}: {fault}")
    if words[1] == "+=":
        return ChainLine(words[0], "", (words[2],))
    return ChainLine(words[0], words[2], tuple(words[3:]))


def _fault(words: Sequence[str]) -> str:
    """The fault of a line of a chain; "" if it has none."""
    if len(words) == 3 and words[1] == "+=":
        return ""
    if not 4 <= len(words) <= 6 or words[1] != "=":
        return "expected 'result = operation operands', or 'sum += value'"
    operation = words[2]
    a, b, mask = _operands(words[3:])
    fault = Step("", operation, a, b, mask).fault
    if fault:  # the second operand may be the name of a number
        fault = Step("", operation, a, 0.0, mask).fault
    return fault


def _operands(words: Sequence[str]) -> tuple[str, str, str]:
    """Both operands of a step and its mask, "" where there is none."""
    a, b, mask = (*words, "", "")[:3]
    return a, b, mask


def _fusion(name: str, node: YamlNode) -> Fusion:
    parts = node.mapping(("first", "second"), ("keeps", "usual"))
    first = tuple(item.text() for item in parts["first"].items())
    makers = parts["usual"].text() if "usual" in parts else "yes"
    if makers not in ("yes", "no", ENGINE):
        raise parts["usual"].fail(f"expected yes, no or {ENGINE}, got {makers!r}")
    return Fusion(
        name,
        first,
        parts["second"].text(),
        kept="keeps" in parts,
        usual=makers == "yes",
        engine=makers != "no",
    )


def chain_of(
    op: str,
    names: Mapping[str, str],
    prefix: str,
    elements: int = 1,
    settings: Mapping[str, float] | None = None,
    maps: DType = FP32,
) -> Chain:
    """The chain of a row with values for its ``names``; others are called after ``prefix``.

    ``elements`` are those that a channel has in a batch. A chain "add" adds as many values as it is
    given, "cast" has one. ``settings`` are numbers in place of those of the table,
    ``maps`` the type of maps. Results of the row that have no value are not computed.
    """
    row = tables().chains.get(op) or ChainRow(
        _added([name for name in names if name[0] == "x"]), ("y",), exact=op == "add"
    )
    words = _Words(names, prefix, _numbers(elements, settings or {}))
    dtype = maps if row.exact and maps is FP16 else None
    lines = _needed(row, names)
    steps = tuple(words.step(line, dtype) for line in lines if line.operation)
    sums = tuple(
        (words.name(line.result), words.name(line.operands[0]))
        for line in lines
        if not line.operation
    )
    results = {step.result for step in steps}
    used = [name for step in steps for name in step.reads] + [value for _, value in sums]
    vectors = tuple(name for name in map(words.name, row.vectors) if name in used)
    reads = _each(tuple(name for name in used if name not in results and name not in vectors))
    writes = tuple(names[word] for word in row.writes if word in names)
    # Without its steps that reduce rows, as where a scale is frozen, a row still counts by them.
    by_rows = any(line.operation in BY_ROW for line in row.lines)
    rows = row.rows or (by_rows and not any(step.operation in BY_ROW for step in steps))
    return Chain(steps, reads, writes, vectors, sums, rows, row.library_width)


def _numbers(elements: int, settings: Mapping[str, float]) -> dict[str, float]:
    """Numbers by the words that stand for them in rows, with ``settings`` over the table's."""
    numbers = {"1/n": 1 / elements, **tables().settings, **settings}
    numbers["-rate"] = -numbers["rate"]
    numbers["1-beta1"] = 1 - numbers["beta1"]
    numbers["1-beta2"] = 1 - numbers["beta2"]
    return numbers


class _Words(NamedTuple):
    """The meaning of words of a row: values by their ``names``, else after ``prefix``; numbers."""

    names: Mapping[str, str]
    prefix: str
    numbers: Mapping[str, float]

    def name(self, word: str) -> str:
        """The name of the value that a word stands for."""
        return self.names.get(word, f"{self.prefix}:{word}")

    def step(self, line: ChainLine, dtype: DType | None) -> Step:
        """The step of a line, computed in a type."""
        a, b, mask = _operands(line.operands)
        second = self._number_or_name(b) if b else ""
        masked = self.name(mask) if mask else ""
        return Step(self.name(line.result), line.operation, self.name(a), second, masked, dtype)

    def _number_or_name(self, word: str) -> float | str:
        if word in self.numbers:
            return self.numbers[word]
        return float(word) if word.lstrip("-")[:1].isdigit() else self.name(word)


def _needed(row: ChainRow, names: Collection[str]) -> list[ChainLine]:
    """The lines of a row, without those of results that have no name and what only these need."""
    wanted = {word for word in row.writes if word in names} | {*row.summed} & {*names}
    lines = []
    for line in reversed(row.lines):
        if line.result in wanted:
            wanted.update(line.operands)
            lines.append(line)
    lines.reverse()
    return lines


def _added(names: list[str]) -> tuple[ChainLine, ...]:
    """The lines of a sum of so many values; of one, a copy in another type."""
    if len(names) == 1:
        return (ChainLine("y", "adds", (names[0], "0")),)
    lines = []
    total = names[0]
    for i, name in enumerate(names[1:], 2):
        result = "y" if i == len(names) else f"sum{i}"
        lines.append(ChainLine(result, "add", (total, name)))
        total = result
    return tuple(lines)
