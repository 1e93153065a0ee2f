"""Stale answers, looked for: an edit, then the same command, compared with a fresh run of it.

``python -m tests.answers.stale --count N --seed S`` edits files, sources, products, limits, figures
and options at random; after each edit a command answers with all that was kept before, in memory
and on disk, and once more with nothing kept. Both must say the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import npusim
from npusim.base import digests as sources
from npusim.base.dtypes import FP16
from npusim.base.resources import configs
from npusim.call.own_kernel import load_kernel
from npusim.kernels.parts import mem_set
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Plan
from npusim.problem.limits import table
from npusim.reuse.answers import answers_in
from npusim.reuse.launches import CachedLaunches
from tests.reuse.test_launches import forget, forgetful
from tests.texts import text_of

OWN = text_of("clearing_kernel.txt")

#: What edits put into files, where each may be any of these.
SIZES, CLOCKS, PRODUCTS = (8, 16, 32), ("1GHz", "2GHz"), ("a2", "'910'", "310p")
FIGURES = {"main_memory.read": "8B/cycle", "launch.core": "7cycle", "cube.startup": "9cycle"}
TARGET = Tensor("target", (64, 64), FP16, "out")
PLAN = MemSet.plan


def waiting(times: int) -> Any:
    """A plan for ``MemSet`` whose tasks begin with so many barriers."""

    def plan(self: MemSet, k: Any, cores: int) -> Any:
        made = PLAN(self, k, cores)

        def emit(chunk: Any) -> None:
            for _ in range(times):
                k.pipe_barrier()
            made.emit(chunk)

        return Plan(made.tasks, emit)

    return plan


class World:
    """Files, sources and options that answers are made of: two folders with the same names."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.random, self.patch = folder, Random(seed), patch
        self.options: dict[str, Any] = {"batch": "1"}
        self.figures: dict[str, str] = {}
        shipped = Path(str(configs())) / "constraints"
        self.limits = {one.name: one.read_text("utf-8") for one in shipped.glob("*.yaml")}
        (folder / "constraints").mkdir()
        for place in (table, sources):
            patch.setattr(place, "configs", lambda: folder)
        patch.setattr(sources, "_BEGAN", 1 << 80)  # what changes here is read again at once
        for name in ("two", "one"):
            (folder / name).mkdir()
            os.chdir(folder / name)
            self.layer()
            self.device()
            self.helper()
        self.limit()

    def edit(self) -> str:
        """Change something; what it was."""
        edits = (
            *(self.place, self.layer, self.device, self.limit),
            *(self.source, self.helper, self.option, self.figure),
        )
        made = self.random.choice(edits)
        made()
        return made.__name__

    def place(self) -> None:
        """The other folder."""
        os.chdir(self.folder / self.random.choice(("one", "two")))

    def layer(self) -> None:
        """The sizes of a layer in a file."""
        cin, cout = self.random.choices(SIZES, k=2)
        sizes = f"cin: {cin}, cout: {cout}, spatial: [5, 5], kernel: 3, padding: 1"
        text = f"description: x\nlayers:\n  a: {{{sizes}, input_gradient: yes}}\n"
        Path("net.yaml").write_text(text, "utf-8")

    def device(self) -> None:
        """A figure in the file of a device, or its product."""
        clock, product = self.random.choice(CLOCKS), self.random.choice(PRODUCTS)
        text = f"base: tiny\nname: mine\ndescription: x\nproduct: {product}\n"
        text += f"clock: {clock} (assumed, OWN)\nsources: {{OWN: of a test}}\n"
        Path("mine.yaml").write_text(text, "utf-8")

    def limit(self) -> None:
        """The documented limits: as they are, or numbers of at most 4."""
        low = self.random.random() < 0.3
        for name, text in self.limits.items():
            made = re.sub(r"\bmax: \d+", "max: 4", text) if low else text
            (self.folder / "constraints" / name).write_text(made, "utf-8")
        for known in (table.load_rules, table._file, sources.limits, sources._limits):
            known.cache_clear()

    def source(self) -> None:
        """A constant in the module of a kernel of npusim, or a method of its class."""
        if self.random.random() < 0.5:
            self.patch.setattr(mem_set, "CLEAR_BYTES", self.random.choice((512, 1024, 4096)))
        else:
            self.patch.setattr(MemSet, "plan", waiting(self.random.randint(0, 3)))

    def helper(self) -> None:
        """A module beside a kernel of the user's own."""
        text = f"def times():\n    return {self.random.randint(0, 3)}\n"
        Path("steps.py").write_text(text, "utf-8")
        Path("own.py").write_text(OWN, "utf-8")

    def option(self) -> None:
        """An option of what is measured."""
        self.options = {
            "batch": self.random.choice("12"),
            "cores": self.random.choice(("0", "0-1")),
            "rules": self.random.choice(("documented", "hardware")),
        }

    def figure(self) -> None:
        """A figure of the device, beside its file."""
        name = self.random.choice(list(FIGURES))
        self.figures = {} if self.random.random() < 0.4 else {name: FIGURES[name]}

    def point(self, store: Path | None) -> Any:
        """A point of a sweep over an operator."""
        given: dict[str, Any] = {"device": "mine.yaml", "set": self.figures, **self.options}
        given |= {"operator": "conv2d_backprop_filter", "layer": "net.yaml/a"}
        return npusim.sweep(**given, store=store, jobs=1).rows()

    def network(self, store: Path | None) -> Any:
        """The layers of a network, whose kernels are kept."""
        device = load_device("mine.yaml", self.figures)
        options = {**self.options, "batch": int(self.options["batch"])}
        return npusim.network("net.yaml", device=device, store=store, **options).to_json()

    def launch(self, store: Path | None) -> Any:
        """A kernel of npusim by itself."""
        kernel = MemSet(TARGET)
        with answers_in(store):
            launches = CachedLaunches(load_device("mine.yaml", self.figures), (0,))
            made = launches.known(kernel) or launches.time(kernel, launches.build(kernel))
        return made.run.cycles, made.run.instructions

    def tune(self, store: Path | None) -> Any:
        """A kernel of the user's own, whose module and the one beside it are read anew."""
        sys.modules.pop("steps", None)
        importlib.invalidate_caches()
        Path("steps.py").touch()
        sys.dont_write_bytecode = True
        kernel = load_kernel("own.py:Own")(TARGET)  # type: ignore[call-arg]
        device = load_device("mine.yaml", self.figures)
        found = npusim.tune(kernel, device=device, among=[], store=store)
        return found.cycles, [row.cycles for row in found.rows]


