"""Steps against PyTorch's own joint graph: the same convolutions, products and gradients of both.

The judge (``tests.networks.oracle``) shares nothing with the package's reader or its rules. What is
compared are multisets of calls with all their sizes, at a batch of two images.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.networks.rules.training import training
from npusim.networks.rules.values import Operation as StepOperation
from npusim.workloads import ConvLayer, LinearLayer, Workload, read_network
from tests.sampled import slow_if

torch = pytest.importorskip("torch")
nn = torch.nn

from tests.networks.modules import CASES, WITHOUT_JOINT_GRAPH  # noqa: E402  # it needs PyTorch
from tests.networks.oracle import (  # noqa: E402
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

DEVICE = "ascend910b2"
BATCH = 2

#: What each case multiplies that has no kernel: the network names it, and is partial.
UNKNOWN = {
    "fourier": {"_fft_r2c (complex)", "_fft_c2r (complex)"},
    "neural_operator": {"_fft_r2c (complex)", "_fft_c2r (complex)", "complex einsum"},
}


def cases(every: int, first: int = 0, without: Iterable[str] = ()) -> pytest.MarkDecorator:
    """All cases, of which ``make test`` runs one in so many that are quick."""
    names = [name for name in CASES if name not in without]
    return pytest.mark.parametrize(
        "name",
        [
            slow_if(CASES[name].slow or index % every != first, name)
            for index, name in enumerate(names)
        ],
    )


def network_of(name: str) -> Workload:
    """The package's graph of a case."""
    case = CASES[name]
    return read_network(case.build(), inputs=case.inputs(BATCH), batch=BATCH)


def step_of(workload: Workload) -> Step:
    """What the package's training step of a network multiplies, in the judge's terms."""
    step = training(workload)
    forward: Counter[Operation] = Counter()
    backward: Counter[Operation] = Counter()
    masks: dict[str, set[str]] = {}
    layers: dict[str, ConvLayer] = {}
    for one in step.operations:
        node, _, part = one.name.rpartition(".")
        if isinstance(one.layer, LinearLayer) and one.core != "linear.bias":
            counts = forward if one.phase == "forward" else backward
            if one.core.startswith("linear."):
                counts[product_of(one)] += one.count
        elif isinstance(one.layer, ConvLayer) and one.core == "convolution.output":
            forward[convolution_of(one.layer)] += one.count
        elif isinstance(one.layer, ConvLayer) and one.phase == "backward" and one.core:
            layers[node] = one.layer
            masks.setdefault(node, set()).add(part)
    for node, parts in masks.items():
        mask = ("input" in parts, "weight" in parts, "bias" in parts)
        backward[ConvolutionBackward(convolution_of(layers[node]), mask)] += 1
    gradients = {name for name in step.parameters if f"{name}.gradient" in step.values}
    return Step(forward, backward, frozenset(gradients), Counter())


def convolution_of(layer: ConvLayer) -> Convolution:
    """The call of ``aten.convolution`` of a layer.

    PyTorch pads an axis before the call where its two sides differ, by the difference.
    """
    w = layer.w_shape
    sides = layer.padding
    sizes = (x + max(pads) - min(pads) for x, pads in zip(layer.spatial, sides, strict=True))
    return Convolution(
        (layer.n, layer.cin, *sizes),
        tuple(w),
        layer.stride,
        tuple(min(pads) for pads in sides),
        layer.dilation,
        layer.groups,
        layer.transposed,
        layer.output_padding or (0,) * layer.dims,
    )


def product_of(one: StepOperation) -> Product:
    """The product of matrices that an operation of a linear layer is."""
    layer = one.layer
    assert isinstance(layer, LinearLayer)
    rows, cin, cout = layer.all_rows, layer.cin, layer.cout
    return {
        "linear.output": product(layer.stack, rows, cin, cout),
        "linear.input": product(layer.stack, rows, cout, cin),
        "linear.weight": product(layer.stack, cin, rows, cout),
    }[one.core]


def layers_of(workload: Workload) -> Counter[Operation]:
    """The layers of a network in the judge's terms, each as often as it occurs."""
    layers: Counter[Operation] = Counter()
    for layer in workload.layers:
        if isinstance(layer, ConvLayer):
            layers[convolution_of(layer)] += layer.count
        else:
            call = product(layer.stack, layer.all_rows, layer.cin, layer.cout)
            layers[call] += layer.count
    return layers


