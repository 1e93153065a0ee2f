"""A profile as msprof writes it, of kernels simulated on a device with known figures.

``python -m tests.silicon.sample`` writes the sample that ships in ``configs/profiles``.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npusim.base.records import replace
from npusim.base.resources import configs
from npusim.silicon.choices import SELECTORS, Choices
from npusim.silicon.rows import ProfiledOperand, ProfiledRow
from npusim.silicon.simulate import simulate_row
from tests.texts import text_of

#: Columns of ``op_summary`` with the pipe utilisation of a chip of two kinds of cores.
COLUMNS = (
    *("Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State"),
    *("Task Type", "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Dim"),
    *("Mix Block Dim", "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats", "Context ID", "aicore_time(us)"),
    *("aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_scalar_time(us)"),
    *("aic_scalar_ratio", "aic_mte1_time(us)", "aic_mte1_ratio", "aic_mte2_time(us)"),
    *("aic_mte2_ratio", "aic_fixpipe_time(us)", "aic_fixpipe_ratio", "aic_icache_miss_rate"),
    *("aiv_time(us)", "aiv_total_cycles", "aiv_vec_time(us)", "aiv_vec_ratio"),
    *("aiv_scalar_time(us)", "aiv_scalar_ratio", "aiv_mte2_time(us)", "aiv_mte2_ratio"),
    *("aiv_mte3_time(us)", "aiv_mte3_ratio", "aiv_icache_miss_rate", "cube_utilization(%)"),
)
_CUBE = {"cube": "mac", "mte1": "mte1", "mte2": "mte2", "fixpipe": "fixpipe", "scalar": "scalar"}
_VECTOR = {"vec": "vec", "mte2": "mte2", "mte3": "mte3", "scalar": "scalar"}
_DTYPES = {"fp16": "FLOAT16", "bf16": "DT_BF16", "fp32": "FLOAT", "int32": "INT32"}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a sample: type, cores, operands and results."""

    type: str
    cores: int
    operands: tuple[ProfiledOperand, ...]
    results: tuple[ProfiledOperand, ...]

    @property
    def on_cube(self) -> bool:
        return "MatMul" in self.type or "Conv" in self.type


def product(m: int, k: int, n: int, *, turned: bool = False, kind: str = "bf16") -> Kernel:
    """A matrix product on 24 cores, B stored N x K if ``turned``."""
    b = (n, k) if turned else (k, n)
    sides = (ProfiledOperand((m, k), kind, "ND"), ProfiledOperand(b, kind, "ND"))
    return Kernel("MatMulV3", 24, sides, (ProfiledOperand((m, n), kind, "ND"),))


def gradients(n: int, channels: int, size: int) -> tuple[Kernel, Kernel]:
    """Both gradients of a 3x3 layer of as many channels in as out, padded by 1."""
    blocks = channels // 16
    image = ProfiledOperand((n, 1, blocks, size, size, 16), "fp16", "NDC1HWC0")
    sizes = ProfiledOperand((5,), "int32", "ND")
    filters = ProfiledOperand((9 * blocks, blocks, 16, 16), "fp16", "FRACTAL_Z_3D")
    return (
        Kernel("Conv3DBackpropInputV2", 24, (sizes, filters, image), (image,)),
        Kernel(
            "Conv3DBackpropFilterV2", 24, (image, sizes, image), (replace(filters, dtype="fp32"),)
        ),
    )


