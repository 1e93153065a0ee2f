"""npusim: a cycle-approximate NPU simulator: numbers, cycles and traffic from one program.

Importing it is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.base.errors import (
    ArgumentError,
    CapacityError,
    ConfigError,
    NpusimError,
    ProgramError,
    RaceError,
    RuleError,
)
from npusim.version import __version__

if TYPE_CHECKING:
    from npusim import ops
    from npusim.calibration import Calibration, calibrate
    from npusim.call.bound import bound
    from npusim.call.call import simulate
    from npusim.call.rank import Ranking, rank
    from npusim.call.spec import spec
    from npusim.call.tune import tune
    from npusim.device.catalog import devices, load_device
    from npusim.kernels.cann_export import cann_of
    from npusim.kernels.tilings.cann import CannTiling, cann_tiling, load_cann_tiling
    from npusim.kernels.tilings.imported import ascendc_tiling, catlass_tiling
    from npusim.networks.network import network
    from npusim.networks.step import step
    from npusim.networks.trainer import Trainer
    from npusim.ops import operators
    from npusim.program.traced import load_instructions, save_instructions
    from npusim.program.tunable import Fit, candidates, fits
    from npusim.results import Comparison, NetworkComparison, Result, compare, compare_networks
    from npusim.study import (
        Exploration,
        Sensitivities,
        Study,
        SweepResult,
        explore,
        load_study,
        sensitivities,
        sweep,
    )
    from npusim.tuning.tuned import Tuned
else:  # hidden from type checkers, or they would believe in every name
    _HOMES = {
        name: home
        for home, names in {
            "npusim.calibration": "Calibration calibrate",
            "npusim.call.bound": "bound",
            "npusim.call.call": "simulate",
            "npusim.call.rank": "Ranking rank",
            "npusim.call.spec": "spec",
            "npusim.call.tune": "tune",
            "npusim.device.catalog": "devices load_device",
            "npusim.kernels.cann_export": "cann_of",
            "npusim.kernels.tilings.cann": "CannTiling cann_tiling load_cann_tiling",
            "npusim.kernels.tilings.imported": "ascendc_tiling catlass_tiling",
            "npusim.networks.network": "network",
            "npusim.networks.step": "step",
            "npusim.networks.trainer": "Trainer",
            "npusim.ops": "operators",
            "npusim.program.traced": "load_instructions save_instructions",
            "npusim.program.tunable": "Fit candidates fits",
            "npusim.results": "Comparison NetworkComparison Result compare compare_networks",
            "npusim.study": "Exploration Sensitivities Study SweepResult "
            "explore load_study sensitivities sweep",
            "npusim.tuning.tuned": "Tuned",
        }.items()
        for name in names.split()
    }

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use (PEP 562)."""
        if name == "ops":
            return import_module("npusim.ops")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Every public name, those not yet imported too."""
        return sorted({*globals(), *__all__})


__all__ = [
    "ArgumentError",
    "Calibration",
    "CannTiling",
    "CapacityError",
    "Comparison",
    "ConfigError",
    "Exploration",
    "Fit",
    "NetworkComparison",
    "NpusimError",
    "ProgramError",
    "RaceError",
    "Ranking",
    "Result",
    "RuleError",
    "Sensitivities",
    "Study",
    "SweepResult",
    "Trainer",
    "Tuned",
    "__version__",
    "ascendc_tiling",
    "bound",
    "calibrate",
    "candidates",
    "cann_of",
    "cann_tiling",
    "catlass_tiling",
    "compare",
    "compare_networks",
    "devices",
    "explore",
    "fits",
    "load_cann_tiling",
    "load_device",
    "load_instructions",
    "load_study",
    "network",
    "operators",
    "ops",
    "rank",
    "save_instructions",
    "sensitivities",
    "simulate",
    "spec",
    "step",
    "sweep",
    "tune",
]
