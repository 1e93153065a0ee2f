"""Targets of the fuzzer: readers of files, the command line, and the arguments of operators.

A target takes one input and may only succeed or raise ``NpusimError``.
"""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any
from unittest.mock import patch

import npusim
from npusim.base.dtypes import FP16
from npusim.base.errors import NpusimError
from npusim.base.resources import configs
from npusim.call.call import Call
from npusim.cli.main import main
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.tiling import Tiling
from npusim.kernels.vendor.cann import load_cann_tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.traced import load_instructions, save_instructions
from npusim.machine.program.unwritten import check_mistakes
from npusim.silicon.choices import read_choices
from npusim.silicon.profile import read_profile
from npusim.silicon.sheet import read_sheet
from npusim.study.space import load_study
from npusim.workloads import load_workload
from npusim.workloads.layers import Layer
from tools.fuzz.mutations import SEEDS, WORDS, mutated, mutated_words

#: Sizes of operands that a fuzzed call may have at most; larger ones are left to other tests.
MOST_ELEMENTS = 1 << 14


@dataclass(frozen=True)
class Target:
    """``run`` takes an input as text; ``make`` gives a new one, near a seed or a corpus text."""

    run: Callable[[str], None]
    make: Callable[[Sequence[str], Random], str]
    seeds: Callable[[], list[str]]


# -- files -------------------------------------------------------------------------------------


def _file(suffix: str, text: str) -> Path:
    """``text`` in a file; what cannot be written as UTF-8 is written as it is."""
    place = Path(gettempdir()) / f"input{suffix}"
    place.write_bytes(text.encode("utf-8", "surrogatepass"))
    return place


def _near(texts: Sequence[str], random: Random) -> str:
    return mutated(random.choice(texts), texts, random)


def _device(text: str) -> None:
    """Read a device; if that works, look at it and build a program for it."""
    device = load_device(_file(".yaml", text))
    device.replace("clock", "1.5GHz")
    if "cube" in {role for kind in device.cores.values() for role in kind.roles}:
        a = Tensor("a", (32, 32), FP16)
        tiling = Tiling(base_m=16, base_n=16, base_k=16)
        kernel = Matmul(tiling, a, Tensor("b", (32, 32), FP16), Tensor("c", (32, 32), FP16, "out"))
        build(kernel, device, (0,))


def _workload(text: str) -> None:
    for layer in load_workload(_file(".yaml", text)).layers:
        assert isinstance(layer, Layer)
        assert layer.macs >= 0


def _shipped(folder: str, *names: str) -> list[str]:
    place = configs().joinpath(folder)
    return [place.joinpath(name).read_text(encoding="utf-8") for name in names]


def _seeds(*names: str) -> list[str]:
    return [(SEEDS / name).read_text(encoding="utf-8") for name in names]


def _head(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[:lines]) + "\n"


# -- instructions ------------------------------------------------------------------------------

_DEVICE = "ascend910b2"


@cache
def _trace_seeds() -> tuple[str, ...]:
    """The kernels of a small call, one of them with a stride, and what is written by hand."""
    kernels: dict[str, Kernel] = {}
    launch = Call.launch

    def seen(self: Call, kernel: Kernel, written_whole: str | None = None) -> None:
        launch(self, kernel, written_whole)
        kernels.setdefault(f"{kernel.name} {kernel.tiling_text}", kernel)

    dy, x, w = (npusim.spec(one, "fp16") for one in ((1, 4, 3, 3), (1, 4, 6, 6), (4, 4, 3, 3)))
    with patch.object(Call, "launch", seen):
        npusim.ops.convolution_backward(
            dy, x, w, stride=2, padding=1, device=_DEVICE, tiling="library"
        )
        npusim.ops.convolution_backward(dy, x, w, stride=2, padding=1, device=_DEVICE)
    # Also an operation known by its time between a load and a store, ordered by flags.
    file, texts = _file(".jsonl", ""), _seeds("timed.jsonl")
    for kernel in kernels.values():
        save_instructions(kernel, _DEVICE, file, "0")
        texts.append(file.read_text(encoding="utf-8"))
    return tuple(texts)


def _trace(text: str) -> None:
    """Time the instructions of a file, and look for mistakes in them."""
    kernel = load_instructions(_file(".jsonl", text))
    check_mistakes(build(kernel, load_device(_DEVICE), (0, 1)))
    if sum(tensor.size_bytes for tensor in kernel.tensors) < 1 << 24:  # some have numbers, too
        npusim.simulate(kernel, _DEVICE, cores="0-1", check=False)


