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
from npusim.machine.device.parts import Figure
from npusim.machine.device.resources import LAUNCHES
from npusim.machine.device.spec import Device
from npusim.machine.device.variant import Head, free_key, variant_text
from npusim.networks.network import RESULTS, LayerTime, NetworkResult, network
from npusim.ops.network_layers import LayerRuns
from npusim.results import Result
from npusim.results.facts.energy import TOTAL_ENERGY
from npusim.results.facts.number_text import us_text
from npusim.results.shown.figures import stacks, timeline
from npusim.results.shown.figures.stacks import LayerBar
from npusim.results.shown.network_words import split_text
from npusim.results.writers.web.charts import live
from npusim.results.writers.web.charts.live import Acts, Knob, Live
from npusim.study.space import make_axis
from npusim.study.subject import DEVICE, NETWORK

if TYPE_CHECKING:
    from bokeh.document import Document


#: Figures that move where nothing else is said, as far as the device has them.
USUAL = (
    *("groups", "clock", "memories.L1.size", "memories.L0C.size", "memories.UB.size"),
    *("l2.size", "l2.read", "main_memory.read", "main_memory.write", "launch.core"),
)

#: Parts of a figure's own value that a slider offers.
_PARTS = tuple(Fraction(n, 8) for n in (2, 4, 6, 8, 10, 12, 16, 24, 32))


