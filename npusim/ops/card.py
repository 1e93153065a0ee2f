"""What an operator declares about itself, once: the command line and the documents read it here.

A card is generic in the *problem* of a call: its sizes and settings as one value, made of what a
command line states and of operands given as files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
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
from npusim.ops.arguments import Option, example_of, options_of
from npusim.problem.convolution import Sizes
from npusim.results import Result

P = TypeVar("P")

#: Largest relative error (Frobenius norms) that --check lets pass, by the type a result was
#: rounded to. fp32 sums of exact products stay near 1e-7; one rounding to fp16 or bf16 gives
#: about 3e-4 or 2e-3, a wrong or missing block about 1.
LIMITS: Mapping[str, float] = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3}


class Stated(Struct, frozen=True, kw_only=True):
    """What a command line says of a call: options by name, operands given as files.

    An option that is not there is None; ``files`` has the paths, for errors.
    """

    operator: str
    options: Mapping[str, Any]
    arrays: Mapping[str, Array]
    files: Mapping[str, str]

    def __getitem__(self, option: str) -> Any:
        """The value of an option, None where it is not stated."""
        return self.options.get(option)

    def size(self, option: str, found: Mapping[str, int]) -> int:
        """A size stated by ``option`` or found in files (operand -> size); they must agree."""
        value, source = self[option], f"--{option} is"
        for name, size in found.items():
            if value is not None and size != value:
                raise ArgumentError(
                    f"{self.file(name)}, which makes --{option} {size}, but {source} {value}; "
                    "correct one of them"
                )
            if value is None:
                value, source = size, f"--input {name} makes it"
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
        own = {} if self.packed is None else {self.layout: self.packed(problem)}
        return {axes: self.shape(problem)} | own

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


class Card(Struct, Generic[P], frozen=True, kw_only=True, dict=True):
    """An operator's own description.

    ``function`` is the public one; ``call`` runs it on a problem, the operands by name (in the
    operator's layouts) and the keywords of ``npusim.call.Options``; ``dtypes`` are the element
    types of operands, the usual one first; ``role`` is that of the cores it runs on; ``tilings``
    are the types of its kernels' tilings; ``device`` is the one taken where none is named.
    ``without`` are keywords that have no meaning for it, ``strided`` the operands and results, by
    the names that the call has for them, that may lie with gaps or in another order of axes.
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

    def __repr__(self) -> str:
        """One line: the operator."""
        return f"<Card of {self.name}>"

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.function.__name__

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Those that state the ``problem``."""
        return options_of(self.name)

    @property
    def example(self) -> str:
        """A line of ``npusim run`` that shows it."""
        return example_of(self.name)

    def begin(self, options: Mapping[str, Any], **operands: Operand | None) -> Call:
        """A call with the keywords it was given; a ``Spec`` among operands makes it timing-only.

        Operands are told by the names of their arguments, None where one was left out. Raises
        ``ArgumentError`` for a ``tiling`` of a kernel that the operator has not.
        """
        given = {name: value for name, value in operands.items() if value is not None}
        timing_only = any(isinstance(operand, Spec) for operand in given.values())
        without = self.without if self.strided else (*self.without, "layouts")
        wanted = Options.of(self.function, options, without=without)
        for kernel in wanted.tiling if isinstance(wanted.tiling, Mapping) else ():
            known = [one.name for one in self.tilings]
            if kernel not in known:
                raise ArgumentError(
                    f"{self.name}: tiling names {kernel!r}; a mapping has tilings by kernel, and "
                    f"the kernels here are {', '.join(known)}"
                )
        for name, value in given.items():
            if isinstance(value, Spec) and value.dtype not in (*DTYPES, *self.dtypes):
                types = ", ".join(one.name for one in self.dtypes)
                raise ArgumentError(f"{name} is {value.dtype}; {self.name} takes {types}")
        sizes = {name: _size(value) for name, value in given.items()}
        wanted = replace(wanted, layouts=self._layouts(wanted.layouts or {}, given))
        call = Call(self.name, wanted, timing_only, operands=sizes)
        for name, value in given.items():
            if isinstance(value, Spec) or value.flags.c_contiguous:
                continue
            if self.strided and name not in call.layouts:
                call.notes.append(_unstated_layout(name, value))
        return call

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
                may = ", ".join(self.strided)
                raise ArgumentError(
                    f"{self.name}: strides {layout.strides} are stated for {name}; "
                    + (f"those of {may} may be" if may else "all of its tensors are contiguous")
                )
            if name in operands and tuple(operands[name].shape) != layout.shape:
                raise ArgumentError(
                    f"{self.name}: layouts has shape {layout.shape} for {name}, which is "
                    f"{tuple(operands[name].shape)}"
                )
        return {name: layout for name, layout in layouts.items() if layout.strides is not None}

    @property
    def computes(self) -> str:
        """What it computes, in one line."""
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
