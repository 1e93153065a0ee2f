"""Random calls of all operators against float64: ``python -m tools.campaigns.random_calls 0 1 2``.

A call is what a command line could state: its sizes and options are drawn, its operands are random
numbers, and every output must be as near to the card's own float64 opinion as ``--check`` asks.
Calls that the chip or an operator refuses are drawn again, and counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from npusim.base.dtypes import DType
from npusim.base.errors import NpusimError
from npusim.cli.checks import checked
from npusim.cli.operands import make_operands
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.card import Sample, Stated
from npusim.problem.limits.table import documented_operators

#: Devices of the calls, by the role of the cores that an operator runs on.
CUBES = ("ascend310", "ascend310p", "ascend910", "ascend910b2", "ascend950pr", "tiny")
DEVICES = {"cube": CUBES, "vector": CUBES, "dsp": ("ft78ne", "mt7004")}

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A call: how it is stated, where it runs, and on which numbers."""

    operator: str
    options: Mapping[str, Any]
    dtype: DType
    device: str
    keywords: Mapping[str, Any]
    seed: int

    def run(self) -> list[str]:
        """Make the call; what is wrong with its outputs, in words.

        Raises ``NpusimError`` where the call is refused.
        """
        card, device = CARDS[self.operator], load_device(self.device)
        stated = Stated(
            operator=card.name,
            options={"dtype": self.dtype} | dict(self.options),
            arrays={},
            files={},
        )
        problem = card.problem(stated)
        native, plain = make_operands(card, problem, stated, seed=self.seed, timing_only=False)
        keywords = {"device": device, "timeline": False} | dict(self.keywords)
        result = card.call(problem, native, keywords)
        sample = Sample(problem=problem, arrays=plain, device=result.device)
        wrong = [str(one) for one in checked(result, card.outputs(problem), sample)
                 if not one.passed]  # fmt: skip
        if not all(np.isfinite(one).all() for one in result.outputs or () if one is not None):
            wrong.append("an output has numbers that are not finite")
        return wrong


def drawn(random: Random, name: str = "") -> Drawn:
    """Some call of an operator, of some one unless it is named; small enough for many."""
    name = name or random.choice(list(CARDS))
    card = CARDS[name]
    keywords: Options = {"cores": random.choice((None, None, None, 1, "0-1"))}
    if name in documented_operators():
        keywords["rules"] = "hardware"
    if "deterministic" not in card.without and name not in ("matmul", "convolution"):
        keywords["deterministic"] = random.random() < 0.1
    maker = _MAKERS.get(name, _layer)
    known = {option.name.replace("-", "_") for option in card.options}
    options = {key: value for key, value in maker(random).items() if key in known}
    if options.get("storage") == "private":
        keywords["cores"] = None
    return Drawn(
        operator=name,
        options=options,
        dtype=random.choice(card.dtypes),
        device=random.choice(DEVICES[card.role]),
        keywords=keywords,
        seed=random.randrange(1 << 30),
    )


def _layer(random: Random) -> Options:
    """Options of a convolution of one to three dimensions, of which an operator takes its own."""
    return _layer_of(random, random.choice((1, 2, 2, 3)))


