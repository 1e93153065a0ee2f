"""Convolutions whose windows lie side by side, computed as products of matrices.

Where nothing pads the input and no two windows share an element, each window of each image is a
row of a matrix with a column for each channel and tap:

    output       rows (images * windows, Cout) = windows @ weight^T
    grad_input   windows                       = rows of grad_output @ weight
    grad_weight  (Cout, Cin * taps)            = rows of grad_output^T @ windows

The weight lies so already. Where a filter is as large as the input, so does everything else: the
vendor's library launches one batched product on views of the operands, and converts nothing
(``IsConv2DBp2MmMode`` and ``GetConv3DBp2MmMode`` in the public source of its operators); so do the
calls here. Other layers need the kernel ``transpose`` between maps and matrices. On a 950 the
library goes the same way with them (``Device.library_multiplies``); elsewhere a call that chooses
its tilings compares estimates.
Of a single image with several windows, channels are the rows of ``output``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Protocol, TypeVar

from npusim.base.dtypes import FP32, DType
from npusim.base.errors import CapacityError
from npusim.base.integers import round_up
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.kernels.estimate.streams import spread_cycles
from npusim.kernels.layout.cast import cast
from npusim.kernels.layout.transpose import Transpose, merged
from npusim.kernels.matmul.linear import LinearBackpropInput, LinearBackpropWeight, LinearForward
from npusim.kernels.matmul.matmul import Matmul
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops.cube_math import CubeMath
from npusim.ops.linear import START, launch_product, launch_weight_product
from npusim.problem.convolution import Convolution

Product = TypeVar("Product", bound=Matmul)

#: Axes of an input (images, channels, then windows and taps along each axis), in the order of the
#: matrix of windows; and the way back.
_TO_WINDOWS = (0, 2, 4, 6, 1, 3, 5, 7)
_TO_MAP = (0, 4, 1, 5, 2, 6, 3, 7)

#: Bytes of a row of a filter from which maps are made of windows without turning their elements.
#: Of a 910B2 32 images of 3x224x224 take 15.3 us turned and 22.2 us not with rows of 64 B, 19.4 and
#: 16.6 us with 128 B. Windows are made by turning whatever the row: 16 to 17 us, else 56.
_LONG_ROW = 128


class WindowMatrices:
    """The matrices of a 3-D layer whose windows lie side by side.

    With ``channels_first`` rows of the output are channels, as those of one image lie.
    """

    def __init__(self, c: Convolution, *, biased: bool = False) -> None:
        self.c = c
        self.windows, self.depth, self.cout = c.n * prod(c.out), c.cin * prod(c.kernel), c.cout
        self.channels_first = c.n == 1 and self.windows > 1 and not biased
        axes = [size for both in zip(c.out, c.kernel, strict=True) for size in both]
        #: The input as (images, channels, windows and taps along each axis).
        self.map_axes = (c.n, c.cin, *axes)
        self.window_axes = tuple(self.map_axes[axis] for axis in _TO_WINDOWS)

    @property
    def moves_map(self) -> bool:
        """An input is not the matrix of its windows as it lies."""
        return len(merged(self.map_axes, _TO_WINDOWS).sizes) > 1

    @property
    def moves_output(self) -> bool:
        """An output is neither rows nor columns of channels as it lies."""
        return not self.channels_first and len(merged(self.output_axes, (0, 2, 1)).sizes) > 1

    @property
    def output_axes(self) -> tuple[int, int, int]:
        """The output as (images, channels, windows of an image)."""
        return (self.c.n, self.cout, self.windows // self.c.n)

    @property
    def output_rows(self) -> tuple[int, int]:
        """The output as a matrix of rows."""
        if self.channels_first:
            return (self.cout, self.windows)
        return (self.windows, self.cout)

    def product(self, result: str, first: Tensor, second: Tensor, out: Tensor) -> Matmul:
        """The kernel of a ``result``, "output", "input" or "weight".

        ``first`` is its operand that is a map, or of "weight" the gradient of the output;
        ``second`` the weight, or of "weight" the input. All three are matrices.
        """
        if result == "output":
            rows, columns = (second, first) if self.channels_first else (first, second)
            return LinearForward(START, rows, columns, out, ("ND", "ND_nk"))
        if result == "weight":
            return self.weight_product(first, second, out)
        layouts = ("ND_km" if self.channels_first else "ND", "ND")
        return LinearBackpropInput(START, first, second, out, layouts)

    def weight_product(
        self, gradient: Tensor, windows: Tensor, out: Tensor
    ) -> LinearBackpropWeight:
        """The kernel of the weight's gradient."""
        layouts = ("ND" if self.channels_first else "ND_km", "ND")
        return LinearBackpropWeight(START, gradient, windows, out, layouts)

    def to_windows(self, plain: Tensor, target: Tensor) -> Transpose:
        """The kernel that makes the matrix of windows of an input."""
        axes = _shaped(plain, self.map_axes), _shaped(target, self.window_axes)
        return Transpose(_TO_WINDOWS, *axes, turns=True)

    def to_map(self, windows: Tensor, target: Tensor) -> Transpose:
        """The kernel that makes an input of the matrix of its windows."""
        axes = _shaped(windows, self.window_axes), _shaped(target, self.map_axes)
        row = merged(self.window_axes, _TO_MAP).sizes[-1] * target.dtype.bytes
        return Transpose(_TO_MAP, *axes, turns=row < _LONG_ROW)

    def to_rows(self, plain: Tensor, target: Tensor) -> Transpose:
        """The kernel that makes rows of an output."""
        n, channels, windows = self.output_axes
        axes = (n, windows, channels)
        return Transpose((0, 2, 1), _shaped(plain, self.output_axes), _shaped(target, axes))

    def to_channels(self, rows: Tensor, target: Tensor) -> Transpose:
        """The kernel that makes an output of its rows."""
        n, channels, windows = self.output_axes
        axes = (n, windows, channels)
        return Transpose((0, 2, 1), _shaped(rows, axes), _shaped(target, self.output_axes))


