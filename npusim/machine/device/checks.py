"""Checks of a device file that no single value can show: its parts fit one another.

Each check takes the device and the tree it was read from, and raises the ``ConfigError`` of the
place at fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from npusim.base.dtypes import DEVICE_DTYPES
from npusim.base.quantities import format_frequency
from npusim.base.yamltree import YamlNode, suggest
from npusim.machine.device.parts import (
    GLOBAL_PLACES,
    MEMORY_ROLES,
    SCOPES,
    TRAFFIC,
    CoreKind,
    Memory,
    Path,
    Pipe,
)
from npusim.machine.device.pipes import PIPE_OF_ROLE, PIPES
from npusim.machine.device.spec import Device

#: The timing engines keep tables over all pairs of pipes.
MOST_CORES = 1024

#: A quarter of a piece of a row is at least a block of 32 B.
_QUARTERED = 128

_PATH_NAME = re.compile(r"\w+->\w+(\.\w+)?")


def _node_at(root: YamlNode, *keys: str) -> YamlNode:
    """Return the node at ``keys``."""
    for key in keys:
        root = root.mapping()[key]
    return root


def _check_sums(device: Device, root: YamlNode) -> None:
    """Sums of what overlaps have one of two precisions."""
    if device.overlap_sums not in ("tensor", "fp32"):
        raise _node_at(root, "overlap_sums").fail("expected tensor or fp32; use one of them")


def _check_carried_over(device: Device, root: YamlNode) -> None:
    """Figures are carried over by keys that the sources explain."""
    for key in device.carried_over:
        if key not in device.sources:
            hint = suggest(key, device.sources)
            raise _node_at(root, "carried_over", key).fail(
                f"unknown source {key!r}{hint} (explain new ones under 'sources')"
            )


def _check_roles(device: Device, root: YamlNode) -> None:
    """Each role is known and held by one memory, or by one pipe."""
    sections: tuple[tuple[str, Mapping[str, Memory | Pipe], Collection[str]], ...] = (
        ("memories", device.memories, MEMORY_ROLES),
        ("pipes", device.pipes, PIPES),
    )
    for section, parts, roles in sections:
        holders: dict[str, str] = {}
        for part in parts.values():
            node = _node_at(root, section, part.name)
            kind = type(part).__name__.lower()
            if part.role:
                node.mapping()["role"].word("role", roles)
            if part.called in holders:
                raise node.fail(
                    f"role {part.called} is held by {kind} {holders[part.called]!r} already; "
                    f"kernels know one {kind} of each role: give this one another name or role"
                )
            holders[part.called] = part.name


def _check_cores(device: Device, root: YamlNode) -> None:
    """Core kinds name declared memories, pipes and roles, and each role is held once."""
    if not device.cores:
        raise _node_at(root, "cores").fail("a device needs at least one kind of core; add one")
    holders: dict[str, str] = {}
    declared = {"memories": device.memories, "pipes": device.pipes, "roles": PIPE_OF_ROLE}
    for kind in device.cores.values():
        for key, words in declared.items():
            for item in _node_at(root, "cores", kind.name, key).items():
                word = item.text()
                if word not in words:
                    raise item.fail(f"{word!r} is not among the {key}{suggest(word, words)}")
        for role in kind.roles:
            where = _node_at(root, "cores", kind.name, "roles")
            if role in holders:
                raise where.fail(f"role {role!r} is held by {holders[role]!r} already; drop one")
            holders[role] = kind.name
        _check_pipes_of_kind(device, kind, root)


def _check_pipes_of_kind(device: Device, kind: CoreKind, root: YamlNode) -> None:
    """A kind of core has a pipe that issues instructions, and those of its roles."""
    pipes = [device.pipes[pipe].called for pipe in kind.pipes]
    for pipe in ("S", *(PIPE_OF_ROLE[role] for role in kind.roles)):
        if pipe not in pipes:
            why = "issues instructions" if pipe == "S" else "works for its roles"
            raise _node_at(root, "cores", kind.name, "pipes").fail(
                f"no pipe {pipe}, which {why}; add {pipe} to the list"
            )


def _check_core_counts(device: Device, root: YamlNode) -> None:
    """No kind has more cores than the engines can hold."""
    for kind in device.cores.values():
        cores = device.groups * kind.per_group
        if cores > MOST_CORES:
            raise _node_at(root, "groups").fail(
                f"{device.groups} groups of {kind.per_group} {kind.name} cores are {cores} cores; "
                f"at most {MOST_CORES} of a kind can be simulated, make it fewer"
            )


def _check_paths(device: Device, root: YamlNode) -> None:
    """Every path joins known places and runs on a core that has its pipe and its memories."""
    places = (*device.memories, *GLOBAL_PLACES)
    for path in device.paths.values():
        node = _node_at(root, "paths", path.name)
        if not _PATH_NAME.fullmatch(path.name):
            raise node.fail("expected a path name such as GM->L1 or GM->L1.nd2nz; rename it")
        for place in (path.src, path.dst):
            if place not in places:
                raise node.fail(f"unknown memory {place!r}{suggest(place, places)}")
        if path.dst == "IMM":
            raise node.fail("an immediate operand (IMM) cannot be written; swap the two ends")
        private = [place for place in (path.src, path.dst) if place in device.memories]
        if not any(
            path.pipe in kind.pipes and set(private) <= set(kind.memories)
            for kind in device.cores.values()
        ):
            raise node.mapping()["pipe"].fail(
                f"no kind of core has pipe {path.pipe} together with {' and '.join(private)}; "
                f"kinds: {'; '.join(_has(device))}"
            )
        _window(path, node)
        _piece(path, node)


def _check_links(device: Device, root: YamlNode) -> None:
    """Links have a scope and carry known traffic, paths name known links, and none is idle."""
    used: set[str] = set()
    for path in device.paths.values():
        for item in _node_at(root, "paths", path.name, "links").items() if path.links else ():
            if item.text() not in device.links:
                raise item.fail(
                    f"unknown link {item.text()!r}{suggest(item.text(), device.links)} (describe "
                    "new ones under 'links')"
                )
            used.add(item.text())
    for link in device.links.values():
        node = _node_at(root, "links", link.name)
        if not re.fullmatch(r"\w+", link.name):
            raise node.fail("expected letters, digits and _ as a link's name; rename it")
        node.mapping()["scope"].word("scope", SCOPES)
        for item in node.mapping()["traffic"].items() if link.traffic else ():
            item.word("traffic", TRAFFIC)
        if link.turnaround_percent and not {"read_miss", "evict"} <= {*link.traffic}:
            raise node.mapping()["turnaround"].fail(
                "only a link whose traffic has read_miss and evict turns around between them; add "
                "both, or remove it"
            )
        if link.turnaround_percent >= 100:
            raise node.mapping()["turnaround"].fail(
                "nothing would be left of the rate; less than 100% is possible"
            )
        if link.name not in used and not link.traffic:
            raise node.fail(
                "nothing uses this link; name it in 'links' of a path, give it 'traffic', or "
                "remove it"
            )


def _has(device: Device) -> list[str]:
    """Return the kinds of core with their pipes and memories, in words."""
    return [
        f"{kind.name} has {' '.join(kind.pipes)} and {' '.join(kind.memories)}"
        for kind in device.cores.values()
    ]


def _window(path: Path, node: YamlNode) -> None:
    """An img2col path has a window, the bytes it fetches at once; other paths have none."""
    if path.variant in ("load3d", "load3d_transpose") and not path.window_bytes:
        raise node.fail("a load3d path needs 'window', the bytes it fetches per cycle; add it")
    if not path.variant.startswith("load3d") and path.window_bytes:
        raise node.mapping()["window"].fail("only load3d paths have a window; remove it")


def _piece(path: Path, node: YamlNode) -> None:
    """Loads that turn rows into fractals cut them into pieces, of at least a block of 32 B."""
    piece = path.piece_bytes
    if piece and path.variant != "nd2nz":
        raise node.mapping()["piece"].fail("only nd2nz paths cut rows; remove it")
    if piece % _QUARTERED:
        raise node.mapping()["piece"].fail(
            f"piece is {piece} B; half and a quarter of it are pieces too, so it must be a "
            f"multiple of {_QUARTERED} B"
        )


def _check_cache(device: Device, root: YamlNode) -> None:
    """Sectors fill blocks, a word has a bit for each of them, and blocks fit the cache."""
    l2 = device.l2
    if l2 is None:
        return
    node = _node_at(root, "l2", "block")
    sectors = l2.block_bytes / l2.sector_bytes
    if any(n & (n - 1) for n in (l2.block_bytes, l2.sector_bytes)) or not 1 <= sectors <= 64:
        raise node.fail(
            f"a block of {l2.block_bytes} B with sectors of {l2.sector_bytes} B: both must be "
            "powers of two, with 1 to 64 sectors to a block; change one of them"
        )
    if l2.block_bytes > l2.size_bytes:
        raise node.fail(
            f"the block of {l2.block_bytes} B exceeds the cache of {l2.size_bytes} B; "
            "make it smaller"
        )


def _check_units(device: Device, root: YamlNode) -> None:
    """Element types are known, rates are of the device's, and a role that multiplies has any."""
    names = [dtype.name for dtype in DEVICE_DTYPES]
    for item in _node_at(root, "dtypes").items():
        item.word("dtype", names)
    for key, unit in (("cube", device.cube), ("gemm", device.gemm)):
        for dtype, rate in unit.rates.items() if unit else ():
            node = _node_at(root, key, "rates", dtype)
            operand = "fp32" if dtype == "hf32" else dtype  # HF32 multiplies fp32 operands
            if operand not in device.dtypes:
                raise node.fail(
                    f"dtype {dtype!r} is not among the device's ({', '.join(device.dtypes)}); "
                    "add it to 'dtypes' or remove the rate"
                )
            if key == "gemm" and rate.k != 1:
                raise node.fail(f"the block takes {rate.k} steps of k; write it as 6x1x96/6cycle")
    needs = {"cube": ("cube", "a matrix unit"), "dsp": ("gemm", "a matrix micro-kernel")}
    for kind in device.cores.values():
        for role, (key, what) in needs.items():
            if role in kind.roles and getattr(device, key) is None:
                raise _node_at(root, "cores", kind.name, "roles").fail(
                    f"the role {role!r} needs {what}; add the key {key!r} or drop the role"
                )


