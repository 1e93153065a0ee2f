"""The judge of random modules: it finds what is wrong, and takes rounding for what it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.networks.random_modules import (  # noqa: E402  # it needs PyTorch
    InHalf,
    differences,
    drawn_batch,
    drawn_module,
    noisy_steps,
    reference_step,
)
from tests.sampled import slow_if  # noqa: E402

SEEDS = range(12)


def test_a_seed_draws_the_same_module() -> None:
    first, second = drawn_module(5), drawn_module(5)
    assert first.describe() == second.describe()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_many_modules_have_what_steps_get_wrong() -> None:
    modules = [drawn_module(seed) for seed in range(150)]
    kinds = {operation.kind for module in modules for operation in module.operations}
    assert kinds >= {
        *("residual_in_place", "branches", "twice", "swap", "gate", "write_part", "scale_part"),
        *("no_grad", "detach", "detached_branch", "weights_of_image", "last_axis"),
    }
    assert {module.second for module in modules} == {"none", "vector", "image"}
    assert {module.pooled for module in modules} == {"mean", "most", "flat"}
    assert any(module.frames for module in modules)
    assert any(not weight.requires_grad for each in modules for weight in each.parameters())
    twice = [[i for each in module.operations for i in each.layers] for module in modules]
    assert any(len(used) > len(set(used)) for used in twice)
    every = [list(module.named_parameters(remove_duplicate=False)) for module in modules]
    assert any(len(named) > len({weight for _, weight in named}) for named in every)


@pytest.mark.parametrize("seed", [slow_if(seed >= 3, seed) for seed in SEEDS])
def test_rounding_is_explained_and_a_tenth_is_not(seed: int) -> None:
    module = drawn_module(seed)
    inputs, labels = drawn_batch(module, seed, 3)
    exact = reference_step(module, inputs, labels)
    noisy = noisy_steps(module, inputs, labels)
    with InHalf(99):
        rounded = reference_step(module, inputs, labels)
    assert not differences(rounded.loss, rounded.gradients, exact, noisy)
    larger = {name: gradient * 1.1 for name, gradient in rounded.gradients.items()}
    # Gradients that cancel are rounding and nothing else, and no factor of theirs is an error.
    found = {each.name for each in differences(rounded.loss, larger, exact, noisy)}
    assert "head.weight" in found or "head.0.weight" in found
    without = dict(list(rounded.gradients.items())[1:])
    (missing,) = differences(rounded.loss, without, exact, noisy)
    assert "is missing" in missing.name


def test_an_untied_weight_is_found() -> None:
    """Of a layer that is used twice the gradient of one use alone is no rounding."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
    shared = torch.nn.Sequential(model, model, torch.nn.Linear(6, 3))
    apart = torch.nn.Sequential(model, copy.deepcopy(model), shared[2])
    generator = np.random.default_rng(0)
    inputs, labels = generator.standard_normal((4, 6)).astype(np.float32), np.array([0, 1, 2, 0])
    exact = reference_step(shared, inputs, labels)
    noisy = noisy_steps(shared, inputs, labels)
    wrong = reference_step(apart, inputs, labels)
    gradients = {name: wrong.gradients[name] for name in exact.gradients}
    found = differences(wrong.loss, gradients, exact, noisy)
    assert {each.name for each in found} == {"0.0.weight", "0.0.bias"}
