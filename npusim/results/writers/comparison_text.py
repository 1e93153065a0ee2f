"""Two calls or networks side by side as text of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from npusim.results.facts.comparison import CallDifferences, KernelFacts
from npusim.results.facts.differences import Differences, Row
from npusim.results.facts.network_comparison import NetworkDifferences, PartTimes
from npusim.results.facts.number_text import (
    bytes_text,
    counted,
    percent_text,
    rate_text,
    signed_text,
    us_or_none,
    us_text,
)
from npusim.results.facts.tables import least_share
from npusim.results.facts.verdict import saving_text
from npusim.results.writers.text_layout import WIDTH, columns, fact, page, wrap

#: Rows of waits, of traffic and of figures of calls that are shown; the rest is counted.
MAX_ROWS = 12

#: Other differences of networks that are shown; the rest is counted.
MAX_BESIDES = 40

#: Changes of a wait, in us, that would read 0.000.
_TINY_US = 0.0005


def of_calls(compared: CallDifferences) -> str:
    """Two calls: their times, then their kernels, bounds, waits, traffic and what else differs."""
    sections = [_sides(compared), _change_of_time(compared)]
    if compared.empty:
        return page([*sections, _NO_DIFFERENCE])
    sections += [
        _kernels(compared),
        _bounds(compared),
        _changes(compared, "wait", "BUSIEST PIPES (us, mean)", us_text),
        _changes(compared, "traffic", "TRAFFIC", bytes_text),
        _others(compared),
    ]
    return page(sections)


def of_networks(compared: NetworkDifferences) -> str:
    """Two networks or steps: how fast both are, then each kind of row and what else differs."""
    sections = [_sides(compared)]
    if compared.per_image:
        sections += [_change_of_speed(compared), _change_per_image(compared)]
    else:
        sections.append(_change_of_time(compared))
        if compared.of_steps:
            sections.append(_change_of_speed(compared))
    if compared.empty:
        return page([*sections, _NO_DIFFERENCE])
    if compared.launched_differs or compared.modes_differ:
        sections.append(_launched(compared))
    sections += [_times(compared, part) for part in compared.times_of_parts()]
    return page([*sections, _networks_besides(compared)])


_NO_DIFFERENCE = ("", "no difference")


# -- what calls and networks share ---------------------------------------------------------------


def _sides(compared: Differences) -> Iterator[str]:
    """Lines on both sides, their times, and what holds them up."""
    for letter, (label, facts) in zip("AB", compared.sides, strict=True):
        prefix = f"{label}: " if label != letter else ""
        yield from fact(letter, f"{prefix}{compared.about(facts)}, {us_text(facts['time_us'])} us")
        verdict = facts.get("verdict")
        if verdict:
            text = saving_text(verdict["name"], verdict["saves"], verdict.get("busy", 0.0))
            yield from fact("bottleneck", text)


def _change_of_time(compared: Differences) -> Iterator[str]:
    """How the whole time changed; nothing where it did not."""
    a, b = compared.times
    if a != b and a:
        yield from fact("time", f"{us_text(a)} -> {us_text(b)} us, {signed_text(b / a - 1)}")


def _change_texts(compared: Differences, a: float | None, b: float | None) -> tuple[str, str]:
    """From a to b, in us and as a share of a; blank where a side lacks it."""
    if a is None or b is None:
        return "", ""
    return f"{b - a:+,.{compared.digits}f}", signed_text(b / a - 1) if a else ""


def _besides(compared: Differences, rows: Iterable[Row]) -> Iterator[str]:
    """A list of further differences."""
    yield ""
    yield "WHAT DIFFERS BESIDES"
    for row in rows:
        yield from wrap(compared.besides_text(row), "  ", "    ")


# -- calls -------------------------------------------------------------------------------------


def _kernels(compared: CallDifferences) -> Iterator[str]:
    """Times of every kernel of either without launches, and how much of them is necessary."""
    rows = [("KERNELS", "A us", "B us", "change", "", "least", "B", "pipe")]
    for name in compared.names:
        a, b = compared.a.kernels.get(name), compared.b.kernels.get(name)
        us_a, us_b = _own_us(a), _own_us(b)
        change_us, change_share = _change_texts(compared, us_a, us_b)
        least_a, least_b = _least(a), _least(b)
        pipes = dict.fromkeys("-" if kernel is None else kernel.busiest for kernel in (a, b))
        rows.append(
            (
                name,
                us_or_none(us_a),
                us_or_none(us_b),
                change_us,
                change_share,
                least_a,
                least_b,
                "/".join(pipes),
            )
        )
    yield ""
    yield from columns(rows, left=(0, 7), width=WIDTH)
    yield from wrap(
        "(us without launches, mean of the cores that run; least: share that any program would "
        "need; pipe: the busiest, of A and of B)"
    )


def _own_us(kernel: KernelFacts | None) -> float | None:
    """Microseconds of a kernel without its launch; None where a side lacks it."""
    if kernel is None:
        return None
    us: float = kernel.row["time_us"] - kernel.row["launch_us"]
    return us


def _least(kernel: KernelFacts | None) -> str:
    """The share of a kernel's time that any program for its problem would need."""
    share = None if kernel is None else least_share(kernel.row)
    return "-" if share is None else percent_text(share)


