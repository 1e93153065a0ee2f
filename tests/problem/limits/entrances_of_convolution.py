"""The entrances of convolution_backward."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.dtypes import promote
from npusim.base.errors import ArgumentError, RuleError
from npusim.base.records import replace
from npusim.call.options import Options
from npusim.compat import aclnn
from npusim.machine.device.spec import Device
from npusim.ops.conv_backward import convolution as backward_convolution
from npusim.problem.convolution import Convolution
from npusim.torch.log import ConvCall, Log
from npusim.workloads import ConvLayer, Workload
from tests.problem.limits.entrance_parts import (
    KNOWN,
    CannotSay,
    Entrance,
    Facts,
    by,
    caught,
    run,
    tensor,
)

OPERANDS = ("grad_output", "input", "weight")


def backward_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.convolution_backward``."""
    dy, x, w = (tensor(facts, name) for name in OPERANDS)
    dims = len(facts["weight.shape"]) - 2
    given = {name: value for name, value in facts.items() if "." not in name}
    one = [name for name in ("stride", "padding", "output_padding") if given[name] is not None]
    if any("." in name and name.partition(".")[0] not in OPERANDS for name in facts) or any(
        f"{name}.format" in facts for name in OPERANDS
    ):
        raise CannotSay  # neither formats nor outputs are its arguments
    if dims > 1 and any(len(given[name]) == 1 for name in one):
        raise CannotSay  # here one number counts for every dimension
    return caught(lambda: npusim.ops.convolution_backward(dy, x, w, **given, device=device))


def backward_aclnn(facts: Facts, device: Device) -> tuple[int, str]:
    """``aclnnConvolutionBackward``, phase one: a status and its text."""
    kinds = {name: facts[f"{name}.dtype"] for name in OPERANDS}
    dy = kinds["grad_output"]
    usual = {
        "grad_input": (facts["input.shape"], promote((kinds["input"], dy), "fp32")),
        "grad_weight": (facts["weight.shape"], promote((kinds["weight"], dy), "fp32")),
        "grad_bias": ((facts["grad_output.shape"] or (0, 0))[1:2], dy),
    }
    if facts["output_mask"] is not None:
        wanted = (*facts["output_mask"], True, True)
        usual = {name: usual[name] for name, on in zip(usual, wanted, strict=False) if on}

    def made(name: str) -> Any:
        shape, kind = usual.get(name, (facts.get(f"{name}.shape"), facts.get(f"{name}.dtype")))
        shape, kind = facts.get(f"{name}.shape", shape), facts.get(f"{name}.dtype", kind)
        if shape is None:
            return None
        bias = aclnn.ACL_FORMAT_ND if name == "grad_bias" else None
        return aclnn.aclCreateTensor(shape, kind, facts.get(f"{name}.format", bias))

    def ints(name: str) -> Any:
        values = facts.get(name)
        return None if values is None else aclnn.aclCreateIntArray(values)

    mask = facts["output_mask"]
    aclnn.aclrtSetDevice(device)
    status, _, executor = aclnn.aclnnConvolutionBackwardGetWorkspaceSize(
        made("grad_output"),
        made("input"),
        made("weight"),
        ints("bias_sizes"),
        ints("stride"),
        ints("padding"),
        ints("dilation"),
        facts["transposed"],
        ints("output_padding"),
        facts["groups"],
        None if mask is None else aclnn.aclCreateBoolArray(mask),
        facts["cube_math_type"],
        made("grad_input"),
        made("grad_weight"),
        made("grad_bias"),
    )
    assert executor is None
    return status, aclnn.aclGetRecentErrMsg() or ""


