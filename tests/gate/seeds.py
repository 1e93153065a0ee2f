"""Seeded regressions and neutral refactorings of shipped kernels and of those of the guide.

A seed is one edit of one file. Those of a batch go into one commit: each regression must be found
in its case, by its line, among all the other changes, and no other case may be flagged.
"""

from __future__ import annotations

from typing import NamedTuple

SCALE = "--kernel scale.py:Scale --arg count=4096000 --device ascend910"
SOFTMAX = "--kernel softmax.py:Softmax --arg columns=200000 --device ascend910b2"
MATMUL = "matmul --m 512 --k 2048 --n 512 --device ascend910b2"
FILTER = "conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --batch 2"
INPUT = "conv2d_backprop_input --device ascend910 --layer resnet50/res4_3x3 --batch 2"
IM2COL = "im2col --device ascend910b2 --channels 32 --size 28x28 --kernel 3 --padding 1 --batch 4"
COL2IM = IM2COL.replace("im2col", "im2col_backward")
MEM_SET = "--kernel kernels/mem_set.py:MemSet --arg target=8000000:fp32:out --device ascend910b2"
BIAS = (
    "--kernel kernels/bias_add.py:BiasAdd --arg y=4x1x64x3136x16:fp16:inout --arg bias=1024:fp16"
    " --device ascend910b2"
)
SUM = (
    "--kernel kernels/sum_parts.py:SumParts --arg parts=8x1000000:fp32 --arg out=1000000:fp16:out"
    " --device ascend910b2"
)
DECONV = "deconv_grad_filter --cin 16 --cout 32 --size 16x16 --kernel 4 --stride 2 --cores 0-3"
GRAD_IN = "conv_grad_input --cin 16 --cout 32 --size 16x16 --kernel 4 --stride 2 --cores 0-3"


FILTER_B = FILTER.replace("ascend910", "ascend910b2").replace("res4", "res5")


class Seed(NamedTuple):
    """An edit of ``file``, of every ``old``; ``case`` is a line whose time it may change."""

    file: str
    old: str
    new: str
    case: str


def _lost(file: str, buffer: str, case: str, slots: str = "2") -> Seed:
    """A double buffer that is lost."""
    return Seed(file, f"slots={slots}, {buffer}", f"slots=1, {buffer}", case)


def _barrier(file: str, line: str, case: str) -> Seed:
    """A barrier before a line that is there once."""
    indent = line[: len(line) - len(line.lstrip())]
    k = "self.k" if "self.k." in line else "k"
    return Seed(file, line, f"{indent}{k}.pipe_barrier()\n{line}", case)


#: Twenty regressions: lost double buffers, smaller tiles, barriers, strides, lost unit flags.
REGRESSIONS = (
    _lost("scale.py", 'name="a"', SCALE),
    Seed("softmax.py", "FP32, slots=2) for _ in", "FP32, slots=1) for _ in", SOFTMAX),
    _lost("kernels/matmul.py", 'name="a_l0a"', MATMUL, "t.l0_slots"),
    Seed(
        "kernels/im2col.py", "Held(self.read.dtype, size, 2)", "Held(self.read.dtype, size)", IM2COL
    ),
    Seed("scale.py", "1_000_000, chunk: int = 4096", "1_000_000, chunk: int = 512", SCALE),
    Seed("kernels/matmul.py", "unit_flag=t.unit_flag", "unit_flag=False", MATMUL),
    Seed("kernels/im2col_backward.py", "Held(dtype, patches, 2)", "Held(dtype, patches)", COL2IM),
    _barrier("softmax.py", "            k.data_move(y, b.at(0, rows * size), FP32)\n", SOFTMAX),
    _barrier("scale.py", "            k.data_move(y, b, FP16)", SCALE),
    _lost("kernels/conv_backprop_filter.py", 'name="x_l0b"', FILTER, "t.l0_slots"),
    Seed("kernels/mem_set.py", "CLEAR_BYTES, 1,", "CLEAR_BYTES // 16, 1,", MEM_SET),
    _barrier("kernels/matmul.py", "        self.k.mmad(c, a0, b0, *sizes", MATMUL),
    Seed(
        "kernels/parts/matmul_operands.py",
        "e, pitch = dtype.bytes, self.columns * dtype.bytes\n",
        "e, pitch = dtype.bytes, self.columns * dtype.bytes - 2\n",
        MATMUL,
    ),
    _lost("kernels/bias_add.py", 'name="y_ub"', BIAS, "SLOTS"),
    _lost("kernels/sum_parts.py", 'name="part"', SUM),
    Seed("softmax.py", "block: int = 256\n", "block: int = 64\n", SOFTMAX),
    _lost("kernels/parts/dsp.py", 'name=f"{other}_am"', DECONV),
    Seed("scale.py", "in_runs(len(start), cores)", "np.arange(len(start)) * 2 % cores", SCALE),
    Seed("kernels/conv_backprop_filter.py", "unit_flag=t.unit_flag", "unit_flag=False", FILTER_B),
    _lost("kernels/implicit_gemm.py", 'name="x_l0a"', INPUT, "t.l0_slots"),
)

