"""Is a verdict ever refuted, or a bound undercut? ``python -m tests.results.verdicts 0 1``.

The verdict of a call names the part of the device that saves most if it is twice as fast. Here all
parts are tried, none left out, and every single figure at half and at twice its value as
``npusim explain`` tries them. The clock is no part: everything but memory rests on it. No bound of
a kernel or of a call may be longer than it takes, from a cold or a warm L2.

    python -m tests.results.verdicts 0 1 2      100 random calls on all chips of each seed
    python -m tests.results.verdicts resnet18   a network that ships, on one chip
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import npusim
from npusim.base.errors import NpusimError
from npusim.base.records import replace
from npusim.cli.operands import make_operands
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.resources import LAUNCHES
from npusim.ops import CARDS
from npusim.ops.card import Stated
from npusim.results import Result
from npusim.results.facts.verdict import doubled_us, parts
from npusim.results.facts.what_if import what_if
from tools.campaigns.random_calls import Drawn, drawn

#: Share of the time by which another may save more. Transfers that share a link take turns, and
#: a faster part can change whose turn it is: a sum of two parts may save less than one of them.
TOLERANCE = 0.01


#: The clock is of all parts. How much the L2 fetches at least is no speed: less of it moves less.
NO_SPEEDS = ("clock", "l2.sector")


def results(seed: int, calls: int) -> Iterator[tuple[Drawn, Result]]:
    """``calls`` timed calls of a seed, half of them larger than ``random_calls`` draws them."""
    random, made = Random(seed), 0
    while made < calls:
        call = drawn(random)
        if made % 2:
            call = replace(call, options={k: _more(random, k, v) for k, v in call.options.items()})
        try:
            start = random.choice(("cold", "cold", "warm"))
            call = replace(call, keywords={**call.keywords, "start": start})
            yield call, timed(call)
        except NpusimError:
            continue
        made += 1


def _more(random: Random, name: str, value: Any) -> Any:
    factor = {"m": 16, "k": 16, "n": 16, "cin": 8, "cout": 8, "batch": 8, "channels": 8}
    if name == "size":
        return tuple(one * random.randint(1, 4) for one in value)
    return value * random.randint(1, factor[name]) if name in factor else value


def timed(call: Drawn) -> Result:
    """The time of a call; raises ``NpusimError`` where it is refused."""
    card = CARDS[call.operator]
    options = {"dtype": call.dtype} | dict(call.options)
    stated = Stated(operator=card.name, options=options, arrays={}, files={})
    problem = card.problem(stated)
    native, _ = make_operands(card, problem, stated, seed=0, timing_only=True)
    keywords = {"device": load_device(call.device), "timeline": False} | dict(call.keywords)
    return card.call(problem, native, keywords)


def undercut(result: Result) -> list[str]:
    """Bounds that are longer than what they bound, or than what they are the least of."""
    bounds = [
        (run.name, run.cycles, bound)
        for run in result.runs
        for bound in (*run.bounds, *run.problem_bounds)
    ]
    bounds += [("call", result.cycles, bound) for bound in result.problem_bounds]
    return [
        f"{name}: {bound} of {n}"
        for name, n, bound in bounds
        if not bound.least <= bound.cycles <= n
    ]


def of_network(name: str, device: str = "ascend910b2", **options: Any) -> list[str]:
    """What is wrong with the verdict and the bounds of a network.

    Its parts add up to its time. Launches of half the cycles save as much as is told, and no less
    than any other part in half its time, or every layer's own kernels.
    """
    found = npusim.network(name, device=device, **options)
    wrong = [text for one in found.timed if one.result for text in undercut(one.result)]
    if abs(sum(found.split.values()) - found.time_us) > 1e-6 * found.time_us:
        wrong.append(f"{found.split} do not add up to {found.time_us}")
    launches = parts(found.device, [n for n in figures(found.device) if n.startswith("launch.")])
    us = 0.0
    for one in found.timed:
        if one.result is None:  # a layer that the product's limits refuse
            continue
        assert one.result.replay is not None
        own = doubled_us(found.device, launches[LAUNCHES], one.result.replay)
        assert own is not None
        us += one.layer.count * own
    saved, told = found.time_us - us, found.split[LAUNCHES] / 2
    starts = TOLERANCE * found.time_us  # cores start in turn within a kernel, but as part of one
    if not told - 1 <= saved <= told + starts:
        wrong.append(f"launches in half the time save {saved:.3f} us and not {told:.3f}")
    return wrong


def refuted(result: Result) -> list[str]:
    """What saves more than the part that the verdict names."""
    assert result.replay is not None
    verdict = result.verdict
    assert verdict is not None
    assert verdict.double_us is not None, "of a call that is no longer than these"
    least = verdict.double_us - TOLERANCE * result.time_us
    device, replay = result.device, result.replay
    every = parts(device, replay.figures)
    times = {name: doubled_us(device, figures, replay) for name, figures in every.items()}
    found = [f"{name} {us:.3f}" for name, us in times.items() if us is not None and us < least]
    for one in what_if(device, result.time_us, replay):
        us = result.time_us - one.gain_us
        if one.figure not in NO_SPEEDS and us < least:
            found.append(f"{one.figure} {us:.3f}")
    return [f"{one} us, {verdict.name} {verdict.double_us:.3f} of {result.time_us:.3f}"
            for one in found]  # fmt: skip


def main(seeds: list[int], calls: int = 100) -> int:
    """Look at so many calls of each seed; 1 if a verdict was refuted."""
    wrong = 0
    for seed in seeds:
        begun, names, chips = time.process_time(), Counter[str](), set()
        for call, result in results(seed, calls):
            assert result.verdict is not None
            names[result.verdict.name] += 1
            chips.add(call.device)
            for text in (*refuted(result), *undercut(result)):
                print(f"REFUTED {call}: {text}", flush=True)
                wrong += 1
        took = time.process_time() - begun
        named = ", ".join(f"{name} {count}" for name, count in names.most_common())
        print(f"seed {seed}: {calls} calls on {len(chips)} chips, {took:.0f} CPU s; {named}")
    return int(wrong > 0)


if __name__ == "__main__":
    names = [word for word in sys.argv[1:] if not word.isdigit()]
    for name in names:
        print(name, of_network(name) or "as told", flush=True)
    sys.exit(main([int(word) for word in sys.argv[1:] if word.isdigit()]))
