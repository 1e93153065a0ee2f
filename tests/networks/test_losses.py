"""Steps with the loss of a user, several inputs, and what no step can be read of."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

DEVICE = "ascend910b2"


def classifier() -> Any:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))


def test_a_loss_of_classes_is_exported_with_the_model() -> None:
    def loss(rows: Any, classes: Any) -> Any:
        return F.cross_entropy(rows, classes)

    step = npusim.step(
        classifier(),
        (3, 8, 8),
        batch=4,
        device=DEVICE,
        loss=loss,
        targets=[torch.zeros(4, dtype=torch.long)],
    )
    assert step.complete
    assert {item.name for item in step.workload.inputs} > {"input"}
    assert any("loss" in launched.label for launched in step.launched)
    usual = npusim.step(classifier(), (3, 8, 8), batch=4, device=DEVICE)
    counted = [
        sum(launched.kind == "linear" for launched in result.launched) for result in (step, usual)
    ]
    assert counted[0] == counted[1] > 2, "gradients flow from either loss"


def test_a_loss_of_maps_compares_them() -> None:
    step = npusim.step(
        nn.Conv2d(3, 8, 3),
        (3, 8, 8),
        batch=2,
        device=DEVICE,
        loss=F.mse_loss,
        targets=[npusim.spec((8, 6, 6), "fp32")],
    )
    assert step.complete
    assert any(launched.kind == "convolution weight" for launched in step.launched)


def test_what_depends_on_data_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Choice(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x) if x.sum() > 0 else x

    with pytest.raises(ArgumentError, match=r"Choice cannot be read: .*may not depend on values"):
        npusim.step(Choice(), (3, 16, 16), device=DEVICE)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_complex_values_make_a_step_partial() -> None:
    class Fourier(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            maps = torch.fft.irfft2(torch.fft.rfft2(self.conv(x)))
            return self.head(maps.mean((2, 3)))

    step = npusim.step(Fourier(), (3, 16, 16), batch=2, device=DEVICE)
    assert not step.complete
    assert "partial     operations that multiply and are not known" in step.text()
    assert {name for name, _ in step.workload.unknown_products} == {
        "_fft_r2c (complex)",
        "_fft_c2r (complex)",
    }
    assert not npusim.network(Fourier(), (3, 16, 16), batch=2, device=DEVICE).complete


def test_what_computes_with_integers_is_priced_by_its_bytes_and_named() -> None:
    class Times(nn.Module):  # type: ignore[misc, name-defined]
        """Steps of a diffusion, scaled before they are embedded."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.time = nn.Conv2d(3, 8, 3), nn.Linear(1, 8)

        def forward(self, x: Any, steps: Any) -> Any:
            scaled = steps * torch.ones(x.shape[0], dtype=torch.float32)
            return self.conv(x) + self.time(scaled[:, None])[:, :, None, None]

    inputs = [npusim.spec((3, 8, 8), "fp32"), npusim.spec((), "int32")]
    step = npusim.step(Times(), inputs=inputs, batch=2, device=DEVICE)
    assert step.complete, [launched.timed.error for launched in step.failed]
    only = [launched.label for launched in step.launched if launched.kind == "traffic only"]
    assert only == ["mul"]
    assert any("1 x mul" in note for note in step.notes)
