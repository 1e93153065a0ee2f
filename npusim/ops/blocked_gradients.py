"""The launches of a convolution's gradients that several operators compute, on blocked layouts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.call.tilings.words import asked_tiling, is_library, is_tuned
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.kernels.vector.bias_grad import BiasGrad, channel_parts
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.kernels.vector.epilogue import Epilogue
from npusim.kernels.vendor import cann_filter, cann_input, library
from npusim.kernels.vendor.cann import CannTiling
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.ops.blocked import blocked_problem, fractal_columns
from npusim.problem.convolution import Convolution
from npusim.problem.limits.forms import layer_of
from npusim.results import Result

#: Stand in for the tilings that are to be chosen.
ANY_PRODUCT = GemmTiling(base_m=1, base_n=16, base_k=1, form="taps")
ANY_GRADIENT = FilterTiling(base_m=16, base_n=16, base_k=16, slab_k=1, form="taps")


def launch_bias(call: Call, dy: Tensor, db: Tensor, parts: str) -> None:
    """The sum of a plain ``dy`` (N, C, positions...) over all but channels, into ``db`` (C,).

    Channels that are cut need a workspace, which is called ``parts``; the library cuts none.
    """
    flat = replace(dy, shape=(*dy.shape[:2], prod(dy.shape[2:])))
    library = call.device.library_rules and is_library(call.options.tiling, BiasGrad.name)
    by_rows = library and flat.shape[2] > 1
    kernel = call.spread(BiasGrad(flat, db, saturate=call.device.saturates, by_rows=by_rows))
    count = 1 if by_rows else channel_parts(flat.shape, kernel.used(call.vector_cores))
    partial = call.workspace(parts, (dy.shape[1], count), FP32) if count > 1 else None
    call.launch(replace(kernel, partial=partial))


def product(
    call: Call,
    kernel: type[ImplicitGemm],
    c: Convolution,
    source: Tensor,
    weights: Tensor,
    out: Tensor,
    hf32: bool = False,
    epilogue: Epilogue | None = None,
) -> ImplicitGemm:
    """The kernel of an input gradient or forward convolution of the 3-D ``c``.

    It is tiled as the call wants it; ``launch`` does the rest.
    """
    tiling = _tiling(call, kernel, c, source.dtype)
    made = kernel(c, tiling or ANY_PRODUCT, source, weights, out, hf32, epilogue=epilogue)
    return call.choose(made) if tiling is None and made.shape.reads_any else made


def launch_filter_gradient(
    call: Call, c: Convolution, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
) -> None:
    """Compute ``dw`` (fp32 FRACTAL_Z_3D): clearing, the kernel, and the sum of parts if asked.

    Where K is split over cores, parts add atomically into a cleared ``dw``; with the option (or
    the tiling's field) ``deterministic`` each writes its own copy, and a vector kernel adds the
    copies in order.
    """
    kernel = filter_gradient(call, c, x, dy, dw, hf32)
    last = launches_of(kernel)[-1]
    if not isinstance(last, SumParts):
        launch(call, kernel, dw)
        return
    copies = call.workspace(last.parts.name, last.parts.shape, FP32)
    launch(call, replace(kernel, dw=copies), copies)
    call.launch_spread(last)


def fractal_gradient(call: Call, checked: Mapping[str, Any], x: Operand, dy: Operand) -> Result:
    """A filter gradient of the tensor compiler, of these facts.

    The result, fp32 ``fractal_columns``, is zero between groups in one fractal: the chip leaves
    sums across groups there, which no reader uses; a kernel clears them here.
    """
    c = _passed(call, checked)
    plan = c.plan
    tensors = (
        call.input("x", x, FP16),
        call.input("dy", dy, FP16),
        call.output("dw", fractal_columns(c), FP32),
    )
    require_time(call, c.lifted(), 1, FP16)
    launch_filter_gradient(call, c.lifted(), *tensors)
    if plan.mag_factor > 1:
        call.launch(ClearBlocks(tensors[2], plan, c.lifted().kernel[0]))
        call.notes.append(
            f"groups share fractals ({plan.mag_factor} to a real group): {ClearBlocks.name} clears "
            "the off-diagonal blocks of the result, where the chip leaves unused sums and launches "
            "nothing"
        )
    return _compiled(call, c, "grad_weight", tensors[2])


def blocked_gradient(
    call: Call,
    checked: Mapping[str, Any],
    dy: Operand,
    w: Operand,
    bias: Operand | None = None,
) -> Result:
    """An input gradient of the tensor compiler, of these facts.

    The result is (N, [D,] C1, H * W, 16) of the type ``res_dtype``; ``bias`` has one value of it
    per input channel, added after rounding.
    """
    c, out = _passed(call, checked), dtype(checked["res_dtype"])
    if bias is not None:
        _check_bias(c, out, bias)
    names = ("dx", "dy", "filter", "bias")
    dx = blocked_product(call, ConvBackpropInput, c, names, (dy, w, bias), out)
    return _compiled(call, c, "grad_input", dx)


def blocked_product(
    call: Call,
    kernel: type[ImplicitGemm],
    c: Convolution,
    names: tuple[str, str, str, str],
    operands: tuple[Operand, Operand, Operand | None],
    result: DType,
) -> Tensor:
    """A product in blocked layouts, (N, [D,] C1, H * W, 16) of the type ``result``.

    ``names`` are those of the result, of the map that is read, of the weights and of the bias,
    which has one value of the result's type per channel and is added after rounding.
    """
    whole, (source, weights, bias) = c.lifted(), operands
    maps = (c.cin1, whole.spatial), (c.cout1, whole.out)
    (others, read), (blocks, made) = maps if kernel is ConvForward else maps[::-1]
    out = call.output(names[0], (c.n, made[0], blocks, *made[1:], 16), result)
    source_gm = call.input(names[1], source, FP16, (c.n, read[0], others, *read[1:], 16))
    weights_gm = call.input(names[2], weights, FP16)
    require_time(call, whole, 1, FP16)
    launch(call, product(call, kernel, whole, source_gm, weights_gm, out), out)
    pixels = prod(made[1:])
    if bias is not None:
        added = call.input(names[3], bias, result)
        flat = call.view(out, (c.n, made[0], blocks, pixels, 16))
        call.launch_spread(BiasAdd(flat, added, saturate=call.device.saturates))
    return call.view(out, (c.n, *made[: c.dims - 2], blocks, pixels, 16))


def _passed(call: Call, checked: Mapping[str, Any]) -> Convolution:
    """The convolution of facts, once the limits have let them pass."""
    call.check(checked)
    call.require_dtype(FP16)
    return layer_of(checked)


def _compiled(call: Call, c: Convolution, output: str, made: Tensor) -> Result:
    """The result of a function of the tensor compiler, whose kernels are launched."""
    problem = blocked_problem(made.name, c, made.dtype)
    outputs = {output: call.arrays.get(made.name)}
    return call.result(outputs, problem, FP16, sizes=c.channel_blocks(16))


def _check_bias(c: Convolution, wanted: DType, bias: Operand) -> None:
    """Raise unless the bias is one value of ``wanted`` per input channel."""
    given = dtype(bias.dtype)
    if tuple(bias.shape) != (c.cin,) or given is not wanted:
        raise ArgumentError(
            f"tensor_bias is {given} of shape {tuple(bias.shape)}; it must be {wanted} of "
            f"({c.cin},)"
        )


def filter_gradient(
    call: Call, c: Convolution, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
) -> ConvBackpropFilter:
    """The kernel of a filter gradient, as the call wants it tiled."""
    tiling = _tiling(call, ConvBackpropFilter, c, x.dtype)
    made = ConvBackpropFilter(c, tiling or ANY_GRADIENT, x, dy, dw, hf32)
    if call.options.deterministic:
        made = replace(made, tiling=replace(made.tiling, deterministic=True))
    return call.choose(made, launches_of) if tiling is None and made.shape.reads_any else made


def launches_of(kernel: ConvBackpropFilter | ImplicitGemm) -> list[Kernel]:
    """What computes a gradient: clearing, the kernel, of filters a sum of parts in fixed order."""
    if isinstance(kernel, ImplicitGemm) or not (kernel.tiling.deterministic and kernel.parts > 1):
        return [*kernel.before, kernel]
    dw = kernel.dw
    copies = Tensor(f"{dw.name}_parts", (kernel.parts, *dw.shape), FP32, "out")
    kernel = replace(kernel, dw=copies)
    return [*kernel.before, kernel, SumParts(copies, dw)]


def require_time(call: Call, c: Convolution, products: int, dtype: DType) -> None:
    """Raise ``CapacityError`` for so many products of ``c`` that take many minutes unseen.

    Counts what the least number of `mmad`s needs: two loads each, L0A full, all channels of a tile.
    """
    plan, wide = c.plan, 256
    blocks = plan.real_groups * plan.cin1_g * c.c0 * plan.cout_g
    padded = c.useful_macs * blocks / (c.groups * c.cin_per_group * c.cout_per_group)
    columns = min(wide, max(plan.cin1_g * c.c0, plan.cout_g))
    most = call.device.memory("L0A").size_bytes // dtype.bytes * columns
    macs = products * c.useful_macs
    call.require_time(3 * products * int(padded // most), macs)


def launch(call: Call, kernel: ConvBackpropFilter | ImplicitGemm, out: Tensor) -> None:
    """The kernel, tuned if asked for, and clearing where it adds or leaves gaps."""
    if kernel.shape.reads_any and not call.options.deterministic:
        kernel = call.tuned(kernel)
    elif kernel.shape.reads_any and is_tuned(call.options.tiling, kernel.name):
        call.notes.append(
            f"{kernel.name}: deterministic, so its tiling is 'auto'; a search compares kernels "
            "without the sum of parts behind them"
        )
    if kernel.needs_clear and is_library(call.options.tiling, kernel.name):
        call.clear(out)  # on all cores
    else:
        for one in kernel.before:
            call.launch(one)
    if kernel.shape.reads_any:
        call.launch(kernel)


def asked(call: Call, kernel: type[ImplicitGemm | ConvBackpropFilter]) -> Any:
    """What a call says of the tiling of a kernel: one, or a word."""
    kind = FilterTiling if kernel is ConvBackpropFilter else GemmTiling
    option, vendor = call.options.tiling, kernel.vendor_rule
    return asked_tiling(option, kernel.name, kind, vendor=vendor, library=True)


def _tiling(
    call: Call, kernel: type[ImplicitGemm | ConvBackpropFilter], c: Convolution, dtype: DType
) -> Any:
    """The tiling that a call asks for, None for the best."""
    found, device, cores = asked(call, kernel), call.device, call.cube_cores
    if found == "library":
        found, told = library.tiled(kernel, c, device.launching("single"), cores, dtype)
        call.notes += [f"{kernel.name}: {told}"] * bool(told)
    rule: Any = cann_filter if kernel is ConvBackpropFilter else cann_input
    if found == "production":
        found = rule.production_tiling(c, device, cores, dtype)
    if isinstance(found, CannTiling):
        given = found
        found, told = rule.kernel_tiling(given, c, device, dtype)
        call.notes += [f"CANN tiling of {kernel.name}: {given}", *told]
    return None if isinstance(found, str) else found
