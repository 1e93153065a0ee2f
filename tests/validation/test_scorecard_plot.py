"""The plot of the score card holds every point, by family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from npusim.results.plots import draw_grid
from npusim.validation import card


def plotted(points: dict[str, list[tuple[float, float]]]) -> list[Axes]:
    return draw_grid(card.figures(points), 6, (12, 4)).figure.axes


def test_every_family_has_its_points_and_its_mean_error() -> None:
    points = {"F": [(10.0, 11.0), (1000.0, 900.0)], "G": [(5.0, 20.0)], "H": []}
    first, second, third, *_ = plotted(points)
    drawn = [np.asarray(ax.lines[-1].get_xydata()).tolist() for ax in (first, second)]
    assert drawn == [[[10.0, pytest.approx(1.1)], [1000.0, 0.9]], [[5.0, 4.0]]]
    titles = [ax.get_title(loc="left") for ax in (first, second, third)]
    assert titles == ["F, 10 %", "G, 300 %", "H"]
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    low, high = first.get_ylim()
    assert low < 0.9
    assert high > 4, "no point is cut off"


def test_families_that_do_not_fill_a_row_leave_no_empty_plots() -> None:
    points = {f"F{i}": [(1.0 + i, 2.0 + i)] for i in range(7)}
    assert [ax.axison for ax in plotted(points)] == [True] * 7 + [False] * 5


def test_a_score_card_without_points_can_be_drawn(tmp_path: Path) -> None:
    card.save_plot(tmp_path / "card.png", ())
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")
