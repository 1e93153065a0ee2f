"""Tensors that do not lie contiguous, through the C interface: copied, with time and memory."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from npusim.compat import aclnn as acl
from npusim.results import Result
from tests.compat.test_compat_aclnn import OK, integers

pytestmark = pytest.mark.compiled

Array = np.ndarray[Any, Any]
Lay = Callable[[Array], Array]

#: Names of gradients and operands in the order of the call.
NAMES = ("gradOutput", "input", "weight", "gradInput", "gradWeight", "gradBias")


def as_it_is(array: Array) -> Array:
    """Contiguous."""
    return array.copy()


def channels_last(array: Array) -> Array:
    """The axis of channels lies last."""
    order = (0, *range(2, array.ndim), 1)
    back = tuple(order.index(axis) for axis in range(array.ndim))
    return np.ascontiguousarray(array.transpose(order)).transpose(back)


def sliced(array: Array) -> Array:
    """A part of a tensor with more on every axis."""
    whole = np.zeros(tuple(size + 2 for size in array.shape), array.dtype)
    part = whole[tuple(slice(1, -1) for _ in array.shape)]
    part[...] = array
    return part


def every_second(array: Array) -> Array:
    """Every second element along the last axis."""
    whole = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    part = whole[..., ::2]
    part[...] = array
    return part


LAYS = {"channels last": channels_last, "sliced": sliced, "every second": every_second}


def ran(second: Callable[..., int], planned: tuple[int, int, Any]) -> Result:
    """What phase two computes, and that it plans as much memory as it takes."""
    status, size, executor = planned
    assert (status, acl.aclGetRecentErrMsg()) == (OK, None)
    assert second(acl.aclrtMalloc(size), size, executor, None) == OK
    result: Result = executor.result
    assert result.workspace_bytes == size
    return result


class Layer:
    """16 -> 16 channels, 3x3, padding 1, of one image 6x7 and with all three gradients."""

    def __init__(self) -> None:
        x, w, dy = (
            integers(1, 1, 16, 6, 7),
            integers(2, 16, 16, 3, 3),
            integers(3, 1, 16, 6, 7),
        )
        empty = np.full_like
        self.mask = [True] * 3
        self.arrays = dict(
            zip(
                NAMES, (dy, x, w, empty(x, 77), empty(w, 77), np.full(16, 77, x.dtype)), strict=True
            )
        )

    def run(self, lays: dict[str, Lay]) -> tuple[Result, int, dict[str, Array]]:
        """The result, the workspace that was planned, and what was written."""
        arrays = {name: lays.get(name, as_it_is)(array) for name, array in self.arrays.items()}
        acl.aclrtCreateStream(device="ascend910b2")
        tensors = {name: acl.aclCreateTensor(array) for name, array in arrays.items()}
        dy, x, w, dx, dw, db = (tensors[name] for name in NAMES)
        planned = acl.aclnnConvolutionBackwardGetWorkspaceSize(
            dy, x, w, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, self.mask, 0, dx, dw, db
        )
        result = ran(acl.aclnnConvolutionBackward, planned)
        return result, planned[1], {name: arrays[name] for name in NAMES[3:]}


def launched(result: Result) -> list[str]:
    return [run.name for run in result.runs]


@pytest.fixture(scope="module")
def usual() -> tuple[Result, int, dict[str, Array]]:
    return Layer().run({})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lay", LAYS)
def test_each_tensor_is_copied(
    usual: tuple[Result, int, dict[str, Array]], name: str, lay: str
) -> None:
    """One kernel more, which takes time and memory; the numbers are those of the usual call."""
    if name == "gradBias" and lay != "every second":
        pytest.skip("a tensor of one axis has one order, and no gaps in a slice")
    plain, plain_size, want = usual
    result, size, written = Layer().run({name: LAYS[lay]})
    kernel = "view_copy" if name.startswith("grad") and name != "gradOutput" else "contiguous"
    (more,) = [run for run in result.runs if run.name == kernel]
    assert sorted([kernel, *launched(plain)]) == sorted(launched(result))
    assert more.cycles > 0
    assert result.time_us > plain.time_us
    copied = Layer().arrays[name]
    assert size - plain_size == copied.nbytes
    assert result.workspace_bytes == size
    for gradient, array in written.items():
        np.testing.assert_array_equal(array, want[gradient])


def test_a_contiguous_call_stays_as_it_is(usual: tuple[Result, int, dict[str, Array]]) -> None:
    """Also where strides of axes of one element say something else."""
    plain, size, _ = usual

    def odd(array: Array) -> Array:
        return np.lib.stride_tricks.as_strided(array.copy(), strides=(2, *array.strides[1:]))

    result, workspace, _ = Layer().run({"input": odd, "gradOutput": odd})
    assert (result.cycles, workspace, launched(result)) == (plain.cycles, size, launched(plain))


@pytest.mark.parametrize(
    ("mask", "copies"),
    [([True, False, False], 2), ([False, True, False], 2), ([False, False, True], 1)],
)
def test_what_nobody_reads_is_not_copied(mask: list[bool], copies: int) -> None:
    """An input gradient takes only the shape of the input, a weight gradient that of the weight."""
    layer = Layer()
    layer.mask = mask
    result, _, _ = layer.run(dict.fromkeys(NAMES[:3], channels_last))
    assert launched(result).count("contiguous") == copies


def in_memory(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A tensor without data in C's form."""
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    form = acl.ACL_FORMAT_NCHW if len(shape) == 4 else acl.ACL_FORMAT_ND
    return acl.aclCreateTensor(
        shape, len(shape), acl.ACL_FLOAT16, strides, 0, form, (count,), 1, None
    )