def conversion(n: int, channels: int, size: int) -> Kernel:
    """A feature map into blocks of 16 channels."""
    plain = ProfiledOperand((n, channels, size, size), "fp16", "NCHW")
    blocked = ProfiledOperand((n, channels // 16, size, size, 16), "fp16", "NC1HWC0")
    return Kernel("TransData", 48, (plain,), (blocked,))


def addition(*shape: int) -> Kernel:
    x = ProfiledOperand(shape, "bf16", "ND")
    return Kernel("Add", 48, (x, x), (x,))


#: What the sample that ships holds.
KERNELS = (
    *(product(512, 1024, 768), product(1024, 1024, 2048), product(2048, 2048, 1024, turned=True)),
    *(product(1024, 4096, 1024), product(384, 4096, 3072, turned=True), product(4096, 256, 2048)),
    *(product(2560, 512, 2560), product(96, 8192, 1536), product(3072, 1536, 1536, kind="fp16")),
    *gradients(8, 128, 28),
    *gradients(4, 256, 14),
    *(conversion(8, 128, 28), addition(4096, 1024), addition(1024, 1000)),
)
#: And the file beside it.
ATTRIBUTES = text_of("sample_choices.yaml")


def write_profile(
    path: Path,
    device: str,
    figures: Mapping[str, str],
    kernels: Sequence[Kernel] = KERNELS,
    choices: Choices | None = None,
    *,
    noise: float = 0.0,
    launches: int = 1,
    seed: int = 1,
) -> None:
    """Write a profile of ``kernels`` on a device with changed ``figures``.

    Every time is off by a share of itself, drawn from a normal distribution of width ``noise``.
    """
    draw = random.Random(seed)
    start = 1000.0
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, restval="0")
        out.writeheader()
        for line, (kernel, launch) in enumerate(
            ((kernel, launch) for kernel in kernels for launch in range(launches)), 2
        ):
            cells = _cells(kernel, line, device, figures, choices or Choices())
            times = [name for name in cells if name.endswith("(us)") and cells[name] != "0"]
            for name in times:
                shown = float(cells[name]) * (1 + draw.gauss(0, noise))
                cells[name] = f"{min(shown, float(cells['Task Duration(us)'])):.3f}"
            cells["Task Start Time(us)"] = f"{start + launch:.3f}"
            start += 200
            out.writerow(cells)


def _cells(
    kernel: Kernel, line: int, device: str, figures: Mapping[str, str], choices: Choices
) -> dict[str, str]:
    """The cells of one launch, without noise."""
    shapes = ";".join(",".join(map(str, x.shape)) for x in kernel.operands)
    choice = choices.of(dict(zip(SELECTORS, ("", kernel.type, shapes, str(line)), strict=True)))
    row = ProfiledRow(
        id="",
        chip=device,
        op=kernel.type,
        cores=kernel.cores,
        operands=kernel.operands,
        results=kernel.results,
        choice=choice,
    )
    outcome = simulate_row(row, figures)
    assert outcome.simulated is not None, outcome.reason
    busy, names = outcome.simulated.busy_us, _CUBE if kernel.on_cube else _VECTOR
    side = "aic" if kernel.on_cube else "aiv"
    cells = {f"{side}_{name}_time(us)": str(busy.get(pipe) or 0) for pipe, name in names.items()}
    for what, some in (("Input", kernel.operands), ("Output", kernel.results)):
        text = ";".join(",".join(map(str, x.shape)) for x in some)
        cells[f"{what} Shapes"] = f'"{text}"'
        cells[f"{what} Data Types"] = ";".join(_DTYPES[x.dtype] for x in some)
        cells[f"{what} Formats"] = ";".join(x.layout for x in some)
    return cells | {
        "Model ID": "4294967295",
        "Task ID": str(line),
        "Stream ID": "2",
        "Op Name": f"aclnn_{kernel.type}_{line}",
        "OP Type": kernel.type,
        "OP State": "dynamic",
        "Task Type": "AI_CORE" if kernel.on_cube else "AI_VECTOR_CORE",
        "Task Duration(us)": str(outcome.simulated.time_us),
        "Block Dim": str(kernel.cores),
        "HF32 Eligible": "NO",
        "Context ID": "N/A",
    }


#: The figures of the chip that the sample was "taken" on.
HIDDEN = {
    "l2.read": "3.7TB/s",
    "paths.L0C->GM.nz2nd.rate": "95B/cycle",
    "paths.L0C->GM.rate": "95B/cycle",
    "paths.L1->L0A.idle_head": "30cycle",
    "paths.L1->L0B.idle_head": "30cycle",
    "paths.L1->L0A.load3d.idle_head": "30cycle",
    "paths.L1->L0B.load3d.idle_head": "30cycle",
}

if __name__ == "__main__":
    from npusim.silicon.choices import read_choices

    folder = Path(str(configs() / "profiles"))
    folder.mkdir(exist_ok=True)
    (folder / "op_summary.yaml").write_text(ATTRIBUTES, encoding="utf-8")
    target = folder / "op_summary.csv"
    read = read_choices(folder / "op_summary.yaml")
    write_profile(target, "ascend910b2", HIDDEN, choices=read, noise=0.01, launches=3)
