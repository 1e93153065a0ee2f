"""Links of a device file: moves that share one slow each other, in both engines, by YAML alone."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.machine.device.config import parse_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import GmRegion, Tensor
from npusim.machine.program.language import Language
from npusim.machine.program.program import READ, Flow
from npusim.machine.timing.links import (
    EVICT,
    MOVE,
    ONE,
    READ_HIT,
    READ_MISS,
    WRITE,
    Links,
    Part,
    parts,
)
from tests.machine.timing.test_timing_by_hand import PIECE, Script, load, reasons, simulate, spans
from tests.texts import text_of

HEAD = "base: tiny\nname: mine\ndescription: tiny with links\n"

PORT = text_of("port_of_l1.yaml")

SHIPPED = Path(__file__).parents[3] / "configs" / "devices"


def tiny(text: str) -> Device:
    """`tiny` with more lines."""
    return parse_device(HEAD + text)


class TwoLoads(Script):
    """Two loads of 4096 B into L1, and a load of the first into L0A."""

    role = "cube"

    def buffers(self, k: Language) -> None:
        self.a1 = k.buffer("L1", (2048,), FP16, slots=2)
        self.a0 = k.buffer("L0A", (16, 128), FP16)

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        first = self.a1.next()
        k.data_move(first.at(0, 4096), self.x.at(0, 4096), FP16)
        k.data_move(self.a1.next().at(0, 4096), self.x.at(4096, 4096), FP16)
        k.load2d(self.a0.next(), first.fractals(0, 8), FP16)


def two_loads() -> TwoLoads:
    return TwoLoads(lambda *_: None)


def test_two_flows_on_one_port_of_l1() -> None:
    # A load of 4096 B takes 10 + 64 alone, the one into L0A 64. That one begins at 75 and has the
    # port alone until 85, when the second load's bytes come: 640 of its 4096 B. Then each gets
    # 32 B/cycle. Its other 3456 B take 108, until 193; the second load's last 640 B until 203.
    r = simulate(two_loads(), tiny(PORT.format(rate=64)))
    assert spans(r, "MTE2") == [(1, 75), (75, 203)]
    assert spans(r, "MTE1") == [(75, 193)]
    assert reasons(r, "MTE2") == {"busy": 148, "bandwidth": 54, "not_started": 1}
    assert reasons(r, "MTE1")["bandwidth"] == 54
    bounds = {bound.resource: (bound.cycles, bound.why) for bound in r.runs[0].bounds}
    # 3 x 4096 B over a port of 64 B/cycle.
    assert bounds["link l1_port"] == (192, "bytes of the busiest core over this link")


@pytest.mark.parametrize("device", ["tiny", tiny(PORT.format(rate=128))])
def test_without_a_port_or_on_a_wide_one_each_takes_its_own_time(device: str | Device) -> None:
    r = simulate(two_loads(), device)
    assert spans(r, "MTE2") == [(1, 75), (75, 149)]
    assert spans(r, "MTE1") == [(75, 139)]


def test_a_port_that_is_slower_than_a_path_holds_it_back() -> None:
    # At 16 B/cycle 4096 B take 256: the first load 1 + 10 + 256 = 267. Its copy to L0A has 160 B by
    # 277, then both have 8 B/cycle: 3936 B take 492, until 769; the load's last 160 B until 779.
    r = simulate(two_loads(), tiny(PORT.format(rate=16)))
    assert spans(r, "MTE2") == [(1, 267), (267, 779)]
    assert spans(r, "MTE1") == [(267, 769)]


NOC = text_of("network_on_chip.yaml")


@pytest.mark.parametrize(("scope", "cycles"), [("core", 50), ("group", 90), ("chip", 170)])
@pytest.mark.parametrize("by_path", [True, False])
def test_a_link_is_there_once_per_core_group_or_chip(
    scope: str, cycles: int, by_path: bool
) -> None:
    # 2560 B on each of 4 cores: at 64 B/cycle 10 + 40; two to a link 10 + 80; four 10 + 160.
    traffic = "" if by_path else "    traffic: [read_hit, read_miss]\n"
    text = NOC.format(scope=scope, traffic=traffic)
    if by_path:
        text += "paths:\n  GM->UB:\n    links: [noc]\n"
    kernel = Script(lambda s, k, unit: load(s, k, int(unit.core)))
    r = simulate(kernel, tiny(text), cores=0b11)
    for core in range(4):
        assert spans(r, "MTE2", f"core{core}") == [(1, 1 + cycles)]
    on_link = {"core": 1, "group": 2, "chip": 4}[scope] * PIECE
    bounds = {bound.resource: bound.cycles for bound in r.runs[0].bounds}
    assert bounds["link noc"] == on_link // 64


def test_what_is_evicted_leaves_the_path_alone() -> None:
    links = Links(tiny(PORT.format(rate=64)), [0, 0, 1])
    names = [row.name for row in links.rows]
    assert names == ["l2.read", "l2.write", "main_memory.read", "main_memory.write", "l1_port"]
    along = ("l1_port",)
    assert links.uses(Part(READ_HIT, 1, along), 1) == ((0, ONE), (5, ONE))
    assert links.uses(Part(READ_HIT, 1, along, ONE // 2), 1) == ((0, ONE), (5, ONE // 2))
    assert links.uses(Part(READ_MISS, 1, along), 2) == ((0, ONE), (2, ONE), (6, ONE))
    assert links.uses(Part(WRITE, 1, ()), 0) == ((1, ONE),)
    assert links.uses(Part(MOVE, 1, along), 0) == ((4, ONE),)
    x = Tensor("x", (64,), FP16)
    read = Flow(READ, 128, 64, 64, along, GmRegion(x, "", 0, 1, 128, 128), 0, -1, "L1", 128)
    hit, missing, miss, evict = parts(read)
    # A row of 128 B and its request of 128 B: twice the bytes at twice the rate, half of them real.
    assert (hit.cap, hit.along, hit.share) == (128, along, ONE // 2)
    assert (missing.cap, missing.along, missing.share) == (hit.cap, along, hit.share)
    assert (hit.cap_with(3 * ONE), missing.cap_with(3 * ONE)) == (128, 128 + 3 * 64)
    assert (miss.cap, miss.along, miss.share) == (64, along, ONE)
    assert (evict.traffic, evict.along) == (EVICT, ())


def with_port(text: str) -> str:
    """The text of a device file with a port of L1 that every load into and out of it shares."""
    port = "\nlinks:\n  l1_port:\n    rate: 128B/cycle (assumed, GUESS)\n    scope: core\n"
    named, count = re.subn(
        r"(  (?:GM->L1|L1->L0[AB])[\w.]*:\n    pipe: MTE\d\n)", r"\1    links: [l1_port]\n", text
    )
    assert count == 9
    return named.replace("\nlinks:\n", port)


def test_a_port_of_l1_is_a_matter_of_yaml() -> None:
    text = (SHIPPED / "ascend910b2.yaml").read_text(encoding="utf-8")
    device = parse_device(with_port(text), "mine.yaml")
    a, b = npusim.spec((384, 512), "fp16"), npusim.spec((512, 512), "fp16")
    plain = npusim.ops.matmul(a, b, device=parse_device(text), cores="0-2")
    fast, simpy = (
        npusim.ops.matmul(a, b, device=device, cores="0-2", engine=engine, timeline=True)
        for engine in ("fast", "simpy")
    )
    pd.testing.assert_frame_equal(fast.timeline, simpy.timeline)
    pd.testing.assert_frame_equal(fast.pipes, simpy.pipes)
    assert fast.cycles > plain.cycles
    for pipe in ("MTE1", "MTE2"):
        before, after = (r.pipes[r.pipes["pipe"] == pipe]["bandwidth"].sum() for r in (plain, fast))
        assert after > before


def test_figures_of_links_are_figures_like_others() -> None:
    device = tiny(PORT.format(rate=64))
    assert device.links["l1_port"].bytes_per_cycle == 64
    assert device.provenance["links.l1_port.rate"].confidence == "assumed"
    wide = device.replace("links.l1_port.rate", "128B/cycle")
    assert wide.links["l1_port"].bytes_per_cycle == Fraction(128)
    assert len({d.digest() for d in (wide, device, npusim.load_device("tiny"))}) == 3
    assert simulate(two_loads(), wide).runs[0].cycles == 149
    assert "links.l1_port.rate" in {
        effect.figure for effect in simulate(two_loads(), device).time_range.effects
    }
