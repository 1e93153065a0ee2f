"""The Perfetto trace: valid JSON, slices that never overlap on a track, the same bytes always."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.results import Result
from npusim.results.writers import perfetto

Event = dict[str, Any]


def _load(path: Path) -> tuple[dict[str, Any], list[Event]]:
    trace = json.loads(path.read_text(encoding="utf-8"))
    return trace["otherData"], trace["traceEvents"]


@pytest.fixture
def trace(result: Result, tmp_path: Path) -> tuple[dict[str, Any], list[Event]]:
    result.save_trace(tmp_path / "trace.json")
    return _load(tmp_path / "trace.json")


def test_every_instruction_is_a_slice(
    result: Result, trace: tuple[dict[str, Any], list[Event]]
) -> None:
    both = [event for event in trace[1] if event["ph"] == "X" and event["pid"]]
    slices = [event for event in both if event.get("cat") != "wait"]
    assert len(slices) == sum(run.instructions for run in result.runs)
    assert sum(event["args"].get("macs", 0) for event in slices) == result.runs[1].macs
    waits = [event for event in slices if event["args"]["waited"]]
    assert {event["args"]["reason"] for event in waits} == {"data", "space"}
    shown = [event for event in both if event.get("cat") == "wait"]
    assert len(shown) == len(waits)
    cycle = 1e6 / result.device.clock_hz
    for wait, waiting in zip(shown, waits, strict=True):
        assert wait["name"] == f"waits: {waiting['args']['reason']}"
        assert wait["dur"] == pytest.approx(waiting["args"]["waited"] * cycle, abs=1e-5)
        assert wait["ts"] + wait["dur"] == pytest.approx(waiting["ts"], abs=1e-5)
    assert {event["args"]["line"] for event in slices} == {"conv.py:41", "conv.py:57"}


def test_slices_of_a_track_do_not_overlap(trace: tuple[dict[str, Any], list[Event]]) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace[1]:
        if event["ph"] == "X":
            start, length = (round(event[key] * 10**6) for key in ("ts", "dur"))
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    assert len(tracks) == 1 + 2 * 7
    for spans in tracks.values():
        assert all(one[1] <= two[0] for one, two in pairwise(sorted(spans)))


def test_counters_integrate_to_the_bytes_moved_and_the_products_made(
    result: Result, trace: tuple[dict[str, Any], list[Event]]
) -> None:
    """A trace had one counter, of the bandwidth."""
    for name, pipes, unit, whole in (
        ("GM bandwidth (GB/s)", {"MTE2", "FIX", "MTE3"}, 1e3, sum(r.gm_bytes for r in result.runs)),
        ("multiply-adds (TFLOPS)", {"M"}, 1e6, 2 * sum(r.macs for r in result.runs)),
    ):
        counters = [one for one in trace[1] if one["ph"] == "C" and one["name"] == name]
        assert len(counters) == perfetto.BUCKETS + 1
        done = sum(
            sum(one["args"].values()) * unit * (two["ts"] - one["ts"])
            for one, two in pairwise(counters)
        )
        assert set(counters[0]["args"]) == pipes
        assert done == pytest.approx(whole, rel=1e-3)


def test_same_bytes_every_time(result: Result, tmp_path: Path) -> None:
    names = ("a.json", "b.json", "a.json.gz", "b.json.gz")
    for name in names:
        result.save_trace(tmp_path / name)
    plain, again, packed, repacked = ((tmp_path / name).read_bytes() for name in names)
    assert plain == again
    assert packed == repacked
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) // 4


def test_names_are_escaped(result: Result, tmp_path: Path) -> None:
    run = result.runs[0]
    assert run.timeline is not None
    odd = replace(run, name='a"b\\c', timeline=replace(run.timeline, lines=("é\n", '"')))
    replace(result, runs=(odd,)).save_trace(str(tmp_path / "odd.json"))
    events = _load(tmp_path / "odd.json")[1]
    assert any(event["name"] == 'a"b\\c' for event in events)
    assert any(event.get("args", {}).get("line") == "é\n" for event in events)


def test_without_timeline_nothing_is_written(bare_result: Result, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="timeline=True"):
        bare_result.save_trace(tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_arrows_lead_from_what_was_waited_for(tmp_path: Path) -> None:
    """Each ends at the start of an instruction that waited, and begins where its cause ends."""
    spec = npusim.spec((1, 16, 8, 8), "fp16")
    call = npusim.ops.convolution_backward(
        spec, spec, npusim.spec((16, 16, 3, 3), "fp16"), None, padding=1,
        output_mask=(True, True, False), device="ascend910b2", timeline=True,
    )  # fmt: skip
    call.save_trace(tmp_path / "trace.json")
    events = _load(tmp_path / "trace.json")[1]
    slices = [e for e in events if e["ph"] == "X" and e["pid"] and e.get("cat") != "wait"]
    at = {(e["pid"], e["tid"], e["ts"]): e for e in slices}
    begins, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys()
    assert len(begins) > 15
    for number, begin in begins.items():
        end = ends[number]
        waiting = at[end["pid"], end["tid"], end["ts"]]
        assert waiting["args"]["waited"] > 0
        assert waiting["args"]["reason"] == end["name"] == begin["name"]
        causes = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (begin["pid"], begin["tid"])
            and e["ts"] <= begin["ts"] < e["ts"] + e["dur"]
        ]
        assert len(causes) == 1
        if end["name"] != "follow":
            assert causes[0]["ts"] + causes[0]["dur"] == pytest.approx(waiting["ts"], abs=3e-6)
    # Whatever waited for another pipe has an arrow.
    named = {"data", "space", "follow"}
    explained = {(e["pid"], e["tid"], e["ts"]) for e in ends.values()}
    for one in slices:
        if one["args"].get("reason") in named:
            assert (one["pid"], one["tid"], one["ts"]) in explained


def test_some_cores_and_a_part_of_the_time(result: Result, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    result.save_trace(whole)
    window = (0.3 * result.time_us, 0.6 * result.time_us)
    result.save_trace(part, cores=("aic1",), window=window)
    (_, all_events), (_, shown) = _load(whole), _load(part)
    processes = [e["args"]["name"] for e in shown if e.get("name") == "process_name"]
    assert processes == ["device small", "aic1"]

    def reaches(event: Event) -> bool:
        begin = event["ts"] - event["args"]["waited"] * 1e6 / result.device.clock_hz
        inside = begin < window[1] and event["ts"] + event["dur"] > window[0]
        return bool(event["pid"] == 2 and inside)

    def instructions(events: list[Event]) -> list[Event]:
        slices = (e for e in events if e["ph"] == "X" and e["pid"] and e.get("cat") != "wait")
        return list(slices)

    expected = [event for event in instructions(all_events) if reaches(event)]
    assert instructions(shown) == expected
    assert 0 < len(expected) < len(instructions(all_events)) / 2


def test_a_part_that_shows_nothing_is_refused(result: Result, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no core aic9; its cores are aic0, aic1"):
        result.save_trace(tmp_path / "t.json", cores=("aic9",))
    with pytest.raises(ArgumentError, match="shows nothing"):
        result.save_trace(tmp_path / "t.json", window=(2.0, 1.0))
    assert not [*tmp_path.iterdir()]
