"""Adapters for autotuners, against stubs of the interfaces that these have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from npusim.base.errors import ArgumentError
from npusim.compat.tuners import product, prune_configs_by, rank_hints
from npusim.kernels.matmul.matmul import Tiling

pytestmark = pytest.mark.compiled


@dataclass
class Config:
    """What an autotuner of Triton hands over: ``kwargs``, and options that npusim does not read."""

    kwargs: dict[str, int]
    num_stages: int = 2


CONFIGS = [
    Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k})
    for m in (16, 64, 128, 4096)
    for n in (16, 64, 256)
    for k in (32, 64)
]


def tiling(kwargs: Mapping[str, Any]) -> Tiling:
    sizes = kwargs["BLOCK_M"], kwargs["BLOCK_N"], kwargs["BLOCK_K"]
    return Tiling(base_m=sizes[0], base_n=sizes[1], base_k=sizes[2], step_ka=4, step_kb=4)


def kernel(args: Mapping[str, Any]) -> Any:
    return product(args["M"], args["K"], args["N"])


def test_an_autotuner_of_triton_compiles_a_quarter() -> None:
    prune = prune_configs_by("ascend910b2", kernel, tiling)["early_config_prune"]
    kept = prune(CONFIGS, {"M": 2048, "a_ptr": None}, N=2048, K=1024)
    assert kept[0].kwargs["BLOCK_M"] * kept[0].kwargs["BLOCK_N"] >= 128 * 256
    assert 0 < len(kept) <= len(CONFIGS) / 4
    assert all(any(one is config for config in CONFIGS) for one in kept)
    assert all(one.kwargs["BLOCK_M"] < 4096 for one in kept), "what does not fit"
    refused = Config({"BLOCK_M": 8, "BLOCK_N": 64, "BLOCK_K": 32})  # rows are no multiple of 16
    again = prune([refused, *CONFIGS], {"M": 2048}, N=2048, K=1024)
    assert [id(one) for one in again] == [id(one) for one in kept]
    sure = prune_configs_by("ascend910b2", kernel, tiling, certain=True)["early_config_prune"]
    assert kept[0] in sure(CONFIGS, {"M": 2048}, N=2048, K=1024)


def test_where_nothing_fits_all_are_kept() -> None:
    large = [Config({"BLOCK_M": 4096, "BLOCK_N": 4096, "BLOCK_K": 64})]
    prune = prune_configs_by("ascend910b2", kernel, tiling)["early_config_prune"]
    assert prune(large, {"M": 2048, "N": 2048, "K": 1024}) == large


@dataclass
class Template:
    """What a carver knows of a matrix product."""

    M: int = 2048
    N: int = 2048
    K: int = 1024
    in_dtype: str = "float16"


@dataclass
class Hint:
    """One of its hints."""

    block: list[int]
    rstep: list[int] = field(default_factory=lambda: [64])


def test_hints_of_a_carver_come_in_the_order_of_estimates() -> None:
    hints = [Hint([16, 16]), Hint([4096, 64]), Hint([128, 256]), Hint([64, 64])]
    assert rank_hints(Template(), hints, "ascend910b2") == [hints[2], hints[3], hints[0]]
    assert rank_hints(Template(), hints, "ascend910b2", topk=1) == [hints[2]]
    with pytest.raises(ArgumentError, match="no hint runs on ascend910b2"):
        rank_hints(Template(), hints[1:2], "ascend910b2")
