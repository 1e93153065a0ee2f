"""The reference of the command line as Markdown: ``python -m tools.command_line FILE``.

``make docs`` writes it as a page of the site; the repository does not keep it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from npusim.cli.commands import COMMANDS
from npusim.cli.main import parser
from npusim.cli.parser import Parser

HEAD = """\
# Command line

`npusim` and `python -m npusim` are the same command. Errors are one line on standard error with
exit status 2; `--debug` shows the traceback. `--json` prints JSON and nothing else on standard
output.

`npusim completion bash` prints what bash needs to complete commands, options and the names of
devices, workloads and layers; so do `zsh` and `fish`. Put `eval "$(npusim completion bash)"` into
the shell's start file (fish: `npusim completion fish | source`).
"""

LISTS = """\
```sh
npusim devices show ascend910b2
npusim workloads show resnet50
npusim ops show convolution_backward --device ascend310p
```
"""


def page() -> str:
    """The whole page: a table of commands, and a chapter per command."""
    rows = [(f"`npusim {name}`", about) for name, about in COMMANDS.items()]
    parts = [HEAD, table(("command", "what it does"), rows), LISTS]
    for name in COMMANDS:
        parts.extend(chapters(parser([name]).commands[name], set()))
    return "\n".join(parts)


def chapters(command: Parser, shown: set[str]) -> Iterator[str]:
    """A chapter per command: what it does, and a table of options per group.

    Tables in ``shown`` are left out: operators have many options in common.
    """
    about = (command.description or "").strip().removesuffix(".")
    yield f"## {command.prog}\n\n{about[:1].upper()}{about[1:]}.\n"
    for group in command._action_groups:  # argparse lists them nowhere else
        rows = [
            (f"`{spelling(action)}`", as_markdown(action.help or ""))
            for action in group._group_actions
            if action.dest != "help" and not isinstance(action, argparse._SubParsersAction)
        ]
        title = (group.title or "options").replace("positional arguments", "arguments")
        text = table((title, "meaning"), rows)
        if rows and text not in shown:
            shown.add(text)
            yield text
    for below in command.commands.values():
        yield from chapters(below, shown)


def spelling(action: argparse.Action) -> str:
    """An option as a line has it, such as ``--cores GROUPS``."""
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    choices = ",".join(map(str, action.choices or [action.dest]))
    return f"{names} {action.metavar or f'{{{choices}}}'}".strip()


def as_markdown(text: str) -> str:
    """A help as Markdown, in one line."""
    return re.sub(r"([|<>*])", r"\\\1", " ".join(text.split())).replace("%%", "%")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
