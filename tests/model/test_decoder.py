"""The decoder against transformers, and against itself over other cuts of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import tiny_model_folder
from torch import Tensor

from specrt.attention.base import RowGroup
from specrt.attention.torch_backend import TorchAttention
from specrt.cache.kv_store import KVStore
from specrt.errors import ConfigError
from specrt.model.decoder import ModelOutput, TargetModel
from specrt.model.embedded import find_embedded
from specrt.model.weights import load_folder

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# The 150 positions of the test reach far beyond the original context.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "llama3 rope": {"rope_parameters": LLAMA3, "tie_word_embeddings": False},
    "yarn rope": {"rope_parameters": YARN},
    "yarn rope, untied": {
        "rope_parameters": {**YARN, "attention_factor": 1.2, "truncate": False},
        "tie_word_embeddings": False,
    },
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    },
    "one kv head": {"num_key_value_heads": 1},
    "no groups": {"num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 32},
    "three layers": {"num_hidden_layers": 3},
}


def _ints(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


class Runner:
    """A model with a store of its own; rows go to the slots that follow the context."""

    def __init__(self, model: TargetModel, num_slots: int = 2048) -> None:
        config = model.config
        self.model = model
        self.store = KVStore(num_slots, config.num_layers, config.num_kv_heads, config.head_dim)
        self.attention = TorchAttention(self.store, config.num_heads)

    def chain(
        self, token_ids: Tensor, start: int = 0, capture: tuple[int, ...] = ()
    ) -> ModelOutput:
        """Compute token_ids at positions start, start + 1, ...; logits of all rows."""
        end = start + len(token_ids)
        group = RowGroup(_ints(range(start)), _ints(range(start, end)), end - start, _ints([]))
        self.attention.plan([group])
        rows = torch.arange(end - start)
        return self.model.forward(token_ids, rows + start, self.attention, rows, capture)


def _load(folder: Path) -> TargetModel:
    return TargetModel(*load_folder(folder))


def _tokens(count: int, vocab_size: int = 320, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def _transformers(folder: Path, token_ids: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        output = model(token_ids[None], output_hidden_states=True)
    return output.logits[0], tuple(h[0] for h in output.hidden_states)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return _load(tiny_model_folder(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_llama_equals_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = tiny_model_folder(tmp_path, **overrides)
    tokens = _tokens(150)
    logits, hidden_states = _transformers(folder, tokens)
    model = _load(folder)
    layers = tuple(range(model.config.num_layers))
    output = Runner(model).chain(tokens, capture=layers)
    assert logits.std() > 0.5, "the random model must tell its tokens apart"
    torch.testing.assert_close(output.logits, logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        output.captured, torch.cat([hidden_states[i] for i in layers], dim=-1), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("rope", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", ["Mistral", "Qwen2", "Qwen3"])
def test_other_families_equal_transformers(
    tmp_path: Path, name: str, tied: bool, rope: dict[str, Any] | None
) -> None:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "rope_parameters": rope,
    }
    config = getattr(transformers, f"{name}Config")(**sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for key, tensor in model.named_parameters():
            if key.endswith(("norm.weight", "bias")):
                tensor.data.uniform_(0.5, 1.5)
    model.save_pretrained(tmp_path)
    tokens = _tokens(100)
    logits, _ = _transformers(tmp_path, tokens)
    torch.testing.assert_close(
        Runner(_load(tmp_path)).chain(tokens).logits, logits, atol=1e-4, rtol=0
    )


def test_captured_layers_in_order(tiny: TargetModel) -> None:
    tokens = _tokens(9)
    both = Runner(tiny).chain(tokens, capture=(0, 1)).captured
    second = Runner(tiny).chain(tokens, capture=(1,)).captured
    assert both is not None and second is not None and both.shape == (9, 128)
    assert torch.equal(both[:, 64:], second)
    assert Runner(tiny).chain(tokens).captured is None


@pytest.mark.parametrize("cuts", [[1] * 40, [7, 1, 20, 3, 9], [39, 1], [16, 24]])
def test_chunks_and_decode_equal_one_pass(tiny: TargetModel, cuts: list[int]) -> None:
    tokens = _tokens(40)
    whole = Runner(tiny).chain(tokens).logits
    runner, start, parts = Runner(tiny), 0, []
    for size in cuts:
        parts.append(runner.chain(tokens[start : start + size], start).logits)
        start += size
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=0)


def test_tree_rows_equal_their_paths(tiny: TargetModel) -> None:
    #  row 0, 1, 2 (chain)   2 -> 3, 4   3 -> 5
    tokens = _tokens(26)
    runner = Runner(tiny)
    runner.chain(tokens[:20])
    group = RowGroup(_ints(range(20)), _ints(range(20, 26)), 3, _ints([2, 2, 3]))
    runner.attention.plan([group])
    positions = torch.tensor([20, 21, 22, 23, 23, 24])
    tree = tiny.forward(tokens[20:], positions, runner.attention, torch.arange(6)).logits
    for path in ([0, 1, 2, 3, 5], [0, 1, 2, 4]):
        alone = Runner(tiny)
        chain = alone.chain(torch.cat((tokens[:20], tokens[20:][path]))).logits[20:]
        torch.testing.assert_close(tree[path], chain, atol=1e-5, rtol=0)


def test_two_sequences_in_one_pass(tiny: TargetModel) -> None:
    tokens = _tokens(30)
    runner = Runner(tiny)
    runner.attention.plan(
        [
            RowGroup(_ints([]), _ints(range(12)), 12, _ints([])),
            RowGroup(_ints([]), _ints(range(50, 68)), 18, _ints([])),
        ]
    )
    positions = torch.cat((torch.arange(12), torch.arange(18)))
    got = tiny.forward(tokens, positions, runner.attention, torch.tensor([11, 29])).logits
    for row, part in ((0, tokens[:12]), (1, tokens[12:])):
        alone = Runner(tiny).chain(part).logits[-1]
        torch.testing.assert_close(got[row], alone, atol=1e-5, rtol=0)


def test_logits_only_of_the_rows_asked_for(tiny: TargetModel) -> None:
    tokens = _tokens(10)
    runner = Runner(tiny)
    whole = runner.chain(tokens).logits
    rows = torch.tensor([9, 2])
    got = tiny.forward(tokens, torch.arange(10), runner.attention, rows).logits
    torch.testing.assert_close(got, whole[rows], atol=1e-6, rtol=0)
    none = tiny.forward(tokens, torch.arange(10), runner.attention, rows[:0]).logits
    assert none.shape == (0, 320)


class _OwnValue:
    """Attention that looks at nothing but the row itself."""

    def plan(self, groups: list[RowGroup]) -> None:
        pass

    def run(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group = query.shape[1] // value.shape[1]
        return value.repeat_interleave(group, dim=1).reshape(len(value), -1)


def test_all_but_attention_is_bitwise_independent_of_the_batch(tmp_path: Path) -> None:
    # Sizes with a wide MLP, so that every oneDNN path is met.
    folder = tiny_model_folder(tmp_path, hidden_size=192, intermediate_size=1536)
    model, attention = _load(folder), _OwnValue()
    tokens, positions = _tokens(64), torch.arange(64) * 7
    whole = model.forward(tokens, positions, attention, torch.arange(64)).logits
    for first, last in ((0, 1), (5, 6), (0, 2), (3, 12), (10, 43), (1, 64)):
        part = model.forward(
            tokens[first:last], positions[first:last], attention, torch.arange(last - first)
        )
        assert torch.equal(part.logits, whole[first:last]), (first, last)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Path]:
    try:
        yield find_embedded()
    except ConfigError as error:
        pytest.skip(f"needs the embedded model: {error}")


@pytest.mark.slow
def test_smollm2_equals_transformers(smollm2: Path) -> None:
    tokens = _tokens(64, 49152)
    logits, hidden_states = _transformers(smollm2, tokens)
    model = _load(smollm2)
    output = Runner(model).chain(tokens, capture=(0, 15, 29))
    torch.testing.assert_close(output.logits, logits, atol=1e-4, rtol=0)
    expected = torch.cat([hidden_states[i] for i in (0, 15, 29)], dim=-1)
    assert output.captured is not None
    # A few columns of the residual stream reach thousands: rounding is relative to those.
    scale = expected.abs().amax(dim=-1, keepdim=True)
    assert float(((output.captured - expected).abs() / scale).max()) < 1e-5
    runner = Runner(model)
    runner.chain(tokens[:50])
    parts = [runner.chain(tokens[i : i + 1], i).logits for i in range(50, 56)]
    torch.testing.assert_close(torch.cat(parts), logits[50:56], atol=1e-4, rtol=0)
