"""Words for the figures of a resource: what they stand for, factors, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from npusim.base.errors import ConfigError
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.device.config import figures
from npusim.machine.device.resources import by_word, read_factor, scaled
from npusim.machine.device.spec import Device


@pytest.mark.parametrize("name", devices())
def test_each_figure_is_of_one_resource_and_each_word_makes_them_faster(name: str) -> None:
    device = load_device(name)
    known, words = figures(device), by_word(device, figures(device))
    every = [path for paths in words.values() for path in paths]
    assert len(every) == len(set(every))
    assert set(every) <= set(known)
    for word, paths in words.items():
        faster = figures(device.replace(word, "x2"))
        changed = {path for path in known if known[path] != faster[path]}
        assert changed
        assert {path for path in changed if not path.endswith("_at_most")} <= set(paths)


def figure(device: Device, path: str) -> Fraction:
    value = figures(device)[path].value
    assert not isinstance(value, tuple)
    return Fraction(value)


def test_memory_is_its_rates_and_its_link() -> None:
    device = load_device("ascend910").replace("hbm", "x2")
    before = load_device("ascend910")
    for path in ("main_memory.read", "main_memory.write", "links.hbm.rate"):
        assert figure(device, path) == 2 * figure(before, path)
    assert by_word(device, figures(device))["hbm"] == (
        "links.hbm.rate",
        "main_memory.read",
        "main_memory.write",
    )


def test_times_are_divided_for_a_resource_and_multiplied_for_one_figure() -> None:
    device = load_device("ascend910")
    kernel = figure(device, "launch.kernel")
    assert figure(device.replace("launches", "x2"), "launch.kernel") == kernel / 2
    assert figure(device.replace("launch.kernel", "x2"), "launch.kernel") == 2 * kernel
    assert figure(device.replace("LAUNCHES", "x0.5"), "launch.kernel") == 2 * kernel


def test_a_factor_of_one_changes_nothing() -> None:
    device = load_device("ascend910b2")
    assert device.replace("hbm", "x1").digest() == device.digest()
    assert device.replace("l2.read", "x1").digest() == device.digest()


@pytest.mark.parametrize(
    ("factor", "block"), [("2", "16x32x16"), ("3/2", "16x48x16/2"), ("1/2", "16x16x16/2")]
)
def test_a_block_takes_fewer_cycles_or_is_longer(factor: str, block: str) -> None:
    rate = figures(load_device("ascend910"))["cube.rates.fp16"]
    text = scaled(rate, Fraction(factor))
    assert text is not None
    assert text.startswith(block)


@pytest.mark.parametrize("text", ["x0", "2", "x-1", "x", "x1e3", "2x", "x1/0"])
def test_what_is_no_factor(text: str) -> None:
    assert read_factor(text) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"hbm": "2TB/s"},
            "ascend910 with hbm=2TB/s: it stands for links.hbm.rate, main_memory.read, "
            "main_memory.write; give a factor such as hbm=x2, or set these one by one",
        ),
        (
            {"hbm": "x2", "main_memory.read": "1TB/s"},
            "hbm and main_memory.read both set main_memory.read; keep one of them",
        ),
        ({"hbn": "x2"}, "unknown figure; did you mean 'hbm'?"),
        ({"nothing": "x2"}, "lists the figures; several together are queues, pipe.MTE2"),
        ({"l2.request": "x2"}, "times 2 is no other figure; give its value"),
        ({"l2": "x0"}, "give a factor such as l2=x2"),
    ],
)
def test_what_is_refused(changes: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_device("ascend910", changes)
    assert told in str(error.value)


def test_a_unit_is_still_dropped_by_its_name() -> None:
    device = load_device("ascend910", {"l2": "no"})
    assert device.l2 is None
    assert "ddr" not in by_word(load_device("ascend910"), figures(load_device("ascend910")))
