"""While the engine is not compiled: who runs what, what is compiled, and that cycles agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim import ops
from npusim.base.errors import ProgramError
from npusim.call.spec import spec
from npusim.kernels.estimate import pipeline
from npusim.kernels.estimate.work import Work
from npusim.machine.timing import standby
from npusim.machine.timing.fast import library
from npusim.machine.timing.l2 import L2State
from npusim.machine.timing.run import new_l2, time_program
from tests.machine.timing.random_programs import random_case
from tests.sampled import some

ROOT = Path(__file__).parents[3]

#: Prints the cycles of two gradients, their tilings chosen, and which libraries it took.
TOLD = """
import json, sys
from npusim.kernels.estimate import pipeline
from npusim.machine.timing import standby
standby.start = lambda: started.append(1)
started = []
import npusim
a, w = npusim.spec((1, 40, 14, 14), "fp16"), npusim.spec((40, 40, 3, 3), "fp16")
cycles = npusim.ops.convolution_backward(a, a, w, padding=1, device="ascend910b2").cycles
used = [name for name in ("numba", "simpy") if name in sys.modules]
print(json.dumps([cycles, used, len(started)]))
"""


def fresh(cache: Path, **variables: str) -> dict[str, str]:
    """The environment of a user of whom nothing is compiled, and nothing else kept."""
    kept = {name: value for name, value in os.environ.items() if name != library.SWITCH}
    stores = tempfile.mkdtemp(dir=cache)
    return kept | {"NUMBA_CACHE_DIR": str(cache), "NPUSIM_CACHE": stores} | variables


def cycles_here() -> int:
    a, w = spec((1, 40, 14, 14), "fp16"), spec((40, 40, 3, 3), "fp16")
    return ops.convolution_backward(a, a, w, padding=1, device="ascend910b2").cycles


#: For tests of what happens where nothing is compiled.
nothing_compiled = pytest.mark.skipif(
    any((library.HERE / library.name(level)).is_file() for level in library.levels()),
    reason="the engine is compiled beside its sources",
)


@pytest.mark.compiled
@nothing_compiled
def test_a_small_program_runs_on_the_reference_and_starts_the_compiler(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD], env=fresh(tmp_path), check=True, capture_output=True
    )
    cycles, used, started = json.loads(done.stdout)
    assert used == ["simpy"]
    assert started
    assert cycles == cycles_here()
    assert done.stderr == b""


@pytest.fixture
def not_ready(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No engine is compiled until somebody waits; what happened, in order."""
    happened: list[str] = []
    monkeypatch.setattr(standby, "ready", lambda: "wait" in happened)
    monkeypatch.setattr(standby, "start", lambda: happened.append("start"))
    monkeypatch.setattr(standby, "wait", lambda: happened.append("wait"))
    monkeypatch.setattr(standby, "_simulated", [0])
    return happened


