"""How the groups of a convolution are packed so that their channels fill fractals.

E neighbouring groups form one *real group*; each owns a diagonal block of its weight matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import lcm

from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.layout.blocks import FRACTAL, check_positive


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """The packing of one convolution's groups.

    ``cin1_g`` counts C0 blocks of input channels per real group, ``cout_g`` output channels per
    real group rounded up to 16. The last real group may hold fewer than ``mag_factor`` groups.
    """

    groups: int
    c0: int
    cin_per_group: int
    cout_per_group: int
    mag_factor: int
    real_groups: int
    cin1_g: int
    cout_g: int

    @cached_property
    def cin(self) -> int:
        """Input channels of the whole convolution."""
        return self.groups * self.cin_per_group

    @cached_property
    def cout(self) -> int:
        """Output channels of the whole convolution."""
        return self.groups * self.cout_per_group


@lru_cache(maxsize=256, typed=True)
def group_plan(cin: int, cout: int, groups: int, c0: int) -> GroupPlan:
    """Return how ``groups`` groups of a ``cin`` -> ``cout`` convolution share real groups."""
    check_positive("group_plan", "cin cout groups c0", (cin, cout, groups, c0))
    for name, channels in (("cin", cin), ("cout", cout)):
        if channels % groups:
            raise ArgumentError(
                f"group_plan: {name} = {channels} is not a multiple of groups = {groups}; "
                "every group needs the same number of channels"
            )
    cg, og = cin // groups, cout // groups
    fills_both = lcm(lcm(cg, c0) // cg, lcm(og, FRACTAL) // og)
    mag_factor = min(fills_both, groups)
    return GroupPlan(
        groups=groups,
        c0=c0,
        cin_per_group=cg,
        cout_per_group=og,
        mag_factor=mag_factor,
        real_groups=ceil_div(groups, mag_factor),
        cin1_g=ceil_div(mag_factor * cg, c0),
        cout_g=FRACTAL * ceil_div(mag_factor * og, FRACTAL),
    )


def group_dict(plan: GroupPlan) -> dict[str, int]:
    """Return the plan as the ``group_dict`` entry of a TBE operator's ``para_dict``."""
    return {
        "real_g": plan.real_groups,
        "mag_factor": plan.mag_factor,
        "cin1_g": plan.cin1_g,
        "cout_g": plan.cout_g,
        "cin_ori": plan.cin,
        "cout_ori": plan.cout,
    }
