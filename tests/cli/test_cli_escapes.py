"""Control characters in files, names of files and options do not reach the terminal."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from npusim.cli.main import main

#: What clears the screen, what sets the title, and what fills the clipboard.
ESCAPES = ("\x1b[2J", "\x1b]0;title\x07", "\x9d52;c;aGk=\x9c")

LAYERS = (
    "description: a network\nlayers:\n  {name}: {{cin: 16, cout: 16, spatial: [6], kernel: 3}}\n"
)
RESULT = '{"operator": "TEXT", "kernels": []}'
TABLE = "id,chip,op,M,N,K,dtype_in,time_kind,time_us\n{text},910B1,matmul,64,64,64,fp16,kernel,3\n"


def yaml_text(text: str) -> str:
    return '"{}"'.format("".join(f"\\x{ord(c):02x}" for c in text))


@pytest.mark.parametrize("text", ESCAPES, ids=["clear", "title", "clipboard"])
@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("net net.yaml --device tiny", LAYERS.format(name="TEXT")),
        ("workloads show net.yaml", LAYERS.format(name="a").replace("a network", "TEXT")),
        ("devices show net.yaml", "name: mine\nbase: tiny\ndescription: TEXT\nsources: {}\n"),
        ("sweep net.yaml", "operator: TEXT\nvary: {groups: [1, 2]}\n"),
        ("compare call.json call.json", RESULT),
        ("validate --data net.yaml", TABLE.format(text="RAW")),
        ("devices show tiny --set memories.L1.size=RAW", ""),
        ("net RAW.yaml --device tiny", ""),
        ("run matmul --device RAW", ""),
    ],
)
def test_nothing_that_a_terminal_obeys(
    text: str,
    words: str,
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    quoted = yaml_text(text)
    if content == RESULT:
        quoted = "".join(f"\\u{ord(c):04x}" for c in text)
    for name in ("net.yaml", "call.json"):
        Path(name).write_text(content.replace("TEXT", quoted).replace("RAW", text))
    assert main([word.replace("RAW", text) for word in shlex.split(words)]) == 2
    told = "".join(capsys.readouterr())
    assert re.search(r"\\x(1b|9d)|control character", told), "it says what is wrong"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", told)


def test_a_name_of_a_file_is_shown_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(f"{ESCAPES[0]}.yaml")
    file.write_text(LAYERS.format(name="a"))
    words = ["net", str(file), "--device", "tiny", "--csv", f"{ESCAPES[0]}.csv"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.count("\\x1b[2J") == 2
    assert "\x1b" not in told
