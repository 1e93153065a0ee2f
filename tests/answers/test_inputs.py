"""Every input of an answer that is kept counts by what it holds, not by what it is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base import digests as sources
from npusim.base.dtypes import FP16
from npusim.base.errors import StoreError
from npusim.call.own_kernel import load_kernel
from npusim.call.tilings.problem import TuningProblem
from npusim.cli.main import parser
from npusim.kernels.parts.mem_set import MemSet
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.ops import CARDS
from npusim.reuse.answers import answers_in
from npusim.reuse.launches import CachedLaunches
from npusim.reuse.store import StoreWarning, opened
from npusim.study.points import MeasuredPoint, keep_points, key_of, stored_point
from npusim.study.runner import failure, look, on_dask
from npusim.study.search import explore
from npusim.study.space import make_study
from npusim.study.subject import NETWORK, OPERATOR, Split, _read, option_names, split
from npusim.workloads import load_workload
from tests.reuse.test_launches import forget, simulated

LAYER = "{{cin: 16, cout: {cout}, spatial: [6, 6], kernel: 3, padding: 1}}"
NET = "description: x\n\nlayers:\n  a: " + LAYER + "\n"

# -- files that options name ---------------------------------------------------------------------


def sizes(text: str, value: int) -> str:
    return text.format(cout=value)


#: Options of studies whose readers open files: the text of one, its two contents, what is measured.
NAMED: dict[str, tuple[str, str, dict[str, str]]] = {
    "layer": ("net.yaml/a", NET, {"operator": "conv2d_backprop_filter"}),
    "network": ("net.yaml", NET, {}),
    "device": (
        "mine.yaml",
        "base: tiny\nname: mine\ndescription: x\nclock: {cout}MHz (assumed, OWN)\n"
        "sources: {{OWN: of a test}}\n",
        {"operator": "matmul", "m": "32", "k": "32", "n": "32"},
    ),
}


@pytest.mark.parametrize("option", NAMED)
def test_an_edit_of_a_file_that_an_option_names_is_seen(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its place and in another folder, within a process and by what it keeps on disk."""
    place, text, others = NAMED[option]
    given: dict[str, Any] = {"device": "tiny", "jobs": 1, "store": tmp_path / "s.sqlite", **others}
    times = []
    for folder, value in (("p1", 16), ("p1", 64), ("p2", 48)):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Path(place.partition("/")[0]).write_text(sizes(text, value), encoding="utf-8")
        kept = npusim.sweep(**{**given, option: place}).table.time_us[0]
        assert kept == npusim.sweep(**{**given, option: place, "store": None}).table.time_us[0]
        times.append(kept)
    assert len(set(times)) == 3


#: Files that readers open while something is watched.
_opened: list[str] = []
sys.addaudithook(lambda event, told: _opened.append(str(told[0])) if event == "open" else None)


def opens(option: str, setting: dict[str, str], file: Path) -> bool:
    """Whether the reader of an option opens a file that its text names."""
    _opened.clear()
    with suppress(npusim.NpusimError, ImportError, ValueError):
        load_device(setting[option]) if option == "device" else _read(option, setting)
    return str(file) in _opened


def test_every_option_that_opens_a_file_is_tried_above(tmp_path: Path) -> None:
    """A new option whose reader opens a file fails here until a test edits such a file."""
    files = [tmp_path / f"a{end}" for end in (".yaml", ".json", ".onnx", ".csv", ".npy")]
    for file in files:
        file.write_text("{}", encoding="utf-8")
    subjects = [{NETWORK: "resnet18"}, *({OPERATOR: name} for name in CARDS)]
    found = {
        option
        for subject in subjects
        for option in (*option_names(subject), "device")
        for file in files
        for text in (f"{file}", f"{file}/a", f"@{file}")
        if opens(option, {**subject, option: text}, file)
    }
    assert found == {*NAMED, "tiling"}


#: What commands that keep answers read from files beside the options of studies, and what they
#: only write, or keep answers in.
READ = {
    "place",
    "workload",
    "what",
    "--device",
    "--input-shape",
    "--goals",
    "--subject-to",
    "--trials",
}
WRITTEN = {
    "--csv",
    "--cann",
    "--plot",
    "--report",
    "--tornado",
    "--trace",
    "--folder",
    "--store",
    "--storage",
}


@pytest.mark.parametrize("command", ["net", "sweep", "explore", "tune", "play"])
def test_no_command_that_keeps_answers_has_another_option_of_files(command: str) -> None:
    (leaf,) = [
        one.choices[command] for one in parser([command])._actions if isinstance(one.choices, dict)
    ]
    named = {
        (action.option_strings or [action.dest])[0]
        for action in leaf._actions
        if "file" in f"{action.help} {action.metavar}".lower()
    }
    assert named <= READ | WRITTEN, "say which it is, and test an edit of what is read"


