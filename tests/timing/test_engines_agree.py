"""Every engine gives the reference's cycles, rows and L2 content, on random programs and operators.

``python -m tests.timing.test_engines_agree`` prints how often the random programs show what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

import npusim
from npusim import layout
from npusim.base.errors import ProgramError
from npusim.base.reasons import FOLLOW, REASONS
from npusim.device.parts import SCOPES
from npusim.program.program import ATOMIC, MOVE, Program
from npusim.timing.outcome import L2
from npusim.timing.run import ENGINES, new_l2, time_program
from npusim.timing.trace import KernelRun, Timeline
from tests.drawn import of_each_kind
from tests.timing.random_programs import Case, random_case

REFERENCE = "simpy"
OTHERS = [engine for engine in ENGINES if engine != REFERENCE]

#: Seeds of one test.
CHUNK, SLOW_CHUNK = 20, 250


def attempt(program: Program, l2: L2, *, timeline: bool = True) -> KernelRun | str:
    """The run, or the text of the error that ends it."""
    try:
        return time_program(program, l2, timeline=timeline)
    except ProgramError as error:
        return str(error)


def disagreement(case: Case, engine: str) -> str:
    """The first thing the engine gets wrong on a case; empty if it gets everything right.

    Every fourth case is run without a timeline, as long programs are.
    """
    expected_l2, actual_l2 = (new_l2(case.device, e) for e in (REFERENCE, engine))
    timeline = case.seed % 4 > 0
    for number, program in enumerate(case.programs):
        expected = attempt(program, expected_l2, timeline=timeline)
        actual = attempt(program, actual_l2, timeline=timeline)
        found = difference(expected, actual)
        found = found or first_row("L2 block", expected_l2.content(), actual_l2.content())
        if found:
            return f"seed {case.seed}, program {number} on {case.device.name}: {found}"
        if isinstance(expected, str):  # an error ends the call
            break
    return ""


def difference(expected: KernelRun | str, actual: KernelRun | str) -> str:
    """The first difference of two outcomes in words, the earliest instruction first."""
    if isinstance(expected, str) or isinstance(actual, str):
        return "" if expected == actual else f"expected {expected!r}, got {actual!r}"
    if expected.timeline and actual.timeline:
        found = _instruction(expected.timeline, actual.timeline)
        if found:
            return found
    for field in fields(KernelRun):
        left, right = getattr(expected, field.name), getattr(actual, field.name)
        if isinstance(left, tuple):
            found = first_row(field.name, left, right)
            if found:
                return found
        elif field.name != "timeline" and left != right:
            return f"{field.name}: expected {left}, got {right}"
    return "" if (expected.timeline is None) == (actual.timeline is None) else "one timeline"


def first_row(name: str, expected: Sequence[object], actual: Sequence[object]) -> str:
    """The first row that differs, in words."""
    for i, (left, right) in enumerate(zip(expected, actual, strict=False)):
        if left != right:
            return f"{name} {i}: expected {left}, got {right}"
    if len(expected) != len(actual):
        return f"{name}: expected {len(expected)} rows, got {len(actual)}"
    return ""


def _instruction(expected: Timeline, actual: Timeline) -> str:
    """The first instruction, in order of start, that differs in anything."""
    rows, others = _rows(expected), _rows(actual)
    for i, (left, right) in enumerate(zip(rows, others, strict=False)):
        if left != right:
            where = " ".join(left[name] for name in ("core", "pipe", "op", "line"))
            wrong = [f"{n} {left[n]} -> {right[n]}" for n in left if left[n] != right[n]]
            return f"instruction {i}, {where}, expected -> got: {', '.join(wrong)}"
    return "" if len(rows) == len(others) else f"{len(others)} instructions, not {len(rows)}"


def _rows(t: Timeline) -> list[dict[str, Any]]:
    """A timeline as one mapping per instruction, with names for indices."""
    columns: dict[str, list[Any]] = {
        name: [names[i] for i in getattr(t, name)]
        for name, names in (("core", t.cores), ("pipe", t.pipes), ("op", t.ops), ("line", t.lines))
    }
    columns |= {name: getattr(t, name).tolist() for name in ("start", "end", "bytes", "macs")}
    columns |= {"reason": [REASONS[i] for i in t.reason], "waited": t.waited.tolist()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def assert_agree(seeds: range, engine: str) -> None:
    wrong = [text for seed in seeds if (text := disagreement(random_case(seed), engine))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
@pytest.mark.parametrize("engine", OTHERS)
def test_random_programs(engine: str, first: int) -> None:
    assert_agree(range(first, first + CHUNK), engine)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 11_000, SLOW_CHUNK))
@pytest.mark.parametrize("engine", OTHERS)
def test_ten_thousand_random_programs(engine: str, first: int) -> None:
    assert_agree(range(first, first + SLOW_CHUNK), engine)


# -- operators -----------------------------------------------------------------------------

Call = Callable[..., npusim.Result]

#: What the device can do, whatever is documented; matmul has no documented limits.
HARDWARE: dict[str, Any] = {"rules": "hardware"}
Shape = tuple[int, ...]


def backward(dy: Shape, x: Shape, w: Shape, kind: str = "fp16", **options: Any) -> Call:
    """convolution_backward of grad_output, input and weight of these shapes."""
    a, b, c = (npusim.spec(shape, kind) for shape in (dy, x, w))
    return partial(
        npusim.ops.convolution_backward, a, b, c, (dy[1],), padding=1, **HARDWARE, **options
    )


def filter_gradient() -> Call:
    x, dy = npusim.spec((2, 2, 6, 7, 16), "fp16"), npusim.spec((2, 1, 6, 7, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    return partial(npusim.ops.conv2d_backprop_filter, x, dy, [16, 32, 3, 3], para, **HARDWARE)


def input_gradient() -> Call:
    """conv3d_backprop_input of 16 -> 32 channels, kernel 1x3x3: 9 x 2 fractals of weights."""
    w, dy = npusim.spec((9, 2, 16, 16), "fp16"), npusim.spec((1, 2, 2, 5, 6, 16), "fp16")
    groups = layout.group_dict(layout.group_plan(16, 32, 1, 16))
    para = {"strides": [1] * 5, "pads": [0, 0, 1, 1, 1, 1], "dilations": [1] * 5}
    sizes = (32, 16, 1, 3, 3), [1, 2, 5, 6, 16]
    para_list = para | {"group_dict": groups}
    return partial(npusim.ops.conv3d_backprop_input, w, dy, *sizes, para_list, **HARDWARE)


def plane_gradient() -> Call:
    w, dy = npusim.spec((9, 2, 16, 16), "fp16"), npusim.spec((2, 2, 5, 6, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    sizes = (32, 16, 3, 3), (2, 16, 5, 6)
    return partial(npusim.ops.conv2d_backprop_input, w, dy, *sizes, para, **HARDWARE)


def depthwise_gradient(name: str) -> Call:
    """A depth-wise gradient of 40 channels, kernel 3."""
    x, dy = npusim.spec((2, 3, 6, 7, 16), "fp16"), npusim.spec((2, 3, 6, 7, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    function = partial(getattr(npusim.ops, f"depthwise_conv2d_backprop_{name}"))
    if name == "filter":
        return partial(function, x, dy, (40, 1, 3, 3), para, **HARDWARE)
    w = npusim.spec((27, 1, 16, 16), "fp16")
    return partial(function, w, dy, (40, 1, 3, 3), (2, 40, 6, 7), para, **HARDWARE)


def volume_filter_gradient() -> Call:
    x, dy = npusim.spec((2, 3, 1, 5, 6, 16), "fp16"), npusim.spec((2, 3, 2, 5, 6, 16), "fp16")
    para = {"strides": [1] * 3, "pads": [1] * 6, "dilations": [1] * 5, "groups": 2}
    sizes = (32, 8, 3, 3, 3)
    return partial(npusim.ops.conv3d_backprop_filter, x, dy, sizes, para, **HARDWARE)


def fold(kind: str) -> Call:
    grad = npusim.spec((2, 20 * 9, 5 * 6), kind)
    return partial(
        npusim.ops.im2col_backward, grad, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), **HARDWARE
    )


def time_first() -> Call:
    x, dy = npusim.spec((9, 2, 20), "fp16"), npusim.spec((9, 2, 12), "fp16")
    w, bias = npusim.spec((3, 20, 12), "fp16"), npusim.spec((12,), "fp16")
    return partial(npusim.ops.conv_tbc_backward, dy, x, w, bias, 1, **HARDWARE)


def unfold(kind: str) -> Call:
    image = npusim.spec((2, 20, 7, 6), kind)
    return partial(npusim.ops.im2col, image, (3, 3), (1, 1), (1, 1), (2, 1), **HARDWARE)


def dsp_filter(storage: str) -> Call:
    dy, x = npusim.spec((2, 9, 10, 8), "fp32"), npusim.spec((2, 7, 8, 20), "fp32")
    param = [2, 7, 8, 20, 2, 9, 10, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    return partial(npusim.ops.deconv_grad_filter, dy, x, param, storage=storage, **HARDWARE)


def dsp_gradient(name: str) -> Call:
    dy = npusim.spec((2, 9, 10, 8), "fp32")
    other = npusim.spec((2, 7, 8, 20) if name.endswith("filter") else (1, 72, 20), "fp32")
    param = [2, 7, 8, 20, 2, 9, 10, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0]
    return partial(getattr(npusim.ops, name), dy, other, param, **HARDWARE)


def product() -> Call:
    a, b = npusim.spec((130, 70), "fp16"), npusim.spec((70, 90), "fp16")
    return partial(npusim.ops.matmul, a, b)


PLANE = ((2, 32, 6, 7), (2, 48, 6, 7), (32, 48, 3, 3))
WIDER = ((1, 16, 11, 13), (1, 32, 6, 7), (32, 16, 3, 3))

#: Every operator by the role of the cores it needs; device and engine are still to come.
CALLS: dict[str, dict[str, Call]] = {
    "cube": {
        "1-D": backward((2, 32, 9), (2, 16, 9), (32, 16, 3)),
        "2-D": backward(*PLANE),
        "2-D deterministic": backward(*PLANE, deterministic=True),
        "2-D warm": backward(*PLANE, start="warm"),
        "2-D fp32": backward(*PLANE, "fp32", cube_math_type=2),
        "3-D": backward((1, 32, 2, 5, 6), (1, 16, 2, 5, 6), (32, 16, 3, 3, 3)),
        "transposed": backward(*WIDER, stride=2, transposed=True),
        "groups": backward((1, 32, 6, 7), (1, 32, 6, 7), (32, 8, 3, 3), groups=4),
        "conv2d_backprop_filter": filter_gradient(),
        "conv2d_backprop_input": plane_gradient(),
        "conv_tbc_backward": time_first(),
        "depthwise_conv2d_backprop_filter": depthwise_gradient("filter"),
        "depthwise_conv2d_backprop_input": depthwise_gradient("input"),
        "conv3d_backprop_filter": volume_filter_gradient(),
        "conv3d_backprop_input": input_gradient(),
        "matmul": product(),
    },
    "vector": {
        "im2col_backward fp16": fold("fp16"),
        "im2col_backward fp32": fold("fp32"),
        "im2col fp16": unfold("fp16"),
    },
    "dsp": {
        "deconv_grad_filter shared": dsp_filter("shared"),
        "deconv_grad_filter private": dsp_filter("private"),
        "deconv_grad_input": dsp_gradient("deconv_grad_input"),
        "conv_grad_filter": dsp_gradient("conv_grad_filter"),
        "conv_grad_input": dsp_gradient("conv_grad_input"),
    },
}


def operator_calls() -> list[Any]:
    """(device, role, name of a call) for every call that a shipped device can make."""
    kinds = {name: npusim.load_device(name).cores.values() for name in npusim.devices()}
    roles = {name: [role for kind in cores for role in kind.roles] for name, cores in kinds.items()}
    return of_each_kind(
        (device, role, name) for device in roles for role in roles[device] for name in CALLS[role]
    )


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize(("device", "role", "name"), operator_calls())
def test_operators(device: str, role: str, name: str, engine: str) -> None:
    how = {"device": device, "timeline": True}
    expected, actual = (CALLS[role][name](engine=e, **how).runs for e in (REFERENCE, engine))
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert not difference(one, other), f"kernel {one.name}: {difference(one, other)}"


# -- what random programs show -------------------------------------------------------------


def shown(program: Program, l2: L2) -> set[str]:
    """What one random program has in it, by its rows; the L2 goes on as the program leaves it."""
    run = attempt(program, l2)
    flows = [flow for template in program.templates for flow in template.flows if flow]
    found = {program.roles[0], "cached" if program.device.l2 else "uncached"}
    found |= {"atomic"} if any(flow.kind == ATOMIC for flow in flows) else set()
    if isinstance(run, str):
        return found | {"hang"}
    assert run.timeline is not None
    found |= set(run.timeline.ops)
    found |= {f"reason {r}" for i, r in enumerate(REASONS) if any(p.cycles[i] for p in run.pipes)}
    return found | _shown_by_memory(program, run) | _shown_by_order(program, run.timeline)


def _shown_by_memory(program: Program, run: KernelRun) -> set[str]:
    links = program.device.links.values()
    flows = [flow for template in program.templates for flow in template.flows if flow]
    facts: dict[str, Any] = {"main memory written": run.traffic[-1].bytes}
    facts |= {f"link of a {scope}": any(x.scope == scope for x in links) for scope in SCOPES}
    facts["moves that share a link"] = sum(flow.kind == MOVE for flow in flows) > 1
    if program.device.l2:
        facts["L2 hit"] = any(row.hit_bytes for row in run.traffic)
        facts["L2 miss"] = any(row.miss_bytes for row in run.traffic)
        facts["dirty eviction"] = run.traffic[-1].bytes
    return {name for name, holds in facts.items() if holds}


def _shown_by_order(program: Program, t: Timeline) -> set[str]:
    starts, ends = Counter(t.start.tolist()), Counter(t.end.tolist())
    facts = {
        "three starts in a cycle": max(starts.values()) > 2,
        "three ends in a cycle": max(ends.values()) > 2,
        "no cycle at all": (t.start == t.end).any(),
        "a million cycles": t.end.max() > 1_000_000,
        "linked in several ways": len(program.variants) > len(program.templates),
        "idle core": any(not len(core.variants) for core in program.cores),
        "mmad follows": (t.reason[t.op == _place(t.ops, "mmad")] == FOLLOW).any(),
        "drain follows": (t.reason[t.op == _place(t.ops, "drain")] == FOLLOW).any(),
        "more than 8 cores": len(program.cores) > 8,
        "more than 1000 instructions": len(t.start) > 1000,
    }
    return {name for name, holds in facts.items() if holds}


def _place(names: Sequence[str], name: str) -> int:
    """The index of a name, -1 if it is not there."""
    return names.index(name) if name in names else -1


def main(seeds: int = 1000) -> None:
    """Print the share of random programs that show a thing, for each thing."""
    counts: Counter[str] = Counter()
    programs = 0
    for seed in range(seeds):
        case = random_case(seed)
        l2 = new_l2(case.device, REFERENCE)
        for program in case.programs:
            counts.update(shown(program, l2))
            programs += 1
    for name, count in counts.most_common():
        print(f"{count / programs:6.1%} {name}")


if __name__ == "__main__":
    main()
