"""A plan of formats that leaves nothing to choose: its times are found when they are asked for.

They are those of kernels that start with a cold L2, which the step itself rests on only where
they decide something.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from npusim.base.records import replace
from npusim.base.workers import Workers
from npusim.networks.plan.formats import FormatPlan
from npusim.networks.plan.launch_order import Formats, problem
from npusim.networks.plan.tasks import Task
from npusim.networks.rules.values import Training
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.simulated import SimulatedTasks
from npusim.networks.timed import Timed

if TYPE_CHECKING:
    from typing_extensions import Self


class OnlyPlan(Struct, frozen=True):
    """The operations of a step whose formats are as a framework has them, and what times them.

    Runs of kernels are kept in ``store``.
    """

    step: Training
    launcher: OperationLauncher
    store: str | Path | None

    @classmethod
    def of(cls, step: Training, times: SimulatedTasks) -> Self:
        """The plan of a step that ``times`` time; nobody is told how far that is."""
        options = replace(times.launcher.options, progress=None)
        return cls(step, replace(times.launcher, options=options), times.store)

    def timed(self, known: Mapping[Task, Timed], jobs: int | None) -> FormatPlan:
        """The plan with its times, worked out in ``jobs`` processes but for those ``known``."""
        with Workers(jobs) as workers:
            times = SimulatedTasks(self.launcher, self.store, workers, dict(known))
            formats = Formats(self.step, times, as_framework=True)
            formats.simulate(fixed=True)
            plan = problem(self.step, formats, fixed=True).only
            assert plan is not None, "a step whose plan was the only one has no other"
            return plan
