"""Networks of PyTorch modules: what the framework's own graph has, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import Workload
from npusim.workloads.layers import ConvLayer, LinearLayer
from npusim.workloads.repetition import for_batch

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from npusim.workloads.from_torch import workload  # noqa: E402  # it needs PyTorch


class Function(nn.Module):  # type: ignore[misc, name-defined]
    """A function of inputs and of the module's layers and parameters."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def kinds(network: Workload) -> list[str]:
    """What each node is, in order."""
    return [
        node.layer.kind if isinstance(node.layer, ElementwiseLayer) else type(node.layer).__name__
        for node in network.nodes
    ]


def frames(self: Any, x: Any) -> Any:
    images, count = x.shape[:2]
    y = self.b(self.a(x.flatten(0, 1)).relu()).relu().mean((2, 3))
    return self.f(y.view(images, count, 32).mean(1))


def weights_of_each_image(self: Any, x: Any) -> Any:
    images, channels, high, wide = x.shape
    weights = self.r(x.mean((2, 3))).view(images * 32, 16, 3, 3)
    y = F.conv2d(x.reshape(1, images * channels, high, wide), weights, padding=1, groups=images)
    return self.f(y.view(images, 32, high, wide).mean((2, 3)))


def correlation(self: Any, x: Any, z: Any) -> Any:
    images, channels = x.shape[:2]
    weights = self.c(z).reshape(images * channels, 1, 4, 4)
    return F.conv2d(x.reshape(1, -1, 9, 9), weights, groups=images * channels)


def learned_queries(self: Any, x: Any) -> Any:
    q = self.p(self.q.expand(x.shape[0], 4, 16))
    k = self.c(x).flatten(2)
    return (q @ k).softmax(-1) @ k.transpose(1, 2)


def convolution(cin: int, cout: int, *rest: Any, **more: Any) -> Any:
    return nn.Conv2d(cin, cout, *rest, **more)


