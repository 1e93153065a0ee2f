"""``npusim devices``: what ships, and every figure of one device with its source."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from npusim.base.quantities import format_frequency, format_size
from npusim.cli.files import print_json, print_table
from npusim.cli.parser import Parser
from npusim.cli.shared import add_set_option, add_show_command, changed_figures
from npusim.machine.device.area import area_mm2, logic_mm2, static_watt
from npusim.machine.device.catalog import devices, load_device, ranges
from npusim.machine.device.config import describe, figure_text
from npusim.machine.device.config import figures as known_figures
from npusim.machine.device.resources import by_word
from npusim.machine.device.scaling import logic_growth, sized_memories, supply
from npusim.machine.device.spec import Device
from npusim.results.facts.fact import row_of
from npusim.results.facts.other_chips import OTHER_CHIPS, figures_of_others
from npusim.results.writers import text_layout as lines

#: Of the rates of a device: its vendor's order, which is not that of tilings.
_BLOCKS = (
    "A rate is the block m x k x n that is multiplied at once, in the order of the vendors' "
    "documents; tilings and reports have m x n x k."
)


#: Figures of other chips that are named.
_FIRST = 3

#: Above the words for the figures of a resource.
_TOGETHER = (
    "SEVERAL TOGETHER, each a resource that is twice as fast with --set WORD=x2, or as fast as "
    "another factor says"
)


def add_arguments(parser: Parser) -> None:
    """Declare ``devices`` and ``devices show``."""
    about = "show every figure of a device with its range, confidence and source"
    show = add_show_command(parser, about, "a device's name, or a file ending in .yaml")
    add_set_option(
        show, "change a figure first, such as memories.L1.size=2MiB; repeatable (default: none)"
    )


def execute(arguments: argparse.Namespace) -> None:
    """Print the table of devices or the figures of one."""
    if arguments.action == "show":
        _show(arguments)
    else:
        _list(arguments.json)


def _list(as_json: bool) -> None:
    loaded = [load_device(name) for name in devices()]
    if as_json:
        print_json([_facts(device) for device in loaded])
        return
    head = ("name", "description", "groups x cores", "clock", "TFLOPS", "L2", "memory")
    print_table(head, [_cells(device) for device in loaded], 3)


def _peak_tflops(device: Device) -> float | None:
    """Multiply-adds of all matrix units counted as two operations, in 1e12 per second."""
    unit, role = (device.cube, "cube") if device.cube is not None else (device.gemm, "dsp")
    if unit is None or "fp16" not in unit.rates:
        return None
    cores = device.groups * device.core_kind(role).per_group
    return float(2 * unit.macs_per_cycle("fp16") * cores * device.clock_hz) / 1e12


def _facts(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "description": device.description,
        "groups": device.groups,
        "cores_per_group": {kind.name: kind.per_group for kind in device.cores.values()},
        "clock_hz": device.clock_hz,
        "peak_fp16_tflops": _peak_tflops(device),
        "l2_bytes": device.l2.size_bytes if device.l2 is not None else 0,
        "memory_bytes": device.main_memory.size_bytes,
        "digest": device.digest(),
    }


def _cells(device: Device) -> tuple[str, ...]:
    kinds = " + ".join(f"{kind.per_group} {kind.name}" for kind in device.cores.values())
    peak = _peak_tflops(device)
    return (
        device.name,
        device.description.partition(",")[0],  # the rest of it is in other columns
        f"{device.groups} x {kinds}",
        format_frequency(device.clock_hz),
        "-" if peak is None else f"{peak:.4g}",
        "-" if device.l2 is None else format_size(device.l2.size_bytes),
        format_size(device.main_memory.size_bytes),
    )


def _range(value: str, low: str, high: str) -> str:
    """Both ends, in the unit of the value where all three have one."""
    ends = [text.partition(" ")[0] for text in (low, high)]
    numbers = []
    units = set()
    for text in (value.partition(" ")[0], *ends):
        match = re.match(r"[\d.]+", text)
        if match is None:
            return f"{low}..{high}"
        numbers.append(match[0])
        units.add(text[match.end() :])
    if len(units) > 1:
        return f"{low}..{high}"
    return "..".join(numbers[1:])


def _key(device: Device, path: str) -> str:
    """The key of a figure's source, and in whose file it stands where that is another."""
    provenance = device.provenance[path]
    if provenance.inherited:
        return f"{provenance.source} of {provenance.inherited}"
    return provenance.source


