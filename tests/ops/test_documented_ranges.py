"""Random calls over the documented ranges of the 910B: they run, exactly and in little time.

Refused are they only by a limit of the page or for want of main memory, in words that name the
caller's argument. Calls of 10^9 multiply-adds and 2^31 elements are timed only; small ones of the
same extremes are compared with float64.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from math import exp, log, prod
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import dtype
from npusim.base.errors import CapacityError, RuleError
from npusim.call.call import planning
from tests.sampled import some
from tools.bench.history import LOOP

#: How often the CPU time of the loop planning and timing a call may take together.
LOOPS = 8.0
#: The largest stride and size of the documentation, and the sizes drawn here.
LARGEST, ELEMENTS, MULTIPLIES = 2147483646, 1 << 31, 10**9


#: Whose limits of the 3-D kernels of the 910B the ranges below do not leave out.
_ARGUMENTS = ("stride", "padding", "dilation", "input", "weight", "groups")


def log_uniform(r: random.Random, low: int, high: int) -> int:
    """An integer whose logarithm is evenly distributed."""
    return max(low, min(high, int(exp(r.uniform(log(low), log(high + 1))))))


def fields(r: random.Random, most: int, multiplies: int) -> dict[str, Any]:
    """Arguments of one layer of at most so many elements per tensor and multiply-adds."""
    while True:
        dims, transposed = r.choice((1, 2, 2, 3)), r.random() < 0.3
        groups = log_uniform(r, 1, 65535) if r.random() < 0.4 else 1

        def axes(chance: float, high: int, usual: int = 1, dims: int = dims) -> tuple[int, ...]:
            some = (log_uniform(r, 1, high) if r.random() < chance else usual for _ in range(dims))
            return tuple(some)

        stride = axes(0.5, LARGEST)
        if dims == 3:  # in H and W the page permits 63
            stride = (stride[0], *(min(s, 63) for s in stride[1:]))
        extra = tuple(r.randrange(min(s, 4)) if r.random() < 0.3 else 0 for s in stride)
        drawn: dict[str, Any] = {
            "n": log_uniform(r, 1, 1024),
            "cin": groups * log_uniform(r, 1, 4096),
            "cout": groups * log_uniform(r, 1, 4096),
            "spatial": axes(1, 1 << 22),
            "kernel": axes(1, 255),
            "stride": stride,
            "pads": tuple((p - 1, p - 1) for p in axes(0.6, 256)),
            "dilation": axes(0.4, 255),
            "groups": groups,
            "transposed": transposed,
            "output_padding": extra if transposed else (0,) * dims,
        }
        kernel, spatial = drawn["kernel"], drawn["spatial"]
        rows = zip(spatial, kernel, stride, drawn["pads"], drawn["dilation"], extra, strict=True)
        if transposed:
            out = [(x - 1) * s - 2 * p + d * (k - 1) + 1 + e for x, k, s, (p, _), d, e in rows]
        else:
            out = [(x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, (p, _), d, _ in rows]
        channels = drawn["cin"] * drawn["cout"] // groups
        macs = drawn["n"] * channels * prod(kernel) * prod(spatial if transposed else out)
        sizes = (
            drawn["n"] * drawn["cin"] * prod(spatial),
            drawn["n"] * drawn["cout"] * prod(out),
            channels * prod(kernel),
        )
        if min(out) > 0 and max(out) <= LARGEST and max(sizes) < most and macs < multiplies:
            return drawn


def looped() -> float:
    """CPU seconds of the loop by which benches count: how fast this machine is at present."""
    started = time.process_time()
    exec(LOOP, {})
    return time.process_time() - started


def both_phases(layer: Any, kind: str) -> float:
    """CPU seconds of planning and timing a call; of one that is refused, of finding that out."""
    dy, x, w = (npusim.spec(shape, kind) for shape in layer.shapes)
    started = time.process_time()
    refusal: RuleError | CapacityError | None = None
    try:
        for phase in ("plan", "time"):
            with planning() if phase == "plan" else pytest.MonkeyPatch.context():
                npusim.ops.convolution_backward(
                    dy, x, w, **layer.arguments, device="ascend910b2", timeline=False
                )
    except (RuleError, CapacityError) as error:
        refusal = error
    if isinstance(refusal, RuleError):
        assert refusal.parameter in _ARGUMENTS, refusal
    elif refusal is not None:
        assert "of main memory, but" in str(refusal), refusal
    return time.process_time() - started


def check(layer: Callable[..., Any], seed: int) -> None:
    """Draw a call and hold it against the time that it may take."""
    r = random.Random(seed)
    drawn = layer(**fields(r, ELEMENTS, MULTIPLIES))
    taken = both_phases(drawn, r.choice(("fp16", "fp32", "bf16")))
    if taken > LOOPS / 10:  # no machine adds so fast
        taken /= looped()
        assert taken < LOOPS, f"{taken:.1f} loops: {drawn}"


@pytest.fixture(scope="module")
def compiled_before() -> None:
    """Nothing is left to compile within the time that is looked at."""
    x, w = npusim.spec((1, 32, 9, 9), "fp16"), npusim.spec((32, 32, 3, 3), "fp16")
    npusim.ops.convolution_backward(x, x, w, padding=1, device="ascend910b2", timeline=False)


#: Call 447, transposed with a stride of 78 rows and 135 taps, was once refused.
@pytest.mark.compiled
@pytest.mark.usefixtures("compiled_before")
@pytest.mark.parametrize("seed", [*range(3), 447])
def test_random_calls_take_little_time(layer: Callable[..., Any], seed: int) -> None:
    check(layer, seed)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_before")
@pytest.mark.parametrize("seed", range(3, 2100))
def test_many_random_calls_take_little_time(layer: Callable[..., Any], seed: int) -> None:
    check(layer, seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(some(20)))
def test_extremes_are_exact_in_both_engines(
    layer: Callable[..., Any], engine: str, seed: int
) -> None:
    r = random.Random(seed)
    drawn, kind = layer(**fields(r, 20_000, 300_000)), dtype(r.choice(("fp16", "fp32", "bf16")))
    rng = np.random.default_rng(seed)
    operands = [rng.integers(-2, 3, shape).astype(kind.numpy) for shape in drawn.shapes]
    result = npusim.ops.convolution_backward(
        *operands, **drawn.arguments, device="ascend910b2", engine=engine, rules="hardware"
    )
    dx, dw = drawn.reference(*operands)
    wanted = (dx, dw, drawn.bias_reference(operands[0]))
    for got, want in zip(result.outputs or (), wanted, strict=True):
        np.testing.assert_array_equal(got, want.astype(np.float32).astype(kind.numpy))


def test_a_map_beyond_main_memory_is_refused_at_once() -> None:
    huge = npusim.spec((1, 1, 10**6, 10**6), "fp16")
    weight = npusim.spec((1, 1, 1, 1), "fp16")
    words = (
        r"910b2 has 64.0 GiB of main memory, .* input 1.8 TiB.*use a smaller (input|grad_output)"
    )
    with pytest.raises(CapacityError, match=words):
        npusim.ops.convolution_backward(huge, huge, weight, (1,), device="ascend910b2")
