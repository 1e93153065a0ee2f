"""Studies: one network or operator measured over many designs, options and tilings."""

from npusim.study.result import Exploration, SweepResult
from npusim.study.runner import Sensitivities, sensitivities, sweep
from npusim.study.search import explore
from npusim.study.space import Axis, Study, load_study, make_study

__all__ = [
    "Axis",
    "Exploration",
    "Sensitivities",
    "Study",
    "SweepResult",
    "explore",
    "load_study",
    "make_study",
    "sensitivities",
    "sweep",
]
