"""Changes that would make a step faster, each with the time that it was simulated to take."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.machine.device.resources import LAUNCHES, word_of
from npusim.machine.device.spec import Device
from npusim.results.facts.advice import (
    MAX_PARTS,
    WORTH_A_LINE,
    Advice,
    figures_named,
    less_work,
)
from npusim.results.facts.number_text import percent_text, us_text
from npusim.results.facts.step_replay import StepReplay
from npusim.results.facts.step_verdict import SAME, StepTrials
from npusim.results.facts.verdict import Trial, halved


def advise_step(replay: StepReplay, trials: StepTrials) -> tuple[Advice, ...]:
    """Changes of the device or of the launch that save a twentieth of a step, most first.

    The step keeps its tilings and formats; where a change moves vector kernels to other cores, it
    is the longer of both times that counts.
    """
    tried = [*_faster_parts(replay, trials), *_of_launches(replay, trials.time_us)]
    if tried:
        return tuple(sorted(tried, key=lambda advice: -advice.saves))
    text = f"no part of the device saves {percent_text(WORTH_A_LINE)} alone if it is twice as fast"
    return (Advice(text=f"{text} ({SAME})", time_us=trials.time_us),)


def _faster_parts(replay: StepReplay, trials: StepTrials) -> Iterator[Advice]:
    """The parts of the device that save most if they are twice as fast."""
    device = replay.device
    time_us = trials.time_us
    for trial in trials.first(MAX_PARTS, WORTH_A_LINE * time_us):
        word = word_of(trial.name)
        spread_us = replay.spread_us(device.replace(word, "x2"))
        us = max(trial.double_us, spread_us)
        if time_us - us < WORTH_A_LINE * time_us:
            continue
        saved = percent_text(1 - us / time_us)
        yield Advice(
            text=f"{trial.name}: {halved(trial.name)} {saved} with `--set {word}=x2`"
            f"{figures_named(trial)}{_where(replay, trial)}; {less_work(device, trial.name)}",
            time_us=time_us,
            changed_us=us,
            figures={word: "x2"},
        )


def _where(replay: StepReplay, trial: Trial) -> str:
    """The kind of operation that a part of the device holds up most."""
    if trial.name == LAUNCHES or not replay.calls[trial.kernel].kind:
        return ""
    return f", most of it in {replay.calls[trial.kernel].kind}"


def _of_launches(replay: StepReplay, time_us: float) -> Iterator[Advice]:
    """A replayed graph, where launches are worth it and the device has its figures."""
    device = replay.device
    if device.replays or device.graph is None:
        return
    share = _launches_us(device, replay) / time_us
    if share < WORTH_A_LINE:
        return
    us = replay.spread_us(device.launching("graph"))
    if us <= (1 - WORTH_A_LINE) * time_us:
        yield Advice(
            text=f"launches: {percent_text(share)} of the step; in a replayed graph, with "
            f"`--launch graph`, it takes {us_text(us)} us, {percent_text(1 - us / time_us)} less",
            time_us=time_us,
            changed_us=us,
            launch="graph",
        )


def _launches_us(device: Device, replay: StepReplay) -> float:
    """Microseconds of all launches."""
    cycles = sum(call.count * run.launch_cycles for call in replay.calls for run in call.runs)
    return device.time_us(cycles)
