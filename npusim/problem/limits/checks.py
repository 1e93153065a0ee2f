"""The relations that rows of a constraint table refer to by name.

A check gets all facts and the parameter of its row; it runs after the rows before it held. It
returns None, or the words for the fault, which say what would be right. ``CHECKS``, at the end,
lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from numbers import Integral
from typing import Any

from npusim.base.dtypes import promote
from npusim.problem.convolution import output_sizes, sides_of, transposed_sizes
from npusim.problem.layouts import group_dict
from npusim.problem.limits.facts import PARAM, Facts, weight_shape
from npusim.problem.limits.forms import described, form_of

Check = Callable[[Facts, str], "str | None"]

# -- convolution_backward ------------------------------------------------------------------


def _must_be(wanted: Callable[[Facts], Any]) -> Check:
    """A check that a fact, a dtype or a shape, has the value that others give it."""

    def check(f: Facts, parameter: str) -> str | None:
        want, actual = wanted(f), f[parameter]
        right = actual == want if isinstance(want, str) else tuple(actual) == want
        return None if right else f"it must be {want}"

    return check


def _dtype_of(*names: str) -> Check:
    """A check that a tensor has the promoted type of those named."""
    return _must_be(lambda f: promote((f[name] for name in names), "fp32"))


def _shape_of(name: str) -> Check:
    """A check that a tensor has the shape of the one named."""
    return _must_be(lambda f: tuple(f[name]))


def ranks(f: Facts, _: str) -> str | None:
    """All three operands have one rank of 3 to 5."""
    axes = [len(f[name]) for name in ("grad_output.shape", "input.shape", "weight.shape")]
    if len(set(axes)) == 1 and axes[0] in (3, 4, 5):
        return None
    return f"grad_output, input and weight have ranks {', '.join(map(str, axes))}"


def grad_output_empty(f: Facts, _: str) -> str | None:
    """The gradient has data unless there is no batch."""
    dy, x = f["grad_output.shape"], f["input.shape"]
    excused = dy[0] == 0 == x[0] and 0 not in dy[1:]
    return None if 0 not in dy or excused else "it has no data"


def weight_empty(f: Facts, _: str) -> str | None:
    """The weight has data unless the input has no channels."""
    w, axis = f["weight.shape"], 0 if f["transposed"] else 1
    others = (*w[:axis], *w[axis + 1 :])
    excused = w[axis] == 0 == f["input.shape"][1] and 0 not in others
    return None if 0 not in w or excused else "it has no data"


def input_empty(f: Facts, _: str) -> str | None:
    """The input has no spatial size of zero."""
    return "a spatial size is 0" if 0 in f["input.shape"][2:] else None


def bias_sizes(f: Facts, _: str) -> str | None:
    """The stated bias has the channels of the gradient."""
    w = f["weight.shape"]
    want = w[1] * f["groups"] if f["transposed"] else f["grad_output.shape"][1]
    return None if f["bias_sizes"][0] == want else f"it must be ({want},)"


def output_padding_below_stride(f: Facts, _: str) -> str | None:
    """Output padding stays below the stride everywhere."""
    extra, stride, dilation = f["output_padding"], f["stride"], f["dilation"]
    if all(end < step for end, step in zip(extra, stride, strict=True)):
        return None
    limits = zip(extra, stride, dilation, strict=True)
    if all(end < max(step, apart) for end, step, apart in limits):
        return (
            f"stride is {tuple(stride)}; values below the dilation {tuple(dilation)} alone, which "
            "PyTorch takes, are refused by the vendor's checker"
        )
    return f"stride is {tuple(stride)}"


def channels(f: Facts, _: str) -> str | None:
    """Channels of the three operands agree with the number of groups."""
    w, groups = f["weight.shape"], f["groups"]
    first, second = ("input", "grad_output") if f["transposed"] else ("grad_output", "input")
    for name, want in ((first, w[0]), (second, w[1] * groups)):
        if f[f"{name}.shape"][1] != want:
            return f"weight {tuple(w)} needs {want} channels in {name}"
    return None if w[0] % groups == 0 else f"weight[0] is {w[0]}"


def one_channel_per_group(f: Facts, _: str) -> str | None:
    """A plain convolution of one input channel per group has whole groups of outputs."""
    plain = f["grad_output.shape" if f["transposed"] else "input.shape"][1]
    cout, groups = f["weight.shape"][0], f["groups"]
    if plain != groups or (cout >= groups and cout % groups == 0):
        return None
    return f"there are {cout} output channels"


def depthwise(f: Facts, _: str) -> str | None:
    """Every channel is a group of its own."""
    cout, cin = f["grad_output.shape"][1], f["input.shape"][1]
    return None if cout == cin == f["groups"] else f"the channels are {cout} and {cin}"


def batch(f: Facts, _: str) -> str | None:
    """Gradient and input have one batch."""
    want = f["input.shape"][0]
    return None if f["grad_output.shape"][0] == want else f"N of input is {want}"


def spatial(f: Facts, _: str) -> str | None:
    """The small side of the plain convolution has the size that the large side gives."""
    large, small = "input", "grad_output"
    if f["transposed"]:
        large, small = small, large
    sizes = f[f"{large}.shape"][2:]
    pads = sides_of(tuple(f["padding"]), len(sizes))
    want = output_sizes(sizes, f["kernel"], f["stride"], pads, f["dilation"])
    if min(want) < 1:
        return f"the dilated kernel is larger than the padded {large} {tuple(sizes)}"
    actual = tuple(f[f"{small}.shape"][2:])
    if actual == want or (f["transposed"] and _spread(f, actual, pads) == tuple(sizes)):
        return None
    return f"{large} {tuple(sizes)} gives {small} {want}, not {actual}"


def _spread(f: Facts, sizes: tuple[int, ...], pads: Any) -> tuple[int, ...]:
    """Output sizes of a transposed convolution, its output padding as long as it likes."""
    extra = [end for _, end in sides_of(tuple(f["output_padding"]), len(sizes))]
    return transposed_sizes(sizes, f["kernel"], f["stride"], pads, f["dilation"], extra)


def map_width(f: Facts, parameter: str) -> str | None:
    """A feature map of several rows is at most 4096 wide."""
    *_, h, w = f[parameter]
    return f"W is {w} and there are {h} rows" if h > 1 and w > 4096 else None


# -- im2col_backward -----------------------------------------------------------------------


def im2col_rows(f: Facts, _: str) -> str | None:
    """Rows of the gradient are channels times taps."""
    taps = prod(f["kernel_size"])
    return f"the kernel has {taps} taps" if f["grad_output.shape"][-2] % taps else None


def im2col_out_dtype(f: Facts, _: str) -> str | None:
    """The columns have the image's type."""
    return None if f["out.dtype"] == f["image.dtype"] else f"the image is {f['image.dtype']}"


