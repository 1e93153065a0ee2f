"""Where npusim keeps things between runs, and whom it trusts there."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from npusim.base import resources
from npusim.base.errors import ArgumentError
from npusim.base.resources import user_cache

PLACES = ("NPUSIM_CACHE", "XDG_CACHE_HOME", "HOME")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without a home folder; the folder that stands for the temporary files."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(resources, "_user", lambda: "somebody")
    return tmp_path


def test_the_variables_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in PLACES:
        monkeypatch.setenv(name, str(tmp_path / name))
    assert user_cache() == tmp_path / "NPUSIM_CACHE"
    monkeypatch.delenv("NPUSIM_CACHE")
    assert user_cache() == tmp_path / "XDG_CACHE_HOME" / "npusim"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == tmp_path / "HOME" / ".cache" / "npusim"


def test_a_named_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NPUSIM_CACHE", str(file))
    with pytest.raises(ArgumentError, match=r"NPUSIM_CACHE is .* name another folder"):
        user_cache()


def test_the_folder_among_temporary_files_is_closed_to_others(nowhere: Path) -> None:
    folder = user_cache()
    assert folder == nowhere / "npusim-somebody"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert user_cache() == folder


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users and modes of POSIX")
@pytest.mark.parametrize("planted", ["open", "link", "another's", "file"])
def test_a_planted_folder_is_not_trusted(
    nowhere: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = nowhere / "npusim-somebody"
    if planted == "link":
        (nowhere / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(nowhere / "elsewhere")
    elif planted == "file":
        place.touch(mode=0o700)
    else:
        place.mkdir(mode=0o700)
    if planted == "open":
        place.chmod(0o777)
    if planted == "another's":
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    folder = user_cache()
    assert folder != place
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
