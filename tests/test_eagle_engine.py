"""The engine with a draft head: no head, however wrong, changes a token or leaves a stale row."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_heads import FREE_ROWS, make_rows_free, tiny_head
from fakes import tiny_model_folder
from test_engine import engine_config, make_requests, run, token_ids

from specrt.config import DRAFT_SOURCES, CacheConfig, SpeculativeConfig
from specrt.draft_heads.checkpoint import HeadCheckpoint, save_head
from specrt.draft_heads.runner import FEATURE, HEAD_ROW, HeadRunner
from specrt.engine import LLMEngine
from specrt.errors import ConfigError
from specrt.request import EngineRequest, SamplingParams, by_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> LLMEngine:
    return LLMEngine(engine_config(folder, speculative=SpeculativeConfig(speculative="none")))


def eagle_engine(
    folder: Path, head: HeadCheckpoint, head_folder: Path, sources: str = "", **parts: object
) -> LLMEngine:
    """An engine whose rows and waves are free: tests shall not depend on timings."""
    save_head(head_folder, head)
    spec = SpeculativeConfig(
        speculative="eagle", speculative_draft_model_path=str(head_folder), draft_sources=sources
    )
    engine = LLMEngine(engine_config(folder, speculative=spec, **parts))
    make_rows_free(engine)
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sources", ["", "forced,choices,history"])
def test_a_random_head_changes_no_token(
    folder: Path, plain: LLMEngine, tmp_path: Path, sources: str, temperature: float
) -> None:
    requests = make_requests(plain, 12, temperature)
    expected = {}
    for request in requests:
        expected |= {k: token_ids(v) for k, v in run(plain, [request]).items()}
    engine = eagle_engine(folder, tiny_head(), tmp_path, sources)
    for _ in range(2):  # cold, then from the cache
        got = run(engine, requests)
        assert {k: token_ids(v) for k, v in got.items()} == expected
    drafted = sum(by_source(v[-1].stats.drafts.drafted).get("eagle", 0) for v in got.values())
    assert drafted > 30, "the head drafted nothing: the comparison shows nothing"
    assert engine.stats()["num_held_slots"] == 0


def test_no_combination_of_sources_changes_a_token(
    folder: Path, plain: LLMEngine, tmp_path: Path
) -> None:
    requests = [
        replace(
            r,
            request_id=f"{r.request_id}, {temperature}",
            sampling=replace(r.sampling, max_tokens=20),
        )
        for temperature in (0.0, 1.0)
        for r in make_requests(plain, 3, temperature)
    ]
    expected = {k: token_ids(v) for k, v in run(plain, requests).items()}
    engine = eagle_engine(folder, tiny_head(), tmp_path)
    engine.pass_cost, engine._head_cost = FREE_ROWS, None
    for size in range(len(DRAFT_SOURCES) + 1):
        for sources in itertools.combinations(DRAFT_SOURCES, size):
            for kind, shared in itertools.product(("eagle", "grammar"), (0, 4096)):
                engine.worker.builder = engine.make_builder(
                    SpeculativeConfig(
                        speculative=kind,
                        draft_sources=",".join(sources),
                        shared_history_tokens=shared,
                    )
                )
                got = run(engine, requests)
                assert {k: token_ids(v) for k, v in got.items()} == expected, (sources, kind)
                drafts = [v[-1].stats.drafts for v in got.values()]
                assert sum(d.num_invalid for d in drafts) == 0
                names = {name for d in drafts for name in d.drafted}
                allowed = {*sources, *(["eagle"] * (kind == "eagle")), *(["shared"] * (shared > 0))}
                assert names <= allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_that_is_always_wrong_changes_no_token(
    folder: Path, plain: LLMEngine, tmp_path: Path, temperature: float
) -> None:
    """Its draft vocabulary holds no token of any output."""
    requests = [r for r in make_requests(plain, 12, temperature) if r.grammar is None]
    expected = {k: token_ids(v) for k, v in run(plain, requests).items()}
    used = {t for ids in expected.values() for t in ids}
    unused = torch.tensor([t for t in range(3, 320) if t not in used])
    head = tiny_head(draft_vocab_size=len(unused))
    head.draft_token_ids = unused
    got = run(eagle_engine(folder, head, tmp_path), requests)
    assert {k: token_ids(v) for k, v in got.items()} == expected
    stats = [v[-1].stats for v in got.values()]
    assert sum(by_source(s.drafts.drafted).get("eagle", 0) for s in stats) > 50
    assert sum(by_source(s.drafts.accepted).get("eagle", 0) for s in stats) == 0


def test_rows_in_the_cache_equal_a_cold_recompute(
    folder: Path, plain: LLMEngine, tmp_path: Path
) -> None:
    """After forks, accepted drafts, retractions and evictions in a small pool."""
    cache = CacheConfig(max_total_tokens=400, check_cache=True)
    engine = eagle_engine(folder, tiny_head(), tmp_path, "forced,history", cache=cache)
    prompt = plain.tokenizer.encode("the weather in Paris: call the function with the ")
    sequences = []
    for i in range(6):  # forks that share all but the last token of the prompt
        request = EngineRequest(
            request_id=f"fork{i}",
            prompt_token_ids=[*prompt, 40 + i % 3],
            sampling=SamplingParams(max_tokens=30, temperature=float(i % 2), seed=i),
        )
        sequences.append(request)
    outputs = run(engine, [*make_requests(plain, 6, 1.0), *sequences])
    runner = engine.worker.head
    assert runner is not None
    checked = 0
    for request in sequences:
        tokens = [*request.prompt_token_ids, *token_ids(outputs[request.request_id])]
        sequence = engine.cache.open("", tokens)
        slots = np.array(sequence.page_table)
        checked += check_rows(runner, engine, tokens[: len(slots)], slots)
        engine.cache.close(sequence, tokens, len(slots))
    assert checked > 50


def check_rows(runner: HeadRunner, engine: LLMEngine, tokens: list[int], slots: np.ndarray) -> int:
    """Compare the rows that count as made with new ones; their number."""
    made = np.flatnonzero(runner._has_row[slots])
    assert 0 not in made, "a first token has no row"
    if len(made) < 2:
        return 0
    end = int(made[-1]) + 1
    assert len(made) == end - 1, "rows are made from the front"
    rows = engine.worker.store.extra[HEAD_ROW]
    index = torch.from_numpy(slots[1:end].astype(np.int64))
    warm = rows[index].clone()
    runner.forget(slots[:end])
    runner.extend([(tokens[:end], slots[:end])])
    torch.testing.assert_close(warm, rows[index], atol=1e-4, rtol=1e-4)
    return end - 1


def test_features_stay_with_their_tokens(folder: Path, plain: LLMEngine, tmp_path: Path) -> None:
    """Features of a speculated output equal those of the same tokens in one prefill."""
    engine = eagle_engine(folder, tiny_head(), tmp_path, "forced,choices,history")
    (request,) = make_requests(plain, 1, 0.0)
    (output,) = run(engine, [request]).values()
    assert by_source(output[-1].stats.drafts.accepted).get("forced", 0) > 5
    tokens = [*request.prompt_token_ids, *token_ids(output)]

    def features() -> torch.Tensor:
        sequence = engine.cache.open("", tokens)
        slots = torch.from_numpy(sequence.page_table.astype(np.int64))
        engine.cache.close(sequence, tokens, len(slots))
        assert len(slots) == len(tokens) - 1
        return engine.worker.store.extra[FEATURE][slots].clone()

    speculated = features()
    engine.flush_cache()
    once = EngineRequest(
        request_id="again", prompt_token_ids=tokens, sampling=SamplingParams(max_tokens=1)
    )
    run(engine, [once])
    torch.testing.assert_close(features(), speculated, atol=1e-3, rtol=1e-3)


def test_a_head_is_missing_or_unwanted(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no draft head ships for"):
        LLMEngine(engine_config(folder, speculative=SpeculativeConfig(speculative="eagle")))
    with pytest.raises(ConfigError, match="uses no head"):
        SpeculativeConfig(speculative="grammar", speculative_draft_model_path="x")
    engine = LLMEngine(engine_config(folder, speculative=SpeculativeConfig(speculative="auto")))
    assert engine.worker.head is None


def test_another_model_by_the_name_of_a_shipped_head_runs_without_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_head(tmp_path, tiny_head(target_hidden_size=128))
    monkeypatch.setattr("specrt.engine.shipped_head", lambda name: tmp_path)
    engine = LLMEngine(engine_config(folder, speculative=SpeculativeConfig(speculative="auto")))
    assert engine.worker.head is None
    with pytest.raises(ConfigError, match="made for another model"):
        LLMEngine(engine_config(folder, speculative=SpeculativeConfig(speculative="eagle")))


def test_a_target_with_a_short_context_starts(tmp_path: Path) -> None:
    short = tiny_model_folder(tmp_path / "short", max_position_embeddings=128)
    engine = eagle_engine(short, tiny_head(), tmp_path / "head")
    assert engine.context_length == 128
