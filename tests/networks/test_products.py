"""Products of matrices that a network calls as functions: found and timed, from every source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.workloads import LinearLayer, Workload, load_workload, read_network, workload_yaml
from npusim.workloads.repetition import for_batch

torch = pytest.importorskip("torch")
bridge = pytest.importorskip("npusim.torch")
nn, F = torch.nn, torch.nn.functional

DEVICE = "ascend910b2"


class Vit(nn.Module):  # type: ignore[misc, name-defined]
    """A vision transformer of two blocks that writes its attention out."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.zeros(16, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Parameter(torch.zeros(10, width))

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return F.linear(x.mean(1), self.head)


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """Attention of three heads, and a perceptron whose first weight is no module's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Parameter(torch.zeros(width, 96)), nn.Linear(96, width)

    def forward(self, x: Any) -> Any:
        heads = self.qkv(self.norms[0](x)).unflatten(2, (3, 3, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4, -1)
        x = x + self.proj(torch.einsum("bhlm,bhmd->blhd", weights, v).flatten(2))
        return x + self.narrow(F.gelu(self.norms[1](x) @ self.wide))


class Encoder(nn.Module):  # type: ignore[misc, name-defined]
    """A transformer encoder as PyTorch has it, behind a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.embed, self.encoder = nn.Linear(12, 32), nn.TransformerEncoder(layer, 2)

    def forward(self, x: Any) -> Any:
        return self.encoder(self.embed(x))


MODELS = {"vit": (Vit, (3, 32, 32), 14), "encoder": (Encoder, (20, 12), 13)}
BIASED = {"vit": 6, "encoder": 9}
ALL = ("input", "weight", "bias")
MATH: dict[str, Any] = {"device": DEVICE, "cube_math_type": 1}


def layers(workload: Workload) -> list[str]:
    """The layers without their names, sorted; of a stack only its size, and of rows how many.

    PyTorch writes an ``einsum`` of several heads as a stack with the images and heads as one axis.
    """
    found = []
    for layer in workload.layers:
        sizes = {**vars(layer), "name": ""}
        if isinstance(layer, LinearLayer):
            sizes |= {"n": layer.stack, "rows": layer.all_rows, "products": bool(layer.products)}
        found.append(str(sizes))
    return sorted(found)


def names(timed: list[Any]) -> set[str]:
    return {one.layer.name for one in timed}


def linear(found: Any) -> list[Any]:
    """The rows of linear layers."""
    return [row for row in found.layer_rows() if row["rows"]]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param("vit", marks=SLOW), "encoder"])
@pytest.mark.parametrize("train", [True, False])  # in which PyTorch's fused attention runs
def test_module_and_trace_have_every_product_and_the_same_total(name: str, train: bool) -> None:
    make, shape, count = MODELS[name]
    model = make().train(train)
    found = npusim.network(model, shape, batch=2, dtype="fp32", gradients=ALL, **MATH)
    with bridge.trace(model=model, **MATH) as log:
        model(torch.randn(2, *shape)).square().sum().backward()
    assert sum(one.layer.count for one in found.timed) == len(log.entries) == count
    assert not any(entry.reason for entry in log.entries)
    assert log.time_us == pytest.approx(found.time_us)
    assert found.complete
    biased = [one for one in found.timed if isinstance(one.layer, LinearLayer) and one.layer.bias]
    assert sum(one.layer.count for one in biased) == BIASED[name]
    assert all(bool(row["bias_us"]) == (row["layer"] in names(biased)) for row in linear(found))
    left_out = next(note for note in found.notes if note.startswith("not in the time: "))
    assert "4 x layer_norm" in left_out
    assert "2 x softmax" in left_out or not train, "the fused attention has its own"
    assert log.untimed["native_layer_norm_backward"] == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its exporters
