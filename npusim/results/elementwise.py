"""Element-wise layers of a network as traffic: bytes over the rates of main memory, no kernels.

The figures stand beside the simulated ones and are in none of their totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from npusim.device.spec import Device
from npusim.results.lines import columns, rate_text, times_text, us_text, wrap
from npusim.workloads import ElementwiseLayer, Workload

#: Columns of ``NetworkResult.elementwise``; a promise to users.
ELEMENTWISE_COLUMNS = (
    *("kind", "count", "shape", "out", "read_bytes", "written_bytes", "one_us", "total_us"),
)

#: What their time is, wherever it is shown.
TRAFFIC_ONLY = "traffic only"

Row = dict[str, Any]


def rows(
    device: Device, layers: Iterable[ElementwiseLayer], passes: str, image_bytes: int
) -> list[Row]:
    """One row per layer that moves something in ``passes``: bytes and time of one, and of all.

    ``image_bytes`` is the batch times the size of an element.
    """
    found = []
    for layer in layers:
        moved = layer.moved(passes)
        read, written = moved.read * image_bytes, moved.written * image_bytes
        if read or written:
            us = time_us(device, read, written)
            sizes = (layer.kind, layer.count, layer.shape, layer.out)
            figures = (*sizes, read, written, us, layer.count * us)
            found.append(dict(zip(ELEMENTWISE_COLUMNS, figures, strict=True)))
    return found


def time_us(device: Device, read: int, written: int) -> float:
    """Microseconds in which main memory can move so many bytes, on a bus that both share too."""
    main = device.main_memory
    needed = [
        Fraction(read) / main.read_bytes_per_cycle,
        Fraction(written) / main.write_bytes_per_cycle,
    ]
    for link in device.links.values():
        through = read * ("read_miss" in link.traffic) + written * ("evict" in link.traffic)
        if link.scope == "chip":
            needed.append(Fraction(through) / link.bytes_per_cycle)
    return device.time_us(float(max(needed)))


def by_kind(found: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The same by kind, longest first, repetitions included."""
    sums: dict[str, Counter[str]] = {}
    for row in found:
        here = sums.setdefault(row["kind"], Counter())
        here["count"] += row["count"]
        here["total_us"] += row["total_us"]
        for key in ("read_bytes", "written_bytes"):
            here[key] += row["count"] * row[key]
    told = [{"kind": kind, **total} for kind, total in sums.items()]
    return sorted(told, key=lambda row: -row["total_us"])


def left_out(workload: Workload, *, asked: bool) -> Iterator[str]:
    """Notes on what the time of a network leaves out; ``asked`` shows the traffic of layers."""
    if asked and not workload.elementwise:
        yield f"no element-wise layers are known of {workload.name}"
    kinds: Counter[str] = Counter()
    for one in () if asked else workload.elementwise:
        kinds[one.kind] += one.count
    if kinds:
        met = times_text(kinds.items())
        yield f"not in the time: {met} (elementwise=True, --elementwise: as traffic)"
    if workload.untimed:
        yield f"not in the time, nor known: {times_text(workload.untimed)}"


def summary(facts: Mapping[str, Any]) -> str:
    """The time of all of them, how it is meant, and what it makes together with the layers'."""
    us = facts["elementwise_us"]
    whole = us_text(facts["time_us"] + us)
    return f"{us_text(us)} us of {TRAFFIC_ONLY}, not in the time; together {whole} us"


def section(facts: Mapping[str, Any]) -> Iterator[str]:
    """Kinds of layers in a report; nothing where they were not asked for."""
    found: Sequence[Row] = facts["elementwise"]
    if not found:
        return
    table = [("ELEMENT-WISE", "n", "read MiB", "written MiB", "us")]
    for row in by_kind(found):
        sizes = (rate_text(row[key] / 2**20) for key in ("read_bytes", "written_bytes"))
        table.append((row["kind"], f"{row['count']:,}", *sizes, us_text(row["total_us"])))
    table.append(("total", f"{sum(row['count'] for row in found):,}", "", "",
                  us_text(facts["elementwise_us"])))  # fmt: skip
    yield ""
    yield from columns(table)
    yield from wrap(f"({TRAFFIC_ONLY}: {meaning(facts)})")


def meaning(facts: Mapping[str, Any]) -> str:
    """What the times of element-wise layers are."""
    return (
        f"what they read and write at the rates of {facts['main_memory']}, each layer by itself, "
        "without kernels, launches or hits in an L2; in no figure above"
    )
