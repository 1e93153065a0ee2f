"""The kernels of a step's operations, in the formats that a plan gives to their values.

An operation is a call of its own: its operands come from global memory, and equal operations of
different layers are simulated once. With arrays the same kernels compute numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeVar

from msgspec import Struct

from npusim.base.dtypes import DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import cast
from npusim.kernels.layout.library_maps import LibraryMaps
from npusim.kernels.layout.library_trans_data import LibraryTransData
from npusim.kernels.layout.trans_data import Conversion, TransData
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.kernels.vector.epilogue import PRODUCT, Epilogue
from npusim.kernels.vector.expression import is_mask
from npusim.kernels.vector.softmax_loss import softmax_loss
from npusim.kernels.windows.pool import Pool, PoolGrad, pooled
from npusim.machine.isa.operands import Tensor
from npusim.networks.plan.join_split import parts_of
from npusim.networks.plan.tasks import Placed, Task
from npusim.networks.rules.values import COPY, Operation
from npusim.networks.run import interpolation, join_split, moves
from npusim.networks.run.chains import elementwise
from npusim.networks.run.odd_rows import launch_odd_rows, odd_rows
from npusim.networks.run.plain_convolutions import (
    launch_matrices,
    launch_replaced_filter,
    launch_replaced_input,
)
from npusim.networks.run.traffic import TrafficAgain, traffic_run
from npusim.ops import blocked_gradients as gradients
from npusim.ops import linear
from npusim.ops.bias_gradient import launch_bias
from npusim.ops.blocked import fractal_columns
from npusim.ops.conv_ways import can_multiply, faster_shape, multiplied
from npusim.ops.cube_math import CubeMath
from npusim.ops.layer_products import layer_product
from npusim.ops.library_average import launch_library_average
from npusim.ops.library_pool import launch_library_pool
from npusim.problem.convolution import Convolution
from npusim.results import Result
from npusim.results.shown.network_words import TRAFFIC
from npusim.workloads import ConvLayer, ElementwiseLayer, LinearLayer

T = TypeVar("T")

#: Products of matrices.
_MATRICES = ("linear.output", "linear.input", "linear.weight")


class OperationLauncher(Struct, frozen=True):
    """Times tasks, or computes their numbers, under ``options``.

    ``c0`` is the number of channels to a block. With ``plain`` every value is plain between
    operations. Tasks that are ``tuned``, whatever the L2 holds, have automatic tilings.
    """

    options: Options
    c0: int = 16
    plain: bool = False
    tuned: frozenset[Task] = frozenset()

    @property
    def fractals(self) -> bool:
        """Return whether weights become fractals before products: no load makes these of rows."""
        return not self.options.machine.has_path("GM", "L1", "nd2nz")

    def run(self, what: Task, arrays: Mapping[str, Array] | None = None) -> Result:
        """The kernels of a task; with ``arrays``, by the names of values, also what they make.

        Raises ``CapacityError`` and the like as operators do.
        """
        operation = what.operation
        tuned = bool(self.tuned) and what._replace(warm=()) in self.tuned
        call = Call(operation.kind, self._options(operation, tuned=tuned), arrays is None)
        call.blind = self.options.tiling == "library" and not tuned
        core = operation.core.partition(" ")[0]
        tensors: dict[str, Tensor] = {}
        warm = what.warm or (False,) * len(what.values)
        for value, format, in_l2 in zip(what.values, what.formats, warm, strict=True):
            name = value.name
            placed = Placed(value, format, self.c0)
            if name in operation.reads:
                data = Spec(placed.shape, value.dtype) if arrays is None else arrays[name]
                tensors[name] = call.input(name, data, value.dtype, placed.shape, warm=in_l2)
            elif name in operation.writes:
                tensors[name] = call.output(name, placed.shape, value.dtype)
            else:
                tensors[name] = placed.tensor(name, "out")
        parts = parts_of(operation, {value.name: value for value in what.values})
        launch = _KERNELS.get(core) if self._known(what) else None
        if parts is not None:
            join_split.launch(call, parts, tensors)
        elif launch is not None:
            launch(self, call, operation, tensors)
        elif self._along(what):
            interpolation.launch(call, operation, tensors)
        else:
            self.traffic(call, operation, tensors)
        outputs = {name: call.arrays.get(name) for name in operation.writes}
        result = call.result(outputs, operation.kind, what.values[0].dtype)
        if any(run.name == TRAFFIC for run in result.runs):
            read, written = _traffic_bytes(operation, tensors)
            again = TrafficAgain(call.device, call.vector_cores, read, written)
            return replace(result, replay=again)
        return result

    def _options(self, operation: Operation, *, tuned: bool = False) -> Options:
        """The options of an operation: of products of matrices, whose rules are not public, the
        best tiling stands for the library's, and so it does for what is ``tuned``.
        """
        automatic = operation.core in _MATRICES or tuned
        if self.options.tiling == "library" and automatic:
            return replace(self.options, tiling="auto")
        return self.options

    def _known(self, what: Task) -> bool:
        """Return whether a kernel takes these sizes: windows over channels in two dimensions."""
        core = what.operation.core
        maps = [_flat(v.shape) for v in what.values if v.kind == "map"]
        windows = "pool" in core or core.startswith("upsample")
        two = len({shape[:2] for shape in maps}) == 1 < len(maps) and max(map(len, maps)) < 5
        small, large = sorted(maps[:2], key=prod) if two else ((), ())
        divides = "pool" in core or not any(b % a for a, b in zip(small, large, strict=True))
        uneven = "pool" in core and not getattr(what.operation.layer, "kernel", ())
        uneven &= prod(small[2:]) > 1  # as many windows, of other sizes
        return not windows or (two and divides and not uneven)

    def _along(self, what: Task) -> bool:
        """Return whether an operation sums with weights along axes of maps of as many channels."""
        maps = [v.shape for v in what.values if v.kind == "map"]
        alike = len({(len(shape), *shape[:2]) for shape in maps}) == 1 < len(maps)
        return alike and what.operation.core.startswith(("interpolate", "upsample", "avg_pool"))

    def as_product(self, operation: Operation, dtype: DType) -> bool:
        """Return whether plain operands of a convolution are multiplied as matrices.

        They are where operators do so. What is computed on its way out is computed of blocks.
        """
        c = self._ordinary(operation)
        if c is None or not can_multiply(c):
            return False
        result = operation.core.partition(".")[2]
        try:
            return multiplied(self._planned(operation), c, CubeMath(dtype, hf32=False), result)
        except ArgumentError:  # of the tiling that is asked for, as the kernel will say
            return False

    def replaced(self, operation: Operation, dtype: DType) -> Convolution | None:
        """The convolution whose gradient is computed in place of that of a layer, as by operators.

        None where that is the layer's own.
        """
        c = self._ordinary(operation)
        result = operation.core.partition(".")[2]
        if c is None or result == "output":
            return None
        call = self._planned(operation)
        try:
            return faster_shape(call, c, CubeMath(dtype, hf32=False), gradient=result == "input")
        except ArgumentError:
            return None

    def _ordinary(self, operation: Operation) -> Convolution | None:
        """The ordinary convolution of an operation, None of another, or with a chain on its way."""
        layer = operation.layer
        if not isinstance(layer, ConvLayer) or not operation.core.startswith("convolution"):
            return None
        if layer.transposed or operation.chain is not None:
            return None
        return layer.plain().lifted(self.c0)

    def _planned(self, operation: Operation) -> Call:
        """A call that nothing is launched in, for what depends on options and device."""
        return Call(operation.kind, self._options(operation), timing_only=True)

    def layout(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """The kernel that changes the layout of a value: of maps that of the library, if known.

        It is held to a published profile of AlexNet; of single positions, whose bytes lie alike in
        both layouts, it would take 57 us in ResNet-50, and of fractals 17 times the published.
        """
        kind, groups = operation.core.split()[1:]
        change = Conversion(kind=kind, c0=self.c0, groups=int(groups))
        ends = [tensors["v0"], tensors["v1"]]
        number = 0 if change.loads_plain else 1
        rows, channels, *places = ends[number].shape
        of_library = call.blind and change.maps and prod(places) > 1
        ruled = of_library and call.device.library_rules
        spatial = [1] * (3 - len(places)) + places if ruled else places or [1]
        ends[number] = call.view(ends[number], (rows, channels, *spatial))
        kernel: type[TransData] = TransData
        if ruled:
            kernel = LibraryTransData
        elif of_library and len(places) == 2:
            kernel = LibraryMaps
        call.launch_spread(kernel(change, *ends))

    # -- kernels -----------------------------------------------------------------------------

    def convolution(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """A product of a convolution, with what follows it in the drain."""
        layer = operation.layer
        assert isinstance(layer, ConvLayer)
        s = layer.plain().lifted(self.c0)
        result = operation.core.partition(".")[2]
        first = tensors[operation.inputs[0]]
        second = tensors[operation.inputs[1]]
        target = tensors[operation.outputs[0]]
        maps = (first, second if result == "weight" else target)
        plain = [len(tensor.shape) == layer.dims + 2 for tensor in maps]
        if all(plain):
            launch_matrices(call, s, result, first, second, target)
            return
        if any(plain):
            other = self.replaced(operation, first.dtype)
            assert other is not None
            if result == "weight":
                launch_replaced_filter(call, s, other, first, second, target)
            else:
                launch_replaced_input(call, s, other, first, second, target)
            return
        out, epilogue = _drained(call, operation, tensors)
        if result == "weight":
            pair = (second, first) if layer.transposed else (first, second)
            gradients.launch_filter_gradient(call, s, *pair, out)
            if s.plan.mag_factor > 1 and not self.plain:  # sums across groups would reach weights
                columns = call.view(out, fractal_columns(s))
                call.launch(ClearBlocks(columns, s.plan, s.kernel[0]))
            return
        forward = (result == "output") != layer.transposed
        kernel = ConvForward if forward else ConvBackpropInput
        if epilogue and epilogue.sums:
            call.launch(MemSet(epilogue.sums[0], few=True, more=epilogue.sums[1:]))
        kernels = gradients.product(call, kernel, s, first, second, out, epilogue=epilogue)
        gradients.launch(call, kernels, out)

    def pool(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """Pooling and its gradients, of maps of two dimensions; a window may be the whole map.

        ``tiling="library"`` pools as the library does, on chips and for windows whose rules are
        known.
        Maxima of windows that no UB holds have no kernel: their time is that of their bytes.
        The gradient of a sum over windows side by side enlarges a map, and such sums are the
        gradient of that.
        """
        layer = operation.layer
        assert isinstance(layer, ElementwiseLayer)
        enlarges = operation.core.startswith("upsample")
        back = operation.core.endswith("gradient") != enlarges
        read = _planes(call, tensors[operation.inputs[0]])
        out = _planes(call, tensors[operation.outputs[0]])
        image, windows = (out, read) if back else (read, out)
        shape = _windows_of(layer, image, windows, enlarges=enlarges)
        mask = None
        if operation.core.startswith("max"):
            kind = "max"
            masks = operation.inputs[1:] if back else operation.outputs[1:]
            mask = tensors[masks[0]]
        elif enlarges:
            kind = "sum"
        else:
            kind = "mean" if layer.numbers else "mean_inside"
        if mask is not None and launch_library_pool(call, shape, read, out, mask, back=back):
            return
        if kind.startswith("mean") and launch_library_average(
            call, shape, read, out, inside=kind == "mean_inside", back=back
        ):
            return
        saturate = call.device.saturates
        forward = Pool(shape, image, windows, kind=kind, mask=mask, saturate=saturate)
        fits = forward.fits(call.device)
        if kind == "max" and not fits:
            self.traffic(call, operation, tensors)
        elif back:
            call.launch_spread(PoolGrad(shape, read, out, kind=kind, mask=mask, saturate=saturate))
        else:
            for kernel in [forward] if fits else _means(call, forward):
                call.launch_spread(kernel)

    def move(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """A change of the order of elements, a shift, a repeat, a sum along axes; gradients too."""
        layer = operation.layer
        assert isinstance(layer, ElementwiseLayer)
        core = operation.core.removesuffix("_gradient")
        back = operation.core.endswith("gradient")
        read, written = (layer.out, layer.shape) if back else (layer.shape, layer.out)
        source = call.view(tensors[operation.inputs[0]], read)
        target = call.view(tensors[operation.outputs[0]], written)
        factor = layer.numbers[0] if layer.numbers else 1.0
        if core == "permute":
            inverse = [layer.axes.index(axis) for axis in range(len(layer.axes))]
            moves.permute(call, source, target, inverse if back else layer.axes)
        elif core == "roll":
            shifts = [int(-shift if back else shift) for shift in layer.numbers]
            moves.roll(call, source, target, shifts, layer.axes)
        elif core == "reduce_sum" and not back:
            moves.sum_axes(call, source, target, layer.axes, factor)
        elif core == "expand" and back:
            moves.reduce_expanded(call, source, target)
        else:
            if back and factor != 1:
                scaled = call.workspace("scaled", source.shape, source.dtype)
                moves.sum_axes(call, source, scaled, (), factor)
                source = replace(scaled, role="in")
            moves.expand(call, call.view(source, _kept_axes(layer, back=back)), target)

    def loss(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """Softmax with cross-entropy, and its gradient of the mean over the batch."""
        x = tensors[operation.inputs[0]]
        labels = tensors[operation.inputs[1]]
        loss = tensors[operation.outputs[0]]
        grad = tensors[operation.outputs[1]]
        call.launch_spread(softmax_loss(x, labels, loss, grad, scale=1 / x.shape[0]))

    def traffic(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """Time an operation without a kernel: bytes at the rates of main memory, and a launch."""
        if not call.timing_only:
            raise ArgumentError(f"{operation.kind}: there is no kernel that computes its numbers")
        read, written = _traffic_bytes(operation, tensors)
        call.runs.append(traffic_run(call.device, call.vector_cores, read, written))

    def bias(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """The gradient of a bias, of a plain map: nothing is added to channels that fill blocks."""
        dy = tensors[operation.inputs[0]]
        db = tensors[operation.outputs[0]]
        if isinstance(operation.layer, LinearLayer):  # whose rows another layer may see as maps
            dy = call.view(dy, (prod(dy.shape) // operation.layer.cout, operation.layer.cout))
        cleared = db.shape != dy.shape[1:2]
        if cleared:
            call.clear(db)
        launch_bias(call, dy, replace(db, shape=dy.shape[1:2]), "parts", cleared=cleared)

    def copy(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """A copy of a plain value, in another type if its target has one.

        Numbers for channels fill whole blocks: behind those of the other value they are zero.
        """
        source = tensors[operation.inputs[0]]
        target = tensors[operation.outputs[0]]
        elements = prod(source.shape)
        room = prod(target.shape)
        if elements == room:
            moves.sum_axes(call, call.view(source, target.shape), target, ())
            return
        if room > elements:
            call.clear(target)
        shape = (min(elements, room),)
        moves.sum_axes(call, replace(source, shape=shape), replace(target, shape=shape), ())

    def chain(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """A chain of element-wise steps on maps."""
        assert operation.chain is not None
        if operation.kind.startswith("cast"):
            source = tensors[operation.reads[0]]
            target = tensors[operation.writes[0]]
            call.launch_spread(cast(source, target, saturate=call.device.saturates))
            return
        if odd_rows(operation, tensors):
            launch_odd_rows(call, operation, tensors)
            return
        kernel = elementwise(operation, tensors, call)
        # With sums on all cores, so that their order is always the same.
        if not operation.chain.sums:
            kernel = call.spread(kernel)
        for needed in (*kernel.before, kernel):
            call.launch(needed)

    def linear(self, call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """A product of a linear layer, or of two computed matrices."""
        layer = operation.layer
        assert isinstance(layer, LinearLayer)
        computed = layer.products > 0
        result = operation.core.partition(".")[2]
        product = layer_product(layer, result)
        roles = ("x", "y") if computed and result == "weight" else _ROLES[result]
        inputs = (tensors[name] for name in operation.inputs)
        operands = dict(zip(roles, inputs, strict=False))  # a bias has no role
        operands[product.result] = tensors[operation.outputs[0]]
        fractals = not computed and result != "weight" and len(operands["w"].shape) == 4
        for role, tensor in operands.items():
            if not (fractals and role == "w"):
                operands[role] = call.view(tensor, product.shapes[role])
        a = operands[product.operands[0]]
        b = operands[product.operands[1]]
        c = operands[product.result]
        layouts = product.layouts
        if fractals:
            a = self._fractals(call, a)
            layouts = ("NZ", layouts[1].replace("ND", "NZ"))
        kernels = product.kernel(linear.START, a, b, c, layouts, groups=layer.stack)
        bias = tensors[operation.inputs[2]] if len(operation.inputs) > 2 else None
        if bias is not None and bias.dtype is not c.dtype:
            bias = linear.converted(call, bias, c.dtype)
        # A published profile of a 910 lists the clearing of such gradients of 67 and 151 MB.
        ruled = call.blind and call.device.library_rules
        cleared = ruled and result == "weight" and not computed
        linear.launch_product(call, kernels, bias, rounded=True, cleared=cleared)

    def _fractals(self, call: Call, rows: Tensor) -> Tensor:
        """A matrix of plain rows in fractals, by a launch."""
        change = Conversion(kind="to_fracz", c0=self.c0, groups=1)
        plain = call.view(rows, (*rows.shape, 1))
        fractals = call.workspace(f"{rows.name}_nz", change.blocked_shape(plain.shape), rows.dtype)
        call.launch_spread(TransData(change, plain, fractals))
        return fractals


def _traffic_bytes(operation: Operation, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Bytes that an operation reads and writes, each value once."""
    read = sum(tensors[name].size_bytes for name in operation.reads)
    written = sum(tensors[name].size_bytes for name in operation.writes)
    return read, written


