"""``python -m tests.documents`` writes into the documents what the program prints.

Names of sections on the command line choose among them; ``picture`` is the README's timeline,
``notebooks`` stands for their outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from npusim.results.plots import figure_bytes
from tests.documents import notebooks
from tests.documents.pages import DOCUMENTS, ROOT, sections, text, with_section
from tests.documents.sections import SECTIONS, demo

PICTURE = "docs/timeline.png"


def picture() -> None:
    """Plot the timeline that the demo leaves."""
    (ROOT / PICTURE).write_bytes(figure_bytes(demo().plot_timeline(), "png"))


#: What is written into files of its own.
FILES: dict[str, Callable[[], None]] = {"picture": picture, "notebooks": notebooks.renew}


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
