"""Playing with a design: a network on a device whose figures move, answered layer by layer.

After a figure moved, the layers are timed one at a time, the longest first: with tilings held,
which takes milliseconds, then with tilings chosen for the new figures; one has a timeline. What
was known before is taken from the kept runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.base.atomic_files import write
from npusim.base.errors import ArgumentError, NpusimError
from npusim.base.quantities import format_quantity
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.call.options import Options
from npusim.machine.device.area import area_mm2
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figure_text, figures
from npusim.machine.device.parts import DeviceFigure
from npusim.machine.device.resources import LAUNCHES
from npusim.machine.device.spec import Device
from npusim.machine.device.variant import Head, free_key, variant_text
from npusim.networks.network import LayerTime, NetworkResult, network
from npusim.ops.network_layers import LayerRuns
from npusim.results import Result
from npusim.results.facts.energy import TOTAL_ENERGY
from npusim.results.facts.number_text import us_text
from npusim.results.shown.figures import stacks, timeline
from npusim.results.shown.figures.stacks import LayerBar
from npusim.results.shown.network_words import split_text
from npusim.results.writers.web.charts import live
from npusim.results.writers.web.charts.live import Acts, Knob, Live
from npusim.study.space import StudyAxis, make_axis
from npusim.study.subject import DEVICE, NETWORK

if TYPE_CHECKING:
    from bokeh.document import Document


#: Figures that move where nothing else is said, as far as the device has them.
USUAL = (
    "groups",
    "clock",
    "memories.L1.size",
    "memories.L0C.size",
    "memories.UB.size",
    "l2.size",
    "l2.read",
    "main_memory.read",
    "main_memory.write",
    "launch.core",
)

#: Parts of a figure's own value that a slider offers.
_PARTS = tuple(Fraction(n, 8) for n in (2, 4, 6, 8, 10, 12, 16, 24, 32))


def knobs(device: Device, source: str, vary: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The figures of ``vary`` with their values (see ``npusim.sweep``), or the usual ones.

    ``source`` is the device's name or file.

    Raises ``ArgumentError`` for a name that is no figure of the device, ``ConfigError`` for a
    value that is none of it.
    """
    by_path = figures(device)
    if not vary:
        usual = [by_path[path] for path in USUAL if path in by_path]
        return tuple(_usual(device, figure) for figure in usual if figure.value)
    for path in vary:
        if path not in by_path:
            raise ArgumentError(f"{path} is no figure of {device.name}{suggest(path, by_path)}")
    return tuple(
        _varied(device, by_path[path], make_axis(path, values, {DEVICE: source, NETWORK: ""}))
        for path, values in vary.items()
    )


def _varied(device: Device, figure: DeviceFigure, axis: StudyAxis) -> Knob:
    """A figure with the values of an axis, before them its own where it is none of these."""
    digest = device.digest()
    devices = [device.replace(axis.name, text) for text in axis.values]
    for place, other in enumerate(devices):
        if other.digest() == digest:
            return Knob(axis.name, axis.values, axis.values, place)
    shown = figure_text(figure, device.clock_hz)
    return Knob(axis.name, (shown, *axis.values), (_text(figure), *axis.values), 0)


def _usual(device: Device, figure: DeviceFigure) -> Knob:
    """A figure from a quarter to four times its value, in whole units but for rates.

    Clocks end where the supply does.
    """
    current = figure.value
    assert isinstance(current, int | Fraction)
    values: list[int | Fraction] = [current * part for part in _PARTS]
    if figure.kind != "rate":
        values = [max(1, round(value)) for value in values]
    most = device.silicon.most_clock_hz if device.silicon is not None else None
    if figure.keys == ("clock",) and most is not None:  # beyond it no supply is enough
        values = [value for value in values if value <= most]
    distinct = list(dict.fromkeys(values))
    place = distinct.index(current)
    offered = [replace(figure, value=value) for value in distinct]
    shown = [_shown(other, device.clock_hz) for other in offered]
    texts = [_text(other) for other in offered]
    if figure.kind == "rate":  # round ones, but for the device's own
        texts = [*shown[:place], texts[place], *shown[place + 1 :]]
    return Knob(".".join(figure.keys), tuple(shown), tuple(texts), place)


def _shown(figure: DeviceFigure, clock_hz: int) -> str:
    """A figure for people; rates in GB/s."""
    if figure.kind != "rate" or isinstance(figure.value, tuple):
        return figure_text(figure, clock_hz)
    giga = float(Fraction(figure.value) * clock_hz / 10**9)
    return f"{round(giga)}GB/s" if giga >= 100 else f"{giga:.3g}GB/s"


def _text(figure: DeviceFigure) -> str:
    """A figure as a device file has it, exact."""
    return format_quantity(figure.value, figure.kind)


