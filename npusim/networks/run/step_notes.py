"""Notes of a training step: what its time counts, and what it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from npusim.machine.device.spec import Device
from npusim.networks.plan.formats import FormatPlan
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.only_plan import OnlyPlan
from npusim.networks.run.setting import Setting
from npusim.results.facts.number_text import bytes_text, times_text, us_text
from npusim.results.shown.network_words import TRAFFIC


class NotedStep(Protocol):
    """The parts of a step that its notes tell of."""

    @property
    def device(self) -> Device:
        """Where it ran."""

    @property
    def setting(self) -> Setting:
        """How it ran."""

    @property
    def planned(self) -> FormatPlan | OnlyPlan | None:
        """How formats were chosen, None where every operation converts."""

    @property
    def launched(self) -> tuple[LaunchedOperation, ...]:
        """Its operations in the order of launch."""

    @property
    def written_back_bytes(self) -> int:
        """Bytes that go to main memory."""

    @property
    def unread_bytes(self) -> int:
        """Those of them that are of values nothing reads any more."""

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are dirty in the L2 at the end."""

    @property
    def fetched_again_bytes(self) -> int:
        """Bytes that kernels read from main memory once more."""

    @property
    def waiting_us(self) -> float:
        """Microseconds that operations wait for main memory beyond their kernels and launches."""


def notes_of_step(step: NotedStep) -> Iterator[str]:
    """Notes on formats, on main memory, and on operations without a kernel."""
    if step.setting.mode == "eager" and step.setting.layouts == "as_framework":
        yield from _notes_of_private_formats(step.device)
    if step.setting.layouts != "each_call" and isinstance(step.planned, FormatPlan):
        yield (
            "formats are chosen by the times of kernels that start with a cold L2; the step's "
            "own time counts what the kernels before leave there"
        )
    if step.device.l2 is not None:
        yield from _notes_of_main_memory(step)
    yield from _notes_of_traffic_alone(step.launched)


def _notes_of_private_formats(device: Device) -> Iterator[str]:
    """A note on single calls that leave blocks of channels, as frameworks have them or not."""
    if device.private_formats:
        yield (
            "frameworks let tensors keep blocks of channels and fractals between single calls on "
            "this chip (private_formats); with layouts each_call every operation would convert"
        )
    else:
        yield (
            "frameworks convert at every single call on this chip (no private_formats), unless "
            "told otherwise: layouts each_call has that"
        )


def _notes_of_main_memory(step: NotedStep) -> Iterator[str]:
    """Notes on the bytes to and from main memory that are counted, and on those that are not."""
    if step.written_back_bytes:
        text = (
            f"{bytes_text(step.written_back_bytes)} are written back to "
            f"{step.device.main_memory_name} as later kernels need their room in the L2"
        )
        if step.unread_bytes:
            text += (
                f", {bytes_text(step.unread_bytes)} of it values that nothing reads any more: "
                "only values of their size get their memory here; a framework that also cuts and "
                "joins blocks would save some of that"
            )
        yield text
    if step.waiting_us:
        memory = step.device.main_memory_name
        yield (
            f"{us_text(step.waiting_us)} us of the step are waits for {memory}: no operation is "
            "shorter than that takes for the bytes it sends and takes meanwhile, lines that others "
            "left dirty in the L2 among them"
        )
    if step.dirty_bytes:
        yield (
            f"{bytes_text(step.dirty_bytes)} are dirty in the L2 at the end and not counted: "
            "what runs next has them written back"
        )
    if step.fetched_again_bytes:
        yield (
            f"{bytes_text(step.fetched_again_bytes)} are read again by kernels that need more "
            "room than the L2 has"
        )


def _notes_of_traffic_alone(launched: tuple[LaunchedOperation, ...]) -> Iterator[str]:
    """A note on the operations that have no kernel, by the kinds of their layers."""
    operations = [
        operation
        for operation in launched
        if any(run.name == TRAFFIC for run in operation.timed.runs)
    ]
    if not operations:
        return
    counts = Counter[str]()
    for operation in operations:
        counts[operation.label] += operation.count
    us = sum(operation.us for operation in operations)
    yield (
        f"{us_text(us)} us are traffic only, bytes at the rates of main memory, because "
        f"there is no kernel: {times_text(counts.items())}"
    )
