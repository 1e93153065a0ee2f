"""The table of kernels that are simulated anew after a changed figure, for the page of sweeps."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import npusim
from npusim.machine.device.spec import Device
from npusim.machine.timing import run as engine
from npusim.reuse.answers import answers_in
from tests.reuse.test_launches import forget

#: The figure that is changed, its value, and what the table adds to its name.
CHANGES = (
    ("paths.GM->L1.energy", "3pJ/B", ""),
    ("vector.ops.exp", "9cycle", ""),
    ("memories.L1.size", "1MiB", ", twice as large"),
    ("paths.L0C->GM.nz2nd.row", "2cycle", ""),
    ("cube.startup", "20cycle", ""),
    ("main_memory.read", "1.2TB/s", ""),
)


def kept_rows() -> list[tuple[str, str]]:
    """What changed, and the kernels that were simulated: ResNet-18 on a 910B2, one image."""
    device = npusim.load_device("ascend910b2")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "runs.sqlite"
        rows = [("nothing kept", _simulated(device, file))]
        rows.append(("nothing, in another process", _simulated(device, file)))
        for path, value, more in CHANGES:
            variant = npusim.load_device("ascend910b2", {path: value})
            rows.append((f"`{path}`{more}", _simulated(variant, file)))
    return [(words, str(count)) for words, count in rows]


def _simulated(device: Device, file: Path) -> int:
    """Kernels that are simulated, trials of tilings too, where nothing but ``file`` is known."""
    count = 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        return run(*given, **named)

    run = engine._run
    forget()
    with patch.object(engine, "_run", counted), answers_in(file):
        npusim.network("resnet18", device=device, batch=1, jobs=1)  # all are counted here
    return count