def knobs(device: Device, source: str, vary: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The figures of ``vary`` with their values (see ``npusim.sweep``), or the usual ones.

    ``source`` is the device's name or file.

    Raises ``ArgumentError`` for a name that is no figure of the device, ``ConfigError`` for a
    value that is none of it.
    """
    known = figures(device)
    if not vary:
        return tuple(_usual(device, known[p]) for p in USUAL if p in known and known[p].value)
    found = []
    for path, values in vary.items():
        if path not in known:
            raise ArgumentError(f"{path} is no figure of {device.name}{suggest(path, known)}")
        axis = make_axis(path, values, {DEVICE: source, NETWORK: ""})
        own, digest = _text(known[path]), device.digest()
        made = [device.replace(path, text) for text in axis.values]
        same = [place for place, one in enumerate(made) if one.digest() == digest]
        texts = axis.values if same else (own, *axis.values)
        shown = axis.values if same else (figure_text(known[path], device.clock_hz), *axis.values)
        found.append(Knob(path, tuple(shown), tuple(texts), same[0] if same else 0))
    return tuple(found)


def _usual(device: Device, figure: Figure) -> Knob:
    """A figure from a quarter to four times its value, in whole units but for rates.

    Clocks end where the supply does.
    """
    own = figure.value
    assert isinstance(own, int | Fraction)
    values: list[int | Fraction] = [own * part for part in _PARTS]
    if figure.kind != "rate":
        values = [max(1, round(value)) for value in values]
    most = device.silicon.most_clock_hz if device.silicon is not None else None
    if figure.keys == ("clock",) and most is not None:  # beyond it no supply is enough
        values = [value for value in values if value <= most]
    kept = [replace(figure, value=value) for value in dict.fromkeys(values)]
    shown, texts = [_shown(one, device.clock_hz) for one in kept], [_text(one) for one in kept]
    at = [one.value for one in kept].index(own)
    if figure.kind == "rate":  # round ones, but for the device's own
        texts = [*shown[:at], texts[at], *shown[at + 1 :]]
    return Knob(".".join(figure.keys), tuple(shown), tuple(texts), at)


def _shown(figure: Figure, clock_hz: int) -> str:
    """A figure for people; rates in GB/s."""
    if figure.kind != "rate" or isinstance(figure.value, tuple):
        return figure_text(figure, clock_hz)
    giga = float(Fraction(figure.value) * clock_hz / 10**9)
    return f"{round(giga)}GB/s" if giga >= 100 else f"{giga:.3g}GB/s"


def _text(figure: Figure) -> str:
    """A figure as a device file has it, exact."""
    return format_quantity(figure.value, figure.kind)


class Play:
    """The state of a game: which figures moved, and what is known of the layers since."""

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
        self.layers = {one.layer.name: one for one in self.base.timed}
        self._begin()
        self._math = options.get("cube_math_type", "keep_dtype")
        self._rules = options.get("rules", "documented")

    def _begin(self) -> None:
        """What holds before anything moved."""
        self.device = self.start
        self.changed: dict[str, str] = {}
        self.problem = ""
        self.chosen = max(self.base.timed, key=lambda one: one.cycles).layer.name
        #: The result of the chosen layer with its timeline, and whether that was drawn.
        self.detail: Result | None = None
        self.drawn = False
        self._held: dict[str, int | None] = {}  # cycles with tilings held, None where they fail
        self._known: dict[str, LayerTime] = {}

    def again(self) -> Play:
        """A game that begins as this one began."""
        made = copy(self)
        made._begin()
        return made

    def move(self, path: str, text: str) -> None:
        """Give a figure another value; what is known of the layers begins anew.

        A value that makes no device is told in ``problem``, and the last one that does stays.
        """
        changed = {**self.changed, path: text}
        own = {knob.path: knob.texts[knob.own] for knob in self.knobs}
        changed = {name: value for name, value in changed.items() if own.get(name) != value}
        self.problem = ""
        try:
            self.device = self.start.origin.rebuild(self.start, changed)
        except NpusimError as error:
            self.problem = str(error)
            return
        self.changed = changed
        self._held.clear()
        self._known.clear()
        self.detail = None

    def choose(self, layer: str) -> None:
        """The layer whose timeline is kept."""
        self.chosen, self.detail = layer, None

    @property
    def left(self) -> tuple[str, ...]:
        """Layers whose tilings are not chosen yet, the longest first."""
        rest = sorted(self.base.timed, key=lambda one: -one.cycles)
        return tuple(one.layer.name for one in rest if one.layer.name not in self._known)

    def step(self) -> bool:
        """Do the next piece of work; whether there was one."""
        left = self.left
        waiting = [name for name in left if name not in self._held] if self.changed else []
        if waiting:
            self._held[waiting[0]] = self._cycles_held(waiting[0])
        elif left:
            self._known[left[0]] = self._timed(left[0], timeline=False)
        elif self.detail is None and self._known[self.chosen].result is not None:
            self.detail, self.drawn = self._timed(self.chosen, timeline=True).result, False
        else:
            return False
        return True

    def _cycles_held(self, name: str) -> int | None:
        """Cycles of a layer with its tilings held; None where they do not run on the device."""
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
        timed = (self._known.get(one.layer.name) for one in self.base.timed)
        return replace(
            self.base, device=self.device, timed=tuple(one for one in timed if one is not None)
        )

    def us_of(self, name: str) -> float:
        """Microseconds of all layers of a name, as well as they are known."""
        if name in self._known:
            return self.device.time_us(self._known[name].cycles)
        held = self._held.get(name)
        if held is not None:
            return self.device.time_us(held)
        return self.start.time_us(self.layers[name].cycles)

    @property
    def time_us(self) -> float:
        """Microseconds of the network, as well as they are known."""
        return sum(self.us_of(name) for name in self.layers)

    @property
    def failed(self) -> tuple[str, ...]:
        """Layers that cannot run on the device as it is, with the reason."""
        return tuple(f"{n}: {one.error}" for n, one in self._known.items() if one.error)

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
_SEEN, _LITTLE = 0.0005, 0.005


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
    """Write the device file; what is told about it."""
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
    """What is known now."""
    now, left, was = game.result, len(game.left), game.base.time_us
    lead = f"{'about ' if left else ''}{us_text(game.time_us)} \u00b5s"
    moved = game.time_us / was - 1
    if game.changed:
        change = f"{moved:+.1%}" if abs(moved) >= _SEEN else "no change"
        lead += f", {change} ({us_text(was)} \u00b5s as it was)"
    told = [f"{game.base.workload.name}, batch {game.base.batch}, on {game.start.name}"]
    if left:
        told.append(f"tilings chosen anew: {len(game.layers) - left} of {len(game.layers)} layers")
    elif now.timed:
        uj = TOTAL_ENERGY.of(now)
        spent = f", {TOTAL_ENERGY.title} {TOTAL_ENERGY.text(uj)}" if uj is not None else ""
        told.append(f"most: {split_text({'split': now.split, 'time_us': now.time_us})}{spent}")
        told += _launches(game, now, moved)
    told += _area(game)
    view.tell(lead, told, [*([game.problem] if game.problem else []), *game.failed])
    view.draw(stacks.moved(_bars(game, now)))
    if game.detail is not None and not game.drawn:
        view.draw(timeline.interactive(game.detail), f"{game.chosen}, once")
        game.drawn = True


def _area(game: Play) -> list[str]:
    """The area of the device as it is, and as it was where that differs."""
    was, now = area_mm2(game.start), area_mm2(game.device)
    if was is None or now is None:
        return []
    change = f", {now / was - 1:+.1%} ({was:,.1f} mm\u00b2 as it was)" if now != was else ""
    return [f"area: {now:,.1f} mm\u00b2{change}"]


def _launches(game: Play, now: NetworkResult, moved: float) -> list[str]:
    """Where nothing moved, what launches, which did not either, have to do with it."""
    was, are = (one.split.get(LAUNCHES, 0.0) for one in (game.base, now))
    if not game.changed or not was or max(abs(moved), abs(are / was - 1)) >= _LITTLE:
        return []
    names = ", ".join(game.changed)
    return [f"launches do not depend on {names}; more images make them less of the time"]


def _bars(game: Play, now: NetworkResult) -> list[LayerBar]:
    """The layers; what is known only in sum is shared out as it was."""
    old, new = (
        {row["layer"]: row for row in one.layer_rows() if not row["error"]}
        for one in (game.base, now)
    )
    found = []
    for name in game.layers:
        row = new.get(name) or old.get(name)
        parts = {part: row[f"{part}_us"] or 0 for part in (*RESULTS, "other")} if row else {}
        share = game.us_of(name) / (sum(parts.values()) or 1)
        before = game.start.time_us(game.layers[name].cycles)
        found.append(LayerBar(name, before, {part: us * share for part, us in parts.items()}))
    return found


def serve(game: Play, port: int, folder: Path, ready: Callable[[str], None]) -> None:
    """Serve the game to this computer until an interrupt; every visitor plays alone.

    Raises ``ArgumentError`` where the port is taken.
    """

    def begin(document: Document) -> None:
        page(game.again(), document, folder)

    live.serve(begin, port, ready)
