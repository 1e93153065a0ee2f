"""Stores: within their bound whatever is written, by several processes, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.base.resources import user_cache
from npusim.base.workers import Workers
from npusim.cli.main import main
from npusim.machine.device.catalog import load_device
from npusim.machine.timing.fast import library
from npusim.reuse import store as stores
from npusim.reuse.answers import Answers, answers_in
from npusim.reuse.store import Store, StoreWarning, opened

#: Writes 400 answers of its own name, some of them in one go, each of random bytes.
WRITER = """
import os, sys
from npusim.reuse.store import Store
with Store(sys.argv[1], "test", int(sys.argv[3])) as kept:
    for i in range(0, 400, 4):
        keys = [f"{sys.argv[2]}{i + k}" for k in range(4)]
        kept.put([(key, key + os.urandom(500).hex()) for key in keys])
"""


def size(file: Path) -> int:
    return file.stat().st_size


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NPUSIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_answers_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "some" / "where" / "kept.sqlite"
    with Store(file, "test") as one:
        one.put([("a", 1), ("b", "2" * 10_000)])
        one.put([("a", 3)])
        assert one.get("c") is None
    with Store(file, "test") as again:
        assert (again.get("a"), again.get("b")) == (3, "2" * 10_000)
        assert len(again) == 2
        assert again.clear() == 2
        assert again.get("a") is None
    with Store(None, "test") as memory:
        memory.put([("a", [1, "x"])])
        assert memory.get("a") == [1, "x"]


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_a_store_never_grows_past_its_bound(tmp_path: Path, batch: int) -> None:
    file, most = tmp_path / "kept.sqlite", 256 * 1024
    with Store(file, "test", most) as kept:
        for begin in range(0, 1400, batch):
            kept.put((f"{i}", os.urandom(700).hex()) for i in range(begin, begin + batch))
            assert size(file) <= most
        assert kept.bytes_used <= most
        assert len(kept) > 50
        assert kept.get("0") is None, "the oldest made room"
        assert kept.get(f"{begin + batch - 1}") is not None
    assert size(file) <= most


def test_what_cannot_fit_is_not_kept(tmp_path: Path) -> None:
    with Store(tmp_path / "kept.sqlite", "test", 128 * 1024) as kept:
        kept.put([("small", 1)])
        kept.put([("large", os.urandom(300 * 1024).hex())])
        assert kept.get("large") is None
        kept.put([("after", 2)])
        assert kept.get("after") == 2


@pytest.mark.parametrize("most", [64 << 20, 256 * 1024])
def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, most: int) -> None:
    file = tmp_path / "kept.sqlite"
    words = [sys.executable, "-c", WRITER, str(file)]
    writers = [subprocess.Popen([*words, name, str(most)]) for name in ("a", "b", "c")]
    assert [one.wait() for one in writers] == [0, 0, 0]
    assert size(file) <= most
    with Store(file, "test", most) as kept:
        found = {f"{n}{i}": kept.get(f"{n}{i}") for n in "abc" for i in range(400)}
        held = {key: value for key, value in found.items() if value is not None}
        assert all(value.startswith(key) for key, value in held.items())
        assert len(held) == len(kept)
        if most > 1 << 20:
            assert len(held) == 1200
        else:
            assert len(held) > 100


def test_what_is_no_such_store_is_refused(tmp_path: Path) -> None:
    text, other, old = (tmp_path / name for name in ("text", "other.sqlite", "old.sqlite"))
    text.write_text("no database at all, but long enough to be looked at by sqlite" * 20)
    Store(other, "something else").__exit__(None, None, None)
    with sqlite3.connect(old) as base:
        base.execute("create table about (schema integer, kind text)")
        base.execute("insert into about values (1, 'test')")
    base.close()
    for file, message in (
        (text, "cannot be used"),
        (other, "has something else in schema 4, not test"),
        (old, "has test in schema 1, not test in schema 4"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Store(file, "test")
    assert text.read_text().startswith("no database")


def test_a_copy_of_the_process_does_not_inherit_the_open_file(tmp_path: Path) -> None:
    """SQLite would take the locks of the other process for the copy's own."""
    file = tmp_path / "a.sqlite"
    with Store(file, "test") as kept, Store(None, "test") as in_memory:
        kept.put([("a", 1)])
        in_memory.put([("c", 3)])
        answers = dict(Workers(2).each(partial(_files_then_answer, file), ["a", "a"], str))
        assert answers == {0: ([], 1), 1: ([], 1)}
        assert (kept.get("a"), kept.get("from a copy"), in_memory.get("c")) == (1, True, 3)


