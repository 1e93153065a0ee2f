"""Instructions of kernels as files: what is written and read back takes the same cycles."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
import npusim.kernels
from npusim.base.dtypes import FP16, FP32
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.cli.main import main
from npusim.kernels.layout.concat import Concat
from npusim.kernels.layout.copy_boxes import Box, CopyBoxes
from npusim.kernels.layout.every_nth import EveryNth
from npusim.kernels.layout.fold_map import Folded, FoldMap
from npusim.kernels.layout.fold_weights import FoldedFilters, FoldWeights
from npusim.kernels.layout.folding import Fold, folded_gradient
from npusim.kernels.layout.layout_change import LayoutChange
from npusim.kernels.layout.library_maps import LibraryMaps
from npusim.kernels.layout.library_trans_data import LibraryGroups, LibraryTransData
from npusim.kernels.layout.strided_copy import Contiguous, ViewCopy
from npusim.kernels.layout.thin_map import ThinMap, Thinned
from npusim.kernels.layout.trans_data import Conversion
from npusim.kernels.layout.transpose import Transpose
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.vector.blend import Blend
from npusim.kernels.vector.blend_periods import BlendPeriods, Periods
from npusim.kernels.vector.library_bias_grad import LibraryBiasGrad
from npusim.kernels.vector.row_sums import RowSums
from npusim.kernels.windows.library_max_pool import LibraryMaxPool
from npusim.kernels.windows.library_max_pool_grad import LibraryMaxPoolGrad
from npusim.kernels.windows.pool import pooled
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.traced import load_instructions, save_instructions
from npusim.silicon.gemm_rows import kernel_of_row
from npusim.silicon.rows import KernelRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import device_name, simulate_row
from tests import sampled
from tests.kernels.test_fold import CONV1, fractals_of
from tests.kernels.test_library_max_pool import backward, forward
from tests.ops.small_calls import CALLS, called, spec
from tests.tables import rows

pytestmark = pytest.mark.compiled

Found = dict[type[Kernel], tuple[str, int, Kernel]]


def shipped() -> set[type[Kernel]]:
    """Every kernel class that ships; what conversions have in common is none."""
    found = set()
    for module in pkgutil.walk_packages(npusim.kernels.__path__, "npusim.kernels."):
        for kind in vars(importlib.import_module(module.name)).values():
            own = isinstance(kind, type) and issubclass(kind, Kernel)
            if own and not inspect.isabstract(kind) and kind is not LayoutChange:
                found.add(kind)
    return found


def of_calls(monkeypatch: pytest.MonkeyPatch) -> Found:
    """A small one of each kernel that calls launch: the device, its groups and the kernel."""
    found: Found = {}
    launch = Call.launch

    def seen(self: Call, kernel: Kernel, whole: str | None = None) -> None:
        launch(self, kernel, whole)
        size = sum(tensor.size_bytes for tensor in kernel.tensors)
        least = found.get(type(kernel))
        if least is None or size < sum(tensor.size_bytes for tensor in least[2].tensors):
            found[type(kernel)] = self.device.name, len(self.groups), kernel

    with monkeypatch.context() as patch:
        patch.setattr(Call, "launch", seen)
        for name in CALLS:
            for device in ("ascend910", "ascend910b2", "ft78ne"):
                with suppress(npusim.NpusimError):
                    called(name, device=device)
        npusim.ops.matmul(spec(32, 32), spec(32, 32), spec(32), device="ascend910")
        npusim.ops.matmul(spec(32, 2048), spec(2048, 32), device="ascend910b2")
        npusim.step("resnet18", batch=1, device="ascend910b2")
        rows = {row.op: row for row in shipped_sheets()[0].of(KernelRow) if row.family != "PTO-FA"}
        for row in rows.values():
            simulate_row(row, {})
    return found


def by_hand() -> Found:
    """Those that no small call launches."""

    def tensor(name: str, *shape: int, kind: Any = FP16, role: str = "in") -> Tensor:
        return Tensor(name, shape, kind, role)

    fold, groups = folded_gradient(CONV1, Fold(2, 2)), Conversion(kind="to_fracz", c0=16, groups=8)
    kernels: list[Kernel] = [
        Transpose((1, 0), tensor("x", 3, 5), tensor("y", 5, 3, role="out")),
        Blend(
            tensor("a", 2, 3, 16), tensor("b", 2, 2, 16, role="out"),
            (((0, 0.5), (1, 0.5)), ((2, 1.0),)),
        ),
        Concat((tensor("a", 2, 3, 40), tensor("b", 2, 5, 40)), tensor("c", 2, 8, 40, role="out")),
        FoldMap(
            Folded(16, True, Fold(2, 2)), tensor("x", 1, 3, 8, 8),
            tensor("y", 1, 1, 1, 4, 4, 16, role="out"),
        ),
        ThinMap(
            Thinned(16, True, (2, 2)), tensor("x", 1, 20, 8, 8),
            tensor("y", 1, 1, 2, 4, 4, 16, role="out"),
        ),
        LibraryTransData(
            Conversion(kind="to_blocked", c0=16), tensor("x", 1, 20, 1, 9, 9),
            tensor("y", 1, 1, 2, 9, 9, 16, role="out"),
        ),
        LibraryMaps(
            Conversion(kind="to_blocked", c0=16), tensor("x", 1, 20, 1, 9, 9),
            tensor("y", 1, 1, 2, 9, 9, 16, role="out"),
        ),
        FoldWeights(
            FoldedFilters(fold), tensor("w", *CONV1.w_shape),
            tensor("z", *fractals_of(fold), role="out"),
        ),
        LibraryGroups(
            groups, tensor("w", 32, 4, 1, 3, 3),
            tensor("z", *groups.blocked_shape((32, 4, 1, 3, 3)), role="out"),
        ),
        SumParts(tensor("p", 3, 40, 50, kind=FP32), tensor("o", 40, 50, role="out")),
        Contiguous((40, 25), (50, 2), tensor("x", 1999), tensor("y", 40, 25, role="out")),
        ViewCopy((40, 25), (1, 40), tensor("x", 40, 25), tensor("y", 1000, role="out")),
        BlendPeriods(
            tensor("x", 1, 12, 16), tensor("y", 1, 8, 16, role="out"),
            Periods((((0, 0.5), (1, 0.5)), ((1, 1.0),)), 4, 2),
        ),
        RowSums(
            tensor("dy", 1200, 40), tensor("db", 40, role="out"),
            tensor("p", 24, 40, kind=FP32, role="out"),
        ),
        EveryNth(tensor("x", 200), tensor("y", 100, role="out"), 2),
        CopyBoxes(
            tensor("x", 4, 40), tensor("y", 4, 40, role="out"), (Box((0, 0), (0, 0), (4, 40)),)
        ),
    ]  # fmt: skip
    found: Found = {type(kernel): ("ascend910b2", 24, kernel) for kernel in kernels}
    found[LibraryBiasGrad] = (
        "ascend910",
        32,
        LibraryBiasGrad.on(
            load_device("ascend910"),
            32,
            tensor("dy", 2, 20, 9),
            tensor("db", 20, kind=FP32, role="out"),
        ),
    )
    windows = (2, 2, 20, 20, 16), pooled((2, 2, 20, 20, 16), (3, 3), (2, 2))
    found[LibraryMaxPool] = "ascend910", 32, forward(*windows)
    found[LibraryMaxPoolGrad] = "ascend910", 32, backward(*windows)
    for row in shipped_sheets()[0].of(KernelRow):
        if row.id in ("C130", "C143"):
            device = load_device(device_name(row)[0])
            kernel, cores, _ = kernel_of_row(row, device)
            found[type(kernel)] = device.name, cores, kernel
    return found


@pytest.mark.drawn
def test_every_shipped_kernel_comes_back_with_its_cycles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = of_calls(monkeypatch) | by_hand()
    assert shipped() == set(found)
    for kind, (device, cores, kernel) in list(found.items())[:: 1 if sampled.ALL else 4]:
        file = tmp_path / "it.jsonl"
        save_instructions(kernel, device, file, range(cores))
        traced = load_instructions(file)
        own, again = (
            npusim.simulate(one, device, cores=range(cores), timeline=False, check=False).runs[0]
            for one in (kernel, traced)
        )
        assert (again.name, again.cycles) == (own.name, own.cycles), kind
        assert (again.instructions, again.traffic) == (own.instructions, own.traffic), kind


def product(rows: int = 96, k: int = 96, columns: int = 96) -> Matmul:
    return Matmul(
        Tiling(base_m=32, base_n=32, base_k=32, strided=True),
        Tensor("a", (rows, k), FP16), Tensor("b", (k, columns), FP16),
        Tensor("c", (rows, columns), FP32, "out"),
    )  # fmt: skip


def test_a_file_of_a_kernel_computes_and_answers_for_other_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.jsonl"
    kernel = product()
    npusim.save_instructions(kernel, "ascend910b2", file, "0-3")
    traced = npusim.load_instructions(file)
    a, b = (np.random.default_rng(i).standard_normal((96, 96)).astype(np.float16) for i in (0, 1))
    results = [npusim.simulate(one, "ascend910b2", a, b, cores="0-3") for one in (kernel, traced)]
    assert results[0].cycles == results[1].cycles
    own, again = (np.asarray((r.outputs or (None,))[0], np.float32) for r in results)
    assert np.array_equal(own, again)
    assert f"the instructions of {file}" in results[1].text().replace("\n", " ").replace("  ", "")
    # On a machine whose main memory is slower it takes longer, as the kernel itself does.
    slow = load_device("ascend910b2", {"main_memory.read": "0.1TB/s"})
    times = [npusim.simulate(one, slow, cores="0-3").cycles for one in (kernel, traced)]
    assert times[0] == times[1] > results[0].cycles
    line = f"run --kernel {file} --device ascend910b2 --cores 0-3 --timing-only --json"
    assert main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] == results[0].cycles


HEAD: dict[str, Any] = {
    "kernel": "mine", "tensors": {"x": [[4096], "fp16", "in"], "y": [[4096], "fp16", "out"]},
    "buffers": {"u": {"memory": "UB", "shape": [4096], "dtype": "fp16", "slots": 1}},
}  # fmt: skip

#: A load, an operation known by its time, and a store, ordered by flags.
FLAGGED: list[dict[str, Any]] = [
    {"pipe": "MTE2", "op": "data_move", "dst": ["u", 0, 0, 8192], "src": ["x", 0, 8192],
     "path": "GM->UB", "dtype": "fp16"},
    {"pipe": "MTE2", "op": "set_flag", "to": "V", "event": 0},
    {"pipe": "V", "op": "wait_flag", "src": "MTE2", "event": 0},
    {"pipe": "V", "op": "timed", "name": "VEXP", "cycles": 500},
    {"pipe": "V", "op": "set_flag", "to": "MTE3", "event": 0},
    {"pipe": "MTE3", "op": "wait_flag", "src": "V", "event": 0},
    {"pipe": "MTE3", "op": "data_move", "dst": ["y", 0, 8192], "src": ["u", 0, 0, 8192],
     "path": "UB->GM", "dtype": "fp16"},
]  # fmt: skip


def written(tmp_path: Path, lines: list[Any], head: Any = HEAD) -> Path:
    file = tmp_path / "mine.jsonl"
    cores = [{"core": "vector0", **one} if isinstance(one, dict) else one for one in lines]
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one)
                              for one in (head, *cores)))  # fmt: skip
    return file


def test_operations_that_are_known_by_their_time_are_ordered_by_flags(tmp_path: Path) -> None:
    run = npusim.simulate(load_instructions(written(tmp_path, FLAGGED)), "ascend910b2").runs[0]
    lines = run.timeline
    assert lines is not None
    at = {lines.ops[op]: i for i, op in enumerate(lines.op)}
    load, work, store = (i for i in range(len(lines.op))
                         if lines.ops[lines.op[i]] in ("data_move", "VEXP"))  # fmt: skip
    assert lines.end[at["VEXP"]] - lines.start[at["VEXP"]] == 500
    assert lines.end[load] < lines.start[work]
    assert lines.end[work] < lines.start[store]
    assert lines.lines[lines.line[work]] == f"{tmp_path / 'mine.jsonl'}:5"
    longer = [one | {"cycles": 700} if one["op"] == "timed" else one for one in FLAGGED]
    other = npusim.simulate(load_instructions(written(tmp_path, longer)), "ascend910b2")
    assert other.runs[0].cycles == run.cycles + 200


@rows(
    "tests/data/mistakes/program.yaml",
    "what_cannot_be_read_is_refused_with_its_line",
    "wrong, place, change, reason",
)
def test_what_cannot_be_read_is_refused_with_its_line(
    wrong: str, place: int, change: Any, reason: str, tmp_path: Path
) -> None:
    lines: list[Any] = [dict(one) for one in FLAGGED]
    if isinstance(change, str):
        lines[place - 1] = change * (100_000 if wrong == "deep" else 1)
    else:
        whole = {**lines[place - 1], **change}
        lines[place - 1] = {name: value for name, value in whole.items() if value is not None}
    file = written(tmp_path, lines)
    with pytest.raises(npusim.NpusimError, match=re.escape(reason)) as told:
        npusim.simulate(load_instructions(file), "ascend910b2", check=False)
    assert "mine.jsonl" in str(told.value)


@rows("tests/data/mistakes/program.yaml", "a_first_line_that_says_too_little", "head, reason")
def test_a_first_line_that_says_too_little(head: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(npusim.ArgumentError, match=re.escape(reason)):
        npusim.simulate(load_instructions(written(tmp_path, FLAGGED, head)), "ascend910b2")


@rows("tests/data/mistakes/program.yaml", "fields_of_a_drain_that_no_chip_holds", "change, reason")
def test_fields_of_a_drain_that_no_chip_holds(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Each took all memory, or ended in an error of Python's own."""
    file = tmp_path / "own.jsonl"
    npusim.save_instructions(product(32, 32, 32), "ascend910b2", file, "0")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (drain,) = (line for line in lines if line.get("op") == "drain")
    drain |= change
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    where = rf"own.jsonl:{lines.index(drain) + 1}: .*{re.escape(reason)}"
    with pytest.raises(npusim.ArgumentError, match=where):
        npusim.simulate(load_instructions(file), "ascend910b2", cores="0")


def test_files_without_instructions_and_kernels_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(npusim.ArgumentError, match="there is no instruction behind the first line"):
        load_instructions(written(tmp_path, []))
    with pytest.raises(npusim.ArgumentError, match=r"nowhere.jsonl: cannot be read"):
        load_instructions(tmp_path / "nowhere.jsonl")
    twice = replace(product(), a=Tensor("c_l0c", (96, 96), FP16))
    with pytest.raises(npusim.ProgramError, match="has a name for two buffers or tensors; rename"):
        save_instructions(twice, "ascend910b2", tmp_path / "x.jsonl")
    with pytest.raises(npusim.ProgramError, match="VEXP is known by its time alone; ask"):
        npusim.simulate(load_instructions(written(tmp_path, FLAGGED)), "ascend910b2",
                        np.zeros(4096, np.float16))  # fmt: skip
