"""The scatter plot holds every point, by family, on logarithmic axes."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.results.plots import figure_bytes
from npusim.results.scorecard_plot import plot_scorecard


def test_every_family_is_a_series_of_its_points() -> None:
    points = {"F": [(10.0, 11.0), (1000.0, 900.0)], "G": [(5.0, 20.0)]}
    ax = plot_scorecard(points)
    band, *series = ax.collections
    offsets = [np.asarray(one.get_offsets()).tolist() for one in series]
    assert offsets == [[[10.0, 11.0], [1000.0, 900.0]], [[5.0, 20.0]]]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["within 10 %", "F", "G"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlim() == ax.get_ylim() == pytest.approx((5 / 1.5, 1500))
    corners = np.round(np.asarray(band.get_paths()[0].vertices), 6).tolist()
    assert [1500.0, 1650.0] in corners
    assert [1500.0, 1350.0] in corners


def test_families_beyond_the_colours_differ_by_their_marks() -> None:
    points = {f"F{i}": [(1.0 + i, 2.0 + i)] for i in range(20)}
    _, *series = plot_scorecard(points).collections
    looks = {
        (
            np.asarray(one.get_facecolor()).tobytes(),
            np.asarray(one.get_paths()[0].vertices).tobytes(),
        )
        for one in series
    }
    assert len(looks) == 20


def test_a_score_card_without_points_can_be_drawn() -> None:
    assert figure_bytes(plot_scorecard({}), "png").startswith(b"\x89PNG")