def _files_then_answer(file: Path, key: str) -> tuple[list[str], object]:
    """The store's files that are open here, and then an answer of the store."""
    places = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    with Store(file, "test") as kept:
        kept.put([("from a copy", True)])
        return [place for place in places if place.startswith(str(file))], kept.get(key)


#: Answers of this test alone.
_ANSWERS: Answers[str] = Answers("answer of a test", 64, str, str)


def _keeps(file: Path, item: str) -> str:
    with answers_in(file):
        _ANSWERS.keep(item, load_device("tiny"), (), f"answer of {item}")
    return item


def test_what_helpers_keep_is_there_when_they_have_ended(tmp_path: Path) -> None:
    """They open the file once, and write what waits before they end."""
    file, items = tmp_path / "kept", [f"item {n}" for n in range(20)]
    with Workers(2) as workers:
        assert len([*workers.each(partial(_keeps, file), items, str)]) == 20
    with answers_in(file):
        found = [_ANSWERS.find(item, load_device("tiny")) for item in items]
    assert [each and each.answer for each in found] == [f"answer of {item}" for item in items]


def test_a_full_disk_costs_no_answer(tmp_path: Path) -> None:
    """SQLite says the same of its bound and of the disk; here the bound is far away."""
    file = tmp_path / "a.sqlite"
    with Store(file, "test") as kept:
        kept.put((f"k{i}", random.Random(i).randbytes(1000).hex()) for i in range(50))
        pages = kept._base.execute("pragma page_count").fetchone()[0]
        kept._base.execute(f"pragma max_page_count = {pages}")
        with pytest.warns(StoreWarning, match=r"a.sqlite' cannot be written \(.* full\)"):
            kept.put([("more", random.Random(0).randbytes(10_000).hex())])
        kept.put([("more", random.Random(0).randbytes(10_000).hex())])  # one word is enough
        assert len(kept) == 50
        kept._base.execute(f"pragma max_page_count = {2 * pages}")
        kept.put([("more", "there is room again")])
        assert kept.get("more") == "there is room again"


def test_a_store_that_was_damaged_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with Store(file, "test") as kept:
        kept.put((f"k{i}", random.Random(i).randbytes(1000).hex()) for i in range(50))
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    with (
        Store(file, "test") as kept,
        pytest.raises(ArgumentError, match=r"cannot be read .* remove this one"),
    ):
        [kept.get(f"k{i}") for i in range(50)]


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "no folder" / "tuned.sqlite"
    place.parent.write_text("a file")
    monkeypatch.setattr(stores, "usual_file", lambda name: place)
    with pytest.warns(StoreWarning, match=f"{place}; nothing is kept"):
        tunings = opened("", "tuned")
    with tunings as kept:
        kept.put([("c", 7)])
        assert kept.get("c") == 7


