"""Where a call got slower: the instructions whose cycles on the critical path grew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: A step of a critical path as `npusim explain --json` has it, with its kernel and its source.
Step = dict[str, Any]


@dataclass(frozen=True)
class Grown:
    """An instruction that has ``cycles`` more than before, most of them for ``reason``.

    ``file`` is a path below the repository's folder, "" of what is no file of it; ``text`` is the
    line.
    """

    kernel: str
    pipe: str
    op: str
    file: str
    line: int
    text: str
    cycles: int
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else self.text
        what = " ".join(filter(None, (self.pipe, self.op, place)))
        return f"{self.kernel}: {what}: {self.cycles:+,} cycles, mostly {self.reason}"


def grown(before: Iterable[Step], after: Iterable[Step]) -> tuple[Grown, ...]:
    """What has more cycles in the kernels of an explanation than before, most first.

    Kernels are as `npusim explain --json` tells them, to which ``npusim/gate/work.py`` adds
    sources. A line is the one of before that has its text, else the next of its file that is left.
    """
    found = []
    for old, new in _pairs([*_steps(before)], [*_steps(after)]):
        parts = Counter[str](new["parts"])
        parts.subtract(old.get("parts", {}))
        cycles, reason = new["cycles"] - old.get("cycles", 0), max(parts, key=lambda n: parts[n])
        if cycles > 0:
            own = {name: new[name] for name in ("kernel", "pipe", "op", "file", "line", "text")}
            found.append(Grown(**own, cycles=cycles, reason=reason))
    return tuple(sorted(found, key=lambda one: -one.cycles))


def _steps(kernels: Iterable[Step]) -> Iterator[Step]:
    """The steps of all kernels, launches among them; their cycles add up to the call's."""
    names = Counter[str]()
    for kernel in kernels:
        name, launch = kernel["name"], kernel["launch_cycles"]
        names[name] += 1
        own = {"kernel": f"{name} #{names[name]}" if names[name] > 1 else name}
        empty = {"pipe": "", "op": "launch", "line": 0, "cycles": launch, "file": "", "text": ""}
        yield {**empty, **own, "parts": {"launch": launch}}
        for step in kernel["path"]:
            line = step["line"].rpartition(":")[2]
            given = {"file": "", **step, "text": step.get("text") or step["line"]}
            yield {**given, **own, "line": int(line) if line.isdigit() else 0}


def _pairs(old: list[Step], new: list[Step]) -> Iterator[tuple[Mapping[str, Any], Step]]:
    """Each new step with the old one that it was; {} where it was none."""
    for names in (("kernel", "pipe", "op", "file", "text"), ("kernel", "pipe", "op", "file")):
        known: dict[tuple[str, ...], list[Step]] = defaultdict(list)
        for step in sorted(old, key=lambda one: one["line"]):
            known[tuple(step[name] for name in names)].append(step)
        left = []
        for step in sorted(new, key=lambda one: one["line"]):
            same = known[tuple(step[name] for name in names)]
            if same:
                yield same.pop(0), step
            else:
                left.append(step)
        old, new = [one for steps in known.values() for one in steps], left
    yield from (({}, step) for step in new)
