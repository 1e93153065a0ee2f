"""Files recognised by what they hold, whatever they are called, so that a wrong one is named.

Each door of npusim (a network, a device, a study, a tiling) takes one kind of file. A file of
another kind that is known here is refused as what it is, and the error says which door takes it. A
file that is not recognised goes on to the door's own reader, whose errors name line and key.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection
from enum import Enum
from pathlib import Path

from npusim.base.errors import ArgumentError, shown


class Content(Enum):
    """A kind of file: what it is called in a sentence, and what takes such a file."""

    ONNX = ("an ONNX file", "`npusim net FILE` takes it as a network")
    WORKLOAD = ("a workload file", "`npusim net FILE` takes it as a network")
    TOPOLOGY = ("a SCALE-Sim topology", "`npusim net FILE` takes it as a network")
    DEVICE = ("a device file", "`--device FILE` takes it")
    STUDY = ("a study file", "`npusim sweep FILE` and `npusim explore FILE` take it")
    TILING = ("a tiling", "`--tiling @FILE`, `ascendc:FILE` or `catlass:FILE` takes it")
    GATE = ("a gate file", "`npusim gate FILE` takes it")
    BASELINE = ("a gate's baseline", "`npusim gate FILE --against BASELINE` takes it")
    CONSTANTS = ("a list of figures to fit", "`npusim fit --constants FILE` takes it")
    CHOICES = ("a list of what a profile lacks", "`npusim fit --tilings FILE` takes it")
    RESULT = ("a result in JSON", "`npusim compare A B` takes it")
    TRACE = ("a trace", "it opens in Perfetto")
    INSTRUCTIONS = ("a file of instructions", "`npusim run --kernel FILE` takes it")
    MEASURED = ("a file of measured points", "`npusim validate --data FILE` takes it")
    PROFILE = ("a profile", "`npusim fit --data FILE` takes it")
    ARRAY = ("a NumPy array", "`npusim run OPERATOR --input NAME=FILE` takes it")
    PYTHON = (
        "Python source",
        "`npusim run --kernel FILE:CLASS` runs a kernel, and npusim.network(module, input_shape) "
        "times a torch.nn.Module",
    )
    ARCHIVE = (
        "a ZIP archive, such as a PyTorch checkpoint",
        "export the module as ONNX, or pass it to npusim.network in Python",
    )
    HDF5 = ("an HDF5 file, such as a Keras model", "export the model as ONNX")
    PICKLE = (
        "a Python pickle",
        "export the module as ONNX, or pass it to npusim.network in Python",
    )
    GZIP = ("a gzip file", "unpack it")
    IMAGE = ("an image", "it holds no input of npusim")
    BINARY = ("a binary file", "it is none of the files that npusim reads")

    @property
    def called(self) -> str:
        """The kind with its article."""
        return str(self.value[0])

    @property
    def taken_by(self) -> str:
        """What takes such a file, or what to do with it."""
        return str(self.value[1])


#: First bytes of binary files.
_MAGIC = {
    b"\x93NUMPY": Content.ARRAY,
    b"PK\x03\x04": Content.ARCHIVE,
    b"\x89HDF\r\n": Content.HDF5,
    b"\x1f\x8b": Content.GZIP,
    b"\x80\x02": Content.PICKLE,
    b"\x80\x04": Content.PICKLE,
    b"\x80\x05": Content.PICKLE,
    b"\x89PNG": Content.IMAGE,
    b"\xff\xd8\xff": Content.IMAGE,
}

#: An ONNX model begins with its IR version, field 1 of the protobuf, and has another field behind.
_ONNX = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x2a\x32\x3a\x42]")

#: Keys of a mapping (YAML or JSON) that tell its kind: all of a row must be there.
_KEYS: tuple[tuple[tuple[str, ...], Content], ...] = (
    (("npusim_gate",), Content.BASELINE),
    (("traceEvents",), Content.TRACE),
    (("npusim_version",), Content.RESULT),
    (("kernel", "tensors", "buffers"), Content.INSTRUCTIONS),
    (("L1TileShape",), Content.TILING),
    (("baseM",), Content.TILING),
    (("base_m",), Content.TILING),
    (("layers", "description"), Content.WORKLOAD),
    (("cases",), Content.GATE),
    (("constants",), Content.CONSTANTS),
    (("kernels",), Content.CHOICES),
    (("cores", "memories"), Content.DEVICE),
    (("base", "name"), Content.DEVICE),
    (("vary",), Content.STUDY),
    (("points",), Content.STUDY),
    (("goals",), Content.STUDY),
)

#: Words that the columns of a table have, without blanks, case and units: all of a row.
_COLUMNS: tuple[tuple[tuple[str, ...], Content], ...] = (
    (("ifmapheight", "ifmapwidth"), Content.TOPOLOGY),
    (("layer", "m", "n", "k"), Content.TOPOLOGY),
    (("layername", "m", "n", "k"), Content.TOPOLOGY),
    (("id", "chip"), Content.MEASURED),
    (("optype",), Content.PROFILE),
)

_TOP_KEY = re.compile(r"^['\"]?([A-Za-z_]\w*)['\"]?\s*:(?:\s|$)", re.MULTILINE)

#: The first statement of Python source, behind comments and a docstring.
_PYTHON = re.compile(
    r"(?:\s*#.*\n|\s*\n|\s*(?P<quotes>\"{3}|'{3})[\s\S]*?(?P=quotes)\s*\n)*"
    r"(?:import \w|from [\w.]+ import |class \w+.*:|def \w+\(|@\w)"
)

#: Bytes of a file that are looked at.
_LOOKED_AT = 1 << 16


def content_of(path: Path) -> Content | None:
    """Return what a file holds; None for what is not recognised or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except (OSError, ValueError):  # the latter for names that no file can have
        return None
    return _binary(head) or _text(head.decode("utf-8-sig", errors="replace"))


