"""Does the advice of a step help? ``python -m tests.networks.step_advice_followed``.

Each piece of advice that promises a saving names a change of the device or of the launch. Here a
whole new step is timed with that change, plan, tilings and cores chosen anew, and has to save at
least ``KEPT`` of what was promised. With ``--verdicts`` every part of the device is tried on every
operation: none may save more than the verdict's.

    python -m tests.networks.step_advice_followed                     all networks and chips below
    python -m tests.networks.step_advice_followed resnet18 ascend910  one of each
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import npusim
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.resources import faster
from npusim.networks.run.step_result import StepResult
from npusim.results.facts.replay import time_with
from npusim.results.facts.verdict import parts

#: Share of what advice promises that following it has to save.
KEPT = 0.8

#: Share of the time by which a part may save more than the verdict's. Transfers that share a link
#: take turns, and a faster part can change whose turn it is.
TOLERANCE = 0.01

#: Networks that are tried, with the images of a step.
NETWORKS = {
    "resnet18": 4,
    "resnet34": 2,
    "resnet50": 2,
    "vgg13": 1,
    "mobilenet_v1": 4,
    "mobilenet_v2": 2,
    "dcgan": 16,
    "efficientnet_b0": 1,
    "poolformer_s12": 1,
    "wavenet": 1,
}

CHIPS = ("ascend910", "ascend910b2", "ascend310p")


class Followed(NamedTuple):
    """A piece of advice, the share of the time that it promises and the one that it saves."""

    change: str
    promised: float
    saved: float

    @property
    def is_kept(self) -> bool:
        """Whether it saves enough."""
        return self.saved >= KEPT * self.promised


def followed(result: StepResult, network: str, chip: str, batch: int) -> Iterator[Followed]:
    """Every piece of advice of a step that promises a saving, followed."""
    for advice in result.advice:
        if not advice.figures and not advice.launch:
            continue
        launch = advice.launch or result.device.launch_mode
        step = npusim.step(
            network,
            device=load_device(chip, advice.figures),
            batch=batch,
            mode=result.setting.mode,
            launch=launch,
        )
        change = ", ".join(f"{name}={value}" for name, value in advice.figures.items())
        yield Followed(
            change or f"launch {launch}", advice.saves, 1 - step.time_us / result.time_us
        )


def refuted(result: StepResult) -> dict[str, float]:
    """Parts of the device that save more than the verdict's if they are twice as fast."""
    assert result.replay is not None
    assert result.verdict is not None
    current = figures(result.device)
    more = {}
    for name, paths in parts(result.device, result.replay.figures).items():
        doubled = faster(current, paths, Fraction(2))
        us = time_with(result.device, doubled, result.replay)
        if us is not None:
            saves = 1 - us / result.time_us
            if saves > (result.verdict.saves or 0.0) + TOLERANCE:
                more[name] = saves
    return more


def main(names: list[str]) -> int:
    """Follow the advice of steps; 1 if a promise was broken, or a verdict refuted."""
    networks = [name for name in names if name in NETWORKS] or [*NETWORKS]
    chips = [name for name in names if name in CHIPS] or [*CHIPS]
    wrong = 0
    for network in networks:
        batch = NETWORKS[network]
        for chip in chips:
            mode = "eager" if len(network) % 2 else "graph"
            begun = time.process_time()
            result = npusim.step(network, device=chip, batch=batch, mode=mode)
            simulated = time.process_time()
            verdict = result.verdict
            decided = time.process_time()
            assert verdict is not None
            cost = (decided - simulated) / (simulated - begun)
            print(
                f"{network} {chip} {mode}: {result.time_us:.1f} us, {verdict.name} saves "
                f"{verdict.saves:.1%}, {cost:.0%} of the step's CPU time",
                flush=True,
            )
            for advice in followed(result, network, chip, batch):
                state = "kept" if advice.is_kept else "BROKEN"
                wrong += not advice.is_kept
                print(f"  {state} {advice.change}: {advice.promised:.1%} -> {advice.saved:.1%}")
            if "--verdicts" in names:
                for name, saves in refuted(result).items():
                    wrong += 1
                    print(f"  REFUTED {name} saves {saves:.1%}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