def _layer_of(random: Random, dims: int) -> Options:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(dims))

    groups = random.choice((1, 1, 1, 2, 3, 17))
    most = max(1, 40 // groups)
    kernel, dilation, stride = each(1, 4 - (dims == 3)), each(1, 2), each(1, 3)
    before, after = each(0, 2), each(0, 2)
    even = random.random() < 0.5
    padding = tuple((a, a) if even else (a, b) for a, b in zip(before, after, strict=True))
    least = [
        max(1, d * (k - 1) + 1 - sum(p)) for d, k, p in zip(dilation, kernel, padding, strict=True)
    ]
    return {
        "batch": random.randint(1, 3),
        "cin": groups * random.randint(1, most),
        "cout": groups * random.randint(1, most),
        "size": tuple(random.randint(low, low + (8, 8, 4)[dims - 1]) for low in least),
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "transposed": random.choice((None, True)),
        "output_padding": tuple(random.randint(0, s - 1) for s in stride),
        "cube_math_type": random.choice((0, 0, 1, 2, 3)),
        "mask": random.choice(((True,) * 3, (True, False, True), (False, True, False))),
        "bias": random.choice((None, True)),
        "storage": random.choice(("shared", "gsm", "private")),
        "im2row_workspace": random.choice((None, True)),
    }


def _dims(dims: int, **fixed: Any) -> Callable[[Random], Options]:
    def make(random: Random) -> Options:
        options = _layer_of(random, dims) | fixed
        if not options["transposed"]:
            options["output_padding"] = None
        return options

    return make


def _any_layer(random: Random) -> Options:
    """Ordinary layers have no output padding, and layers of one or three dimensions even sides."""
    options = _layer(random)
    if not options["transposed"]:
        options["output_padding"] = None
    if len(options["size"]) != 2:
        options["padding"] = tuple((a, a) for a, _ in options["padding"])
    return options


def _dsp(*, transposed: bool) -> Callable[[Random], Options]:
    def make(random: Random) -> Options:
        options = _layer_of(random, 2)
        return options if transposed else options | {"output_padding": None}

    return make


def _windows(random: Random) -> Options:
    options = _layer_of(random, 2)
    options["padding"] = tuple((a, a) for a, _ in options["padding"])
    least = [
        max(1, d * (k - 1) + 1 - 2 * p)
        for d, k, (p, _) in zip(
            options["dilation"], options["kernel"], options["padding"], strict=True
        )
    ]
    options["size"] = tuple(random.randint(low, low + 12) for low in least)
    return options | {"channels": random.randint(1, 24), "batch": random.randint(0, 3)}


def _product(random: Random) -> Options:
    sizes = {name: random.randint(1, 200) for name in "mkn"}
    batch = {"batch": random.randint(1, 5)} if random.random() < 0.5 else {}
    turned = {name: random.random() < 0.5 for name in ("transpose_a", "transpose_b")}
    return sizes | batch | turned | {"bias": random.choice((None, True))}


_MAKERS: Mapping[str, Callable[[Random], Options]] = {
    **dict.fromkeys(("convolution", "convolution_backward"), _any_layer),
    **dict.fromkeys(("conv2d_backprop_filter", "conv2d_backprop_input"), _dims(2)),
    **dict.fromkeys(
        ("depthwise_conv2d_backprop_filter", "depthwise_conv2d_backprop_input"), _dims(2)
    ),
    **dict.fromkeys(("conv3d_backprop_filter", "conv3d_backprop_input"), _dims(3)),
    **dict.fromkeys(("im2col", "im2col_backward"), _windows),
    **dict.fromkeys(("conv_grad_filter", "conv_grad_input"), _dsp(transposed=False)),
    **dict.fromkeys(("deconv_grad_filter", "deconv_grad_input"), _dsp(transposed=True)),
    "matmul": _product,
}


#: How calls are drawn.
Draw = Callable[[Random], Drawn]


@dataclass(kw_only=True)
class Tally:
    """The outcomes of calls: how many ran and were refused by operator; the slowest; wrong ones."""

    ran: Counter[str]
    refused: Counter[str]
    reasons: Counter[str]
    slowest: tuple[float, str]
    wrong: list[str]


def campaign(seed: int, calls: int, seconds: float = float("inf"), draw: Draw = drawn) -> Tally:
    """Make ``calls`` calls of a seed, or as many as so many CPU seconds give."""
    random, begun = Random(seed), time.process_time()
    found = Tally(ran=Counter(), refused=Counter(), reasons=Counter(), slowest=(0.0, ""), wrong=[])
    for call in _until(random, begun + seconds, draw):
        if found.ran.total() == calls:
            break
        before = time.process_time()
        try:
            wrong = call.run()
        except NpusimError as error:
            found.refused[call.operator] += 1
            found.reasons[f"{call.operator}: {str(error)[:70]}"] += 1
            continue
        took = time.process_time() - before
        found.ran[call.operator] += 1
        found.slowest = max(found.slowest, (took, str(call)))
        found.wrong += [f"{call}: {one}" for one in wrong]
    return found


def _until(random: Random, end: float, draw: Draw) -> Iterator[Drawn]:
    while time.process_time() < end:
        yield draw(random)


def main(words: list[str], draw: Draw = drawn) -> int:
    """Run a campaign for every seed; 1 if a number is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.campaigns.random_calls", description=__doc__
    )
    parser.add_argument("seeds", type=int, nargs="+", help="each draws calls of its own")
    parser.add_argument("--calls", type=int, default=1000, help="per seed (default: 1000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="CPU, per seed")
    parser.add_argument("--refusals", action="store_true", help="say why calls were refused")
    arguments = parser.parse_args(words)
    failed = False
    for seed in arguments.seeds:
        begun = time.process_time()
        found = campaign(seed, arguments.calls, arguments.seconds, draw)
        took = time.process_time() - begun
        each = ", ".join(f"{name} {count}" for name, count in sorted(found.ran.items()))
        print(
            f"seed {seed}: {found.ran.total()} calls in {took:.0f} CPU s, {found.refused.total()} "
            f"refused, {len(found.wrong)} wrong, slowest {found.slowest[0]:.1f} s; {each}"
        )
        print(f"  slowest: {found.slowest[1]}")
        for text in found.wrong:
            print(f"  WRONG {text}")
        if arguments.refusals:
            for reason, count in found.reasons.most_common(40):
                print(f"  {count} x {reason}")
        failed |= bool(found.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
