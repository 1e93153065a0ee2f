"""What a kernel author needs, from one place; ``docs/guide/kernel.md`` is the page about it.

A kernel is a frozen dataclass derived from ``Kernel``. Its ``plan`` declares buffers, says in a
``Tasks`` table which core does what, and gives the function that issues the program of one task
through ``Language``, the methods of which are the instructions. The stub beside this file lists the
names.
"""

from __future__ import annotations

from npusim.base.public import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