def test_a_damaged_store_of_the_cache_can_be_cleared(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = stores.usual_file("tuned")
    place.write_text("no database at all, but long enough to be looked at by sqlite" * 20)
    assert main(["cache", "clear", "tuned"]) == 0
    assert "removed the file (file is not a database)" in capsys.readouterr().out
    assert not place.exists()


def test_a_store_of_the_cache_from_another_version_begins_anew(home: Path) -> None:
    file = stores.usual_file("tuned")
    assert file.is_relative_to(home)
    with sqlite3.connect(file) as base:
        base.execute("create table found (problem text)")
    base.close()
    with opened("", "tuned") as kept:
        kept.put([("c", [7, "x"])])
    with opened("", "tuned") as again:
        assert len(again) == 1
        assert (again.get("c"), again.get("d")) == ([7, "x"], None)


def test_a_store_of_the_cache_that_was_begun_is_gone_on_with(home: Path) -> None:
    """Killed at its first steps, or at them now: other processes may have the file open."""
    file = stores.usual_file("tuned")
    base = sqlite3.connect(file)
    base.execute("pragma journal_mode = wal")
    before = file.stat().st_ino
    assert file.stat().st_size > 0
    with opened("", "tuned") as kept:
        kept.put([("c", 7)])
    base.close()
    assert file.stat().st_ino == before
    with opened("", "tuned") as again:
        assert again.get("c") == 7


@pytest.mark.parametrize("blocks", [1, 9, 40])
def test_a_store_of_the_cache_survives_a_full_disk(home: Path, blocks: int) -> None:
    """The disk has no room for what SQLite writes beside a store before it can read it."""
    with opened("", "tuned") as kept:
        kept.put((f"k{i}", random.Random(i).randbytes(1000).hex()) for i in range(50))
    script = """
import warnings
from npusim.reuse.store import opened
warnings.simplefilter("ignore")
with opened("", "tuned") as kept:
    kept.put([("more", "x" * 10_000_000)])
"""
    words = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", sys.executable, "-c", script]
    subprocess.run(words, check=True)
    with opened("", "tuned") as kept:
        assert len(kept) >= 50


def test_the_command_shows_and_clears(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, engine = home / "package" / "compiled-4567", home / "package" / "engine.so"
    own.mkdir(parents=True)
    monkeypatch.setattr(library, "folder", lambda: own)
    monkeypatch.setattr(library, "found", lambda: engine)
    with opened("", "tuned") as kept:
        kept.put((str(i), i) for i in range(5))
    code = user_cache() / "compiled-0123"
    code.mkdir()
    (code / "one.nbc").write_bytes(b"x" * 2048)
    assert main(["cache", "info", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["tuned"]["count"], rows["sweeps"]["count"]) == (5, 0)
    assert rows["tuned"]["bytes"] >= 4096
    assert (rows["compiled"]["count"], rows["compiled"]["bytes"]) == (1, 2048)
    (own / "engine-4567.so").write_bytes(b"x" * 1024)
    assert main(["cache", "info"]) == 0
    *table, place, runs, compiled = capsys.readouterr().out.splitlines()
    assert place == f"in {user_cache()}", "by itself: it may be long"
    assert runs == f"the engine that runs is {engine}"
    assert compiled == f"code is compiled into {own.parent}"
    assert table[-2].split()[-5:-2] == ["2", "3.0", "KiB"]
    assert all(len(line) <= 80 for line in table)
    assert [line.split()[-1] for line in table[2:4]] == ["sweeps.sqlite", "tuned.sqlite"]
    assert "1.0 GiB" in table[2]
    assert main(["cache", "clear", "tuned"]) == 0
    assert capsys.readouterr().out == "tuned: removed 5\n"
    assert code.exists()
    assert main(["cache", "clear"]) == 0
    assert not code.exists()
    assert not own.exists()


def test_a_store_that_is_none_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "tune"]) == 2
    assert "unknown store 'tune'; did you mean 'tuned'" in capsys.readouterr().err


def test_answers_of_long_work_are_written_together(tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    with Store(file, "test") as kept:
        kept._wrote -= 10
        kept.put_soon(*((f"{number}", number) for number in range(8)))
        with Store(file, "test") as other:
            assert [other.get(f"{number}") for number in range(8)] == [*range(8)]
        kept.put_soon(("soon", 1))
        with Store(file, "test") as other:
            assert other.get("soon") is None
    with Store(file, "test") as other:
        assert other.get("soon") == 1


def test_numbers_of_numpy_are_kept_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    with Store(tmp_path / "kept.sqlite", "test") as kept:
        kept.put([("a", [np.float64(0.5), np.int64(3)])])
        assert kept.get("a") == [0.5, 3]
        with pytest.warns(StoreWarning, match="numbers of 64 bits"):
            kept.put([("b", 1 << 70)])
        assert kept.get("b") is None
