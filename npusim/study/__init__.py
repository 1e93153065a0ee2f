"""Studies: one network or operator measured over many designs, options and tilings."""

from npusim.study.result import SweepResult
from npusim.study.runner import sweep
from npusim.study.space import Axis, Study, load_study, make_study

__all__ = ["Axis", "Study", "SweepResult", "load_study", "make_study", "sweep"]
