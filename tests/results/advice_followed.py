"""Does advice help when it is followed? ``python -m tests.results.advice_followed 0 1``.

Each sentence under *What would make it faster* that promises a saving names a change of the device
or of the launch. Here the call is made anew with that change, and has to save at least ``KEPT`` of
what was promised, with tilings that are chosen anew or with those it had. Of each seed 100 random
calls on all chips. How often tilings chosen anew alone would not do is counted: they are chosen by
estimates.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.results import Result
from npusim.results.facts.advice import Advice
from tests.results.verdicts import results, timed
from tools.campaigns.random_calls import Drawn

#: Share of what advice promises that following it has to save.
KEPT = 0.8


def saved(call: Drawn, result: Result, advice: Advice, *, anew: bool) -> float:
    """Share of the time that the change of a piece of advice saves.

    Tilings are chosen ``anew``, or are those that the result states.
    """
    keywords: dict[str, Any] = {"device": load_device(call.device, advice.figures)}
    if advice.launch:
        keywords["launch"] = advice.launch
    if result.tilings and not anew:
        keywords["tiling"] = result.tilings
    made = timed(replace(call, keywords={**call.keywords, **keywords}))
    return 1 - made.time_us / result.time_us


def broken(call: Drawn, result: Result, counts: Counter[str] | None = None) -> list[str]:
    """The promises of a call that following them does not keep; what there is, is counted."""
    found = []
    counts = Counter() if counts is None else counts
    for advice in result.advice:
        if not advice.figures and not advice.launch:
            counts["facts"] += 1
            continue
        counts["promises"] += 1
        enough = KEPT * advice.saves
        share = saved(call, result, advice, anew=True)
        if share < enough:
            counts["kept with the same tilings only"] += 1
            share = saved(call, result, advice, anew=False)
        if share < enough:
            found.append(f"{share:.1%} in place of {advice.saves:.1%}: {advice.text}")
    return found


def main(seeds: list[int], calls: int = 100) -> int:
    """Follow the advice of so many calls of each seed; 1 if a promise was broken."""
    wrong = 0
    for seed in seeds:
        begun = time.process_time()
        counts, chips = Counter[str](), set()
        for call, result in results(seed, calls):
            chips.add(call.device)
            for text in broken(call, result, counts):
                print(f"BROKEN {call}: {text}", flush=True)
                wrong += 1
        took = time.process_time() - begun
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"seed {seed}: {calls} calls on {len(chips)} chips, {took:.0f} CPU s; {told}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