def _shaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements under another shape."""
    return replace(tensor, shape=shape)


class LayerCall(Protocol):
    """A call of an ordinary layer, as ``npusim.ops.conv_launch.ConvolutionLauncher`` has it."""

    call: Call
    operands: Mapping[str, Operand]
    math: CubeMath
    shape: Convolution
    ready: dict[str, Tensor]

    def computed(self, name: str) -> Tensor:
        """An operand in the type that the cube computes in."""

    def type_of(self, name: str) -> DType:
        """The type of an operand as the caller gave it."""

    def wider(self, name: str) -> DType:
        """The type of the gradient of an operand."""


class WindowProducts:
    """Launches the products of a call, with the transpositions that they need.

    Operands are those of the ``launcher``, whose layer is ordinary and has windows side by side.
    """

    def __init__(self, launcher: LayerCall) -> None:
        self.launcher, self.call, self.math = launcher, launcher.call, launcher.math
        biased = "bias" in launcher.operands
        self.matrices = WindowMatrices(launcher.shape, biased=biased)

    # -- what is needed, before anything is launched -------------------------------------------

    def note(self, results: str) -> str:
        """A sentence on how ``results`` are computed."""
        m = self.matrices
        size = f"{m.windows} windows of {m.depth} elements, {m.cout} output channels"
        if self.launcher.shape.one_window:
            return (
                f"{results}: the filter is the whole input ({size}), so that one product of "
                "matrices on the operands as they lie computes each result, as in the vendor's "
                "library; no conversions, no convolution kernel"
            )
        return (
            f"{results}: windows lie side by side ({size}), so that a product of matrices and "
            "transpositions around it compute each result; no convolution kernel"
        )

    def copy_bytes(self, operand: str) -> int:
        """Bytes of the matrix that is made of "input" or "grad_output", 0 of a view."""
        m = self.matrices
        size = self.math.dtype.bytes
        if operand == "input" and m.moves_map:
            return m.windows * m.depth * size
        if operand == "grad_output" and m.moves_output:
            return m.windows * m.cout * size
        return 0

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Sizes that the cube rounds up, by name, with what whole fractals make of them."""
        m = self.matrices
        return {
            "windows": (m.windows, round_up(m.windows, 16)),
            "Cin x taps": (m.depth, round_up(m.depth, 16)),
            "Cout": (m.cout, round_up(m.cout, 16)),
        }

    def require_time(self, products: int) -> None:
        """Raise ``CapacityError`` for so many products that take many minutes unseen.

        Counts two loads for each `mmad`, L0A full and 256 columns wide.
        """
        m, call = self.matrices, self.call
        macs = products * m.windows * m.depth * m.cout
        most = call.device.memory("L0A").size_bytes // self.math.dtype.bytes * 256
        call.require_time(3 * macs // most, macs)

    # -- the three results -----------------------------------------------------------------

    def output(self, result: DType) -> Tensor:
        """The output in the type ``result``, bias included where there is one."""
        m, call, kind = self.matrices, self.call, self.math.dtype
        windows, weight = self._windows(), self._weight()
        rows = self._target("output", m.output_rows, kind, result, moves=m.moves_output)
        bias = None
        if "bias" in self.launcher.operands:
            value = self.launcher.operands["bias"]
            bias = call.input("bias", value, self.launcher.type_of("bias"))
        self._launch(m.product("output", windows, weight, rows), bias)
        if m.moves_output:
            plain = self._target("output", m.output_axes, kind, result)
            call.launch_spread(m.to_channels(rows, plain))
            rows = plain
        return self._rounded("output", rows, result)

    def input_grad(self) -> Tensor:
        """gradInput."""
        m = self.matrices
        kind = self.math.dtype
        result = self.launcher.wider("input")
        gradient = self._rows()
        weight = self._weight()
        shape = (m.windows, m.depth)
        windows = self._target("grad_input", shape, kind, result, moves=m.moves_map)
        self._launch(m.product("input", gradient, weight, windows))
        if not m.moves_map:
            return self._rounded("grad_input", windows, result)
        plain = self._target("grad_input", m.map_axes, kind, result)
        self.call.launch_spread(m.to_map(windows, plain))
        return self._rounded("grad_input", plain, result)

    def weight_grad(self) -> Tensor:
        """gradWeight, of fp32 sums."""
        m = self.matrices
        result = self.launcher.wider("weight")
        gradient = self._rows()
        windows = self._windows()
        kind = self.math.dtype if result is self.math.dtype else FP32
        matrix = self._target("grad_weight", (m.cout, m.depth), kind, result)
        kernel = self._kernel(m.weight_product(gradient, windows, matrix))
        launch_weight_product(self.call, kernel, tuned=True, ruled=True)
        return self._rounded("grad_weight", matrix, result)

    def _launch(self, kernel: Matmul, bias: Tensor | None = None) -> None:
        launch_product(self.call, self._kernel(kernel), bias, tuned=True, rounded=True, ruled=True)

    def _kernel(self, kernel: Product) -> Product:
        """The kernel in the arithmetic of the call."""
        return replace(kernel, hf32=self.math.hf32, whole_k=self.call.options.deterministic)

    # -- matrices ----------------------------------------------------------------------------

    def _weight(self) -> Tensor:
        m = self.matrices
        return replace(self.launcher.computed("weight"), shape=(m.cout, m.depth))

    def _windows(self) -> Tensor:
        """The matrix of windows, made once."""
        m, ready = self.matrices, self.launcher.ready
        shape = (m.windows, m.depth)
        if "input_windows" not in ready:
            plain = self.launcher.computed("input")
            matrix = replace(plain, shape=shape)
            if m.moves_map:
                matrix = self.call.workspace("input_windows", shape, plain.dtype)
                self.call.launch_spread(m.to_windows(plain, matrix))
            ready["input_windows"] = matrix
        return ready["input_windows"]

    def _rows(self) -> Tensor:
        """The gradient of the output as a matrix, made once."""
        m, ready = self.matrices, self.launcher.ready
        if "grad_output_rows" not in ready:
            plain = self.launcher.computed("grad_output")
            matrix = replace(plain, shape=m.output_rows)
            if m.moves_output:
                matrix = self.call.workspace("grad_output_rows", m.output_rows, plain.dtype)
                self.call.launch_spread(m.to_rows(plain, matrix))
            ready["grad_output_rows"] = matrix
        return ready["grad_output_rows"]

    def _target(
        self, name: str, shape: tuple[int, ...], kind: DType, result: DType, *, moves: bool = False
    ) -> Tensor:
        """Memory for a result of the type ``kind``: the caller's, or of what is changed after.

        That is where axes of it ``moves``, or where it is rounded to another type.
        """
        if moves:
            return self.call.workspace(f"{name}_matrix", shape, kind)
        if kind is not result:
            return self.call.workspace(f"{name}_{kind}", shape, kind)
        return self.call.output(name, shape, kind)

    def _rounded(self, name: str, tensor: Tensor, result: DType) -> Tensor:
        """A result in its own type."""
        if tensor.dtype is result:
            return tensor
        target = self.call.output(name, tensor.shape, result)
        self.call.launch_spread(cast(tensor, target, saturate=self.call.device.saturates))
        return target


# -- where the chip may choose ---------------------------------------------------------------------


def product_estimate(
    device: Device, groups: int, c: Convolution, math: CubeMath, result: str
) -> float:
    """Cycles of a ``result`` as a product, on so many ``groups`` of cores, with all launches.

    ``result`` is "output", "input" or "weight". Infinite where no tiling fits.
    """
    m, kind = WindowMatrices(c), math.dtype
    shape = (m.windows, m.depth)
    roles = {
        "output": ("in", "in", "out"),
        "input": ("out", "in", "in"),
        "weight": ("in", "out", "in"),
    }
    x_role, w_role, y_role = roles[result]
    x = Tensor("input", m.map_axes, kind, x_role)
    windows = Tensor("windows", shape, kind, x_role) if m.moves_map else replace(x, shape=shape)
    weight = Tensor("weight", (m.cout, m.depth), FP32 if result == "weight" else kind, w_role)
    y = Tensor("grad_output", m.output_axes, kind, y_role)
    rows = Tensor("rows", m.output_rows, kind, y_role)
    around = []
    if m.moves_map:
        around.append(m.to_map(windows, x) if result == "input" else m.to_windows(x, windows))
    if m.moves_output:
        around.append(m.to_channels(rows, y) if result == "output" else m.to_rows(y, rows))
    operands = {
        "output": (windows, weight, rows),
        "input": (rows, weight, windows),
        "weight": (rows, windows, weight),
    }
    kernel = replace(m.product(result, *operands[result]), hf32=math.hf32)
    vectors = groups * device.core_kind("vector").per_group
    total = sum(spread_cycles(device, vectors, transposition) for transposition in around)
    try:
        ranked = kernel.ranked(device, groups * device.core_kind("cube").per_group, 1)
    except CapacityError:
        return inf
    return total + ranked[0][0] if ranked else inf
