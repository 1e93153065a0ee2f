"""The PyTorch bridge: what it sees, that its numbers are PyTorch's, that it never interferes."""

from __future__ import annotations

import doctest
import html
import io
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import npusim.torch
import npusim.torch.log
from npusim.problem.reference import conv_bias_grad, conv_filter_grad, conv_input_grad
from npusim.results import Result
from npusim.results.writers.progress import ProgressBar
from npusim.torch.log import COLUMNS, TOLERANCES, Log

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional


class Net(nn.Module):  # type: ignore[misc, name-defined]
    """Every kind of layer a small network has: 1-D to 3-D, strided, depthwise, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, padding=1)
        self.strided = nn.Conv2d(8, 16, 3, stride=(2, 1), padding=(1, 2), bias=False)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.up = nn.ConvTranspose2d(16, 4, 3, stride=2, padding=1, output_padding=(1, 0))
        self.line = nn.Conv1d(4, 6, 5, padding=2)
        self.deep = nn.Conv3d(6, 4, (1, 3, 2), padding=(0, 1, 0))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.strided(torch.relu(self.plain(x))))
        x = self.up(torch.tanh(self.depthwise(x)))
        n, c, h, w = x.shape
        x = self.line(x.reshape(n, c, h * w)).reshape(n, 6, 1, h, w)
        return self.deep(x)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


LAYERS = ["deep", "line", "up", "depthwise", "strided", "plain"]  # in the order of the backward


def make_net() -> Any:
    torch.manual_seed(1)
    return Net()


def make_input(*shape: int) -> Any:
    return torch.randn(*(shape or (2, 3, 8, 6)), generator=torch.Generator().manual_seed(2))


def step(model: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    loss.backward()
    return loss


def rows(log: Log) -> dict[str, dict[str, Any]]:
    return {row["layer"]: row for row in log.rows()}


# -- what is recorded --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked() -> tuple[Any, Log]:
    model = make_net()
    with npusim.torch.trace(device="ascend910b2", model=model, check=True) as log:
        step(model, make_input().requires_grad_())
    return model, log


def test_every_layer_of_a_step_is_recorded_and_agrees(checked: tuple[Any, Log]) -> None:
    table = checked[1].table()
    assert list(table.layer) == LAYERS
    assert set(table.arithmetic) == {"hf32"}
    assert set(table.dtype) == {"fp32"}
    assert table.ok.all(), table[["layer", "error_grad_input", "error_grad_weight"]]
    assert (table.cycles > 0).all()
    assert (table.kernels > 1).all()
    assert (table.bottleneck != "").all()
    assert (table.reason == "").all()
    # HF32 rounds operands: an error of nothing would mean that nothing was computed
    assert (table.error_grad_weight > 2.0**-19).all()
    assert table.error_grad_weight.max() < 2.0**-11
    assert list(table.error_grad_bias.isna()) == [layer == "strided" for layer in LAYERS]


def test_rows_have_the_arguments_of_the_layers(checked: tuple[Any, Log]) -> None:
    found = rows(checked[1])
    up, strided, depthwise = found["up"], found["strided"], found["depthwise"]
    assert up["transposed"] is True
    assert (up["stride"], up["padding"], up["output_padding"]) == ((2, 2), (1, 1), (1, 0))
    assert up["weight"] == (16, 4, 3, 3)
    assert up["mask"] == (True, True, True)
    assert (strided["stride"], strided["padding"]) == ((2, 1), (1, 2))
    assert strided["mask"] == (True, True, False)
    assert (depthwise["groups"], depthwise["dilation"]) == (16, (2, 2))
    assert found["line"]["grad_output"] == (2, 6, 8 * 15)
    assert found["deep"]["weight"] == (4, 6, 1, 3, 2)


def test_results_hold_pytorchs_gradients(checked: tuple[Any, Log]) -> None:
    model, log = checked
    for layer, row in rows(log).items():
        grad = getattr(model, layer).weight.grad.numpy()
        got = log.results[row["result"]].grad_weight
        assert got is not None
        np.testing.assert_allclose(got, grad, rtol=0, atol=2.0**-10 * np.abs(grad).max())


def test_totals_and_texts(checked: tuple[Any, Log]) -> None:
    log = checked[1]
    assert log.time_us == pytest.approx(log.table().time_us.sum(), rel=1e-12)
    text = log.summary()
    assert text.startswith("ascend910b2: 6 convolution backwards, 6 distinct, ")
    assert all(len(line) <= 80 for line in text.splitlines())
    table = text.split("\n\n")[1].splitlines()[1:]
    assert [line.split()[0] for line in table[::2]] == LAYERS
    assert all(line.startswith("  fp32 ") for line in table[1::2])
    assert "beyond" not in text
    assert text in html.unescape(log._repr_html_())
    plain = json.loads(json.dumps(log.to_json(), allow_nan=False))
    assert plain["time_us"] == log.time_us
    assert plain["framework"] == f"torch {torch.__version__}"
    assert [call["layer"] for call in plain["calls"]] == LAYERS
    assert [one["cycles"] for one in plain["results"]] == list(log.table().cycles)
    assert list(log.table().columns) == list(log.rows()[0]) == list(COLUMNS)


def test_nothing_recorded_makes_an_empty_table_of_the_same_columns() -> None:
    with npusim.torch.trace(device="tiny") as log:
        torch.ones(2) + 1
    assert list(log.table().columns) == list(COLUMNS)
    assert len(log.table()) == log.time_us == 0
    assert log.summary() == "tiny: 0 convolution backwards, 0 distinct, 0.000 us"


def test_gradients_equal_the_reference() -> None:
    """Not only PyTorch: float64 sums over the definition, in plain fp32 on the device."""
    x, w = make_input(2, 4, 5, 7).requires_grad_(), make_input(6, 2, 3, 2).requires_grad_()
    b = torch.zeros(6, requires_grad=True)
    with npusim.torch.trace("ascend910b2", check=True, cube_math_type="keep_dtype") as log:
        y = F.conv2d(x, w, b, stride=(1, 2), padding=(2, 1), groups=2)
        dy = make_input(*y.shape)
        y.backward(dy)
    (row,) = log.rows()
    assert (row["layer"], row["arithmetic"], row["ok"]) == ("6x2x3x2", "fp32", True)
    result = log.results[0]
    pads = [(2, 2), (1, 1)]
    a = x.detach().numpy(), w.detach().numpy(), dy.numpy()
    dx = conv_input_grad(a[2], a[1], a[0].shape, (1, 2), pads, (1, 1), 2)
    dw = conv_filter_grad(a[0], a[2], (3, 2), (1, 2), pads, (1, 1), 2)
    for got, want in zip(result.outputs or (), (dx, dw, conv_bias_grad(a[2])), strict=True):
        assert got is not None
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_autocast(kind: str) -> None:
    model = make_net()
    with npusim.torch.trace(device="ascend910b2", model=model, check=True) as log:
        with torch.autocast("cpu", getattr(torch, kind)):
            y = model(make_input())
        y.float().square().mean().backward()
    table = log.table()
    short = {"float16": "fp16", "bfloat16": "bf16"}[kind]
    assert list(table.layer) == LAYERS  # through the copies autocast computes with
    assert set(table.dtype) == set(table.arithmetic) == {short}
    assert set(table.tolerance) == {TOLERANCES[short]}
    assert table.ok.all(), table[["error_grad_input", "error_grad_weight", "error_grad_bias"]]
    assert table["mask"].iloc[-1] == (False, True, True)  # the image needs no gradient
    assert log.results[0].grad_weight is not None
    assert log.results[0].grad_weight.dtype.name == kind


def test_memory_formats_and_padding_modes() -> None:
    convs = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), nn.Conv2d(4, 4, 3, padding=1)
    ).to(memory_format=torch.channels_last)
    x = make_input(2, 3, 6, 6).to(memory_format=torch.channels_last)
    with npusim.torch.trace(device="ascend910b2", model=convs, check=True) as log:
        step(convs, x)
    table = log.table()
    assert list(table.layer) == ["1", "0"]
    assert list(table.input) == [(2, 4, 6, 6), (2, 3, 8, 8)]  # reflected edges are data
    assert list(table.padding) == [(1, 1), (0, 0)]
    assert table.ok.all()


def test_samples_without_batch_and_empty_batches() -> None:
    conv = nn.Conv1d(3, 4, 3)
    with npusim.torch.trace(device="ascend910b2", model=conv, check=True) as log:
        conv(make_input(3, 9)).sum().backward()
        conv(torch.zeros(0, 3, 9)).sum().backward()
    table = log.table()
    assert list(table.input) == [(1, 3, 9), (0, 3, 9)]
    assert table.ok.all()
    assert list(table.layer) == ["weight", "weight"]


def test_meta_tensors_are_timed() -> None:
    conv = nn.Conv2d(8, 8, 3, device="meta")
    data = nn.Conv2d(8, 8, 3)
    with npusim.torch.trace(device="ascend910b2") as log:
        step(conv, torch.empty(1, 8, 6, 6, device="meta"))
        step(data, torch.zeros(1, 8, 6, 6))
    assert list(log.table()["count"]) == [2, 2]
    assert len(log.results) == 1
    with npusim.torch.trace(device="ascend910b2", check=True) as log:
        step(conv, torch.empty(1, 8, 6, 6, device="meta"))
    assert "meta device" in log.rows()[0]["reason"]


def test_names_survive_replaced_parameters() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Conv2d(4, 2, 1))
    with npusim.torch.trace(device="tiny", model=model, rules="hardware") as log:
        step(model, make_input(1, 3, 5, 5))
        model[1].weight = nn.Parameter(torch.ones(2, 4, 1, 1))
        step(model, make_input(1, 3, 5, 5))
    assert [entry.layer for entry in log.entries] == ["1", "0", "1", "0"]


def test_other_tensors_of_a_model_are_no_layers() -> None:
    model = nn.ParameterDict({"in_weight": torch.ones(2, 3, 1, 1), "table": torch.eye(3)})
    with npusim.torch.trace(device="ascend910b2", model=model) as log:
        model["table"].detach().to_sparse().clone()  # has no storage to know it by
        F.conv2d(make_input(1, 3, 4, 4), model["in_weight"]).sum().backward()
    assert [entry.layer for entry in log.entries] == ["in_weight"]


# -- how often it simulates --------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keyword arguments of every simulation started."""
    calls: list[dict[str, Any]] = []
    real = npusim.ops.convolution_backward

    def counted(*operands: Any, **options: Any) -> Result:
        calls.append(options)
        return real(*operands, **options)

    monkeypatch.setattr(npusim.torch.log, "convolution_backward", counted)
    return calls


