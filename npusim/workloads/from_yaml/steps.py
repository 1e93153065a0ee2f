"""The notation of a step that multiplies nothing, such as ``max_pool 3/2 p1``, read and written.

Around it stand how often it runs in a row (``100 times``) and which parameters it has
(``with gamma=NAME``), as around a layer that multiplies. ``configs/README.md`` has the notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeVar

from npusim.base.yamltree import suggest
from npusim.workloads.elementwise import ElementwiseLayer, Sides
from npusim.workloads.from_yaml.shapes import (
    NUMBER,
    SIZES,
    aligned,
    inferred,
    made_by,
    sizes_of,
    sizes_text,
)
from npusim.workloads.graph import Sizes
from npusim.workloads.kinds import KINDS, UNKNOWN, USUAL

#: Kinds that read several values.
SEVERAL = ("add", "sub", "mul", "div", "scale", "shift", "concat", "embedding", UNKNOWN)

#: Kinds that go along some axes, which stand behind "along".
_ALONG = ("concat", "roll", "reduce_sum", UNKNOWN)

_POOL = " [KERNEL[/STRIDE] [pPADDING]]"
_SIDES = " [pPADDING]"
_PARTS = " [pPADDING[/STRIDE]]"
_NUMBERS = " [(NUMBERS)]"
_WEIGHT = " [(NUMBERS)] [WEIGHT]"
_ORDER = " (AXES)"
_SHIFTS = " (SHIFTS) along (AXES)"

#: What may stand behind a kind, as messages say it.
_FORMS = {
    "max_pool": _POOL,
    "avg_pool": _NUMBERS + _POOL,
    "pad": _SIDES,
    "slice": _PARTS,
    "permute": _ORDER,
    "roll": _SHIFTS,
    "concat": " [along (AXIS)]",
    **dict.fromkeys((*USUAL, "power"), _NUMBERS),
    "reduce_sum": _NUMBERS + " along (AXES)",
    **dict.fromkeys(("scale", "shift"), _WEIGHT),
    UNKNOWN: " (NAME)",
}

_REAL = r"-?(?:inf|\d[\d.]*(?:e[-+]?\d+)?)"
_SIDE = r"\d{1,9}(?::\d{1,9})?"
_SIGNED_SIDE = r"-?\d{1,9}(?::-?\d{1,9})?"
_EACH_AXIS = rf"{NUMBER}(?:x{NUMBER})*"
_STEP = re.compile(
    r"(?:unknown \((?P<called>.+?)\)|(?P<kind>\w+))"
    rf"(?: \((?P<numbers>{_REAL}(?:, ?{_REAL})*)\))?"
    r"(?: along \((?P<axes>\d{1,2}(?:, ?\d{1,2})*)\))?"
    rf"(?: (?P<kernel>{_EACH_AXIS})(?:/(?P<stride>{_EACH_AXIS}))?"
    rf"(?: p(?P<padding>{_SIDE}(?:x{_SIDE})*))?)?"
    rf"(?: p(?P<sides>{_SIGNED_SIDE}(?:x{_SIGNED_SIDE})*)(?:/(?P<every>{_EACH_AXIS}))?)?"
    rf"(?: (?P<out>{SIZES}))?"
)
_TIMES = re.compile(r"(?P<times>[1-9]\d{0,5}) times (?P<step>.+)")
_WITH = re.compile(r"(?P<step>.+) with (?P<names>none|\w+=[\w.-]+(?: \w+=[\w.-]+)*)")

Fail = Callable[[str], Exception]
T = TypeVar("T")


class Surrounded(NamedTuple):
    """A step without what stands around it: how often it runs, and its parameters by symbol.

    ``parameters`` are None where nothing is said of them.
    """

    text: str
    rounds: int = 1
    parameters: Mapping[str, str] | None = None


def without_surroundings(text: str) -> Surrounded:
    """Split a step's text into the step and what stands around it."""
    count = 1
    repeated = _TIMES.fullmatch(text)
    if repeated:
        count = int(repeated["times"])
        text = repeated["step"]
    named = _WITH.fullmatch(text)
    if not named:
        return Surrounded(text, count)
    if named["names"] == "none":
        return Surrounded(named["step"], count, {})
    pairs = [pair.partition("=") for pair in named["names"].split()]
    return Surrounded(named["step"], count, {symbol: name for symbol, _, name in pairs})


def surrounded(step: Surrounded) -> str:
    """The text of a step with what stands around it."""
    text = step.text
    if step.rounds > 1:
        text = f"{step.rounds} times {text}"
    if step.parameters is None:
        return text
    names = " ".join(f"{symbol}={name}" for symbol, name in step.parameters.items())
    return f"{text} with {names or 'none'}"


