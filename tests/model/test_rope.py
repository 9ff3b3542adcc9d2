from __future__ import annotations

import pytest
import torch

from specrt.model.config import RopeConfig
from specrt.model.rope import inverse_frequencies, rotary_table, rotate

ROPES = {
    "default": RopeConfig(theta=1e5),
    "linear": RopeConfig(theta=1e4, rope_type="linear", factor=3.0),
    "llama3": RopeConfig(theta=5e5, rope_type="llama3", factor=32.0, original_max_positions=8192),
}


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_equal_transformers_to_the_bit(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = ROPES[name]
    parameters = {
        "rope_type": name,
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_positions,
    }
    used = {"default": 2, "linear": 3, "llama3": 6}[name]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters=dict(list(parameters.items())[:used]),
    )
    embedding = LlamaRotaryEmbedding(config)
    assert torch.equal(inverse_frequencies(rope, 64), embedding.inv_freq)
    cosines, sines = embedding(torch.zeros(1), torch.arange(16384)[None])
    own_cosines, own_sines = rotary_table(rope, 64, 16384)
    assert torch.equal(own_cosines, cosines[0])
    assert torch.equal(own_sines[:, 32:], sines[0, :, 32:])
    assert torch.equal(own_sines[:, :32], -sines[0, :, :32])


def test_rotation_is_that_of_the_plane() -> None:
    cosines, sines = rotary_table(ROPES["default"], 8, 50)
    heads = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 7, 49])
    got = rotate(heads, cosines[positions, None], sines[positions, None])
    as_complex = torch.complex(heads[..., :4], heads[..., 4:]).to(torch.complex128)
    angle = positions.double()[:, None] * inverse_frequencies(ROPES["default"], 8).double()
    turned = as_complex * torch.polar(torch.ones(3, 4).double(), angle)[:, None]
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert torch.equal(got[0], heads[0])