#: What stands in the place of a value: of another type, at the end of a range, or far beyond it.
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 7, 255, 4096, 1 << 20, 1 << 31, 1 << 62, 1 << 63, 10**30),
    *(-(10**30), 1.5, -0.0, 1e300, float("nan"), float("inf"), "", "x", "GM", "fp32", [], {}, [1]),
    *([[]], [[["u", 0, 0, 32]]], {"u": 1}, ["u", 0, 0, 32], ["x", 0, 32], [0, 1, 2]),
)


def _make_trace(texts: Sequence[str], random: Random) -> str:
    """A text near one of these, or one of these with values in the place of others."""
    if random.random() < 0.3:
        return _near(texts, random)
    try:
        lines = [json.loads(line) for line in random.choice(texts).splitlines()]
    except ValueError:  # of the corpus
        return _near(texts, random)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(random.choice((lines[0], random.choice(lines))), random)
    nested = "[" * 10_000 if random.random() < 0.02 else ""
    return "\n".join(map(json.dumps, lines)) + nested


def _change(at: Any, random: Random) -> None:
    """Another value in the place of one at any depth of an object or list; a key more or less."""
    places = list(at) if isinstance(at, dict) else list(range(len(at)))
    if not places or (isinstance(at, dict) and random.random() < 0.1):
        if isinstance(at, dict):
            at[random.choice(("sixth", "matrices", "apart", "cycles", "anywhere", "slots"))] = (
                10**30
            )
        return
    place = random.choice(places)
    if isinstance(at[place], dict | list) and random.random() < 0.8:
        _change(at[place], random)
    elif random.random() < 0.1:
        del at[place]
    elif isinstance(at, list) and random.random() < 0.1:
        at.insert(place, deepcopy(random.choice(_ODD)))
    else:
        odd = random.choice((*_ODD, at[place] * 2 if isinstance(at[place], int) else None))
        at[place] = deepcopy(odd)


# -- command lines -----------------------------------------------------------------------------

COMMANDS = tuple(map(shlex.split, _seeds("commands.txt")[0].splitlines()))


def _command(text: str) -> None:
    """Run a command as ``npusim`` would; it may exit with 0, 1 or 2 and says so itself."""
    words = json.loads(text)
    if {"play", "explore", "fit", "validate", "--scheduler"} & set(words):
        return  # serve until they are stopped, or take minutes by right
    if {"tune", "--jobs"} & set(words) and "--jobs 1" not in " ".join(words):
        return  # processes of their own
    out, error = io.StringIO(), io.StringIO()
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(error),
            patch.object(sys, "stdin", io.StringIO()),
        ):
            status = main(words)
    except SystemExit as end:  # argparse's own way out
        status = end.code if isinstance(end.code, int) else 1
    assert status in (0, 1, 2), f"status {status}"
    assert "Traceback" not in error.getvalue(), error.getvalue()


def _make_command(texts: Sequence[str], random: Random) -> str:
    every = [word for command in COMMANDS for word in command]
    return json.dumps(mutated_words(json.loads(random.choice(texts)), every, random))


# -- operators ---------------------------------------------------------------------------------

CALLS: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    call for line in _seeds("calls.jsonl")[0].splitlines() for call in json.loads(line).items()
)

_TENSORS = {"a", "b", "grad_output", "input", "weight", "bias", "x", "out_backprop"}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, -1, 7, 1.5, float("nan"), "x", "auto", "", [], [1], [1, 1]),
    *([1, 1, 1], [0, 1], [-1, 2], [2, 3, 4, 5], {}, {"a": 1}, 1 << 31, 1 << 62, 10**40, "fp16"),
)
_SHAPES: tuple[Any, ...] = (
    *([], [0], [1], [4, 4], [1, 4, 6], [0, 4, 6, 6], [1, 4, 0, 6], [2, 4, 6, 6], [1, 4, 2, 6, 6]),
    *([1, 1, 1, 1, 1, 1], None),
)
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "device": ("tiny", "ascend910", "ascend910b2", "ascend950pr", "mt7004", "x", None, 3),
    "dtype": ("fp16", "bf16", "fp32", "int8"),
    "cores": (None, 1, 3, 0, -1, "0-1", "0,2", "9-3", "x", [0], [99], 1 << 70, 1.5),
    "tiling": ("auto", "tuned", "production", "x", None, 3, {"matmul": "auto"}, {"x": 1}),
    "engine": ("fast", "simpy", "x", None),
    "launch": ("single", "graph", "x", 1),
    "start": ("cold", "warm", "x", 1),
    "rules": ("documented", "strict", "hardware", "x"),
    "timeline": (True, False, None, "x"),
}