# -- reading -----------------------------------------------------------------------------------


def read_step(
    text: str, shapes: Sequence[Sizes | None], layers: Sequence[str], fail: Fail
) -> ElementwiseLayer:
    """The element-wise layer that a step is, of values of these ``shapes``, None if not known.

    ``layers`` are names that the text could have meant. Raises what ``fail`` makes of a message:
    of an unknown kind, of what a kind does not have, and where sizes do not fit or follow.
    """
    kind = text.partition(" ")[0]
    if kind not in KINDS and kind != UNKNOWN:
        raise fail(f"unknown step {kind!r}{suggest(kind, [*layers, *KINDS])}")
    form = _FORMS.get(kind, "")
    match = _STEP.fullmatch(text)
    if match is None or not (_fits_form(match, form) and _fits_kind(match, kind)):
        raise fail(f"expected {kind}{form} [[SIZES]], got {text!r}")
    if len(shapes) > 1 and kind not in SEVERAL:
        raise fail(f"{kind} takes one value, not {len(shapes)}")
    windows = _windows(match, form, len(shapes[0] or ()))
    if windows.kernel and not len(windows.kernel) == len(windows.stride) == len(windows.padding):
        raise fail(f"{text}: kernel, stride and padding have different numbers of axes")
    numbers, axes = _numbers_and_axes(match, kind)
    if kind == "permute":
        _check_order(text, shapes[0], axes, fail)

    if match["out"]:
        out: Sizes | None = sizes_of(match["out"])
    else:
        out = inferred(
            kind,
            shapes,
            kernel=windows.kernel,
            stride=windows.stride,
            padding=windows.padding,
            axes=axes,
        )
    stated = [shape for shape in shapes if shape is not None]
    if out is None or len(stated) < len(shapes):
        raise fail(
            f"{text} of {', '.join(map(sizes_text, shapes))}: the sizes of the result do not "
            f"follow; correct them, or state them: {text} [64, 56, 56] (those of input by input > "
            "[3, 224, 224] > ...)"
        )
    return ElementwiseLayer(
        kind=kind,
        shape=out if kind == "concat" else max(stated, key=prod),
        out=out,
        called=match["called"] or "",
        numbers=numbers,
        axes=axes,
        kernel=windows.kernel,
        stride=windows.stride,
        padding=windows.padding,
        weight=windows.weight,
    )


def _fits_form(match: re.Match[str], form: str) -> bool:
    """Return whether a step has no windows, sides or numbers that the form of its kind has not."""
    allowed = {
        "kernel": form.endswith((_POOL, _WEIGHT)),
        "stride": form.endswith(_POOL),
        "padding": form.endswith(_POOL),
        "sides": form in (_SIDES, _PARTS),
        "every": form == _PARTS,
        "numbers": any(part in form for part in (_NUMBERS, _ORDER, _SHIFTS)),
    }
    return all(allowed[part] for part in allowed if match[part])


def _fits_kind(match: re.Match[str], kind: str) -> bool:
    """Return whether a step has just the name, the order or the axes that its kind needs."""
    if bool(match["called"]) != (kind == UNKNOWN):
        return False
    if kind == "permute":
        axes = match["numbers"] and re.fullmatch(r"\d+(?:, ?\d+)*", match["numbers"])
        return bool(axes) and not match["axes"]
    if kind in ("roll", "reduce_sum"):
        return bool(match["axes"]) and bool(match["numbers"] or kind == "reduce_sum")
    return not match["axes"] or kind in _ALONG


def _numbers_and_axes(match: re.Match[str], kind: str) -> tuple[tuple[float, ...], Sizes]:
    """The numbers in the brackets of a step; of a permute these are axes."""
    text = match["numbers"]
    if kind == "permute":
        return (), _integers(text, ",")
    numbers = tuple(float(number) for number in text.split(",")) if text else ()
    axes = _integers(match["axes"], ",") if match["axes"] else ()
    return numbers, axes


def _check_order(text: str, shape: Sizes | None, axes: Sizes, fail: Fail) -> None:
    """Refuse an order that is not one of all axes of a shape."""
    if shape is not None and sorted(axes) != [*range(len(shape))]:
        raise fail(
            f"{text} of {sizes_text(shape)}: state each axis once, from 0, that of the images, "
            f"to {len(shape) - 1}"
        )


class _Windows(NamedTuple):
    """The sizes by axis in a step: those of windows, of sides, or of a weight."""

    kernel: Sizes = ()
    stride: Sizes = ()
    padding: Sides = ()
    weight: Sizes = ()


