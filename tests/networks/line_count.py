"""Bytes to and from main memory of a step, counted line by line, by nothing that the plan counts.

Operands are listed from the operations and their formats alone: where a value lies, how many lines
it has, and which are read and which written. One queue has all lines of the L2, the least recently
used first. As a module it prints what the plan says beside it::

    python -m tests.networks.line_count resnet50 ascend910b2 32 48MiB 192MiB 384MiB
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import pytest

import npusim
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.networks.plan.launch_order import LaunchTask, tasks
from npusim.networks.run import step as steps
from npusim.networks.run.step import PreparedStep, options_of, prepared, setting
from npusim.workloads import read_network

MIB = 2**20


class CrossingBytes(NamedTuple):
    """Bytes that the L2 fetches, that it writes back, and that are dirty in it at the end."""

    fetched: int
    written_back: int
    dirty: int


class Access(NamedTuple):
    """An operand of a launch: where it lies, its bytes, and whether it is written."""

    place: tuple[str, str]
    size: int
    write: bool


class MadeUpTimes:
    """Times of tasks that are not simulated; see ``npusim.networks.run.simulated``."""

    def __init__(self, launcher: Any) -> None:
        self.launcher = launcher
        self.c0 = launcher.c0
        self.fractals = launcher.fractals
        self.as_product, self.replaced = launcher.as_product, launcher.replaced

    def all(self, tasks: Any) -> None:
        """Take tasks of which times will be asked."""

    def __getitem__(self, task: Any) -> Any:
        """Between 1 and 1,000 us, by the text of the task."""
        return SimpleNamespace(us=1000 ** (crc32(repr(task).encode()) / 2**32))


def plan(
    network: str, device: str, batch: int, monkeypatch: pytest.MonkeyPatch, mode: str = "graph"
) -> PreparedStep:
    """A training step with momentum, planned at made-up times."""
    monkeypatch.setattr(steps, "SimulatedTasks", lambda launcher, *_: MadeUpTimes(launcher))
    options = options_of(npusim.step, mode, {"device": device, "launch": "single"})
    how = setting(
        options.machine, mode=mode, layouts=None, fusions=None, optimizer="momentum",
        passes="training", dtype="fp16", norm=None, cards=1,
    )  # fmt: skip
    return prepared(read_network(network, batch=batch), options, how)


def on_device(ready: PreparedStep, device: Device) -> list[LaunchTask]:
    """The launches of a plan on a variant of its device with another L2."""
    return list(tasks([each.launch for each in ready.todo], ready.formats, device))


def crossing(launches: Iterable[LaunchTask]) -> CrossingBytes:
    """The bytes that launches say they move, and what the last leaves dirty."""
    traffic = [each.l2 for each in launches]
    return CrossingBytes(
        sum(each.fetched for each in traffic),
        sum(each.written_back for each in traffic),
        traffic[-1].dirty,
    )


def accesses(ready: PreparedStep) -> Iterator[Access]:
    """The operands of all launches in order, in the memory that they lie in."""
    launches = [[*each] for each in operands(ready)]
    kept = {*ready.step.results}
    seen: dict[tuple[str, str], int] = {}  # values and formats, and their last launch
    lasting = set[tuple[str, str]]()
    for number, launch in enumerate(launches):
        lasting |= {place for place, _, write in launch if not write and place not in seen}
        seen |= {place: number for place, _, _ in launch}
    memory: dict[tuple[str, str], tuple[str, str]] = {}
    unused: list[tuple[int, str]] = []  # size and name of memory whose value is dead
    for number, launch in enumerate(launches):
        for place, size, write in launch:
            if place not in memory:
                lines = -(-size // 512)
                fits = [each for each in unused if each[0] == lines]
                if fits:
                    unused.remove(fits[-1])
                name = fits[-1][1] if fits else f"memory {len(memory)}"
                memory[place] = name, ""
            yield Access(memory[place], size, write)
        dead = [place for place, last in seen.items() if last == number and place not in lasting]
        for place in dead:
            if place[0] not in kept:
                size = next(each.size for each in launch if each.place == place)
                unused.append((-(-size // 512), memory[place][0]))


def operands(ready: PreparedStep) -> Iterator[list[Access]]:
    """By launch what it reads, then what it writes, each value in a place of its own."""
    step = ready.step
    before = {*step.values} - {name for op in step.operations for name in op.writes}

    def access(name: str, format: str, *, write: bool) -> Access:
        size = ready.formats.size(name, format)
        while format == "ND" and name in step.views:
            name = step.views[name]
        old = step.updates.get(name, name)
        return Access((old if old in before else name, format), size, write)

    for launch, *_ in ready.todo:
        operation = launch.operation
        if operation is None:
            yield [
                access(launch.value, launch.home, write=False),
                access(launch.value, launch.format, write=True),
            ]
            continue
        reads = [access(name, launch.formats[name], write=False) for name in operation.reads]
        writes = [access(name, launch.formats[name], write=True) for name in operation.writes]
        yield reads + writes


def line_by_line(used: Iterable[Access], l2_bytes: int, line_bytes: int) -> CrossingBytes:
    """Use operands line by line through an L2 that drops the least recently used line."""
    lines: OrderedDict[tuple[tuple[str, str], int], bool] = OrderedDict()  # whether each is dirty
    most = l2_bytes // line_bytes
    fetched = written_back = 0
    for place, size, write in used:
        for number in range(-(-size // line_bytes)):
            line = place, number
            dirty = lines.pop(line, None)
            if dirty is None:
                fetched += not write
                lines[line] = write
                if len(lines) > most:
                    written_back += lines.popitem(last=False)[1]
            else:
                lines[line] = dirty or write
    dirty_lines = sum(lines.values())
    return CrossingBytes(fetched * line_bytes, written_back * line_bytes, dirty_lines * line_bytes)


def main(network: str, device: str, batch: str, *sizes: str) -> None:
    """Print MiB as planned and as counted in lines of 16 KiB, for L2s of these sizes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ready = plan(network, device, int(batch), monkeypatch)
    used = list(accesses(ready))
    print(f"{network}, batch {batch}, {device}: MiB fetched, written back, dirty at the end")
    for size in sizes:
        variant = load_device(device, {"l2.size": size})
        assert variant.l2 is not None
        planned = crossing(on_device(ready, variant))
        counted = line_by_line(used, variant.l2.size_bytes, 16 * 1024)
        texts = [", ".join(f"{n / MIB:,.1f}" for n in each) for each in (planned, counted)]
        moved = sum(planned[:2]) / sum(counted[:2]) - 1
        print(f"  L2 {size}: planned {texts[0]}; line by line {texts[1]}; {moved:+.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