def test_maps_of_51_mb_in_channels_last_take_as_much_longer_as_their_copies() -> None:
    """539.7 us and no word of it before; 16-bit maps of 32x64x112x112, 3x3."""
    map_, last = (32, 64, 112, 112), (64 * 112 * 112, 1, 112 * 64, 64)
    acl.aclrtCreateStream(device="ascend910b2")
    results = []
    for strides in (tuple(prod(map_[i + 1 :]) for i in range(4)), last):
        map_tensors = [in_memory(map_, strides) for _ in range(3)]
        weights = [in_memory((64, 64, 3, 3), (576, 9, 3, 1)) for _ in range(2)]
        dy, x, dx = map_tensors
        planned = acl.aclnnConvolutionBackwardGetWorkspaceSize(
            dy, x, weights[0], [64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3, 0,
            dx, weights[1], in_memory((64,), (1,)),
        )  # fmt: skip
        results.append(ran(acl.aclnnConvolutionBackward, planned))
    plain, copied = results
    copies = [run for run in copied.runs if run.name in ("contiguous", "view_copy")]
    assert len(copies) == 3
    assert 100 < copied.time_us - plain.time_us < 300
    assert copied.workspace_bytes - plain.workspace_bytes == 3 * prod(map_) * 2


def test_an_expanded_gradient_and_a_bias_of_every_second_number() -> None:
    """Forward: the bias is copied too; an operand may repeat its elements."""
    x = np.broadcast_to(integers(1, 1, 16, 1, 1), (2, 16, 5, 5))
    w, bias, out = integers(2, 16, 16, 3, 3), integers(3, 32)[::2], np.zeros((2, 16, 5, 5), "f2")
    results = []
    acl.aclrtCreateStream(device="ascend910b2")
    for first, added in ((x, bias), (x.copy(), bias.copy())):
        tensors = [acl.aclCreateTensor(array) for array in (first, w, added, out)]
        planned = acl.aclnnConvolutionGetWorkspaceSize(
            tensors[0], tensors[1], tensors[2], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
            tensors[3], 0,
        )  # fmt: skip
        result = ran(acl.aclnnConvolution, planned)
        results.append((out.copy(), launched(result)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1].count("contiguous") == 2
    assert "contiguous" not in results[1][1]


def test_a_matrix_that_is_only_transposed_is_read_as_it_lies() -> None:
    a, b, out = integers(1, 32, 48), integers(2, 24, 48), np.zeros((32, 24), "f2")
    acl.aclrtCreateStream(device="ascend910b2")
    cases = ((b.T, 0), (every_second(b.T.copy()), 1))
    for second, copies in cases:
        mat1, mat2 = acl.aclCreateTensor(a), acl.aclCreateTensor(second)
        product = acl.aclCreateTensor(every_second(out))
        names = launched(ran(acl.aclnnMm, acl.aclnnMmGetWorkspaceSize(mat1, mat2, product, 0)))
        assert (names.count("contiguous"), names.count("view_copy")) == (copies, 1)
        assert product.array is not None
        np.testing.assert_array_equal(product.array, a @ b.T)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_folds_are_cast_before_they_are_copied(kind: Any) -> None:
    patches = channels_last(integers(1, 2, 16 * 4, 9)[..., None])[..., 0]
    out = every_second(np.zeros((2, 16, 4, 4), kind))
    acl.aclrtCreateStream(device="ascend910b2")
    tensors = acl.aclCreateTensor(patches), acl.aclCreateTensor(out)
    pair = [1, 1]
    planned = acl.aclnnIm2colBackwardGetWorkspaceSize(
        tensors[0], [4, 4], [2, 2], pair, [0, 0], pair, tensors[1]
    )
    names = launched(ran(acl.aclnnIm2colBackward, planned))
    assert names[0] == "contiguous"
    assert names[-1] == "view_copy"
    assert ("cast" in names) == (kind is np.float32)
    want = np.zeros((2, 16, 4, 4))
    for tap in range(4):
        i, j = divmod(tap, 2)
        want[:, :, i : i + 3, j : j + 3] += patches.reshape(2, 16, 4, 3, 3)[:, :, tap]
    np.testing.assert_array_equal(out, want)


def test_results_whose_elements_share_memory_are_noted_and_not_timed() -> None:
    layer = Layer()
    shared = np.lib.stride_tricks.as_strided(np.zeros(1, "f2"), (16,), (0,))
    layer.arrays["gradBias"] = shared
    result, _, _ = layer.run({"gradBias": lambda array: shared})
    assert "view_copy" not in launched(result)
    assert any("elements of grad_bias share memory" in note for note in result.notes)
