"""Files are written beside their place and renamed: whatever happens, the old one stays whole."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends without an error.

    It lies in the same folder and ends in the same name, so that suffixes keep their meaning. On
    any exception, a full disk or an interrupt among them, it is removed and ``path`` is as it was.
    A link is followed; what is no regular file (``/dev/stdout``, a pipe) is written to directly.
    Raises ``OSError``, with the file's name, if the folder cannot be written or the disk is full.
    """
    target, special = Path(path), False
    with suppress(FileNotFoundError):
        special = not stat.S_ISREG(target.stat().st_mode)
    if special:
        yield target
        return
    target = target.resolve()
    part = target.with_name(f".part-{secrets.token_hex(8)}-{target.name[-200:]}")
    try:  # a signal may come as soon as the file is there
        part.touch(mode=0o600, exist_ok=False)
        yield part
        part.chmod(_mode(target))
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno is None or error.filename not in (None, part, str(part)):
            raise
        raise OSError(
            error.errno, error.strerror, str(path)
        ) from error  # names the file, not its part
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(path: str | Path, text: str) -> None:
    """Write a whole file in UTF-8; halves of characters, which it cannot hold, as their codes."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def _mode(target: Path) -> int:
    """The permissions of the file that is there, or those of a new one."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
