"""Explorations: they find the front, keep what they saw, go on, and refuse what makes no sense."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError, NpusimError
from npusim.cli.main import main
from npusim.study import formula
from npusim.study.result import Exploration, unbeaten
from npusim.study.space import load_study
from tests.browser import CHROMIUM, browser
from tests.sampled import slow_if
from tests.tables import rows

optuna = pytest.importorskip("optuna", reason="explorations need Optuna (extra study)")

_DESCRIPTORS = Path("/proc/self/fd")

PRODUCT: dict[str, Any] = {"operator": "matmul", "device": "tiny", "m": 96, "k": 128, "n": 96}

#: 200 designs: more groups, memory or cache are faster and larger.
SPACE: dict[str, Any] = {
    "groups": "1:5:1",
    "memories.L1.size": "8KiB:128KiB:*2",
    "cube.rates.fp16": "16x16x16,16x16x16/4cycle",
    "l2.size": "64KiB,128KiB,256KiB,1MiB",
}
#: 50 of them.
FEWER: dict[str, Any] = SPACE | {"l2.size": "1MiB"}
SMALL: dict[str, Any] = {"groups": "1:3:1", "memories.L1.size": "16KiB,64KiB"}


def explored(vary: dict[str, Any] = SMALL, **options: Any) -> Exploration:
    settings: dict[str, Any] = {"store": None, "jobs": 1, **PRODUCT, **options}
    return npusim.explore(vary=vary, **settings)


def beaten(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(b <= a for a, b in zip(one, other, strict=True))


def test_a_front_is_what_its_definition_says() -> None:
    draw = random.Random(7)
    for goals in (1, 2, 3):
        points = [tuple(float(draw.randrange(6)) for _ in range(goals)) for _ in range(60)]
        want = [not any(beaten(one, other) for other in points) for one in points]
        assert unbeaten(points) == want


@pytest.mark.parametrize(("space", "count"), [(FEWER, 50), slow_if(True, SPACE, 200)])
def test_half_of_the_points_find_the_front_of_all(
    space: dict[str, Any], count: int, tmp_path: Path
) -> None:
    store, half = tmp_path / "points.sqlite", count // 2
    found = explored(space, goals=["time_us", "area_mm2"], trials=half, store=store)
    assert len(found.points) == half
    assert len({tuple(setting.items()) for setting, _ in found.points}) == half
    whole = npusim.sweep(vary=space, store=store, jobs=1, **PRODUCT).rows()
    assert len(whole) == count
    points = [(row["time_us"], row["area_mm2"]) for row in whole]
    front = {point for point, on in zip(points, unbeaten(points), strict=True) if on}
    assert set(zip(found.front.time_us, found.front.area_mm2, strict=True)) == front
    assert len(front) >= 5


def test_a_study_of_few_points_is_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point once, in order, without Optuna: a sweep finds the same."""
    monkeypatch.setitem(sys.modules, "optuna", None)  # an import of it fails
    found = explored(trials=6, goals=["time_us", "energy_uj", "area_mm2"])
    assert [setting for setting, _ in found.points] == list(found.study.points())
    swept = npusim.sweep(vary=SMALL, store=None, jobs=1, **PRODUCT)
    assert [measured for _, measured in found.points] == list(swept.measured)
    assert found.searched is None
    assert "all 6 points were measured" in found.notes
    assert list(found.frame.columns[:2]) == ["groups", "memories.L1.size"]
    assert found.frame["front"].sum() == len(found.front)
    assert not found.frame["error"].any()
    with pytest.raises(ArgumentError, match="explore needs Optuna"):
        explored(trials=5)


def test_optuna_is_not_asked_for_ever_for_points_that_are_known() -> None:
    """It proposes the best of 50 points again and again: 175 times with ten tries for each new."""
    first, again = (explored(FEWER, trials=48, seed=0) for _ in range(2))
    assert len({tuple(setting.items()) for setting, _ in first.points}) == 48
    assert 48 < len(first.searched.trials) <= 2.5 * 48
    assert first.points == again.points
    assert not any("points were measured" in note for note in first.notes)


def test_a_seed_says_which_points_are_looked_at() -> None:
    first, again, other = (explored(SPACE, trials=8, seed=s) for s in (1, 1, 2))
    assert [s for s, _ in first.points] == [s for s, _ in again.points]
    assert [s for s, _ in first.points] != [s for s, _ in other.points]


