"""Has AccelForge map matrix products: run by a Python that has it, and by nothing else of npusim.

Standard input is JSON: ``products``, each m, n and k, and ``jobs``, the number of processes. So is
standard output: the ``cpu`` seconds of all, the ``seconds`` of each on the clock, and what was
``found``, cycles or why there are none.

The machine is one core of an Ascend 910B2 as ``configs/devices/ascend910b2.yaml`` has it: sizes,
rates of moves and a cube of 16 x 16 x 16. Operands go through L1 and the L0 of each, sums stay in
L0C; the mapper chooses tiles and loop orders for the least latency.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any

CLOCK = 1.8e9  # Hz
KIB = 1024 * 8  # bits

#: Memories by name: size in bits, what they hold, and bytes a cycle that are read and written.
MEMORIES: tuple[tuple[str, float, str, float, float], ...] = (
    ("Main", float("inf"), "All", 171, 72),
    ("L1", 512 * KIB, "A | B", 256, 171),
    ("L0A", 64 * KIB, "A", 512, 256),
    ("L0B", 64 * KIB, "B", 512, 128),
    ("L0C", 128 * KIB, "C", 1024, 1024),
)

#: Products before time is taken: what is compiled on the first use is compiled then.
FIRST = (64, 64, 64)


def main() -> None:
    """Answer the request on standard input."""
    request, answers = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # what AccelForge prints is no answer
    forge = importlib.import_module("accelforge")
    forge.set_n_parallel_jobs(request["jobs"])
    mapped(forge, *FIRST)
    begun = cpu_seconds()
    seconds: list[float] = []
    found: list[float | str] = []
    for product in request["products"]:
        start = time.perf_counter()
        try:
            found.append(mapped(forge, *product))
        except Exception as error:  # whatever a peer raises, the next product may be possible
            found.append(f"{type(error).__name__}: {error}")
        seconds.append(time.perf_counter() - start)
    end_processes(request["jobs"])
    answer = {"cpu": cpu_seconds() - begun, "seconds": seconds, "found": found}
    print(json.dumps(answer), file=answers)


def mapped(forge: Any, m: int, n: int, k: int) -> float:
    """Cycles of the best mapping of C[m, n] = A[m, k] @ B[k, n].

    Without ``eval_in_detail``, which draws the mapping with Graphviz and counts it once more.
    """
    spec = forge.Spec(arch=machine(forge.arch), workload=workload(m, n, k))
    spec.mapper.metrics = forge.Metrics.LATENCY
    found = forge.mapper.FFM.map_workload_to_arch(spec, print_progress=False, eval_in_detail=False)
    return float(found.data["Total<SEP>latency"].min()) * CLOCK


def machine(arch: Any) -> Any:
    """The core; each memory reads and writes at the same time."""
    free = {"energy": 0}
    memories = [
        arch.Memory(
            name=name,
            size=size,
            area=0,
            leak_power=0,
            tensors={"keep": kept},
            total_latency="max(a.n_calls / a.throughput for a in actions)",
            actions=[
                {"name": action, "bits_per_action": 8, "throughput": rate * CLOCK, **free}
                for action, rate in (("read", read), ("write", written))
            ],
        )
        for name, size, kept, read, written in MEMORIES
    ]
    only = [{"expression": f"~{axis}", "operator": "==", "value": 1} for axis in "mnk"]
    cube = [
        {"name": axis, "fanout": 16, "loop_bounds": [bound]}
        for axis, bound in zip("mnk", only, strict=True)
    ]
    multiply = {"name": "compute", "throughput": CLOCK, **free}
    multiplier = arch.Compute(name="Multiplier", area=0, leak_power=0, actions=[multiply])
    return arch.Arch(nodes=[*memories, arch.Container(name="Cube", spatial=cube), multiplier])


def workload(m: int, n: int, k: int) -> dict[str, Any]:
    """The product of two fp16 matrices with sums of fp32."""
    accesses = [
        {"name": "A", "projection": ["m", "k"]},
        {"name": "B", "projection": ["k", "n"]},
        {"name": "C", "projection": ["m", "n"], "output": True},
    ]
    return {
        "rank_sizes": {"M": m, "N": n, "K": k},
        "einsums": [{"name": "Product", "tensor_accesses": accesses}],
        "bits_per_value": {"A | B": 16, "C": 32},
    }


def cpu_seconds() -> float:
    """CPU seconds so far of this process and of those it started that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def end_processes(jobs: int) -> None:
    """End the processes that AccelForge works with, whose CPU time counts from then on."""
    if jobs > 1:
        importlib.import_module("joblib.externals.loky").get_reusable_executor().shutdown()


if __name__ == "__main__":
    main()
