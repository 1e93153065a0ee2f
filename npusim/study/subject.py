"""What a study measures: the backward pass of a network, or one call of an operator.

A *setting* is a mapping from names to texts, as on a command line. Names are ``device``, figures
of the device (``memories.L1.size``), and the options of what is measured (``batch``, ``cin``).

Measured points on disk, by content: a study that was stopped computes what is missing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.digests import content_of, limits, program
from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError, told_as
from npusim.base.yamltree import suggest
from npusim.call.spec import Spec
from npusim.call.tilings.words import parse_tiling
from npusim.machine.device.catalog import load_device, read_cores
from npusim.machine.device.config import figures
from npusim.machine.device.edit import part_name
from npusim.machine.device.resources import by_word
from npusim.machine.device.spec import Device
from npusim.networks.network import PASSES, RESULTS, NetworkResult, network
from npusim.ops import CARDS
from npusim.ops.arguments import integer, read_cube_math_type, word
from npusim.ops.card import Stated
from npusim.results import Result
from npusim.results.facts.point import Point, measured
from npusim.reuse.store import Store
from npusim.workloads import read_network

Setting = Mapping[str, str]
#: Columns of a measured point.
Row = dict[str, Any]

#: Names of what is measured, of which a setting has one.
NETWORK, OPERATOR, DEVICE = "network", "operator", "device"


def _flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ArgumentError(f"expected yes or no, got {text!r}")
    return text == "yes"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.replace("+", ",").split(","))


#: Readers of the options that operators and networks share, and of those of a network.
_SHARED: Mapping[str, Callable[[str], Any]] = {
    "cores": read_cores,
    "rules": str,
    "launch": str,
    "start": str,
    "engine": str,
    "deterministic": _flag,
    "tiling": str,
}
_NET: Mapping[str, Callable[[str], Any]] = {
    "batch": integer(1),
    "dtype": dtype,
    "pass": word(*PASSES),
    "gradients": _names,
    "cube_math_type": read_cube_math_type,
    "every_input": _flag,
    "mode": word("eager", "graph"),
    "layouts": str,
    "fusions": lambda text: text.replace("&", ","),
    "optimizer": str,
    "normalisation": dtype,
    "cards": integer(1),
}


def option_names(setting: Setting) -> list[str]:
    """The options that what ``setting`` measures takes, besides the device and its figures."""
    if NETWORK in setting:
        return [NETWORK, *_NET, *_SHARED]
    return [OPERATOR, "dtype", *_card_options(setting), *_SHARED]


def _card_options(setting: Setting) -> dict[str, Callable[[str], Any] | None]:
    """Readers of the operator's own options, by name.

    A layer has its own groups, so that beside one ``groups`` are those of the device.
    """
    taken = ("groups",) if "layer" in setting else ()
    options = card_of(setting).options
    return {option.name: option.read for option in options if option.name not in taken}


def card_of(setting: Setting) -> Any:
    """The card of the operator that ``setting`` names."""
    name = setting[OPERATOR]
    if name not in CARDS:
        raise ArgumentError(f"unknown operator {name!r}{suggest(name, CARDS)}")
    return CARDS[name]


class Split(Struct, frozen=True, dict=True):
    """A setting taken apart and read: what the files hold that it names, and no path.

    ``changed`` are texts of the figures that differ from those of the device ``base``.
    """

    base: Device
    changed: Mapping[str, str]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, setting: Setting, known: Known) -> Split:
        """A setting, each text of its options read once; its figures are looked at later.

        Raises as ``split`` does.
        """
        options = option_names(setting)
        name = setting.get(DEVICE) or (None if NETWORK in setting else card_of(setting).device)
        if name is None:
            raise ArgumentError("the device is missing; `npusim devices` lists the names")
        what = (NETWORK,) if NETWORK in setting else (setting[OPERATOR],)

        def once(key: tuple[str, ...], value: Callable[[], Any]) -> Any:
            if key not in known:
                known[key] = value()
            return known[key]

        return cls(
            base=once((DEVICE, name), partial(load_device, name)),
            changed={k: v for k, v in setting.items() if k not in options and k != DEVICE},
            options={
                k: once((*what, k, setting[k], *_read_with(k, setting)), partial(_read, k, setting))
                for k in options
                if k in setting
            },
        )

    @cached_property
    def device(self) -> Device:
        """The device with its figures; raises as ``load_device`` does."""
        return load_device(self.base, self.changed)

    def describe(self) -> str:
        """The point in errors: its device, the figures that differ there, and its options."""
        named = {name: getattr(value, "name", value) for name, value in self.options.items()}
        settings = {DEVICE: self.base.name, **self.changed, **named}
        return f"point {', '.join(f'{name}={value}' for name, value in settings.items())}"

    @property
    def content(self) -> str:
        """All that its result depends on, as one text: what a device is called is said in errors.

        The documented limits are those of the device's product and its relatives.
        """
        base = f"{self.base.digest()} {self.base.name!r} {self.base.product!r} {limits()}"
        return f"{base} {sorted(self.changed.items())} {content_of(tuple(self.options.items()))}"


#: Values by what reads them and their texts, each read once for all points of a study.
Known = dict[tuple[str, ...], Any]


def split(setting: Setting) -> Split:
    """The device and the options of a setting, both read.

    Raises ``ArgumentError`` or ``ConfigError`` for a name that is neither an option nor a figure,
    for a text that cannot be read, and where the device is missing.
    """
    made = Split.of(setting, {})
    for path, text in made.changed.items():
        known = figures(made.base)
        words = by_word(made.base, known)
        if (
            path not in known
            and path.lower() not in map(str.lower, words)
            and not _is_edit(path, text)
        ):
            what = "npusim net" if NETWORK in setting else setting[OPERATOR]
            name, options = setting.get(DEVICE, made.base.name), option_names(setting)
            listed = f"options are {', '.join(options)}; `npusim devices show {name}` lists figures"
            way_out = suggest(path, [*options, DEVICE, *known, *words], listed)
            raise ArgumentError(f"{path} is no option of {what} and no figure of {name}{way_out}")
    _ = made.device  # a figure that cannot be is told at once
    return made


def _read_with(name: str, setting: Setting) -> tuple[str, ...]:
    """What else the value of an option depends on: a network has the sizes of a batch."""
    return (setting.get("batch", "1"),) if name == NETWORK else ()


def _is_edit(path: str, text: str) -> bool:
    """Whether a part of the device is dropped, left, or put in."""
    return part_name(path) is not None and (text in ("yes", "no") or text.startswith("{"))


def _read(name: str, setting: Setting) -> Any:
    readers: dict[str, Callable[[str], Any] | None] = dict(_SHARED)
    if NETWORK in setting:
        with told_as(ArgumentError, "batch: ", ArgumentError):
            batch = integer(1)(setting.get("batch", "1"))
        readers |= {**_NET, NETWORK: partial(read_network, batch=batch)}
    else:
        kinds = {kernel.name: made for kernel, made in card_of(setting).tilings.items()}
        readers |= {OPERATOR: str, "dtype": dtype, "tiling": partial(parse_tiling, kinds=kinds)}
        readers |= _card_options(setting)
    with told_as(ArgumentError, f"{name}: ", ArgumentError):
        return (readers[name] or _flag)(setting[name])


def measure(parts: Split) -> Row:
    """Simulate one setting: times, cycles and what decided them.

    ``tilings`` maps layers and kernels to the tile sizes that ran. Raises what the call raises.
    """
    return _network(parts) if NETWORK in parts.options else _call(parts)


def _options(parts: Split) -> dict[str, Any]:
    shared = {k: v for k, v in parts.options.items() if k in _SHARED}
    return {**shared, "device": parts.device, "timeline": False}


def _network(parts: Split) -> Row:
    """A network layer by layer, or a whole step: its times, and what shortens it."""
    options = _options(parts)
    del options["timeline"]
    own = {"passes" if k == "pass" else k: v for k, v in parts.options.items() if k in _NET}
    result: Any
    if "mode" in own:
        from npusim.networks.run.step import step  # noqa: PLC0415 - it takes time to import

        result = step(parts.options[NETWORK], **own, **options)
        timed, what = [(one.name, one.timed) for one in result.launched], "operations"
    else:
        result = network(parts.options[NETWORK], **own, **options)
        timed, what = [(one.layer.name, one) for one in result.timed], "layers"
    if result.failed:
        name, error = next((name, one.error) for name, one in timed if one.result is None)
        raise ArgumentError(
            f"{len(result.failed)} of {len(timed)} {what} cannot be simulated; {name}: {error}"
        )
    bottleneck, most = next(iter(result.split.items()))
    times = _of_step(result) if "mode" in own else _of_layers(result)
    point = Point(
        device=parts.device,
        spent=result.spent,
        time_us=result.time_us,
        launch_us=times["launch_us"],
        cycles=result.cycles,
    )
    return {
        **times,
        **measured(point),
        "bottleneck": bottleneck,
        "bottleneck_saves": most / result.time_us / 2,
        "tilings": {
            f"{name}/{kernel}": text
            for name, one in timed
            for kernel, text in _tilings(one.result).items()
        },
    }


def _of_layers(result: NetworkResult) -> Row:
    """Times of launches, layouts and each result, of all layers."""
    rows, names = result.layer_rows(), (*RESULTS, "other", "launch", "layout")
    return {f"{name}_us": sum(row["count"] * row[f"{name}_us"] for row in rows) for name in names}


def _of_step(result: Any) -> Row:
    """Times of phases, launches and conversions, and what is kept."""
    times, rows = Counter[str](), result.kind_rows()
    for row in rows:
        times[f"{row['phase']}_us"] += row["us"]
    return {
        **times,
        "launch_us": sum(row["launch_us"] for row in rows),
        "layout_us": sum(one.us for one in result.conversions),
        "kept_bytes": result.kept_bytes,
    }


def _call(parts: Split) -> Row:
    card = card_of(parts.options)
    stated = Stated(operator=card.name, options=parts.options, arrays={}, files={})
    kind = parts.options.get("dtype") or card.dtypes[0]
    if kind not in card.dtypes:
        names = " or ".join(one.name for one in card.dtypes)
        raise ArgumentError(f"dtype is {kind}; {card.name} takes {names}")
    problem = card.problem(stated)
    operands = {
        one.name: Spec([*one.forms(problem).values()][-1], one.dtype(kind))
        for one in card.inputs
        if one.wanted(problem)
    }
    options = {k: v for k, v in _options(parts).items() if k not in card.without}
    result: Result = card.call(problem, operands, options)
    point = Point(
        device=parts.device,
        spent=result.spent,
        time_us=result.time_us,
        launch_us=parts.device.time_us(sum(run.launch_cycles for run in result.runs)),
        cycles=result.cycles,
    )
    return {
        **measured(point),
        "bottleneck": result.bottleneck,
        "bottleneck_saves": result.verdict.saves if result.verdict is not None else None,
        "tilings": _tilings(result),
    }


def _tilings(result: Result) -> dict[str, str]:
    """Tile sizes by kernel; of kernels of one name the later ones are numbered."""
    found: dict[str, str] = {}
    for run in result.runs:
        same = sum(name.partition(" ")[0] == run.name for name in found)
        found[f"{run.name} {same + 1}" if same else run.name] = run.tiling
    return {name: text for name, text in found.items() if text}


# -- measured points on disk, by content: a study that was stoppe -------------------------------


class Measured(NamedTuple):
    """A point that was measured: its row, or why there is none.

    What is ``passing`` may work another time and is not kept; figures and limits refuse for ever.
    """

    row: dict[str, Any]
    error: str = ""
    passing: bool = False


def known_of(store: Store, key: str) -> Measured | None:
    """What a store knows of a point."""
    found = store.get(key)
    return None if found is None else Measured(*found)


def keep(store: Store, points: Iterable[tuple[str, Measured]]) -> None:
    """Keep points, all of them or none; failures that pass are left out."""
    store.put((key, one) for key, one in points if not one.passing)


def runs_beside(file: str | Path | None) -> str | Path | None:
    """The file of runs of kernels that goes with one of points: beside it, in the same cache."""
    if file is None or file == "":
        return file
    return Path(file).with_suffix(f".runs{Path(file).suffix}")


def key_of(content: str) -> str:
    """The key of a point: its content, and the program that measures it."""
    return hashlib.sha256(f"{program()}\0{content}".encode()).hexdigest()