@pytest.mark.drawn
@pytest.mark.compiled
def test_the_engines_hand_over_the_l2(
    not_ready: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of one call, the first on the reference, the others on the compiled engine."""
    handed = 0
    for seed in range(some(60)):
        case = random_case(seed)
        not_ready.clear()
        first = case.programs[0].instructions
        monkeypatch.setattr(standby, "SMALL", first)
        standby._simulated[0] = 0
        mixed, whole = new_l2(case.device, "fast"), new_l2(case.device, "simpy")
        assert isinstance(mixed, standby.StandbyL2)
        for l2 in (mixed, whole):
            l2.preload("warm", 5000)
        for number, program in enumerate(case.programs):
            try:
                expected = time_program(program, whole, timeline=False)
            except ProgramError:  # both say so: `test_engines_agree`
                break
            found = time_program(program, mixed, timeline=False)
            assert isinstance(mixed.inside, L2State) == (number == 0)
            assert found == expected, f"seed {seed}, program {number}"
            assert mixed.content() == whole.content()
            handed += number
    assert handed > some(60) // 3, "programs that ran behind one of the other engine"


def test_a_process_waits_once_it_has_simulated_much(
    not_ready: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in map(random_case, range(99)) if len(case.programs) > 1)
    program = case.programs[0]
    monkeypatch.setattr(standby, "SMALL", 2 * program.instructions)
    kinds = []
    for _ in range(3):
        l2 = new_l2(case.device, "fast")
        assert isinstance(l2, standby.StandbyL2)
        kinds.append(isinstance(l2.for_program(program), L2State))
        if "wait" in not_ready:
            break
    assert kinds == [True, True, False]


def test_waiting_tells_what_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [3]

    def ready() -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(standby, "ready", ready)
    monkeypatch.setattr(standby, "start", lambda: None)
    monkeypatch.setattr(standby, "_is_coming", lambda: True)
    monkeypatch.setattr(standby, "_TOLD_S", 0.0)
    standby.wait()
    told = capsys.readouterr().err
    first, *still, last = told.splitlines()
    assert first.startswith("npusim compiles its engine, once on this machine")
    assert still
    assert set(still) == {"still compiling after 0 s"}
    assert last == "compiled"
    standby.wait()
    assert capsys.readouterr().err == ""


def test_a_compiler_that_fails_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standby, "ready", lambda: False)
    monkeypatch.setattr(standby, "start", lambda: None)
    monkeypatch.setattr(standby, "_is_coming", lambda: False)
    standby.wait()
    assert capsys.readouterr().err.endswith("it is compiled in this process\n")


def test_one_process_compiles_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with standby.compiling() as first, standby.compiling() as second:
        assert (first, second) == (True, False)
    with standby.compiling() as third:
        assert third


def test_the_switch_names_a_library_or_does_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.found.cache_clear()
    for value, expected in (("numba", None), (str(tmp_path), tmp_path)):
        monkeypatch.setenv(library.SWITCH, value)
        library.found.cache_clear()
        assert library.found() == expected
        assert standby.ready()
    library.found.cache_clear()


def test_what_is_not_contiguous_is_refused() -> None:
    words: list[int] = []
    library.flatten((np.zeros((2, 3), np.int64), (True, 7)), words)
    assert words[1:] == [2, 3, 1, 7]
    read_only = np.broadcast_to(np.ones(1), (1,))
    words.clear()
    library.flatten(read_only, words)
    assert words == [read_only.ctypes.data, 1]
    with pytest.raises(TypeError, match="contiguous"):
        library.flatten(np.zeros((2, 3), np.int64)[:, :2], words)


def test_estimates_of_tilings_are_the_same_uncompiled() -> None:
    draw = np.random.default_rng(3)
    columns = [draw.integers(1, 9, 300).astype(np.float64) for _ in Work._fields]
    work = Work(*columns)._replace(lag=draw.integers(-1, 3, 300).astype(np.float64))
    plain = pipeline.times(work, 300, core=pipeline.plain_core())
    assert plain.tolist() == pipeline.times(work, 300).tolist()
    assert len(set(plain.tolist())) > 50
    few = pipeline.times(work, 10)
    assert few.tolist() == pipeline.times(work, 10, core=pipeline.plain_core()).tolist()
    assert sorted(few)[:10] == sorted(plain)[:10]
    assert np.isinf(few).any()
    some = sorted(plain)[4]
    assert np.isfinite(pipeline.times(work, 10, *[some] * 10)).sum() < np.isfinite(few).sum()


@pytest.mark.compiled
def test_a_full_disk_compiles_without_keeping_what_it_made(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from npusim.machine.timing.fast.jit import compiled\n"
        "@compiled\n"
        "def double(a):\n"
        "    return a + a\n"
        "print(double(21))\n",
        encoding="utf-8",
    )
    cache = tmp_path / "numba"
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-B", str(script)]
    environment = os.environ | {library.SWITCH: "numba", "NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.stdout == "42\n", process.stderr
    assert not [file for file in cache.rglob("*") if file.is_file() and file.stat().st_size]


@pytest.mark.slow
@nothing_compiled
@pytest.mark.parametrize("compiler", ["cc", "false"])
def test_the_compiler_works_in_the_background(tmp_path: Path, compiler: str) -> None:
    """With a C compiler it leaves a library, without one what Numba compiled."""
    code = TOLD.replace("standby.start = lambda: started.append(1)", "")

    def told() -> Any:
        environment = fresh(tmp_path, CC=compiler)
        return json.loads(subprocess.check_output([sys.executable, "-c", code], env=environment))

    first, used, _ = told()
    assert used == ["simpy"]
    for _ in range(1200):
        if any(tmp_path.glob("compiled-*/complete-*")):
            break
        time.sleep(0.5)
    assert bool([*tmp_path.glob("compiled-*/engine-*.so")]) == (compiler == "cc")
    again, used, _ = told()
    assert again == first
    assert used == ([] if compiler == "cc" else ["numba"])


@pytest.mark.slow
def test_the_engine_agrees_however_it_is_compiled(tmp_path: Path) -> None:
    """The tests that compare the engines, with a library and with Numba."""
    make = [sys.executable, "-m", "npusim.ahead", str(tmp_path)]
    subprocess.run(make, env=fresh(tmp_path), check=True, cwd=ROOT)
    (made,) = tmp_path.glob("engine-*.so")
    assert made.name == library.name(library.levels()[0])
    agree = [sys.executable, "-m", "pytest", "tests/machine/timing/test_engines_agree.py"]
    for engine in (str(made), "numba"):
        chosen = library.engine_of_children(engine)
        subprocess.run(
            [*agree, "tests/machine/timing/test_least.py"], env=chosen, check=True, cwd=ROOT
        )
