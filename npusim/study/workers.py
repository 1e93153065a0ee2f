"""Where points are measured: in this process, in processes of this computer, or on Dask."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from npusim.base.errors import ArgumentError, NpusimError, PassingError, StoreError, told_as
from npusim.base.resources import optional
from npusim.base.workers import AHEAD, Workers
from npusim.reuse.cache import answers_in
from npusim.study.subject import Measured, Split, measure

#: Numbered points that are measured together, as what was read, and what became of them.
Chunk = Sequence[tuple[int, Split]]
Done = list[tuple[int, Measured]]

#: The file of runs of kernels ("": one of the user's cache), or None.
Runs = str | Path | None


def look(chunk: Chunk, runs: Runs = None) -> Done:
    """Measure points; what a point raises is told, not raised.

    Runs of kernels are kept in the file ``runs`` and found there again.
    """
    with answers_in(runs):
        return [(number, _one(parts)) for number, parts in chunk]


def _one(parts: Split) -> Measured:
    try:
        return Measured(measure(parts))
    except StoreError:
        raise
    except (NpusimError, MemoryError) as error:
        return failure(error)


def failure(error: Exception) -> Measured:
    """What is told of a point that failed."""
    passing = isinstance(error, PassingError | MemoryError)
    return Measured({}, f"{type(error).__name__}: {error}", passing)


def cpus() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def here(chunks: Iterator[Chunk], jobs: int, runs: Runs = None) -> Iterator[Done]:
    """Measure chunks in ``jobs`` processes (1: this one); results come as they are ready.

    Of chunks whose process dies every point has one of its own, so that the deadly one is known.
    """
    with Workers(jobs) as workers:
        points = partial(map, lambda point: [point])
        for _, done in workers.each(partial(look, runs=runs), chunks, _dead, points):
            yield done


def _dead(chunk: Chunk) -> Done:
    died = Measured({}, "the worker process died; out of memory, perhaps", passing=True)
    return [(number, died) for number, _ in chunk]


def on_dask(chunks: Callable[[int], Iterator[Chunk]], scheduler: str) -> Iterator[Done]:
    """Measure chunks on a Dask cluster; a worker that dies has its chunks measured elsewhere.

    ``chunks`` makes them for a number of workers.
    Raises ``ArgumentError`` where Dask is missing or the scheduler does not answer.
    """
    distributed = optional("dask.distributed", "a scheduler needs Dask", "distributed")
    silent = (OSError, ValueError, TimeoutError)
    with told_as(ArgumentError, f"the scheduler {scheduler!r} does not answer: ", silent):
        client = distributed.Client(scheduler, timeout="10s")
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            warnings.warn(
                f"the scheduler {scheduler!r} has no workers: the sweep waits for one; "
                f"`dask worker {scheduler}` starts one",
                stacklevel=2,
            )
            client.wait_for_workers(1)
            threads = sum(client.nthreads().values())
        futures = (client.submit(look, one, pure=False, retries=5) for one in chunks(threads))
        ready = distributed.as_completed(islice(futures, 2 * AHEAD * threads))
        for future in ready:
            yield future.result()
            ready.update(islice(futures, 1))