def _costs(device: Device) -> dict[str, Any] | None:
    """Area and power, and by how much they differ from what is stated for the reference.

    None where the file has no ``silicon``.
    """
    law = device.silicon
    if law is None:
        return None
    ratio = supply(device)
    return {
        "reference_clock_hz": law.clock_hz or None,
        "most_clock_hz": law.most_clock_hz,
        "supply_v": float(law.supply_volt(device.clock_hz)) if law.has_supply else None,
        "dynamic_times": ratio**2,
        "static_times": ratio,
        "logic_times": logic_growth(device),
        "area_mm2": area_mm2(device),
        "logic_mm2": logic_mm2(device),
        "static_watt": static_watt(device),
        "memories": [
            {
                "memory": memory.name,
                "reference_bytes": memory.reference_bytes,
                "size_bytes": memory.size_bytes,
                "byte_times": memory.growth,
            }
            for memory in sized_memories(device).values()
        ],
    }


def _about_costs(device: Device) -> Iterator[str]:
    """The same for people: the laws of clock and size, and what they give here."""
    law, costs = device.silicon, _costs(device)
    if law is None or costs is None:
        return
    yield ""
    yield "AREA AND ENERGY (laws of clock and size: see Explorations)"
    area = f"{costs['area_mm2']:.1f} mm2, of which multipliers and wires {costs['logic_mm2']:.1f}"
    yield from lines.fact("area", f"{area}; {costs['static_watt']:.1f} W while it waits")
    if law.has_supply:
        text = (
            f"{float(law.voltage):g} V at {format_frequency(law.clock_hz)}, for which energies "
            f"and areas are stated; here {costs['supply_v']:.3g} V"
        )
        if law.most_clock_hz is not None:
            limit = f"{float(law.voltage_limit):g} V, {law.most_clock_hz / 1e9:.3g} GHz"
            text = f"{text}; at most {limit}"
        yield from lines.fact("supply", text)
        times = (
            f"dynamic energy {costs['dynamic_times']:.3f}, static power "
            f"{costs['static_times']:.3f}, area of multipliers and wires "
            f"{costs['logic_times']:.3f} times what is stated"
        )
        yield from lines.fact("this clock", times)
    memories = [
        (
            memory["memory"],
            format_size(memory["reference_bytes"]),
            format_size(memory["size_bytes"]),
            f"{memory['byte_times']:.3f}",
        )
        for memory in costs["memories"]
    ]
    if memories:
        heads = ("memory", "stated for", "here", "a byte takes (times)")
        yield from lines.columns([heads, *memories])


def _show(arguments: argparse.Namespace) -> None:
    """Print every figure of a device, as JSON or as tables."""
    device = load_device(arguments.name, changed_figures(arguments))
    if arguments.json:
        print_json(_object(device))
        return
    about = f"{device.name}: {device.description} (digest {device.digest()})"
    print("\n".join((*lines.wrap(about), "")))
    _print_figures(device)
    for line in _about_costs(device):
        print(line)
    _print_other_chips(device)
    print("\n".join(("", *lines.wrap(_TOGETHER))))
    for word, paths in by_word(device, known_figures(device)).items():
        if len(paths) > 1:
            print("\n".join(lines.wrap(f"{word}: {', '.join(paths)}", later="  ")))
    _print_sources(device)
    if any(".rates." in name for name in device.provenance):
        print("\n".join(("", *lines.wrap(_BLOCKS))))


def _ends(device: Device) -> dict[str, tuple[str, ...]]:
    """Both ends of the ranges of figures, as texts by path."""
    return {
        path: tuple(figure_text(end, device.clock_hz) for end in pair)
        for path, pair in ranges(device).items()
    }


def _object(device: Device) -> dict[str, Any]:
    """A device as plain values."""
    ends = _ends(device)
    figures = [
        {
            "path": path,
            "value": value,
            "confidence": confidence,
            "source": source,
            "range": ends.get(path),
        }
        for path, value, confidence, source in describe(device)
    ]
    together = by_word(device, known_figures(device))
    return {
        **_facts(device),
        **row_of([OTHER_CHIPS], device),
        "costs": _costs(device),
        "figures": figures,
        "together": {word: list(paths) for word, paths in together.items()},
    }


def _print_figures(device: Device) -> None:
    """Print the table of figures with their ranges and sources."""
    ends = _ends(device)
    cells = []
    for path, value, confidence, _source in describe(device):
        value_text = value
        if path in ends:
            low, high = ends[path]
            value_text = f"{value}, {_range(value, low, high)}"
        cells.append((path, value_text, f"{confidence}, {_key(device, path)}"))
    print_table(("figure", "value, range", "confidence, source"), cells, 3)


def _print_other_chips(device: Device) -> None:
    """Print how many figures were fitted for another chip, and the first of them."""
    text = OTHER_CHIPS.format(OTHER_CHIPS.of(device))
    if text:
        first = ", ".join(path for path, _ in islice(figures_of_others(device), _FIRST))
        print("\n".join(("", *lines.wrap(f"{text}: {first}, ..."))))


def _print_sources(device: Device) -> None:
    """Print what the keys of the sources stand for."""
    used = {device.provenance[path].source for path, *_ in describe(device)}
    print("\nSOURCES")
    for key, about in device.sources.items():
        if key in used:
            print("\n".join(lines.wrap(f"{key}: {about}", later="  ")))