def _windows(match: re.Match[str], form: str, axes: int) -> _Windows:
    """The sizes by axis in a step of a value of so many axes."""
    if match["kernel"] and form == _WEIGHT:
        return _Windows(weight=_integers(match["kernel"], "x"))
    if match["kernel"]:
        return _pool_windows(match, axes - 2)
    if not match["sides"]:
        return _Windows()
    stride = _all_axes(_integers(match["every"], "x"), 1, axes) if match["every"] else ()
    return _Windows(stride=stride, padding=_all_axes(_sides(match["sides"]), (0, 0), axes))


def _pool_windows(match: re.Match[str], dims: int) -> _Windows:
    """Kernel, stride and padding of a pooling; one number stands for all ``dims`` axes."""
    kernel = _integers(match["kernel"], "x")
    if len(kernel) == 1:
        kernel *= dims
    stride = _integers(match["stride"], "x") if match["stride"] else kernel
    padding = _sides(match["padding"] or "0")
    if len(stride) == 1:
        stride *= len(kernel)
    if len(padding) == 1:
        padding *= len(kernel)
    return _Windows(kernel, stride, padding)


def _all_axes(entries: tuple[T, ...], usual: T, axes: int) -> tuple[T, ...]:
    """Entries for all axes of a shape, with the ``usual`` one for those that are not stated.

    One entry is for all axes but images and channels, and so many as an image has axes for these.
    """
    if len(entries) == axes:
        return entries
    if len(entries) == 1 and axes > 2:
        return (usual, usual, *entries * (axes - 2))
    return (usual, *entries)


def _sides(text: str) -> Sides:
    """Elements before and after, on each axis."""
    pairs = [_integers(side, ":") for side in text.split("x")]
    return tuple((pair[0], pair[-1]) for pair in pairs)


def _integers(text: str, mark: str) -> Sizes:
    return tuple(int(number) for number in text.split(mark))


# -- writing -----------------------------------------------------------------------------------


def step_text(layer: ElementwiseLayer, shapes: Sequence[Sizes]) -> str:
    """An element-wise layer as a step of values that it reads in these ``shapes``."""
    parts = [layer.kind]
    numbers = ", ".join(str(number).removesuffix(".0") for number in layer.numbers)
    axes = ", ".join(str(axis) for axis in layer.axes)
    if layer.called:
        parts.append(f"({layer.called})")
    if numbers:
        parts.append(f"({numbers})")
    if axes:
        parts.append(f"({axes})" if layer.kind == "permute" else f"along ({axes})")
    if layer.weight:
        parts.append("x".join(map(str, layer.weight)))
    if layer.kernel:
        parts += _windows_text(layer)
    elif layer.padding:
        parts.append(_parts_text(layer))
    if made_by(layer, shapes) != layer.out:
        parts.append(sizes_text(layer.out))
    return " ".join(parts)


def _windows_text(layer: ElementwiseLayer) -> list[str]:
    """The windows of a pooling: kernel, stride where it is another, and padding."""
    dims = len(layer.shape) - 2
    text = _one_or_all([str(size) for size in layer.kernel], dims)
    if layer.stride != layer.kernel:
        text += f"/{_one_or_all([str(step) for step in layer.stride], dims)}"
    if not any(map(any, layer.padding)):
        return [text]
    return [text, f"p{_one_or_all(_side_texts(layer.padding), dims)}"]


def _parts_text(layer: ElementwiseLayer) -> str:
    """Elements added or left out at the sides of each axis, and the steps of a slice."""
    text = f"p{_axes_of_image(_side_texts(layer.padding), '0')}"
    if layer.stride:
        text += f"/{_axes_of_image([str(step) for step in layer.stride], '1')}"
    return text


def _side_texts(sides: Sides) -> list[str]:
    return [str(a) if a == b else f"{a}:{b}" for a, b in sides]


def _one_or_all(texts: Sequence[str], dims: int) -> str:
    """One entry where all ``dims`` axes have the same, else all entries."""
    return texts[0] if len(texts) == dims and len(set(texts)) == 1 else "x".join(texts)


def _axes_of_image(texts: Sequence[str], usual: str) -> str:
    """Entries of all axes, without those of images and channels where these are usual."""
    images, *others = texts
    if images != usual or not others:
        return "x".join(texts)
    channels, *maps = others
    if channels == usual and maps and len(set(maps)) == 1:
        return maps[0]
    return "x".join(others)


def values_of(layer: ElementwiseLayer, shapes: Sequence[Sizes]) -> list[Sizes]:
    """The shapes in which an element-wise layer reads values of these ``shapes``."""
    return aligned(layer.kind, shapes) if len(shapes) > 1 else list(shapes)
