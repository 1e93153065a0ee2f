"""An explicit None for every optional argument of every operator: as if left out, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from npusim.base.errors import ArgumentError
from npusim.call.options import Options
from npusim.compat.tbe import dsl, tvm
from npusim.ops import CARDS, OPERATORS
from npusim.ops.compiled import FORMS
from tests.ops.small_calls import CALLS, called

pytestmark = pytest.mark.compiled


#: Keywords whose None means something of its own, which their documentation says.
NONE_IS_A_VALUE = {
    "cores",
    "core_mask",
    "layouts",
    "timeline",
    "progress",
    "bias",
    "bias_sizes",
    "out_dtype",
}


def test_every_operator_has_a_call() -> None:
    assert set(CALLS) == set(OPERATORS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_keywords(name: str) -> None:
    """None is the default, or is refused with the name of the keyword."""
    own = inspect.signature(OPERATORS[name]).parameters.values()
    keywords = {one.name for one in own if one.default is not one.empty}
    keywords |= {one.name for one in fields(Options)} - set(CARDS[name].without)
    usual = called(name, timeline=False).cycles
    for keyword in sorted(keywords):
        given = {"timeline": False} | {keyword: None}
        if keyword in NONE_IS_A_VALUE:
            assert called(name, **given).cycles == usual, keyword
        else:
            with pytest.raises(ArgumentError, match=rf"\b{keyword}\b.* (None|null)"):
                called(name, **given)


PARA_DICTS = sorted(name for name in CALLS if isinstance(CALLS[name][-1], dict))


def optional_of(name: str) -> list[str]:
    form = FORMS[name]
    return ["res_dtype", "kernel_name", *form.optional]


@pytest.mark.parametrize("name", PARA_DICTS)
def test_parts_of_a_para_dict(name: str) -> None:
    """Optional parts are as if left out; the others are refused by name."""
    *lists, para = CALLS[name]
    usual = called(name, timeline=False).cycles
    for part in optional_of(name):
        given = para | {part: None}
        assert called(name, *lists, given, timeline=False).cycles == usual, part
    for part in para:
        with pytest.raises(ArgumentError, match=f"{name}: {part} is (null|None); "):
            called(name, *lists, para | {part: None})


@pytest.mark.parametrize("name", PARA_DICTS)
def test_lists_beside_a_para_dict(name: str) -> None:
    call = CALLS[name]
    for place, value in enumerate(call):
        if isinstance(value, list):
            with pytest.raises(ArgumentError, match=r"_sizes? is (null|None); "):
                called(name, *call[:place], None, *call[place + 1 :])


@pytest.mark.parametrize("name", PARA_DICTS)
def test_the_tensor_compilers_own_functions(name: str) -> None:
    function: Callable[..., Any] = getattr(dsl, name)
    (one, other), (*lists, para) = CALLS[name][:2], CALLS[name][2:]
    read = [
        tvm.placeholder(x.shape, name=n, dtype="float16") for x, n in ((one, "a"), (other, "b"))
    ]
    group_dict: dict[str, Any] = {}
    if name == "conv3d_backprop_input":  # the one function that must be told
        with pytest.raises(ArgumentError, match="group_dict is null; "):
            function(*read, *lists, para | {"group_dict": None})
        keys = ("real_g", "cin1_g", "cout_g", "cin_ori", "cout_ori", "groups", "mag_factor")
        group_dict = {"group_dict": dict.fromkeys(keys, 1) | {"cin_ori": 16, "cout_ori": 16}}
        group_dict["group_dict"]["cout_g"] = 16
    usual = function(*read, *lists, para | group_dict)
    for part in optional_of(name):
        if part not in group_dict:
            same = function(*read, *lists, para | group_dict | {part: None})
            assert (same.shape, same.dtype, same.name) == (usual.shape, usual.dtype, usual.name)
