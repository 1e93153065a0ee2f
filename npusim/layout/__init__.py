"""Memory layouts of tensors as pure functions with exact inverses.

``C0`` (elements per channel block) is an argument everywhere: for fp32 it is 8 or 16 depending
on who reads the tensor. Padding is zeros. Results are new contiguous arrays of the same dtype.
"""

from __future__ import annotations

from npusim.layout.blocks import (
    from_5hd,
    from_6hd,
    from_nz,
    nchw_to_nhwc,
    nhwc_to_nchw,
    to_5hd,
    to_6hd,
    to_nz,
)
from npusim.layout.fractal_z import (
    fracz_grouped_to_oihw,
    from_fracz,
    from_fracz_3d,
    to_fracz,
    to_fracz_3d,
)
from npusim.layout.groups import GroupPlan, group_dict, group_plan

#: What packs and unpacks maps, and filters, by the number of spatial dimensions.
MAPS = {2: (to_5hd, from_5hd), 3: (to_6hd, from_6hd)}
FILTERS = {2: (to_fracz, from_fracz), 3: (to_fracz_3d, from_fracz_3d)}

__all__ = [
    "FILTERS",
    "MAPS",
    "GroupPlan",
    "fracz_grouped_to_oihw",
    "from_5hd",
    "from_6hd",
    "from_fracz",
    "from_fracz_3d",
    "from_nz",
    "group_dict",
    "group_plan",
    "nchw_to_nhwc",
    "nhwc_to_nchw",
    "to_5hd",
    "to_6hd",
    "to_fracz",
    "to_fracz_3d",
    "to_nz",
]
