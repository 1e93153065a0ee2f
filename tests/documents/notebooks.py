"""Notebooks run, and show what they print: as Jupyter would, without it."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from tests.documents.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

#: Tables in plain text are not broken into parts.
WIDE = ("display.width", 200, "display.max_columns", 30)


def executed(path: Path, *, small: bool = False) -> dict[str, Any]:
    """The notebook with the outputs of a run from top to bottom.

    ``small`` takes for the cell of parameters what its metadata give as the ones of a small run.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    plt.close("all")  # a notebook begins without figures
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if small:
            source = cell["metadata"].get("small", source)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run(source, f"{path.name}[{number}]", names)
        cell["execution_count"] = number
        cell["outputs"] = [*_stream(printed.getvalue()), *_result(value, number), *_figures()]
    return notebook


def renew() -> None:
    """Write every notebook with the outputs of a run."""
    for path in NOTEBOOKS:
        path.write_text(json.dumps(executed(path), indent=1) + "\n", encoding="utf-8")


def is_long(path: Path) -> bool:
    """Whether a notebook has parameters of a small run, as its own take long."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return any("small" in cell["metadata"] for cell in notebook["cells"])


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """The words of each plain output of a notebook; the blanks between them do not matter."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    shown = [o["data"]["text/plain"] if "data" in o else o["text"] for o in outputs if _is_text(o)]
    return ["".join(lines).split() for lines in shown]


def _is_text(output: dict[str, Any]) -> bool:
    return output["output_type"] in ("execute_result", "stream")


def _run(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, if that is an expression without a semicolon."""
    module = ast.parse(source, name)
    last = module.body[-1]
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        exec(compile(module, name, "exec", dont_inherit=True), names)
        return None
    exec(compile(ast.Module(module.body[:-1], []), name, "exec", dont_inherit=True), names)
    return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)


def _stream(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []


def _result(value: Any, number: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    with pd.option_context(*WIDE):
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
    shown = {"data": data, "execution_count": number, "metadata": {}}
    return [{**shown, "output_type": "execute_result"}]


def _figures() -> list[dict[str, Any]]:
    """The open figures, which are closed."""
    shown = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(
            file, format="png", bbox_inches="tight", metadata={"Software": None}
        )
        data = {"image/png": base64.b64encode(file.getvalue()).decode()}
        shown.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return shown
