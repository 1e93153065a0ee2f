"""Links in device files: what a row must say, and what is refused with line and way out."""

from __future__ import annotations

from math import ceil

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.device.config import figures, parse_device
from npusim.device.spec import Device

TEXT = """\
base: tiny
name: mine
description: tiny with links
links:
  port:
    rate: 64B/cycle (assumed, HAND)
    scope: core
  noc:
    rate: 2TB/s (assumed, HAND)
    scope: group
    traffic: [read_hit, write]
paths:
  GM->L1:
    links: [port]
"""


def parse(old: str = "", new: str = "") -> Device:
    assert not old or TEXT.count(old) == 1, old
    return parse_device(TEXT.replace(old, new) if old else TEXT, "mine.yaml")


def test_links_are_rows_with_rate_and_scope() -> None:
    device = parse()
    port, noc = device.links.values()
    assert port.bytes_per_cycle == 64
    assert noc.bytes_per_cycle == 2000
    assert (port.name, port.scope, noc.scope) == ("port", "core", "group")
    assert (port.traffic, noc.traffic) == ((), ("read_hit", "write"))
    assert device.paths["GM->L1"].links == ("port",)
    assert device.paths["GM->L1.nd2nz"].links == ()
    assert {"links.port.rate", "links.noc.rate"} <= figures(device).keys()


def test_a_path_leaves_the_links_of_its_base() -> None:
    port = parse().replace("links.port.rate", "1B/cycle")
    assert port.links["port"].bytes_per_cycle == 1
    with pytest.raises(ConfigError, match="nothing uses this link"):
        parse("links: [port]", "rate: 1B/cycle (assumed, HAND)")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "links: [port]",
            "links: [prt]",
            "mine.yaml:14: paths.GM->L1.links[0]: unknown link 'prt'; did you mean 'port'? "
            "(describe new ones under 'links')",
        ),
        (
            "links: [port]",
            "links: [port, port]",
            "mine.yaml:14: paths.GM->L1.links[1]: 'port' is listed twice; remove one",
        ),
        (
            "    rate: 64B/cycle (assumed, HAND)\n",
            "",
            "mine.yaml:5: links.port: missing key 'rate'; add it here",
        ),
        (
            "    scope: core\n",
            "",
            "mine.yaml:5: links.port: missing key 'scope'; add it here",
        ),
        (
            "scope: core",
            "scope: cores",
            "mine.yaml:7: links.port.scope: unknown scope 'cores'; did you mean 'core'?",
        ),
        (
            "[read_hit, write]",
            "[read_hit, writes]",
            "mine.yaml:11: links.noc.traffic[1]: unknown traffic 'writes'; did you mean 'write'?",
        ),
        (
            "    traffic: [read_hit, write]\n",
            "",
            "mine.yaml:8: links.noc: nothing uses this link; name it in 'links' of a path, give it "
            "'traffic', or remove it",
        ),
        (
            "  port:\n",
            "  l1.port:\n",
            "mine.yaml:14: paths.GM->L1.links[0]: unknown link 'port'; did you mean 'l1.port'? "
            "(describe new ones under 'links')",
        ),
        (
            "  noc:\n",
            "  l2.noc:\n",
            "mine.yaml:8: links.l2.noc: expected letters, digits and _ as a link's name; rename it",
        ),
    ],
)
def test_refusals(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(old, new)
    assert str(caught.value) == message


@pytest.mark.compiled  # auto chooses by simulation
def test_a_link_that_holds_main_memory_back_is_told() -> None:
    shipped = npusim.load_device("ascend910b2")
    assert not shipped.held_back
    faster = {"main_memory.read": "2.4TB/s"}
    x, y = (npusim.spec((64, 64), "fp16") for _ in range(2))
    note = (
        "main_memory.read is 1333.3B/cycle (2400GB/s), of which links.hbm.rate lets "
        "888.89B/cycle (1600GB/s) through; raise both for a faster memory"
    )
    variant = npusim.load_device("ascend910b2", faster)
    result = npusim.ops.matmul(x, y, device=variant)
    assert note in result.notes
    bound = next(one for one in result.runs[0].problem_bounds if one.resource == "HBM read")
    assert bound.cycles == ceil(2 * 64 * 64 * 2 / shipped.links["hbm"].bytes_per_cycle)
    wider = npusim.load_device("ascend910b2", faster | {"links.hbm.rate": "2.4TB/s"})
    assert not wider.held_back
    assert wider.main_read_rate > variant.main_read_rate == shipped.links["hbm"].bytes_per_cycle