def _bounds(compared: CallDifferences) -> Iterator[str]:
    """Part that would take each kernel longest alone, of those whose time changed most."""
    changed: list[tuple[float, str, KernelFacts, KernelFacts]] = []
    for name in compared.names:
        a, b = compared.a.kernels.get(name), compared.b.kernels.get(name)
        if a is not None and b is not None:
            change = abs(a.row["time_us"] - b.row["time_us"])
            changed.append((change, name, a, b))
    changed.sort(key=lambda row: -row[0])
    rows = [
        (f"  {name}", *_nearest(a), *_nearest(b))
        for change, name, a, b in changed[:MAX_ROWS]
        if change
    ]
    if rows:
        yield ""
        heads = ("BOUNDS", "A alone takes", "", "B alone takes", "")
        yield from columns([heads, *rows], left=(0, 1, 3), width=WIDTH)


def _nearest(kernel: KernelFacts) -> tuple[str, str]:
    """The resource that would take a kernel longest alone, and the share of its time."""
    us = _own_us(kernel)
    bound_us = kernel.row["bound_us"]
    share = percent_text(bound_us / us) if bound_us and us else "-"
    return kernel.row["bound"], share


def _changes(
    compared: CallDifferences, what: str, title: str, text: Callable[[float], str]
) -> Iterator[str]:
    """Rows of one kind, the largest changes first."""
    changes = [row for row in compared.rows if row["what"] == what]
    changes.sort(key=lambda row: -abs(row["change"]))
    if not changes:
        return
    shown = [row for row in changes if what != "wait" or _matters(compared, row)][:MAX_ROWS]
    rows = [(title, "", "A", "B", "change")]
    for row in shown:
        sign = "-" if row["change"] < 0 else "+"
        change = f"{sign}{text(abs(row['change']))}"
        rows.append((f"  {row['kernel']}", row["name"], text(row["a"]), text(row["b"]), change))
    yield ""
    yield from columns(rows, left=2, width=WIDTH)
    if len(changes) > len(shown):
        yield f"  ({counted(len(changes) - len(shown), 'other change')})"


def _matters(compared: CallDifferences, row: Row) -> bool:
    """True if a wait is listed: it is of its kernel's busiest pipe on either side, and not tiny."""
    if abs(row["change"]) < _TINY_US:
        return False
    pipe = row["name"].partition(" ")[0]
    kernels = [side.kernels.get(row["kernel"]) for side in (compared.a, compared.b)]
    return any(kernel is not None and kernel.busiest == pipe for kernel in kernels)