#: Twenty refactorings that change no cycle: names, comments, helpers, order, other spellings.
REFACTORINGS = (
    Seed("kernels/mem_set.py", "zeros", "cleared", MEM_SET),
    Seed("kernels/bias_add.py", "= c0 * dtype.bytes, len(", "= dtype.bytes * c0, len(", BIAS),
    Seed("kernels/sum_parts.py", "more = nexts.next()", "more = nexts.next()  # another", SUM),
    Seed("kernels/conv_backprop_filter.py", '"""Load what is', '"""Bring what is', FILTER),
    Seed(
        "kernels/implicit_gemm.py",
        "rows, n, taps = len(tile.m), len(tile.n), h.kernel * w.kernel",
        "n, rows, taps = len(tile.n), len(tile.m), h.kernel * w.kernel",
        INPUT,
    ),
    Seed(
        "kernels/parts/dsp.py",
        "[list(self._runs(tap, columns.size)) for tap in taps]",
        "[[*self._runs(tap, columns.size)] for tap in taps]",
        DECONV,
    ),
    Seed(
        "kernels/dsp_grad_input.py",
        "row, size = self.kernel.ends.width * e, u.n * e",
        "size, row = u.n * e, self.kernel.ends.width * e",
        GRAD_IN,
    ),
    Seed(
        "kernels/bias_add.py",
        "slot, apart = y_ub.next(), round_up(row, BLOCK_BYTES)",
        "apart = round_up(row, BLOCK_BYTES)\n            slot = y_ub.next()",
        BIAS,
    ),
    Seed("softmax.py", "folded", "reduced", SOFTMAX),
    Seed(
        "kernels/im2col.py",
        'patch = self.held["patch"].next()\n            image = whole',
        'image = whole\n            patch = self.held["patch"].next()',
        IM2COL,
    ),
    Seed(
        "kernels/im2col_backward.py", "if not high or not wide:", "if not (high and wide):", COL2IM
    ),
    Seed("kernels/sum_parts.py", "= 4 * FP32.bytes + (2", "= FP32.bytes * 4 + (2", SUM),
    Seed("scale.py", "chunk", "piece", "--kernel scale.py:Scale --device tiny"),
    Seed(
        "kernels/dsp_grad_input.py",
        "positions = rows.size * columns.size",
        "positions = columns.size * rows.size",
        GRAD_IN,
    ),
    Seed(
        "kernels/mem_set.py",
        "if chunk.first:",
        "if chunk.first is not False and chunk.first:",
        MEM_SET,
    ),
    Seed(
        "kernels/conv_backprop_filter.py",
        "kernel, c0, staging = self.kernel, self.kernel.shape.c0, self.staging",
        "staging, kernel, c0 = self.staging, self.kernel, self.kernel.shape.c0",
        FILTER,
    ),
    Seed("softmax.py", "size = task.columns * 4", "size = 4 * task.columns", SOFTMAX),
    Seed(
        "kernels/parts/matmul_operands.py",
        "first, n1 = block[0] - feed.slab.k0, ceil_div(n, 16)",
        "n1 = ceil_div(n, 16)\n    first = block[0] - feed.slab.k0",
        MATMUL,
    ),
    Seed(
        "kernels/im2col.py",
        "taps = list(enumerate(product(rows.taps, columns.taps)))",
        "taps = [*enumerate(product(rows.taps, columns.taps))]",
        IM2COL,
    ),
    Seed("kernels/bias_add.py", "if tile.channels < c0:", "if c0 > tile.channels:", BIAS),
)

#: Of each that many go into one commit.
BATCH = 4
