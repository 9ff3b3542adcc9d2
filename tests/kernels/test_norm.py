from __future__ import annotations

import pytest
import torch

from specrt.kernels import reference
from specrt.kernels.norm import RMSNorm


@pytest.mark.parametrize("size", [16, 64, 100, 576, 4096])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_equals_reference(size: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, size, generator=generator) * scale
    weight = torch.rand(size, generator=generator) + 0.5
    expected = reference.rms_norm(rows, weight, 1e-5)
    torch.testing.assert_close(RMSNorm(weight, 1e-5)(rows), expected, atol=2e-6, rtol=2e-6)


def test_weight_per_head() -> None:
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(5, 3, 16, generator=generator)
    weight = torch.rand(3, 16, generator=generator)
    expected = reference.rms_norm(heads, weight, 1e-6)
    torch.testing.assert_close(RMSNorm(weight, 1e-6)(heads), expected, atol=2e-6, rtol=2e-6)


def test_zero_rows_stay_zero() -> None:
    assert torch.equal(RMSNorm(torch.ones(8), 1e-5)(torch.zeros(2, 8)), torch.zeros(2, 8))


@pytest.mark.parametrize("size", [64, 100, 576, 2048])
def test_rows_are_bitwise_independent_of_the_batch(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(256, size, generator=generator)
    norm = RMSNorm(torch.rand(size, generator=generator), 1e-5)
    whole = norm(rows)
    for count in (*range(1, 40), 64, 100, 255):
        assert torch.equal(norm(rows[-count:]), whole[-count:])
