"""The launches of a convolution's gradients that several operators compute, on blocked layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.call.tilings.library import tiled
from npusim.call.tilings.words import asked_tiling, is_library, is_tuned
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import ImplicitGemm
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.folding import FoldedConvolution
from npusim.kernels.parts.sum_parts import SumParts
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.kernels.vector.epilogue import Epilogue
from npusim.kernels.vendor import cann_filter, cann_input
from npusim.kernels.vendor.cann import CannTiling
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.ops.blocked import blocked_problem, fractal_columns
from npusim.problem.convolution import Convolution
from npusim.problem.limits.forms import layer_of
from npusim.results import Result

#: Channels up to which the library computes a forward pass or a filter gradient of 16 bits in
#: blocks of four (``FRACTAL_Z_C04``, unless the filter is 1x1), by kernels without a public rule.
FEW_CHANNELS = 4

#: Stand in for the tilings that are to be chosen.
ANY_PRODUCT = GemmTiling(base_m=1, base_n=16, base_k=1, form="taps")
ANY_GRADIENT = FilterTiling(base_m=16, base_n=16, base_k=16, slab_k=1, form="taps")


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
    gemm = kernel(c, tiling or ANY_PRODUCT, source, weights, out, hf32, epilogue=epilogue)
    if tiling is None and gemm.shape.reads_any:
        return call.choose(gemm)
    return gemm


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
    lifted = c.lifted()
    x_gm = call.input("x", x, FP16)
    dy_gm = call.input("dy", dy, FP16)
    dw = call.output("dw", fractal_columns(c), FP32)
    require_time(call, lifted, 1, FP16)
    launch_filter_gradient(call, lifted, x_gm, dy_gm, dw)
    if plan.mag_factor > 1:
        call.launch(ClearBlocks(dw, plan, lifted.kernel[0]))
        call.notes.append(
            f"groups share fractals ({plan.mag_factor} to a real group): {ClearBlocks.name} clears "
            "the off-diagonal blocks of the result, where the chip leaves unused sums and launches "
            "nothing"
        )
    return _compiled(call, c, "grad_weight", dw)


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
    c = _passed(call, checked)
    result = dtype(checked["res_dtype"])
    if bias is not None:
        _check_bias(c, result, bias)
    dx = blocked_product(
        call,
        ConvBackpropInput,
        c,
        source=Named("dy", dy),
        weights=Named("filter", w),
        bias=None if bias is None else Named("bias", bias),
        result_name="dx",
        result=result,
    )
    return _compiled(call, c, "grad_input", dx)


class Named(NamedTuple):
    """An operand, and what it is called in the programs of kernels."""

    name: str
    value: Operand


def blocked_product(
    call: Call,
    kernel: type[ImplicitGemm],
    c: Convolution,
    *,
    source: Named,
    weights: Named,
    bias: Named | None,
    result_name: str,
    result: DType,
) -> Tensor:
    """A product in blocked layouts, (N, [D,] C1, H * W, 16) of the type ``result``.

    ``source`` is the map that is read, ``bias`` has one value of the result's type per channel and
    is added after rounding.
    """
    lifted = c.lifted()
    if kernel is ConvForward:
        read_blocks, read_size = c.cin1, lifted.spatial
        blocks, size = c.cout1, lifted.out
    else:
        read_blocks, read_size = c.cout1, lifted.out
        blocks, size = c.cin1, lifted.spatial
    depth, height, width = size
    out = call.output(result_name, (c.n, depth, blocks, height, width, 16), result)
    read_depth, read_height, read_width = read_size
    source_gm = call.input(
        source.name,
        source.value,
        FP16,
        (c.n, read_depth, read_blocks, read_height, read_width, 16),
    )
    weights_gm = call.input(weights.name, weights.value, FP16)
    require_time(call, lifted, 1, FP16)
    launch(call, product(call, kernel, lifted, source_gm, weights_gm, out), out)
    if bias is not None:
        bias_gm = call.input(bias.name, bias.value, result)
        flat = call.view(out, (c.n, depth, blocks, height * width, 16))
        call.launch_spread(BiasAdd(flat, bias_gm, saturate=call.device.saturates))
    if c.dims == 3:
        return call.view(out, (c.n, depth, blocks, height * width, 16))
    return call.view(out, (c.n, blocks, height * width, 16))


def _passed(call: Call, checked: Mapping[str, Any]) -> Convolution:
    """The convolution of facts, once the limits have let them pass."""
    call.check(checked)
    call.require_dtype(FP16)
    return layer_of(checked)


def _compiled(call: Call, c: Convolution, output: str, tensor: Tensor) -> Result:
    """The result of a function of the tensor compiler, whose kernels are launched.

    ``tensor`` is returned as ``output``.
    """
    problem = blocked_problem(tensor.name, c, tensor.dtype)
    outputs = {output: call.arrays.get(tensor.name)}
    return call.result(outputs, problem, FP16, sizes=c.channel_blocks(16))


def _check_bias(c: Convolution, wanted: DType, bias: Operand) -> None:
    """Raise unless the bias is one value of ``wanted`` per input channel."""
    kind = dtype(bias.dtype)
    if tuple(bias.shape) != (c.cin,) or kind is not wanted:
        raise ArgumentError(
            f"tensor_bias is {kind} of shape {tuple(bias.shape)}; it must be {wanted} of ({c.cin},)"
        )


def filter_gradient(
    call: Call, c: Convolution, x: Tensor, dy: Tensor, dw: Tensor, hf32: bool = False
) -> ConvBackpropFilter:
    """The kernel of a filter gradient, as the call wants it tiled."""
    tiling = _tiling(call, ConvBackpropFilter, c, x.dtype)
    kernel = ConvBackpropFilter(c, tiling or ANY_GRADIENT, x, dy, dw, hf32)
    if call.options.deterministic:
        kernel = replace(kernel, tiling=replace(kernel.tiling, deterministic=True))
    if tiling is None and kernel.shape.reads_any:
        return call.choose(kernel, launches_of)
    return kernel


def launches_of(kernel: ConvBackpropFilter | ImplicitGemm) -> list[Kernel]:
    """The launches of a gradient: clearing, the kernel, of filters a sum of parts in order."""
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
        for clearing in kernel.before:
            call.launch(clearing)
    if kernel.shape.reads_any:
        call.launch(kernel)


def asked(
    call: Call, kernel: type[ImplicitGemm | ConvBackpropFilter], c: Convolution, dtype: DType
) -> Any:
    """The tiling of a kernel of the 3-D ``c`` as a call asks for it: a tiling, or a word.

    Of few channels the library has kernels of its own, for which the best of ours stand: "auto".
    """
    kind = FilterTiling if kernel is ConvBackpropFilter else GemmTiling
    option, vendor = call.options.tiling, kernel.vendor_rule
    wanted = asked_tiling(option, kernel.name, kind, vendor=vendor, library=True)
    if not isinstance(wanted, str) or wanted != "library" or kernel is ConvBackpropInput:
        return wanted
    few = c.cin <= FEW_CHANNELS and c.groups == 1 and c.taps > 1 and dtype.bytes == 2
    return "auto" if few or isinstance(c, FoldedConvolution) else wanted


def _tiling(
    call: Call, kernel: type[ImplicitGemm | ConvBackpropFilter], c: Convolution, dtype: DType
) -> Any:
    """The tiling that a call asks for, None for the best."""
    wanted = asked(call, kernel, c, dtype)
    if wanted == "auto" and is_library(call.options.tiling, kernel.name):
        call.notes.append(
            f"{kernel.name}: tiled as by 'auto', as the vendor's library has kernels of its own "
            f"for up to {FEW_CHANNELS} channels, of which no rule is public"
        )
    if wanted == "library":
        device = call.device.launching("single")
        ruled = tiled(kernel, c, device, call.cube_cores, dtype)
        if ruled.remark:
            call.notes.append(f"{kernel.name}: {ruled.remark}")
        call.extrapolated[kernel.name] = ruled.beyond
        wanted = ruled.tiling
    rule: Any = cann_filter if kernel is ConvBackpropFilter else cann_input
    if wanted == "production":
        wanted = rule.production_tiling(c, call.device, call.cube_cores, dtype)
    if isinstance(wanted, CannTiling):
        cann_tiling = wanted
        wanted, remarks = rule.kernel_tiling(cann_tiling, c, call.device, dtype)
        call.notes += [f"CANN tiling of {kernel.name}: {cann_tiling}", *remarks]
    return None if isinstance(wanted, str) else wanted