class Pair(NamedTuple):
    """An edit and a command; what was said with answers kept, and what afresh."""

    edit: str
    command: str
    kept: str
    fresh: str


@contextmanager
def world(seed: int) -> Iterator[World]:
    """A world in a temporary folder; everything is as it was afterwards."""
    was = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        try:
            yield World(Path(folder).resolve(), seed, patch)
        finally:
            os.chdir(was)
    for known in (table.load_rules, table._file, sources.limits, sources._limits):
        known.cache_clear()
    sys.modules.pop("steps", None)


def pairs(count: int, seed: int) -> Iterator[Pair]:
    """So many pairs in one world, each of one edit and one command."""
    forget()
    with world(seed) as here:
        commands = (here.point, here.network, here.launch, here.tune)
        for _ in range(count):
            edit, command = here.edit(), here.random.choice(commands)
            kept = said(command, here.folder / f"{command.__name__}.sqlite")
            with forgetful():
                fresh = said(command, None)
            yield Pair(edit, command.__name__, kept, fresh)
    forget()


def said(command: Any, store: Path | None) -> str:
    """All that a command says, or why it cannot."""
    try:
        return json.dumps(command(store), sort_keys=True, default=str)
    except npusim.NpusimError as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Look for stale answers; the status says whether there were any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="pairs (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin, stale = time.process_time(), 0
    seen: Counter[str] = Counter()
    refused = 0
    for pair in pairs(arguments.count, arguments.seed):
        seen[f"{pair.edit}, {pair.command}"] += 1
        refused += "Error: " in pair.fresh[:40]
        if pair.kept != pair.fresh:
            stale += 1
            print(f"stale: {pair.edit}, then {pair.command}\n  kept:  {pair.kept[:400]}")
            print(f"  fresh: {pair.fresh[:400]}")
    spent = time.process_time() - begin
    print(f"{stale} stale of {arguments.count} pairs, {len(seen)} kinds, {refused} refused; "
          f"{spent:.0f} CPU s")  # fmt: skip
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
