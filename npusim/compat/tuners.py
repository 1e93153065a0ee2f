"""Rankings in the forms that autotuners ask for: configurations in, those worth compiling out.

Neither Triton nor TileLang is imported: each function names the attributes that it reads of their
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from npusim.base.dtypes import FP32
from npusim.base.dtypes import dtype as kind_of
from npusim.base.errors import ArgumentError
from npusim.call.rank import rank
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel


def product(m: int, k: int, n: int, dtype: str = "fp16") -> Matmul:
    """A kernel to rank configurations for: C (fp32) = A (m, k) @ B (k, n), with any tiling."""
    kind = kind_of(dtype)
    a, b = Tensor("a", (m, k), kind, "in"), Tensor("b", (k, n), kind, "in")
    start = Tiling(base_m=16, base_n=16, base_k=max(16, 32 // kind.bytes))
    return Matmul(start, a, b, Tensor("c", (m, n), FP32, "out"))


def prune_configs_by(
    device: str | Device,
    kernel: Callable[[Mapping[str, Any]], Kernel],
    tiling: Callable[[Mapping[str, Any]], Any],
    *,
    share: float = 0.25,
    certain: bool = False,
    simulate: int = 0,
) -> dict[str, Any]:
    """An ``early_config_prune``, as ``triton.autotune`` takes it for ``prune_configs_by``.

    ``kernel`` makes a kernel of the arguments of a launch by name, ``tiling`` a tiling of the
    ``kwargs`` of a configuration. ``share`` and ``certain`` are those of ``Ranking.keep``,
    ``simulate`` is that of ``npusim.rank``: on a device where estimates were never compared with
    simulations ``certain`` needs at least 1 to drop anything. Of
    configurations none of which runs on the device all are kept, for then the model says nothing.
    """

    def early_config_prune(
        configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
    ) -> list[Any]:
        valid: list[Any] = []
        tilings: list[Any] = []
        for config in configs:
            with suppress(ArgumentError):  # such a tiling is none
                tilings.append(tiling(config.kwargs))
                valid.append(config)
        ranking = rank(kernel({**named_args, **kwargs}), tilings, device, simulate=simulate)
        worthwhile = ranking.kept(share, certain=certain)
        return [valid[row.place] for row in worthwhile] or [*configs]

    return {"early_config_prune": early_config_prune}


def rank_hints(
    template: Any, hints: Sequence[Any], device: str | Device, topk: int = 10
) -> list[Any]:
    """The ``topk`` of the hints of a matrix product's template, the best first.

    As a carver has them: of a template ``M``, ``N``, ``K`` and ``in_dtype`` are read, of a hint
    its ``block`` (rows, columns of a tile) and ``rstep`` (of K). Raises ``ArgumentError`` where
    none runs.
    """
    tilings = [
        {
            "base_m": hint.block[0],
            "base_n": hint.block[1],
            "base_k": hint.rstep[0],
            "step_ka": 1,
            "step_kb": 1,
        }
        for hint in hints
    ]
    kernel = product(template.M, template.K, template.N, template.in_dtype)
    ranking = rank(kernel, tilings, device)
    if not ranking.rows:
        raise ArgumentError(f"no hint runs on {ranking.device.name}: {ranking.left_out[:1]}")
    return [hints[row.place] for row in ranking.rows[:topk]]
