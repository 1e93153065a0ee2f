"""What is not imported before it is needed: a name, a short run and a script start at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import npusim
from npusim.machine.timing.fast.library import SWITCH

#: Everything that takes long to import, whether npusim depends on it or others bring it along.
HEAVY = ("bokeh", "matplotlib", "ml_dtypes", "numba", "numpy", "pandas", "rich", "simpy", "yaml")

RUN = "run matmul --device ascend910b2 --m 16 --k 16 --n 16 --timing-only"


def imported_after(code: str) -> set[str]:
    """Which of ``HEAVY`` a fresh interpreter has imported after ``code``."""
    told = f"{code}\nimport sys\nprint(*[m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True
    )  # fmt: skip
    return set(done.stderr.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported_after("import npusim; dir(npusim); npusim.ArgumentError") == set()


@pytest.mark.parametrize("extra", ["", " --json"])
def test_a_short_run_imports_no_library_of_tables_or_plots(extra: str) -> None:
    words = (RUN + extra).split()
    found = imported_after(f"from npusim.cli.main import main; assert main({words}) == 0")
    assert "numpy" in found, "the run took place"
    assert not found & {"bokeh", "matplotlib", "pandas", "rich"}


#: Modules of npusim that a product's time does not take: other operators, numbers, explanations.
UNUSED = (
    *(f"npusim.kernels.{name}" for name in ("implicit_gemm", "filter_gradient", "vendor.cann")),
    *(f"npusim.machine.numerics.{name}" for name in ("executor", "memory")),
    *(f"npusim.ops.{name}" for name in ("conv_forward", "conv_backward", "compiled")),
    *(f"npusim.results.{name}" for name in ("comparison", "explanation")),
    "npusim.results.writers.perfetto",
    *(f"npusim.machine.timing.{name}" for name in ("causes", "critical", "simpy_engine")),
    *(
        "npusim.machine.program.races",
        "npusim.problem.reference",
        "npusim.workloads",
        "npusim.call.tilings.proof",
    ),
    *("subprocess", "multiprocessing", "threadpoolctl"),
)


def test_a_short_run_imports_what_it_uses(tmp_path: Path) -> None:
    """Nothing of what the call has no use for, Numba's own imports apart."""
    told = (
        "import sys, numpy\n"
        "by_numpy = set(sys.modules)\n"  # old ones import subprocess
        "class Numba:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numba':\n"
        f"            unused = set({UNUSED}) - by_numpy\n"
        "            sys.exit(' '.join(m for m in unused if m in sys.modules))\n"
        "sys.meta_path.insert(0, Numba())\n"
        "from npusim.cli.main import main\n"
        f"main({RUN.split()})"
    )
    stores = os.environ | {"NPUSIM_CACHE": str(tmp_path), SWITCH: "numba"}
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=False, env=stores
    )
    assert (done.returncode, done.stderr) == (1, "\n"), "the engine was loaded last"


def test_operators_load_no_compiler_before_a_tiling_is_chosen() -> None:
    code = "import npusim.ops, npusim.kernels.implicit_gemm.input_gradient"
    assert "numba" not in imported_after(code)


def test_a_network_imports_no_library_of_tables_or_plots() -> None:
    words = ["net", "resnet50", "--device", "tiny", "--gradients", "weight"]
    found = imported_after(f"from npusim.cli.main import main; assert main({words}) == 0")
    assert "numpy" in found, "the run took place"
    assert not found & {"bokeh", "matplotlib", "pandas", "rich"}


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert set(npusim.__all__) <= set(dir(npusim))
    for name in npusim.__all__:
        assert getattr(npusim, name) is not None


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^No npusim attribute simulated$"):
        npusim.simulated  # type: ignore[attr-defined]  # noqa: B018 - asked for its error only


def test_no_module_hides_an_operator_of_its_name() -> None:
    folder = Path(npusim.ops.__file__).parent
    assert not {file.stem for file in folder.glob("*.py")} & set(npusim.ops.operators())
