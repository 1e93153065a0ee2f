"""Links in device files: what a row must say, and what is refused with line and way out."""

from __future__ import annotations

from math import ceil

import pytest

import npusim
from npusim.base.errors import ConfigError
from npusim.machine.device.config import figures, parse_device
from npusim.machine.device.spec import Device
from tests.machine.device.test_device_config import DATA, MISTAKES

TEXT = (DATA / "device_with_links.yaml").read_text(encoding="utf-8")


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


@pytest.mark.parametrize("wrong", MISTAKES["device_with_links"])
def test_refusals(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(wrong["old"], wrong["new"])
    assert str(caught.value) == wrong["message"]


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
