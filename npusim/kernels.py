"""The kernels: in a checkout the folder ``kernels/`` at its top; the wheel has that folder here."""

from pathlib import Path

#: Where submodules are found (a module with a ``__path__`` is a package).
__path__ = [str(Path(__file__).parents[1] / "kernels")]
