"""``python -m tests.documents`` writes into the documents what the program prints.

Names of sections on the command line choose among them; ``picture`` is the README's timeline.
"""

from __future__ import annotations

import sys

from npusim.results.plots import figure_bytes
from tests.documents.pages import DOCUMENTS, ROOT, sections, text, with_section
from tests.documents.sections import SECTIONS, demo

PICTURE = "docs/timeline.png"


def picture() -> bytes:
    """The timeline of the demo's first core, without most of the launch."""
    result = demo()
    launch_us = result.device.time_us(result.runs[0].launch_cycles)
    axes = result.plot_timeline(cores=("core0",), window=(0.97 * launch_us, result.time_us))
    return figure_bytes(axes, "png")


def main(names: list[str]) -> int:
    """Renew the sections called ``names``, or all; 2 if there is no such section."""
    wanted = names or [*SECTIONS, "picture"]
    unknown = sorted({*wanted} - {*SECTIONS, "picture"})
    if unknown:
        print(f"no section {unknown[0]!r}; there are {', '.join([*SECTIONS, 'picture'])}")
        return 2
    for name in wanted:
        if name == "picture":
            (ROOT / PICTURE).write_bytes(picture())
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
