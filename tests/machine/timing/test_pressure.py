"""What lines ask of their pipe: lanes of vector instructions, blocks of the cube, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import npusim
from npusim.language import FP32, Kernel, Language, Plan, Tasks, Tensor, in_runs
from npusim.results import Result
from npusim.results.facts.explanation import KernelExplanation
from npusim.results.shown.report import Items, Table


class Rows(NamedTuple):
    """The rows of a task."""

    rows: int


@dataclass(frozen=True)
class RowSoftmax(Kernel):
    """y = exp(x - max) / sum, along each row of x.

    A number of a row is spread over it by pitch 0: as it is, 4 B, or a block of eight ``copies``.
    """

    x: Tensor
    y: Tensor
    copies: bool

    name, role = "row_softmax", "vector"

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        count, columns = self.x.shape
        size, together = 4 * columns, 8
        x_ub = k.buffer("UB", (together, columns), FP32, slots=2, name="x")
        y_ub = k.buffer("UB", (together, columns), FP32, slots=2, name="y")
        one_ub = k.buffer("UB", (8,), FP32, slots=4, name="one")
        block_ub = k.buffer("UB", (8,), FP32, slots=4, name="block")

        def spread(operation: str, row: Any) -> Any:
            one = one_ub.next().at(0, 4)
            k.vec_reduce(operation, one, row, 1, columns, FP32)
            if not self.copies:
                return one_ub.last().at(0, 4, rows=columns, pitch=0)
            block = block_ub.next().at(0, 32)
            k.vec_dup(block, 1.0, FP32)
            k.vec_binary("mul", block, block, one_ub.last().at(0, 4, rows=8, pitch=0), FP32)
            return block_ub.last().at(0, 32, rows=columns // 8, pitch=0)

        def emit(task: Rows) -> None:
            whole = task.rows * size
            a, b = x_ub.next(), y_ub.next()
            k.data_move(a.at(0, whole), self.x.at(0, whole, base="at"), FP32)
            for i in range(task.rows):
                row, out = a.at(i * size, size), b.at(i * size, size)
                k.vec_binary("sub", out, row, spread("max", row), FP32)
                k.vec_unary("exp", out, out, FP32)
                k.vec_binary("div", out, out, spread("add", out), FP32)
            k.data_move(self.y.at(0, whole, base="at"), b.at(0, whole), FP32)

        start = np.arange(0, count, together)
        rows = np.minimum(together, count - start)
        core = in_runs(len(start), cores)
        return Plan(Tasks(core, Rows, {"rows": rows}, {"at": start * size}), emit)


def softmax(copies: bool) -> Result:
    shape = (96, 512)
    kernel = RowSoftmax(Tensor("x", shape, FP32), Tensor("y", shape, FP32, "out"), copies)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    r = npusim.simulate(kernel, "ascend910b2", x)
    power = np.exp(x - x.max(axis=1, keepdims=True))
    assert r.outputs is not None
    assert r.outputs[0] is not None
    assert np.allclose(r.outputs[0], power / power.sum(axis=1, keepdims=True), rtol=1e-5)
    return r


def explained(result: Result) -> KernelExplanation:
    (kernel,) = result.explain(what_if=False).kernels
    return kernel


def test_an_operand_of_pitch_0_that_is_no_block_leaves_lanes_idle() -> None:
    """It takes a block for each of its rows: 258 cycles of a row of 512 in place of 34."""
    slow, quick = softmax(copies=False), softmax(copies=True)
    kernel = explained(slow)
    lines = {line.work.op: line for line in kernel.trace.lines}
    divided = lines["vec_div"]
    assert (divided.count, divided.lanes, divided.used * 8) == (96, 64, divided.room)
    assert divided.cycles == 96 * 258
    whole = sum(line.cycles for line in kernel.trace.lines if line.work.pipe == "V")
    assert divided.share == pytest.approx(divided.cycles / whole)
    (sentence,) = (text for text in kernel.idle_lanes if text.startswith("vec_div"))
    assert "uses 8 of 64 lanes: rows of 4 B take a block of 32 B each, with pitch 0" in sentence
    assert "repeat a whole block of copies" in sentence
    text = slow.explain(what_if=False).text()
    assert "vec_div of test_pressure:" in text
    assert "LINES of test_pressure.py" in text
    mended = {line.work.op: line for line in explained(quick).trace.lines}
    assert mended["vec_div"].cycles == 96 * 34
    assert mended["vec_div"].used == mended["vec_div"].room
    assert not any(text.startswith("vec_div") for text in explained(quick).idle_lanes)
    assert quick.runs[0].cycles < 0.6 * slow.runs[0].cycles


def test_lines_of_moves_and_products_have_bytes_and_blocks() -> None:
    a, b = npusim.spec((33, 512), "fp16"), npusim.spec((512, 512), "fp16")
    kernel = explained(npusim.ops.matmul(a, b, device="ascend910b2"))
    products = [line for line in kernel.trace.lines if line.work.pipe == "M"]
    assert sum(line.used for line in products) == 33 * 512 * 512
    assert sum(line.room for line in products) == kernel.trace.room
    assert all(line.lanes == 0 for line in products)
    loaded = [line for line in kernel.trace.lines if line.work.pipe == "MTE2"]
    assert sum(line.bytes for line in loaded) == kernel.run.gm_bytes - 33 * 512 * 4
    by_pipe: dict[str, float] = {}
    for line in kernel.trace.lines:
        by_pipe[line.work.pipe] = by_pipe.get(line.work.pipe, 0.0) + line.share
    assert all(share == pytest.approx(1) for pipe, share in by_pipe.items() if pipe != "S")


def test_the_page_of_ones_own_kernel_has_its_lines() -> None:
    report = softmax(copies=False).as_report()
    (section,) = (one for one in report.sections if one.title == "Lines of the kernels")
    items, table, _ = section.shown
    assert isinstance(items, Items)
    assert isinstance(table, Table)
    assert "vec_div of test_pressure" in items.texts[0]
    assert list(table.head[:3]) == ["pipe", "instruction", "line"]
    (row,) = (row for row in table.rows if row[1] == "vec_div")
    assert row[-1].text == "8/64"


def test_what_lines_fill_is_text_and_no_bar_where_the_first_line_fills_nothing() -> None:
    """The column was empty on a page whose first line moves data."""
    x, w = npusim.spec((2, 256, 14, 14), "fp16"), npusim.spec((256, 256, 3, 3), "fp16")
    r = npusim.ops.convolution_backward(x, x, w, padding=1, device="ascend910b2")
    report = r.as_report()
    (section,) = (one for one in report.sections if one.title == "Lines of the kernels")
    (table,) = (part for part in section.shown if isinstance(part, Table))
    assert table.rows[0][1] in ("MTE2", "MTE3")
    assert table.kinds[-5:] == ["n"] * 5