def _planes(call: Call, blocks: Tensor) -> Tensor:
    """A map in blocks, (N, D, C1, H, W, C0), whose only depth is left out."""
    return call.view(blocks, blocks.shape[:1] + blocks.shape[2:])


def _windows_of(
    layer: ElementwiseLayer, image: Tensor, windows: Tensor, *, enlarges: bool
) -> Convolution:
    """The windows of a pooling layer; of one that enlarges, windows side by side."""
    kernel = layer.kernel or image.shape[2:4]
    if enlarges:
        sides = zip(image.shape[2:4], windows.shape[2:4], strict=True)
        kernel = tuple(large // small for large, small in sides)
    return pooled(
        image.shape,
        _planar(kernel, 1),
        _planar(layer.stride or kernel, 1),
        _planar(layer.padding, (0, 0)) if layer.padding else (),
        windows.shape[2:4],
    )


def _means(call: Call, pool: Pool) -> list[Pool]:
    """Means along rows, and means of these along columns, where UB holds no whole window."""
    s = pool.shape
    rows = (pool.shape.spatial[0], pool.shape.out[1])
    between = call.workspace("means", (s.n, *rows, s.c0), pool.read.dtype)
    down, across = s.kernel
    high, wide = s.stride
    top, left = s.padding
    by_row = replace(s, kernel=(1, across), stride=(1, wide), padding=((0, 0), left), outputs=rows)
    rest = replace(s, kernel=(down, 1), stride=(high, 1), padding=(top, (0, 0)), spatial=rows)
    return [replace(pool, shape=by_row, out=between), replace(pool, shape=rest, read=between)]


def _drained(
    call: Call, operation: Operation, tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Epilogue | None]:
    """The result of a product, and the chain done to its tiles on their way out."""
    out = tensors[operation.outputs[0]]
    chain = operation.chain
    if chain is None:
        return out, None
    names = (*tensors, *(step.result for step in chain.steps))
    chain = chain.renamed({**{name: name for name in names}, operation.outputs[0]: PRODUCT})
    if not operation.stored:
        out = next(tensors[name] for name in chain.writes if not is_mask(tensors[name]))
    return out, Epilogue(
        chain.steps,
        tuple(tensors[name] for name in chain.reads if name != PRODUCT),
        tuple(tensors[name] for name in chain.writes if name != out.name),
        tuple(tensors[name] for name in chain.vectors),
        tuple(replace(tensors[name], role="inout") for name, _ in chain.sums),
        tuple(value for _, value in chain.sums),
        saturate=call.device.saturates,
    )


#: What the operands of a product's operation are, in the order of the table of operations.
_ROLES = {"output": ("x", "w"), "input": ("y", "w"), "weight": ("y", "x")}


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a map with two axes at least: signals have one row."""
    return (*shape[:2], *(1,) * (4 - len(shape)), *shape[2:])


def _planar(sizes: Sequence[T], fill: T) -> tuple[T, T]:
    """Sizes of both axes of a map, of which one of one dimension has no first."""
    first, last = (fill, fill, *sizes)[-2:]
    return first, last


def _kept_axes(layer: ElementwiseLayer, *, back: bool) -> tuple[int, ...]:
    """The shape of what is repeated, with an axis of size 1 where it is."""
    if not back:
        return layer.shape
    summed = {axis % len(layer.shape) for axis in layer.axes}
    return tuple(1 if axis in summed else size for axis, size in enumerate(layer.shape))


#: Kinds that move, repeat or add up elements along axes.
_MOVES = ("permute", "roll", "expand", "reduce_sum")


#: How operations are launched, by core; chains have none.
_KERNELS: Mapping[
    str, Callable[[OperationLauncher, Call, Operation, Mapping[str, Tensor]], None]
] = {
    "": OperationLauncher.chain,
    "layout": OperationLauncher.layout,
    **{f"{kind}{end}": OperationLauncher.move for kind in _MOVES for end in ("", "_gradient")},
    COPY: OperationLauncher.copy,
    **{
        f"convolution.{name}": OperationLauncher.convolution
        for name in ("output", "input", "weight")
    },
    **{
        f"{kind}_pool{end}": OperationLauncher.pool
        for kind in ("max", "avg")
        for end in ("", "_gradient")
    },
    **dict.fromkeys(("upsample", "upsample_gradient"), OperationLauncher.pool),
    "softmax_loss": OperationLauncher.loss,
    "linear.bias": OperationLauncher.bias,
    **dict.fromkeys(_MATRICES, OperationLauncher.linear),
}
