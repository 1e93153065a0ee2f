"""The page of a game with a design: what sliders do, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.base.errors import NpusimError
from npusim.base.written import write
from npusim.networks.network import RESULTS, NetworkResult
from npusim.results.figures import stacks, timeline
from npusim.results.figures.stacks import LayerBar
from npusim.results.lines import rate_text, split_text, us_text
from npusim.results.network_rows import LAUNCHES
from npusim.results.web.charts import live
from npusim.results.web.charts.live import Acts, Live, Slide
from npusim.study.play import Play

if TYPE_CHECKING:
    from bokeh.document import Document


#: Changes of the time that can be read, and those that are as good as none.
_SEEN, _LITTLE = 0.0005, 0.005


def page(game: Play, document: Document, folder: Path) -> Live:
    """Fill a document with the game; device files are written to ``folder``."""
    texts = {knob.path: knob.texts for knob in game.knobs}
    acts = Acts(
        move=lambda path, at: game.move(path, texts[path][at]),
        choose=game.choose,
        save=lambda name: save(game, folder, name),
        step=game.step,
        show=lambda view: show(game, view),
    )
    slides = [Slide(knob.path, knob.shown, knob.own) for knob in game.knobs]
    title = f"{game.base.workload.name} on {game.start.name}"
    return Live(document, title, slides, list(game.layers), game.chosen, acts)


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
        energy = now.energy_uj
        spent = f", energy {rate_text(energy / 1e3)} mJ" if energy is not None else ""
        told.append(f"most: {split_text({'split': now.split, 'time_us': now.time_us})}{spent}")
        told += _launches(game, now, moved)
    view.tell(lead, told, [*([game.problem] if game.problem else []), *game.failed])
    view.draw(stacks.moved(_bars(game, now)))
    if game.detail is not None and not game.drawn:
        view.draw(timeline.interactive(game.detail), f"{game.chosen}, once")
        game.drawn = True


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
