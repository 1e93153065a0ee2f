"""The entrances of the tensor compiler's operators, made of their forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import npusim
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat import tbe
from npusim.machine.device.spec import Device
from npusim.ops.compiled import FORMS
from npusim.problem.convolution import Convolution
from tests.problem.limits.entrance_parts import CannotSay, Entrance, Facts, by, caught, run, tensor


def arguments(name: str, facts: Facts, operand: Callable[[Facts, str], Any]) -> list[Any]:
    """Operands, lists and para_dict of a call."""
    form = FORMS[name]
    para = {key: value for key, value in facts.items() if "." not in key and key not in form.lists}
    return [
        *(operand(facts, one) for one in form.operands),
        *(facts[one] for one in form.lists),
        para,
    ]


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


def entrances(name: str) -> dict[str, Entrance]:
    """The operator, and the function of the tensor compiler, which knows one table."""

    def call(facts: Facts, device: Device) -> RuleError:
        if name == "conv3d_backprop_input" and facts["group_dict"] is None:
            raise CannotSay  # here it may be left out
        given = arguments(name, facts, tensor)
        return caught(lambda: getattr(npusim.ops, name)(*given, device=device))

    def compiled(facts: Facts, device: Device) -> RuleError:
        if device.name not in ("ascend910", "ascend310"):
            raise CannotSay
        given = arguments(name, facts, placeholder)
        return caught(lambda: getattr(tbe.dsl, name)(*given))

    return {"npusim.ops": call, "tbe": compiled}


ENTRANCES = {name: entrances(name) for name in FORMS}
ENTRANCES["conv2d_backprop_filter"]["run"] = filter_line