def test_equal_calls_are_simulated_once(simulated: list[dict[str, Any]]) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    with npusim.torch.trace(device="ascend910b2", model=model) as log:
        for _ in range(3):
            step(model, make_input(1, 4, 6, 6).requires_grad_())
        step(model, make_input(2, 4, 6, 6).requires_grad_())
    assert len(simulated) == len(log.results) == 2
    assert list(log.table()["count"]) == [6] * 6 + [2] * 2
    assert list(log.table()["result"]) == [0] * 6 + [1] * 2
    assert log.time_us == pytest.approx(6 * log.results[0].time_us + 2 * log.results[1].time_us)
    assert log.results[0].outputs is None
    assert log.table().ok.isna().all()


def test_a_check_computes_every_call(simulated: list[dict[str, Any]]) -> None:
    conv = nn.Conv2d(4, 4, 3)
    with npusim.torch.trace(device="ascend910b2", model=conv, check=True) as log:
        for scale in (1.0, 3.0):
            step(conv, scale * make_input(1, 4, 6, 6))
    assert len(simulated) == 2
    assert len(log.results) == 1
    first, second = log.table().error_grad_weight
    assert first != second


@pytest.mark.parametrize(
    ("kind", "wanted", "number"),
    [("float32", None, 1), ("float16", None, 0), ("float32", 0, 0), ("bfloat16", "use_hf32", 3)],
)
def test_cube_math_type(
    simulated: list[dict[str, Any]], kind: str, wanted: Any, number: int
) -> None:
    conv = nn.Conv2d(2, 2, 1).to(getattr(torch, kind))
    with npusim.torch.trace(device="ascend910b2", cube_math_type=wanted, cores="0-1") as log:
        step(conv, make_input(1, 2, 3, 3).to(getattr(torch, kind)))
    assert log.rows()[0]["reason"] == ""
    assert simulated[0]["cube_math_type"] == number
    assert simulated[0]["cores"] == (0, 1)
    assert simulated[0]["timeline"] is False


