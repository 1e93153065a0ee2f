"""Ways of saving that all results share: files by their suffix, a table as a file, and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npusim.base.atomic_files import replacing, write
from npusim.base.errors import ArgumentError
from npusim.base.notebook_html import Shown
from npusim.base.resources import optional
from npusim.results.shown.report import Report
from npusim.results.writers import plots
from npusim.results.writers.web import page

#: What makes a file, by its suffix.
_MAKERS = {
    ".txt": "text",
    ".json": "to_json",
    **dict.fromkeys((".csv", ".parquet"), "table"),
    **dict.fromkeys((".png", ".svg"), "plot"),
    ".html": "report",
}


class Answer(Shown):
    """A result: ``text()``, ``to_json()``, ``table`` and ``plot()``, as far as it has them."""

    def write(self, path: str | Path) -> None:
        """Write the table as CSV or Parquet, by the file's suffix.

        Raises ``ArgumentError`` for another suffix, or without the package that Parquet needs.
        """
        kind, table = Path(path).suffix.lower(), self._part("table", path)
        if kind not in (".csv", ".parquet"):
            raise ArgumentError(f"{path}: a table is written as .csv or .parquet")
        with replacing(path) as part:
            if kind == ".csv":
                table.to_csv(part, index=False)
            else:
                optional("pyarrow", "Parquet needs the package pyarrow")
                table.to_parquet(part, index=False)

    def save_plot(self, path: str | Path) -> None:
        """Write the figure, .png or .svg."""
        plots.save_plot(path, self._part("plot", path))

    def report(self, path: str | Path) -> None:
        """Write one self-contained web page."""
        write(path, page.page(self.as_report()))

    def as_report(self) -> Report:
        """The report as data: what is said, and the table."""
        return Report(repr(self)[1:-1], (), "", (), (), "", markup=self._repr_html_())

    def save(self, path: str | Path) -> None:
        """Write the text (.txt), JSON, the table (.csv, .parquet), figure (.png, .svg) or page.

        Raises ``ArgumentError`` for another suffix, or one of which this result has nothing.
        """
        name = _MAKERS.get(Path(path).suffix.lower(), "")
        maker = self._part(name, path)
        if name in ("text", "to_json"):
            write(path, maker() if name == "text" else json.dumps(maker(), indent=2) + "\n")
        else:
            {"table": self.write, "plot": self.save_plot, "report": self.report}[name](path)

    def _part(self, name: str, path: str | Path) -> Any:
        """Method of the result that makes the content of a file."""
        part = getattr(self, name, None) if name else None
        if part is None:
            ends = ", ".join(end for end, maker in _MAKERS.items() if hasattr(self, maker))
            raise ArgumentError(f"{path}: {self!r} is not written so; its files end in {ends}")
        return part


class Reported(Answer):
    """A result whose report a notebook shows in short."""

    def _repr_html_(self) -> str:
        """HTML that a notebook shows at the end of a cell."""
        return page.notebook(self.as_report())
