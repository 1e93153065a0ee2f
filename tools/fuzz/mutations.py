"""Texts near those that npusim reads: files and command lines with a few things wrong in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

#: Texts that inputs are made from, in files of their own.
SEEDS = Path(__file__).parent / "seeds"

#: Words that readers meet rarely: numbers at the ends of ranges, units, YAML's own signs.
_WORDS: list[str] = json.loads((SEEDS / "words.json").read_text(encoding="utf-8"))
WORDS = (*_WORDS, "9" * 5000)

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def mutated(text: str, others: Sequence[str], random: Random) -> str:
    """``text`` with one to four changes; lines may come from ``others``."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        text = random.choice(_CHANGES)(text, others, random)
    return text


def _word(text: str, others: Sequence[str], random: Random) -> str:
    """Another word in the place of one."""
    tokens = _TOKEN.findall(text)
    if tokens:
        tokens[random.randrange(len(tokens))] = random.choice(WORDS)
    return "".join(tokens)


def _moved_word(text: str, others: Sequence[str], random: Random) -> str:
    """A word of the text in the place of another."""
    tokens = _TOKEN.findall(text)
    if tokens:
        tokens[random.randrange(len(tokens))] = random.choice(tokens)
    return "".join(tokens)


def _number(text: str, others: Sequence[str], random: Random) -> str:
    """A number that is a little or much larger or smaller."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return text
    at = random.choice(found)
    value = int(at[0][:18])
    new = random.choice((value + 1, max(0, value - 1), value * 2, value // 2, value * 1000, -value))
    return text[: at.start()] + str(new) + text[at.end() :]


def _lines(text: str, others: Sequence[str], random: Random) -> str:
    """A line twice, gone, elsewhere, deeper, or from another text."""
    lines = text.splitlines()
    if not lines:
        return text
    at = random.randrange(len(lines))
    kind = random.randrange(5)
    if kind == 0:
        lines.insert(random.randrange(len(lines) + 1), lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines.insert(random.randrange(len(lines)), lines.pop(at))
    elif kind == 3:
        lines[at] = random.choice(("  " + lines[at], lines[at][2:], lines[at].lstrip()))
    else:
        more = random.choice(others).splitlines() or [""]
        lines.insert(at, random.choice(more))
    return "\n".join(lines) + "\n"


def _cut(text: str, others: Sequence[str], random: Random) -> str:
    """Some characters less."""
    start = random.randrange(len(text) + 1)
    return text[:start] + text[start + random.choice((1, 2, 5, 20, 200)) :]


def _inserted(text: str, others: Sequence[str], random: Random) -> str:
    """A word more, anywhere."""
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(WORDS) + text[at:]


_CHANGES: tuple[Callable[[str, Sequence[str], Random], str], ...] = (
    *(_word, _word, _moved_word, _number, _number, _lines, _lines, _cut, _inserted),
)


def mutated_words(words: Sequence[str], others: Sequence[str], random: Random) -> list[str]:
    """A command line with one to three changes; ``others`` are words of other command lines."""
    found = list(words)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(found) + 1)
        kind = random.randrange(5)
        if kind == 0:
            found.insert(at, random.choice((*WORDS, *others)))
        elif kind == 1 and found:
            del found[min(at, len(found) - 1)]
        elif kind == 2 and found:
            found[min(at, len(found) - 1)] = random.choice((*WORDS, *others))
        elif kind == 3 and found:
            found.insert(at, random.choice(found))
        elif found:
            at = min(at, len(found) - 1)
            found[at] = _word(found[at], others, random)
    return found