def test_the_file_of_a_tiling_is_its_content(tmp_path: Path, monkeypatch: Any) -> None:
    """The text of an option says nothing of what the file holds."""
    held = iter((1, 2))
    monkeypatch.setattr(
        "npusim.kernels.vendor.cann.load_cann_tiling", lambda path: f"{path} {next(held)}"
    )
    setting = {"operator": "matmul", "device": "tiny", "m": "1", "k": "1", "n": "1"}
    first, second = (Split.of({**setting, "tiling": "@t.yaml"}, {}).content for _ in range(2))
    assert first != second


def test_a_workload_that_ships_counts_by_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = {"operator": "conv2d_backprop_filter", "device": "tiny", "layer": "resnet50/conv1"}
    whole = {"network": "resnet50", "device": "tiny"}
    before = Split.of(setting, {}).content, Split.of(whole, {}).content
    assert before == (Split.of(setting, {}).content, Split.of(whole, {}).content)
    other = load_workload("dcgan")
    monkeypatch.setattr("npusim.workloads.reading._shipped", lambda name: other)
    layer = {**setting, "layer": f"resnet50/{other.layers[0].name}"}
    after = Split.of(layer, {}).content, Split.of(whole, {}).content
    assert not set(before) & set(after)


# -- products and limits -------------------------------------------------------------------------


def test_a_product_and_its_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chip of the same figures refuses by its product; what one refuses the other may do."""
    setting = {"operator": "matmul", "m": "32", "k": "32", "n": "32", "device": "d.yaml"}
    found = set()
    monkeypatch.chdir(tmp_path)
    for product in ("a2", "'910'", "a2"):
        text = f"base: ascend910b2\nname: own\ndescription: x\nproduct: {product}\n"
        Path("d.yaml").write_text(text, encoding="utf-8")
        found.add(Split.of(setting, {}).content)
    assert len(found) == 2
    monkeypatch.setattr("npusim.study.subject.limits", lambda: "others")
    assert Split.of(setting, {}).content not in found
    assert any(file.endswith("a2.yaml") for file in sources._limits())


# -- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (npusim.CapacityError("no tiling fits"), True),
        (npusim.ArgumentError("a limit"), True),
        (npusim.base.errors.RoomError("this computer has 8 GiB"), False),
        (MemoryError("none"), False),
    ],
)
def test_only_refusals_that_last_are_kept(error: Exception, kept: bool, tmp_path: Path) -> None:
    with opened(tmp_path / "s.sqlite", "sweeps") as store:
        keep_points(store, [("k", failure(error)), ("other", MeasuredPoint({"time_us": 1.0}))])
        assert (stored_point(store, "k") is not None) is kept
        assert stored_point(store, "other") == MeasuredPoint({"time_us": 1.0})


def test_a_store_that_cannot_be_read_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise StoreError("the store 'x' cannot be read")

    parts = split({"operator": "matmul", "device": "tiny", "m": "8", "k": "8", "n": "8"})
    monkeypatch.setattr("npusim.study.runner.measure", broken)
    with pytest.raises(StoreError):
        look([(0, parts)])
    monkeypatch.setattr("npusim.ops.network_layers.answers_in", broken)
    with pytest.raises(StoreError):
        npusim.network("dcgan", device="tiny")


# -- code ----------------------------------------------------------------------------------------

CLEAR = MemSet(Tensor("a", (64, 64), FP16, "out"))


def cycles(store: Path | None = None) -> int:
    with answers_in(store):
        launches = CachedLaunches(load_device("tiny"), (0,))
        made = launches.known(CLEAR) or launches.time(CLEAR, launches.build(CLEAR))
        return made.run.cycles


@contextmanager
def replaced() -> Iterator[None]:
    """Another function stands in the place of the kernel's plan."""
    plan = MemSet.plan

    def patched(self: MemSet, k: Any, cores: int) -> Any:
        return plan(self, k, cores)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemSet, "plan", patched)
        yield


def test_code_put_in_the_place_of_a_method_is_asked(tmp_path: Path) -> None:
    forget()
    store = tmp_path / "runs.sqlite"
    cycles(store)
    with simulated() as names:
        cycles()
        assert not names
        with replaced():
            cycles(store)
            assert names == ["mem_set"], "neither memory nor the file know this code"
            cycles(store)
            assert names == ["mem_set"]
        cycles(store)
        assert names == ["mem_set"], "it is the old code again"
    forget()
    with simulated() as names:
        cycles(store)
        assert not names


