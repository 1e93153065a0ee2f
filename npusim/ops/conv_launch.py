"""The launches of a convolution's backward, in order, for operands in framework layout.

How a result is computed is chosen in ``npusim.ops.conv_ways``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from npusim.base.dtypes import FP32, DType, dtype, promote
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.call.tilings.words import is_library
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import cast
from npusim.kernels.layout.folding import FoldedConvolution
from npusim.kernels.layout.layout_change import Change, LayoutChange
from npusim.kernels.layout.library_maps import LibraryMaps
from npusim.kernels.layout.library_trans_data import LibraryGroups, LibraryTransData
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.machine.isa.operands import Tensor
from npusim.ops.bias_gradient import launch_bias
from npusim.ops.blocked_gradients import (
    launch,
    launch_filter_gradient,
    product,
    require_time,
)
from npusim.ops.conv_ways import (
    can_multiply,
    changed,
    faster_shape,
    filter_change,
    map_change,
    multiplied,
)
from npusim.ops.cube_math import CubeMath
from npusim.ops.window_products import WindowProducts
from npusim.problem.convolution import Convolution


class ConvolutionLauncher:
    """Launches the kernels of one call; operands are converted once and shared.

    ``layer`` is what the caller described, ``self.shape`` the ordinary convolution that the
    kernels compute: of a transposed layer, gradOutput is its input and the input its output
    gradient.
    """

    def __init__(
        self, call: Call, layer: Convolution, operands: Mapping[str, Operand], math: CubeMath
    ) -> None:
        self.call = call
        self.operands = operands
        self.math = math
        self.transposed = layer.transposed
        self.deep = len(layer.spatial) == 3
        self.c0 = 32 // math.dtype.bytes
        self.shape = layer.plain().lifted(self.c0)
        self.ready: dict[str, Tensor] = {}  # operands, and what they were converted to, by name
        self.folded: list[FoldedConvolution] = []  # products with pixels as channels
        self.multiplied: set[str] = set()  # results that are products of matrices
        multiplies = not self.transposed and can_multiply(self.shape)
        self.products = WindowProducts(self) if multiplies else None

    def decide(self, *results: str) -> None:
        """Choose which of the ``results``, "output", "input" and "weight", are products."""
        if self.products is None:
            return
        self.multiplied = {
            result for result in results if multiplied(self.call, self.shape, self.math, result)
        }
        if self.multiplied:
            names = ("output", "grad_input", "grad_weight")
            words = [name for name in names if name.removeprefix("grad_") in self.multiplied]
            self.call.notes.append(self.products.note(" and ".join(words)))

    def require(self, mask: Sequence[bool]) -> None:
        """Raise ``CapacityError`` unless operands, results and their copies all have room.

        So are products that take many minutes of which nobody sees the progress.
        """
        input_wanted, weight_wanted = mask[0], mask[1]
        wanted: set[str] = set()
        if input_wanted:
            wanted.add("input")
        if weight_wanted:
            wanted.add("weight")
        self.decide(*wanted)
        sizes = {
            "grad_output": self._size("grad_output", wanted),
            "input": self._size(
                "input", wanted & {"weight"}, result="input" if input_wanted else ""
            ),
            "weight": self._size(
                "weight", wanted & {"input"}, result="weight" if weight_wanted else ""
            ),
        }
        self.call.require_memory(sizes)
        self.require_time(wanted)

    def require_time(self, wanted: set[str]) -> None:
        """Raise ``CapacityError`` for results that take many minutes unseen."""
        convolved = wanted - self.multiplied
        if convolved:
            require_time(self.call, self.shape, len(convolved), self.math.dtype)
        if self.products is not None and self.multiplied:
            self.products.require_time(len(self.multiplied))

    def _size(self, name: str, readers: set[str], *, result: str = "") -> int:
        """Bytes of an operand, of what its ``readers`` make of it, and of its gradient.

        ``readers`` are the results that are computed of it; ``result`` names its gradient as one
        of them, "" where that is not wanted.
        """
        value = self.operands[name]
        kind = dtype(value.dtype)
        elements = prod(value.shape)
        size: int = elements * kind.bytes
        if readers and kind is not self.math.dtype:
            size += elements * self.math.dtype.bytes
        if readers - self.multiplied:
            size += self._blocked_elements(name) * self.math.dtype.bytes
        if readers & self.multiplied and self.products is not None:
            size += self.products.copy_bytes(name)
        if result:
            size += self._gradient_size(name, result)
        return size

    def _gradient_size(self, name: str, result: str) -> int:
        """Bytes of the gradient of an operand, and of what the kernel of this ``result`` leaves."""
        elements = prod(self.operands[name].shape)
        gradient_type = self.wider(name)
        kernel_type = FP32 if name == "weight" else self.math.dtype
        size: int = elements * gradient_type.bytes
        if result in self.multiplied and self.products is not None:
            if name == "weight" and gradient_type is self.math.dtype:
                kernel_type = gradient_type
            size += self.products.copy_bytes(name)
        else:
            size += self._blocked_elements(name) * kernel_type.bytes
        if kernel_type is not gradient_type:
            size += elements * kernel_type.bytes
        return size

    def _blocked_elements(self, name: str) -> int:
        """Elements of an operand in blocks."""
        change = self._conversion("to_fracz" if name == "weight" else "to_blocked")
        return prod(change.blocked_shape(tuple(self.operands[name].shape)))

    def needed(self, all_of: str = "") -> dict[str, int]:
        """Bytes of the operands that the results need; of ``all_of``, and of a bias, all."""
        first, last = self._roles()
        axes = {first: "inputs", last: "outputs", "weight": "taps"}
        sizes: dict[str, int] = {}
        for name, value in self.operands.items():
            size = prod(value.shape) * dtype(value.dtype).bytes
            all_of_it = name in ("bias", all_of)
            sizes[name] = size if all_of_it else self.shape.used(axes[name], size)
        return sizes

    def sizes(self, layer: Convolution, products: int) -> dict[str, tuple[int, int]]:
        """Channels of ``layer`` that the cube rounds up, by name, with what blocks make of them.

        Of so many ``products`` launched; with pixels as channels these count too.
        """
        if self.products is not None and len(self.multiplied) == products > 0:
            return self.products.sizes()
        blocks = layer.channel_blocks(self.c0)
        if not self.folded:
            return blocks
        name, *others = blocks
        sizes: dict[str, tuple[int, int]] = {}
        if len(self.folded) < products:
            sizes[name] = blocks[name]
        channels = self.shape.cin
        for folded in self.folded:
            h, w = folded.fold
            rounded = folded.fold.blocks(channels, self.c0) * self.c0
            sizes[f"{name} x {h} x {w}"] = (channels * h * w, rounded)
        sizes.update({other: blocks[other] for other in others})
        return sizes

    # -- the three products ----------------------------------------------------------------

    def input_grad(self) -> Tensor:
        """gradInput: an input gradient, or for a transposed layer a forward convolution."""
        if self.products is not None and "input" in self.multiplied:
            return self.products.input_grad()
        s = self.shape
        if self.transposed:
            return self._input_grad_of_transposed()
        other = faster_shape(self.call, s, self.math, gradient=True)
        source = self.blocked("grad_output")
        if self._note_fold(other):
            kernel: type[ImplicitGemm] = ConvForward
            name = "grad_input_folded"
            weights = self._converted("weight", "weight_folded", filter_change(s, other))
        else:
            kernel = ConvBackpropInput
            name = "grad_input_blocked"
            weights = self.fractal(exchanged=self.math.dtype is FP32)
        back = map_change(s, other, loads_plain=False)
        shape = (s.n, s.cin, *s.spatial)
        return self._launch_product(kernel, other or s, source, weights, name, shape, back)

    def _input_grad_of_transposed(self) -> Tensor:
        """gradInput of a transposed layer: the forward pass of the plain one underneath."""
        s = self.shape
        source = self.blocked("grad_output")
        weights = self.fractal(exchanged=False)
        back = map_change(s, None, loads_plain=False)
        shape = (s.n, s.cout, *s.out)
        return self._launch_product(
            ConvForward, s, source, weights, "grad_input_blocked", shape, back
        )

    def _launch_product(
        self,
        kernel: type[ImplicitGemm],
        c: Convolution,
        source: Tensor,
        weights: Tensor,
        name: str,
        shape: tuple[int, ...],
        back: Change,
    ) -> Tensor:
        """Launch the product of ``c`` that is gradInput, of this framework ``shape``.

        Its result in blocks is called ``name``; ``back`` converts it.
        """
        blocked = self.call.workspace(name, back.blocked_shape(shape), self.math.dtype)
        gemm = product(self.call, kernel, c, source, weights, blocked, self.math.hf32)
        launch(self.call, gemm, blocked)
        return self._leave("grad_input", blocked, shape, self.wider("input"), back)

    def weight_grad(self) -> Tensor:
        """gradWeight: an fp32 filter gradient, converted last."""
        if self.products is not None and "weight" in self.multiplied:
            return self.products.weight_grad()
        s = self.shape
        call = self.call
        first, last = self._roles()
        other = None
        if f"{first}_blocked" not in self.ready:  # what is converted already is read as it is
            other = faster_shape(call, s, self.math, gradient=False)
        if other is None:
            x = self.blocked(first)
        else:
            name = f"{first}_folded" if self._note_fold(other) else f"{first}_thin"
            x = self._converted(first, name, map_change(s, other, loads_plain=True))
        dy = self.blocked(last)
        back = filter_change(s, other)
        fractals = call.workspace("grad_weight_fractal", back.blocked_shape(s.w_shape), FP32)
        launch_filter_gradient(call, other or s, x, dy, fractals, self.math.hf32)
        return self._leave("grad_weight", fractals, s.w_shape, self.wider("weight"), back)

    def _note_fold(self, other: Convolution | None) -> bool:
        """Note a product with pixels as channels; returns whether it is one."""
        if not isinstance(other, FoldedConvolution):
            return False
        self.folded.append(other)
        return True

    def bias_grad(self) -> Tensor:
        """gradBias: gradOutput as it came, summed in fp32 and rounded once."""
        dy = self.operand("grad_output")
        db = self.call.output("grad_bias", dy.shape[1:2], dy.dtype)
        launch_bias(self.call, dy, db, "grad_bias_parts")
        return db

    # -- operands --------------------------------------------------------------------------

    def operand(self, name: str) -> Tensor:
        """An operand as the caller gave it, 3-D."""
        if name not in self.ready:
            value = self.operands[name]
            n, c, *size = value.shape
            shape = (n, c, *(1,) * (3 - len(size)), *size)
            self.ready[name] = self.call.input(name, value, dtype(value.dtype), shape)
        return self.ready[name]

    def computed(self, name: str) -> Tensor:
        """An operand in the type the cube computes with."""
        tensor = self.operand(name)
        key = f"{name}_{self.math.dtype}"
        if tensor.dtype is self.math.dtype:
            return tensor
        if key not in self.ready:
            self.ready[key] = self._cast(tensor, key, self.math.dtype)
        return self.ready[key]

    def blocked(self, name: str) -> Tensor:
        """A feature map as (N, D, C1, H, W, C0)."""
        key = f"{name}_blocked"
        if key not in self.ready:
            self.ready[key] = self._converted(name, key, self._conversion("to_blocked"))
        return self.ready[key]

    def fractal(self, *, exchanged: bool) -> Tensor:
        """The weight as FRACTAL_Z_3D, or with its channel roles exchanged."""
        key = "weight_exchanged" if exchanged else "weight_fractal"
        if key not in self.ready:
            kind = "to_fracz_transposed" if exchanged else "to_fracz"
            self.ready[key] = self._converted("weight", key, self._conversion(kind))
        return self.ready[key]

    # -- results ---------------------------------------------------------------------------

    def _leave(
        self, name: str, blocked: Tensor, shape: tuple[int, ...], dtype: DType, back: Change
    ) -> Tensor:
        """Convert a kernel's result to the framework's layout and type."""
        if blocked.dtype is dtype:
            plain = self.call.output(name, shape, dtype)
            self.call.launch_spread(self._changed(back, blocked, plain))
            return plain
        plain = self.call.workspace(f"{name}_{blocked.dtype}", shape, blocked.dtype)
        self.call.launch_spread(self._changed(back, blocked, plain))
        return self._cast(plain, name, dtype, output=True)

    def _converted(self, name: str, target_name: str, change: Change) -> Tensor:
        """An operand in the layout of ``change``, as the tensor ``target_name``."""
        plain = self.computed(name)
        target = self.call.workspace(target_name, change.blocked_shape(plain.shape), plain.dtype)
        kernel = self._changed(change, plain, target)
        if kernel.clears:
            self.call.clear(target)
        self.call.launch_spread(kernel)
        return target

    def _changed(self, change: Change, src: Tensor, dst: Tensor) -> LayoutChange:
        """Our conversion, or the one of the library, where its rule is known."""
        if (
            isinstance(change, Conversion)
            and change.kind != "to_fracz_transposed"
            and is_library(self.call.options.tiling, TransData.name)
        ):
            if not change.maps and self.shape.groups > 1:
                return LibraryGroups(change, src, dst)
            if self.deep:
                return LibraryTransData(change, src, dst)
            if change.maps and not self.call.device.library_rules:
                return LibraryMaps(change, src, dst)
        return changed(change, src, dst)

    def _conversion(self, kind: str) -> Conversion:
        return Conversion(kind=kind, c0=self.c0, groups=self.shape.groups)

    def _cast(self, tensor: Tensor, name: str, dtype: DType, *, output: bool = False) -> Tensor:
        make = self.call.output if output else self.call.workspace
        target = make(name, tensor.shape, dtype)
        self.call.launch_spread(cast(tensor, target, saturate=self.call.device.saturates))
        return target

    def _roles(self) -> tuple[str, str]:
        """Operands that are input and output gradient of the plain convolution."""
        return ("grad_output", "input") if self.transposed else ("input", "grad_output")

    def type_of(self, name: str) -> DType:
        """The type in which an operand came."""
        return dtype(self.operands[name].dtype)

    def wider(self, name: str) -> DType:
        """The type of a gradient: the one that an operand and gradOutput are computed in."""
        return promote((dtype(self.operands[n].dtype) for n in (name, "grad_output")), FP32)
