"""What a step computes: its operations by hand, and every row of the table against float64."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP32
from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.resources import configs
from npusim.machine.device.catalog import load_device
from npusim.networks.plan.fusions import chosen, fused
from npusim.networks.rules import table as rules
from npusim.networks.rules.table import KindRule, chain_of, tables
from npusim.networks.rules.training import training
from npusim.networks.rules.values import Kinds
from npusim.workloads import Workload, load_workload
from npusim.workloads.repetition import for_batch
from tests.networks.blocks import ONE_BLOCK, Array, computed, network
from tests.tables import rows
from tests.texts import text_of

FORWARD = text_of("forward_of_one_block.txt")

BACKWARD = text_of("backward_of_one_block.txt")


@pytest.fixture
def block(tmp_path: Path) -> Workload:
    return network(ONE_BLOCK, tmp_path)


def decayed(name: str) -> str:
    return (
        f"decay: {name} {name}.gradient -> {name}.g_new\n"
        f"update: {name}.v {name}.g_new {name} -> {name}.v_new {name}.w_new\n"
    )


def updated(name: str) -> str:
    return f"update: {name}.v {name}.gradient {name} -> {name}.v_new {name}.w_new\n"


def test_the_operations_of_a_step_are_those_written_by_hand(block: Workload) -> None:
    """Nothing needs the image's gradient; weights alone decay; images come in fp32, and a
    cast is made once."""
    optimizer = ""
    for layer, norm in (("one", "batch_norm"), ("two", "batch_norm_2")):
        optimizer += decayed(f"{layer}.w") + updated(f"{norm}.gamma") + updated(f"{norm}.beta")
    optimizer += decayed("fc.w") + updated("fc.b")
    phases = {"forward": FORWARD, "backward": BACKWARD, "optimizer": optimizer}
    step = training(for_batch(block, 4))
    for phase, wanted in phases.items():
        found = "".join(
            f"{one.kind}: {' '.join(one.reads)} -> {' '.join(one.writes)}\n"
            for one in step.operations
            if one.phase == phase
        )
        assert found == wanted, phase
    for passes, want in (("forward", {"forward"}), ("backward", {"backward"})):
        assert {
            one.phase for one in training(for_batch(block, 4), passes=passes).operations
        } == want


def test_normalisations_in_fp32_cast_what_they_read_and_leave(block: Workload) -> None:
    step = training(for_batch(block, 4), Kinds(norm=FP32))
    casts = [one for one in step.operations if one.kind == "cast"]
    assert [(one.reads, one.writes) for one in casts if one.phase == "forward"] == [
        (("input",), ("input.fp16",)),
        (("one",), ("one.fp32",)),
        (("batch_norm.fp32",), ("batch_norm",)),
        (("two",), ("two.fp32",)),
        (("batch_norm_2.fp32",), ("batch_norm_2",)),
    ]


# -- rows of the table ---------------------------------------------------------------------------

#: Layers with kernels of their own, which tests of these kernels and of training check.
KERNELS = {
    "convolution",
    "biased convolution",
    "linear",
    "product",
    "max_pool",
    "avg_pool",
    "concat",
    "pad",
    "slice",
    "upsample",
    "interpolate",
    "permute",
    "expand",
    "roll",
    "reduce_sum",
    "traffic",
}

SHAPE = (3, 2, 5)

#: Numbers of layers that have no usual ones, or for which others tell more.
NUMBERS = {"factor": 0.3, "term": -1.5, "least": -0.5, "most": 2.0, "share": 0.25, "offset": 0.6}
NUMBERS |= {"epsilon": 0.2, "groups": 1, "inverse": 4.0, "exponent": 2.5}

#: Functions of positive numbers alone.
POSITIVE = ("log", "sqrt", "rsqrt", "power")


def run(rule: KindRule, forms: str, values: dict[str, Array], **numbers: float) -> None:
    """Compute the forms of one pass in float64."""
    numbers = {name: {**NUMBERS, **numbers}[name] for name in rule.numbers}
    images = {name for name, of in rule.kept.items() if of == "images of x"}
    width = SHAPE[1] if "groups" in numbers else 1
    numbers |= {"width": SHAPE[-1], "1/w": 1 / SHAPE[-1]}
    numbers |= {"width": width, "1/n": 1 / (width * SHAPE[2])} if images else {}
    for form in getattr(rule, forms):
        reads = [s for w in form.reads for s in (("x1", "x2") if w == "x*" else (w,))]
        names = {s: s for s in (*reads, *form.writes)}
        chain = chain_of(form.op, names, "t", SHAPE[0] * SHAPE[2], numbers)
        by_image = "x2" in values and values["x2"].shape != SHAPE
        by_image |= bool(images & {name for name, _ in chain.sums})
        given = {s: values[s] for s in reads}
        if images and chain.by_row:  # a row has the channels of an image
            given = {s: array.reshape(SHAPE[0], 1, width) for s, array in given.items()}
        made = computed(chain, given, by_image=by_image)
        for s in form.writes:
            total = s in ("sum", "squares") and not images
            values[s] = made[s].reshape(-1) if total else made[s]
            if s in images:
                values[s] = made[s].reshape(*SHAPE[:2], 1)


def test_results_without_a_name_are_not_computed() -> None:
    """Of a product of an image, which is not trained, only the factor has a gradient."""
    names = {s: s for s in ("dy", "x1", "x2", "dx2")}
    chain = chain_of("scale_by_channel_gradient", names, "t")
    assert [str(step) for step in chain.steps] == ["t:part = mul(dy, x1)"]
    assert (chain.reads, chain.writes, chain.vectors) == (("dy", "x1"), (), ())
    assert chain.sums == (("dx2", "t:part"),)


def test_which_rows_have_kernels_of_their_own() -> None:
    own = {
        name
        for name, rule in tables().rules.items()
        if any(f.op not in (*tables().chains, "add") for f in (*rule.forward, *rule.backward))
    }
    assert own == KERNELS


@pytest.mark.parametrize("kind", sorted(set(tables().rules) - KERNELS))
def test_gradients_of_a_row_are_those_of_finite_differences(kind: str) -> None:
    rule, rng = tables().rules[kind], np.random.default_rng(3)
    reads = {s for form in rule.forward for s in form.reads}
    wanted = ["x1", "x2"] if reads & {"x*", "x1"} else ["x"]
    given: dict[str, Array] = {s: 3 * rng.standard_normal(SHAPE) for s in wanted}
    if kind in POSITIVE:
        given["x"] = np.abs(given["x"]) + 0.5
    for s, of in rule.parameters.items():
        shape = (1, 1, SHAPE[2]) if of == "vector" else SHAPE[1]
        given[s] = rng.standard_normal(shape)
    if kind.endswith("by channel"):
        given["x2"] = given["x2"][:, :, :1]
    if kind == "div":
        given["x2"] += 9.0
    if kind == "dropout":  # what is kept is drawn before
        given["bits"] = rng.integers(0, 2, SHAPE).astype(bool)
    dy = rng.standard_normal(SHAPE)

    def loss() -> float:
        values = dict(given)
        run(rule, "forward", values)
        return float((values["y"] * dy).sum())

    values = dict(given)
    run(rule, "forward", values)
    values["dy"] = dy
    run(rule, "backward", values)
    for name in (*wanted, *rule.parameters):
        slopes = np.empty(given[name].shape)
        for at in np.ndindex(slopes.shape):
            before = given[name][at]
            ends = []
            for moved in (before + 1e-6, before - 1e-6):
                given[name][at] = moved
                ends.append(loss())
            given[name][at] = before
            slopes[at] = (ends[0] - ends[1]) / 2e-6
        values |= {f"d{s}": values[f"d{s}"].reshape(given[s].shape) for s in rule.parameters}
        found = dy if {"x*", name, f"{name}1"} & {*rule.passes_on} else values[f"d{name}"]
        np.testing.assert_allclose(found, slopes, rtol=2e-5, atol=2e-6)


def powers(x: Array) -> Array:
    made: Array = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    return made


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FORMULAS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, -0.5, 2),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.25 * x),
    "softmax": powers,
    "log_softmax": lambda x: np.log(powers(x)),
    "hard_sigmoid": lambda x: np.clip(0.25 * x + 0.6, 0, 1),
    "scale": lambda x: 0.3 * x,
    "shift": lambda x: x - 1.5,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * sigmoid(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_activations_are_their_formulas(kind: str) -> None:
    values = {"x": 3 * np.random.default_rng(0).standard_normal(SHAPE)}
    run(tables().rules[kind], "forward", values)
    np.testing.assert_allclose(values["y"], FORMULAS[kind](values["x"]), rtol=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_optimizers_are_their_formulas(optimizer: str) -> None:
    """Sums are those of PyTorch's SGD; Adam has no correction of its first steps."""
    assert set(tables().optimizers) == {"sgd", "momentum", "adam"}
    rng = np.random.default_rng(0)
    w, g, m, v = (rng.standard_normal(SHAPE) for _ in range(4))
    v = v**2
    values = {"w": w, "g": g, "m": m, "v": v}
    for update in tables().optimizers[optimizer]:
        names = {s: s for s in (*values, *tables().chains[update.op].writes)}
        made = computed(chain_of(update.op, names, "t", 1, {"rate": 0.5}), values)
        values["g"] = made.get("g_new", values["g"])
    g = g + 1e-4 * w
    if optimizer == "adam":
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        wanted = {"w_new": w - 0.5 * m / (np.sqrt(v) + 1e-5), "m_new": m, "v_new": v}
    elif optimizer == "momentum":
        wanted = {"w_new": w - 0.5 * (0.9 * v + g), "v_new": 0.9 * v + g}
    else:
        wanted = {"w_new": w - 0.5 * g}
    for name, array in wanted.items():
        np.testing.assert_allclose(made[name], array)


