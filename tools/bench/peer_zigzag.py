"""ZigZag: mapping search with an analytical cost model. Needs ``zigzag-dse``."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from tools.bench.figures import Figure, Settings
from tools.bench.peers import Product, compare, version

#: Its own mapping for this machine, with the dimensions of a product in the place of an image's.
MAPPING = """
- name: default
  spatial_mapping:
    D1: ["K, 16"]
    D2: ["C, 16"]
    D3: ["D, 2"]
    D4: ["D, 2"]
  memory_operand_links: {O: O, W: I2, I: I1}
"""

REMARK = (
    "ZigZag: its own ascend_like core (1,024 8-bit multiply-adds a cycle); it searches loop orders "
    "with a closed-form cost (loma, default limits) and simulates nothing. Not expressed: 16-bit "
    "operands on that core, layout conversions, several cores that share memory, instructions, "
    "numbers."
)


def zigzag(settings: Settings) -> Iterator[Figure | str]:
    """ZigZag on a matmul and on filter gradients."""
    title = version("zigzag-dse", "zigzag")
    yield REMARK
    with tempfile.TemporaryDirectory() as folder:
        yield from compare(settings, "zigzag", title, lambda p: _cycles(p, Path(folder)))


def _cycles(product: Product, folder: Path) -> float:
    """Cycles of the best mapping it finds."""
    api = importlib.import_module("zigzag.api")

    mapping = folder / "mapping.yaml"
    mapping.write_text(MAPPING, encoding="utf-8")
    layer = {
        "id": 0,
        "name": "product",
        "operator_type": "Gemm",
        "equation": "O[k][d]+=W[k][c]*I[c][d]",
        "loop_dims": ["K", "C", "D"],
        "loop_sizes": [product.m, product.k, product.n],
        "operand_precision": {"W": 8, "I": 8, "O": 16, "O_final": 8},
        "operand_source": {"W": 0, "I": 0},
    }
    machine = resources.files("zigzag") / "inputs" / "hardware" / "ascend_like.yaml"
    _, latency, _ = api.get_hardware_performance_zigzag(
        [layer],
        str(machine),
        str(mapping),
        opt="latency",
        dump_folder=str(folder),
        loma_show_progress_bar=False,
    )
    return float(latency)