def comparable(operations: Mapping[Operation, int]) -> Counter[Operation]:
    """Operations that both accounts have.

    PyTorch multiplies element by element where a product has one term (the gradient of a matrix
    that is multiplied with a vector); here it is a product of a column and a row. Complex products
    are no layers of the package, which names them and calls the network partial.
    """
    return Counter(
        {
            one: count
            for one, count in operations.items()
            if not isinstance(one, Product) or (one.k > 1 and not one.is_complex)
        }
    )


@cases(every=6)
def test_a_step_multiplies_what_that_of_pytorch_does(name: str) -> None:
    """Convolutions, products, their gradients with masks, and parameters with a gradient."""
    case = CASES[name]
    judge = dispatched_products if name in WITHOUT_JOINT_GRAPH else joint_products
    torch.manual_seed(0)
    expected = judge(case.build(), case.inputs(BATCH))
    workload = network_of(name)
    actual = step_of(workload)
    assert comparable(actual.forward) == comparable(expected.forward)
    assert comparable(actual.backward) == comparable(expected.backward)
    assert actual.gradients == expected.gradients
    assert actual.forward == layers_of(workload)
    assert {called for called, _ in workload.unknown_products} == UNKNOWN.get(name, set())
    if name not in UNKNOWN:
        assert workload.batch_macs == multiply_adds(expected.forward)


@pytest.mark.parametrize(
    "name",
    [slow_if(case.slow, name) for name, case in CASES.items() if case.macs and name not in UNKNOWN],
)
def test_a_network_has_the_multiply_adds_that_are_worked_out(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(case.batch)
    workload = read_network(case.build(), inputs=inputs, batch=case.batch)
    assert workload.batch_macs == case.macs


@cases(every=36, first=1)
def test_a_network_and_its_step_are_of_one_graph(name: str) -> None:
    """Both run, have the same layers and multiply-adds, and are complete or name why not."""
    case = CASES[name]
    module, inputs = case.build(), case.inputs(BATCH)
    step = npusim.step(module, inputs=inputs, batch=BATCH, device=DEVICE)
    network = npusim.network(module, inputs=inputs, batch=BATCH, device=DEVICE)
    assert (network.failed, step.failed) == ((), ())
    assert network.complete == step.complete == (name not in UNKNOWN)
    assert network.workload.layers == step.workload.layers
    # A network times gradients, of which a layer that is frozen with all before it has none.
    has_some = [
        one
        for one in step.workload.layers
        if one.input_gradient or one.weight_gradient or (one.bias and one.bias_gradient)
    ]
    assert [timed.layer for timed in network.timed] == has_some
    assert network.workload.batch_macs == step.workload.batch_macs


#: Cases that PyTorch's older exporter refuses, and the operation that it does not know.
NOT_EXPORTED = {
    "spectral": "vdot",
    "fourier": "fft_rfft2",
    "neural_operator": "fft_rfft2",
    "radiance": "cumprod",
}


@cases(every=12, first=2, without=NOT_EXPORTED)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_an_exported_case_has_the_layers_of_its_module(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    case = CASES[name]
    module, inputs = case.build().eval(), case.inputs(BATCH)
    contents = io.BytesIO()
    torch.onnx.export(module, inputs, contents, dynamo=False)
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(contents.getvalue())
    exported = read_network(path, batch=BATCH)
    expected = read_network(module, inputs=inputs, batch=BATCH)
    assert layers_of(exported) == layers_of(expected)
    assert exported.batch_macs == expected.batch_macs


class Few(nn.Module):  # type: ignore[misc, name-defined]
    """A single number for all elements, and a normalisation of rows: no kernel computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.norm = nn.Linear(6, 8), nn.GroupNorm(2, 8)
        self.factor, self.term = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return self.norm(self.f(x)) * self.factor + self.term


def test_parameters_of_operations_without_a_kernel_are_trained() -> None:
    names = {name for name, _ in Few().named_parameters()}
    workload = read_network(Few(), (6,), batch=BATCH)
    assert step_of(workload).gradients == names
    updated = {one.name.rpartition(".")[0] for one in training(workload).operations}
    assert names <= updated


def test_values_of_six_axes_lie_plain() -> None:
    """A permuted patch of an image has more axes than blocks have, which end at three of space."""
    step = npusim.step(CASES["patches_in_batch"].build(), (3, 32, 32), device=DEVICE)
    assert step.complete
