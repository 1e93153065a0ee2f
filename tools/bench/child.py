"""One benchmark in a process of its own: ``python -m tools.bench.child NAME SETTINGS``.

SETTINGS is JSON. Standard output gets one line of JSON per figure or remark as soon as it is
known; what the benchmark itself prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
from typing import Any

from tools.bench.figures import CATALOGUE, Figure, NotAvailableError, Settings


def main(name: str, settings: Settings) -> None:
    """Run benchmark ``name`` and print what it yields."""
    module, function = CATALOGUE[name]
    lines = sys.stdout

    def say(**line: Any) -> None:
        print(json.dumps(line), file=lines, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        try:
            for item in getattr(importlib.import_module(module), function)(settings):
                if isinstance(item, Figure):
                    say(figure=dataclasses.asdict(item))
                else:
                    say(remark=item)
        except NotAvailableError as error:
            say(remark=str(error))


if __name__ == "__main__":
    main(sys.argv[1], Settings(**json.loads(sys.argv[2])))
