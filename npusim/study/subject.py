"""The subject of a study: the backward pass of a network, or one call of an operator.

A *setting* is a mapping from names to texts, as on a command line. Names are ``device``, figures
of the device (``memories.L1.size``), and the options of what is measured (``batch``, ``cin``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from msgspec import Struct

from npusim.base.digests import content_of, limits
from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError, told_as
from npusim.base.yamltree import suggest
from npusim.call.spec import Operand, Spec
from npusim.call.tilings.words import parse_tiling
from npusim.machine.device.catalog import load_device, read_cores
from npusim.machine.device.config import figures
from npusim.machine.device.edit import part_name
from npusim.machine.device.resources import by_word
from npusim.machine.device.spec import Device
from npusim.networks.network import RESULTS, NetworkResult, network
from npusim.networks.options import STEP_OPTIONS, TRAINING_OPTIONS, NetworkOption
from npusim.ops import CARDS
from npusim.ops.card import Card, Stated
from npusim.ops.options import integer, word
from npusim.results import Result
from npusim.results.facts.point import Point, measured
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


#: Reads the text of an option, or raises ``ArgumentError``.
Reader = Callable[[str], Any]

#: Readers of the options that operators and networks share.
_SHARED: Mapping[str, Reader] = {
    "cores": read_cores,
    "rules": str,
    "launch": str,
    "start": str,
    "engine": str,
    "deterministic": _flag,
    "tiling": str,
}

#: The options of a network by name.
_NETWORK_OPTIONS = {option.name: option for option in (*TRAINING_OPTIONS, *STEP_OPTIONS)}


def _network_reader(option: NetworkOption) -> Reader:
    """The reader of a network's option as a study states it."""
    if option.choices:
        return word(*option.choices)
    if option.read is None:
        return _flag
    return partial(_read_joined, option.separator, option.read)


def _read_joined(separator: str, read: Reader, text: str) -> Any:
    """The value of a text with ``separator`` between names, where commands have commas."""
    return read(text.replace(separator, ",") if separator else text)


def option_names(setting: Setting) -> list[str]:
    """The options that what ``setting`` measures takes, besides the device and its figures."""
    if NETWORK in setting:
        return [NETWORK, *_NETWORK_OPTIONS, *_SHARED]
    return [OPERATOR, "dtype", *_card_options(setting), *_SHARED]


def _card_options(setting: Setting) -> dict[str, Reader | None]:
    """Readers of the operator's own options, by name.

    A layer has its own groups, so that beside one ``groups`` are those of the device.
    """
    taken = ("groups",) if "layer" in setting else ()
    options = card_of(setting).options
    return {option.name: option.read for option in options if option.name not in taken}


def card_of(setting: Setting) -> Card[Any]:
    """The card of the operator that ``setting`` names."""
    name = setting[OPERATOR]
    if name not in CARDS:
        raise ArgumentError(f"unknown operator {name!r}{suggest(name, CARDS)}")
    return CARDS[name]


class Split(Struct, frozen=True, dict=True):
    """A setting taken apart and read: values have the content of files, and no path.

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
        device = setting.get(DEVICE)
        if device is None and NETWORK not in setting:
            device = card_of(setting).device
        if not device:
            raise ArgumentError("the device is missing; `npusim devices` lists the names")
        subject = NETWORK if NETWORK in setting else setting[OPERATOR]

        def once(key: tuple[str, ...], read: Callable[[], Any]) -> Any:
            if key not in known:
                known[key] = read()
            return known[key]

        values = {}
        for name in options:
            if name in setting:
                key = (subject, name, setting[name], *_read_with(name, setting))
                values[name] = once(key, partial(_read, name, setting))
        return cls(
            base=once((DEVICE, device), partial(load_device, device)),
            changed={
                name: text
                for name, text in setting.items()
                if name not in options and name != DEVICE
            },
            options=values,
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
        """All that its result depends on, as one text; errors name the device, so its name counts.

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
    parts = Split.of(setting, {})
    if parts.changed:
        paths = figures(parts.base)
        words = by_word(parts.base, paths)
        resources = {word.lower() for word in words}
        for path, text in parts.changed.items():
            is_figure = path in paths or path.lower() in resources
            if not is_figure and not _is_edit(path, text):
                raise _unknown(path, setting, parts.base.name, [*paths, *words])
    _ = parts.device  # a figure that cannot be is told at once
    return parts


def _unknown(path: str, setting: Setting, base: str, figure_names: list[str]) -> ArgumentError:
    """The error for a name that is neither an option nor a figure of the device ``base``."""
    what = "npusim net" if NETWORK in setting else setting[OPERATOR]
    device = setting.get(DEVICE, base)
    options = option_names(setting)
    listed = f"options are {', '.join(options)}; `npusim devices show {device}` lists figures"
    way_out = suggest(path, [*options, DEVICE, *figure_names], listed)
    return ArgumentError(f"{path} is no option of {what} and no figure of {device}{way_out}")


def _read_with(name: str, setting: Setting) -> tuple[str, ...]:
    """Other texts that the value of an option depends on: a network has the sizes of a batch."""
    return (setting.get("batch", "1"),) if name == NETWORK else ()


