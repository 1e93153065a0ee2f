"""npusim: a cycle-approximate NPU simulator: numbers, cycles and traffic from one program.

Importing it is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.version import __version__ as __version__

if TYPE_CHECKING:  # "as" itself is how a name is exported
    from npusim import ops as ops
    from npusim.base.errors import ArgumentError as ArgumentError
    from npusim.base.errors import CapacityError as CapacityError
    from npusim.base.errors import ConfigError as ConfigError
    from npusim.base.errors import NpusimError as NpusimError
    from npusim.base.errors import ProgramError as ProgramError
    from npusim.base.errors import RaceError as RaceError
    from npusim.base.errors import RuleError as RuleError
    from npusim.calibration.calibrate import Calibration as Calibration
    from npusim.calibration.calibrate import calibrate as calibrate
    from npusim.call.bound import bound as bound
    from npusim.call.call import simulate as simulate
    from npusim.call.rank import Ranking as Ranking
    from npusim.call.rank import rank as rank
    from npusim.call.spec import spec as spec
    from npusim.call.tune import tune as tune
    from npusim.device.catalog import devices as devices
    from npusim.device.catalog import load_device as load_device
    from npusim.kernels.cann_export import cann_of as cann_of
    from npusim.kernels.tilings.cann import CannTiling as CannTiling
    from npusim.kernels.tilings.cann import cann_tiling as cann_tiling
    from npusim.kernels.tilings.cann import load_cann_tiling as load_cann_tiling
    from npusim.kernels.tilings.imported import ascendc_tiling as ascendc_tiling
    from npusim.kernels.tilings.imported import catlass_tiling as catlass_tiling
    from npusim.networks.network import network as network
    from npusim.networks.step import step as step
    from npusim.networks.trainer import Trainer as Trainer
    from npusim.ops import operators as operators
    from npusim.program.traced import load_instructions as load_instructions
    from npusim.program.traced import save_instructions as save_instructions
    from npusim.program.tunable import Fit as Fit
    from npusim.program.tunable import candidates as candidates
    from npusim.program.tunable import fits as fits
    from npusim.results import Result as Result
    from npusim.results.comparison import Comparison as Comparison
    from npusim.results.comparison import compare as compare
    from npusim.results.network_comparison import NetworkComparison as NetworkComparison
    from npusim.results.network_comparison import compare_networks as compare_networks
    from npusim.study.result import Exploration as Exploration
    from npusim.study.result import SweepResult as SweepResult
    from npusim.study.runner import Sensitivities as Sensitivities
    from npusim.study.runner import sensitivities as sensitivities
    from npusim.study.runner import sweep as sweep
    from npusim.study.search import explore as explore
    from npusim.study.space import Study as Study
    from npusim.study.space import load_study as load_study
    from npusim.tuning.tuned import Tuned as Tuned

#: Where public names are imported from when they are first used.
_HOMES = {
    name: home
    for home, names in {
        "npusim.base.errors": "ArgumentError CapacityError ConfigError NpusimError "
        "ProgramError RaceError RuleError",
        "npusim.calibration.calibrate": "Calibration calibrate",
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
        "npusim.results": "Result",
        "npusim.results.comparison": "Comparison compare",
        "npusim.results.network_comparison": "NetworkComparison compare_networks",
        "npusim.study.result": "Exploration SweepResult",
        "npusim.study.runner": "Sensitivities sensitivities sweep",
        "npusim.study.search": "explore",
        "npusim.study.space": "Study load_study",
        "npusim.tuning.tuned": "Tuned",
    }.items()
    for name in names.split()
}

__all__ = sorted((*_HOMES, "__version__", "ops"))  # noqa: PLE0605 - of the names above

if not TYPE_CHECKING:  # hidden from type checkers, or they would believe in every name

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
