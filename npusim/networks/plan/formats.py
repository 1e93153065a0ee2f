"""Which format each value of a step has, and where a kernel converts one: least time, proved.

An operation has one or several *ways*: the format that each of its values has, and the time that it
takes. A value has the format in which it is made; where a reader wants another a kernel converts it
once for all readers. The plan of least time is an integer program: a choice of one way for each
operation, with what it costs to convert; HiGHS solves it and proves that nothing is faster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from npusim.base.records import replace


class FormatWay(NamedTuple):
    """One way to run an operation: its time, and the formats of what it reads and writes."""

    us: float
    reads: Mapping[str, str]
    writes: Mapping[str, str]


class FormatConversion(NamedTuple):
    """A value that a kernel converts, once, to another format than it is made in."""

    value: str
    format: str
    us: float


class FormatPlan(Struct, frozen=True):
    """A way for each operation, by place; what is converted; and the time of both together.

    ``bound_us`` is what no plan can be faster than, as far as that is proved, ``framework_us`` what
    the formats that a framework would give take, where others were open.
    """

    ways: tuple[int, ...]
    homes: Mapping[str, str]
    conversions: tuple[FormatConversion, ...]
    us: float
    bound_us: float
    framework_us: float | None = None

    @property
    def proved(self) -> bool:
        """Return whether no plan takes less time, but for rounding."""
        return self.us <= self.bound_us * (1 + 1e-9) + 1e-9


#: Microseconds to convert a value to a format; None where no kernel does.
Cost = Callable[[str, str], float | None]


class FormatProblem(Struct, frozen=True):
    """The operations' ways, values that exist before (``given``) and pairs that are ``tied``.

    ``given`` have the formats in which they may come; the second of a ``tied`` pair takes the place
    of the first in the next step, so that both have one format.
    """

    ways: Sequence[Sequence[FormatWay]]
    cost: Cost
    given: Mapping[str, Sequence[str]]
    tied: Sequence[tuple[str, str]] = ()

    def evaluated(self, chosen: Sequence[int], given: Mapping[str, str]) -> FormatPlan | None:
        """The plan of these ways and formats, None where it needs what no kernel converts."""
        homes = dict(given)
        picked = [ways[i] for ways, i in zip(self.ways, chosen, strict=True)]
        for way in picked:
            homes.update(way.writes)
        if any(homes[a] != homes[b] for a, b in self.tied if a in homes and b in homes):
            return None
        needed = dict.fromkeys(
            (name, format)
            for way in picked
            for name, format in way.reads.items()
            if homes[name] != format
        )
        conversions = []
        for name, format in needed:
            us = self.cost(name, format)
            if us is None:
                return None
            conversions.append(FormatConversion(name, format, us))
        us = sum(way.us for way in picked) + sum(conversion.us for conversion in conversions)
        return FormatPlan(tuple(chosen), homes, tuple(conversions), us, us)

    @property
    def only(self) -> FormatPlan | None:
        """The plan where nothing is open, so that times decide nothing; None where anything is.

        Nothing is where each operation has one way and each given value one format. None as well
        where these do not go together: no kernel converts a value that would have to be.
        """
        if any(len(choices) > 1 for choices in (*self.ways, *self.given.values())):
            return None
        given = {name: formats[0] for name, formats in self.given.items()}
        return self.evaluated([0] * len(self.ways), given)

    def best(self) -> FormatPlan:
        """The plan of least time, by an integer program."""
        return _Program(self).solved()


#: A value and a format.
_Item = tuple[str, str]


class _Row(NamedTuple):
    """A constraint: the sum of binaries times their factors is ``least`` to ``most``."""

    factors: Mapping[int, int]
    least: int
    most: float


class _Program:
    """The integer program of a problem.

    Binaries: a way of each operation is taken; a given value has a format; a value is converted to
    a format (at least as often as a reader wants it where it is not made so).
    """

    def __init__(self, problem: FormatProblem) -> None:
        self.problem = problem
        self.costs: list[float] = []  # of each binary
        self.rows: list[_Row] = []
        self.taken = [[self._binary(way.us) for way in ways] for ways in problem.ways]
        self.come = {
            name: [self._binary() for _ in formats] for name, formats in problem.given.items()
        }
        for choices in (*self.taken, *self.come.values()):
            self.rows.append(_Row(dict.fromkeys(choices, 1), 1, 1))
        makers, wanted = self._formats()
        for item, readers in wanted.items():
            us = problem.cost(*item)
            needed = {} if us is None else {self._binary(us): -1}
            for reader in readers:  # wanted less made is at most whether it is converted
                factors = Counter(reader)
                factors.subtract(makers[item])
                self.rows.append(_Row({**factors, **needed}, -1, 0))
        formats_of: dict[str, set[str]] = defaultdict(set)
        for name, format in [*makers]:
            formats_of[name].add(format)
        for a, b in problem.tied:
            for format in formats_of[a] | formats_of[b]:
                factors = Counter(makers[a, format])
                factors.subtract(makers[b, format])
                self.rows.append(_Row(dict(factors), 0, 0))

    def _formats(self) -> tuple[dict[_Item, Counter[int]], dict[_Item, list[Counter[int]]]]:
        """Binaries that make a value in a format, and for each reader those that want it so."""
        makers: dict[_Item, Counter[int]] = defaultdict(Counter)
        wanted: dict[_Item, list[Counter[int]]] = defaultdict(list)
        for name, formats in self.problem.given.items():
            for format, binary in zip(formats, self.come[name], strict=True):
                makers[name, format][binary] = 1
        for ways, places in zip(self.problem.ways, self.taken, strict=True):
            reads: dict[_Item, Counter[int]] = defaultdict(Counter)
            for way, binary in zip(ways, places, strict=True):
                for item in way.writes.items():
                    makers[item][binary] = 1
                for item in way.reads.items():
                    reads[item][binary] = 1
            for item, reader in reads.items():
                wanted[item].append(reader)
        return makers, wanted

    def _binary(self, us: float = 0.0) -> int:
        self.costs.append(us)
        return len(self.costs) - 1

    def solved(self) -> FormatPlan:
        """The plan of least time, with the bound that the solver proved."""
        # A step that leaves nothing to choose needs neither, and they take long to import.
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
        from scipy.sparse import coo_array  # noqa: PLC0415

        places = [
            (row_number, column, factor)
            for row_number, row in enumerate(self.rows)
            for column, factor in row.factors.items()
        ]
        numbers, columns, factors = zip(*places, strict=True)
        matrix = coo_array((factors, (numbers, columns)), shape=(len(self.rows), len(self.costs)))
        least = [row.least for row in self.rows]
        most = [row.most for row in self.rows]
        result = milp(
            self.costs,
            integrality=np.ones(len(self.costs)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix.tocsr(), least, most),
            options={"mip_rel_gap": 0.0},
        )

        def picked(choices: Sequence[int]) -> int:
            return int(np.argmax(result.x[list(choices)]))

        outside = {
            name: formats[picked(self.come[name])] for name, formats in self.problem.given.items()
        }
        plan = self.problem.evaluated([picked(ways) for ways in self.taken], outside)
        assert plan is not None
        return replace(plan, bound_us=result.mip_dual_bound)
