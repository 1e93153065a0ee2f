"""A fit finds the figures of the chip that a profile was taken on, and leaves the others alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.resources import configs
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.silicon import fit_search as search
from npusim.silicon.calibrate import Calibration
from npusim.silicon.profile import read_data
from npusim.silicon.score import time_error
from npusim.silicon.simulate import simulate_row
from tests.silicon.sample import HIDDEN, Kernel, addition, product, write_profile
from tests.tables import rows
from tests.texts import text_of

#: A device whose misses take nothing of the L2: its products tell `l2.read` from other figures.
STOCK = "ascend910c"
#: The device that it is a variant of, where the file of most figures is.
PARENT = "ascend910b2"
PRODUCTS = (
    *(product(512, 1024, 768), product(1024, 512, 1024), product(768, 2048, 512, turned=True)),
    # Of the fourth the way out takes the time, whatever its tiling.
    *(product(1536, 32, 2048), product(256, 3072, 768, turned=True)),
)
#: Constants of a test, so that it takes little time.
FEW = text_of("constants.yaml")
CHANGED = {
    "l2.read": "3.6TB/s",
    "paths.L0C->GM.nz2nd.rate": "110B/cycle",
    "paths.L0C->GM.rate": "110B/cycle",
    "vector.idle_head": "12cycle",
}


def profile(path: Path, *kernels: Kernel, noise: float = 0.0, launches: int = 1) -> Path:
    """A profile of a chip with hidden figures."""
    write_profile(path, STOCK, CHANGED, kernels, noise=noise, launches=launches)
    return path


@pytest.fixture
def few(tmp_path: Path) -> Path:
    (tmp_path / "few.yaml").write_text(FEW, encoding="utf-8")
    return tmp_path / "few.yaml"


@pytest.fixture
def found(tmp_path: Path, few: Path) -> Calibration:
    """A fit of few constants to few products, which tell nothing of the vector unit."""
    data = profile(tmp_path / "p.csv", *PRODUCTS, noise=0.005, launches=3)
    return npusim.calibrate(data, STOCK, constants=few)


def value(device: Device, path: str) -> float:
    figure = figures(device)[path].value
    assert not isinstance(figure, tuple)
    return float(figure)


def error(fit: Calibration, *, before: bool) -> float:
    """The largest error of time."""
    return max(abs(time_error(o) or 0.0) for o in (fit.before if before else fit.after))


def test_hidden_figures_are_found_and_undetermined_ones_stay(found: Calibration) -> None:
    true = load_device(STOCK, CHANGED)
    for path in ("l2.read", "paths.L0C->GM.nz2nd.rate", "paths.L0C->GM.rate"):
        assert value(found.device, path) == pytest.approx(value(true, path), rel=0.05), path
    assert value(found.device, "vector.idle_head") == value(load_device(STOCK), "vector.idle_head")
    verdicts = {one.constant.path: one.verdict for one in found.figures}
    assert verdicts == {
        "l2.read": search.FITTED,
        "paths.L0C->GM.nz2nd.rate": search.FITTED,
        "vector.idle_head": search.FEW,
    }
    assert error(found, before=True) > 0.05
    assert error(found, before=False) < 0.02
    assert found.finished


def test_the_device_file_says_what_was_fitted_to_what(found: Calibration, tmp_path: Path) -> None:
    found.save(tmp_path / "mine.yaml")
    device = load_device(tmp_path / "mine.yaml")
    assert (device.name, device.base) == ("mine", STOCK)
    assert device.digest() == found.device.digest()
    assert set(found.changed) == {"l2.read", "paths.L0C->GM.nz2nd.rate", "paths.L0C->GM.rate"}
    known = device.provenance["l2.read"]
    assert (known.confidence, known.inherited) == ("fitted", "")
    low, high = known.range or (0, 0)
    assert float(low) <= value(device, "l2.read") <= float(high)  # type: ignore[arg-type]
    assert "p.csv (sha256 " in device.sources[known.source]
    assert device.provenance["vector.idle_head"].inherited == PARENT
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert f"#   vector.idle_head: {search.FEW}" in text
    with pytest.raises(ArgumentError, match="ends in"):
        found.save(tmp_path / "mine.txt")


def test_the_file_simulates_as_the_fit_said_and_can_be_fitted_again(
    tmp_path: Path, few: Path
) -> None:
    data = profile(tmp_path / "p.csv", *PRODUCTS)
    tiling = "kernels:\n  - {tiling: {base_m: 64, base_n: 128, base_k: 64}}\n"
    (tmp_path / "p.yaml").write_text(tiling, encoding="utf-8")  # by rule it may change with figures
    found = npusim.calibrate(data, STOCK, constants=few)
    found.save(tmp_path / "mine.yaml")
    again = npusim.calibrate(data, tmp_path / "mine.yaml", constants=few)
    for first, second in zip(found.after, again.before, strict=True):
        assert first.simulated is not None
        assert second.simulated is not None
        assert second.simulated.time_us == pytest.approx(first.simulated.time_us, rel=1e-3)
    assert not again.changed
    assert {one.verdict for one in again.figures} == {search.KEPT, search.FEW}
    with pytest.raises(ArgumentError, match=r"none of 3 figures moved.*use .*mine\.yaml as it is"):
        again.save(tmp_path / "more.yaml")
    assert not (tmp_path / "more.yaml").exists()


def test_another_figure_is_fitted_on_request(tmp_path: Path, few: Path) -> None:
    """Below the rate of the bus, beyond which nothing shows what main memory could do."""
    changed = {"main_memory.read": "1.25TB/s"}
    kernels = [addition(size, 1024) for size in (4096, 8192, 12288)]
    write_profile(tmp_path / "p.csv", STOCK, changed, kernels)
    extra = ["main_memory.read=1.1TB/s..1.5TB/s"]
    fit = npusim.calibrate(tmp_path / "p.csv", STOCK, constants=few, figures=extra)
    true = load_device(STOCK, changed)
    assert value(fit.device, "main_memory.read") == pytest.approx(
        value(true, "main_memory.read"), rel=0.03
    )


def test_a_figure_that_ends_at_its_range_is_told(tmp_path: Path) -> None:
    """The chip has 3.6 TB/s, and the range ends before."""
    data = profile(tmp_path / "p.csv", *PRODUCTS)
    narrow = tmp_path / "narrow.yaml"
    narrow.write_text(
        "constants:\n  - {path: l2.read, devices: [ascend910b2], low: 4TB/s, high: 5.2TB/s}\n",
        encoding="utf-8",
    )
    fit = npusim.calibrate(data, STOCK, constants=narrow, rounds=0)
    (figure,) = fit.figures
    assert (figure.value, figure.end) == (figure.constant.low, "low")
    table = next(one for one in fit.tables if one.title.startswith("Figures at an end"))
    assert [(row[0], row[2]) for row in table.rows] == [("l2.read", "low")]
    fit.save(tmp_path / "mine.yaml")
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert "# At this end of the range that was looked at:\n#   l2.read: low\n" in text


def test_figures_inside_their_range_are_at_no_end(found: Calibration) -> None:
    assert [one.end for one in found.figures] == ["", "", ""]
    assert not any(one.title.startswith("Figures at an end") for one in found.tables)


def test_assumed_figures_are_offered_and_can_be_looked_at(tmp_path: Path, few: Path) -> None:
    device = load_device(STOCK)
    assumed = search.assumed_figures(device)
    assert {"main_memory.write", "paths.L0C->L1.startup"} <= set(assumed)
    assert all(device.provenance[path].confidence == "assumed" for path in assumed)
    assert not any(path.startswith("silicon.") or "energy" in path for path in assumed)
    listed = [one.path for one in search.constants_of(STOCK, device, few)]
    all_of_them = [one.path for one in search.constants_of(STOCK, device, few, ["assumed"])]
    assert all_of_them == [*listed, *assumed]
    data = profile(tmp_path / "p.csv", PRODUCTS[0])
    fit = npusim.calibrate(data, STOCK, constants=few, figures=["main_memory.write"], rounds=0)
    offered = fit.tables[-1]
    assert offered.title.startswith("Assumed figures not looked at: --figure PATH fits one")
    others = [path for path in assumed if path != "main_memory.write"]
    assert offered.rows == ((str(len(others)), " ".join(others)),)


def test_a_device_without_fitted_figures_says_what_could_be_fitted() -> None:
    device = load_device("tiny")
    with pytest.raises(ArgumentError, match="tiny: there is no figure to fit") as refused:
        search.constants_of("tiny", device)
    assert "--figure PATH=LOW..HIGH, or all 7" in str(refused.value)
    found = search.constants_of("tiny", device, None, ["assumed"])
    assert [one.path for one in found] == search.assumed_figures(device)


@rows(
    "tests/data/mistakes/calibration.yaml",
    "a_figure_that_cannot_be_fitted_is_refused",
    "figure, message",
)
def test_a_figure_that_cannot_be_fitted_is_refused(
    tmp_path: Path, few: Path, figure: str, message: str
) -> None:
    data = profile(tmp_path / "p.csv", PRODUCTS[0])
    with pytest.raises(ArgumentError, match=r"figure|range") as refused:
        npusim.calibrate(data, STOCK, constants=few, figures=[figure])
    assert message in str(refused.value)


def test_an_interrupt_leaves_what_was_found(tmp_path: Path, few: Path) -> None:
    data = profile(tmp_path / "p.csv", *PRODUCTS)

    def stop(what: str, done: int, total: int) -> None:
        if what == "figure 2 of 3, paths.L0C->GM.nz2nd.rate" and done == total:
            raise KeyboardInterrupt

    fit = npusim.calibrate(data, STOCK, constants=few, progress=stop)
    assert not fit.finished
    assert [one.verdict for one in fit.figures] == [search.FITTED, search.UNSEEN, search.UNSEEN]
    assert set(fit.changed) == {"l2.read"}
    assert search.UNSEEN in fit.text()


def test_an_interrupt_before_anything_was_found_is_one(tmp_path: Path, few: Path) -> None:
    data = profile(tmp_path / "p.csv", PRODUCTS[0])

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        npusim.calibrate(data, STOCK, constants=few, progress=stop)


def test_processes_find_the_same(found: Calibration, tmp_path: Path, few: Path) -> None:
    assert (
        npusim.calibrate(tmp_path / "p.csv", STOCK, constants=few, jobs=2).changed == found.changed
    )


def test_kernels_in_our_own_columns_are_fitted_to(tmp_path: Path, few: Path) -> None:
    head = "id,chip,op,M,N,K,dtype_in,dtype_out,layout_a,layout_b,base_m,base_n,base_k,step_ka,"
    head += "step_kb,time_kind,time_us,trust"
    rows = [
        f"r{time},910B2,gemm,{m},{n},1024,fp16,fp32,ND,ND,128,256,64,4,4,task,{time},A"
        for m, n, time in ((1024, 1024, 30), (2048, 1024, 40), (1024, 3072, 50), (2048, 2048, 70))
    ]
    others = [
        rows[0].replace("r30,910B2", "s1,950PR"),
        rows[0].replace("r30", "s2").replace(",A", ",C"),
        rows[0].replace("r30", "s3").replace("30,A", "3,A"),
    ]
    data = tmp_path / "own.csv"
    data.write_text("\n".join([head, *rows, *others]), encoding="utf-8")
    fit = npusim.calibrate(data, PARENT, constants=few, rounds=0)
    assert len(fit.after) == 4
    reasons = [str(one.reason) for one in fit.left]
    assert f"measured on 950PR, which is not {PARENT}" in reasons
    assert "trust C: its tiling is not known" in reasons
    assert any("but the cube alone takes" in reason for reason in reasons)


def test_nothing_to_fit_to_is_an_error_with_the_reasons(tmp_path: Path, few: Path) -> None:
    data = profile(tmp_path / "p.csv", PRODUCTS[0])
    text = data.read_text(encoding="utf-8").replace("MatMulV3", "Softmax")
    data.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match="none of 1 rows can be fitted to") as refused:
        npusim.calibrate(data, STOCK, constants=few)
    assert f"{data}:2: op type Softmax" in str(refused.value)


def test_a_list_of_constants_has_the_form_of_ours(tmp_path: Path, few: Path) -> None:
    few.write_text("constants:\n  - {path: l2.read, devices: [ascend910b1]}\n", encoding="utf-8")
    data = profile(tmp_path / "p.csv", PRODUCTS[0])
    with pytest.raises(ConfigError, match=r"few\.yaml:2"):
        npusim.calibrate(data, STOCK, constants=few)


def test_the_sample_that_ships_is_read_in_whole_and_says_how_it_was_made() -> None:
    folder = Path(str(configs() / "profiles"))
    rows = read_data(folder / "op_summary.csv", STOCK).rows
    outcomes = [simulate_row(row, {}) for row in rows]
    assert len(outcomes) == 16
    assert [one.reason for one in outcomes] == [None] * 16
    text = (folder / "README.md").read_text(encoding="utf-8")
    for path in HIDDEN:
        assert f"`{path}`" in text
