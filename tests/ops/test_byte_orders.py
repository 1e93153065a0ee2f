"""Arrays in the byte order of other machines, as their .npy files have them: taken by all doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import BF16, FP16, dtype
from npusim.call.spec import Spec, native
from npusim.cli.main import main
from npusim.compat import aclnn as acl
from npusim.compat import ftdsp
from tests.ops.small_calls import CALLS, called

pytestmark = pytest.mark.compiled

Array = np.ndarray[Any, Any]


def swapped(array: Array) -> Array:
    """The same numbers, the bytes of each in the other order."""
    return array.astype(array.dtype.newbyteorder("S"))


def test_the_order_is_no_part_of_a_type() -> None:
    assert dtype(np.dtype(">f2")) is dtype(np.dtype("<f2")) is FP16
    array = np.arange(3, dtype=np.float16)
    assert native(array) is array
    assert native(swapped(array)).dtype.isnative
    bf16 = array.astype(BF16.numpy)
    assert native(bf16) is bf16


def filled(argument: Any) -> Any:
    """Whole numbers in place of a spec; other arguments as they are."""
    if not isinstance(argument, Spec):
        return argument
    numbers = np.random.default_rng(1).integers(-2, 3, argument.shape)
    return numbers.astype(argument.dtype.numpy)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_operator_takes_both(name: str) -> None:
    """Bits, time and notes are those of the usual order."""
    arguments = [filled(argument) for argument in CALLS[name]]
    others = [swapped(one) if isinstance(one, np.ndarray) else one for one in arguments]
    usual = called(name, *arguments, timeline=False)
    other = called(name, *others, timeline=False)
    assert (other.cycles, other.notes) == (usual.cycles, usual.notes)
    for one, same in zip(usual.outputs or (), other.outputs or (), strict=True):
        np.testing.assert_array_equal(one, same)


def test_files_of_other_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`npusim run` reads them, and the numbers are right."""
    shapes = {"dy": (2, 3, 4, 4), "x": (2, 4, 6, 6), "w": (3, 4, 3, 3)}
    words = ["run", "convolution_backward", "--device", "ascend910b2", "--check"]
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", np.ones(shape, ">f2"))
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(words) == 0
    assert "fp16" in capsys.readouterr().out


def test_the_c_interface_writes_into_both() -> None:
    image = swapped(filled(Spec((2, 3, 4, 4), FP16)))
    out = np.zeros((2, 12, 9), ">f2")
    acl.aclrtCreateStream(device="ascend910b2")
    tensors = acl.aclCreateTensor(image), acl.aclCreateTensor(out)
    _, size, executor = acl.aclnnIm2colGetWorkspaceSize(
        tensors[0], [2, 2], [1, 1], [0, 0], [1, 1], tensors[1]
    )
    assert acl.aclnnIm2col(acl.aclrtMalloc(size), size, executor, None) == acl.ACLNN_SUCCESS
    np.testing.assert_array_equal(out[:, 0], image[:, 0, :3, :3].reshape(2, 9))


def test_the_dsp_library_writes_into_both() -> None:
    dy, x, param = (filled(argument) for argument in CALLS["conv_grad_filter"])
    usual, other = np.zeros((1, 144, 16), "f4"), np.zeros((1, 144, 16), ">f4")
    ftdsp.fp_conv_grad_filter_s(dy, x, usual, param, 1)
    ftdsp.fp_conv_grad_filter_s(swapped(dy), swapped(x), other, param, 1)
    np.testing.assert_array_equal(usual, other)
    assert usual.any()
