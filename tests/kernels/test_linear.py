"""PackedLinear: equal to the reference, and each row the same to the bit in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specrt.kernels import linear, reference
from specrt.kernels.linear import PackedLinear, find_min_rows

# (in, out): the shapes of SmolLM2, wide inputs (another oneDNN path), and sizes without a factor.
SHAPES = [(576, 960), (576, 3072), (1536, 576), (2048, 512), (64, 96), (100, 70), (1031, 33)]


def _rows(count: int, size: int, seed: int = 1) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("size_in", "size_out"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_equals_reference(size_in: int, size_out: int, has_bias: bool) -> None:
    weight = _rows(size_out, size_in, seed=2)
    bias = _rows(1, size_out, seed=3)[0] if has_bias else None
    rows = _rows(19, size_in)
    expected = reference.linear(rows, weight, bias)
    torch.testing.assert_close(PackedLinear(weight, bias)(rows), expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(("size_in", "size_out"), SHAPES)
def test_rows_are_bitwise_independent_of_the_batch(size_in: int, size_out: int) -> None:
    packed = PackedLinear(_rows(size_out, size_in, seed=2), _rows(1, size_out, seed=3)[0])
    rows = _rows(256, size_in)
    whole = packed(rows)
    for count in (*range(1, 50), 63, 64, 65, 100, 127, 128, 200, 255):
        for offset in {0, 1, 7, 256 - count}:
            if offset + count <= 256:
                part = packed(rows[offset : offset + count])
                assert torch.equal(part, whole[offset : offset + count]), (count, offset)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    packed = PackedLinear(_rows(48, 1536, seed=2))
    row = _rows(1, 1536)
    alone = packed(row)
    for seed in range(5):
        batch = _rows(23, 1536, seed=100 + seed) * 50
        batch[seed * 5] = row[0]
        assert torch.equal(packed(batch)[seed * 5], alone[0])


def test_no_rows() -> None:
    assert PackedLinear(_rows(5, 8))(torch.empty(0, 8)).shape == (0, 5)


def test_strided_input_is_right() -> None:
    weight, wide = _rows(32, 64, seed=2), _rows(9, 128)
    packed = PackedLinear(weight)
    assert torch.equal(packed(wide[:, 64:]), packed(wide[:, 64:].contiguous()))


def test_find_min_rows_pads_past_the_unequal_sizes() -> None:
    def odd_below_three(rows: Tensor) -> Tensor:
        return rows * (1.0 if len(rows) >= 3 else 1.5)

    assert find_min_rows(odd_below_three, 8) == 4
    assert find_min_rows(lambda rows: rows * 2.0, 8) == 1


def test_find_min_rows_warns_when_nothing_helps(caplog: pytest.LogCaptureFixture) -> None:
    linear._log_once.cache_clear()
    assert find_min_rows(lambda rows: rows * float(len(rows)), 8) == 1
    assert find_min_rows(lambda rows: rows * float(len(rows)), 8) == 1
    assert sum("depend on the batch" in record.message for record in caplog.records) == 1


def test_padding_to_min_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedLinear(_rows(6, 8, seed=2))
    seen: list[int] = []
    multiply = packed._multiply
    monkeypatch.setattr(packed, "_multiply", lambda r: (seen.append(len(r)), multiply(r))[1])
    packed.min_rows = 4
    rows = _rows(5, 8)
    assert [packed(rows[:n]).shape[0] for n in (1, 3, 4, 5)] == [1, 3, 4, 5]
    assert seen == [4, 4, 4, 5]


def test_falls_back_without_onednn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    linear._log_once.cache_clear()
    monkeypatch.setattr(linear, "_has_onednn", lambda: False)
    weight, rows = _rows(6, 8, seed=2), _rows(3, 8)
    torch.testing.assert_close(
        PackedLinear(weight)(rows), reference.linear(rows, weight), atol=1e-5, rtol=1e-5
    )
    PackedLinear(weight)
    assert sum("no oneDNN" in record.message for record in caplog.records) == 1
