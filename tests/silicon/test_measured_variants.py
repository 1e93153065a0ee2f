"""Measured kernels that differ in their tilings alone: what ``npusim.rank`` keeps of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import pytest

import npusim
from npusim.machine.device.catalog import load_device
from npusim.silicon.gemm_rows import kernel_of_row
from npusim.silicon.rows import Declined, KernelRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import device_name


def variants() -> list[list[tuple[KernelRow, Any]]]:
    """The measured products with their kernels, by all but what is a choice of tilings."""
    found = defaultdict[Hashable, list[tuple[KernelRow, Any]]](list)
    for row in (row for sheet in shipped_sheets() for row in sheet.rows):
        if not isinstance(row, KernelRow) or not row.time_us:
            continue
        try:
            name, _ = device_name(row)
            kernel, _, _ = kernel_of_row(row, load_device(name))
        except Declined:
            continue
        problem = (row.chip, row.M, row.N, row.K, row.dtype_in, row.dtype_out, row.op)
        found[problem, type(kernel)].append((row, kernel))
    return [group for group in found.values() if len(group) > 1]


def in_order(group: list[tuple[KernelRow, Any]]) -> npusim.Ranking:
    """The rows of a group by estimate; each launch has the cores of its row."""
    name, _ = device_name(group[0][0])
    cores = max(kernel_of_row(row, load_device(name))[1] for row, _ in group)
    return npusim.rank(group[0][1], [kernel for _, kernel in group], name, cores=range(cores))


@pytest.mark.slow
def test_the_measured_best_is_kept() -> None:
    groups = variants()
    quarter = certain = 0
    for group in groups:
        ranking = in_order(group)
        times = [row.time_us or 0.0 for row, _ in group]
        best = times.index(min(times))
        quarter += best in {row.place for row in ranking.kept(0.25)}
        certain += best in {row.place for row in ranking.kept(certain=True)}
    assert len(groups) >= 27
    assert quarter >= 0.9 * len(groups)
    assert certain == len(groups)
