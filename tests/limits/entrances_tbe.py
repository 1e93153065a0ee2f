"""The entrances of the tensor compiler's operators."""

from __future__ import annotations

from typing import Any

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat import tbe
from npusim.device.spec import Device
from npusim.shapes.convolution import Convolution
from tests.limits.entrance_parts import CannotSay, Entrance, Facts, by, caught, run, tensor


def filter_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.conv2d_backprop_filter``."""
    x, dy = tensor(facts, "input_x"), tensor(facts, "out_backprop")
    para = {n: facts[n] for n in ("strides", "padding", "dilations", "groups", "res_dtype")}
    sizes = facts["filter_sizes"]
    return caught(lambda: npusim.ops.conv2d_backprop_filter(x, dy, sizes, para, device=device))


def filter_tbe(facts: Facts, device: Device) -> RuleError:
    """The function of the tensor compiler."""
    if device.name not in ("ascend910", "ascend310"):
        raise CannotSay  # it knows one table
    x, dy = placeholder(facts, "input_x"), placeholder(facts, "out_backprop")
    para = {n: facts[n] for n in ("strides", "padding", "dilations", "groups", "res_dtype")}
    return caught(lambda: tbe.dsl.conv2d_backprop_filter(x, dy, facts["filter_sizes"], para))


def placeholder(facts: Facts, name: str) -> Any:
    """An operand of the tensor compiler."""
    if min(facts[f"{name}.shape"]) < 1:
        raise CannotSay
    return tbe.tvm.placeholder(facts[f"{name}.shape"], facts[f"{name}.dtype"], name)


def filter_line(facts: Facts, device: Device) -> str:
    """``npusim run conv2d_backprop_filter``, which describes calls that fit together only."""
    x, dy, sizes = facts["input_x.shape"], facts["out_backprop.shape"], facts["filter_sizes"]
    if len(x) != 5 or len(sizes) != 4 or len(facts["strides"]) != 2 or len(facts["padding"]) != 4:
        raise CannotSay
    numbers = (*x, *sizes, *facts["strides"], facts["groups"])
    if len(facts["dilations"]) != 4 or facts["dilations"][:2] != (1, 1) or min(numbers) < 1:
        raise CannotSay
    up, down, left, right = facts["padding"]
    try:
        c = Convolution(
            n=x[0],
            cin=sizes[1] * facts["groups"],
            cout=sizes[0],
            spatial=x[2:4],
            kernel=sizes[2:],
            stride=facts["strides"],
            padding=((up, down), (left, right)),
            dilation=facts["dilations"][2:],
            groups=facts["groups"],
        )
    except ArgumentError:
        raise CannotSay from None
    fits = x == (c.n, c.cin1, *c.spatial, 16) and dy == (c.n, c.cout1, *c.out, 16)
    kinds = {facts["input_x.dtype"], facts["out_backprop.dtype"]}
    if not fits or kinds != {"fp16"} or facts["res_dtype"] != "fp32" or min(c.sides) < 0:
        raise CannotSay
    words = ["--batch", str(c.n), "--cin", str(c.cin), "--cout", str(c.cout)]
    words += ["--size", by(c.spatial), "--kernel", by(c.kernel), "--stride", by(c.stride)]
    words += ["--padding", ",".join(map(str, c.sides)), "--dilation", by(c.dilation)]
    return run("conv2d_backprop_filter", device, [*words, "--groups", str(c.groups)])


def input_parts(facts: Facts) -> tuple[Any, Any, dict[str, Any]]:
    """filter_size, input_size and para_dict of conv3d_backprop_input."""
    names = ("strides", "pads", "dilations", "res_dtype", "group_dict")
    return facts["filter_size"], facts["input_size"], {name: facts[name] for name in names}


def input_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.conv3d_backprop_input``."""
    if facts["group_dict"] is None:
        raise CannotSay  # here it may be left out
    w, dy = tensor(facts, "filter"), tensor(facts, "out_backprop")
    parts = input_parts(facts)
    return caught(lambda: npusim.ops.conv3d_backprop_input(w, dy, *parts, device=device))


