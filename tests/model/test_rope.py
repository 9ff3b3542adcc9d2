from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specrt.model.config import RopeConfig
from specrt.model.rope import inverse_frequencies, rotary_table, rotate

ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, ORIGINAL: 4096}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        ORIGINAL: 8192,
    },
    "yarn": YARN,
    "yarn betas": {**YARN, "beta_fast": 24, "beta_slow": 2},
    "yarn untruncated": {**YARN, "truncate": False},
    "yarn mscale": {**YARN, "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn one mscale": {**YARN, "mscale": 0.7},
    "yarn attention_factor": {**YARN, "attention_factor": 1.3},
    "yarn small": {**YARN, "rope_theta": 100.0, ORIGINAL: 64},
    "yarn no ramp": {**YARN, "rope_theta": 100.0, ORIGINAL: 3},
}
PLAIN = RopeConfig(theta=1e5)


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_equal_transformers_to_the_bit(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = ROPES[name]
    rope = RopeConfig.parse(Path("config.json"), parameters["rope_theta"], parameters)
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters=dict(parameters),
    )
    embedding = LlamaRotaryEmbedding(config)
    assert torch.equal(inverse_frequencies(rope, 64), embedding.inv_freq)
    cosines, sines = embedding(torch.zeros(1), torch.arange(16384)[None])
    own_cosines, own_sines = rotary_table(rope, 64, 16384)
    assert torch.equal(own_cosines, cosines[0])
    assert torch.equal(own_sines[:, 32:], sines[0, :, 32:])
    assert torch.equal(own_sines[:, :32], -sines[0, :, :32])


def test_rotation_is_that_of_the_plane() -> None:
    cosines, sines = rotary_table(PLAIN, 8, 50)
    heads = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 7, 49])
    got = rotate(heads, cosines[positions, None], sines[positions, None])
    as_complex = torch.complex(heads[..., :4], heads[..., 4:]).to(torch.complex128)
    angle = positions.double()[:, None] * inverse_frequencies(PLAIN, 8).double()
    turned = as_complex * torch.polar(torch.ones(3, 4).double(), angle)[:, None]
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert torch.equal(got[0], heads[0])