class Play:
    """The state of a game: the figures that moved, and the layers timed since."""

    def __init__(
        self,
        workload: Any,
        device: str | Device,
        *,
        vary: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Time the network as it is; ``options`` are those of ``npusim.network``.

        Raises as ``npusim.network`` and ``knobs`` do.
        """
        self.source = device if isinstance(device, str) else device.origin.file
        self.start = load_device(device)
        self.knobs = knobs(self.start, self.source, vary or {})
        self.base = network(workload, device=self.start, **options)
        self.layers = {layer.layer.name: layer for layer in self.base.timed}
        self._begin()
        self._math = options.get("cube_math_type", "keep_dtype")
        self._rules = options.get("rules", "documented")

    def _begin(self) -> None:
        """Set the state before anything moved."""
        self.device = self.start
        self.changed: dict[str, str] = {}
        self.problem = ""
        self.chosen = max(self.base.timed, key=lambda layer: layer.cycles).layer.name
        #: The result of the chosen layer with its timeline, and whether that was drawn.
        self.detail: Result | None = None
        self.drawn = False
        #: Cycles of layers with the tilings of the beginning, None where these do not run here.
        self._same_tilings: dict[str, int | None] = {}
        #: Layers with tilings chosen for the device as it is.
        self._chosen_anew: dict[str, LayerTime] = {}

    def again(self) -> Play:
        """A game that begins as this one began."""
        game = copy(self)
        game._begin()
        return game

    def move(self, path: str, text: str) -> None:
        """Give a figure another value; all layers are timed anew.

        The error of a value that makes no device is ``problem``, and the last one that does stays.
        """
        changed = {**self.changed, path: text}
        of_device = {knob.path: knob.texts[knob.own] for knob in self.knobs}
        changed = {name: value for name, value in changed.items() if of_device.get(name) != value}
        self.problem = ""
        try:
            self.device = self.start.origin.rebuild(self.start, changed)
        except NpusimError as error:
            self.problem = str(error)
            return
        self.changed = changed
        self._same_tilings.clear()
        self._chosen_anew.clear()
        self.detail = None

    def choose(self, layer: str) -> None:
        """Choose the layer whose timeline is kept."""
        self.chosen = layer
        self.detail = None

    @property
    def remaining(self) -> tuple[str, ...]:
        """Layers whose tilings are not chosen yet, the longest first."""
        longest_first = sorted(self.base.timed, key=lambda layer: -layer.cycles)
        names = [layer.layer.name for layer in longest_first]
        return tuple(name for name in names if name not in self._chosen_anew)

    def step(self) -> bool:
        """Do the next piece of work; return False where there was none."""
        remaining = self.remaining
        if self.changed:
            for name in remaining:
                if name not in self._same_tilings:
                    self._same_tilings[name] = self._cycles_with_same_tilings(name)
                    return True
        if remaining:
            self._chosen_anew[remaining[0]] = self._timed(remaining[0], timeline=False)
            return True
        if self.detail is None and self._chosen_anew[self.chosen].result is not None:
            self.detail = self._timed(self.chosen, timeline=True).result
            self.drawn = False
            return True
        return False

    def _cycles_with_same_tilings(self, name: str) -> int | None:
        """Cycles of a layer with the tilings of the beginning; None where they do not run here."""
        result = self.layers[name].result
        if result is None or result.replay is None or self.device.groups != self.start.groups:
            return None
        try:
            us = result.replay.time_us(self.device)
        except NpusimError:
            return None
        return round(us * self.device.clock_hz / 1e6) * self.layers[name].layer.count

    def _timed(self, name: str, *, timeline: bool) -> LayerTime:
        """A layer with tilings chosen for the device as it is."""
        layer = self.layers[name].layer
        runs = LayerRuns(
            options=Options(device=self.device, rules=self._rules, timeline=timeline),
            dtype=self.base.dtype,
            passes=self.base.passes,
            gradients=self.base.gradients,
            cube_math_type=self._math,
        )
        return LayerTime(*runs.attempt((layer, name)), layer=layer)

    @property
    def result(self) -> NetworkResult:
        """The layers whose tilings were chosen since the last move."""
        names = [layer.layer.name for layer in self.base.timed]
        timed = [self._chosen_anew[name] for name in names if name in self._chosen_anew]
        return replace(self.base, device=self.device, timed=tuple(timed))

    def us_of(self, name: str) -> float:
        """Microseconds of all layers of a name, as well as they are known."""
        if name in self._chosen_anew:
            return self.device.time_us(self._chosen_anew[name].cycles)
        cycles = self._same_tilings.get(name)
        if cycles is not None:
            return self.device.time_us(cycles)
        return self.start.time_us(self.layers[name].cycles)

    @property
    def time_us(self) -> float:
        """Microseconds of the network, as well as they are known."""
        return sum(self.us_of(name) for name in self.layers)

    @property
    def failed(self) -> tuple[str, ...]:
        """Layers that cannot run on the device as it is, with the reason."""
        return tuple(
            f"{name}: {layer.error}" for name, layer in self._chosen_anew.items() if layer.error
        )

    def file_text(self, target: Path) -> str:
        """The device as it is, as the text of the device file ``target``."""
        key = free_key(self.start, "PLAY")
        stated = {path: f"{text} (assumed, {key})" for path, text in self.changed.items()}
        about = f"{self.start.description}, with other figures"
        source = f"chosen by hand for {self.base.workload.name}"
        head = Head("npusim play", about, key, source)
        return variant_text(self.source, self.start, target, head, stated)


# -- the page -----------------------------------------------------------------------------------

#: Changes of the time that can be read, and those that are as good as none.
_SEEN = 0.0005
_LITTLE = 0.005


def page(game: Play, document: Document, folder: Path) -> Live:
    """Fill a document with the game; device files are written to ``folder``."""
    acts = Acts(
        move=game.move,
        choose=game.choose,
        save=lambda name: save(game, folder, name),
        step=game.step,
        show=lambda view: show(game, view),
    )
    title = f"{game.base.workload.name} on {game.start.name}"
    return Live(document, title, game.knobs, list(game.layers), game.chosen, acts)


def save(game: Play, folder: Path, name: str) -> str:
    """Write the device file; return what the page says of it."""
    target = folder / name
    if target.suffix != ".yaml" or target.parent != folder or target.exists():
        wrong = "is there already" if target.exists() else "is no name ending in .yaml"
        return f"{name} {wrong}; choose another name"
    try:
        write(target, game.file_text(target))
    except (NpusimError, OSError) as error:
        return str(error)
    return f"wrote {target}; npusim net {game.base.workload.name} --device {target}"


def show(game: Play, view: Live) -> None:
    """Show the game as far as it is: times, sentences, problems, and both drawings."""
    problems = list(game.failed)
    if game.problem:
        problems.insert(0, game.problem)
    result = game.result
    view.tell(_headline(game), _sentences(game, result), problems)
    view.draw(stacks.moved(_bars(game, result)))
    if game.detail is not None and not game.drawn:
        view.draw(timeline.interactive(game.detail), f"{game.chosen}, once")
        game.drawn = True


def _headline(game: Play) -> str:
    """The time as far as it is known, and by how much it moved."""
    about = "about " if game.remaining else ""
    lead = f"{about}{us_text(game.time_us)} \u00b5s"
    if not game.changed:
        return lead
    moved = _moved(game)
    change = f"{moved:+.1%}" if abs(moved) >= _SEEN else "no change"
    return f"{lead}, {change} ({us_text(game.base.time_us)} \u00b5s as it was)"


def _moved(game: Play) -> float:
    """The change of the time, as a share of what it was."""
    return game.time_us / game.base.time_us - 1


def _sentences(game: Play, result: NetworkResult) -> list[str]:
    """The network, how far it is timed or where its time goes, and the area."""
    sentences = [f"{game.base.workload.name}, batch {game.base.batch}, on {game.start.name}"]
    count = len(game.layers)
    remaining = len(game.remaining)
    if remaining:
        sentences.append(f"tilings chosen anew: {count - remaining} of {count} layers")
    elif result.timed:
        split = split_text({"split": result.split, "time_us": result.time_us})
        uj = TOTAL_ENERGY.of(result)
        spent = f", {TOTAL_ENERGY.title} {TOTAL_ENERGY.text(uj)}" if uj is not None else ""
        sentences.append(f"most: {split}{spent}")
        sentences += _launches(game, result)
    return [*sentences, *_area(game)]


def _area(game: Play) -> list[str]:
    """The area of the device as it is, and as it was where that differs."""
    was, now = area_mm2(game.start), area_mm2(game.device)
    if was is None or now is None:
        return []
    change = f", {now / was - 1:+.1%} ({was:,.1f} mm\u00b2 as it was)" if now != was else ""
    return [f"area: {now:,.1f} mm\u00b2{change}"]


def _launches(game: Play, result: NetworkResult) -> list[str]:
    """A note on launches where neither they nor the time moved."""
    before = game.base.split.get(LAUNCHES, 0.0)
    now = result.split.get(LAUNCHES, 0.0)
    if not game.changed or not before:
        return []
    if max(abs(_moved(game)), abs(now / before - 1)) >= _LITTLE:
        return []
    names = ", ".join(game.changed)
    return [f"launches do not depend on {names}; more images make them less of the time"]


def _bars(game: Play, result: NetworkResult) -> list[LayerBar]:
    """The layers; the time of one that is known only in sum is shared out as it was."""
    before = _rows_by_layer(game.base)
    now = _rows_by_layer(result)
    bars = []
    for name, layer in game.layers.items():
        row = now.get(name) or before.get(name)
        parts = row["split"] if row else {}
        share = game.us_of(name) / (sum(parts.values()) or 1)
        scaled = {part: us * share for part, us in parts.items()}
        bars.append(LayerBar(name, game.start.time_us(layer.cycles), scaled))
    return bars


def _rows_by_layer(result: NetworkResult) -> dict[str, dict[str, Any]]:
    """The rows of layers that could be simulated."""
    return {row["layer"]: row for row in result.layer_rows() if not row["error"]}


def serve(game: Play, port: int, folder: Path, ready: Callable[[str], None]) -> None:
    """Serve the game to this computer until an interrupt; every visitor plays alone.

    Raises ``ArgumentError`` where the port is taken.
    """

    def begin(document: Document) -> None:
        page(game.again(), document, folder)

    live.serve(begin, port, ready)