# -- what it leaves alone ----------------------------------------------------------------------


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_pytorchs_results_are_untouched(check: bool, memory: str) -> None:
    def train(tracing: AbstractContextManager[Log | None]) -> list[Any]:
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = make_input().to(memory_format=getattr(torch, memory)).requires_grad_()
        losses = []
        with tracing as log:
            for _ in range(2):
                optimizer.zero_grad()
                losses.append(step(model, x).detach())
                optimizer.step()
        assert log is None or len(log.entries) == 12
        return [*losses, x.grad, *(p.detach() for p in model.parameters())]

    tracing = npusim.torch.trace("ascend910b2", check=check, cores="0")
    for plain, seen in zip(train(nullcontext()), train(tracing), strict=True):
        assert torch.equal(plain, seen)
        assert plain.stride() == seen.stride()


def test_the_example_of_the_module_runs() -> None:
    outcome = doctest.testmod(npusim.torch)
    assert outcome.attempted >= 6
    assert outcome.failed == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_check_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal only, and the bar is gone at the end."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(npusim.torch, "ProgressBar", partial(ProgressBar, 0.0))
    model = make_net()
    with npusim.torch.trace(device="ascend910b2", model=model, check=True) as log:
        step(model, make_input())
    assert "(call 1) " in screen.getvalue()
    assert f"(call {len(log.entries)}) " in screen.getvalue()


def test_progress_may_go_elsewhere() -> None:
    seen: dict[str, None] = {}
    conv = torch.nn.Conv2d(2, 3, 1)
    with npusim.torch.trace(
        device="tiny",
        model=torch.nn.Sequential(conv),
        progress=lambda kernel, phase, done, total: seen.setdefault(kernel),
    ):
        step(conv, make_input(1, 2, 4, 4))
    assert all(kernel.startswith("0 (call 1) ") for kernel in seen)
    assert any(kernel.endswith("conv_backprop_filter") for kernel in seen)
