"""What shells are told when a line is to be completed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from npusim.cli.main import main


def completions(line: str) -> set[str]:
    """What argcomplete answers, as a shell asks for it."""
    told = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "npusim"],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    return {word.strip() for word in done.stdout.split("\n") if word.strip()}


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("npusim s", {"sweep"}),
        ("npusim run conv2d_back", {"conv2d_backprop_filter"}),
        ("npusim run matmul --timing", {"--timing-only"}),
        ("npusim net res", {"resnet18", "resnet50"}),
        ("npusim net resnet50 --device ascend910b", {"ascend910b1", "ascend910b2"}),
        ("npusim run matmul --device tiny --set memories.L1", {"memories.L1.size="}),
        ("npusim sweep matmul --device ascend910 --vary l2.", {"l2.read=", "l2.size="}),
        ("npusim run convolution_backward --layer resnet50/res2_3", {"resnet50/res2_3x3"}),
    ],
)
def test_lines_are_completed(line: str, among: set[str]) -> None:
    found = completions(line)
    assert among <= found
    assert all(word.startswith(line.rpartition(" ")[2]) for word in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "npusim" in out
    assert "_ARGCOMPLETE" in out
