"""The part of a wheel's build that compiles the engine; without a C compiler the wheel has none."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Where the library goes: beside its sources.
PLACE = "npusim/machine/timing/fast"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries to the wheel, which is then one for this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the install is an editable one, whose sources change."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="npusim-build-")
        environment = os.environ | {"PYTHONPATH": self.root, "NUMBA_CACHE_DIR": self._folder.name}
        command = [sys.executable, "-m", "npusim.ahead", "--any", self._folder.name]
        done = subprocess.run(command, cwd=self.root, env=environment, check=False)
        made = [*Path(self._folder.name).glob("engine-*.so")]
        if done.returncode or not made:
            self.app.display_warning(
                "the engine could not be compiled; this wheel leaves that to its first run"
            )
            return
        build_data["force_include"] |= {str(file): f"{PLACE}/{file.name}" for file in made}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_kind()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _kind() -> str:
    """The machines that the library runs on: it needs no other library, whichever libc there is."""
    if sys.platform == "linux":
        machine = platform.machine()
        return f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
