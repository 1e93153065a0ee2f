"""The notation of one step of a chain that multiplies nothing: ``max_pool 3/2 p1``, read and written.

Around it stand how often it runs in a row (``100 times``) and which parameters it has (``with
gamma=NAME``), as around a layer that multiplies. ``configs/README.md`` has the notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from npusim.base.yamltree import suggest
from npusim.workloads.elementwise import KINDS, UNKNOWN, ElementwiseLayer, Sides
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
from npusim.workloads.numbers import USUAL

#: Kinds that read several values.
SEVERAL = ("add", "sub", "mul", "div", "scale", "shift", "concat", "embedding", UNKNOWN)

#: Kinds that go along some axes, which stand behind "along".
_ALONG = ("concat", "roll", UNKNOWN)

_POOL = " [KERNEL[/STRIDE] [pPADDING]]"
_SIDES = " [pPADDING]"
_PARTS = " [pPADDING[/STRIDE]]"
_NUMBERS = " [(NUMBERS)]"
_WEIGHT = " [(NUMBERS)] [WEIGHT]"
_ORDER = " (AXES)"

#: What may stand behind a kind, as messages say it.
_FORMS = {
    "max_pool": _POOL,
    "avg_pool": _NUMBERS + _POOL,
    "pad": _SIDES,
    "slice": _PARTS,
    "permute": _ORDER,
    "roll": " (SHIFTS) along (AXES)",
    "concat": " [along (AXIS)]",
    **dict.fromkeys(USUAL, _NUMBERS),
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


class Surrounded(NamedTuple):
    """A step without what stands around it: how often it runs, and its parameters by symbol.

    ``parameters`` are None where nothing is said of them.
    """

    text: str
    count: int = 1
    parameters: Mapping[str, str] | None = None


def without_surroundings(text: str) -> Surrounded:
    """Split a step's text into the step and what stands around it."""
    count = 1
    repeated = _TIMES.fullmatch(text)
    if repeated:
        count, text = int(repeated["times"]), repeated["step"]
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
    if step.count > 1:
        text = f"{step.count} times {text}"
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
    if match is None or not _has_only(match, kind, form):
        raise fail(f"expected {kind}{form} [[SIZES]], got {text!r}")
    if len(shapes) > 1 and kind not in SEVERAL:
        raise fail(f"{kind} takes one value, not {len(shapes)}")

    numbers: tuple[float, ...] = ()
    axes: Sizes = ()
    if match["numbers"]:
        numbers = tuple(float(number) for number in match["numbers"].split(","))
    if match["axes"]:
        axes = _integers(match["axes"], ",")
    if kind == "permute":
        axes, numbers = tuple(int(number) for number in numbers), ()

    axes_of_first = len(shapes[0] or ())
    weight: Sizes = ()
    kernel: Sizes = ()
    stride: Sizes = ()
    padding: Sides = ()
    if match["kernel"] and form == _WEIGHT:
        weight = _integers(match["kernel"], "x")
    elif match["kernel"]:
        kernel, stride, padding = _windows(match, axes_of_first - 2)
        if len({len(kernel), len(stride), len(padding)}) > 1:
            raise fail(f"{text}: kernel, stride and padding have different numbers of axes")
    elif match["sides"]:
        padding = _all_axes(_sides(match["sides"]), (0, 0), axes_of_first)
        if match["every"]:
            stride = _all_axes(_integers(match["every"], "x"), 1, axes_of_first)
    if kind == "permute" and shapes[0] is not None and sorted(axes) != [*range(axes_of_first)]:
        raise fail(
            f"{text} of {sizes_text(shapes[0])}: state each axis once, from 0, that of the images, "
            f"to {axes_of_first - 1}"
        )

    out = sizes_of(match["out"]) if match["out"] else None
    if out is None:
        out = inferred(kind, shapes, kernel=kernel, stride=stride, padding=padding, axes=axes)
    known = [shape for shape in shapes if shape is not None]
    if out is None or len(known) < len(shapes):
        raise fail(
            f"{text} of {', '.join(map(sizes_text, shapes))}: the sizes of the result do not "
            f"follow; correct them, or state them: {text} [64, 56, 56] (those of input by input > "
            "[3, 224, 224] > ...)"
        )
    return ElementwiseLayer(
        kind=kind,
        shape=out if kind == "concat" else max(known, key=prod),
        out=out,
        called=match["called"] or "",
        numbers=numbers,
        axes=axes,
        kernel=kernel,
        stride=stride,
        padding=padding,
        weight=weight,
    )


def _has_only(match: re.Match[str], kind: str, form: str) -> bool:
    """Whether a step has nothing that its kind has not."""
    if bool(match["called"]) != (kind == UNKNOWN):
        return False
    if match["kernel"] and not form.endswith((_POOL, _WEIGHT)):
        return False
    if (match["stride"] or match["padding"]) and not form.endswith(_POOL):
        return False
    if match["sides"] and form not in (_SIDES, _PARTS):
        return False
    if match["every"] and form != _PARTS:
        return False
    if match["axes"] and kind not in _ALONG:
        return False
    if kind == "permute":
        return bool(match["numbers"] and re.fullmatch(r"\d+(?:, ?\d+)*", match["numbers"]))
    if kind == "roll":
        return bool(match["numbers"] and match["axes"])
    return not match["numbers"] or _NUMBERS in form


def _windows(match: re.Match[str], dims: int) -> tuple[Sizes, Sizes, Sides]:
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
    return kernel, stride, padding


def _all_axes(entries: tuple, usual: object, axes: int) -> tuple:  # type: ignore[type-arg]
    """Entries for all axes of a shape, with the ``usual`` one for those that are not stated.

    One entry is for all axes but images and channels, and so many as an image has axes for these.
    """
    if len(entries) == axes:
        return entries
    if len(entries) == 1 and axes > 2:
        return (usual, usual, *entries * (axes - 2))
    return (usual, *entries)


def _sides(text: str) -> Sides:
    """What stands before and after on each axis."""
    pairs = [_integers(side, ":") for side in text.split("x")]
    return tuple((pair[0], pair[-1]) for pair in pairs)


def _integers(text: str, mark: str) -> Sizes:
    return tuple(int(number) for number in text.split(mark))


# -- writing -----------------------------------------------------------------------------------


def step_text(layer: ElementwiseLayer, shapes: Sequence[Sizes]) -> str:
    """An element-wise layer as a step of values that it reads in these ``shapes``."""
    parts = [layer.kind]
    if layer.called:
        parts.append(f"({layer.called})")
    if layer.kind == "permute":
        parts.append(f"({', '.join(map(str, layer.axes))})")
    elif layer.axes:
        numbers = [_number(number) for number in layer.numbers]
        parts += [f"({', '.join(numbers)})"] if numbers else []
        parts.append(f"along ({', '.join(map(str, layer.axes))})")
    elif layer.numbers:
        parts.append(f"({', '.join(_number(number) for number in layer.numbers)})")
    if layer.weight:
        parts.append("x".join(map(str, layer.weight)))
    if layer.kernel:
        parts += _windows_text(layer)
    elif layer.padding:
        parts.append(_parts_text(layer))
    if made_by(layer, shapes) != layer.out:
        parts.append(sizes_text(layer.out))
    return " ".join(parts)


def _number(value: float) -> str:
    return str(value).removesuffix(".0")


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
    """What is added or left out at the sides of each axis, and the steps of a slice."""
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