def layer(facts: Facts) -> Convolution:
    """The plain layer of a call of which only limits of size or type may be broken."""
    usual = {"output_mask": (True,) * 3, "transposed": False}
    if any(facts[name] != value for name, value in usual.items()):
        raise CannotSay
    if any("." in name and not tensor_of_call(name) for name in facts) or None in facts.values():
        raise CannotSay
    shapes = tuple(facts[f"{name}.shape"] for name in _ORDER)
    kinds = {facts[f"{name}.dtype"] for name in OPERANDS}
    try:
        c = replace(backward_convolution(facts), outputs=None)
        least = (
            c.n,
            c.cin,
            *c.kernel,
            *c.stride,
            *c.dilation,
            *c.spatial,
            *(p + 1 for p in c.sides),
        )
        given = len(facts["padding"]) == len(facts["output_padding"]) == c.dims
    except (ValueError, TypeError, ZeroDivisionError):
        raise CannotSay from None
    fits = (c.x_shape, c.dy_shape, c.w_shape) == shapes and given and not any(c.output_padding)
    if not fits or min(least) < 1 or len(kinds) > 1 or not kinds <= {"fp16", "bf16", "fp32"}:
        raise CannotSay
    if facts["cube_math_type"] not in range(4):
        raise CannotSay
    return c


_ORDER = ("input", "grad_output", "weight")


def tensor_of_call(name: str) -> bool:
    """Whether a fact is the shape or type of an operand."""
    tensor, _, part = name.partition(".")
    return tensor in OPERANDS and part in ("shape", "dtype")


def backward_network(facts: Facts, device: Device) -> str:
    """``npusim.network`` of this one layer."""
    c = layer(facts)
    sizes = {name: getattr(c, name) for name in ("cin", "cout", "spatial", "kernel", "stride")}
    one = ConvLayer(name="one", **sizes, padding=c.padding, dilation=c.dilation, groups=c.groups)
    net = Workload(name="net", description="one layer", layers=(one,))
    wanted = {"gradients": ("input", "weight", "bias"), "dtype": facts["input.dtype"]}
    with pytest.raises(ArgumentError) as error:
        npusim.network(
            net, batch=c.n, cube_math_type=facts["cube_math_type"], device=device, **wanted
        )
    return str(error.value)


def backward_log(facts: Facts, device: Device) -> str:
    """The log of a PyTorch program that makes the call."""
    if any("." in name and not tensor_of_call(name) for name in facts):
        raise CannotSay
    shapes = tuple(facts[f"{name}.shape"] for name in OPERANDS)
    settings = {name: facts[name] for name in ("stride", "padding", "dilation", "output_padding")}
    if None in (*shapes, *settings.values(), facts["output_mask"]):
        raise CannotSay
    if not all(facts[f"{name}.dtype"] in KNOWN for name in OPERANDS):
        raise CannotSay
    if any(len(value) == 1 for value in settings.values()) and len(shapes[2]) > 3:
        raise CannotSay
    if facts["cube_math_type"] not in range(4) or len(facts["output_mask"]) != 3:
        raise CannotSay
    log = Log(Options(device=device), False, facts["cube_math_type"], "none")
    call = ConvCall(
        shapes=shapes,
        dtypes=tuple(facts[f"{name}.dtype"] for name in OPERANDS),
        bias_sizes=facts.get("bias_sizes"),
        **settings,
        transposed=facts["transposed"],
        groups=facts["groups"],
        output_mask=facts["output_mask"],
    )
    log.record(call, "one", lambda: pytest.fail("no numbers are wanted"))
    return log.entries[0].reason


def backward_line(facts: Facts, device: Device) -> str:
    """``npusim run convolution_backward``."""
    c = layer(facts)
    words = ["--batch", str(c.n), "--cin", str(c.cin), "--cout", str(c.cout)]
    words += ["--size", by(c.spatial), "--kernel", by(c.kernel), "--stride", by(c.stride)]
    words += ["--padding", by(before for before, _ in c.padding), "--dilation", by(c.dilation)]
    words += ["--groups", str(c.groups), "--dtype", facts["input.dtype"]]
    words += ["--cube-math-type", str(facts["cube_math_type"])]
    return run("convolution_backward", device, words)


ENTRANCES: dict[str, Entrance] = {
    "npusim.ops": backward_call,
    "aclnn": backward_aclnn,
    "network": backward_network,
    "torch": backward_log,
    "run": backward_line,
}
