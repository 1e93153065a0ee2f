"""The keyword arguments that every operator takes besides its own.

How long a simulation takes is told from them before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypedDict

from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.yamltree import nearest, suggest
from npusim.call.spec import Spec
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import LAUNCH_MODES, Device
from npusim.machine.timing.run import ENGINES
from npusim.problem.limits.table import RULES

#: Called as progress(kernel, phase, done, total): instructions of one kernel.
Progress = Callable[[str, str, int, int], None]


_CHOICES = {
    "launch": LAUNCH_MODES,
    "start": ("cold", "warm"),
    "rules": RULES,
    "engine": ENGINES,
}
_REST = Parameter.VAR_KEYWORD

#: Why some callers do not take an option.
_NO_MEANING = {
    "check": "no numbers are computed",
    "deterministic": "no accumulation is split into parts here",
    "layouts": "its tensors are contiguous",
    "rules": "no limits are documented for it",
    "tiling": "its tiling is chosen already",
    "timeline": "no rows per instruction are kept",
}


class KeywordsBesidesDevice(TypedDict, total=False):
    """The keywords of a call, for type checkers, of a function with a ``device`` of its own.

    ``Options`` says what each means.
    """

    cores: Any
    tiling: Any
    rules: str
    deterministic: bool
    engine: str
    timeline: bool | None
    launch: str
    start: str
    layouts: Mapping[str, Spec] | None
    check: bool
    progress: Progress | None


class Keywords(KeywordsBesidesDevice, total=False):
    """The keywords of a call, for type checkers."""

    device: str | Path | Device


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keyword arguments every operator takes besides its own.

    ``device`` is a name, a YAML path or a ``Device``; ``cores`` a mask (int), range, list or text
    such as "0-3" (None: all); ``tiling`` "auto", the kernel's own, "tuned" (the fastest that
    a search with proof finds), for gradients of filter and input also "production" (the rule of
    the vendor's library), "library" (its public rules on chips with ``library_rules``, else our
    choice among the forms of kernel that it has: zeros are inserted into strided gradients) or a
    ``CannTiling``, for products also a ``catlass_tiling`` or an ``ascendc_tiling``, or a mapping
    from kernel names to any of these; ``rules`` "documented" applies
    the product's constraint table (or, with a note, that of a related product), "strict" refuses
    an operator that the product's own documentation does not list, "hardware" only asks what the
    device can execute; ``deterministic`` reduces the split accumulation of a filter gradient in
    fixed order instead of with atomic adds, and on a DSP does not split it, so that no bit depends
    on the mask; ``engine`` "fast"
    or the readable reference "simpy", with the same cycles; ``timeline`` keeps one row per
    instruction (None: up to a size limit); ``launch`` "single", of operators called one by one,
    or "graph", of a replayed graph, where the device's file has a section ``graph``; ``start``
    "cold" or "warm" (inputs already in L2);
    ``layouts`` says of operands and results, by name, how they lie on the chip where that is not
    contiguous, as ``npusim.spec(shape, dtype, strides)``: such an operand is copied by a kernel
    first, such a result behind the others;
    ``check`` looks, where numbers are computed, for accesses to global memory that nothing orders;
    ``progress`` is called as a kernel goes on; without it a call that takes more than five minutes
    to simulate is a ``CapacityError`` that says how large it is. Raises ``ArgumentError`` for any
    other value.
    """

    device: str | Path | Device
    cores: Any = None
    tiling: Any = "auto"
    rules: str = "documented"
    deterministic: bool = False
    engine: str = "fast"
    timeline: bool | None = None
    launch: str = "single"
    start: str = "cold"
    layouts: Mapping[str, Spec] | None = None
    check: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("launch", self.launch, "'single' or 'graph'"),
            ("start", self.start, "'cold' or 'warm'"),
            ("rules", self.rules, "'documented', 'strict' or 'hardware'"),
            ("engine", self.engine, f"one of {', '.join(ENGINES)}"),
        ):
            if not isinstance(value, str) or value not in _CHOICES[name]:
                near = nearest(str(value), _CHOICES[name])
                hint = f"; did you mean {near!r}?" if near else ""
                raise ArgumentError(f"{name} is {value!r}; it is {known}{hint}")
        for name in ("deterministic", "check"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ArgumentError(f"{name} is {value!r}; it is True or False")
        if not isinstance(self.timeline, (bool, type(None))):
            raise ArgumentError(f"timeline is {self.timeline!r}; it is True, False or None")
        layouts = {} if self.layouts is None else self.layouts
        if not isinstance(layouts, Mapping) or not all(
            isinstance(layout, Spec) for layout in layouts.values()
        ):
            raise ArgumentError(
                f"layouts is {self.layouts!r}; it is a mapping such as {{'input': "
                "npusim.spec(shape, dtype, strides)}"
            )
        if not (self.progress is None or callable(self.progress)):
            raise ArgumentError(
                f"progress is {self.progress!r}; it is a function of (kernel, phase, done, total)"
            )

    @property
    def machine(self) -> Device:
        """The device, with launches as asked for; ``ArgumentError`` where it has none such."""
        return load_device(self.device).launching(self.launch)

    @classmethod
    def of(
        cls, caller: Callable[..., Any], given: Mapping[str, Any], *, without: Collection[str] = ()
    ) -> Options:
        """The keywords ``given`` to the function ``caller``, which can do nothing with ``without``.

        Raises ``ArgumentError`` for an unknown keyword, for a value other than the usual one of a
        keyword without meaning for the caller, and where ``device`` is missing.
        """
        usual = {field.name: field.default for field in fields(cls)}
        name = caller.__name__
        for key in given:
            if key not in usual:
                own = [p.name for p in signature(caller).parameters.values() if p.kind != _REST]
                known = dict.fromkeys([*own, *(key for key in usual if key not in without)])
                raise ArgumentError(f"{name}: unknown keyword {key!r}{suggest(key, known)}")
        if "device" not in given:
            raise ArgumentError(f"{name} needs device=NAME; `npusim devices` lists the names")
        options = cls(**given)
        for key in without:
            if given.get(key, usual[key]) != usual[key]:
                raise ArgumentError(
                    f"{name}: {key}={given[key]!r} has no meaning: {_NO_MEANING[key]}; leave it out"
                )
        return options


# -- how long a simulation takes -------------------------------------------------------------------


#: Instructions per second that this computer's like simulates: timed by engine, and computed.
_TIMED = {"fast": 4e6, "simpy": 2e4}
_COMPUTED = 1e5

#: Seconds of simulation that nobody is surprised by.
SILENT_S = 300


def seconds(instructions: int, engine: str, *, timing_only: bool) -> float:
    """About how long so many instructions take on a usual computer; see docs/model/speed.md."""
    computed = 0.0 if timing_only else instructions / _COMPUTED
    return instructions / _TIMED[engine] + computed


def require_short(
    what: str, instructions: int, macs: int, engine: str, *, timing_only: bool
) -> None:
    """Raise ``CapacityError`` where a simulation that says nothing on its way takes too long."""
    took = seconds(instructions, engine, timing_only=timing_only)
    if took > SILENT_S:
        work = f"{_short(macs)} multiply-adds in " if macs else ""
        raise CapacityError(
            f"{what}: {work}about {_short(instructions)} instructions take some "
            f"{took / 60:,.0f} minutes to simulate; give progress=, a function of (kernel, phase, "
            "done, total), to run them and see how far they are (`npusim run` does), or simulate a "
            f"part, such as fewer images{'' if timing_only else ', or the time alone'}"
        )


def _short(count: int) -> str:
    return f"{count:,}" if count < 10**6 else f"{count:.2g}"
