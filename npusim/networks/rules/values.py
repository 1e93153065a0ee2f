"""Values and operations of a training step.

A *value* is a tensor: a map, a parameter, numbers for channels, or bits. An *operation* is the work
of one kernel: a product or another kernel of its own (its ``core``), and a chain of element-wise
steps on what that makes, or on maps alone.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from msgspec import Struct, field

from npusim.base.dtypes import FP16, DType
from npusim.networks.rules.table import Chain
from npusim.workloads import ElementwiseLayer, Layer

#: The parts of a step, in order.
PHASES = ("forward", "backward", "optimizer")


class Value(NamedTuple):
    """A tensor of a step, of a batch: ``shape`` is (n, channels, ...) of maps, plain of others.

    ``kind`` is "map", "rows" (of a linear layer), "weight" (of a convolution), "matrix" (of a
    linear layer), "vector" (a bias, or numbers for the elements of a row), "channels" (a number for
    each channel of whole blocks), "images" (one for each image and channel, in fp32), "bits" (one
    for each element of a map), "masks" (of bits, for each tap of a window) or "indices". A weight
    and what is made of it have the ``groups`` of its convolution, by which fractals are shared.
    What an operation that runs several times in a row makes is there so often: ``repeats``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: str = "map"
    groups: int = 1
    repeats: int = 1


class Operation(Struct, frozen=True):
    """The work of one kernel: its ``core``, and a ``chain`` of element-wise steps behind it.

    Without a core the chain is all of it. ``inputs`` and ``outputs`` are values of the core; with a
    chain these stay in memory only where they are ``stored``. ``kind`` is what reports call it. It
    runs ``count`` times in a row, each time on other numbers of these sizes.
    """

    name: str
    kind: str
    phase: str
    layer: Layer | ElementwiseLayer | None = None
    core: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    chain: Chain | None = None
    stored: bool = True
    count: int = 1

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that it reads, each once."""
        chain = (*self.chain.reads, *self.chain.vectors) if self.chain else ()
        return tuple(dict.fromkeys(v for v in (*self.inputs, *chain) if v not in self.outputs))

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that it leaves in memory."""
        chain = self.chain
        of_core = self.outputs if self.stored else ()
        if chain is None:
            return of_core
        return (*of_core, *chain.writes, *(vector for vector, _ in chain.sums))


class Training(Struct):
    """The operations of a step in order, and their values.

    ``parameters`` are trained; ``fixed`` are frozen weights, those that no gradient reaches,
    buffers and constants, which are there before the step as parameters are. ``inputs`` are what
    it gets, ``scales`` the factors of normalisations, which begin with ones. ``views`` are values
    that lie where another lies, with other axes. ``repeated`` are parameters of which a kernel
    takes more numbers than they have, one number for all channels: their step is timed, not
    computed.

    ``targets`` are the labels that losses get besides; ``results`` what the pass is run for: the
    ends of the network, losses, and of a backward pass alone the gradients of parameters.
    ``state`` is what the optimizer keeps between steps; ``updates`` are its new values, each with
    the parameter or state whose place it takes. ``copies`` hold the numbers of another value in
    another type or kind.
    """

    inputs: tuple[str, ...] = ()
    values: dict[str, Value] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    scales: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    updates: dict[str, str] = field(default_factory=dict)
    copies: set[str] = field(default_factory=set)

    def home(self, name: str) -> str:
        """The value that lies where this one does: itself, or what it is a view of."""
        while name in self.views:
            name = self.views[name]
        return name

    def value(self, value: Value) -> str:
        """Note a value; returns its name. A single number has one axis."""
        self.values[value.name] = value._replace(shape=value.shape or (1,))
        return value.name

    def readers(self) -> Counter[str]:
        """How many operations read a value, by its name."""
        return Counter(name for operation in self.operations for name in operation.reads)


class Kinds(NamedTuple):
    """The arithmetic of a step: types of maps, of what the cube multiplies, of normalisations."""

    maps: DType = FP16
    cube: DType = FP16
    norm: DType = FP16


#: What everything is computed in unless asked for otherwise.
KINDS = Kinds()


#: The core of an operation that moves nothing: its result is its operand with other axes.
VIEW = "view"


#: The core of an operation that copies a value into another kind or type, element by element.
COPY = "copy"


#: The core of an operation that cuts the gradient of one value out of that of a concatenation.
SLICE = "slice"
