"""The entrances through which a call can come, each as a function of the facts of a call.

``refused`` holds facts against the table, then sends the same call through every entrance that can
express it, and finds the same refusal there: the same parameter and status, or the same sentence
where an entrance passes on no more.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import pytest

import npusim
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.cli.main import main
from npusim.compat import aclnn, ftdsp, tbe
from npusim.convolution import Convolution
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.dtypes import DTYPES, promote
from npusim.errors import ArgumentError, RuleError
from npusim.limits.table import check
from npusim.ops.convolution_backward import convolution as backward_convolution
from npusim.torch.log import ConvCall, Log
from npusim.workloads import ConvLayer, Workload

Facts = dict[str, Any]
#: Sends a call to a device and says what became of it: an error, a status or a text.
Entrance = Callable[[Facts, Device], "RuleError | int | str"]

KNOWN = {kind.name: kind for kind in DTYPES}
OPERANDS = ("grad_output", "input", "weight")
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")


class CannotSay(Exception):  # noqa: N818 - no error: the entrance has no words for the call
    """An entrance cannot express a call."""


def refused(
    operator: str, facts: Facts, device: str | Device, parameter: str, status: int | None
) -> str:
    """Hold a call that must be refused against table and entrances; return the message."""
    loaded = load_device(device)
    with pytest.raises(RuleError) as caught:
        check(operator, facts, loaded)
    error = caught.value
    assert (error.parameter, error.status) == (parameter, status)
    for name, entrance in ENTRANCES[operator].items():
        with contextlib.suppress(CannotSay):
            told = entrance(facts, loaded)
            if isinstance(told, RuleError):
                assert (told.parameter, told.status) == (parameter, status), (name, str(told))
            elif isinstance(told, int):
                assert told == (561103 if status is None else status), name
            else:
                assert str(error) in told, name
    return str(error)


def able(operator: str, facts: Facts, device: str) -> set[str]:
    """The entrances that can express a call."""
    names = set()
    for name, entrance in ENTRANCES[operator].items():
        with contextlib.suppress(CannotSay):
            entrance(facts, load_device(device))
            names.add(name)
    return names


def caught(call: Callable[[], Any]) -> RuleError:
    """The refusal of a call."""
    with pytest.raises(ArgumentError) as error:
        call()
    assert isinstance(error.value, RuleError), str(error.value)
    return error.value


def tensor(facts: Mapping[str, Any], name: str) -> Spec:
    """An operand of NumPy's world: it has a shape and a type npusim knows."""
    shape, kind = facts[f"{name}.shape"], facts[f"{name}.dtype"]
    if shape is None or kind not in KNOWN:
        raise CannotSay
    return npusim.spec(shape, kind)


def run(operator: str, device: Device, words: list[str]) -> str:
    """What the command line prints on stderr; devices are known there by name."""
    if load_device(device.name) != device or re.search(r"\d{10}", " ".join(words)):
        raise CannotSay  # one knows devices by name there, and no number of ten digits
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        main(["run", operator, "--device", device.name, "--timing-only", *words])
    return told.getvalue()


def by(values: Any) -> str:
    """Sizes as the command line takes them."""
    return "x".join(map(str, values))


# -- convolution_backward ----------------------------------------------------------------------


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


def backward_aclnn(facts: Facts, device: Device) -> int:
    """``aclnnConvolutionBackward``, phase one: a status."""
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
    status, _, executor = aclnn.aclnnConvolutionBackwardGetWorkspaceSize(  # type: ignore[call-arg]
        *(made(name) for name in OPERANDS),
        *(ints(name) for name in ("bias_sizes", "stride", "padding", "dilation")),
        facts["transposed"],
        ints("output_padding"),
        facts["groups"],
        None if mask is None else aclnn.aclCreateBoolArray(mask),
        facts["cube_math_type"],
        *(made(name) for name in GRADIENTS),
    )
    assert executor is None
    return status


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


# -- the others --------------------------------------------------------------------------------


def fold_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.im2col_backward``."""
    if any(name.startswith("out.") for name in facts):
        raise CannotSay
    given = {name: value for name, value in facts.items() if "." not in name}
    grad = tensor(facts, "grad_output")
    return caught(lambda: npusim.ops.im2col_backward(grad, **given, device=device))


def fold_aclnn(facts: Facts, device: Device) -> int:
    """``aclnnIm2colBackward``, phase one: a status."""
    shape, size = facts["grad_output.shape"], facts["input_size"]
    taps = prod(facts["kernel_size"] or (1,)) or 1
    image = (*(shape or ())[:-2], ((shape or (1,))[-2:][0]) // taps, *(size or ()))
    out = facts.get("out.shape", image)

    def ints(name: str) -> Any:
        return None if facts[name] is None else aclnn.aclCreateIntArray(facts[name])

    kind = facts["grad_output.dtype"]
    aclnn.aclrtSetDevice(device)
    status, _, executor = aclnn.aclnnIm2colBackwardGetWorkspaceSize(  # type: ignore[call-arg]
        None if shape is None else aclnn.aclCreateTensor(shape, kind),
        *(ints(n) for n in ("input_size", "kernel_size", "dilation", "padding", "stride")),
        None if out is None else aclnn.aclCreateTensor(out, facts.get("out.dtype", kind)),
    )
    assert executor is None
    return status


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


def deconv_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.deconv_grad_filter``."""
    named = facts | {"x.dtype": facts["dtype"], "dy.dtype": facts["dtype"]}
    dy, x = tensor(named, "dy"), tensor(named, "x")
    rest = (facts["param"], facts["core_mask"], facts["storage"])
    return caught(lambda: npusim.ops.deconv_grad_filter(dy, x, *rest, device=device))


def deconv_library(facts: Facts, device: Device) -> RuleError:
    """The C functions of the DSP library; a private one has no mask at all."""
    form = {"fp32": "fp", "fp16": "hp"}.get(facts["dtype"])
    private = facts["storage"] == "private"
    if form is None or (private and facts["core_mask"] is not None):
        raise CannotSay
    named = facts | {"x.dtype": facts["dtype"], "dy.dtype": facts["dtype"]}
    function = getattr(ftdsp, f"{form}_deconv_grad_filter_{'p' if private else 's'}")
    mask = () if private else (facts["core_mask"],)
    given = (tensor(named, "dy"), tensor(named, "x"), None, facts["param"], *mask)
    return caught(lambda: function(*given, device=device))


ENTRANCES: dict[str, dict[str, Entrance]] = {
    "convolution_backward": {
        "npusim.ops": backward_call,
        "aclnn": backward_aclnn,
        "network": backward_network,
        "torch": backward_log,
        "run": backward_line,
    },
    "im2col_backward": {"npusim.ops": fold_call, "aclnn": fold_aclnn},
    "conv2d_backprop_filter": {
        "npusim.ops": filter_call,
        "tbe": filter_tbe,
        "run": filter_line,
    },
    "conv2d_backprop_input": {"npusim.ops": plane_call, "tbe": plane_tbe},
    "conv3d_backprop_filter": {"npusim.ops": volume_call, "tbe": volume_tbe},
    "conv3d_backprop_input": {"npusim.ops": input_call, "tbe": input_tbe},
    "deconv_grad_filter": {"npusim.ops": deconv_call, "ftdsp": deconv_library},
}