def _make_call(texts: Sequence[str], random: Random) -> str:
    operator, usual = random.choice(CALLS)
    arguments: dict[str, Any] = {**usual, "device": "ascend910b2", "dtype": "fp16"}
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        name = random.choice((*usual, *_OPTIONS))
        if name in _TENSORS:
            arguments[name] = random.choice(_SHAPES)
        elif name in _OPTIONS and random.random() < 0.8:
            arguments[name] = random.choice(_OPTIONS[name])
        elif isinstance(arguments.get(name), dict) and arguments[name] and random.random() < 0.8:
            inner = random.choice(list(arguments[name]))
            arguments[name] = {**arguments[name], inner: random.choice(_VALUES)}
        elif random.random() < 0.1:
            arguments.pop(name, None)
        else:
            arguments[name] = random.choice(_VALUES)
    return json.dumps({"operator": operator, **arguments})


def _call(text: str) -> None:
    """Call an operator for its time alone, and sometimes by position."""
    given = json.loads(text)
    operator, dtype = given.pop("operator"), given.pop("dtype", "fp16")
    for name in _TENSORS & given.keys():
        shape = given[name]
        if shape is not None:
            given[name] = npusim.spec(tuple(shape), dtype if isinstance(dtype, str) else "fp16")
    function: Callable[..., Any] = getattr(npusim.ops, operator)
    try:
        function(**given)
    except TypeError as error:  # an argument that is missing or unknown, as Python says it
        if "argument" not in str(error):
            raise


def _words_of(commands: Sequence[Sequence[str]]) -> list[str]:
    return [json.dumps(list(words)) for words in commands]


@cache
def _device_seeds() -> tuple[str, ...]:
    return tuple(_shipped("devices", "tiny.yaml", "tiny.yaml", "mt7004.yaml", "ascend910b3.yaml"))


@cache
def _choices() -> Any:
    (text,) = _shipped("profiles", "op_summary.yaml")
    return read_choices(_file(".choices.yaml", text))


TARGETS: dict[str, Target] = {
    "device": Target(_device, _near, lambda: list(_device_seeds())),
    "workload": Target(
        _workload,
        _near,
        lambda: _shipped("workloads", "resnet18.yaml", "wavenet.yaml", "dcgan.yaml"),
    ),
    "tiling": Target(lambda text: void(load_cann_tiling(_file(".yaml", text))), _near,
                     lambda: _seeds("cann.yaml")),
    "study": Target(lambda text: void(load_study(_file(".yaml", text))), _near,
                    lambda: _seeds("study.yaml", "exploration.yaml")),
    "choices": Target(lambda text: void(read_choices(_file(".yaml", text))), _near,
                      lambda: _shipped("profiles", "op_summary.yaml")),
    "sheet": Target(
        lambda text: void(read_sheet(_file(".csv", text))), _near,
        lambda: [_head(t, 12) for t in _shipped("silicon", "kernels.csv", "calls.csv")],
    ),
    "profile": Target(
        lambda text: void(read_profile(_file(".csv", text), "910B2", _choices())), _near,
        lambda: [_head(t, 12) for t in _shipped("profiles", "op_summary.csv")],
    ),
    "instructions": Target(_trace, _make_trace, lambda: list(_trace_seeds())),
    "command": Target(_command, _make_command, lambda: _words_of(COMMANDS)),
    "call": Target(_call, _make_call, lambda: [json.dumps({"operator": o, **a, "device": "tiny"})
                                               for o, a in CALLS]),
}  # fmt: skip


def void(_: object) -> None:
    """Nothing: a reader's answer is of no interest here."""


def tried(target: Target, text: str) -> BaseException | None:
    """The outcome of one input: None if it was taken, an ``NpusimError``, or a finding."""
    try:
        target.run(text)
    except NpusimError as refused:
        return refused
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        return error
    return None


__all__ = ["MOST_ELEMENTS", "TARGETS", "WORDS", "Target", "tried"]
