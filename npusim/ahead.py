"""Compile the engine ahead of time: ``python -m npusim.ahead [--any] [FOLDER]``.

The library is checked before it gets its name: on a few calls it has to give what the reference
gives, instruction by instruction. FOLDER is that of the engine's sources unless it is stated.
``make engine`` does this for this machine's processor, building a wheel with ``--any``: one
library for each level of processors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from npusim import ops
from npusim.base.atomic_files import replacing
from npusim.base.dtypes import FP16
from npusim.call.spec import spec
from npusim.kernels.estimate.pipeline import followed, plain_core, times
from npusim.kernels.estimate.work import Course, Work
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.timing import compile_once
from npusim.machine.timing.fast import library
from npusim.machine.timing.run import ENGINES
from npusim.machine.timing.trace import core_starts

#: Asks for a library for each level of processors; compiles in this very process.
ANY, HERE = "--any", "--here"


def main(arguments: list[str]) -> int:
    """Compile; with ``--check`` only compare the engines of this process, 1 where they differ.

    ``--any`` compiles for processors of every level that this machine can check. ``--cache``
    compiles for processes to come.
    """
    if arguments == ["--check"]:
        return int(differs())
    if arguments == ["--cache"]:
        into_cache()
        return 0
    if HERE not in arguments:
        return _in_child(arguments)
    folder = next((Path(word) for word in arguments if not word.startswith("-")), library.HERE)
    levels = library.levels()[: None if ANY in arguments else 1]
    sys.stderr.write(f"compiling the engine for {', '.join(levels)}: about a minute\n")
    libraries = library_in(folder, levels)
    sys.stderr.write("".join(f"compiled {file}\n" for file in libraries))
    return 0


def _in_child(arguments: list[str]) -> int:
    """The status of a process that compiles, and takes no notice of a library that is there."""
    command = [sys.executable, "-m", "npusim.ahead", HERE, *arguments]
    environment = library.engine_of_children("numba") | library.tuning()
    return subprocess.run(command, env=environment, check=False).returncode


def into_cache() -> None:
    """Compile into the cache: a library, or Numba's code where there is no C compiler."""
    from npusim.machine.timing.fast import ahead  # noqa: PLC0415 - imports a compiler

    if not ahead.can_link() or _in_child([str(library.folder())]):
        ahead.translated(examples())
    compile_once.finish()


def library_in(folder: Path, levels: Sequence[str]) -> list[Path]:
    """Compile libraries of these sources into ``folder``, check them, and give them their names.

    There is one for each of ``levels`` of processors. Raises ``OSError`` or
    ``subprocess.CalledProcessError`` where there is no C compiler, it fails, or a library does not
    give what the reference gives.
    """
    from npusim.machine.timing.fast import ahead  # noqa: PLC0415 - imports a compiler

    module = ahead.translated(examples())
    libraries = []
    for level in levels:
        libraries.append(folder / library.name(level))
        with replacing(libraries[-1]) as part:
            ahead.link(module, level, part)
            command = [sys.executable, "-m", "npusim.ahead", "--check"]
            subprocess.run(command, check=True, env=library.engine_of_children(str(part)))
    for other in {*folder.glob("engine-*.so")}.difference(libraries):
        other.unlink()
    return libraries


def examples() -> dict[Callable[..., None], tuple[Any, ...]]:
    """Every entry with arguments of the types that it always has."""
    from npusim.kernels.estimate.course_core import SLOTS, follow  # noqa: PLC0415
    from npusim.kernels.estimate.pipeline_core import SCRATCH, estimate  # noqa: PLC0415
    from npusim.machine.timing.fast.engine import FastEngine  # noqa: PLC0415
    from npusim.machine.timing.fast.kernel import interpret  # noqa: PLC0415
    from npusim.machine.timing.fast.l2 import FastL2, Place, touch  # noqa: PLC0415
    from npusim.machine.timing.fast.path import read_once, walk  # noqa: PLC0415

    device, sizes = load_device("tiny"), (16, 16)
    a, b, c = (Tensor(name, sizes, FP16, "out" if name == "c" else "in") for name in "abc")
    tiling = Tiling(base_m=16, base_n=16, base_k=16)
    program = build(Matmul(tiling, a, b, c), device, (0,))
    l2 = FastL2(device.l2)
    engine = FastEngine(program, l2, core_starts(program), keep_spans=True)
    code, column, table = engine.tables.code, np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    return {
        interpret: (engine.shape, code, engine.state, l2.cache, engine.histories, 1),
        touch: (l2.cache, Place(0, 0, 1, 1, 0), False, engine.state.cost),
        walk: (code, (0, 0, 0), table, table, column, column, column),
        read_once: (code, l2.cache, 0, column, table, engine.state.cost),
        estimate: (_work(), column, *(np.empty(1),) * 3, np.empty(SCRATCH)),
        follow: (_course(), np.empty(1), np.empty(1), np.empty(SLOTS)),
    }


def _work() -> Work:
    """Two hundred candidates of nobody's."""
    draw = np.random.default_rng(1)
    columns = [draw.integers(1, 9, 200).astype(np.float64) for _ in Work._fields]
    return Work(*columns)._replace(lag=draw.integers(-1, 3, 200).astype(np.float64))


def _course() -> Course:
    """Two hundred candidates of nobody's."""
    draw = np.random.default_rng(2)
    columns = [draw.integers(1, 9, 200).astype(np.float64) for _ in Course._fields]
    few = {name: draw.integers(0, 3, 200).astype(np.float64) for name in ("slow", "rest", "over")}
    return Course(*columns)._replace(**few, lag=draw.integers(-1, 3, 200).astype(np.float64))


def differs() -> bool:
    """Whether the engines tell different things of the same calls, or estimates differ."""
    work = _work()
    for few in (10, 200):
        if times(work, few).tolist() != times(work, few, core=plain_core()).tolist():
            return True
    if followed(_course()).tolist() != followed(_course(), core=plain_core("course_core")).tolist():
        return True
    dy, x, weight = (
        spec(shape, "fp16") for shape in ((1, 40, 14, 14), (1, 24, 14, 14), (40, 24, 3, 3))
    )

    def told(engine: str) -> list[object]:
        results = [
            ops.convolution_backward(
                dy, x, weight, padding=1, device=device, engine=engine, start=start, timeline=True
            )
            for device, start in (("ascend910b2", "cold"), ("tiny", "warm"))
        ]
        return [
            [value.tolist() if isinstance(value, np.ndarray) else value for value in columns]
            for result in results
            for run in result.runs
            if run.timeline
            for columns in ([run.cycles, run.pipes, run.traffic], structs.astuple(run.timeline))
        ]

    first, *others = (told(engine) for engine in ENGINES)
    return any(other != first for other in others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
