"""A kernel language with a buffer in every memory of ``tiny``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npusim.base.dtypes import FP32
from npusim.machine.device.catalog import load_device
from npusim.machine.program.language import BufferHandle, Language

TINY = load_device("tiny")


class Bench(SimpleNamespace):
    """A builder of `tiny` with one buffer per memory: 4 KiB each, two slots in UB."""

    k: Language
    l1: BufferHandle
    a: BufferHandle
    b: BufferHandle
    c: BufferHandle
    ub: BufferHandle


@pytest.fixture
def bench() -> Bench:
    k = Language(TINY, TINY.core_kind("cube"))
    return Bench(
        k=k,
        l1=k.buffer("L1", (4096,), None, name="l1"),
        a=k.buffer("L0A", (4096,), None, name="a"),
        b=k.buffer("L0B", (4096,), None, name="b"),
        c=k.buffer("L0C", (1024,), FP32, name="c"),
        ub=k.buffer("UB", (4096,), None, slots=2, name="ub"),
    )
