"""A plugin of pytest that prints what was collected: node, and names of its markers.

Run with ``python -m pytest --collect-only -p tests.documents.collected NODES``.
"""

from __future__ import annotations

import pytest

#: What lines of this plugin begin with.
MARK = "collected: "


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print a line per test that would run."""
    for item in session.items:
        markers = ",".join(sorted({marker.name for marker in item.iter_markers()}))
        print(f"{MARK}{item.nodeid} {markers or '-'}")