def input_tbe(facts: Facts, device: Device) -> RuleError:
    """The function of the tensor compiler."""
    if device.name not in ("ascend910", "ascend310"):
        raise CannotSay
    w, dy = placeholder(facts, "filter"), placeholder(facts, "out_backprop")
    return caught(lambda: tbe.dsl.conv3d_backprop_input(w, dy, *input_parts(facts)))


def volume_parts(facts: Facts) -> tuple[Any, dict[str, Any]]:
    """filter_size and para_dict of conv3d_backprop_filter."""
    names = ("strides", "pads", "dilations", "groups", "res_dtype")
    para = {name: facts[name] for name in names}
    return facts["filter_size"], para | {"group_dict": facts.get("group_dict")}


def volume_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.conv3d_backprop_filter``."""
    x, dy, parts = tensor(facts, "x"), tensor(facts, "out_backprop"), volume_parts(facts)
    return caught(lambda: npusim.ops.conv3d_backprop_filter(x, dy, *parts, device=device))


def volume_tbe(facts: Facts, device: Device) -> RuleError:
    """The function of the tensor compiler."""
    if device.name not in ("ascend910", "ascend310"):
        raise CannotSay
    x, dy = placeholder(facts, "x"), placeholder(facts, "out_backprop")
    return caught(lambda: tbe.dsl.conv3d_backprop_filter(x, dy, *volume_parts(facts)))


def plane_parts(facts: Facts) -> tuple[Any, Any, dict[str, Any]]:
    """filter_sizes, input_sizes and para_dict of conv2d_backprop_input."""
    names = ("strides", "padding", "dilations", "res_dtype", "group_dict")
    para = {name: facts[name] for name in names}
    return facts["filter_sizes"], facts["input_sizes"], para


def plane_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.conv2d_backprop_input``."""
    w, dy, parts = tensor(facts, "filters"), tensor(facts, "out_backprop"), plane_parts(facts)
    return caught(lambda: npusim.ops.conv2d_backprop_input(w, dy, *parts, device=device))


def plane_tbe(facts: Facts, device: Device) -> RuleError:
    """The function of the tensor compiler."""
    if device.name not in ("ascend910", "ascend310"):
        raise CannotSay
    w, dy = placeholder(facts, "filters"), placeholder(facts, "out_backprop")
    return caught(lambda: tbe.dsl.conv2d_backprop_input(w, dy, *plane_parts(facts)))


def depthwise(name: str) -> dict[str, Entrance]:
    """Both entrances of a depth-wise gradient, whose para_dict has no groups."""
    first = "input_x" if name.endswith("filter") else "filters"
    lists = ["filter_sizes", *(["input_sizes"] if first == "filters" else [])]

    def parts(facts: Facts) -> list[Any]:
        para = {n: facts[n] for n in ("strides", "padding", "dilations", "res_dtype")}
        return [*(facts[one] for one in lists), para]

    def call(facts: Facts, device: Device) -> RuleError:
        operands = [tensor(facts, one) for one in (first, "out_backprop")]
        return caught(lambda: getattr(npusim.ops, name)(*operands, *parts(facts), device=device))

    def compiled(facts: Facts, device: Device) -> RuleError:
        if device.name not in ("ascend910", "ascend310"):
            raise CannotSay
        operands = [placeholder(facts, one) for one in (first, "out_backprop")]
        return caught(lambda: getattr(tbe.dsl, name)(*operands, *parts(facts)))

    return {"npusim.ops": call, "tbe": compiled}


ENTRANCES: dict[str, dict[str, Entrance]] = {
    "conv2d_backprop_filter": {
        "npusim.ops": filter_call,
        "tbe": filter_tbe,
        "run": filter_line,
    },
    "conv2d_backprop_input": {"npusim.ops": plane_call, "tbe": plane_tbe},
    **{
        name: depthwise(name)
        for name in ("depthwise_conv2d_backprop_filter", "depthwise_conv2d_backprop_input")
    },
    "conv3d_backprop_filter": {"npusim.ops": volume_call, "tbe": volume_tbe},
    "conv3d_backprop_input": {"npusim.ops": input_call, "tbe": input_tbe},
}
