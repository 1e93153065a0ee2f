"""The judges of networks: counted by hand, and two accounts of a step that agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sampled import slow_if

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from npusim.workloads import read_network  # noqa: E402  # it needs PyTorch
from tests.networks.modules import CASES, OF_PYTORCHCV, WITHOUT_JOINT_GRAPH  # noqa: E402
from tests.networks.oracle import (  # noqa: E402  # it needs PyTorch
    Convolution,
    ConvolutionBackward,
    Operation,
    Product,
    Step,
    dispatched_products,
    joint_products,
    multiply_adds,
    product,
)

ACCOUNTS = pytest.mark.parametrize("account", [joint_products, dispatched_products])


def convolution(x: tuple[int, ...], w: tuple[int, ...], **differs: Any) -> Convolution:
    """A convolution of two axes with stride 1 and no padding, but for what differs."""
    plain = Convolution(x, w, (1, 1), (0, 0), (1, 1), 1, transposed=False, output_padding=(0, 0))
    return plain._replace(**differs)


@ACCOUNTS
def test_convolutions_are_counted_with_their_masks(account: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(6, 5, 1),
        nn.ConvTranspose2d(5, 3, 2, 2, output_padding=1),
    )
    model[2].weight.requires_grad_(False)
    step = account(model, (torch.randn(2, 4, 9, 9),))
    same = {"stride": (2, 2), "padding": (1, 1), "dilation": (2, 2), "groups": 2}
    first = convolution((2, 4, 9, 9), (6, 2, 3, 3), **same)
    second = convolution((2, 6, 4, 4), (5, 6, 1, 1))
    up = {"stride": (2, 2), "transposed": True, "output_padding": (1, 1)}
    third = convolution((2, 5, 4, 4), (5, 3, 2, 2), **up)
    assert step.forward == Counter([first, second, third])
    assert step.backward == Counter(
        [
            ConvolutionBackward(first, (False, True, False)),
            ConvolutionBackward(second, (True, False, True)),
            ConvolutionBackward(third, (True, True, True)),
        ]
    )
    assert step.gradients == {"0.weight", "2.bias", "3.weight", "3.bias"}
    by_hand = 2 * 16 * 6 * 18 + 2 * 16 * 5 * 6 + 2 * 16 * 5 * 12
    assert multiply_adds(step.forward) == by_hand


class Products(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer without a bias of rows that lie apart, and the ways to write a product."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(6, 8, bias=False)
        self.w, self.v = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(8))

    def forward(self, x: Any) -> Any:
        y = self.f(x.transpose(1, 2))
        return torch.einsum("bik,kn->bin", y, self.w), y @ y.transpose(1, 2), y @ self.v


@ACCOUNTS
def test_rows_that_are_flattened_compare_equal(account: Any) -> None:
    step = account(Products(), (torch.randn(4, 6, 7),))
    stacks = product(4, 7, 8, 7)
    assert step.forward == Counter(
        [product(1, 28, 6, 8), product(1, 28, 8, 5), stacks, product(1, 28, 8, 1)]
    )
    # x has no gradient; both operands of the stack have one, and of the vector only its own, as
    # PyTorch multiplies element by element where a product has one term.
    assert step.backward == Counter(
        [
            product(1, 6, 28, 8),
            *(product(1, 8, 28, 5), product(1, 28, 5, 8)),
            *(product(4, 7, 7, 8), product(4, 7, 7, 8)),
            product(1, 1, 28, 8),
        ]
    )
    assert multiply_adds(step.forward) == 28 * 6 * 8 + 28 * 8 * 5 + 4 * 7 * 8 * 7 + 28 * 8


@ACCOUNTS
def test_a_bias_that_makes_matrices_is_no_sum_of_their_gradients(account: Any) -> None:
    """A gradient of matrices, one for each image, is read as rows, whose sum is that of a bias."""

    class Turned(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(5, 9)

        def forward(self, x: Any, y: Any) -> Any:
            return torch.bmm(x, self.f(y).view(-1, 3, 3))

    step = account(Turned(), (torch.randn(2, 7, 3), torch.randn(2, 5)))
    assert step.backward == Counter([product(2, 3, 7, 3), product(1, 9, 2, 5)])


@ACCOUNTS
def test_attention_is_two_products_and_four_of_its_gradients(account: Any) -> None:
    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(2, 3, 5, 4))

        def forward(self, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(self.q, k * self.q.mean(), v * self.q.mean())

    step = account(Attention(), (torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 6)))
    weights, mixed = product(6, 5, 4, 7), product(6, 5, 7, 6)
    assert step.forward == Counter([weights, mixed])
    twice = [product(6, 5, 6, 7), product(6, 7, 5, 6), product(6, 5, 7, 4), product(6, 7, 5, 4)]
    assert step.backward == Counter(twice)


@ACCOUNTS
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_are_products(account: Any, kind: str, gates: int) -> None:
    class Rows(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.r = getattr(nn, kind)(5, 6, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.r(x)[0]

    step = account(Rows(), (torch.randn(2, 3, 5),))
    inputs, state = product(1, 6, 5, 6 * gates), product(1, 2, 6, 6 * gates)
    assert step.forward == Counter({inputs: 1, state: 3})
    # The state that the first step reads is no parameter: its gradient is that of two steps.
    assert step.backward == Counter(
        {
            product(1, 5, 6, 6 * gates): 1,
            product(1, 6 * gates, 2, 6): 3,
            product(1, 2, 6 * gates, 6): 2,
        }
    )


@ACCOUNTS
def test_what_is_frozen_detached_or_shared_is_seen(account: Any) -> None:
    maps = (torch.randn(2, 16, 6, 6),)

    def step(name: str) -> Step:
        found: Step = account(CASES[name].build(), maps)
        return found

    call = convolution((2, 16, 6, 6), (16, 16, 3, 3), padding=(1, 1))
    first = ConvolutionBackward(call, (False, True, True))
    later = ConvolutionBackward(call, (True, True, True))
    head = [product(1, 10, 2, 16), product(1, 2, 10, 16)]
    assert step("learns").backward == Counter([first, later, *head])
    assert step("shared").backward == Counter([first, later, later, later, *head])
    assert step("frozen_first").backward == Counter([first, *head])
    for name in ("frozen", "no_grad", "detached"):
        assert step(name).forward == step("learns").forward
        assert step(name).backward == Counter(head[:1])
        assert step(name).gradients == {"f.weight", "f.bias"}
    assert step("tied").gradients == {"a.weight", "a.bias", "b.bias", "f.weight", "f.bias"}


@ACCOUNTS
def test_a_loss_of_the_user_decides_what_has_a_gradient(account: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    step = account(
        model, (torch.randn(2, 4),), loss=lambda y: y.detach().sum() + model[0].bias.sum()
    )
    assert (step.gradients, step.backward) == ({"0.bias"}, Counter())


@ACCOUNTS
def test_what_cannot_be_counted_is_no_silent_zero(account: Any) -> None:
    class Bilinear(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Bilinear(3, 4, 5)

        def forward(self, x: Any, y: Any) -> Any:
            return self.b(x, y)

    with pytest.raises(NotImplementedError, match="_trilinear multiplies, and the oracle does not"):
        account(Bilinear(), (torch.randn(2, 3), torch.randn(2, 4)))
    with pytest.raises(ValueError, match="no output of the module has a gradient"):
        account(nn.ReLU(), (torch.randn(2, 3),))


def test_a_module_is_as_it_was() -> None:
    """Weights that a hook makes, and parameters that no gradient reaches, are what they were."""
    model = CASES["spectral_old"].build()
    model.unused = nn.Linear(2, 2)
    before, ours = dict(model.state_dict()), model[0].weight
    joint_products(nn.Sequential(model[0]), (torch.randn(2, 3, 8, 8),))
    assert model[0].weight is ours
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())


def test_backward_convolutions_have_no_single_count() -> None:
    call = convolution((1, 1, 3, 3), (1, 1, 3, 3))
    operations: Counter[Operation] = Counter([ConvolutionBackward(call, (True, True, True))])
    with pytest.raises(TypeError, match="multiply-adds are counted of forward operations"):
        multiply_adds(operations)


def test_complex_products_are_four_real_ones() -> None:
    step = dispatched_products(CASES["neural_operator"].build(), CASES["neural_operator"].inputs(2))
    assert step.forward[Product(16, 2, 8, 8, is_complex=True)] == 1
    # Forward there and back; the gradient of each is one of the other kind, of which that of the
    # real transform is complex.
    assert step.transforms == Counter(_fft_r2c=2, _fft_c2r=1, _fft_c2c=1)


#: Cases whose recurrent layers or many products take more than some seconds.
LONG = {name for name, case in CASES.items() if case.slow} | {"bidirectional", "detector"}


#: One case in so many is tried in `make test`: what is compared is the judge with itself.
EVERY = 12


@pytest.mark.parametrize(
    "name",
    [slow_if(index % EVERY > 0 or name in LONG, name) for index, name in enumerate(CASES)],
)
def test_both_accounts_of_a_case_agree(name: str) -> None:
    """Convolutions, masks, products and gradients of a graph without data and of a real step."""
    case = CASES[name]
    inputs = case.inputs(2)
    torch.manual_seed(0)
    real = dispatched_products(case.build(), inputs)
    if name in WITHOUT_JOINT_GRAPH:
        with pytest.raises(RuntimeError, match="slice_scatter does not support"):
            joint_products(case.build(), inputs)
        return
    assert joint_products(case.build(), inputs) == real


@pytest.mark.parametrize(
    "name", [slow_if(case.slow, name) for name, case in CASES.items() if case.macs]
)
def test_cases_have_the_multiply_adds_that_are_worked_out(name: str) -> None:
    case = CASES[name]
    step = dispatched_products(case.build(), case.inputs(case.batch))
    assert multiply_adds(step.forward) == case.macs


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PYTORCHCV)
@pytest.mark.filterwarnings("ignore")  # of the package
def test_both_accounts_of_a_network_of_others_agree(name: str) -> None:
    provider = pytest.importorskip("pytorchcv.model_provider")
    model, inputs = provider.get_model(name), (torch.randn(2, *OF_PYTORCHCV[name]),)
    step = dispatched_products(model, inputs)
    assert joint_products(model, inputs) == step
    network = read_network(model, inputs=OF_PYTORCHCV[name], batch=2)
    assert network.batch_macs == multiply_adds(step.forward)


# -- files -------------------------------------------------------------------------------------

onnx = pytest.importorskip("onnx")

from tests.networks.onnx_files import FILES  # noqa: E402  # it needs onnx
from tests.networks.onnx_oracle import onnx_layers  # noqa: E402


@pytest.mark.parametrize("name", FILES)
def test_files_have_the_multiply_adds_that_are_worked_out(name: str) -> None:
    case = FILES[name]
    model = case.build()
    onnx.checker.check_model(model)
    assert multiply_adds(onnx_layers(model, values=case.values)) == case.macs


#: Cases that PyTorch's older exporter refuses, and the operation that it does not know.
NOT_EXPORTED = {
    "spectral": "vdot",
    "fourier": "fft_rfft2",
    "neural_operator": "fft_rfft2",
    "radiance": "cumprod",
}

EXPORTED = [name for name in CASES if name not in NOT_EXPORTED]


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
@pytest.mark.parametrize(
    "name",
    [slow_if(index % EVERY > 0 or name in LONG, name) for index, name in enumerate(EXPORTED)],
)
def test_an_exported_case_multiplies_what_the_case_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, inputs = case.build().eval(), case.inputs(2)
    path = tmp_path / "case.onnx"
    torch.onnx.export(model, inputs, str(path), dynamo=False)
    step = dispatched_products(model, inputs)
    assert onnx_layers(path) == step.forward
