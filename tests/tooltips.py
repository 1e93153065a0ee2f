"""What tooltips of charts ask for that their charts do not have: a browser shows it as ``???``."""

from __future__ import annotations

import json
import re
from typing import Any

from bokeh.document import Document
from bokeh.models import HoverTool

#: A field of a tooltip: its name, and how it is formatted.
_FIELD = re.compile(r"@(\w+)(?:\{([^}]*)\})?")


def charts(page: str) -> list[Document]:
    """The charts that a page holds."""
    held = re.findall(r'<script type="application/json" class="bokeh">(.*?)</script>', page)
    return [Document.from_json(json.loads(text)["doc"]) for text in held]


def untold(document: Document) -> list[str]:
    """Fields of tooltips that are no column, or that have no formatter of their own."""
    found = []
    for tool in document.select({"type": HoverTool}):
        assert isinstance(tool, HoverTool)
        assert isinstance(tool.tooltips, str)
        fields = _FIELD.findall(tool.tooltips)
        assert fields
        drawn: Any
        for drawn in tool.renderers:
            found += [name for name, _ in fields if name not in drawn.data_source.data]
        found += [n for n, how in fields if how == "custom" and f"@{n}" not in tool.formatters]
    return found
