"""Numbers: what the chip's arithmetic gives, and the float64 reference that stands apart from it.

``reference`` shares no code with any kernel or with the executor.
"""

from __future__ import annotations