# -- fusions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "fusions", "count"),
    [
        ("ascend910b2", "usual", {"update+sum": 1, "update+activation": 2}),
        (
            "ascend910",
            "usual",
            {
                **{"convolution+sums": 2, "update+sum": 1, "update+activation": 2},
                **{"gradient+sum": 1, "gradient+activation": 1},
            },
        ),
        ("ascend910", "none", {}),
        ("ascend910", "sum+activation,decay+update", {"sum+activation": 1, "decay+update": 3}),
    ],
)
def test_how_often_fusions_are_made(
    device: str, fusions: str, count: dict[str, int], block: Workload
) -> None:
    """Behind a product only where L0C drains through UB; each takes one operation away."""
    step, whole = training(for_batch(block, 4)), training(for_batch(block, 4))
    assert fused(step, chosen(fusions), load_device(device), no_products) == count
    assert len(step.operations) == len(whole.operations) - sum(count.values())
    kept = {name for one in step.operations for name in one.writes}
    read = {name for one in step.operations for name in one.reads}
    made = {name for one in whole.operations for name in one.writes}
    assert read & made <= kept, "what somebody reads is in memory"
    order: set[str] = made - kept
    for one in step.operations:
        assert not (set(one.reads) & made) - order, f"{one.name} reads what is made later"
        order |= set(one.writes)


