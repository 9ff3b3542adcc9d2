"""The losses: gradients against differences, limits, and what each is least at."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specrt.train.objective import (
    Loss,
    LossName,
    lk_alpha,
    lk_hybrid,
    loss_of,
    masked,
    soft_cross_entropy,
)

NAMES: tuple[LossName, ...] = ("ce", "lk-hybrid", "lk-alpha")
seeds = st.integers(0, 10**6)
etas = st.floats(0, 20)


def rows(seed: int, spread: float = 2.0, count: int = 3, size: int = 7) -> tuple[Tensor, Tensor]:
    """Logits, and probabilities of which some are exactly 0."""
    noise = torch.Generator().manual_seed(seed)
    logits, expected = (
        spread * torch.randn(count, size, generator=noise, dtype=torch.float64) for _ in range(2)
    )
    forbidden = torch.rand(count, size, generator=noise) < 0.3
    forbidden[:, 0] = False
    return logits, masked(expected, ~forbidden).softmax(dim=-1)


def alpha(logits: Tensor, expected: Tensor) -> Tensor:
    """By the definition: a sampled token x is kept with probability min(1, p(x) / q(x))."""
    shares = logits.softmax(dim=-1)
    return (shares * (expected / shares).clamp(max=1)).sum(dim=-1)


def divergence(logits: Tensor, expected: Tensor) -> Tensor:
    terms = expected * (expected.log() - logits.log_softmax(dim=-1))
    return terms.where(expected > 0, torch.zeros(())).sum(dim=-1)


@settings(max_examples=50, deadline=None)
@given(seeds, st.sampled_from(NAMES))
def test_gradients_agree_with_differences(seed: int, name: LossName) -> None:
    logits, expected = rows(seed)
    loss: Loss = loss_of(name, 0.0)  # the weight of lk-hybrid has no gradient: see below
    assert torch.autograd.gradcheck(lambda x: loss(x, expected), logits.requires_grad_())


@settings(max_examples=50, deadline=None)
@given(seeds, etas)
def test_the_hybrid_is_a_mixture_whose_weight_has_no_gradient(seed: int, eta: float) -> None:
    logits, expected = rows(seed)
    logits.requires_grad_()
    weight = torch.exp(-eta * alpha(logits, expected)).detach()
    wanted = weight * divergence(logits, expected) + (1 - weight) * (1 - alpha(logits, expected))
    found = lk_hybrid(logits, expected, eta)
    torch.testing.assert_close(found, wanted)
    (slope,) = torch.autograd.grad(found.sum(), logits)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), logits)
    torch.testing.assert_close(slope, wanted_slope)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_limits_of_the_hybrid(seed: int) -> None:
    logits, expected = rows(seed)
    entropy = -torch.xlogy(expected, expected).sum(dim=-1)
    kl = soft_cross_entropy(logits, expected) - entropy
    torch.testing.assert_close(lk_hybrid(logits, expected, 0.0), kl)
    total_variation = (logits.softmax(dim=-1) - expected).abs().sum(dim=-1) / 2
    torch.testing.assert_close(lk_hybrid(logits, expected, 1e9), total_variation)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_lk_alpha_is_the_log_of_the_acceptance(seed: int) -> None:
    logits, expected = rows(seed)
    torch.testing.assert_close(lk_alpha(logits, expected), -alpha(logits, expected).log())


@settings(max_examples=50, deadline=None)
@given(seeds, st.sampled_from(NAMES), etas)
def test_a_loss_is_least_where_the_head_says_what_the_target_says(
    seed: int, name: LossName, eta: float
) -> None:
    logits, expected = rows(seed)
    loss = loss_of(name, eta)
    best = expected.clamp(min=1e-30).log()
    assert (loss(best, expected) <= loss(logits, expected) + 1e-12).all()
    if name != "ce":
        torch.testing.assert_close(loss(best, expected), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_hopeless_and_forbidden_tokens_leave_everything_finite(name: LossName) -> None:
    """The head is sure of one token, the target of another; a third is not allowed to either."""
    allowed = torch.tensor([[True, True, False]])
    logits = torch.tensor([[80.0, -80.0, 5.0]], requires_grad=True)
    expected = torch.tensor([[0.0, 1.0, 0.0]])
    loss = loss_of(name, 3.0)(masked(logits, allowed), expected)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and logits.grad is not None
    assert torch.isfinite(logits.grad).all() and logits.grad[0, 2] == 0
    assert logits.grad[0, 1] < -0.5 and logits.grad[0, 0] > 0.5, "no way out"