@contextmanager
def read_by_optuna(file: Path) -> Iterator[Any]:
    """The one study of a storage, with Optuna's own means."""
    rows = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        (summary,) = optuna.get_all_study_summaries(rows)
        yield optuna.load_study(study_name=summary.study_name, storage=rows)
    finally:
        rows.remove_session()
        rows.engine.dispose()


@pytest.mark.skipif(not _DESCRIPTORS.exists(), reason="needs the files of a process in /proc")
def test_no_connection_to_a_storage_stays_open(tmp_path: Path) -> None:
    file = tmp_path / "explored.db"
    explored(trials=2, storage=file)
    assert file.exists()
    assert file not in [one.resolve() for one in _DESCRIPTORS.iterdir()]


def test_an_exploration_goes_on_and_optuna_can_read_it(tmp_path: Path) -> None:
    storage = tmp_path / "explored.db"
    goals = ["time_us", "area_mm2"]
    options: dict[str, Any] = {"storage": storage, "name": "mine", "goals": goals}
    first = explored(SPACE, trials=6, **options)
    second = explored(SPACE, trials=4, seed=3, **options)
    assert [s for s, _ in second.points[:6]] == [s for s, _ in first.points]
    assert len(second.points) == 10
    assert [one.row["time_us"] for _, one in second.points[:6]] == [
        one.row["time_us"] for _, one in first.points
    ]
    with read_by_optuna(storage) as theirs:
        assert theirs.study_name == "mine"
        complete = [trial for trial in theirs.trials if trial.state.name == "COMPLETE"]
        best = {tuple(trial.values) for trial in theirs.best_trials}
    assert len(complete) == 10
    assert best == set(zip(second.front.time_us, second.front.area_mm2, strict=True))
    with pytest.raises(ArgumentError, match="an exploration 'mine' of something else"):
        explored(trials=1, **options)


def test_a_point_that_fails_is_kept_with_its_error(tmp_path: Path) -> None:
    storage = tmp_path / "explored.db"
    found = explored({"groups": "1,2", "memories.L0A.size": "512B,8KiB"}, trials=9, storage=storage)
    errors = [one.error for _, one in found.points]
    assert sum(bool(error) for error in errors) == 2
    assert "no tiling fits" in "".join(errors)
    assert len(found.failed) == 2
    assert not found.frame[found.frame["error"] != ""]["front"].any()
    with read_by_optuna(storage) as theirs:
        assert sum(trial.state.name == "FAIL" for trial in theirs.trials) == 2
    again = explored({"groups": "1,2", "memories.L0A.size": "512B,8KiB"}, trials=9, storage=storage)
    assert len(again.points) == 4  # failed ones are not tried again


def test_processes_find_what_one_finds() -> None:
    alone, several = explored(trials=9), explored(trials=9, jobs=2)
    assert sorted(map(str, alone.rows())) == sorted(map(str, several.rows()))


