"""The entrances through which a call can come, each as a function of the facts of a call.

``refused`` holds facts against the table, then sends the same call through every entrance that can
express it, and finds the same refusal there: the same parameter and status, or the same sentence
where an entrance passes on no more.
"""

from __future__ import annotations

import contextlib
import re
from math import prod
from typing import Any

import pytest

import npusim
from npusim.base.errors import RuleError
from npusim.compat import aclnn, ftdsp
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.ops import CARDS
from tests.problem.limits import entrances_of_convolution, entrances_tbe
from tests.problem.limits.entrance_parts import CannotSay, Entrance, Facts, caught, tensor
from tests.replay.digests import REFUSALS_FILE, Refusal, read, short


def refused(
    operator: str, facts: Facts, device: str | Device, parameter: str, status: int | None
) -> str:
    """Hold a call that must be refused against table and entrances; return the message."""
    loaded = load_device(device)
    with pytest.raises(RuleError) as caught:
        CARDS[operator].check(facts, loaded)
    error = caught.value
    assert (error.parameter, error.status) == (parameter, status)
    for name, entrance in ENTRANCES[operator].items():
        with contextlib.suppress(CannotSay):
            told = entrance(facts, loaded)
            if isinstance(told, RuleError):
                assert (told.parameter, told.status) == (parameter, status), (name, str(told))
            elif isinstance(told, tuple):
                assert told[0] == (561103 if status is None else status), name
                first, *others = parameter.partition(".")[0].split("_")
                assert re.match(
                    rf"aclnn\w+: .*\b{first}{''.join(map(str.title, others))}\b", told[1]
                )
            else:
                assert str(error) in told, name
    replayed(operator, facts, loaded, str(error))
    return str(error)


#: The refusals met so far, by what names them.
MET: dict[tuple[str, ...], Refusal] = {}

#: Whether ``REFUSALS_FILE`` is to be written anew, so that nothing is compared with it.
RENEWED = False


def replayed(operator: str, facts: Facts, device: Device, sentence: str) -> None:
    """Hold a sentence to that of the last commit that meant to change it (``make replay``)."""
    words = repr(sorted(facts.items(), key=lambda fact: fact[0])).encode()
    met = Refusal(operator, f"{device.name} of {device.product}", short([words]), sentence)
    MET[met.key] = met
    if not RENEWED:
        assert read(REFUSALS_FILE, Refusal).get(met.key) == met, "run `make replay UPDATE=1`"


def able(operator: str, facts: Facts, device: str) -> set[str]:
    """The entrances that can express a call."""
    names = set()
    for name, entrance in ENTRANCES[operator].items():
        with contextlib.suppress(CannotSay):
            entrance(facts, load_device(device))
            names.add(name)
    return names


def fold_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.im2col_backward``."""
    if any(name.startswith("out.") for name in facts):
        raise CannotSay
    given = {name: value for name, value in facts.items() if "." not in name}
    grad = tensor(facts, "grad_output")
    return caught(lambda: npusim.ops.im2col_backward(grad, **given, device=device))


def unfold_call(facts: Facts, device: Device) -> RuleError:
    """``npusim.ops.im2col``."""
    if any(name.startswith("out.") for name in facts):
        raise CannotSay
    given = {name: value for name, value in facts.items() if "." not in name}
    return caught(lambda: npusim.ops.im2col(tensor(facts, "image"), **given, device=device))


def fold_aclnn(facts: Facts, device: Device) -> tuple[int, str]:
    """``aclnnIm2colBackward``, phase one: a status and its text."""
    shape, size = facts["grad_output.shape"], facts["input_size"]
    taps = prod(facts["kernel_size"] or (1,)) or 1
    image = (*(shape or ())[:-2], ((shape or (1,))[-2:][0]) // taps, *(size or ()))
    out = facts.get("out.shape", image)

    def ints(name: str) -> Any:
        return None if facts[name] is None else aclnn.aclCreateIntArray(facts[name])

    kind = facts["grad_output.dtype"]
    aclnn.aclrtSetDevice(device)
    status, _, executor = aclnn.aclnnIm2colBackwardGetWorkspaceSize(
        None if shape is None else aclnn.aclCreateTensor(shape, kind),
        ints("input_size"),
        ints("kernel_size"),
        ints("dilation"),
        ints("padding"),
        ints("stride"),
        None if out is None else aclnn.aclCreateTensor(out, facts.get("out.dtype", kind)),
    )
    assert executor is None
    return status, aclnn.aclGetRecentErrMsg() or ""


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


def dsp(name: str) -> dict[str, Entrance]:
    """The entrance of a gradient of the DSP library."""
    second = "x" if name.endswith("filter") else "w"

    def call(facts: Facts, device: Device) -> RuleError:
        named = facts | {f"{one}.dtype": facts["dtype"] for one in ("dy", second)}
        dy, other = tensor(named, "dy"), tensor(named, second)
        rest = (facts["param"], facts["core_mask"], facts["storage"])
        return caught(lambda: getattr(npusim.ops, name)(dy, other, *rest, device=device))

    return {"npusim.ops": call}


ENTRANCES: dict[str, dict[str, Entrance]] = {
    "convolution_backward": entrances_of_convolution.ENTRANCES,
    **{name: dsp(name) for name in ("conv_grad_filter", "conv_grad_input", "deconv_grad_input")},
    "im2col": {"npusim.ops": unfold_call},
    "im2col_backward": {"npusim.ops": fold_call, "aclnn": fold_aclnn},
    "deconv_grad_filter": {**dsp("deconv_grad_filter"), "ftdsp": deconv_library},
    **entrances_tbe.ENTRANCES,
}