#: A module, its inputs, and its multiply-adds for one image, worked out by hand.
COUNTED: dict[str, tuple[Any, Any, int]] = {
    "frames of a clip": (
        lambda: Function(
            frames, a=nn.Conv2d(3, 16, 3, 2, 1), b=nn.Conv2d(16, 32, 3, 2, 1), f=nn.Linear(32, 10)
        ),
        (8, 3, 32, 32),
        8 * (16 * 27 * 256 + 32 * 144 * 64) + 320,
    ),
    "heads among the images": (
        lambda: Function(
            lambda m, x: m.c(x.reshape(-1, 8, 8, 8)),
            c=nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        ),
        (32, 8, 8),
        4 * 8 * 64 * 9,
    ),
    "weights of each image": (
        lambda: Function(
            weights_of_each_image, r=nn.Linear(16, 32 * 16 * 9), f=nn.Linear(32, 10)
        ),
        (16, 14, 14),
        32 * 144 * 196 + 16 * 32 * 144 + 320,
    ),
    "maps correlated": (
        lambda: Function(correlation, c=nn.Conv2d(3, 6, 1)),
        [(6, 9, 9), (3, 4, 4)],
        6 * 3 * 16 + 6 * 16 * 36,
    ),
    "learned queries": (
        lambda: Function(
            learned_queries,
            q=nn.Parameter(torch.zeros(4, 16)),
            p=nn.Linear(16, 16),
            c=nn.Conv2d(3, 16, 4, 4),
        ),
        (3, 16, 16),
        4 * 16 * 16 + 16 * 48 * 16 + 2 * 4 * 16 * 16,
    ),
    "old weight normalisation": (
        lambda: nn.utils.weight_norm(nn.Conv1d(4, 8, 3)),
        (4, 32),
        30 * 8 * 12,
    ),
    "tokens": (
        lambda: Function(
            lambda m, t: m.f(m.c(m.e(t).transpose(1, 2)).relu().amax(-1)),
            e=nn.Embedding(100, 32), c=nn.Conv1d(32, 16, 3), f=nn.Linear(16, 4),
        ),
        npusim.spec((50,), "int32"),
        48 * 16 * 96 + 64,
    ),
    "an encoder layer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        (10, 16),
        10 * 16 * 48 + 2 * 2 * 10 * 10 * 8 + 10 * 16 * 16 + 2 * 10 * 16 * 32,
    ),
    "letters": (
        lambda: Function(
            lambda m, x: torch.einsum("bthc,hcd->btd", x, m.w),
            w=nn.Parameter(torch.zeros(3, 5, 7)),
        ),
        (4, 3, 5),
        4 * 15 * 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older normalisation of weights
def test_multiply_adds(name: str) -> None:
    make, inputs, macs = COUNTED[name]
    for batch in (1, 3):
        network = workload(make(), inputs, batch=batch)
        assert network.batch_macs == batch * macs
        assert not network.unknown_products


@pytest.mark.parametrize(("cell", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
@pytest.mark.parametrize("unrolled", [False, True])
def test_recurrent_layers_are_products(cell: Any, gates: int, unrolled: bool) -> None:
    model = Function(
        lambda m, x: m.f(m.r(x)[0].mean(1)), r=cell(8, 6, batch_first=True), f=nn.Linear(6, 10)
    )
    network = workload(model, (20, 8), batch=2, unrolled=unrolled)
    assert network.macs == 20 * gates * 6 * (8 + 6) + 60
    hidden = [
        node for node in network.nodes if (node.parameters or {}).get("w") == "r.weight_hh_l0"
    ]
    assert [node.count for node in hidden] == ([1] * 20 if unrolled else [1, 19])
    # The initial state is a constant: its step has no gradient of what the product reads.
    gradients = [node.layer.input_gradient for node in hidden]
    assert gradients == [False] + [True] * (len(hidden) - 1)
    assert not network.untimed


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_reading_a_recurrent_layer_goes_through_one_step(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decompositions = pytest.importorskip("torch._decomp.decompositions")  # of PyTorch 2.13
    calls = []
    name = f"{cell.lower()}_cell"
    of_library = getattr(decompositions, name)

    def counted(*operands: Any, **named: Any) -> Any:
        calls.append(name)
        return of_library(*operands, **named)

    monkeypatch.setattr(decompositions, name, counted)
    layer = getattr(nn, cell)(4, 6, num_layers=2, bidirectional=True, batch_first=True)
    network = workload(layer, (50, 4), batch=3)
    assert len(calls) <= 4  # a layer and direction
    gates = {"GRU": 3, "LSTM": 4}[cell]
    each = 3 * 50 * gates * 6  # numbers of all gates; the inputs of both layers, twice the state
    assert network.batch_macs == 2 * each * (4 + 12) + 4 * each * 6


def test_a_module_that_is_used_again_has_its_parameters_once() -> None:
    def again(m: Any, x: Any) -> Any:
        for _ in range(4):
            x = m.c(x).relu()
        return m.f(x.mean((2, 3)))

    model = Function(again, c=nn.Conv2d(16, 16, 3, padding=1), f=nn.Linear(16, 10))
    network = workload(model, (16, 14, 14))
    assert set(network.parameters) == {"c.weight", "c.bias", "f.weight", "f.bias"}
    layers = [node for node in network.nodes if isinstance(node.layer, ConvLayer)]
    assert [node.parameters for node in layers] == [{"w": "c.weight", "b": "c.bias"}] * 4
    assert network.layers[0].count == 1, "the first has no gradient of its input"
    assert network.layers[1].count == 3


def test_tied_weights_are_one_parameter() -> None:
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    network = workload(nn.Sequential(first, nn.ReLU(), second), (8,))
    assert list(network.parameters) == ["0.weight"]


class Backbone(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions and a head, in one of several ways without gradients."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.f, self.way = nn.Linear(16, 10), way
        if way == "frozen":
            for part in (self.a, self.b):
                part.requires_grad_(requires_grad=False)

    def features(self, x: Any) -> Any:
        return self.b(self.a(x).relu()).relu()

    def forward(self, x: Any) -> Any:
        if self.way == "no_grad":
            with torch.no_grad():
                x = self.features(x)
        else:
            x = self.features(x)
        x = x.detach() if self.way == "detach" else x
        if self.way == "no_grad, written":
            with torch.no_grad():
                x = self.a(x)
            x[:, :1] = 0
        return self.f(x.mean((2, 3)))


@pytest.mark.parametrize("way", ["frozen", "no_grad", "detach", "no_grad, written"])
def test_what_has_no_gradient(way: str) -> None:
    network = workload(Backbone(way), (16, 14, 14))
    for node in network.nodes:
        if isinstance(node.layer, ConvLayer):
            assert not node.trained
            assert not node.layer.input_gradient
            assert not node.layer.weight_gradient
            assert not node.layer.bias_gradient
    head = network.nodes[-1].layer
    assert isinstance(head, LinearLayer)
    assert head.weight_gradient
    assert not head.input_gradient
    everywhere = workload(Backbone(""), (16, 14, 14))
    assert [x.weight_gradient for x in everywhere.convolutions] == [True, True]


def test_products_of_weights_are_once_a_batch() -> None:
    def low_rank(m: Any, x: Any) -> Any:
        weight = m.c.weight + (m.b @ m.a).view_as(m.c.weight)
        return F.conv2d(x, weight, m.c.bias, padding=1)

    parts = {"a": nn.Parameter(torch.zeros(4, 144)), "b": nn.Parameter(torch.zeros(32, 4))}
    model = Function(low_rank, c=nn.Conv2d(16, 32, 3, padding=1), **parts)
    for batch in (1, 5):
        network = workload(model, (16, 14, 14), batch=batch)
        assert network.batch_macs == 32 * 4 * 144 + batch * 196 * 32 * 144
    product, *_, layer = network.nodes
    assert [edge.value for edge in product.reads] == ["b", "a"]
    assert [edge.shape for edge in layer.reads] == [(5, 16, 14, 14), (32, 16, 3, 3)]
    assert layer.parameters == {"b": "c.bias"}


def test_complex_values_are_named() -> None:
    def spectral(m: Any, x: Any) -> Any:
        y = torch.fft.rfft2(m.c(x))
        y = torch.einsum("bixy,io->boxy", y * 2, m.w)
        return torch.fft.irfft2(y).mean((2, 3))

    weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.cfloat))
    model = Function(spectral, c=nn.Conv2d(3, 8, 3, padding=1), w=weight)
    network = workload(model, (3, 16, 16))
    transforms = {"_fft_r2c (complex)": 1, "_fft_c2r (complex)": 1}
    assert dict(network.unknown_products) == {"complex einsum": 1, **transforms}


def test_views_cost_nothing_and_an_order_is_a_permute() -> None:
    def turned(m: Any, x: Any) -> Any:
        y = m.c(x).permute(0, 2, 3, 1).contiguous().flatten(1, 2)  # rows of channels
        y = y.transpose(1, 2).transpose(1, 2).unsqueeze(1).squeeze(1)
        return m.f(y)

    model = Function(turned, c=nn.Conv2d(3, 8, 3), f=nn.Linear(8, 4))
    network = workload(model, (3, 6, 6), batch=2)
    assert kinds(network) == ["ConvLayer", "permute", "LinearLayer"]
    permute = network.nodes[1].layer
    assert isinstance(permute, ElementwiseLayer)
    assert (permute.shape, permute.axes, permute.out) == ((2, 8, 16), (0, 2, 1), (2, 16, 8))


def test_products_take_their_right_operand_as_it_lies() -> None:
    model = Function(lambda m, x: m.f(x) @ x.transpose(1, 2), f=nn.Linear(8, 8))
    network = workload(model, (5, 8), batch=3)
    assert kinds(network) == ["LinearLayer", "LinearLayer"]
    product = network.nodes[1].layer
    assert isinstance(product, LinearLayer)
    assert (product.n, product.products, product.rows, product.cin, product.cout) == (3, 1, 5, 8, 5)
    assert product.right_transposed


def test_parts_of_one_value_are_slices_of_it() -> None:
    def attention(m: Any, x: Any) -> Any:
        q, k, v = m.qkv(x).reshape(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    network = workload(Function(attention, qkv=nn.Linear(8, 24)), (6, 8), batch=2)
    slices = [
        (node.reads[0].value, node.layer.padding[2])
        for node in network.nodes
        if isinstance(node.layer, ElementwiseLayer) and node.layer.kind == "slice"
    ]
    assert slices == [("qkv", (0, -2)), ("qkv", (-1, -1)), ("qkv", (-2, 0))]
    mask = next(one for one in network.parameters.values() if not one.trained)
    assert mask.data is not None
    assert mask.data.shape == (6, 6)


def test_values_written_in_place() -> None:
    def written(m: Any, x: Any) -> Any:
        x = m.a(x).relu_()
        y = x + 1
        y[:, 2:4] = x[:, :2]
        return m.b(y)

    model = Function(written, a=nn.Conv2d(3, 6, 1), b=nn.Conv2d(6, 2, 1))
    network = workload(model, (3, 5, 5))
    nodes = {node.name: node for node in network.nodes}
    assert nodes["b"].inputs == ("Function.concat",)
    assert [edge.shape for edge in nodes["Function.concat"].reads] == [
        (1, 2, 5, 5), (1, 2, 5, 5), (1, 2, 5, 5),
    ]  # fmt: skip


def test_terms_that_are_repeated() -> None:
    def terms(m: Any, x: Any) -> Any:
        y = m.c(x) * m.gate.sigmoid().view(1, -1, 1, 1) + m.position
        return 1 / (2 - y)

    parts = {
        "gate": nn.Parameter(torch.zeros(4)),
        "position": nn.Parameter(torch.zeros(1, 4, 3, 3)),
    }
    for batch in (1, 2):
        network = workload(Function(terms, c=nn.Conv2d(3, 4, 1), **parts), (3, 3, 3), batch=batch)
        assert kinds(network) == [
            "ConvLayer", "sigmoid", "scale", "shift", "scale", "shift", "reciprocal",
        ]  # fmt: skip
        shift = network.nodes[3]
        assert shift.parameters == {"beta": "position"}


def test_a_loss_reads_its_targets() -> None:
    network = workload(
        nn.Sequential(nn.Linear(6, 4)),
        (6,),
        batch=8,
        loss=F.cross_entropy,
        targets=torch.zeros(1, dtype=torch.long),
    )
    loss = network.nodes[-1]
    assert loss.layer.called == "loss: cross_entropy"  # type: ignore[union-attr]
    assert loss.inputs == ("0", "target")
    assert [(one.shape, one.integers) for one in network.inputs] == [((8, 6), False), ((8,), True)]


def test_inputs_of_every_form() -> None:
    def both(m: Any, x: Any, steps: Any, scale: Any) -> Any:
        return m.c(x) * scale + m.f(m.e(steps))[..., None, None]

    def model() -> Any:
        class Named(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.c, self.e, self.f = nn.Conv2d(3, 4, 1), nn.Embedding(9, 5), nn.Linear(5, 4)

            def forward(self, x: Any, steps: Any, scale: Any = 1.0) -> Any:
                return both(self, x, steps, scale)

        return Named()

    forms = [
        [(3, 6, 6), npusim.spec((), "int32")],
        {"x": torch.zeros(7, 3, 6, 6), "steps": torch.zeros(7, dtype=torch.long), "scale": 2.0},
        [torch.zeros(1, 3, 6, 6), torch.zeros(1, dtype=torch.int64), torch.tensor(2.0)],
    ]
    for inputs in forms:
        network = workload(model(), inputs, batch=2)
        assert network.batch_macs == 2 * (3 * 4 * 36 + 20)
        assert [one.name for one in network.inputs][:2] == ["input", "steps"]
        assert network.inputs[1].shape == (2,)
    assert for_batch(network, 4).batch_macs == 2 * network.batch_macs


def test_a_module_stays_as_it_is() -> None:
    model = nn.Sequential(
        nn.LSTM(4, 4), Function(lambda m, x: m.c(x[0]), c=nn.utils.spectral_norm(nn.Linear(4, 3)))
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    workload(model, (5, 4))
    after = model.state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert model.training
    assert model(torch.zeros(2, 5, 4)).shape == (2, 5, 3)


def test_a_module_without_data() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    assert kinds(workload(model, (3, 8, 8))) == ["ConvLayer", "batch_norm", "relu"]


def test_one_image_of_one_position_is_normalised() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8))
    assert kinds(workload(model, (3, 8, 8))) == ["ConvLayer", "avg_pool", "batch_norm"]


class Branch(nn.Module):  # type: ignore[misc, name-defined]
    """A module whose graph depends on what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 1)

    def forward(self, x: Any) -> Any:
        y = self.c(x)
        return y.relu() if y.sum() > 0 else y


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (3, (3, 9, 9), "model is a int; it must be a torch.nn.Module"),
        (nn.ReLU(), (3, 9, 9), "ReLU has no convolution and no product of matrices"),
        (nn.Conv2d(3, 8, 3), (4, 9, 9), r"Conv2d does not run on inputs \[1, 4, 9, 9\]"),
        (nn.Embedding(9, 4), (5,), "give inputs=npusim.spec"),
        (Branch(), (3, 4, 4), "Branch cannot be read: .*; a network is read without data"),
        (nn.Linear(3, 3), [{3}], r"input 1 is \{3\}; give a shape"),
    ],
)
def test_what_cannot_be_read(model: Any, inputs: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        workload(model, inputs)


def test_nodes_have_their_module_and_line() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), Function(lambda m, x: m.c(x) * 2, c=nn.Conv2d(4, 4, 1))
    )
    network = workload(model, (3, 4, 4))
    assert [node.name for node in network.nodes] == ["0", "1.c", "1.scale"]
    assert network.nodes[1].place.startswith("test_from_torch.py:")
