"""Kernels that multiply below the roofs of the cores they used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from math import nan
from typing import NamedTuple

from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts import metrics
from npusim.results.facts.call import CallFacts
from npusim.results.facts.metrics import Peak
from npusim.results.facts.number_text import counted
from npusim.results.shown.figure import Figure, FigureAxis, Key, LineMark, Mark


class RooflinePoint(NamedTuple):
    """One kernel: TFLOP/s attained and bounded, FLOP per byte of GM and of main memory."""

    name: str
    attained: float
    bounded: float | None
    per_gm_byte: float | None
    per_memory_byte: float | None


class Roofs(NamedTuple):
    """Read rates in TB/s by name, the peak, and the range of intensities worth showing."""

    rates: dict[str, float]
    peak: Peak | None
    top: float
    left: float
    right: float


def point(device: Device, run: KernelRun, name: str) -> RooflinePoint:
    """A kernel that multiplies, called ``name``; operations on padding are executed, too."""
    bound = metrics.nearest_bound(run)
    flops = 2 * run.macs
    memory = sum(metrics.main_memory_bytes(run))
    return RooflinePoint(
        name=name,
        attained=metrics.tflops(device, run.macs, run.cycles),
        bounded=metrics.tflops(device, run.macs, bound.cycles) if bound else None,
        per_gm_byte=flops / run.gm_bytes if run.gm_bytes else None,
        per_memory_byte=flops / memory if memory else None,
    )


def roofs(
    device: Device, runs: Sequence[KernelRun], dtype: str | None, points: Iterable[RooflinePoint]
) -> Roofs:
    """L2 and main memory, and the highest peak of the cores that ``runs`` used on ``dtype``."""
    seen = tuple(points)
    working = [run for run in runs if run.macs] or list(runs)
    peaks = [metrics.cube_peak(device, run, dtype) for run in working]
    peak = max(
        (shown for shown in peaks if shown is not None),
        key=lambda shown: shown.tflops,
        default=None,
    )
    links = {"main memory read": device.main_read_bytes_per_cycle}
    if device.l2 is not None:
        links = {"L2 read": device.l2.read_bytes_per_cycle, **links}
    rates = {name: float(rate) * device.clock_hz / 1e12 for name, rate in links.items()}
    highest = max((shown.bounded or shown.attained for shown in seen), default=1.0)
    top = peak.tflops if peak is not None else highest
    places = [top / rate for rate in rates.values()]
    places += [
        intensity
        for shown in seen
        for intensity in (shown.per_gm_byte, shown.per_memory_byte)
        if intensity
    ]
    return Roofs(rates, peak, top, min(places) / 5, max(places) * 5)


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")

#: Marks of points: what they are, their look, and the fact that is needed.
_GM, _MEMORY = "o", "D"
_MARKS = (
    ("attained, bytes of GM moved by cores", _GM, 8.0, "per_gm_byte"),
    ("attained, bytes of main memory", _MEMORY, 8.0, "per_memory_byte"),
    ("closed-form bound", "_", 14.0, "bounded"),
)


def of_call(result: CallFacts) -> Figure:
    """The kernels of a call, those of one name in one colour."""
    names = dict.fromkeys(run.name for run in result.runs if run.macs and run.cycles)
    colours = dict(zip(names, cycle(_COLOURS), strict=False))
    points = [
        (point(result.device, run, title), colours[run.name])
        for run, title in zip(result.runs, metrics.titles(result.runs), strict=True)
        if run.macs and run.cycles
    ]
    silent = dict.fromkeys(run.name for run in result.runs if not run.macs)
    title = f"no multiply-adds, not shown: {', '.join(silent)}" if silent else ""
    ceilings = roofs(result.device, result.runs, result.dtype, [shown for shown, _ in points])
    return drawn(ceilings, points, {colour: name for name, colour in colours.items()}, title)


def drawn(
    ceilings: Roofs,
    points: Sequence[tuple[RooflinePoint, str]],
    named: dict[str, str],
    title: str = "",
) -> Figure:
    """Executed FLOP/s against FLOP/B, log-log, with roofs; operations on padding are executed too.

    A circle counts the bytes cores moved from and to GM (compare with the L2 roof), a diamond the
    bytes of main memory (compare with its roof), a dash the kernel's closed-form bound. Points come
    with their colours, and the key has what is ``named`` by colour.
    """
    lowest = min(
        [shown.attained for shown, _ in points] + [ceilings.left * min(ceilings.rates.values())]
    )
    above = _roofs(ceilings)
    marks: list[Mark] = [replace(shown, name="") for shown in above]
    for colour in named:
        marks += _points(
            [shown for shown, point_colour in points if point_colour == colour], colour
        )
    seen = [
        LineMark(x=(), y=(), name=name, colour="#555555", dash="", marker=marker, size=size)
        for name, marker, size, fact in _MARKS
        if any(getattr(shown, fact) for shown, _ in points)
    ]
    kinds = [LineMark(x=(), y=(), name=n, colour=c, width=5) for c, n in named.items()]
    return Figure(
        x=FigureAxis(
            label="arithmetic intensity (FLOP per byte)",
            log=True,
            ends=(ceilings.left, ceilings.right),
        ),
        y=FigureAxis(
            label="executed performance (TFLOP/s)", log=True, ends=(lowest / 2, 2.2 * ceilings.top)
        ),
        marks=marks,
        title=title,
        keys=[Key([*kinds, *seen, *above], "corner")],
        grid=True,
        inches=(8, 5),
        pixels=400,
        place="roofline",
        about="roofline",
        caption=f"{counted(len(points), 'kernel')}. Compare circles with the L2, diamonds with "
        "main memory.",
        zoom="both",
    )


def _roofs(ceilings: Roofs) -> list[LineMark]:
    """The rates of the memories, and the peak."""
    lines = [
        LineMark(
            name=f"{name} {rate * 1000:,.0f} GB/s",
            x=[ceilings.left, ceilings.top / rate],
            y=[ceilings.left * rate, ceilings.top],
            dash="-" if name == "L2 read" else "--",
        )
        for name, rate in ceilings.rates.items()
    ]
    if ceilings.peak is not None:
        first = min(ceilings.top / rate for rate in ceilings.rates.values())
        cores = counted(ceilings.peak.cores, "core")
        name = f"{ceilings.peak.dtype} peak of {cores} {ceilings.top:,.3g} TFLOP/s"
        lines.append(
            LineMark(name=name, x=[first, ceilings.right], y=[ceilings.top] * 2, width=2.5)
        )
    return lines


def _points(points: Sequence[RooflinePoint], colour: str) -> Iterator[LineMark]:
    """Circles and diamonds at the attained height, dashes at the bound above the circles."""
    both = [measured for measured in points if measured.per_gm_byte and measured.per_memory_byte]
    bounded = [measured for measured in points if measured.per_gm_byte and measured.bounded]
    lines = (
        ([(p.per_gm_byte, p.attained, p.per_memory_byte, p.attained) for p in both], "-"),
        ([(p.per_gm_byte, p.attained, p.per_gm_byte, p.bounded) for p in bounded], ":"),
    )
    for ends, dash in lines:  # between those of two points there is none
        x, y = ([v for end in ends for v in (*end[axis::2], nan)] for axis in (0, 1))
        yield LineMark(x=x, y=y, colour=colour, dash=dash, width=1.2)
    for whose, marker, size, fact in _MARKS:
        of = [
            measured
            for measured in points
            if getattr(measured, fact) and (marker == _MEMORY or measured.per_gm_byte)
        ]
        yield LineMark(
            x=[p.per_memory_byte if marker == _MEMORY else p.per_gm_byte for p in of],
            y=[p.bounded if fact == "bounded" else p.attained for p in of],
            colour=colour,
            dash="",
            marker=marker,
            size=size,
            more={"name": [p.name for p in of], "bound": [p.bounded or p.attained for p in of]},
            tip=f"<div><b>@name</b>: {whose}<br>@y{{0.0}} TFLOP/s at @x{{0.0}} FLOP per byte<br>"
            "bound of the program: @bound{0.0} TFLOP/s</div>",
        )
