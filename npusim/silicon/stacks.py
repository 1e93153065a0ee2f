"""Software stacks of measured training steps: what each makes of the arithmetic and the fusions.

A framework and its level of mixed precision say in which type maps lie, and whether casts stand
around normalisations. ``configs/silicon/stacks.csv`` has a line for each, with its source, so that
no row chooses these for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from npusim.base.yamltree import suggest
from npusim.kernels.matmul.measured import table
from npusim.silicon.rows import Declined, NetworkRow

#: The columns of the table that are keywords of ``npusim.step``.
_KEYWORDS = ("dtype", "normalisation", "fusions")


@cache
def stacks() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return the keywords of ``npusim.step`` of each stack and level; usual ones are left out."""
    return {
        (line["stack"], line["amp"]): {word: line[word] for word in _KEYWORDS if line[word]}
        for line in table("stacks.csv")
    }


def stack_keywords(row: NetworkRow) -> dict[str, str]:
    """Return the keywords of ``npusim.step`` that the stack of a row says, or its own columns.

    Raises ``Declined`` for a stack or level that is not known, for one without the other, and for
    a row that names a stack and types besides.
    """
    types = {word: getattr(row, word) for word in ("dtype", "normalisation")}
    stated = {word: text for word, text in types.items() if text is not None}
    if row.stack is None and row.amp is None:
        return stated
    if row.stack is None or row.amp is None:
        empty = "stack" if row.stack is None else "amp"
        raise Declined(f"{empty} is empty: a stack has its types by its level; give both or none")
    if stated:
        raise Declined(
            f"{next(iter(stated))} is stated beside stack {row.stack!r}, which says it: leave "
            "one of them empty"
        )
    known = stacks()
    names = list(dict.fromkeys(stack for stack, _ in known))
    if row.stack not in names:
        raise Declined(
            f"stack {row.stack!r} is not known{suggest(row.stack, names)}; or leave stack and amp "
            "empty and state dtype and normalisation"
        )
    levels = [level for stack, level in known if stack == row.stack]
    if row.amp not in levels:
        raise Declined(
            f"amp {row.amp!r} is not known of stack {row.stack!r}{suggest(row.amp, levels)}"
        )
    return dict(known[row.stack, row.amp])
