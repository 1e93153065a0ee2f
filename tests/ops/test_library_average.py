"""Average pooling as the library runs it: numbers, kernels, and who runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.base.dtypes import FP16, FP32
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.windows.pool import pooled
from npusim.ops.library_average import launch_library_average
from tests.kernels.test_pool import gradient, sums, windows_of

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

NONE = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))


def launched(
    windows: Any,
    *,
    inside: bool = True,
    back: bool = False,
    array: Array | None = None,
    **options: Any,
) -> tuple[bool, Call]:
    """Whether average pooling over (shape, kernel, stride, padding) was launched, and its call."""
    shape, *rest = windows
    s = pooled(shape, *rest)
    dtype = options.pop("dtype", FP16)
    options = {"device": "ascend910", "tiling": "library"} | options
    call = Call("test", Options(**options), timing_only=array is None)
    ends = (shape, windows_of(shape, s))
    source, target = reversed(ends) if back else ends
    read = call.input("read", Spec(source, dtype) if array is None else array, dtype, source)
    out = call.output("out", target, dtype)
    return launch_library_average(call, s, read, out, inside=inside, back=back), call


@pytest.mark.parametrize(
    ("windows", "inside", "kernels"),
    [
        (((2, 2, 9, 8, 16), (3, 3), (1, 1), SAME), True, 2),  # windows at the edge have fewer taps
        (((2, 2, 9, 8, 16), (3, 3), (1, 1), SAME), False, 1),
        (((1, 2, 8, 8, 16), (2, 2), (2, 2), NONE), True, 1),  # all have all of them
        (((1, 1, 9, 11, 16), (3, 2), (2, 3), ((1, 1), (0, 1))), True, 2),
    ],
)
def test_numbers(windows: Any, inside: bool, kernels: int) -> None:
    s = pooled(*windows)
    kind = "mean_inside" if inside else "mean"
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, windows[0]).astype(np.float16)
    done, call = launched(windows, inside=inside, array=x)
    assert done
    assert len([run for run in call.runs if run.name != "mem_set"]) == kernels
    y = call.arrays["out"].reshape(windows_of(windows[0], s))
    np.testing.assert_allclose(y, sums(x.astype(np.float64), s, kind), 2**-9, 2**-9)
    dy = rng.integers(-9, 10, y.shape).astype(np.float16)
    done, call = launched(windows, inside=inside, back=True, array=dy)
    assert done
    dx = call.arrays["out"].reshape(windows[0])
    want = gradient(dy.astype(np.float64), s, kind)
    np.testing.assert_allclose(dx, want, 2**-8, 2**-7)  # shares of dy are rounded, then summed


MAP = ((2, 2, 9, 8, 16), (3, 3), (1, 1), SAME)


@pytest.mark.parametrize(
    ("windows", "options", "runs"),
    [
        (MAP, {}, True),
        (MAP, {"device": "ascend310p"}, True),
        (MAP, {"device": "ascend910b2"}, False),
        (MAP, {"tiling": "auto"}, False),
        (MAP, {"dtype": FP32}, False),
        (((2, 2, 9, 8, 16), (9, 8), (1, 1), NONE), {}, False),  # the whole map: a vector kernel
    ],
)
def test_who_runs_it(windows: Any, options: dict[str, Any], runs: bool) -> None:
    done, call = launched(windows, **options)
    assert done is runs
    assert bool(call.runs) is runs
    assert bool(call.notes) is runs


def test_time_follows_positions_and_taps() -> None:
    """Maps of 7 x 7 fill the cube badly, so that the vector kernel is faster by far."""
    windows = ((32, 32, 7, 7, 16), (3, 3), (1, 1), SAME)
    _, call = launched(windows, launch="graph")
    slow = call.result({}, "test", FP16).time_us
    _, call = launched(((32, 8, 14, 14, 16), (3, 3), (1, 1), SAME), launch="graph")
    assert slow > 1.5 * call.result({}, "test", FP16).time_us  # of as many elements


def test_windows_with_taps_apart_are_none_of_the_library_s() -> None:
    """Its convolution would have the taps side by side, and other sums."""
    shape = (1, 1, 9, 9, 16)
    s = replace(pooled(shape, (3, 3), (1, 1), SAME), dilation=(2, 2), outputs=None)
    call = Call("test", Options(device="ascend910", tiling="library"), timing_only=True)
    read = call.input("read", Spec(shape, FP16), FP16, shape)
    out = call.output("out", windows_of(shape, s), FP16)
    assert not launch_library_average(call, s, read, out, inside=True, back=False)
