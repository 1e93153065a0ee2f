"""Notebooks run, and show what they print: as Jupyter would, without it."""

from __future__ import annotations

import ast
import base64
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


def executed(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run from top to bottom."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    plt.close("all")  # a notebook begins without figures
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        value = _run("".join(cell["source"]), f"{path.name}[{number}]", names)
        cell["execution_count"] = number
        cell["outputs"] = [*_result(value, number), *_figures()]
    return notebook


def renew() -> None:
    """Write every notebook with the outputs of a run."""
    for path in NOTEBOOKS:
        path.write_text(json.dumps(executed(path), indent=1) + "\n", encoding="utf-8")


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """The words of each plain output of a notebook; the blanks between them do not matter."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    results = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
    return ["".join(data["text/plain"]).split() for data in results]


def _run(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, if that is an expression without a semicolon."""
    module = ast.parse(source, name)
    last = module.body[-1]
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        exec(compile(module, name, "exec"), names)
        return None
    exec(compile(ast.Module(module.body[:-1], []), name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


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
