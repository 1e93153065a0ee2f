"""Values that once ended in an exception of Python's own, or passed in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base import atomic_files as written
from npusim.base.dtypes import FP32
from npusim.base.errors import ArgumentError, CapacityError, ConfigError, ProgramError
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel, Plan
from npusim.machine.program.language import Language
from npusim.workloads import load_workload


def product(memory: str, size: str) -> npusim.Result:
    device = npusim.load_device("ascend910", {f"memories.{memory}.size": size})
    ones = np.ones((40, 40), np.float16)
    return npusim.ops.matmul(ones, ones, device=device, timeline=False)


@pytest.mark.compiled
def test_a_product_in_a_small_l1() -> None:
    result = product("L1", "8KiB")
    assert result.outputs is not None
    assert (np.asarray(result.outputs[0]) == 40).all()


@pytest.mark.compiled
@pytest.mark.parametrize(("memory", "size"), [("L1", 512), ("L0C", 512), ("L0A", 256)])
def test_a_memory_without_room_for_a_tile(memory: str, size: int) -> None:
    match = (
        rf"{memory} (holds )?{size} B.* the smallest tile takes 1024 B of each, and 2048 B of L1"
    )
    with pytest.raises(CapacityError, match=match):
        product(memory, f"{size}B")


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("paths.GM->L1.startup", "1e28cycle"),
        ("paths.GM->L1.startup", "4611686018427387904cycle"),
        ("paths.GM->L1.rate", f"1{32 * '0'}B/cycle"),
        ("cube.issue", f"1{22 * '0'}cycle"),
        ("pipes.MTE2.queue_depth", "999999999999999999"),
        ("groups", "1000000000"),
        ("groups", "100000"),
    ],
)
def test_figures_beyond_any_machine(figure: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{figure}=.*(is beyond any machine|whole cycles)"):
        npusim.load_device("ascend910", {figure: value})


def test_an_integer_of_5000_digits(tmp_path: Path) -> None:
    file = tmp_path / "wide.yaml"
    layer = f"{{cin: {5000 * '9'}, cout: 1, spatial: [1, 1], kernel: 1}}"
    file.write_text(f"description: wide\nlayers:\n  a: {layer}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"wide\.yaml:3: layers\.a\.cin: expected an integer of at least 1"
    ):
        load_workload(str(file))


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(ConfigError, match="embedded null byte"):
        load_workload("a\0.yaml")


@pytest.mark.compiled
@pytest.mark.parametrize("sizes", [(99,), 5, "x"])
def test_a_bias_that_nobody_reads_is_told_of(sizes: Any) -> None:
    x, w = npusim.spec((1, 16, 6, 6), "fp16"), npusim.spec((16, 16, 3, 3), "fp16")
    backward = npusim.ops.convolution_backward
    result = backward(x, x, w, sizes, padding=1, device="ascend910", timeline=False)
    assert any("the documentation wants (16,)" in note for note in result.notes)


@pytest.mark.parametrize(("kernel", "tensor"), [("half \ud800", "y"), ("fill", "y\n"), ("\0", "y")])
def test_names_that_no_report_can_show(kernel: str, tensor: str) -> None:
    y = Tensor(tensor, (8,), FP32, "out")

    class Named(Kernel):
        name, role, tensors = kernel, "vector", (y,)

        def plan(self, k: Language, cores: int) -> Plan[Any]:
            raise NotImplementedError  # nobody asks for it

    with pytest.raises(ProgramError, match=r"the name '.*\\.*' is not printable") as error:
        npusim.simulate(Named(), "tiny", cores=1, engine="simpy")
    str(error.value).encode()


def test_a_user_without_a_home() -> None:
    """An unknown user id and no HOME."""
    script = """
import pathlib
def home():
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.home = home
import npusim
x = npusim.spec((16, 16), "fp16")
print(npusim.ops.matmul(x, x, device="tiny").cycles > 0)
"""
    gone = ("HOME", "XDG_CACHE_HOME", "NPUSIM_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    done = subprocess.run(
        [sys.executable, "-c", script], env=kept, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


#: A layer of the DSP's library, 4x4 pixels, 4 -> 4 channels, 3x3.
PARAM: tuple[Any, ...] = (1, 4, 4, 4, 1, 4, 4, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0)


@pytest.mark.parametrize("operator", ["conv_grad_input", "deconv_grad_filter"])
@pytest.mark.parametrize("value", [None, (1, 2), np.array([1, 2])], ids=["none", "pair", "array"])
@pytest.mark.parametrize("place", range(17))
def test_an_entry_of_param_that_is_no_number(operator: str, value: Any, place: int) -> None:
    dy, other = npusim.spec((1, 4, 4, 4), "fp32"), npusim.spec((1, 36, 4), "fp32")
    param = [*PARAM[:place], value, *PARAM[place + 1 :]]
    with pytest.raises(ArgumentError, match=rf"param\[{place}\] \w+ is .*; it takes an integer"):
        getattr(npusim.ops, operator)(dy, other, param, device="mt7004")
    with pytest.raises(ArgumentError, match="param is None; it takes 18 integers"):
        getattr(npusim.ops, operator)(dy, other, None, device="mt7004")


@pytest.mark.parametrize("keyword", ["rules", "start", "engine"])
def test_an_array_for_a_word(keyword: str) -> None:
    a = npusim.spec((16, 16), "fp16")
    given: dict[str, Any] = {keyword: np.array([1, 2])}
    with pytest.raises(ArgumentError, match=rf"{keyword} is array\(\[1, 2\]\); it is"):
        npusim.ops.matmul(a, a, device="tiny", **given)


def test_a_size_for_a_shape_and_a_word_for_a_kernel() -> None:
    with pytest.raises(ArgumentError, match="spec shape is 64; give its sizes"):
        npusim.spec(64, "fp16")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"simulate takes a kernel, .* got 'foo'"):
        npusim.simulate("foo", "tiny")  # type: ignore[arg-type]
    x, w = npusim.spec((1, 4, 8, 8), "fp16"), npusim.spec((4, 4, 1, 1), "fp16")
    with pytest.raises(ArgumentError, match=r"groups is 1\.7; it must be an integer of at least 1"):
        npusim.ops.convolution(x, w, groups=1.7, device="ascend910b2")  # type: ignore[arg-type]


def test_a_file_in_no_folder_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.json"
    with pytest.raises(FileNotFoundError) as caught:
        written.write(path, "{}")
    assert caught.value.filename == str(path)