def _others(compared: CallDifferences) -> Iterator[str]:
    """Lines on the calls, their devices and their kernels."""
    others = [
        row
        for row in compared.rows
        if row["what"] in ("call", "figure", "size") or row["name"] == "launch_us"
    ]
    if not others:
        return
    figures = sum(row["what"] == "figure" for row in others)
    if not figures or len(others) <= 3 * MAX_ROWS:
        yield from _besides(compared, others)
        return
    yield from _besides(compared, [row for row in others if row["what"] != "figure"])
    yield f"  {counted(figures, 'figure')} of the devices: see to_json()"


# -- networks ----------------------------------------------------------------------------------


def _change_of_speed(compared: NetworkDifferences) -> Iterator[str]:
    """How the images a second changed; nothing where they did not."""
    a, b = compared.rates
    if a != b:
        change = signed_text(b / a - 1)
        yield from fact("speed", f"{rate_text(a)} -> {rate_text(b)} images/s, {change}")


def _change_per_image(compared: NetworkDifferences) -> Iterator[str]:
    """How the time of an image changed, of sides that take different numbers of them."""
    images_a, images_b = compared.images
    us_a, us_b = compared.times
    a, b = us_a / images_a, us_b / images_b
    yield from fact("time", f"{us_text(a)} -> {us_text(b)} us an image, {signed_text(b / a - 1)}")


def _launched(compared: NetworkDifferences) -> Iterator[str]:
    """How much both launch, and what their times go to."""
    each = " an image" if compared.per_image else ""
    rows: list[Sequence[str]] = [("LAUNCHED", "A", "B", "change", "")]
    for number in compared.launched():
        title, a, b = number.fact.title, number.a, number.b
        unit = f", {number.fact.unit}{each}" if number.fact.unit else ""
        if a or b:
            texts = number.fact.number(a), number.fact.number(b)
            share = signed_text(b / a - 1) if a and a != b else ""
            change = f"{b - a:+,.{1 if unit else 0}f}" if a != b else ""
            rows.append((f"  {title}{unit}", *texts, change, share))
    yield ""
    yield from columns(rows, width=WIDTH)
    yield from wrap(
        "(us: launches of all kernels, and kernels without them; they add up to the time)"
    )


def _times(compared: NetworkDifferences, part: PartTimes) -> Iterator[str]:
    """Times of one kind of row that differ, the largest changes first."""
    times = [row for row in part.times if row.a != row.b or row.launches_a != row.launches_b]
    if not times:
        return
    launches = part.launches_differ
    heads = [f"{part.title} ({part.unit})", "A", "B", "change", ""]
    rows: list[Sequence[str]] = [[*heads, "#A", "#B"] if launches else heads]
    for row in times[: part.most]:
        cells = [
            f"  {row.name}",
            "-" if row.a == 0.0 else us_or_none(row.a),
            "-" if row.b == 0.0 else us_or_none(row.b),
            *_change_texts(compared, row.a, row.b),
        ]
        if launches:
            cells += [f"{row.launches_a:,}", f"{row.launches_b:,}"]
        rows.append(cells)
    yield ""
    yield from columns(rows, width=WIDTH)
    if len(times) > part.most:
        yield f"  ({counted(len(times) - part.most, 'other change')})"
    if launches:
        yield "  (#A, #B: kernels launched)"


#: What is said of layers and kernels besides their times.
_SAID = ("count", "bottleneck", "error", "macs")


def _networks_besides(compared: NetworkDifferences) -> Iterator[str]:
    """Other differences: of the networks, what bounds their layers, what was not simulated."""
    rows = compared.besides
    rows += [row for row in compared.rows if row["what"] in _SAID and (row["a"] or row["b"])]
    if not rows:
        return
    yield from _besides(compared, rows[:MAX_BESIDES])
    if len(rows) > MAX_BESIDES:
        yield f"  ({counted(len(rows) - MAX_BESIDES, 'more')}: see --json)"