def test_an_exported_file_has_the_same_products(name: str, dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    make, shape, _ = MODELS[name]
    model, traced = make().eval(), read_network(make(), shape)
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # an exporter leaves a bias of zeros out
    found = []
    for images in (1, 3):
        path = tmp_path / f"model{images}.onnx"
        x = torch.zeros(images, *shape)
        torch.onnx.export(model, (x,), str(path), dynamo=dynamo, verbose=False)
        found.append(read_network(path))
        assert layers(found[-1]) == layers(for_batch(traced, found[-1].batch))
        assert found[-1].untimed == traced.untimed == ()
    if dynamo or name == "vit":
        return
    options: Any = {"batch": 2, "gradients": ALL, "passes": "training", "dtype": "fp32", **MATH}
    totals = [npusim.network(one, **options).time_us for one in (found[0], traced)]
    assert totals[0] == totals[1]


class Functions(nn.Module):  # type: ignore[misc, name-defined]
    """One product, by one of the ways to ask for it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight, self.way = nn.Parameter(torch.zeros(6, 8)), way

    def forward(self, x: Any) -> Any:  # (images, 5, 8)
        w, turned = self.weight, x.transpose(1, 2)
        ways = {
            "linear": lambda: F.linear(x, w),
            "@": lambda: x @ w.T,
            "matmul": lambda: torch.matmul(x, w.T),
            "mm": lambda: x.flatten(0, 1).mm(w.T),
            "addmm": lambda: torch.addmm(w[:, 0], x.flatten(0, 1), w.T),
            "einsum": lambda: torch.einsum("nlc,oc->nlo", x, w),
            "bmm": lambda: x.bmm(turned),
            "baddbmm": lambda: torch.baddbmm(w[0, 0], x, turned),
            "einsum of both": lambda: torch.einsum("nlc,nmc->nlm", x, x),
            "attention": lambda: F.scaled_dot_product_attention(x, x, x),
        }
        return ways[self.way]()


WEIGHTED = dict.fromkeys(("linear", "@", "matmul", "mm", "addmm", "einsum"), (1, 5, 8, 6))
OWN = dict.fromkeys(("bmm", "baddbmm", "einsum of both", "attention"), (2, 5, 8, 5))


@pytest.mark.parametrize("way", [*WEIGHTED, *OWN])
def test_whatever_multiplies_is_a_layer(way: str) -> None:
    """Of two images; a matrix of weights is for all rows, computed ones are one an image."""
    found = read_network(Functions(way), (5, 8), batch=2)
    first, *more = found.layers
    assert isinstance(first, LinearLayer)
    sizes = (WEIGHTED | OWN)[way]
    rows = first.all_rows if first.stack > 1 else first.all_rows // 2
    assert (first.stack, rows, first.cin, first.cout) == sizes
    assert [(one.cin, one.cout) for one in more] == [(5, 8)] * (way == "attention")
    node = next(node for node in found.nodes if node.layer == first)
    assert len(node.reads) == (1 if way in WEIGHTED else 2)


class Added(nn.Module):  # type: ignore[misc, name-defined]
    """What is added to a product of 5 rows of 8 features by 6, by one of the ways to do that."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight, self.way = nn.Parameter(torch.zeros(6, 8)), way
        self.bias, self.rows = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(5, 6))
        self.layer = nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:  # (images, 5, 8)
        w, b, flat = self.weight, self.bias, x.flatten(0, 1)
        ways = {
            "linear": lambda: F.linear(x, w, b),
            "a turned input": lambda: self.layer(x.transpose(1, 2).clone().transpose(1, 2)),
            "addmm": lambda: torch.addmm(b, flat, w.T),
            "of its own": lambda: x @ w.T + b,
            "a row": lambda: torch.addmm(b[None], flat, w.T),
            "nothing": lambda: F.linear(x, w),
            "of each place": lambda: F.linear(x, w) + self.rows,
            "another product": lambda: F.linear(x, w) + F.linear(x, w),
            "of all": lambda: torch.addmm(flat[:, :6], flat, w.T),
            "two": lambda: F.linear(x, w, b) + b,
        }
        return ways[self.way]()


BIAS = dict.fromkeys(("linear", "a turned input", "addmm", "of its own", "a row"), (True, 0))
#: A product and a sum of the module: an exporter writes a linear layer so, and a file and a trace
#: take them as one.
APART = ("of its own", "a row")
OTHERS = {"nothing": (False, 0), "two": (True, 1)} | dict.fromkeys(
    ("of each place", "another product", "of all"), (False, 1)
)


@pytest.mark.parametrize("way", [*BIAS, *OTHERS])
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its exporter
def test_a_bias_is_that_of_its_layer_and_nothing_else(way: str, tmp_path: Path) -> None:
    model, path = Added(way), tmp_path / "model.onnx"
    read = [read_network(model, (5, 8))]
    if find_spec("onnx") is not None and find_spec("onnxscript") is not None:
        torch.onnx.export(model, (torch.zeros(1, 5, 8),), str(path), dynamo=False, verbose=False)
        read.append(read_network(path))
    for place, workload in enumerate(read):
        biased = {layer.bias for layer in workload.layers if isinstance(layer, LinearLayer)}
        adds = [one for one in workload.elementwise if one.kind in ("add", "shift")]
        counted = len(adds) + dict(workload.untimed).get("C of Gemm", 0)
        with_bias, sums = (BIAS | OTHERS)[way]
        if way in APART and place == 0:
            with_bias, sums = False, 1
        assert (biased, counted) == ({with_bias}, sums)
    timed = read_network(Added("linear"), (5, 8)) if way in APART else read[0]
    found = npusim.network(timed, gradients=ALL, dtype="fp32", batch=2, every_input=True, **MATH)
    with bridge.trace(model=model, **MATH) as log:
        model(torch.randn(2, 5, 8, requires_grad=True)).square().sum().backward()
    assert log.time_us == pytest.approx(found.time_us)
    assert log.untimed["sum"] == (way in ("of each place", "two"))


class Unknown(nn.Module):  # type: ignore[misc, name-defined]
    """A product over all images, and an operation of which nothing is known."""

    def forward(self, x: Any) -> Any:
        return (x @ x.mT).cumsum(1).cumsum(1) + (x[:, 0] @ x[:, 1].T).sum()


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    result = npusim.network(Unknown(), (5, 8), device=DEVICE, every_input=True)
    left_out = {"cumsum": 2}
    assert result.to_json()["untimed"] == left_out
    assert len(result.workload.layers) == 2, "a product over all images is one like others"
    assert "not in the time, nor known: 2 x cumsum" in " ".join(result.notes)
    file = tmp_path / "net.yaml"
    found = read_network(Unknown(), (5, 8))
    file.write_text(workload_yaml(found), encoding="utf-8")
    again = load_workload(file)
    assert (again.layers, dict(again.untimed)) == (found.layers, left_out)
