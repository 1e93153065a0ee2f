"""Pipes, memories and links are known by role: other words move neither a cycle nor a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

import npusim
from npusim.base.errors import ConfigError
from npusim.base.yamltree import YamlNode
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import parse_device
from npusim.machine.device.spec import Device
from npusim.ops import CARDS
from tests.kernels.test_matmul_mix import finish, operands
from tests.ops.test_dsp_gradients import arrays, layer

pytestmark = pytest.mark.compiled

SECTIONS = ("memories", "pipes", "links")


def plain(node: YamlNode) -> Any:
    """A tree as dictionaries, lists and text."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return node.value if isinstance(node.value, str) else [plain(item) for item in node.value]


def renamed(on: Device, words: dict[str, str]) -> Device:
    """``on`` with other words for pipes, memories and links; a word that it has merges two."""
    tree = plain(on.origin.root)  # type: ignore[attr-defined]
    tree.pop("base", None)

    def new(names: list[str]) -> list[str]:
        return [*dict.fromkeys(words.get(name, name) for name in names)]

    for section in SECTIONS:
        parts = tree.get(section, {})
        tree[section] = {
            words.get(old, old): part
            | ({"role": old} if old in words and section != "links" else {})
            for old, part in parts.items()
            if words.get(old) not in parts
        }
    for kind in tree["cores"].values():
        kind |= {key: new(kind[key]) for key in ("memories", "pipes")}
    paths = {}
    for name, path in tree["paths"].items():
        ends, dot, form = name.partition(".")
        move = "->".join(words.get(end, end) for end in ends.split("->")) + dot + form
        links = {"links": new(path["links"])} if "links" in path else {}
        paths[move] = path | {"pipe": words.get(path["pipe"], path["pipe"])} | links
    return parse_device(yaml.safe_dump(tree | {"paths": paths}, sort_keys=False), on.name)


def answers(on: Device) -> list[Any]:
    """Cycles, traffic and bits of gradients, and of a product that cores hand over."""
    if on.gemm is not None:
        p = layer("conv_grad_input", n=1, spatial=(5, 5))
        found = [
            CARDS[name].call(p, arrays(name, p), {"device": on, "timeline": False})
            for name in ("conv_grad_input", "conv_grad_filter")
        ]
    else:
        rng = np.random.default_rng(4)
        dy, x, w = (
            rng.integers(-4, 5, shape).astype(np.float16)  # sums are exact in any order
            for shape in ((1, 24, 9, 9), (1, 20, 9, 9), (24, 20, 3, 3))
        )
        call = npusim.ops.convolution_backward
        found = [call(dy, x, w, (24,), padding=1, device=on, timeline=False)]
    if any("vector" in kind.roles and kind.per_group > 1 for kind in on.cores.values()):
        kernel = finish(64, 32, 96)
        found.append(npusim.simulate(kernel, on, *operands(kernel)[0], cores=range(2)))
    return [
        *([(run.cycles, run.traffic, [*run.pipes]) for run in one.runs] for one in found),
        *(out.tobytes() for one in found for out in one.outputs or () if out is not None),
    ]


@pytest.mark.parametrize("name", devices())
def test_no_word_of_a_device_counts(name: str) -> None:
    on = load_device(name)
    words = {part: f"THE_{part}" for key in SECTIONS for part in getattr(on, key)}
    assert answers(renamed(on, words)) == answers(on)


@pytest.mark.parametrize("name", ["ascend910b2", "ascend910", "ascend950pr"])
def test_merged_pipes_compute_the_same(name: str) -> None:
    on = load_device(name)
    merged = answers(renamed(on, {"MTE1": "MTE2"}))
    assert [one for one in merged if isinstance(one, bytes)] == [
        one for one in answers(on) if isinstance(one, bytes)
    ]
    assert merged != answers(on)


def test_roles_of_pipes_are_checked_with_their_line() -> None:
    tiny = load_device("tiny")
    assert renamed(tiny, {"M": "CUBE"}).pipe("M").name == "CUBE"
    text = yaml.safe_dump(plain(tiny.origin.root))  # type: ignore[attr-defined]
    unknown = text.replace("  FIX:\n", "  FIX:\n    role: MTE9\n", 1)
    with pytest.raises(ConfigError, match=r"tiny:\d+: pipes\.FIX\.role: unknown role 'MTE9'; did"):
        parse_device(unknown, "tiny")
    twice = text.replace("  FIX:\n", "  FIX:\n    role: MTE1\n", 1)
    with pytest.raises(ConfigError, match=r"pipes\.MTE1: role MTE1 is held by pipe 'FIX' already"):
        parse_device(twice, "tiny")
    nameless = renamed(tiny, {"M": "CUBE"}).origin
    text = yaml.safe_dump(plain(nameless.root)).replace("    role: M\n", "")  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match="no pipe M, which works for its roles; add M to the list"
    ):
        parse_device(text, "tiny")
