"""``python -m npusim`` is the command ``npusim``."""

from __future__ import annotations

import sys

from npusim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
