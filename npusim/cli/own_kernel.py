"""A kernel of somebody's file as a card, so that commands take it as they take an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.call.call import simulate
from npusim.call.spec import Array, Operand
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.ops.card import LIMITS, Card, Input, Output, Sample
from npusim.results import Result

#: Method of a kernel that computes its outputs some other way.
EXPECTED = "expected"


class KernelCard(Card[Kernel], frozen=True, kw_only=True):
    """The card of one kernel, which is called what the kernel is."""

    kernel: Kernel

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name


def kernel_card(kernel: Kernel) -> KernelCard:
    """Operands and results of a kernel, which is the whole problem of its call."""
    read = [t for t in kernel.tensors if t.role != "out"]
    written = [t for t in kernel.tensors if t.role != "in"]
    return KernelCard(
        kernel=kernel,
        function=simulate,
        problem=lambda _: kernel,
        inputs=tuple(_input(tensor) for tensor in read),
        outputs=lambda _: tuple(
            Output(
                name=tensor.name,
                axes=str(tensor.shape),
                expected=_expected(kernel, written, place),
                limit=_limit(tensor),
            )
            for place, tensor in enumerate(written)
        ),
        call=_call,
        dtypes=tuple(dict.fromkeys(tensor.dtype for tensor in read)) or (kernel.tensors[0].dtype,),
        tilings={},
        without=("tiling", "rules", "deterministic"),
    )


def check_expected(kernel: Kernel) -> None:
    """Raise ``ArgumentError`` unless the kernel says what to compare its numbers with."""
    if not callable(getattr(kernel, EXPECTED, None)):
        raise ArgumentError(
            f"--check needs the method {EXPECTED} of {type(kernel).__name__}: it takes the arrays "
            "the kernel reads and returns those it writes, computed some other way"
        )


def _input(tensor: Tensor) -> Input[Kernel]:
    return Input(
        name=tensor.name,
        axes="as the kernel reads it",
        shape=lambda _: tensor.shape,
        dtype=lambda _: tensor.dtype,
    )


def _limit(tensor: Tensor) -> Callable[[Sample[Kernel]], float]:
    """The largest relative error: none of integers."""
    return lambda _: LIMITS.get(tensor.dtype.name, 0.0)


def _expected(
    kernel: Kernel, written: Sequence[Tensor], place: int
) -> Callable[[Sample[Kernel]], Array]:
    def computed(sample: Sample[Kernel]) -> Array:
        answer = getattr(kernel, EXPECTED)(*sample.arrays.values())
        values = answer if isinstance(answer, tuple) else (answer,)
        arrays = [np.asarray(value) for value in values]
        shapes = [array.shape for array in arrays]
        written_shapes = [tensor.shape for tensor in written]
        if shapes != written_shapes:
            raise ArgumentError(
                f"{EXPECTED} of {type(kernel).__name__} returns {_shapes(shapes)}; the kernel "
                f"writes {_shapes(written_shapes)}"
            )
        return arrays[place].astype(np.float64)

    return computed


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(f"an array of shape {shape}" for shape in shapes)


def _call(kernel: Kernel, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    device = options.pop("device")
    return simulate(kernel, device, *operands.values(), **options)
