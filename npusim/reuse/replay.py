"""A call timed again on another device, and the figures its time depends on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from npusim.base.integers import IntArray
from npusim.device.parts import AT_MOST, ENERGY
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.program.build import build
from npusim.program.kernel import Kernel
from npusim.program.program import Program
from npusim.program.recost import recosted, structure
from npusim.timing.outcome import L2
from npusim.timing.run import Launched, new_l2, time_cycles, trace_causes, trace_program
from npusim.timing.trace import Trace

#: What takes part in the time of a call: an input that is in L2 already, or a launch.
Step = Tensor | Kernel


@dataclass(eq=False, repr=False)
class Again:
    """Times the steps of a call, tiled as they were, on variants of its device.

    ``figures`` are those its time rests on. Programs are kept by structure, so that variants which
    differ in figures only pay for what these figures cost; those of the call's own structure are
    built for its ``device``, from which variants differ least. Holds no arrays.
    """

    steps: tuple[Step, ...]
    figures: tuple[str, ...]
    groups: tuple[int, ...]
    engine: str
    device: Device
    _built: dict[tuple[int, Hashable], Program] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        """One line: steps and figures."""
        return f"<Again: {len(self.steps)} steps, {len(self.figures)} figures>"

    def time_us(self, device: Device) -> float:
        """Microseconds on ``device``."""
        return device.time_us(sum(time_cycles(*step) for step in self._programs(device)))

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """What the time of every kernel rests on, in the order of launches."""
        return tuple(trace_program(program, l2) for program, l2 in self._programs(device))

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """What every instruction of every kernel waited for, by rows of its timeline."""
        return tuple(trace_causes(program, l2) for program, l2 in self._programs(device))

    def _programs(self, device: Device) -> Iterator[tuple[Program, L2]]:
        """The programs to simulate, each with the L2 as those before it left it."""
        l2 = new_l2(device, self.engine)
        for i, step in enumerate(self.steps):
            if isinstance(step, Tensor):
                l2.preload(step.name, step.size_bytes)
            else:
                yield self._program(i, step, device), l2

    def _program(self, place: int, kernel: Kernel, device: Device) -> Program:
        key = place, structure(device, kernel.roles)
        if key not in self._built and key[1] == structure(self.device, kernel.roles):
            self._built[key] = build(kernel, self.device, self.groups)
        known = self._built.get(key)
        program = recosted(known, device) if known is not None else None
        if program is None:
            program = build(kernel, device, self.groups)
            if program.structure is not None:
                self._built.setdefault(key, program)
        return program


def figures_behind(device: Device, made: Launched | Program) -> list[str]:
    """Figures that ``device`` states and that the time of a kernel depends on."""
    used = {
        *("clock", device.launch_key, "l2", device.main_memory_key),
        *(f"pipes.{device.pipe(pipe).name}" for pipe in made.pipes),
        *(f"links.{link.name}" for link in device.links.values() if link.traffic),
        *made.figures,
    }
    return _among(tuple(device.provenance), frozenset(used))


@lru_cache(maxsize=256)
def _among(stated: tuple[str, ...], used: frozenset[str]) -> list[str]:
    """Those stated at, or directly within, what is used; kernels of a kind use the same.

    Capacities and precision do not cost time by themselves, and energy never does.
    """
    idle = {"cube.hf32_bits", *(f"{part}.{key}" for part in used for key in ("size", ENERGY))}
    return sorted(
        name
        for name in stated
        if name not in idle
        and not name.endswith(AT_MOST)
        and (name in used or name.rpartition(".")[0] in used)
    )


#: The note on calls whose kernels are those of a replayed graph.
_REPLAYED = (
    "kernels are launched as those of a replayed graph (launch='graph', --launch graph): no tiling "
    "at run time, and between them only what the figures under graph say"
)


def notes_on_figures(device: Device, figures: Iterable[str]) -> tuple[str, ...]:
    """How many of ``figures`` are assumed, the first five by name, and what is said before it.

    That is what holds memory back, and that kernels are launched from a graph.
    """
    assumed = [name for name in figures if device.provenance[name].confidence == "assumed"]
    launched = _REPLAYED if device.replays else ""
    first = tuple(text for text in (device.held_back, launched) if text)
    if not assumed:
        return first
    more = f" and {len(assumed) - 5} more" if len(assumed) > 5 else ""
    return (
        *first,
        f"the time rests on {len(assumed)} assumed figure{'s' * (len(assumed) > 1)}: "
        f"{', '.join(assumed[:5])}{more}; `npusim devices show {device.shown_by}` lists every "
        "figure with its source",
    )
