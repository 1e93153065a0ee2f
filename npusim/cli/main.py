"""Entry point of ``npusim``: finds the command, runs it, turns errors into one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npusim.base.errors import NpusimError, as_npusim_error, shown
from npusim.base.records import collect_seldom
from npusim.base.resources import leave_out_threads
from npusim.base.streams import Output, OutputError, ensure_stream
from npusim.cli.commands import COMMANDS, arranged_line, command_module
from npusim.cli.completion import answer
from npusim.cli.parser import IDENTITY, Parser
from npusim.version import __version__

#: Exit statuses: a check that failed, an error, an interrupt, a reader that went away, SIGTERM. The
#: last three are what a shell reports for the signals.
FAILED, ERROR, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 130, 141, 143


class Terminated(BaseException):
    """SIGTERM came: what is being written is removed on the way out, as after an interrupt."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; ``argv`` is without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # before NumPy is imported
        collect_seldom()
        if "run" not in words or "--timing-only" in words:  # which compute no numbers
            leave_out_threads()
    ensure_stream("stderr")
    if sys.stdout is None:  # closed by `>&-`
        return _fail("standard output is closed; redirect it to a file or to /dev/null", words)
    output: Any = Output(sys.stdout)
    try:
        with contextlib.redirect_stdout(output), _terminable(), _told_plainly():
            if argv is None:  # a shell asks of the command itself
                answer(parser)
            status = _dispatch(words)
            output.flush()
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, Terminated) as stop:
        state = str(stop) or "files that were there are as they were"
        print(f"npusim: stopped; {state}", file=sys.stderr)
        return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
    except MemoryError as error:
        return _fail(
            f"out of memory: {error or 'no size known'}; --timing-only needs no arrays, and a "
            "smaller problem needs less",
            words,
        )
    except (NpusimError, OSError) as error:
        if isinstance(error, OutputError):
            _drop_stdout()
        return _fail(_os_error_text(error) if isinstance(error, OSError) else str(error), words)
    return status


def _os_error_text(error: OSError) -> str:
    """The refusal of the operating system: of the file, or else the folder of this process.

    Python asks for that folder where a path is relative, and then names no file.
    """
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and not _folder_is_there():
        return "the folder in which npusim was started is gone; change into one that exists"
    return str(as_npusim_error(error))


def _folder_is_there() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def parser(words: Sequence[str]) -> Parser:
    """The parser of all commands, with the arguments of those that the line ``words`` names."""
    top = Parser(
        prog="npusim",
        description="Cycle-approximate NPU simulator: numbers, cycles and traffic of operators.",
        epilog="'npusim COMMAND --help' explains a command.",
        line=words,
    )
    top.identity = IDENTITY
    version = f"npusim {__version__}\n{IDENTITY}"
    top.add_argument("--version", action="version", version=version)
    _add_debug(top)
    top.add_commands("command", title="commands")
    for name, about in COMMANDS.items():
        command = top.add_command(name, about, about)
        command.set_defaults(leaf=command)
        _add_debug(command)
        if name in words:
            command_module(name).add_arguments(command)
    return top


def _add_debug(target: Parser) -> None:
    target.add_argument(
        "--debug", action="store_true", help="show the traceback of an error (default: no)"
    )


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a line; ``command`` is None where it names none.

    Raises ``ArgumentError`` for what no command takes, and ``SystemExit`` after --help.
    """
    named = next((word for word in words if word in COMMANDS), None)
    line = list(words) if named is None else arranged_line(named, words)
    top = parser(line)
    arguments: argparse.Namespace
    arguments, extras = top.parse_known_args(line)
    if extras:
        (arguments.leaf if arguments.command else top).reject(extras)
    return arguments


def _dispatch(words: list[str]) -> int:
    """Parse and execute; argparse leaves by ``SystemExit`` after --help and --version."""
    try:
        arguments = parsed(words)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    if arguments.command is None:
        parser(words).print_help(sys.stderr)
        return ERROR
    return command_module(arguments.command).execute(arguments) or 0


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated`` meanwhile; only a main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """Meanwhile warnings of npusim's own kinds are one line, without a place in the code."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
            if category.__module__.startswith("npusim."):
                print(f"npusim: warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *place, **rest)

        warnings.showwarning = show
        yield


def _fail(message: str, words: list[str]) -> int:
    """Print an error, with its traceback where asked for; parsing may have failed, so by word."""
    if "--debug" in words:
        traceback.print_exc()
    print(f"npusim: error: {shown(message)}", file=sys.stderr)
    return ERROR


def _drop_stdout() -> None:
    """Let the interpreter's last flush of stdout go nowhere instead of failing once more."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without descriptor needs no care
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