def _is_edit(path: str, text: str) -> bool:
    """True where a part of the device is dropped, left, or put in."""
    return part_name(path) is not None and (text in ("yes", "no") or text.startswith("{"))


def _read(name: str, setting: Setting) -> Any:
    """The value of an option; raises ``ArgumentError`` that begins with its name."""
    if name == NETWORK:
        with told_as(ArgumentError, "batch: ", ArgumentError):
            batch = integer(1)(setting.get("batch", "1"))
        read: Reader = partial(read_network, batch=batch)
    elif NETWORK in setting:
        option = _NETWORK_OPTIONS.get(name)
        read = _network_reader(option) if option is not None else _SHARED[name]
    else:
        read = _operator_reader(name, card_of(setting), setting)
    with told_as(ArgumentError, f"{name}: ", ArgumentError):
        return read(setting[name])


def _operator_reader(name: str, card: Card[Any], setting: Setting) -> Reader:
    """The reader of an option of an operator's call."""
    own_options = _card_options(setting)
    if name in own_options:
        return own_options[name] or _flag
    if name == "tiling":
        kinds = {kernel.name: tiling for kernel, tiling in card.tilings.items()}
        return partial(parse_tiling, kinds=kinds)
    readers: dict[str, Reader] = {OPERATOR: str, "dtype": dtype, **_SHARED}
    return readers[name]


def measure(parts: Split) -> Row:
    """Simulate one setting: times, cycles and what decided them.

    ``tilings`` maps layers and kernels to the tile sizes that ran. Raises what the call raises.
    """
    return _network(parts) if NETWORK in parts.options else _call(parts)


def _options(parts: Split) -> dict[str, Any]:
    """The keywords that operators and networks share."""
    shared = {name: value for name, value in parts.options.items() if name in _SHARED}
    return {**shared, "device": parts.device, "timeline": False}


def _network(parts: Split) -> Row:
    """A network layer by layer, or a whole step: its times, and what shortens it."""
    keywords = {**_options(parts), "jobs": 1}  # points are shared among processes, not their parts
    del keywords["timeline"]
    for name, value in parts.options.items():
        if name in _NETWORK_OPTIONS:
            keywords[_NETWORK_OPTIONS[name].argument] = value
    workload = parts.options[NETWORK]
    result: Any
    if "mode" in keywords:
        from npusim.networks.run.step import step  # noqa: PLC0415 - it takes time to import

        result = step(workload, **keywords)
        what = "operations"
        timed = [(operation.name, operation.timed) for operation in result.launched]
        times = _of_step(result)
    else:
        result = network(workload, **keywords)
        what = "layers"
        timed = [(layer.layer.name, layer) for layer in result.timed]
        times = _of_layers(result)
    if result.failed:
        failures = ((name, part.error) for name, part in timed if part.result is None)
        name, error = next(failures)
        raise ArgumentError(
            f"{len(result.failed)} of {len(timed)} {what} cannot be simulated; {name}: {error}"
        )
    bottleneck, bottleneck_us = next(iter(result.split.items()))
    tilings = {}
    for name, part in timed:
        for kernel, text in _tilings(part.result).items():
            tilings[f"{name}/{kernel}"] = text
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
        "bottleneck_saves": bottleneck_us / result.time_us / 2,
        "tilings": tilings,
    }


def _of_layers(result: NetworkResult) -> Row:
    """Times of launches, layouts and each result, of all layers."""
    rows = result.layer_rows()
    columns = [f"{part}_us" for part in (*RESULTS, "other", "launch", "layout")]
    return {column: sum(row["count"] * row[column] for row in rows) for column in columns}


def _of_step(result: Any) -> Row:
    """Times of phases, launches and conversions, and bytes: in memory, and to and from it."""
    times = Counter[str]()
    rows = result.kind_rows()
    for row in rows:
        times[f"{row['phase']}_us"] += row["us"]
    return {
        **times,
        "launch_us": sum(row["launch_us"] for row in rows),
        "layout_us": sum(conversion.us for conversion in result.conversions),
        "kept_bytes": result.kept_bytes,
        "peak_bytes": result.peak_bytes,
        "fetched_bytes": result.fetched_bytes,
        "written_back_bytes": result.written_back_bytes,
    }


def _call(parts: Split) -> Row:
    """One call of an operator: its time, and what shortens it."""
    card = card_of(parts.options)
    stated = Stated(operator=card.name, options=parts.options, arrays={}, files={})
    kind = parts.options.get("dtype") or card.dtypes[0]
    if kind not in card.dtypes:
        names = " or ".join(dtype.name for dtype in card.dtypes)
        raise ArgumentError(f"dtype is {kind}; {card.name} takes {names}")
    problem = card.problem(stated)
    operands: dict[str, Operand] = {}
    for operand in card.inputs:
        if operand.wanted(problem):
            shapes = list(operand.forms(problem).values())
            operands[operand.name] = Spec(shapes[-1], operand.dtype(kind))
    options = {name: value for name, value in _options(parts).items() if name not in card.without}
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
    tilings: dict[str, str] = {}
    for run in result.runs:
        before = sum(name.partition(" ")[0] == run.name for name in tilings)
        name = f"{run.name} {before + 1}" if before else run.name
        tilings[name] = run.tiling
    return {name: text for name, text in tilings.items() if text}
