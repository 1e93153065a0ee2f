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
from npusim.results.shown.figure import Axis, Figure, Key, Line, Mark


class Point(NamedTuple):
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


def point(device: Device, run: KernelRun, name: str) -> Point:
    """A kernel that multiplies, called ``name``; operations on padding are executed, too."""
    bound = metrics.nearest_bound(run)
    flops = 2 * run.macs
    memory = sum(metrics.main_memory_bytes(run))
    return Point(
        name=name,
        attained=metrics.tflops(device, run.macs, run.cycles),
        bounded=metrics.tflops(device, run.macs, bound.cycles) if bound else None,
        per_gm_byte=flops / run.gm_bytes if run.gm_bytes else None,
        per_memory_byte=flops / memory if memory else None,
    )


def roofs(
    device: Device, runs: Sequence[KernelRun], dtype: str | None, points: Iterable[Point]
) -> Roofs:
    """L2 and main memory, and the highest peak of the cores that ``runs`` used on ``dtype``."""
    seen = tuple(points)
    working = [run for run in runs if run.macs] or list(runs)
    peaks = [metrics.cube_peak(device, run, dtype) for run in working]
    peak = max((one for one in peaks if one is not None), key=lambda one: one.tflops, default=None)
    links = {"main memory read": device.main_read_bytes_per_cycle}
    if device.l2 is not None:
        links = {"L2 read": device.l2.read_bytes_per_cycle, **links}
    rates = {name: float(rate) * device.clock_hz / 1e12 for name, rate in links.items()}
    highest = max((one.bounded or one.attained for one in seen), default=1.0)
    top = peak.tflops if peak is not None else highest
    places = [top / rate for rate in rates.values()]
    places += [at for one in seen for at in (one.per_gm_byte, one.per_memory_byte) if at]
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
    made = roofs(result.device, result.runs, result.dtype, [one for one, _ in points])
    return drawn(made, points, {colour: name for name, colour in colours.items()}, title)


def drawn(
    made: Roofs, points: Sequence[tuple[Point, str]], named: dict[str, str], title: str = ""
) -> Figure:
    """Executed FLOP/s against FLOP/B, log-log, with roofs; operations on padding are executed too.

    A circle counts the bytes cores moved from and to GM (compare with the L2 roof), a diamond the
    bytes of main memory (compare with its roof), a dash the kernel's closed-form bound. Points come
    with their colours, and the key has what is ``named`` by colour.
    """
    lowest = min([one.attained for one, _ in points] + [made.left * min(made.rates.values())])
    above = _roofs(made)
    marks: list[Mark] = [replace(one, name="") for one in above]
    for colour in named:
        marks += _points([one for one, own in points if own == colour], colour)
    seen = [
        Line(x=(), y=(), name=name, colour="#555555", dash="", marker=marker, size=size)
        for name, marker, size, fact in _MARKS
        if any(getattr(one, fact) for one, _ in points)
    ]
    kinds = [Line(x=(), y=(), name=n, colour=c, width=5) for c, n in named.items()]
    return Figure(
        x=Axis(
            label="arithmetic intensity (FLOP per byte)", log=True, ends=(made.left, made.right)
        ),
        y=Axis(label="executed performance (TFLOP/s)", log=True, ends=(lowest / 2, 2.2 * made.top)),
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


def _roofs(made: Roofs) -> list[Line]:
    """The rates of the memories, and the peak."""
    found = [
        Line(
            name=f"{name} {rate * 1000:,.0f} GB/s",
            x=[made.left, made.top / rate],
            y=[made.left * rate, made.top],
            dash="-" if name == "L2 read" else "--",
        )
        for name, rate in made.rates.items()
    ]
    if made.peak is not None:
        first = min(made.top / rate for rate in made.rates.values())
        cores = counted(made.peak.cores, "core")
        name = f"{made.peak.dtype} peak of {cores} {made.top:,.3g} TFLOP/s"
        found.append(Line(name=name, x=[first, made.right], y=[made.top] * 2, width=2.5))
    return found


def _points(points: Sequence[Point], colour: str) -> Iterator[Line]:
    """Circles and diamonds at the attained height, dashes at the bound above the circles."""
    both = [one for one in points if one.per_gm_byte and one.per_memory_byte]
    bounded = [one for one in points if one.per_gm_byte and one.bounded]
    lines = (
        ([(p.per_gm_byte, p.attained, p.per_memory_byte, p.attained) for p in both], "-"),
        ([(p.per_gm_byte, p.attained, p.per_gm_byte, p.bounded) for p in bounded], ":"),
    )
    for ends, dash in lines:  # between those of two points there is none
        x, y = ([v for end in ends for v in (*end[at::2], nan)] for at in (0, 1))
        yield Line(x=x, y=y, colour=colour, dash=dash, width=1.2)
    for whose, marker, size, fact in _MARKS:
        of = [
            one for one in points if getattr(one, fact) and (marker == _MEMORY or one.per_gm_byte)
        ]
        yield Line(
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
