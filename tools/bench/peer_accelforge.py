"""AccelForge: a mapper with an analytical model. Needs ``accelforge``, in a Python of its own.

It asks for versions of packages that npusim's environment need not have, and for Python 3.12:
``python3.12 -m venv FOLDER``, ``FOLDER/bin/pip install accelforge``, and the environment variable
``ACCELFORGE_PYTHON`` is ``FOLDER/bin/python``. Without it this Python is tried.

Both simulators are asked for the filter gradients of all layers of a network, as products, on one
processor and on all. Each does so in a process of its own; its start, its imports and a first small
product are in no figure. AccelForge shares nothing between equal products; npusim does, and is
also asked for as often as a product comes, each time by a process that does not know it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npusim.workloads import load_workload
from tools.bench import programs
from tools.bench.commands import Spent, spent
from tools.bench.figures import Figure, NotAvailableError, Settings
from tools.bench.history import LOOP
from tools.bench.peers import NETWORK, Product, filter_product

ROOT = Path(__file__).parents[2]

#: What the Python that has AccelForge runs.
SCRIPT = Path(__file__).with_name("accelforge_products.py")

#: The Python that has AccelForge.
VARIABLE = "ACCELFORGE_PYTHON"

#: Images of the gradients.
BATCH = 32

#: Seconds after which a process is ended.
PATIENCE = 1800

#: Cores of the device that npusim simulates, by their name in figures.
CORES = {"one_core": "0", "all_cores": None}

REMARK = (
    "AccelForge: one core of the 910B2 as L1, L0 and a cube of 16x16x16 with the rates of its "
    "device file; the mapper looks for the least latency over tiles that divide the sizes, without "
    "evaluating its choice in detail. Not expressed: start-ups, slots and flags, several cores "
    "that share memory, tiles that leave a rest, layout conversions, instructions, numbers."
)


def accelforge(settings: Settings) -> Iterator[Figure | str]:
    """AccelForge and npusim on the filter gradients of a network, on one processor and on all."""
    python = os.environ.get(VARIABLE, sys.executable)
    title = installed(python)
    yield REMARK
    allowed = sorted(os.sched_getaffinity(0))
    every = products(BATCH)[:: settings.divisor]
    for kind, processors in (("one", allowed[:1]), ("all", allowed)):
        loop = statistics.median(
            spent([sys.executable, "-c", LOOP], processors).cpu for _ in range(3)
        )
        answer = _asked([python, str(SCRIPT)], processors, every)
        failed = {p: one for p, one in zip(every, answer["found"], strict=True) if type(one) is str}
        yield from (f"AccelForge does not map {product}: {why}" for product, why in failed.items())
        done = [product for product in every if product not in failed]
        took = [*zip(every, answer["seconds"], strict=True)]
        peer = Spent(answer["cpu"], sum(took_s for one, took_s in took if one not in failed))
        distinct = {one: took_s for one, took_s in took if one not in failed}
        yield Figure(
            f"accelforge.{kind}",
            peer.wall,
            "s",
            f"{title}, once, {len(processors)} processors: {len(done)} of {len(every)} filter "
            f"gradients of {NETWORK}, batch {BATCH}, as products; CPU {peer.cpu:.2f} s; each "
            f"distinct one once {sum(distinct.values()):.2f} s; a loop is {loop:.2f} s",
        )
        for where, cores in CORES.items():
            for name, lists in (("shared", [done]), ("each", rounds(done))):
                own = _ours(lists, processors, cores, settings)
                words = "once" if name == "shared" else "anew"
                note = (
                    f"over npusim, {where.replace('_', ' ')} of {programs.DEVICE}, equal products "
                    f"{words}: {own.wall:.3f} s; CPU {peer.cpu / own.cpu:.1f} x: {own.cpu:.3f} s"
                )
                yield Figure(f"accelforge.{name}_{kind}_{where}", peer.wall / own.wall, "x", note)


def products(batch: int) -> list[Product]:
    """The filter gradients of all layers, equal ones as often as they come."""
    layers = load_workload(NETWORK).convolutions
    return [
        Product(one.m, one.n, batch * one.k)
        for layer in layers
        for one in layer.count * [filter_product(layer)]
    ]


def rounds(every: Sequence[Product]) -> list[list[Product]]:
    """The products in lists without equal ones, as few as there can be."""
    found: list[list[Product]] = []
    for product, count in Counter(every).items():
        for number in range(count):
            found += [[]] if number == len(found) else []
            found[number].append(product)
    return found


def installed(python: str) -> str:
    """The version of AccelForge there; raises ``NotAvailableError`` where there is none."""
    code = "import importlib.metadata as m; print('AccelForge', m.version('accelforge'))"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        words = f"{python} has no accelforge; name one that has in {VARIABLE} (see tools/README.md)"
        raise NotAvailableError(words) from error
    return found.stdout.strip()


def _ours(
    lists: Sequence[Sequence[Product]],
    processors: Sequence[int],
    cores: str | None,
    settings: Settings,
) -> Spent:
    """What npusim takes for these lists, each in a process of its own; a median."""
    command = [sys.executable, "-m", "tools.bench.npusim_products"]
    asked = {"cores": cores, "engine": programs.engine_name(settings)}
    sums = []
    for _ in range(settings.repeats):
        answers = [_asked(command, processors, products, **asked) for products in lists]
        sums.append([sum(answer[name] for answer in answers) for name in Spent._fields])
    return Spent(*map(statistics.median, zip(*sums, strict=True)))


def _asked(
    command: Sequence[str], processors: Sequence[int], every: Sequence[Product], **more: Any
) -> Any:
    """The answer of a process that runs on these processors."""
    request = {"products": [(one.m, one.n, one.k) for one in every], "jobs": len(processors)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=json.dumps(request | more),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    return json.loads(done.stdout)
