"""One operator call: its tensors, the kernels it launches in order, and the L2 between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct, field

from npusim.base.dtypes import DType
from npusim.base.errors import ArgumentError, CapacityError, RoomError
from npusim.base.records import replace
from npusim.base.resources import require_room
from npusim.call.options import Options, require_short
from npusim.call.spec import Array, Operand, Spec, elements_overlap
from npusim.call.tilings.choice import Around, K, chosen
from npusim.call.tilings.words import asked_of, is_library, is_tuned, stands_for_library
from npusim.kernels.layout.strided_copy import Contiguous, ViewCopy, elements_spanned
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import parse_core_mask
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import lay_out
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.program import Program
from npusim.machine.timing.bounds import UNITS, GmBytes, longest_first, memory_bounds
from npusim.machine.timing.run import Launched, Launches, new_l2
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.problem.limits.facts import OperatorFacts
from npusim.problem.limits.table import Undocumented, check, check_undocumented
from npusim.problem.work import ELEMENTWISE, KERNEL, PRODUCT
from npusim.results import Result
from npusim.results.facts.number_text import bytes_text
from npusim.reuse.launches import Again, CachedLaunches, Step, figures_behind, notes_on_figures
from npusim.reuse.programs import program_of
from npusim.version import __version__

#: The kernels of the calls that are planned now; None while calls run.
_planned: ContextVar[list[Kernel] | None] = ContextVar("planned", default=None)


@contextmanager
def planning() -> Iterator[list[Kernel]]:
    """Plan the calls made inside: kernels are checked against the device and then left out.

    Such a call takes ``Spec``s. Its ``Result`` has ``workspace_bytes`` and notes, and no runs. The
    kernels are collected in the list.
    """
    kernels: list[Kernel] = []
    token = _planned.set(kernels)
    try:
        yield kernels
    finally:
        _planned.reset(token)


class Call(Struct, dict=True):
    """Runs kernels one after another and collects the ``Result``."""

    operator: str
    options: Options
    timing_only: bool
    notes: list[str] = field(default_factory=list)
    runs: list[KernelRun] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    workspace_bytes: int = 0
    operands: Mapping[str, int] = field(default_factory=dict)  # bytes by argument
    described_by: OperatorFacts | None = None  # of an operator with limits
    undocumented: Undocumented | None = None  # of an operator without a page of limits

    def __post_init__(self) -> None:
        self.device = self.options.machine
        self.figures: dict[str, None] = {}  # what the time rests on so far, in order of use
        self.held: dict[str, int] = {}  # bytes of main memory by tensor
        self._steps: list[Step] = []
        self.own_kernel = False  # given as such, with its tiling
        self._operands: dict[str, int] = {}  # bytes the problem needs, as far as kernels know
        self._operand_values: dict[str, Operand] = {}
        self._results: dict[str, int] = {}
        self._tilings: dict[str, Any] = {}
        self._work_classes: list[str] = []  # of the runs
        self.extrapolated: dict[str, str] = {}  # kernels whose tiling no published rule covers: why
        self._touched: set[str] = set()  # tensors that the L2 may hold
        self.layouts = dict(self.options.layouts or {})  # of operands and results with gaps
        self._to_copy: dict[str, Tensor] = {}  # results that are copied into views at the end
        #: When tilings are chosen: to these, and to the kind of launch.
        self.blind = isinstance(self.options.tiling, str) and self.options.tiling == "library"

    def check(self, facts: Mapping[str, Any]) -> None:
        """Hold the call against the documented limits of its operator; ``RuleError`` outside.

        Operands that main memory cannot hold are a ``CapacityError``.
        """
        assert self.described_by is not None, "the card of an operator with limits has facts"
        self.notes += check(
            self.operator, self.described_by, facts, self.device, self.options.rules
        )
        self.require_memory(self.operands)

    def check_undocumented(self, facts: Mapping[str, Any]) -> None:
        """Note that the operator has no page of limits, and what its sister's do not permit.

        ``facts`` are those of the sister's call. Raises as ``check`` does.
        """
        assert self.undocumented is not None, "the card of such an operator says so"
        self.notes += check_undocumented(
            self.operator, self.undocumented, facts, self.device, self.options.rules
        )
        self.require_memory(self.operands)

    @cached_property
    def launches(self) -> Launches:
        """Launches so far, and the L2 it left; where numbers are wanted, the plain way."""
        kind = CachedLaunches if self.timing_only else Launches
        return kind(self.device, self.groups, self.options.engine)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Core groups under the mask; ``ArgumentError`` where it names none, or one not there."""
        return parse_core_mask(self.options.cores, self.device)

    @property
    def cube_cores(self) -> int:
        """Cores with a cube unit under the mask."""
        return len(self.groups) * self.device.core_kind("cube").per_group

    @property
    def vector_cores(self) -> int:
        """Cores with a vector unit under the mask."""
        return len(self.groups) * self.device.core_kind("vector").per_group

    def require_dtype(self, dtype: DType) -> None:
        """Raise ``ArgumentError`` if the device's cube cannot multiply ``dtype``."""
        rates = self.device.cube.rates if self.device.cube else {}
        if dtype.name not in rates:
            have = f"its cube multiplies {', '.join(rates)}" if rates else "it has no cube unit"
            way_out = "choose one of these types, or" if rates else "use"
            raise ArgumentError(
                f"{self.operator}: {self.device.name} cannot multiply {dtype}: {have}; {way_out} "
                f"a device whose cube has {dtype} (`npusim devices`)"
            )

    def require_memory(self, sizes: Mapping[str, int]) -> None:
        """Raise ``CapacityError`` unless main memory holds so many bytes for each argument.

        ``sizes`` may have results and copies in it too; one of the caller's operands is named.
        """
        total, memory = sum(sizes.values()), self.device.main_memory.size_bytes
        if total > memory:
            terms = ", ".join(f"{name} {bytes_text(size)}" for name, size in sizes.items() if size)
            operands = {name: sizes.get(name, size) for name, size in self.operands.items()}
            choices = operands or sizes
            most = max(choices, key=choices.__getitem__)
            raise CapacityError(
                f"{self.operator}: {self.device.name} has {bytes_text(memory)} of main memory, but "
                f"tensors with copies in other layouts take {bytes_text(total)}: {terms}; use a "
                f"smaller {most}, or a device with more (main_memory.size)"
            )

    def require_time(self, instructions: int, macs: int, part: str = "") -> None:
        """Raise ``CapacityError`` for work of many minutes, unless the caller sees its progress.

        ``instructions`` and multiply-adds are those of a kernel, ``part``, or at least of all.
        """
        if self.options.progress is None:
            what = self.operator + (f": {part}" if part else "")
            alone = self.timing_only or _planned.get() is not None
            require_short(what, instructions, macs, self.options.engine, timing_only=alone)

    def _hold(self, name: str, tensor: Tensor) -> None:
        """Count a tensor that is put into main memory, which must have room for all there are."""
        self.held[name] = tensor.size_bytes
        self.require_memory(self.held)
        if not self.timing_only:
            require_room(
                f"{self.operator}: tensors and copies in other layouts take",
                sum(self.held.values()),
                "give operands as npusim.spec(shape, dtype) for the time alone, or simulate a part",
            )

    def input(
        self,
        name: str,
        value: Operand,
        as_dtype: DType,
        shape: tuple[int, ...] | None = None,
        *,
        warm: bool = False,
    ) -> Tensor:
        """Put an operand into global memory; resident in L2 already if ``warm``, or all are.

        ``shape`` views the same elements differently. An operand that does not lie contiguous is
        copied by a kernel, and the copy is returned.
        """
        shape = tuple(value.shape) if shape is None else shape
        layout = self.layouts.get(name)
        if layout is None:
            return self._placed(name, value, as_dtype, shape, warm=warm)
        if as_dtype.values > 1:
            raise ArgumentError(
                f"{name} is {as_dtype}; elements of less than a byte have no strides: give it "
                "contiguous"
            )
        assert layout.strides is not None
        count = elements_spanned(layout.shape, layout.strides)
        if isinstance(value, Spec):
            stored: Operand = Spec((count,), as_dtype)
        else:
            stored = np.zeros(count, as_dtype.numpy)
            _view(stored, layout)[...] = value
        storage = self._placed(name, stored, as_dtype, (count,), warm=warm)
        copy = self.workspace(f"{name}_contiguous", shape, as_dtype)
        self.launch_spread(Contiguous(layout.shape, layout.strides, storage, copy))
        return copy

    def _placed(
        self, name: str, value: Operand, as_dtype: DType, shape: tuple[int, ...], *, warm: bool
    ) -> Tensor:
        """Put the elements of an operand into global memory, contiguous, of a ``shape``."""
        same = (earlier for earlier, operand in self._operand_values.items() if operand is value)
        tensor = Tensor(name, shape, as_dtype, "in", next(same, ""))
        self._operands[name] = 0
        self._operand_values[name] = value
        self._hold(name, tensor)
        if not self.timing_only:
            array = np.ascontiguousarray(value, dtype=as_dtype.numpy)
            self.arrays[name] = array.reshape(tensor.shape)
            with np.errstate(invalid="ignore"):  # bf16 is looked at as fp32
                finite = np.isfinite(array).all()
            if not finite:
                self.notes.append(
                    f"{name} has numbers that are not finite: products with padding and inserted "
                    "zeros can make NaN of more results than a convolution without them"
                )
        if (warm or self.options.start == "warm") and tensor.size_bytes:
            self._touched.add(name)
            self.launches.preload(name, tensor.size_bytes)
            self._steps.append(tensor)
        return tensor

    def output(self, name: str, shape: tuple[int, ...], as_dtype: DType) -> Tensor:
        """Reserve global memory for a result, poisoned until a kernel writes it.

        Where the result does not lie contiguous this is a workspace, from which ``result`` copies.
        """
        tensor = Tensor(name, shape, as_dtype, "out")
        if name in self.layouts and tensor.size_bytes:
            self._keep_to_copy(tensor, self.layouts[name])
        self._results[name] = tensor.size_bytes
        self._hold(name, tensor)
        if not self.timing_only:
            from npusim.machine.numerics.memory import POISON  # noqa: PLC0415 - for numbers only

            try:
                raw = np.full(tensor.size_bytes, POISON, np.uint8)
            except MemoryError as error:
                raise CapacityError(
                    f"{self.operator}: {name} takes {bytes_text(tensor.size_bytes)}, which this "
                    "computer has not left; give operands as npusim.spec(shape, dtype) for the time"
                    " alone"
                ) from error
            self.arrays[name] = raw.view(as_dtype.numpy).reshape(shape)
        return tensor

    def workspace(self, name: str, shape: tuple[int, ...], as_dtype: DType) -> Tensor:
        """Reserve global memory between kernels; counted in ``Result.workspace_bytes``."""
        tensor = self.output(name, shape, as_dtype)
        self.workspace_bytes += tensor.size_bytes
        del self._results[name]
        return tensor

    def _keep_to_copy(self, tensor: Tensor, layout: Spec) -> None:
        """Remember a result that is copied into a view at the end of the call."""
        assert layout.strides is not None
        if prod(layout.shape) != prod(tensor.shape) or layout.dtype is not tensor.dtype:
            raise ArgumentError(
                f"{self.operator}: layouts has {layout.dtype} of shape {layout.shape} for "
                f"{tensor.name}; the call writes {tensor.dtype} of {prod(tensor.shape)} elements"
            )
        if elements_overlap(layout.shape, layout.strides):
            self.notes.append(
                f"elements of {tensor.name} share memory (strides {layout.strides}): what is left "
                "there depends on the order of writing, and no copy is timed"
            )
            return
        self._to_copy[tensor.name] = tensor
        self.workspace_bytes += tensor.size_bytes

    def _copy_results(self, outputs: dict[str, Array | None]) -> dict[str, Array | None]:
        """Launch the copies of results that do not lie contiguous; ``outputs`` with the copies."""
        copied = dict(outputs)
        for name, tensor in self._to_copy.items():
            if name not in self._touched:  # nothing was computed
                continue
            layout = self.layouts[name]
            assert layout.strides is not None
            count = elements_spanned(layout.shape, layout.strides)
            view = Tensor(f"{name}_view", (count,), tensor.dtype, "out")
            self._hold(view.name, view)
            if not self.timing_only:
                self.arrays[view.name] = np.zeros(count, tensor.dtype.numpy)
            self.launch_spread(ViewCopy(layout.shape, layout.strides, tensor, view))
            for key, array in outputs.items():
                if array is not None and np.shares_memory(array, self.arrays[name]):
                    copied[key] = _view(self.arrays[view.name], layout)
        return copied

    def view(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The same memory under another shape."""
        if not self.timing_only:
            self.arrays[tensor.name] = self.arrays[tensor.name].reshape(shape)
        return replace(tensor, shape=shape)

    def spread(self, kernel: K) -> K:
        """A vector kernel on those cores on which it ends first; the library takes all."""
        if is_library(self.options.tiling, kernel.name):
            return kernel
        return kernel.on_few(self.device, self.vector_cores)

    def launch_spread(self, kernel: Kernel) -> None:
        """Launch a vector kernel on those cores on which it ends first."""
        self.launch(self.spread(kernel))

    def clear(self, tensor: Tensor) -> None:
        """Launch the kernel that sets a tensor to zero."""
        self.launch(MemSet(tensor))

    def choose(self, kernel: K, launches: Around[K] | None = None, *, simulated: bool = False) -> K:
        """``kernel`` with the tiling "auto"; see ``npusim.call.tilings.choice.chosen``.

        A call that is only planned takes the best estimate unless its workspace depends on the
        choice: where accumulations are deterministic, and where it is to be ``simulated``. A
        ``blind`` one chooses as a library does, which knows neither how kernels are launched nor
        what the L2 holds.
        """
        with self._errors_of(kernel.name):
            return chosen(
                kernel,
                self.device.launching("single") if self.blind else self.device,
                self.groups,
                warm=() if self.blind else self._touched,
                launches=launches,
                simulated=simulated or self.options.deterministic or _planned.get() is None,
            )

    @contextmanager
    def _errors_of(self, kernel: str) -> Iterator[None]:
        """Name the kernel and a way out in the error of a call too large for this computer.

        Larger tiles would help somebody who gave a tiling.
        """
        try:
            yield
        except RoomError as error:
            is_automatic = isinstance(asked_of(self.options.tiling, kernel), str)
            way_out = "" if is_automatic else ", or give a tiling with larger tiles"
            raise RoomError(f"{self.operator}: {kernel}: {error}{way_out}") from error

    def tuned(self, kernel: K) -> K:
        """``kernel`` with its fastest tiling, started from the L2 as it is now.

        It is as given unless the call asks for "tuned", and while calls are only planned. What was
        found is kept on disk.
        """
        if not is_tuned(self.options.tiling, kernel.name) or _planned.get() is not None:
            return kernel
        from npusim.call.tilings.problem import TuningProblem  # noqa: PLC0415 - few calls are tuned
        from npusim.call.tilings.tuned import search  # noqa: PLC0415

        now = self.launches.l2
        warm = self.options.engine == "fast" and len(now.content()) > 0
        # As it is, on a device that notes nothing: it may be sent to other processes.
        l2 = new_l2(self.device, "fast", cast(Any, now).held()) if warm else None
        tuned = search(TuningProblem(kernel, self.device, self.groups, l2), (kernel,))
        self.notes.append(f"{kernel.name}: {tuned.verdict}")
        return cast(K, tuned.best)

    def launch(self, kernel: Kernel, written_whole: str | None = None) -> None:
        """Build, time and (unless timing-only) execute one kernel; while planning only check it.

        With ``written_whole``, a place for errors, it has to write all of its outputs if it is
        checked.
        """
        self._touched |= {tensor.name for tensor in kernel.tensors if tensor.role != "in"}
        planned = _planned.get()
        if planned is not None:
            with self._errors_of(kernel.name):
                lay_out(kernel, self.device, self.groups)
            planned.append(kernel)
            return
        self._steps.append(kernel)
        launched = self._recalled(kernel) if self.timing_only else None
        if launched is None:
            with self._errors_of(kernel.name):
                program = program_of(kernel, self.device, self.groups)
            self.require_time(program.instructions, program.macs, program.kernel)
            launched = self.launches.time(
                kernel,
                program,
                timeline=self.options.timeline,
                progress=self._progress(program, "timing"),
            )
            if not self.timing_only:
                self._execute(program, written_whole)
        self._work_classes.append(self._work_class(kernel, launched.run.macs))
        self._record(launched, kernel.name, kernel.tiling_in_use)

    def _work_class(self, kernel: Kernel, macs: int) -> str:
        """The class of measured rows that a kernel of this call belongs to, if it did ``macs``.

        A product whose tiling a word asks for stands for the library's.
        """
        if not kernel.work_class:
            return KERNEL if macs else ELEMENTWISE
        asked = asked_of(self.options.tiling, kernel.name)
        if kernel.work_class == PRODUCT and (self.own_kernel or not stands_for_library(asked)):
            return KERNEL
        return kernel.work_class

    def add_run(self, run: KernelRun) -> None:
        """Add what was timed without a kernel, whose time is that of bytes."""
        self.runs.append(run)
        self._work_classes.append(ELEMENTWISE)

    @property
    def work(self) -> str:
        """The class of its longest kernel that multiplies; where none does, of its longest."""
        kernels = list(zip(self.runs, self._work_classes, strict=True))
        multiplying = [(run, work) for run, work in kernels if run.macs]
        longest = max(multiplying or kernels, key=lambda kernel: kernel[0].cycles, default=None)
        return "" if longest is None else longest[1]

    def _recalled(self, kernel: Kernel) -> Launched | None:
        """Launch a kernel whose run is known, whose progress is one step; None if it is not."""
        launched = self.launches.known(kernel, timeline=self.options.timeline)
        if launched is not None and self.options.progress is not None:
            count = launched.run.instructions
            self.options.progress(kernel.name, "timing", count, count)
        return launched

    def _execute(self, program: Program, written_whole: str | None) -> None:
        """Compute the numbers of a kernel, and look for mistakes if the call is checked."""
        from npusim.machine.numerics.executor import execute  # noqa: PLC0415 - for numbers only

        arrays = {tensor.name: self.arrays[tensor.name] for tensor in program.tensors}
        execute(program, arrays, self._progress(program, "numbers"))
        if self.options.check:
            from npusim.machine.program.unwritten import check_mistakes  # noqa: PLC0415

            check_mistakes(program, written_whole)

    def _record(self, launched: Launched, kernel: str, tiling: Any) -> None:
        """Add the run of a kernel to the call: its rows, its tiling, what its time rests on."""
        beyond = self.extrapolated.get(kernel, "")
        self.runs.append(replace(launched.run, extrapolated=beyond) if beyond else launched.run)
        if tiling is not None:
            self._tilings[kernel] = tiling
        self.figures |= dict.fromkeys(figures_behind(self.device, launched))
        for name, size in launched.read.items():
            if name in self._operands:  # not what is left between kernels
                self._operands[name] = max(self._operands[name], size)

    def _problem_bounds(self, needed: Mapping[str, int]) -> tuple[Bound, ...]:
        """Those of the whole call: its multiply-adds, operands once, results once.

        An array given twice, as in ``a @ a``, is one operand.
        """
        operands = {
            name: min(size, needed.get(name, size)) for name, size in self._operands.items()
        }
        resident_bytes = sum(step.size_bytes for step in self._steps if isinstance(step, Tensor))
        if self.device.l2 is not None:
            resident_bytes = min(resident_bytes, self.device.l2.size_bytes)
        bounds = [*memory_bounds(self.device, GmBytes(operands, self._results), resident_bytes)]
        cube = [
            bound for run in self.runs for bound in run.problem_bounds if bound.resource in UNITS
        ]
        if cube:
            bounds.append(reduce(Bound.plus, cube))
        return longest_first(bounds)

    def _progress(self, program: Program, phase: str) -> Callable[[int], None] | None:
        report = self.options.progress
        if report is None:
            return None
        return lambda done: report(program.kernel, phase, done, program.instructions)

    def result(
        self,
        outputs: dict[str, Array | None],
        problem: str,
        as_dtype: DType,
        rate: str = "",
        needed: Mapping[str, int] | None = None,
        sizes: Mapping[str, tuple[int, int]] | None = None,
    ) -> Result:
        """The finished call as a ``Result``; ``outputs`` are ignored when timing-only.

        ``rate`` names the cube rate that peaks refer to, if it is not the type's own ("hf32").
        ``needed`` are the bytes that the problem needs of operands, by name, where a kernel that
        converts them reads more. ``sizes`` are those that the cube rounds up, by name, with what
        whole blocks make of them.
        """
        outputs = self._copy_results(outputs)
        names = tuple(outputs)
        steps, figures = tuple(self._steps), tuple(self.figures)
        return Result(
            operator=self.operator,
            device=self.device,
            runs=tuple(self.runs),
            outputs=None if self.timing_only else tuple(outputs.values()),
            output_names=names,
            notes=(*self.notes, *notes_on_figures(self.device, figures)),
            problem=problem,
            version=__version__,
            dtype=rate or as_dtype.name,
            workspace_bytes=self.workspace_bytes,
            problem_bounds=self._problem_bounds(needed or {}),
            sizes=sizes or {},
            tilings=dict(self._tilings),
            work=self.work,
            replay=Again(steps, figures, self.groups, self.options.engine, self.device),
        )


def _view(storage: Array, layout: Spec) -> Array:
    """The elements of a layout in its storage, which it shares."""
    assert layout.strides is not None
    steps = tuple(stride * storage.itemsize for stride in layout.strides)
    return np.lib.stride_tricks.as_strided(storage, layout.shape, steps)


def simulate(kernel: Kernel, device: str | Device, *arrays: Array | Spec, **options: Any) -> Result:
    """Run a kernel of your own: ``arrays`` are its "in" and "inout" tensors in order.

    Without arrays a kernel that reads any is only timed. Keywords: cores, engine, timeline,
    start, progress, check, which is True here (see ``Options``). Outputs are the "out" and "inout"
    tensors; the arrays given are not changed. Raises ``ArgumentError`` if an array's shape is not
    its tensor's, and ``RaceError`` if nothing orders two accesses to the same bytes.
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"simulate takes a kernel, an instance of a subclass of npusim.language.Kernel, got "
            f"{kernel!r}; operators are functions of npusim.ops"
        )
    inputs = [t for t in kernel.tensors if t.role != "out"]
    if arrays and len(arrays) != len(inputs):
        names = ", ".join(t.name for t in inputs)
        raise ArgumentError(
            f"kernel {kernel.name} reads {len(inputs)} tensors ({names}), got {len(arrays)} arrays"
        )
    operands = arrays or [Spec(t.shape, t.dtype) for t in inputs]
    timing_only = any(isinstance(a, Spec) for a in operands)
    wanted = Options.of(
        simulate,
        {"check": True} | options | {"device": device},
        without=("tiling", "rules", "deterministic", "layouts"),
    )
    call = Call(kernel.name, wanted, timing_only)
    call.own_kernel = True
    for tensor, array in zip(inputs, operands, strict=True):
        if tuple(array.shape) != tensor.shape:
            raise ArgumentError(
                f"{tensor.name} has shape {tuple(array.shape)}, the kernel expects {tensor.shape}"
            )
        inout = tensor.role == "inout" and not isinstance(array, Spec)
        call.input(tensor.name, np.array(array) if inout else array, tensor.dtype)
    outputs = [t for t in kernel.tensors if t.role != "in"]
    for tensor in outputs:
        if tensor.role == "out":
            call.output(tensor.name, tensor.shape, tensor.dtype)
    plan = type(kernel).plan.__code__
    call.launch(kernel, f"{Path(plan.co_filename).name}:{plan.co_firstlineno}: ")
    problem = ", ".join(map(_described, kernel.tensors))
    return call.result(
        {t.name: call.arrays.get(t.name) for t in outputs}, problem, kernel.tensors[0].dtype
    )


def _described(tensor: Tensor) -> str:
    """``x 512x1024 fp16``, and the role of a tensor that is written."""
    role = "" if tensor.role == "in" else f" ({tensor.role})"
    return f"{tensor.name} {'x'.join(map(str, tensor.shape))} {tensor.dtype}{role}"
