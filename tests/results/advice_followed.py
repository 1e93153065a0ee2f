"""Does advice help when it is followed? ``python -m tests.results.advice_followed 0 1``.

Each sentence under *What would make it faster* that promises a saving names a change of the device
or of the launch. Here the call is made anew with that change, its tilings chosen anew too, and has
to save at least ``KEPT`` of what was promised. Of each seed 100 random calls on all chips.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from npusim.base.objects import replace
from npusim.device.catalog import load_device
from npusim.results import Result
from npusim.results.advice import Advice
from tests.ops.random_calls import Drawn
from tests.results.verdicts import results, timed

#: Share of what advice promises that following it has to save.
KEPT = 0.8


def followed(call: Drawn, advice: Advice) -> Result:
    """The call with the change that a piece of advice names."""
    device = load_device(call.device, advice.figures)
    keywords = {**call.keywords, "device": device}
    if advice.launch:
        keywords["launch"] = advice.launch
    return timed(replace(call, keywords=keywords))


def broken(call: Drawn, result: Result) -> list[str]:
    """The promises of a call that following them does not keep."""
    found = []
    for advice in result.advice:
        if not advice.figures and not advice.launch:
            continue
        us = followed(call, advice).time_us
        saved = 1 - us / result.time_us
        if saved < KEPT * advice.saves:
            found.append(f"{saved:.1%} in place of {advice.saves:.1%}: {advice.text}")
    return found


def main(seeds: list[int], calls: int = 100) -> int:
    """Follow the advice of so many calls of each seed; 1 if a promise was broken."""
    wrong = 0
    for seed in seeds:
        begun = time.process_time()
        kinds, chips = Counter[str](), set()
        for call, result in results(seed, calls):
            chips.add(call.device)
            kinds.update("promises" if one.saves else "facts" for one in result.advice)
            for text in broken(call, result):
                print(f"BROKEN {call}: {text}", flush=True)
                wrong += 1
        took = time.process_time() - begun
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        print(f"seed {seed}: {calls} calls on {len(chips)} chips, {took:.0f} CPU s; {told}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
