"""The wheel carries what the package needs and works outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from npusim.machine.timing.fast.library import SWITCH, levels
from npusim.silicon.sheet import shipped_sheets

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_an_installed_wheel_runs_from_any_directory(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("npusim-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = ("devices", "workloads", "constraints", "silicon")
    for folder in (*(f"configs/{name}" for name in configs), "kernels"):
        for file in (ROOT / folder).iterdir():
            if file.suffix in (".py", ".yaml", ".csv"):
                assert f"npusim/{folder}/{file.name}" in names
    engines = [name for name in names if Path(name).match("npusim/machine/timing/fast/engine-*.so")]
    assert len(engines) == bool(shutil.which("cc")) * len(levels())
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import npusim; "
        "assert npusim.__file__.startswith(sys.path[0]); "
        "a = npusim.spec((64, 64), 'fp16'); print(npusim.ops.matmul(a, a, device='tiny').cycles); "
        "print(*{'numba', 'simpy'} & set(sys.modules))"
    )
    plain = {name: value for name, value in os.environ.items() if name != SWITCH}
    plain |= {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NPUSIM_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        env=plain,
    )
    cycles, used = done.stdout.splitlines()
    assert int(cycles) > 0
    assert used == ("" if engines else "simpy")
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); "
        "from npusim.silicon.sheet import shipped_sheets; "
        "print(sum(len(sheet.rows) for sheet in shipped_sheets()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert int(done.stdout) == sum(len(sheet.rows) for sheet in shipped_sheets())