def im2col_columns(f: Facts, _: str) -> str | None:
    """Columns of the gradient are the positions of the window."""
    pads = [(p, p) for p in f["padding"]]
    out = output_sizes(f["input_size"], f["kernel_size"], f["stride"], pads, f["dilation"])
    if min(out) < 1:
        return f"the dilated kernel is larger than the padded image {tuple(f['input_size'])}"
    windows = prod(out)
    if f["grad_output.shape"][-1] == windows:
        return None
    return f"there are {windows} windows, {out[0]} x {out[1]}"


def _image(f: Facts) -> tuple[int, ...]:
    """The image has the stated size, and the gradient's channels."""
    *lead, rows, _columns = f["grad_output.shape"]
    return (*lead, rows // prod(f["kernel_size"]), *f["input_size"])


def im2col_image(f: Facts, _: str) -> str | None:
    """The windows fit into the padded image; one in 5HD has blocks of 16 channels."""
    shape = f["image.shape"]
    if len(shape) == 5 and shape[4] != 16:
        return "the last axis of 5HD must be 16"
    size = shape[2:4] if len(shape) == 5 else shape[-2:]
    pads = [(p, p) for p in f["padding"]]
    out = output_sizes(size, f["kernel_size"], f["stride"], pads, f["dilation"])
    return None if min(out) > 0 else "the dilated kernel is larger than the padded image"


def _columns(f: Facts) -> tuple[int, ...]:
    """The columns have a row per channel and tap, and one entry per window."""
    *lead, channels, height, width = f["image.shape"]
    pads = [(p, p) for p in f["padding"]]
    out = output_sizes((height, width), f["kernel_size"], f["stride"], pads, f["dilation"])
    return (*lead, channels * prod(f["kernel_size"]), prod(out))


# -- the tensor compiler's gradients -------------------------------------------------------


def tbe_filter_groups(f: Facts, _: str) -> str | None:
    """Groups divide the output channels."""
    cout = described(f).cout
    return f"Cout is {cout}" if cout % f["groups"] else None


def tbe_filter_input(f: Facts, parameter: str) -> str | None:
    """The feature map holds the filter's channels."""
    want = described(f).cin1
    return None if f[parameter][-4] == want else f"C1 must be {want}"


def tbe_filter_output(f: Facts, parameter: str) -> str | None:
    """The gradient has the sizes of the forward output."""
    layer = described(f)
    if min(layer.out) < 1:
        return f"the dilated kernel is larger than the padded input {layer.spatial}"
    want = (layer.n, *layer.out[:-2], layer.cout1, *layer.out[-2:], layer.c0)
    return None if tuple(f[parameter]) == want else f"it must be {want}"


def group_dict_keys(f: Facts, _: str) -> str | None:
    """The dictionary has all of its keys."""
    keys = ("real_g", "mag_factor", "cin1_g", "cout_g", "cin_ori", "cout_ori")
    missing = [key for key in keys if key not in f["group_dict"]]
    return f"it lacks {', '.join(missing)}" if missing else None


def tbe_group_dict(f: Facts, _: str) -> str | None:
    """The dictionary agrees with the packing of the groups."""
    want = group_dict(described(f).plan)
    stated = f["group_dict"]
    wrong = [f"{key} {value}" for key, value in want.items() if stated.get(key, value) != value]
    return f"it must have {', '.join(wrong)}" if wrong else None


def tbe_input_channels(f: Facts, _: str) -> str | None:
    """Channels of filter, input and gradient agree."""
    (filters, inputs), layer = form_of(f).lists, described(f)
    cin, cout, cg = layer.cin, layer.cout, f[filters][1]
    if cin % cg or cout % (cin // cg):
        return f"{filters} has Cout {cout} and C {cg}, {inputs} has C {cin}"
    want = layer.cout1
    return None if f["out_backprop.shape"][-4] == want else f"C1 of out_backprop must be {want}"


def tbe_input_batch(f: Facts, parameter: str) -> str | None:
    """Gradient and input have one batch."""
    want = described(f).n
    return None if f[parameter][0] == want else f"N of {form_of(f).lists[1]} is {want}"


def tbe_input_spatial(f: Facts, parameter: str) -> str | None:
    """The gradient has the sizes of the forward output."""
    want, dy = described(f).out, tuple(f[parameter])
    axes = "H and W" if len(want) == 2 else "D, H and W"
    return None if (*dy[1:-4], *dy[-3:-1]) == want else f"{axes} must be {want}"


def tbe_depthwise(f: Facts, _: str) -> str | None:
    """Every channel of the input has one filter."""
    channels = f["filter_sizes"][0]
    cin = f["input_sizes"][1] if "input_sizes" in f else channels
    return None if channels == cin else f"input_sizes has C {cin}"


# -- deconv_grad_filter --------------------------------------------------------------------


def deconv_batches(f: Facts, _: str) -> str | None:
    """Both operands have one batch."""
    p = f["param"]
    return None if p[0] == p[4] else f"param[0] is {p[0]}, param[4] is {p[4]}"


def deconv_groups(f: Facts, _: str) -> str | None:
    """Groups divide both channel counts."""
    p = f["param"]
    bad = [f"param[{i}] {PARAM[i]} is {p[i]}" for i in (3, 7) if p[i] % p[16]]
    return f"{' and '.join(bad)} with group {p[16]}" if bad else None


def _described(first: int) -> Check:
    """A check that an operand has the sizes of the four entries of ``param`` from ``first`` on."""

    def check(f: Facts, parameter: str) -> str | None:
        want = f["param"][first : first + 4]
        where = f"param[{first}] to param[{first + 3}]"
        return None if tuple(f[parameter]) == want else f"{where} make it {want}"

    return check


def deconv_w(f: Facts, parameter: str) -> str | None:
    """The weight has the shape that the parameters give it."""
    want = weight_shape(f["param"])
    return None if tuple(f[parameter]) == want else f"param makes it {want}"


def deconv_mask(f: Facts, _: str) -> str | None:
    """The mask chooses cores the device has."""
    mask, cores = f["core_mask"], f["device.groups"]
    if isinstance(mask, Integral) and 0 < int(mask) < 1 << cores:
        return None
    return f"the device has {cores} cores, the mask of all is {(1 << cores) - 1:#x}"


def deconv_no_mask(f: Facts, _: str) -> str | None:
    """No mask is given."""
    return None if f["core_mask"] is None else "leave it out"


grad_input_dtype = _dtype_of("input.dtype", "grad_output.dtype")
grad_weight_dtype = _dtype_of("weight.dtype", "grad_output.dtype")
grad_bias_dtype = _dtype_of("grad_output.dtype")
grad_bias_shape = _must_be(lambda f: (f["grad_output.shape"][1],))  # a number per channel
bias_shape = _shape_of("bias.shape")
grad_input_shape = _shape_of("input.shape")
grad_weight_shape = _shape_of("weight.shape")
im2col_out = _must_be(_image)
im2col_columns_shape = _must_be(_columns)
tbe_input_filter = _must_be(lambda f: described(f).fractals)  # as its groups are packed
deconv_x = _described(0)
deconv_dy = _described(4)

#: The checks by the names that rows of constraint tables have for them.
CHECKS: Mapping[str, Check] = {
    "ranks": ranks,
    "grad_output_empty": grad_output_empty,
    "weight_empty": weight_empty,
    "input_empty": input_empty,
    "bias_sizes": bias_sizes,
    "output_padding_below_stride": output_padding_below_stride,
    "channels": channels,
    "one_channel_per_group": one_channel_per_group,
    "depthwise": depthwise,
    "batch": batch,
    "spatial": spatial,
    "map_width": map_width,
    "im2col_rows": im2col_rows,
    "im2col_out_dtype": im2col_out_dtype,
    "im2col_columns": im2col_columns,
    "im2col_image": im2col_image,
    "tbe_filter_groups": tbe_filter_groups,
    "tbe_filter_input": tbe_filter_input,
    "tbe_filter_output": tbe_filter_output,
    "group_dict_keys": group_dict_keys,
    "tbe_group_dict": tbe_group_dict,
    "tbe_input_channels": tbe_input_channels,
    "tbe_input_batch": tbe_input_batch,
    "tbe_input_spatial": tbe_input_spatial,
    "tbe_depthwise": tbe_depthwise,
    "deconv_batches": deconv_batches,
    "deconv_groups": deconv_groups,
    "deconv_w": deconv_w,
    "deconv_mask": deconv_mask,
    "deconv_no_mask": deconv_no_mask,
    "grad_input_dtype": grad_input_dtype,
    "grad_weight_dtype": grad_weight_dtype,
    "grad_bias_dtype": grad_bias_dtype,
    "grad_bias_shape": grad_bias_shape,
    "bias_shape": bias_shape,
    "grad_input_shape": grad_input_shape,
    "grad_weight_shape": grad_weight_shape,
    "im2col_out": im2col_out,
    "im2col_columns_shape": im2col_columns_shape,
    "tbe_input_filter": tbe_input_filter,
    "deconv_x": deconv_x,
    "deconv_dy": deconv_dy,
}
