"""Which of the varied figures cost anything in the goals and limits of an exploration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from npusim.base.errors import NpusimError
from npusim.device.area import area_mm2, buffer_bytes, static_watt, supply
from npusim.device.config import figures
from npusim.device.parts import ENERGY
from npusim.device.spec import Device
from npusim.study.formula import Formula
from npusim.study.space import Study
from npusim.study.subject import DEVICE, Row, option_names, split


def unpriced(study: Study, formulas: Iterable[Formula]) -> Iterator[str]:
    """The varied figures that none of ``formulas`` makes dearer or cheaper at the same time."""
    wanted = {name for formula in formulas for name in formula.names}
    first = next(study.points())
    options = (*option_names(first), DEVICE)
    for axis in study.axes:
        if axis.name in options:
            continue
        costs: list[Row] = []
        for value in (axis.values[0], axis.values[-1]):
            with suppress(NpusimError):  # a point that the device refuses
                costs.append(_costs(split({**first, axis.name: value}).device))
        if all(one[name] == costs[0][name] for one in costs for name in wanted & one.keys()):
            yield axis.name


def _costs(device: Device) -> Row:
    """What a design costs whatever runs on it, by the name of the goal that has it."""
    watt = static_watt(device)
    energies: Sequence[Any] = [
        figure.value for figure in figures(device).values() if ENERGY in figure.keys
    ]
    dynamic = (supply(device), energies)
    return {
        "area_mm2": area_mm2(device),
        "buffer_bytes": sum(buffer_bytes(device).values()),
        "static_uj": watt,
        "dynamic_uj": dynamic,
        "energy_uj": (watt, dynamic),
    }
