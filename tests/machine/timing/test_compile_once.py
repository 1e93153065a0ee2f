"""Where the engine is not compiled: who compiles it, what is kept, and that estimates agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from npusim import ops
from npusim.base.workers import Workers
from npusim.call.spec import spec
from npusim.kernels.estimate import pipeline
from npusim.kernels.estimate.work import Course, Work
from npusim.machine.timing import compile_once
from npusim.machine.timing.fast import library

ROOT = Path(__file__).parents[3]

#: Prints the cycles of two gradients, their tilings chosen, and which libraries it took.
TOLD = """
import json, sys
import npusim
a, w = npusim.spec((1, 40, 14, 14), "fp16"), npusim.spec((40, 40, 3, 3), "fp16")
cycles = npusim.ops.convolution_backward(a, a, w, padding=1, device="ascend910b2").cycles
print(json.dumps([cycles, [name for name in ("numba", "simpy") if name in sys.modules]]))
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


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """No engine is compiled until the compiler has run; what happened, in order."""
    happened: list[str] = []
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    library.folder.cache_clear()
    monkeypatch.setattr(compile_once, "ready", lambda: "compiled" in happened)
    monkeypatch.setattr(compile_once, "_compile", lambda: happened.append("compiled"))
    yield happened
    library.folder.cache_clear()


def test_the_first_process_compiles_and_says_so(
    no_engine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    compile_once.require()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("npusim compiles its engine, once on this machine")
    assert last == "compiled"
    compile_once.require()
    assert no_engine == ["compiled"]
    assert capsys.readouterr().err == ""


def test_a_compiler_that_fails_is_told(
    no_engine: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_once, "_compile", lambda: None)
    compile_once.require()
    assert capsys.readouterr().err.endswith("it is compiled in this process\n")


def test_a_helper_does_not_compile(no_engine: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that started it did, or could not: all helpers would try it once more."""
    monkeypatch.setattr(compile_once, "is_helper", lambda: True)
    compile_once.require()
    assert no_engine == []


def test_what_starts_helpers_compiles_first(no_engine: list[str]) -> None:
    assert dict(Workers(2).each(abs, [-1, -2], str)) == {0: 1, 1: 2}
    assert no_engine == ["compiled"]


def test_the_compiler_is_that_of_this_npusim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a script beside npusim, and in a folder with another one.

    It was another npusim that compiled, or none: "the compiler failed", in every process.
    """
    other = tmp_path / "npusim"
    other.mkdir()
    (other / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "cache")
    library.folder.cache_clear()
    code = (
        "import npusim\nfrom npusim.machine.timing.fast import library\n"
        "print(library.HERE, library.folder(), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        **library.compiler(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    here = [str(library.HERE), str(library.folder().absolute())]
    library.folder.cache_clear()
    assert done.stdout.splitlines() == here
    assert here[1].startswith(str(tmp_path / "cache"))


def test_a_process_waits_for_the_one_that_compiles(
    no_engine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock is asked for by a thread, whose file is another, while this one holds it."""
    waiting = Thread(target=compile_once.require)
    with compile_once._locked():
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        no_engine.append("compiled")  # by the process that holds the lock
    waiting.join(10)
    assert no_engine == ["compiled"]
    assert capsys.readouterr().err.startswith("another process compiles the engine")


def test_the_compiler_gives_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 0.5\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(compiler))
    monkeypatch.setattr(compile_once, "_SIGN_S", 0.1)
    compile_once._compile()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("still compiling after ") for line in lines)


def test_the_switch_names_a_library_or_does_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.found.cache_clear()
    for value, expected in (("numba", None), (str(tmp_path), tmp_path)):
        monkeypatch.setenv(library.SWITCH, value)
        library.found.cache_clear()
        assert library.found() == expected
        assert compile_once.ready()
    library.found.cache_clear()


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    """It would take its arguments for others: times were wrong, and nothing said so."""
    stale = tmp_path / "engine-0123456789abcdef-linux-x86_64.so"
    line = "run matmul --device tiny --m 16 --k 16 --n 16 --timing-only"
    done = subprocess.run(
        [sys.executable, "-m", "npusim", *line.split()],
        env=library.engine_of_children(str(stale)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"npusim: error: NPUSIM_ENGINE is '{stale}', which was not")
    assert f"npusim.ahead {tmp_path}` compiles it anew" in done.stderr


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


def test_followed_cores_take_the_same_uncompiled() -> None:
    draw = np.random.default_rng(5)
    columns = [draw.integers(1, 9, 300).astype(np.float64) for _ in Course._fields]
    few = {name: draw.integers(0, 3, 300).astype(np.float64) for name in ("slow", "rest", "over")}
    course = Course(*columns)._replace(**few, lag=draw.integers(-1, 3, 300).astype(np.float64))
    plain = pipeline.followed(course, core=pipeline.plain_core("course_core"))
    assert plain.tolist() == pipeline.followed(course).tolist()
    assert len(set(plain.tolist())) > 50
    stopped = pipeline.followed(course, np.full(300, 100.0))
    assert (stopped <= plain).all()
    assert (stopped[plain > 100] > 100).all()


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
def test_the_first_run_compiles_for_all_later_ones(tmp_path: Path, compiler: str) -> None:
    """With a C compiler it leaves a library, without one what Numba compiled."""

    def run() -> tuple[Any, str]:
        environment = fresh(tmp_path, CC=compiler)
        done = subprocess.run(
            [sys.executable, "-c", TOLD], env=environment, check=True, capture_output=True
        )
        return json.loads(done.stdout), done.stderr.decode()

    (first, used), said = run()
    assert said.startswith("npusim compiles its engine")
    assert bool([*tmp_path.glob("compiled-*/engine-*.so")]) == (compiler == "cc")
    (again, used_again), said_again = run()
    assert again == first == cycles_here()
    assert used == used_again == ([] if compiler == "cc" else ["numba"])
    assert said_again == ""


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
