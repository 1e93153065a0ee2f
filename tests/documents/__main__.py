"""``python -m tests.documents`` writes into the documents what the program prints.

Names of sections on the command line choose among them; ``picture`` is the README's timeline,
``sweep`` its second picture, ``notebooks`` stands for their outputs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from npusim.cli.main import main as command
from npusim.results.writers.plots import figure_bytes
from tests.documents import notebooks
from tests.documents.pages import DOCUMENTS, ROOT, blocks, sections, text, with_section
from tests.documents.sections import SECTIONS, demo

PICTURE = "docs/timeline.png"

#: The picture of the README's sweep, and the times behind it.
SWEEP, SWEPT = "docs/sweep.png", "docs/sweep.csv"

#: The entry of the picture's file that has the digest of these times.
LABEL = "times"


def picture() -> None:
    """Plot the timeline that the demo leaves."""
    (ROOT / PICTURE).write_bytes(figure_bytes(demo().plot_timeline(), "png"))


def sweep_words() -> list[str]:
    """The words of the README's sweep, without the picture that it names."""
    (line,) = (body for body in blocks("text", "README.md") if body.startswith("npusim sweep"))
    words = shlex.split(line.replace("\\\n", " "))[1:]
    at = words.index("--plot")
    return words[:at] + words[at + 2 :]


def sweep() -> None:
    """Run the README's sweep (a minute or two), plot it, and keep the times that the plot shows."""
    with TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.sqlite")
        files = ["--plot", str(ROOT / SWEEP), "--csv", str(ROOT / SWEPT), "--store", store]
        assert command([*sweep_words(), *files]) == 0
    table = pandas.read_csv(ROOT / SWEPT)
    names = [name for name, _ in pairwise(sweep_words()) if name == "--vary"]
    table = table[[*table.columns[: len(names)], "time_us"]]
    table.to_csv(ROOT / SWEPT, index=False, float_format="%.2f")
    label = PngInfo()
    label.add_text(LABEL, digest(ROOT / SWEPT))
    with Image.open(ROOT / SWEEP) as image:
        image.save(ROOT / SWEEP, pnginfo=label, optimize=True)


def digest(file: Path) -> str:
    """A digest of a file's content."""
    return sha256(file.read_bytes()).hexdigest()


#: What is written into files of its own.
FILES: dict[str, Callable[[], None]] = {
    "picture": picture,
    "sweep": sweep,
    "notebooks": notebooks.renew,
}


def main(names: list[str]) -> int:
    """Renew the sections called ``names``, or all; 2 if there is no such section."""
    known = (*SECTIONS, *FILES)
    unknown = sorted({*names} - {*known})
    if unknown:
        print(f"no section {unknown[0]!r}; there are {', '.join(known)}")
        return 2
    wanted = names or known
    for name in wanted:
        if name in FILES:
            FILES[name]()
            continue
        content = SECTIONS[name]()
        for document in DOCUMENTS:
            if name in sections(document):
                page = with_section(text(document), name, content)
                (ROOT / document).write_text(page, encoding="utf-8")
    print(f"renewed {', '.join(wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
