"""Figures of a device that were fitted for another chip, by where its file has them from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from npusim.machine.device.parts import ENERGY
from npusim.machine.device.spec import Device
from npusim.results.facts.fact import Fact

T = TypeVar("T")

#: Sections and keys of figures that cost no time.
COSTLESS = {ENERGY, "silicon"}

#: Confidences of figures that suit the chip they were fitted to.
_FITTED = ("fitted", "hypothesis")


def time_figures(device: Device) -> list[str]:
    """The dotted paths of the figures that a file states, but for energy and area."""
    return [path for path in device.provenance if COSTLESS.isdisjoint(path.split("."))]


def figures_of_others(device: Device) -> Iterator[tuple[str, str]]:
    """The dotted path and the chip of each figure that was fitted for another chip.

    These are figures whose source the file lists as ``carried_over``, and fitted ones that a base
    states, unless a file nearer than the base explains their source anew: then they are of that
    file's chip.
    """
    for path in time_figures(device):
        provenance = device.provenance[path]
        chip = device.carried_over.get(provenance.source, "")
        if not chip and provenance.confidence in _FITTED:
            chip = provenance.explained_by
        if chip and chip != device.name:
            yield path, chip


def _other_chips(device: Device) -> dict[str, Any]:
    """How many figures cost time, how many of them are other chips', by chip, or assumed here."""
    others = dict(figures_of_others(device))
    assumed = [
        path
        for path in time_figures(device)
        if path not in others and device.provenance[path].confidence == "assumed"
    ]
    return {
        "figures": len(time_figures(device)),
        "of_other_chips": len(others),
        "chips": dict(Counter(others.values()).most_common()),
        "assumed": len(assumed),
    }


def count_and_rest(facts: Mapping[str, Any]) -> tuple[str, str]:
    """The same as a count and the rest of the sentence; "" where none is such."""
    if not facts["of_other_chips"]:
        return "", ""
    chips = ", ".join(f"{chip} {count}" for chip, count in facts["chips"].items())
    rest = f"figures that cost time were fitted for another chip ({chips})"
    if facts["assumed"]:
        rest += f"; {facts['assumed']} more are assumed"
    return f"{facts['of_other_chips']} of {facts['figures']}", rest


def other_chips_text(facts: Mapping[str, Any]) -> str:
    """The sentence."""
    return " ".join(count_and_rest(facts)).strip()


#: Of a device.
OTHER_CHIPS = Fact[Device](
    "other_chips", "figures of other chips", "", other_chips_text, _other_chips
)


def other_chips_of(device_of: Callable[[T], Device]) -> Fact[T]:
    """The same fact of a result, of the device that it has."""
    return Fact(
        OTHER_CHIPS.name,
        OTHER_CHIPS.title,
        OTHER_CHIPS.unit,
        OTHER_CHIPS.format,
        lambda result: OTHER_CHIPS.of(device_of(result)),
    )