def test_modules_imported_anew_are_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by ``importlib.reload``, which gives a module another specification."""
    forget()
    monkeypatch.setattr(sources, "_imported", sources._Imported())
    cycles()
    before = sources.program()
    with simulated() as names:
        cycles()
        assert not names
        monkeypatch.setattr(sys.modules["npusim.machine.isa.dma"], "__spec__", object())
        cycles()
        assert names == ["mem_set"]
        cycles()
        assert names == ["mem_set"]
    assert sources.program() != before


def test_a_process_whose_sources_were_edited_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.sqlite"
    edited = tmp_path / "new.py"
    edited.write_text("", encoding="utf-8")
    files = {**sources._files(), str(edited): "npusim.new"}
    with opened(file, "tuned") as kept:
        kept.put([("a", 1)])
        monkeypatch.setattr(sources, "_files", lambda: files)
        with pytest.warns(StoreWarning, match="edited since this process began"):
            kept.put([("b", 1)])
        assert (kept.get("a"), kept.get("b")) == (1, None)


def test_runs_and_tunings_are_of_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    file = tmp_path / "runs.sqlite"
    cycles(file)
    problem = TuningProblem(CLEAR, load_device("tiny"), (0,)).key, key_of("x")
    for changed in (False, True):
        forget()
        with simulated() as names, pytest.MonkeyPatch.context() as patch:
            if changed:
                patch.setattr(sources, "_sources", lambda: "another version")
            cycles(file)
            assert bool(names) is changed
            keys = TuningProblem(CLEAR, load_device("tiny"), (0,)).key, key_of("x")
            assert (set(keys) & set(problem) == set()) is changed


OWN = """
from npusim.kernels.parts.mem_set import MemSet
from steps import step

class Own(MemSet):
    name = "own"
    def plan(self, k, cores):
        step()
        return super().plan(k, cores)
"""


def test_a_module_beside_a_kernel_is_its_code(tmp_path: Path) -> None:
    """The class and its own file stay; an edited module beside it, or a constant there, counts."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    keys = []
    for text in (
        "def step(): pass",
        "TIMES = 2\ndef step(): TIMES",
        "TIMES = 30\ndef step(): TIMES",  # of another size: bytecode is known by size and second
    ):
        (tmp_path / "steps.py").write_text(text, encoding="utf-8")
        sys.modules.pop("steps", None)
        kind = load_kernel(f"{tmp_path / 'own.py'}:Own")
        kernel = kind(Tensor("a", (64, 64), FP16, "out"))  # type: ignore[call-arg]
        keys += [TuningProblem(kernel, load_device("tiny"), (0,)).key for _ in range(2)]
        assert {one.__name__ for one in sources.own_modules(kind)} >= {"steps"}
    sys.modules.pop("steps", None)
    assert len(set(keys)) == 3


# -- threads and workers -------------------------------------------------------------------------


def test_threads_with_one_store_agree_with_a_serial_run(tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    net.write_text(sizes(NET, 16), encoding="utf-8")

    def run(_: int) -> Any:
        return npusim.network(net, device="tiny", store=tmp_path / "s.sqlite").to_json()

    forget()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    forget()
    serial = npusim.network(net, device="tiny").to_json()
    assert all(one == serial for one in found)


def test_a_thread_without_a_store_uses_no_other(tmp_path: Path) -> None:
    forget()
    with answers_in(tmp_path / "s.sqlite"), ThreadPoolExecutor(1) as pool:
        pool.submit(cycles).result()
    with opened(tmp_path / "s.sqlite", "runs") as kept:
        assert len(kept) == 0


def test_workers_are_sent_what_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(sizes(NET, 16), encoding="utf-8")
    study = make_study({"network": "net.yaml", "device": "tiny"}, {"batch": "1,2"})
    chunk = [(number, Split.of(setting, {})) for number, setting in enumerate(study.points())]
    Path("net.yaml").unlink()
    assert [one.error for _, one in look(chunk)] == ["", ""]


def test_a_scheduler_without_workers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.asked = 0

        def nthreads(self) -> dict[str, int]:
            return {"a": 1} if self.asked else {}

        def wait_for_workers(self, count: int) -> None:
            self.asked = count

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    class Dask:
        pass

    Dask.Client = Client  # type: ignore[attr-defined]
    Dask.as_completed = lambda futures: futures  # type: ignore[attr-defined]
    monkeypatch.setattr("npusim.study.runner.optional", lambda *_: Dask)
    with pytest.warns(UserWarning, match=r"tcp://x:1' has no workers.*`dask worker tcp://x:1`"):
        assert list(on_dask(lambda workers: iter(()), "tcp://x:1")) == []


def test_an_exploration_is_not_continued_over_edited_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    given = {"network": "net.yaml", "device": "tiny", "vary": {"batch": "1,2"}, "jobs": 1}
    given |= {"storage": "e.db", "store": None, "goals": ("time_us",), "trials": 2}
    times = []
    for value in (16, 96):
        Path("net.yaml").write_text(sizes(NET, value), encoding="utf-8")
        times.append(min(one.row["time_us"] for _, one in explore(**given).points))  # type: ignore[arg-type]
    assert times[0] < times[1]
    Path("net.yaml").write_text(sizes(NET, 32), encoding="utf-8")
    explore(**given, name="mine")  # type: ignore[arg-type]
    Path("net.yaml").write_text(sizes(NET, 64), encoding="utf-8")
    with pytest.raises(npusim.ArgumentError, match="edited since"):
        explore(**given, name="mine")  # type: ignore[arg-type]
