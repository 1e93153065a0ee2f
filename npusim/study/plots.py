"""Which figure shows a study: lines, a map, or what no other point beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.base.errors import ArgumentError
from npusim.base.quantities import parse_quantity
from npusim.device.catalog import load_device
from npusim.device.config import figures
from npusim.results.figure import Figure
from npusim.results.figures import studies
from npusim.results.figures.studies import Varied
from npusim.study.space import Study
from npusim.study.subject import DEVICE, Row

KINDS = ("line", "heat", "pareto")

#: Values on an axis from which two of them make a heat map rather than lines.
_MANY = 4


def figure(
    study: Study, varied: Varied, rows: Sequence[Row], asked: tuple[str, str, str]
) -> Figure:
    """``SweepResult.plot``: x, y and kind that are not ``asked`` are the varied names in order."""
    (x, y, kind), names = asked, studies.longest_first(varied)
    if not names or not rows:
        raise ArgumentError("nothing to draw: no point that was varied has a time")
    heat = len(names) == 2 and min(map(len, varied.values())) >= _MANY
    chosen = kind or ("heat" if heat else "line")
    if chosen not in KINDS:
        raise ArgumentError(f"kind is {kind!r}; it is one of {', '.join(KINDS)}")
    across = x or next(name for name in names if name != y)
    if chosen == "line":
        return studies.lines(varied, rows, across, title(study))
    if chosen == "pareto":
        return studies.over_values(across, _numbers(study, varied, across), rows, title(study))
    down = y or next((name for name in names if name != across), "")
    if not down:
        raise ArgumentError("a heat map needs two varied names; use kind='line'")
    return studies.heat(varied, rows, across, down, title(study))


def _numbers(study: Study, varied: Varied, name: str) -> Mapping[str, float]:
    """The values of a name by their texts, in base units."""
    texts = varied[name]
    device = load_device(study.fixed[DEVICE]) if DEVICE in study.fixed else None
    figure = figures(device).get(name) if device is not None else None
    try:
        if device is None or figure is None:
            return {text: float(text) for text in texts}
        values = [parse_quantity(text, figure.kind, device.clock_hz) for text in texts]
        numbers = [float(value) for value in values if not isinstance(value, tuple)]
        return dict(zip(texts, numbers, strict=True))
    except ValueError:
        raise ArgumentError(
            f"a Pareto front needs numbers, {name} has {', '.join(texts)}"
        ) from None


def title(study: Study) -> str:
    """What is measured at all points, on one line."""
    fixed = study.fixed
    what = fixed.get("network") or fixed.get("operator", "")
    others = [v if n == DEVICE else f"{n} {v}" for n, v in fixed.items() if n not in _SUBJECT]
    return ", ".join([what, *others])


_SUBJECT = ("network", "operator")