def no_products(*_: Any) -> bool:
    """No convolution is computed as a product of plain matrices."""
    return False


def test_a_fused_kernel_keeps_the_name_of_what_it_ends_with(block: Workload) -> None:
    step = training(for_batch(block, 4))
    fused(step, chosen("usual"), load_device("ascend910"), no_products)
    kinds = Counter(one.kind for one in step.operations)
    assert kinds["normalisation update + sum + activation"] == 1
    assert kinds["convolution input + sum of gradients + activation gradient"] == 1
    assert kinds["convolution output + normalisation sums"] == 2
    sums = next(one for one in step.operations if one.name == "batch_norm.sums")
    assert sums.writes == ("one", "batch_norm.sum", "batch_norm.squares")


# -- what is wrong -------------------------------------------------------------------------------


def test_a_list_of_layers_has_no_step() -> None:
    listed = Workload(name="a", description="", layers=load_workload("dcgan").layers)
    with pytest.raises(
        ArgumentError, match=r"workload a only lists layers; .*give its file a `graph"
    ):
        training(listed)


def test_an_unknown_optimizer_is_named(block: Workload) -> None:
    with pytest.raises(ArgumentError, match="optimizer is 'adm'; did you mean 'adam'"):
        training(block, optimizer="adm")


@rows(
    "tests/data/mistakes/networks.yaml",
    "a_row_that_is_wrong_has_its_line",
    "before, after, message",
)
def test_a_row_that_is_wrong_has_its_line(
    before: str, after: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (configs() / "operations.yaml").read_text(encoding="utf-8")
    at = text.index(before)
    (tmp_path / "operations.yaml").write_text(text.replace(before, after, 1), encoding="utf-8")
    monkeypatch.setattr(rules, "configs", lambda: tmp_path)
    line = text[:at].count("\n") + 1
    with pytest.raises(ConfigError) as error:
        rules.tables.__wrapped__()
    told = str(error.value)
    assert message in told
    named = int(told.split(":")[1])
    assert told.startswith("operations.yaml:")
    assert line - 2 <= named <= line, "that of the line, or of the key of its chain"


def test_maps_of_other_axes_are_not_fused() -> None:
    """ConvNeXt adds a gradient of (N, H, W, C) to that of a convolution: blocks hold others."""
    step = training(load_workload("convnext_tiny"))
    fused(step, chosen("usual"), load_device("ascend910"), no_products)
    for one in step.operations:
        chain = one.chain if one.core.startswith("convolution") else None
        values = [step.values[name] for name in (*chain.reads, *chain.writes)] if chain else []
        assert len({value.shape for value in values if value.kind == "map"}) < 2, one.name
