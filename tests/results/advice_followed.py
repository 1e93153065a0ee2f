"""Does advice help when it is followed? ``python -m tests.results.advice_followed 0 1``.

Each sentence under *What would make it faster* that promises a saving names a change of the device
or of the launch. Here the call is made anew with that change and the same tilings, and has to save
at least ``KEPT`` of what was promised. Of each seed 100 random calls on all chips. How many promises
tilings that are chosen anew break is counted too: an automatic choice is an estimate.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from npusim.base.objects import replace
from npusim.device.catalog import load_device
from npusim.results import Result
from npusim.results.advice import Advice
from tests.ops.random_calls import Drawn
from tests.results.verdicts import results, timed

#: Share of what advice promises that following it has to save.
KEPT = 0.8


def followed(call: Drawn, result: Result, advice: Advice, *, anew: bool = False) -> Result | None:
    """The call with the change that a piece of advice names, and its tilings, or these chosen anew.

    Advice is given for the same tilings; how many cores vector kernels run on is chosen anew. None
    where the tilings that a result states do not make the same call.
    """
    tilings = {"tiling": result.tilings} if result.tilings and not anew else {}
    if tilings and _made(call, tilings).cycles != result.cycles:
        return None
    device = load_device(call.device, advice.figures)
    launch = {"launch": advice.launch} if advice.launch else {}
    return _made(call, {"device": device, **tilings, **launch})


def _made(call: Drawn, keywords: Mapping[str, Any]) -> Result:
    return timed(replace(call, keywords={**call.keywords, **keywords}))


def broken(call: Drawn, result: Result, *, anew: bool = False) -> list[str]:
    """The promises of a call that following them does not keep, with tilings as in ``followed``."""
    found = []
    for advice in result.advice:
        if not advice.figures and not advice.launch:
            continue
        made = followed(call, result, advice, anew=anew)
        if made is None:
            continue
        saved = 1 - made.time_us / result.time_us
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
            kinds["broken by tilings chosen anew"] += len(broken(call, result, anew=True))
        took = time.process_time() - begun
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        print(f"seed {seed}: {calls} calls on {len(chips)} chips, {took:.0f} CPU s; {told}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
