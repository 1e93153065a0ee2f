"""Fields that tooltips ask for and their charts do not have: a browser shows them as ``???``."""

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
    scripts = re.findall(r'<script type="application/json" class="bokeh">(.*?)</script>', page)
    return [Document.from_json(json.loads(script)["doc"]) for script in scripts]


def missing_fields(document: Document) -> list[str]:
    """Fields of tooltips that are no column, or that have no formatter of their own."""
    missing: list[str] = []
    for tool in document.select({"type": HoverTool}):
        assert isinstance(tool, HoverTool)
        assert isinstance(tool.tooltips, str)
        fields = _FIELD.findall(tool.tooltips)
        assert fields
        drawn: Any
        for drawn in tool.renderers:
            missing += [name for name, _ in fields if name not in drawn.data_source.data]
        missing += [
            name for name, how in fields if how == "custom" and f"@{name}" not in tool.formatters
        ]
    return missing
