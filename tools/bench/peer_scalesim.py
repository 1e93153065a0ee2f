"""SCALE-Sim v3: cycles of a systolic array. Needs ``scalesim``, which needs NumPy below 2.4."""

from __future__ import annotations

import csv
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.bench.figures import Figure, Settings
from tools.bench.peers import Product, compare, version

#: As many multiply-adds a cycle as a core of the device compared with; buffers of its size.
CONFIG = (Path(__file__).parent / "scalesim.cfg").read_text(encoding="utf-8")

#: It asks for a layout of every layer and, with the layouts above off, does not use it.
LAYOUT = f"Layer,\nproduct,{'1,' * 20}\n"

REMARK = (
    "SCALE-Sim: one 64x64 output-stationary array, memory as fast as it asks for (CALC), no traces "
    "written. Not expressed: backward convolutions other than as products, layout conversions, "
    "several cores that share memory, instructions and their queues, numbers."
)


def scalesim(settings: Settings) -> Iterator[Figure | str]:
    """SCALE-Sim on a matmul and on filter gradients."""
    title = version("scalesim", "scalesim")
    yield REMARK
    with tempfile.TemporaryDirectory() as folder:
        yield from compare(settings, "scalesim", title, lambda p: _cycles(p, Path(folder)))


def _cycles(product: Product, folder: Path) -> float:
    """Cycles without stalls for bandwidth, as its report has them."""
    api = importlib.import_module("scalesim.scale_sim")

    config, topology, layout = (folder / name for name in ("array.cfg", "mnk.csv", "layout.csv"))
    config.write_text(CONFIG, encoding="utf-8")
    layout.write_text(LAYOUT, encoding="utf-8")
    sizes = f"{product.m},{product.n},{product.k},"
    topology.write_text(f"Layer,M,N,K,\nproduct,{sizes}\n", encoding="utf-8")
    run = api.scalesim(
        save_disk_space=True,
        verbose=False,
        config=str(config),
        topology=str(topology),
        layout=str(layout),
        input_type_gemm=True,
    )
    run.run_scale(top_path=str(folder))
    with (folder / "bench" / "COMPUTE_REPORT.csv").open(encoding="utf-8") as report:
        (row,) = csv.DictReader(report, skipinitialspace=True)
    return float(row["Total Cycles"])
