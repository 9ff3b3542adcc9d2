from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specrt.kernels import attention, reference


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _mask(num_rows: int, length: int) -> Tensor:
    hidden = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(3)) < 0.5
    hidden[:, 0] = False
    return torch.zeros(num_rows, length).masked_fill(hidden, float("-inf"))[None, None]


@pytest.mark.parametrize("has_flash", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize(
    ("num_rows", "length", "head_dim"), [(1, 1, 16), (3, 200, 64), (40, 9, 24)]
)
def test_attend_equals_reference(
    monkeypatch: pytest.MonkeyPatch,
    has_flash: bool,
    has_mask: bool,
    num_rows: int,
    length: int,
    head_dim: int,
) -> None:
    if not has_flash:
        monkeypatch.setattr(attention, "_has_flash", lambda: False)
    query = _random(1, 3, num_rows, head_dim)
    # Strided views of a pool, as the backend passes them.
    keys = _random(length + 5, 3, head_dim, seed=1).transpose(0, 1).unsqueeze(0)[:, :, 5:]
    values = _random(length + 5, 3, head_dim, seed=2).transpose(0, 1).unsqueeze(0)[:, :, 5:]
    mask = _mask(num_rows, length) if has_mask else None
    output, lse = attention.attend(query, keys, values, mask)
    expected, expected_lse = reference.attend(query, keys, values, mask)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)


def test_merge_equals_attention_over_the_union() -> None:
    query, keys, values = _random(1, 2, 6, 16), _random(1, 2, 90, 16, seed=1), _random(1, 2, 90, 16)
    parts = [
        attention.attend(query, keys[:, :, a:b], values[:, :, a:b], None)
        for a, b in ((0, 1), (1, 50), (50, 90))
    ]
    merged = attention.merge([o for o, _ in parts], [lse for _, lse in parts])
    torch.testing.assert_close(
        merged, reference.attend(query, keys, values, None)[0], atol=1e-5, rtol=1e-5
    )


def test_fold_and_unfold_are_inverse() -> None:
    query = _random(5, 6, 8)
    folded = attention.fold_heads(query, 2)
    assert folded.shape == (1, 2, 15, 8)
    # Key head 1 serves query heads 3, 4, 5; row 2 of it holds the second row's first of them.
    assert torch.equal(folded[0, 1, 3], query[1, 3])
    assert torch.equal(attention.unfold_heads(folded, 5), query.reshape(5, 48))