def _check_energies(device: Device, root: YamlNode) -> None:
    """Multiply-adds have an energy in types that the unit multiplies."""
    for key, unit in (("cube", device.cube), ("gemm", device.gemm)):
        for dtype in unit.energy_pj if unit else ():
            if unit is not None and dtype not in unit.rates:
                node = _node_at(root, key, "energy", dtype)
                raise node.fail(f"there is no rate of {dtype!r}{suggest(dtype, unit.rates)}")


def _check_launch(device: Device, root: YamlNode) -> None:
    """The skew of starts is a part of what a core adds to a launch."""
    for key, launch in (("launch", device.single), ("graph", device.graph)):
        if launch is not None and launch.skew_cycles > launch.core_cycles:
            raise _node_at(root, key).fail(
                f"skew is {launch.skew_cycles} cycles, part of core, which is "
                f"{launch.core_cycles}; lower skew or raise core"
            )


def _check_supply(device: Device, root: YamlNode) -> None:
    """The supply rises with the clock, from its threshold."""
    silicon = device.silicon
    if silicon is not None and silicon.voltage and silicon.threshold >= silicon.voltage:
        raise _node_at(root, "silicon").fail(
            "threshold is the supply at no clock, voltage at the chip's; make threshold the lower"
        )
    most = silicon.most_clock_hz if silicon is not None else None
    if silicon is not None and most is not None and device.clock_hz > most:
        volt = float(silicon.supply_volt(device.clock_hz))
        raise _node_at(root, "clock").fail(
            f"{format_frequency(device.clock_hz)} needs a supply of {volt:.3g} V, and "
            f"silicon.voltage_limit is {float(silicon.voltage_limit):g} V, which it reaches at "
            f"{most / 1e9:.4g} GHz: lower the clock, or raise silicon.voltage_limit"
        )


def _check_sizes(device: Device, root: YamlNode) -> None:
    """Sizes for which energies hold are of memories; of those that a variant dropped, too."""
    silicon = device.silicon
    memories = {"l2", "shared_memory", *MEMORY_ROLES, *device.memories}
    for name in silicon.sizes if silicon is not None else ():
        if name not in memories:
            node = _node_at(root, "silicon", "sizes", name)
            raise node.fail(f"there is no memory {name!r}{suggest(name, sorted(memories))}")


#: The checks of a device, in their order.
CHECKS: tuple[Callable[[Device, YamlNode], None], ...] = (
    _check_sums,
    _check_carried_over,
    _check_roles,
    _check_cores,
    _check_core_counts,
    _check_paths,
    _check_links,
    _check_cache,
    _check_units,
    _check_energies,
    _check_launch,
    _check_supply,
    _check_sizes,
)