@rows("tests/data/mistakes/study.yaml", "a_wrong_study_names_file_and_line", "lines, line, message")
def test_a_wrong_study_names_file_and_line(
    tmp_path: Path, lines: str, line: int, message: str
) -> None:
    file = tmp_path / "study.yaml"
    head = "device: tiny\noperator: matmul\noptions: {m: 96, k: 96, n: 96}\n# looked for\n\n"
    file.write_text(head + lines + "\n")
    with pytest.raises(NpusimError) as caught:
        load_study(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert message in str(caught.value)


def test_a_goal_that_the_device_has_no_figures_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text("base: tiny\nname: b\ndescription: d\nsilicon: none\n")
    file = tmp_path / "study.yaml"
    file.write_text(
        f"device: {tmp_path / 'bare.yaml'}\noperator: matmul\noptions: {{m: 16, k: 16, n: 16}}\n"
        "vary: {groups: [1, 2]}\ngoals: [time_us, area_mm2]\n"
    )
    with pytest.raises(ConfigError, match=r"study.yaml:5: goals: .*no figures for the goal area"):
        npusim.explore(file, store=None, jobs=1)


@rows("tests/data/mistakes/study.yaml", "wrong_arguments", "options, message")
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        explored(**options)
    assert message in str(caught.value)


def test_sensitivities_are_sweeps_of_one_name() -> None:
    vary = {"groups": "1,2,8", "main_memory.read": "32GB/s,128GB/s", "k": "64,128,256"}
    fixed = {**PRODUCT, "k": None}
    moved = npusim.sensitivities(vary=vary, store=None, jobs=1, **fixed)
    by_name = {row["name"]: row for row in moved.rows()}
    assert by_name["groups"]["own"] == "4"
    assert by_name["k"]["own"] == "128"
    alone = npusim.sweep(vary={"groups": "1,8"}, store=None, jobs=1, **PRODUCT).rows()
    ends = [by_name["groups"][f"time_us {end}"] for end in ("first", "last")]
    assert ends == [row["time_us"] for row in alone]
    assert moved.base == npusim.sweep(store=None, jobs=1, **PRODUCT).rows()[0]["time_us"]
    swings = [row["swing"] for row in moved.rows()]
    assert swings == sorted(swings, reverse=True)
    with pytest.raises(ArgumentError, match="vary some, and no device"):
        npusim.sensitivities(operator="matmul", vary={"device": "tiny"}, m=16, k=16, n=16)


#: Goals that are formulas, of a point of 3 us, 5 uJ and 7 mm2, and limits, positive beyond them.
POINT = {"time_us": 3, "energy_uj": 5, "area_mm2": 7}
FORMULAS = [
    (formula.goal, "time_us*energy_uj", 15),
    (formula.goal, "-(time_us - 1) ** 2 / 4 + area_mm2", 6),
    (formula.goal, "1 / (time_us - 3)", math.inf),
    (formula.goal, "(time_us - 5) ** 0.5", math.inf),
    (formula.goal, "9**9**9**9 + time_us", math.inf),
    (formula.limit, "area_mm2<=7", 0),
    (formula.limit, "area_mm2 * time_us >= 22", 1),
    (formula.limit, "5 >= area_mm2", 2),
]


@pytest.mark.parametrize(("read", "text", "value"), FORMULAS)
def test_formulas_compute(read: Any, text: str, value: float) -> None:
    assert read(text).value(POINT) == value


def test_a_limit_says_how_far_a_point_is_beyond_it() -> None:
    assert formula.limit("area_mm2<=7").excess(POINT) == 0
    assert formula.limit("area_mm2<=5").excess(POINT) == pytest.approx(0.4)
    assert formula.limit("area_mm2>=14").excess(POINT) == pytest.approx(0.5)
    assert formula.limit("area_mm2 - 7 <= 0").excess(POINT) == 0
    assert formula.limit("area_mm2<=0").excess(POINT) == math.inf
    assert formula.limit("area_mm2<=time_us").excess(POINT) == pytest.approx(4 / 3)
    assert formula.limit("2*3 >= area_mm2").number_for("area_mm2") == 6
    assert formula.limit("time_us * area_mm2<=5").number_for("time_us*area_mm2") == 5
    assert formula.limit("area_mm2<=time_us").number_for("area_mm2") is None


#: What is no formula: names of nothing, calls, attributes, text, comparisons, what nests deeply.
WRONG = [
    *("speed", "time_us.real", "__import__('os')", "time_us and 1", "[time_us][0]", "'x'*3", "3"),
    *("time_us<=3", "lambda: time_us", "time_us //", "(" * 99 + "time_us" + ")" * 99, "\0", ""),
]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        formula.goal(text)
    for limit in (f"{text}<3", text if text != "time_us<=3" else "3", f"{text}<=time_us.real"):
        with pytest.raises(ArgumentError):
            formula.limit(limit)


def test_a_front_keeps_its_limits() -> None:
    plain = explored(SPACE, goals=["time_us", "energy_uj"], trials=40)
    areas = [one.row["area_mm2"] for _, one in plain.points]
    most = sorted(areas)[len(areas) // 4]
    goals = ["time_us*energy_uj", "buffer_bytes"]
    found = explored(SPACE, goals=goals, subject_to=[f"area_mm2<={most}"], trials=40)
    assert len(found.front) > 0
    assert (found.front.area_mm2 <= most).all()
    assert (found.table.allowed == (found.table.area_mm2 <= most)).all()
    product = found.table.time_us * found.table.energy_uj
    assert found.table["time_us*energy_uj"].to_numpy() == pytest.approx(product.to_numpy())
    # It looks where the limit is kept.
    assert found.table.allowed.sum() > 1.2 * sum(area <= most for area in areas)
    nowhere = explored(SMALL, goals=["time_us"], subject_to=["area_mm2<=0.1"])
    assert not any(nowhere.on_front)
    assert nowhere.cheapest() == []


#: Of SMALL the points of one and two groups, with 16 and 64 KiB of L1, have 2.78, 2.37, 2.13 and
#: 1.76 us in 2.48, 2.52, 3.06 and 3.15 mm2.
LIMITED = ["area_mm2<=3.5", "time_us<=1.74"]


def test_a_point_that_nearly_keeps_the_limits_is_told() -> None:
    area = npusim.sweep(vary={"groups": "2"}, store=None, jobs=1, **PRODUCT).rows()[0]["area_mm2"]
    found = explored(goals=["time_us", "area_mm2"], subject_to=[f"area_mm2<={area / 1.001}"])
    (near,) = found.nearly()
    assert near["misses"] == "0.1 % too large"
    assert (near["groups"], near["memories.L1.size"], near["front"]) == ("2", "64KiB", False)
    assert found.nearly(0.0005) == []
    # A point of no less area that is slower than one within the limits is of no use to anybody.
    wide = explored(goals=["time_us"], subject_to=[f"area_mm2<={area}"])
    assert wide.nearly(1) == []


def test_where_no_point_keeps_the_limits_the_nearest_is_told() -> None:
    found = explored(goals=["time_us", "area_mm2"], subject_to=LIMITED)
    assert not any(found.on_front)
    (near,) = found.nearly()
    assert near["misses"] == "1.1 % too slow"
    floor = explored(goals=["time_us"], subject_to=["area_mm2>=7.5", "5>=time_us"])
    (near,) = floor.nearly()
    assert near["misses"] == "49.6 % below area_mm2>=7.5"


def test_the_page_keeps_points_beyond_limits(tmp_path: Path) -> None:
    limits = ["area_mm2<=2.6", "time_us<=2.4"]
    found = explored(goals=["time_us", "area_mm2", "energy_uj"], subject_to=limits)
    assert sum(found.on_front) == 1
    report = found.as_report()
    part: dict[str, Any] = {section.title: section.parts[0] for section in report.sections}
    assert report.told[0] == "within area_mm2<=2.6, time_us<=2.4"
    assert sorted(value for value, _ in report.cards) == sorted(
        ["6", "1", "5", "1.759 to 2.783", "2.48 to 3.78", "0.00581 to 0.00616"]
    )
    charts = part["Goals against each other"].parts
    names = [[(mark.name, len(mark.x)) for mark in chart.marks] for chart in charts]
    points = [("points", 1), ("beyond a limit", 5), ("beaten by none", 1)]
    assert names[0] == [*points, ("area_mm2<=2.6", 2), ("time_us<=2.4", 2)]
    assert names[1:] == [[*points, ("time_us<=2.4", 2)], [*points, ("area_mm2<=2.6", 2)]]
    assert [row[-1] for row in part["What each value does"].rows] == [2, 2, 2, 3, 3]
    every = part["All points"].rows
    assert [row[-1] for row in every].count("") == 1
    assert every[0][-1] == "16.0 % too slow"


def test_the_picture_of_one_point_on_the_front() -> None:
    limits = ["area_mm2<=2.6", "time_us<=2.4", "energy_uj<=1000"]
    found = explored(goals=["time_us", "area_mm2", "energy_uj"], subject_to=limits)
    ax: Any = found.plot()
    assert ax.figure.axes == [ax]  # no bar of colours for one point
    key = [text.get_text() for text in ax.get_legend().get_texts()]
    assert key == ["groups 1, L1 size 64KiB"]
    drawn = {line.get_label(): line for line in ax.get_lines()}
    assert list(drawn["time_us<=2.4"].get_ydata()) == [2.4, 2.4]
    assert drawn["beyond a limit"].get_markerfacecolor() == "none"
    alone = explored({"groups": "2"}, goals=["time_us"]).plot()
    assert [tick.get_text() for tick in alone.get_xticklabels()] == ["1"]


def test_a_goal_alone_is_drawn_with_its_limits() -> None:
    found = explored(SPACE, goals=["time_us"], subject_to=["area_mm2<=3.2"], trials=12)
    drawn: Any = {line.get_label(): line.get_ydata() for line in found.plot().get_lines()}
    assert min(drawn["beyond a limit"]) < min(drawn["best so far"])  # faster, and not allowed
    assert min(drawn["best so far"]) == min(drawn["points"])


def test_what_is_cheapest_near_the_fastest_is_on_the_front() -> None:
    found = explored(SPACE, goals=["time_us", "area_mm2", "energy_uj"], trials=60)
    least = found.front.time_us.min()
    near = found.table[found.table.time_us <= 1.02 * least]
    for row in found.cheapest():
        assert row["front"]
        assert row[row["least"]] == near[row["least"]].min()


def test_figures_without_a_price_are_told() -> None:
    space = {"groups": "1,2", "clock": "1GHz,2GHz", "launch.core": "1us,2us", "m": "16,32"}
    del (product := dict(PRODUCT))["m"]
    options = {**product, "store": None, "jobs": 1, "vary": space, "trials": 1}
    for goals, free in (
        (["time_us", "area_mm2"], "launch.core"),
        (["time_us", "dynamic_uj"], "groups, launch.core"),
        (["time_us", "static_uj"], "launch.core"),
        (["time_us"], "groups, clock, launch.core"),
    ):
        (note,) = npusim.explore(goals=goals, **options).notes
        assert note.startswith(f"{free}: no goal")
    limited = npusim.explore(goals=["time_us"], subject_to=["buffer_bytes<=1e9"], **options)
    assert limited.notes[0].startswith("clock, launch.core: no goal")


def test_the_command_takes_limits_and_prints_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "explore matmul --m 64 --k 64 --n 64 --device tiny --jobs 1 --vary groups=1:3:1"
    words = line.split()
    words += ["--vary", "memories.L1.size=16KiB:128KiB:*2", "--vary", "l2.size=64KiB,1MiB"]
    words += ["--vary", "paths.GM->L1.nd2nz.rate=16B/cycle,64B/cycle", "--vary", "l2.block=1KiB"]
    words += ["--goals", "time_us,energy_uj,time_us*area_mm2", "--subject-to", "area_mm2<=4.2"]
    words += ["--store", str(tmp_path / "points.sqlite"), "--trials", "12"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "beaten by none in all goals, of those with area_mm2<=4.2" in " ".join(told.split())
    assert "WITHIN 2 % OF THE LEAST time_us\n- least energy_uj " in told
    assert "l2.block=1KiB" in told
    assert max(map(len, told.splitlines())) <= 80
    assert main([*words[:-4], "--subject-to", "area_mm2=3"]) == 2
    assert "in a limit <= or >= between" in capsys.readouterr().err


def test_the_page_has_values_in_the_order_of_the_study(tmp_path: Path) -> None:
    """Not in the order in which the search, or the first other value, came upon them."""
    rates = [f"{2**i}B/cycle" for i in range(2, 7)]
    space = {"groups": "1:4:1", "main_memory.read": ",".join(rates)}
    found = explored(space, goals=["time_us", "area_mm2"], trials=12)
    met = list(dict.fromkeys(found.frame["main_memory.read"]))
    want = [rate for rate in rates if rate in met]
    assert met != want
    page = tmp_path / "front.html"
    found.report(page)
    told = page.read_text(encoding="utf-8").partition("What each value does")[2]
    places = [told.index(f">{rate}<") for rate in want]
    assert places == sorted(places)


def test_the_command_says_what_is_near_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    words = "explore matmul --m 96 --k 128 --n 96 --device tiny --jobs 1 --store  --goals time_us"
    line = [*words.split(" "), "--vary", "groups=1:2:1", "--subject-to", "time_us<=1.74"]
    assert main(line) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("0 of 2 points are beaten by none in all goals, of those with time_us")
    assert "NEARLY WITHIN THE LIMITS - 1.759 µs, 1.1 % too slow, with groups=2" in told
    assert main(words.split(" ")) == 2
    assert capsys.readouterr().err.startswith("npusim: error: an exploration searches a grid")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    found = explored(SPACE, goals=["time_us", "area_mm2", "energy_uj"], trials=30)
    page = tmp_path / "front.html"
    found.report(page)
    with browser() as shown:
        for width, dark in ((1280, False), (400, True)):
            shown.open(page, width, dark=dark)
            assert shown.run("document.documentElement.scrollWidth <= innerWidth")
        assert shown.errors == []
        assert all(one.startswith(("file:", "data:")) for one in shown.requests)
