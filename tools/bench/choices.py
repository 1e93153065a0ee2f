"""The cost of automatic tilings: CPU time of choosing, beside that of building and timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import npusim
from npusim.base.records import replace
from npusim.call.tilings.choice import CHOICES, TRIED, chosen
from npusim.machine.program.kernel import Kernel
from npusim.reuse.launches import RUNS, CachedLaunches
from npusim.reuse.programs import LONG_PROGRAMS, PROGRAMS, program_of
from tools.bench import programs
from tools.bench.figures import Figure, Settings
from tools.bench.simulator import forget
from tools.tilings.larger_machines import Gradient, kernel_of, layers

BATCHES = (1, 32)


def automatic(settings: Settings) -> Iterator[Figure]:
    """Choosing tilings for both gradients of all convolutions of ResNet-50, and launching them.

    The ratio is what the choice adds to building and timing the kernels with their tilings given.
    """
    device = npusim.load_device(programs.DEVICE)
    groups, made = tuple(range(device.groups)), (PROGRAMS, LONG_PROGRAMS, RUNS)
    engine = settings.engine or "fast"

    def launch(best: Kernel) -> None:
        launches = CachedLaunches(device, groups, engine)
        for one in (*best.before, best):
            if launches.known(one) is None:
                launches.time(one, program_of(one, device, groups))

    for batch in BATCHES:
        kernels = [
            kernel_of(Gradient(name, replace(shape, n=batch), which))
            for name, shape in layers("resnet50").items()
            for which in ("dx", "dw")
        ]
        for kernel in kernels[:2]:
            launch(chosen(kernel, device, groups))
        rounds = []
        for _ in range(settings.repeats):
            forget(CHOICES, TRIED, *made)
            begun = time.process_time()
            best = []
            for kernel in kernels:
                best.append(chosen(kernel, device, groups))
                launch(best[-1])
            middle = time.process_time()
            forget(*made)
            for kernel in best:
                launch(kernel)
            rounds.append((middle - begun, time.process_time() - middle))
        both, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
        note = f"{len(kernels)} gradients of ResNet-50, batch {batch}, 910B2"
        yield Figure(f"auto.batch{batch}", both, "s", f"CPU: chosen, built and timed, {note}")
        added = (both - alone) / alone
        yield Figure(
            f"auto.ratio{batch}", added, "x", "what choosing adds, over building and timing"
        )
