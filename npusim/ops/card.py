"""An operator's card: all that it declares about itself, once.

The command line, the documented limits and the documents read it here.

A card is generic in the *problem* of a call: its sizes and settings as one value, made of what a
command line states and of operands given as files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getdoc
from math import prod
from typing import Any, Generic, TypeVar

from msgspec import Struct

from npusim.base.dtypes import DTYPES, DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Operand, Spec
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.ops.options import Option
from npusim.problem.convolution import Sizes
from npusim.problem.limits.facts import Facts, OperatorFacts
from npusim.problem.limits.table import Undocumented, check
from npusim.results import Result

P = TypeVar("P")

#: Largest relative error (Frobenius norms) that --check lets pass, by the type a result was
#: rounded to. fp32 sums of exact products stay near 1e-7; one rounding to fp16 or bf16 gives
#: about 3e-4 or 2e-3, a wrong or missing block about 1.
LIMITS: Mapping[str, float] = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3}


class Stated(Struct, frozen=True, kw_only=True):
    """A call as a command line states it: options by name, operands given as files.

    An option that is not there is None; ``files`` has the paths, for errors.
    """

    operator: str
    options: Mapping[str, Any]
    arrays: Mapping[str, Array]
    files: Mapping[str, str]

    def __getitem__(self, option: str) -> Any:
        """The value of an option, None where it is not stated."""
        return self.options.get(option)

    def size(self, option: str, shown: Mapping[str, int]) -> int:
        """A size stated by ``option`` or shown by files (operand -> size); they must agree."""
        value = self[option]
        source = f"--{option} is"
        for name, size in shown.items():
            if value is not None and size != value:
                raise ArgumentError(
                    f"{self.file(name)}, which makes --{option} {size}, but {source} {value}; "
                    "correct one of them"
                )
            if value is None:
                value = size
                source = f"--input {name} makes it"
        if value is None:
            raise ArgumentError(
                f"--{option} is missing; give it, or with --input an operand whose shape shows it"
            )
        return int(value)

    def file(self, name: str) -> str:
        """The beginning of an error about an operand given as a file."""
        return f"--input {name}={self.files[name]} has shape {self.arrays[name].shape}"


class Input(Struct, Generic[P], frozen=True, kw_only=True):
    """A tensor that goes in, in the layout of frameworks: its ``axes`` in words, its ``shape``.

    An operator with a layout of its own names it, with its shape and both conversions.
    ``wanted`` tells whether a call has the operand at all, ``dtype`` its element type by that of
    the others.
    """

    name: str
    axes: str | Callable[[P], str]
    shape: Callable[[P], Sizes]
    layout: str = ""
    packed: Callable[[P], Sizes] | None = None
    pack: Callable[[P, Array], Array] | None = None
    unpack: Callable[[P, Array], Array] | None = None
    wanted: Callable[[P], bool] = lambda _: True
    dtype: Callable[[DType], DType] = lambda kind: kind

    def forms(self, problem: P) -> dict[str, Sizes]:
        """The shapes it may have by their axes or layout, that of frameworks first."""
        axes = self.axes if isinstance(self.axes, str) else self.axes(problem)
        shapes = {axes: self.shape(problem)}
        if self.packed is not None:
            shapes[self.layout] = self.packed(problem)
        return shapes

    def native(self, problem: P, array: Array) -> Array:
        """An array of either form as the operator takes it."""
        packed = self.packed is None or array.shape == self.packed(problem)
        return array if packed or self.pack is None else self.pack(problem, array)

    def plain(self, problem: P, array: Array) -> Array:
        """An array of either form as frameworks have it."""
        packed = self.packed is not None and array.shape == self.packed(problem)
        return self.unpack(problem, array) if packed and self.unpack is not None else array


class Sample(Struct, Generic[P], frozen=True, kw_only=True):
    """One call for a float64 opinion: its operands as frameworks have them, and where it ran."""

    problem: P
    arrays: Mapping[str, Array]
    device: Device


class Output(Struct, Generic[P], frozen=True, kw_only=True):
    """A tensor that comes out, by its name in the result.

    ``layout`` names the operator's own form, which ``unpack`` turns into that of frameworks, with
    ``axes``. There ``expected`` computes it in float64, and ``limit`` bounds the relative error
    (Frobenius norms).
    """

    name: str
    axes: str
    expected: Callable[[Sample[P]], Array]
    limit: Callable[[Sample[P]], float]
    layout: str = ""
    unpack: Callable[[P, Array], Array] = lambda _, array: array


class Card(Struct, Generic[P], frozen=True, kw_only=True):
    """An operator's own description.

    ``function`` is the public one; ``call`` runs it on a problem, the operands by name (in the
    operator's layouts) and the keywords of ``npusim.call.Options``; ``dtypes`` are the element
    types of operands, the usual one first; ``role`` is that of the cores it runs on; ``tilings``
    are the types of its kernels' tilings; ``device`` is the one taken where none is named.
    ``without`` are keywords that have no meaning for it, ``strided`` the operands and results, by
    the names that the call has for them, that may lie with gaps or in another order of axes.

    ``options`` state its ``problem`` on a command line, in the order of the help, and ``example``
    is a line of ``npusim run`` that shows it. ``facts`` describe its calls to the documented
    limits; of one that has no page of limits, ``undocumented`` names a sister that has.
    """

    function: Callable[..., Result]
    problem: Callable[[Stated], P]
    inputs: tuple[Input[P], ...]
    outputs: Callable[[P], tuple[Output[P], ...]]
    call: Callable[[P, Mapping[str, Operand], dict[str, Any]], Result]
    dtypes: tuple[DType, ...]
    tilings: Mapping[type[Kernel], type[Any]]
    role: str = "cube"
    device: str | None = None
    without: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    example: str = ""
    facts: OperatorFacts | None = None
    undocumented: Undocumented | None = None

    def __repr__(self) -> str:
        """One line: the operator."""
        return f"<Card of {self.name}>"

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.function.__name__

    def check(self, facts: Facts, device: Device, rules: str = "documented") -> list[str]:
        """Hold a call against the limits of the device's product; return notes.

        Raises ``RuleError`` at the first limit that it breaks, and ``ArgumentError`` where the
        operator has none.
        """
        return check(self.name, self.facts or OperatorFacts(required=()), facts, device, rules)

    def begin(self, options: Mapping[str, Any], **operands: Operand | None) -> Call:
        """A call with the keywords it was given; a ``Spec`` among operands makes it timing-only.

        Operands go by the names of their arguments, None where one was left out. Raises
        ``ArgumentError`` for a ``tiling`` of a kernel that the operator has not.
        """
        present = {name: value for name, value in operands.items() if value is not None}
        timing_only = any(isinstance(value, Spec) for value in present.values())
        without = self.without if self.strided else (*self.without, "layouts")
        call_options = Options.of(self.function, options, without=without)
        self._require_own_kernels(call_options.tiling)
        self._require_dtypes(present)
        layouts = self._layouts(call_options.layouts or {}, present)
        call = Call(
            self.name,
            replace(call_options, layouts=layouts),
            timing_only,
            operands={name: _size(value) for name, value in present.items()},
            described_by=self.facts,
            undocumented=self.undocumented,
        )
        for name, value in present.items():
            if isinstance(value, Spec) or value.flags.c_contiguous:
                continue
            if self.strided and name not in call.layouts:
                call.notes.append(_unstated_layout(name, value))
        return call

    def _require_own_kernels(self, tiling: Any) -> None:
        """Raise ``ArgumentError`` where a mapping of tilings names a kernel of another operator."""
        if not isinstance(tiling, Mapping):
            return
        names = [kernel.name for kernel in self.tilings]
        for kernel in tiling:
            if kernel not in names:
                raise ArgumentError(
                    f"{self.name}: tiling names {kernel!r}; a mapping has tilings by kernel, and "
                    f"the kernels here are {', '.join(names)}"
                )

    def _require_dtypes(self, operands: Mapping[str, Operand]) -> None:
        """Raise ``ArgumentError`` for a ``Spec`` of a type that no array and no operand has."""
        for name, value in operands.items():
            if isinstance(value, Spec) and value.dtype not in (*DTYPES, *self.dtypes):
                types = ", ".join(kind.name for kind in self.dtypes)
                raise ArgumentError(f"{name} is {value.dtype}; {self.name} takes {types}")

    def _layouts(
        self, stated: Mapping[str, Spec], operands: Mapping[str, Operand]
    ) -> dict[str, Spec]:
        """How operands and results lie, those that are contiguous left out.

        Raises ``ArgumentError`` for a tensor that the operator has not or that is not alike.
        """
        layouts = dict(stated)
        for name, value in operands.items():
            if isinstance(value, Spec) and value.strides is not None:
                layouts.setdefault(name, value)
        for name, layout in layouts.items():
            if name not in self.strided:
                way_out = "all of its tensors are contiguous"
                if self.strided:
                    way_out = f"those of {', '.join(self.strided)} may be"
                raise ArgumentError(
                    f"{self.name}: strides {layout.strides} are stated for {name}; {way_out}"
                )
            if name in operands and tuple(operands[name].shape) != layout.shape:
                raise ArgumentError(
                    f"{self.name}: layouts has shape {layout.shape} for {name}, which is "
                    f"{tuple(operands[name].shape)}"
                )
        return {name: layout for name, layout in layouts.items() if layout.strides is not None}

    @property
    def computes(self) -> str:
        """The first line of the function's docstring, which says what the operator computes."""
        return (getdoc(self.function) or "").partition("\n")[0]


def _unstated_layout(name: str, array: Array) -> str:
    """The note on an array with gaps, of which nothing says how it lies on the chip."""
    strides = tuple(step // array.itemsize for step in array.strides)
    return (
        f"{name} is an array with strides {strides} in elements: arrays say which values there are "
        "and not how they lie on the chip, so that no copy is timed; layouts={"
        f"{name!r}: npusim.spec(shape, dtype, strides)}} times one"
    )


def _size(operand: Operand) -> int:
    """Bytes of an operand."""
    if isinstance(operand, Spec):
        return prod(operand.shape) * operand.dtype.bytes
    return operand.nbytes
