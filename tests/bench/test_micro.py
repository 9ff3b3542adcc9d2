"""Micro benchmarks (`make bench`); `make test` skips them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import EOS_TOKEN_ID, tiny_model_folder, tiny_tokenizer_folder
from pytest_benchmark.fixture import BenchmarkFixture

from specrt.attention.base import RowGroup
from specrt.attention.torch_backend import TorchAttention
from specrt.cache.kv_store import KVStore
from specrt.cache.radix_tree import RadixTree
from specrt.draft_tree import DraftTree
from specrt.grammars.base import GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.loader import load_target
from specrt.speculative.suffix_index import SuffixIndex

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
RECIPE = GrammarRecipe(
    kind="tools",
    tools=(ToolSpec(name="weather", parameters=json.dumps(SCHEMA)),),
    require_call=True,
)


def test_draft_tree_of_32_nodes(benchmark: BenchmarkFixture) -> None:
    def grow() -> DraftTree:
        tree = DraftTree(0)
        for i in range(32):
            tree.add(i // 2, i, 0.9, "history")
        return tree.subtree(list(range(1, 17)))

    assert len(benchmark(grow)) == 17


def test_radix_match_of_1000_tokens_among_64_conversations(benchmark: BenchmarkFixture) -> None:
    source = random.Random(0)
    tree = RadixTree()
    system = [source.randrange(49_152) for _ in range(400)]
    prompts = [system + [source.randrange(49_152) for _ in range(600)] for _ in range(64)]
    for i, prompt in enumerate(prompts):
        tree.insert("", prompt, np.arange(1000 * i, 1000 * (i + 1), dtype=np.int32))
    assert benchmark(lambda: tree.match_length("", prompts[7])) == 1000


def test_suffix_search_in_4000_tokens(benchmark: BenchmarkFixture) -> None:
    source = random.Random(0)
    tokens = [source.randrange(200) for _ in range(4000)]
    index = SuffixIndex(tokens)
    assert benchmark(lambda: index.search(tokens[-40:])) is not None


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tiny_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return Vocabulary(text, 320, [EOS_TOKEN_ID])


def test_compile_a_tool_call_grammar(benchmark: BenchmarkFixture, vocabulary: Vocabulary) -> None:
    grammar = benchmark(lambda: GrammarCompiler(vocabulary).compile(RECIPE))
    assert grammar.open().root != 0


def test_masks_along_a_forced_run(benchmark: BenchmarkFixture, vocabulary: Vocabulary) -> None:
    grammar = GrammarCompiler(vocabulary).compile(RECIPE)
    out = np.zeros((16, vocabulary.num_words), dtype=np.int32)

    def run() -> int:
        state = grammar.open()
        nodes = [state.root]
        while len(nodes) < 16 and (token := state.forced(nodes[-1])) is not None:
            nodes.append(state.advance(nodes[-1], token))
        state.masks(nodes, out[: len(nodes)])
        return len(nodes)

    assert benchmark(run) > 4


@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_tiny_target_pass(
    benchmark: BenchmarkFixture, tmp_path_factory: pytest.TempPathFactory, num_rows: int
) -> None:
    """What a pass costs beside its matrix products."""
    folder: Path = tiny_model_folder(tmp_path_factory.mktemp("model"))
    loaded = load_target(str(folder))
    config = loaded.config
    store = KVStore(512, config.num_layers, config.num_kv_heads, config.head_dim)
    attention = TorchAttention(store, config.num_heads)
    slots = np.arange(256 + num_rows, dtype=np.int32)
    group = RowGroup(
        context_slots=slots[:256],
        row_slots=slots[256:],
        num_chain=1,
        parents=np.zeros(num_rows - 1, dtype=np.int32),
    )
    token_ids = torch.zeros(num_rows, dtype=torch.int64)

    def run() -> torch.Tensor:
        attention.plan([group])
        return loaded.model.forward(
            token_ids, torch.full_like(token_ids, 257), attention, torch.arange(num_rows)
        ).logits

    assert benchmark(run).shape == (num_rows, config.vocab_size)
