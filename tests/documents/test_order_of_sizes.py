"""M, N and K are told in one order, and where a vendor has another the text says so."""

from __future__ import annotations

import re

import pytest

import npusim
from npusim.cli.main import main
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.matmul.matmul import Tiling
from npusim.machine.device.catalog import devices, load_device
from tests.documents.pages import ROOT, text


def test_tilings_print_m_n_k() -> None:
    matmul = npusim.ops.matmul(
        npusim.spec((100, 333), "fp16"), npusim.spec((333, 48), "fp16"), device="tiny"
    )
    (m, n, k), *_ = re.findall(r"base (\d+)x(\d+)x(\d+)", matmul.runs[0].tiling)
    assert int(m) <= 112
    assert int(n) <= 48
    assert int(k) >= 16
    assert str(Tiling(base_m=16, base_n=32, base_k=48)).startswith("base 16x32x48")
    assert str(GemmTiling(base_m=16, base_n=32, base_k=48)).startswith("base 16x32x48")
    assert str(FilterTiling(base_m=16, base_n=32, base_k=48, slab_k=1)).startswith("base 16x32x48")


@pytest.mark.parametrize("name", devices())
def test_a_device_says_that_its_blocks_are_m_k_n(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["devices", "show", name])
    out = " ".join(capsys.readouterr().out.split())
    device = load_device(name)
    unit = device.cube or device.gemm
    assert unit is not None
    for kind, rate in unit.rates.items():
        assert re.search(rf"rates\.{kind} {rate.m}x{rate.k}x{rate.n}", out)
    assert "the block m x k x n that is multiplied at once" in out
    assert "tilings and reports have m x n x k" in out


def test_documents_say_which_order_is_whose() -> None:
    keys = " ".join(text("configs/README.md").split())
    assert "A block is `m x k x n`" in keys
    assert "tilings and reports have m x n x k" in keys
    assert "`base` is the M x N x K of one `mmad`" in " ".join(
        text("docs/reference/report.md").split()
    )


def test_no_document_shows_a_block_that_is_not_a_cube_without_its_order() -> None:
    """Such as 16x8x16, of which nobody could tell what the 8 is."""
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb"), ROOT / "README.md"]
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            for sizes in re.findall(r"(?<![\w.])(\d+)x(\d+)x(\d+)(?=/\d+cycle|\W|$)", line):
                block = {"8", "16", "32"}.issuperset(sizes) and len(set(sizes)) > 1
                if block and "cube" in line:
                    assert re.search(r"m x [nk] x [nk]|cube\.rates", line), (page.name, line)
