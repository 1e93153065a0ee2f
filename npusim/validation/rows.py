"""Measured points and what a simulation answers: the two schemas as dataclasses.

The fields are the columns of the files; ``configs/silicon/README.md`` explains every one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npusim.validation.choices import NOTHING, Choice

#: Pipes whose busy time a profiler reports; a row's column is ``{pipe}_us``.
PIPES = ("cube", "mte1", "mte2", "mte3", "fixpipe", "vec", "scalar", "aiv_mte2")

#: What ``time_us`` of a kernel is: the task with its launch; the slowest core's or the mean core's
#: own time without it; one phase of the kernel.
TIME_KINDS = ("task", "core_max", "core_avg", "compute_only")


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot be simulated; the text says why and names the word or column."""


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One measured kernel: one field per column; sizes are elements, times microseconds.

    ``buffers_l1`` is the number of slots for A and for B.
    """

    id: str
    chip: str
    op: str
    family: str = ""
    pair: str | None = None
    cores: int | None = None
    M: int | None = None
    N: int | None = None
    K: int | None = None
    batch: int | None = None
    conv: str | None = None
    dtype_in: str | None = None
    dtype_out: str | None = None
    layout_a: str | None = None
    layout_b: str | None = None
    single_core_m: int | None = None
    single_core_n: int | None = None
    single_core_k: int | None = None
    base_m: int | None = None
    base_n: int | None = None
    base_k: int | None = None
    step_ka: int | None = None
    step_kb: int | None = None
    l1_k: int | None = None
    buffers_l1: tuple[int, int] | None = None
    buffers_l0: int | None = None
    buffers_l0c: int | None = None
    switches: tuple[str, ...] = ()
    swizzle: str | None = None
    order: str | None = field(default=None, metadata={"words": ("strided", "contiguous")})
    fastest: str | None = field(default=None, metadata={"words": ("m", "n")})
    inner: str | None = field(default=None, metadata={"words": ("m", "n")})
    window: int | None = None
    last_window: str | None = field(default=None, metadata={"words": ("own", "joined")})
    snake: bool | None = None
    scale_steps: int | None = None
    time_us: float | None = None
    time_kind: str | None = field(default=None, metadata={"words": TIME_KINDS})
    core_us: float | None = None
    cube_us: float | None = None
    mte1_us: float | None = None
    mte2_us: float | None = None
    mte3_us: float | None = None
    fixpipe_us: float | None = None
    vec_us: float | None = None
    scalar_us: float | None = None
    aiv_mte2_us: float | None = None
    busy_statistic: str | None = field(default=None, metadata={"words": ("mean", "median")})
    trust: str | None = field(default=None, metadata={"words": ("A", "B", "C")})
    anchor: str | None = None
    source: str | None = None
    note: str | None = None

    @property
    def busy_us(self) -> Mapping[str, float]:
        """The busy times that were measured, by pipe."""
        found = {pipe: getattr(self, f"{pipe}_us") for pipe in PIPES}
        return {pipe: value for pipe, value in found.items() if value is not None}

    @property
    def problem(self) -> tuple[object, ...]:
        """What kernels that differ by switches alone have in common."""
        return (self.M, self.N, self.K)


@dataclass(frozen=True)
class Operand:
    """An operand as a profile lists it: its shape in memory, dtype, and the name of its format."""

    shape: tuple[int, ...]
    dtype: str
    layout: str


@dataclass(frozen=True, kw_only=True)
class ProfiledRow(KernelRow):
    """A kernel as a profile lists it, whose tiling is chosen (``Choice``) and not measured.

    ``op`` is the profile's own word for its type, ``task`` the kind of task, ``where`` file and
    line of the first of ``launches`` that are alike; times are their medians.
    """

    task: str = ""
    operands: tuple[Operand, ...] = ()
    results: tuple[Operand, ...] = ()
    choice: Choice = NOTHING
    where: str = ""
    launches: int = 1

    @property
    def problem(self) -> tuple[object, ...]:
        """The operands."""
        return self.operands


@dataclass(frozen=True, kw_only=True)
class CallRow:
    """One measured framework call, all the kernels it launched included; sizes are elements.

    ``kernels`` are names with their counts, such as ``TransDatax3``; ``output_mask`` says which
    gradients (input, weight, bias) a convolution's backward computed.
    """

    id: str
    chip: str
    call: str
    family: str = ""
    dims: int | None = None
    N: int | None = None
    Cin: int | None = None
    Cout: int | None = None
    spatial: tuple[int, ...] | None = None
    kernel: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    transposed: bool | None = None
    output_padding: tuple[int, ...] | None = None
    dtype: str | None = None
    output_mask: tuple[bool, bool, bool] | None = None
    M: int | None = None
    Ncols: int | None = None
    K: int | None = None
    shape: tuple[int, ...] | None = None
    perm: tuple[int, ...] | None = None
    work: int | None = None
    time_us: float | None = None
    kernels: tuple[str, ...] = ()
    trust: str | None = field(default=None, metadata={"words": ("A", "B", "C")})
    source: str | None = None
    note: str | None = None

    @property
    def busy_us(self) -> Mapping[str, float]:
        """Nothing: calls are measured as a whole."""
        return {}


@dataclass(frozen=True)
class Simulated:
    """What a simulation answers for a row.

    ``time_us`` is comparable to the row's: with launch for a task and for a call, without it for
    the other kinds of time. ``busy_us`` is what a profiler reports per pipe of ``PIPES``
    (``npusim.validation.profiler``); absent where the kernel has no such pipe or does not use it,
    None where what it does here is not what was measured. ``kernels`` are the names of those
    launched.
    """

    time_us: float
    busy_us: Mapping[str, float | None]
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
