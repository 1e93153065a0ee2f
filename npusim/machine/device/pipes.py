"""Names of the pipes of all machines, their work, and the order in which data meets them."""

from __future__ import annotations

from typing import NamedTuple


class PipeFacts(NamedTuple):
    """One pipe.

    ``work`` is what its instructions do. ``engine`` is the matrix or vector unit it drives, a key
    of the device file, and ``role`` that of the cores that need it for their own; "" where there
    is none. ``profiled`` are the names under which a profiler reports its busy time: the second,
    where there is one, is that on cores without a cube.
    """

    work: str
    engine: str = ""
    role: str = ""
    profiled: tuple[str, ...] = ()


#: Every pipe in the order data meets it.
PIPES = {
    "S": PipeFacts("scalar", profiled=("scalar",)),
    "MTE2": PipeFacts("load", profiled=("mte2", "aiv_mte2")),
    "MTE1": PipeFacts("feed", profiled=("mte1",)),
    "M": PipeFacts("cube", engine="cube", role="cube", profiled=("cube",)),
    "V": PipeFacts("vector", engine="vector", role="vector", profiled=("vec",)),
    "FIX": PipeFacts("store", profiled=("fixpipe",)),
    "MTE3": PipeFacts("store", profiled=("mte3",)),
    "DMA": PipeFacts("load"),
    "VPU": PipeFacts("vector", engine="gemm", role="dsp"),
}

#: Of a pipe that no machine has by this name.
_OTHER = PipeFacts("other")


def facts(pipe: str) -> PipeFacts:
    """A pipe by its name; one whose name only its device knows is just another pipe."""
    return PIPES.get(pipe, _OTHER)


#: Role of a core -> the pipe it needs.
PIPE_OF_ROLE = {facts.role: name for name, facts in PIPES.items() if facts.role}

#: Pipes whose instructions multiply matrices.
MATRIX_PIPES = tuple(name for name, facts in PIPES.items() if facts.engine in ("cube", "gemm"))
