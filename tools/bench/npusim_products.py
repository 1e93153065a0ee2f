"""Times matrix products with tilings chosen by npusim, in a process that knows nothing.

Standard input is JSON: ``products``, each m, n and k, ``jobs``, the number of processes, ``cores``
of the device, None for all, and ``engine``. So is standard output: ``wall`` and ``cpu`` seconds and
the cycles ``found``. Equal products are simulated once.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import npusim
from npusim.base.workers import Workers
from tools.bench import programs
from tools.bench.accelforge_products import FIRST, cpu_seconds


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    cycles_of = partial(cycles, cores=request["cores"], engine=request["engine"])
    cycles_of(FIRST)
    begun, wall = cpu_seconds(), time.perf_counter()
    distinct = [*dict.fromkeys(map(tuple, request["products"]))]
    with Workers(request["jobs"]) as workers:
        found = {distinct[place]: one for place, one in workers.each(cycles_of, distinct, str)}
    wall = time.perf_counter() - wall
    cpu = cpu_seconds() - begun
    answers = [found[tuple(product)] for product in request["products"]]
    print(json.dumps({"wall": wall, "cpu": cpu, "found": answers}))


def cycles(product: tuple[int, int, int], cores: str | None, engine: str) -> int:
    """Cycles of C[m, n] = A[m, k] @ B[k, n] in fp16 with its automatic tiling."""
    m, n, k = product
    a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
    result = npusim.ops.matmul(
        a, b, device=programs.DEVICE, cores=cores, engine=engine, timeline=False
    )
    return result.cycles


if __name__ == "__main__":
    main()