def _binary(head: bytes) -> Content | None:
    """What the first bytes of a file say; None for text."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if _ONNX.match(head):
        return Content.ONNX
    return Content.BINARY if b"\0" in head else None


def _text(text: str) -> Content | None:
    """What keys, columns or statements say; None where they are not known."""
    keys, columns = _keys(text), _columns(text)
    for names, table in ((keys, _KEYS), (columns, _COLUMNS)):
        for needed, kind in table:
            if names.issuperset(needed):
                return kind
    return Content.PYTHON if _PYTHON.match(text) else None


def require_content(path: Path, wanted: Collection[Content], what: str) -> None:
    """Refuse a file of another kind than those ``wanted``; ``what`` is what is asked for here.

    Raises ``ArgumentError``, which says what the file is and what takes it. Files that are not
    recognised pass.
    """
    content = content_of(path)
    if content is not None and content not in wanted:
        raise ArgumentError(
            f"{shown(str(path))} is {content.called}, not {what}; {content.taken_by}"
        )


def bare(column: str) -> str:
    """Return a column's name without blanks, case, underscores and a unit in brackets."""
    return re.sub(r"\(.*?\)|[\s_-]", "", column).lower()


def _keys(text: str) -> frozenset[str]:
    """The keys of a JSON object, of the first line of JSON lines, or of a YAML mapping's top."""
    if text.lstrip().startswith("{"):
        for part in (text, text.lstrip().partition("\n")[0]):
            try:
                tree = json.loads(part)
            except ValueError:
                continue
            if isinstance(tree, dict):
                return frozenset(tree)
        return frozenset(re.findall(r'"(\w+)"\s*:', text))  # longer than what was looked at
    return frozenset(_TOP_KEY.findall(text))


def _columns(text: str) -> frozenset[str]:
    """The bare names of the columns of a table: of the first line that is no comment."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return frozenset(bare(cell) for cell in next(csv.reader([line]), []))
    return frozenset()
