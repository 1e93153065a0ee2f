"""Every operand the kernel language refuses, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ProgramError
from npusim.isa.dma import Window
from npusim.isa.operands import Slot, Tensor
from tests.program.conftest import Bench

X = Tensor("x", (4096,), FP16)
FLAT = Window(h=1, w=16, pad_left=0, pad_right=0, pad_top=0, pad_bottom=0, kernel_h=1, kernel_w=1)


Body = Callable[[Bench], None]


def load3d(
    s: Bench, window: Window = FLAT, m: tuple[int, int] = (0, 16), k: tuple[int, int] = (0, 16)
) -> None:
    s.k.load3d(s.a.last().at(0, 512), s.l1.last().at(0, 512), window, FP16, m=m, k=k)


def window(**changes: int) -> Window:
    fields = {**vars(FLAT), **changes}
    return Window(**fields)


REFUSED: dict[str, tuple[Body, str]] = {
    "no path": (
        lambda s: s.k.data_move(s.a.next().at(0, 64), X.at(0, 64), FP16),
        r"tiny cannot move GM->L0A \(GM reaches: L1, UB; L0A is reached from: L1\)",
    ),
    "no form of a path": (
        lambda s: s.k.nd2nz(s.ub.next().at(0, 512), X.at(0, 32, rows=16, pitch=32), FP16),
        r"tiny has no nd2nz form of GM->UB \(it has: plain\); use one of these",
    ),
    "sizes differ": (
        lambda s: s.k.data_move(s.ub.next().at(0, 64), X.at(0, 128), FP16),
        r"data_move .*: 128 B into 64 B; both sides must name equally many bytes",
    ),
    "atomic into a buffer": (
        lambda s: s.k.data_move(s.ub.next().at(0, 64), X.at(0, 64), FP16, atomic=True),
        r"an atomic add goes to GM, not into a buffer",
    ),
    "half an element": (
        lambda s: s.k.data_move(s.ub.next().at(0, 33), X.at(0, 33), FP16),
        r"rows of 33 B are not whole fp16 elements",
    ),
    "no bytes": (
        lambda s: s.k.nd2nz(s.l1.next().at(0, 512), X.at(0, 32, rows=0), FP16),
        r"x\[0:32B\] names no bytes; rows and bytes per row must be at least 1",
    ),
    "negative pitch": (
        lambda s: s.k.data_move(
            s.ub.next().at(0, 64), X.at(64, 32, rows=2, pitch=-64), FP16
        ),
        r"has a pitch of -64 B; it cannot be negative",
    ),
    "nd2nz size": (
        lambda s: s.k.nd2nz(s.l1.next().at(0, 512), X.at(0, 34, rows=16, pitch=64), FP16),
        r"l1#0\[0:512B\] has 512 B, it must have 1024 B",
    ),
    "load2d repeat 256": (
        lambda s: s.k.load2d(
            s.a.next().at(), s.l1.last().at(0, 512, rows=256), FP16
        ),
        r"load2d repeat is 256; the field holds 1 to 255",
    ),
    "load2d of other rows": (
        lambda s: s.k.load2d(s.a.next(), s.l1.last().at(0, 1024), FP16),
        r"rows of 1024 B; the source is one row of 512 B per fractal, as slot.fractals\(\) gives",
    ),
    "load2d into less": (
        lambda s: s.k.load2d(s.a.next().at(0, 512), s.l1.last().fractals(0, 2), FP16),
        r"a#0\[0:512B\] has 512 B, it must have 1024 B",
    ),
    "load2d leaves the source": (
        lambda s: s.k.load2d(s.a.next(), s.l1.last().fractals(7, 2), FP16),
        r"bytes 3584\.\.4608 of l1 lie outside its slot of 4096 B",
    ),
    "load2d transposes fp32": (
        lambda s: s.k.load2d(s.a.next(), s.l1.last().fractals(0, 1), FP32, transpose=True),
        r"only 2-byte types are transposed by load2d, not fp32",
    ),
    "load2d of GM": (
        lambda s: s.k.load2d(s.a.next(), X.at(0, 512), FP16),
        r"load2d: x\[0:512B\] lies in GM, load2d reads L1; bring it there with data_move or nd2nz",
    ),
    "load3d of GM": (
        lambda s: s.k.load3d(s.a.next(), X.at(0, 512), FLAT, FP16, m=(0, 16), k=(0, 16)),
        r"load3d: x\[0:512B\] lies in GM, load3d reads L1; bring it there with data_move or nd2nz",
    ),
    "mmad of GM": (
        lambda s: s.k.mmad(s.c.next(), X.at(0, 512), s.b.last(), 16, 16, 16, FP16, init=True),
        r"x\[0:512B\] lies in GM, this operand must be in a buffer; bring it there with data_move",
    ),
    "a buffer for an operand": (
        lambda s: s.k.vec_dup(cast(Slot, s.ub), 0.0),
        r"is no operand; an operand is a slot \(buffer.next\(\) or last\(\)\) or a region",
    ),
    "mmad m": (
        lambda s: s.k.mmad(s.c.next(), s.a.last(), s.b.last(), 0, 16, 16, FP16, init=True),
        r"mmad m is 0; the field holds 1 to 4095",
    ),
    "mmad k": (
        lambda s: s.k.mmad(s.c.next(), s.a.last(), s.b.last(), 16, 4096, 16, FP16, init=True),
        r"mmad k is 4096; the field holds 1 to 4095",
    ),
    "mmad beyond its slots": (
        lambda s: s.k.mmad(s.c.next(), s.a.last(), s.b.last(), 16, 144, 16, FP16, init=True),
        r"bytes 0\.\.4608 of a lie outside its slot of 4096 B in L0A",
    ),
    "mmad of the wrong memory": (
        lambda s: s.k.mmad(s.c.next(), s.b.last(), s.a.last(), 16, 16, 16, FP16, init=True),
        r"b#-1\[0:512B\] lies in L0B, this operand must be in L0A",
    ),
    "drain of the wrong memory": (
        lambda s: s.k.fixpipe(X.at(0, 1024), s.ub.last(), 16, 16, FP32, staging=None),
        r"lies in UB, this operand must be in L0C",
    ),
    "drain of the wrong size": (
        lambda s: s.k.fixpipe(X.at(0, 1000), s.c.last(), 16, 16, FP32, staging=None),
        r"a 16 x 16 tile leaves as 1 rows of 1024 B, not as 1 of 1000 B",
    ),
    "drain as matrix rows": (
        lambda s: s.k.fixpipe(X.at(0, 1024), s.c.last(), 16, 16, FP32, staging=None, nd=True),
        r"a 16 x 16 tile leaves as 16 rows of 64 B, not as 1 of 1024 B",
    ),
    "vector work outside UB": (
        lambda s: s.k.vec_dup(s.l1.next().at(0, 64), 0.0),
        r"l1#0\[0:64B\] lies in L1, this operand must be in UB",
    ),
    "unknown binary": (
        lambda s: s.k.vec_binary("pow", s.ub.last().at(), s.ub.last().at(), s.ub.last().at(), FP16),
        r"there is no operation 'pow'; it is one of add, sub, mul, max, min",
    ),
    "unknown scalar": (
        lambda s: s.k.vec_scalar("add", s.ub.last().at(), s.ub.last().at(), 1.0, FP16),
        r"there is no operation 'add'; it is one of adds, muls, maxs, mins",
    ),
    "unknown reduction": (
        lambda s: s.k.vec_reduce("mean", s.ub.last().at(), s.ub.last().at(), 1, 32, FP16),
        r"there is no operation 'mean'; it is one of add, max, min",
    ),
    "binary sizes": (
        lambda s: s.k.vec_binary(
            "add", s.ub.next().at(0, 64), s.ub.last().at(0, 64), s.ub.last().at(0, 32), FP16
        ),
        r"\[0:32B\] has 32 B, it must have 64 B",
    ),
    "scalar sizes": (
        lambda s: s.k.vec_scalar("adds", s.ub.next().at(0, 64), s.ub.last().at(0, 32), 1.0, FP16),
        r"has 32 B, it must have 64 B",
    ),
    "cast sizes": (
        lambda s: s.k.vec_cast(s.ub.next().at(0, 64), s.ub.last().at(0, 64), FP16, FP32),
        r"has 64 B, it must have 128 B",
    ),
    "reduction sizes": (
        lambda s: s.k.vec_reduce("add", s.ub.next().at(0, 8), s.ub.last().at(0, 64), 2, 8, FP16),
        r"has 64 B, it must have 32 B",
    ),
    "flag to itself": (
        lambda s: s.k.set_flag("V", "V", 0),
        r"flag V->V: a pipe is in order already, use two pipes",
    ),
    "flag id": (
        lambda s: s.k.wait_flag("V", "MTE3", 8),
        r"flag id 8: tiny has ids 0 to 7",
    ),
    "no such pipe": (
        lambda s: s.k.pipe_barrier("MTE9"),
        r"pipe_barrier MTE9 runs on pipe MTE9, which core kind 'core' of tiny lacks",
    ),
    "scope": (
        lambda s: s.k.core_set_flag("MTE3", 0, "chip"),
        r"core_set_flag scope is 'chip'; it is 'group' or 'all'",
    ),
    "count": (
        lambda s: s.k.core_wait_flag("MTE2", 0, 0),
        r"core_wait_flag #0 x0 on MTE2: the count must be at least 1",
    ),
    "flag between cores": (
        lambda s: s.k.core_set_flag("MTE3", 11, "group"),
        r"core_set_flag #11 \(group\) on MTE3: tiny has flags between cores with ids 0 to 10",
    ),
    "wait between cores": (
        lambda s: s.k.core_wait_flag("MTE2", -1),
        r"core_wait_flag #-1 x1 on MTE2: tiny has flags between cores with ids 0 to 10",
    ),
    "load3d map": (
        lambda s: load3d(s, window(w=32768)),
        r"load3d w is 32768; the field holds 1 to 32767",
    ),
    "load3d pad": (
        lambda s: load3d(s, window(pad_top=256)),
        r"load3d pad_top is 256; the field holds 0 to 255",
    ),
    "load3d stride": (
        lambda s: load3d(s, window(stride_w=64)),
        r"load3d stride_w is 64; the field holds 1 to 63",
    ),
    "load3d filter": (
        lambda s: load3d(s, window(kernel_h=256)),
        r"load3d kernel_h is 256; the field holds 1 to 255",
    ),
    "load3d dilation": (
        lambda s: load3d(s, window(dilation_w=0)),
        r"load3d dilation_w is 0; the field holds 1 to 255",
    ),
    "load3d without positions": (
        lambda s: load3d(s, window(kernel_h=2)),
        r"load3d: the filter reaches past the padded map of 1 x 16; no position is left",
    ),
    "load3d position": (
        lambda s: load3d(s, m=(8, 8)),
        r"load3d starts at position 8, column 0 for 8 x 16; starts must be multiples of 16 and 16",
    ),
    "load3d column": (lambda s: load3d(s, k=(8, 8)), r"load3d starts at position 0, column 8"),
    "load3d extent": (lambda s: load3d(s, m=(0, 0)), r"for 0 x 16; .* both extents positive"),
    "load3d before the map": (lambda s: load3d(s, m=(-16, 16)), r"starts at position -16"),
    "load3d target": (
        lambda s: load3d(s, m=(0, 17)),
        r"a#-1\[0:512B\] has 512 B, it must have 1024 B",
    ),
    "load3d planes": (
        lambda s: load3d(s, k=(16, 16)),
        r"columns 16 to 32 need 2 whole planes of 1 x 16 x 32 B = 1024 B",
    ),
    "load3d part of a plane": (
        lambda s: load3d(s, window(w=15)),
        r"has 512 B; columns 0 to 16 need 1 whole planes of 1 x 15 x 32 B = 480 B",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_illegal_operands_are_refused_when_issued(case: str, bench: Bench) -> None:
    body, message = REFUSED[case]
    with pytest.raises(ProgramError, match=message):
        body(bench)
    assert not bench.k.instructions
