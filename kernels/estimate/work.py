"""What the cores do under a tiling, in numbers: what compiled estimates take.

A module of its own, since a library compiled for other columns must not be found: its name has a
digest of this file too (``npusim.machine.timing.fast.library``).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray

Floats = npt.NDArray[np.float64]

#: What a column of ``Work`` may be: one value for all candidates, or one for each.
Column = Floats | IntArray | float | int


class Work(NamedTuple):
    """What the cores do, one entry per candidate: counts, cycles and bytes.

    ``items`` of all cores take ``cores``; of an item ``firsts`` loads, of each ``seconds`` loads of
    the other operand, of each ``steps``.
    A load takes ``*_start`` cycles and ``*_bytes`` at the rate of its path, and comes anew every
    ``*_every`` items. The L2 lacks an operand in each ``*_period``-th of the first ``*_until``
    items of a core, and ``*_copies`` cores ask for the same at once. A step waits for one of
    ``step_slots``, takes ``a`` and ``b`` cycles to L0 and ``m`` on the cube, after a gap ``a_head``
    and ``m_head`` more; each ``run``-th is what is left of a load, and takes ``rest_l0`` and
    ``rest_m``. ``issue`` are cycles of the scalar pipe per step, and ``ahead`` is how many steps it
    runs ahead of the cube.
    The ``drain`` holds the scalar pipe back for ``stall`` cycles, as its moves fill their queue;
    the next can follow after ``pace`` cycles, and its slot of L0C is free as long before its end
    as it takes longer than that.
    The next tile may begin ``lag`` cycles after the ``drain`` begins, -1: when it has ended.
    """

    cores: Column
    items: Column
    firsts: Column
    seconds: Column
    steps: Column
    first_start: Column
    first_bytes: Column
    second_start: Column
    second_bytes: Column
    first_every: Column
    second_every: Column
    first_slots: Column
    second_slots: Column
    first_period: Column
    first_until: Column
    first_copies: Column
    second_period: Column
    second_until: Column
    second_copies: Column
    a: Column
    b: Column
    m: Column
    run: Column
    step_slots: Column
    rest_l0: Column
    rest_m: Column
    a_head: Column
    m_head: Column
    issue: Column
    ahead: Column
    drain: Column
    pace: Column
    stall: Column
    drain_slots: Column
    lag: Column
    #: Bytes that one core can load per cycle, and that all together can, requests included.
    rate: Column
    shared: Column
    #: The same of what the L2 lacks: bytes per cycle of main memory.
    main: Column
    #: Cycles that the whole takes at least: of bytes from main memory, of stores.
    least: Column
    #: Cycles beside the cores' own: launch, and kernels on account of the tiling.
    beside: Column
    #: Cycles of a load's start in which its bytes come where their rate is lower than the path's.
    first_beside: Column = 0
    second_beside: Column = 0
    #: The most bytes per cycle of a load that the L2 lacks, however few share main memory.
    first_alone: Column = inf
    second_alone: Column = inf
    #: What a byte from main memory takes of ``shared`` besides its own.
    missed: Column = 0
    #: Cycles that a drain takes more after a gap.
    drain_head: Column = 0


class Course(NamedTuple):
    """What one core does at least, one entry per candidate: counts, and cycles without any wait.

    It has so many ``items``, from the ``first`` on. They go through ``across`` columns of ``along``
    slabs, column by column where they are ``slow``. The last ``rest`` of each ``period`` of slabs
    is small, in few images, and so many columns more than others, ``over``, are wide: their cycles
    have names of their own.

    An item reads ``planes_in`` planes of x, ``planes`` of them in a load. Of each there are
    ``taps`` columns of K, and a load of weights has as many ``columns`` as there is room for. x
    and weights come ``*_every`` so many items, 0: where another slab or column begins. A load takes
    ``*_start`` and for each plane, or column, ``x`` and ``w``; where nobody else has it fetched
    before, ``*_fresh``. That holds of the first, and of all that are ``*_alone``: of x 2, or 1 for
    slabs that no other core has.

    A filter gradient has dy for weights, loads of slabs for planes, and positions for columns.
    The loads are cut evenly into ``parts``, if that is known, which ``per`` items share. The last
    of so many ``slabs`` has a ``small`` share of the positions, and of the bytes of x.

    What is loaded is gone through in so many ``runs`` of steps of ``k`` columns, which take ``a``
    and ``b`` cycles to L0 and ``m`` on the cube. ``a`` is of x and ``b`` of weights, but if
    ``a_waits`` for what comes second it is the other way round.
    The ``drain`` has so many ``moves``; it goes to GM ``direct``. Under the unit flag it follows
    ``product_start`` cycles after the last product begins, and the next tile ``lag`` after its last
    move does; without it ``lag`` is -1.
    """

    items: Column
    first: Column
    across: Column
    along: Column
    slow: Column
    period: Column
    rest: Column
    over: Column
    planes_in: Column
    planes: Column
    parts: Column
    per: Column
    slabs: Column
    small: Column
    small_x: Column
    taps: Column
    columns: Column
    runs: Column
    k: Column
    x_every: Column
    w_every: Column
    x_slots: Column
    w_slots: Column
    l0_slots: Column
    c_slots: Column
    x_alone: Column
    w_alone: Column
    x_start: Column
    x: Column
    x_fresh: Column
    x_few: Column
    x_few_fresh: Column
    w_start: Column
    w: Column
    w_fresh: Column
    w_wide: Column
    w_wide_fresh: Column
    a: Column
    a_few: Column
    b: Column
    b_wide: Column
    a_waits: Column
    m: Column
    m_wide: Column
    m_few: Column
    m_few_wide: Column
    drain: Column
    drain_wide: Column
    drain_few: Column
    drain_few_wide: Column
    moves: Column
    direct: Column
    product_start: Column
    lag: Column
