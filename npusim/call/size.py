"""How long a simulation takes, told before it begins."""

from __future__ import annotations

from npusim.base.errors import CapacityError

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
