"""The table of operators and devices: each cell is what ``npusim run ... --check`` says."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path

import yaml

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.cli import run
from npusim.cli.main import parser
from npusim.ops import CARDS
from npusim.problem.limits.table import documented_operators, load_rules

_FILE = Path(__file__).parent.parent / "data" / "operator_cases.yaml"

#: Rows of the table: an operator's card and one of its cases.
CASES = {
    ", ".join([name, *([case["name"]] if "name" in case else [])]): (CARDS[name], case)
    for name, cases in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
    for case in cases
}


#: Column of the table -> its devices; the bins of a chip have the same limits.
COLUMNS = {
    "ascend910b[1-4]" if name == "ascend910b2" else name: name
    for name in npusim.devices()
    if name not in {"ascend910b1", "ascend910b3", "ascend910b4"}
}


def cell(row: str, name: str, engine: str = "fast", *, numbers: bool = True) -> str:
    """What the table says about a row on a device, found by running its calls.

    Without ``numbers`` they are timed and nothing is computed: what is refused is the same.
    """
    card, case = CASES[row]
    device = npusim.load_device(name)
    own = card.name not in documented_operators() or not load_rules(device.product, card.name).note
    try:
        parts = (case.get(key, [""]) for key in ("sizes", "types", "forms"))
        for call in product(*parts):
            words = [
                "run",
                card.name,
                *" ".join(call).split(),
                "--device",
                name,
                "--engine",
                engine,
                "--check" if numbers else "--timing-only",
            ]
            with redirect_stdout(StringIO()) as printed:
                assert run.execute(parser(words).parse_args(words)) == 0, printed.getvalue()
    except RuleError as error:
        word = case["needs"] if error.parameter == case.get("parameter") else error.parameter
        return f"no {word}{'' if own else '*'}"
    except ArgumentError:
        has_role = any(card.role in kind.roles for kind in device.cores.values())
        return f"no {case['needs'] if has_role else card.role.replace('dsp', 'DSP')}"
    return "works" if own else "works*"


def operator_table() -> str:
    """The table as Markdown; takes a while, because it runs every call."""
    head = f"| operator | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}\n"
    rows = []
    for row in CASES:
        name, comma, rest = row.partition(",")
        cells = " | ".join(cell(row, device) for device in COLUMNS.values())
        rows.append(f"| `{name}`{comma}{rest} | {cells} |\n")
    return head + "".join(rows)
