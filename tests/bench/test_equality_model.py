"""Speculation never changes a token of the real model: 8 requests, every drafter and batch."""

from __future__ import annotations

import pytest

from specrt.bench.equality import HEAD_WAYS, WAYS, Way, compare_all, render
from specrt.bench.generator import EngineGenerator, engine_config
from specrt.bench.traces import load_traces

NUM_REQUESTS = 8


def _open(way: Way) -> EngineGenerator:
    return EngineGenerator(
        engine_config(
            None,
            way.sources,
            num_threads=2,
            max_total_tokens=16_384,
            check_cache=True,
            grammar_backend=way.grammar_backend,
        )
    )


@pytest.mark.slow
def test_the_embedded_model_gives_the_same_tokens_in_all_runs() -> None:
    reference = _open(WAYS["none"])
    # Short prompts, small schemas and some free text: some calls end within the limit.
    traces = load_traces(sources="star,bfcl_v4/simple")
    cases = reference.cases(traces, NUM_REQUESTS, max_prompt_tokens=450)
    assert len(cases) == NUM_REQUESTS
    must_call = [c.request.grammar is not None and c.request.grammar.require_call for c in cases]
    assert 4 <= sum(must_call) < NUM_REQUESTS
    drafting: list[EngineGenerator] = []

    def open_generator(way: Way) -> EngineGenerator:
        drafting.append(_open(way))
        return drafting[-1]

    ways = WAYS | HEAD_WAYS
    for single in ("forced,choices", "history", "values", "head"):
        del ways[single]  # for the time; `specrt bench equality` runs them, too
    report = compare_all(
        reference, open_generator, cases, ways, max_tokens=32, batch_size=16, seed=7
    )
    assert report.is_passed, render(report)
    assert report.num_runs == 4 * len(ways)
    assert report.calls.get("valid", 0) > 0, "no call was finished"
    accepted = drafting[-1].engine.stats()["accepted_total"]
    assert isinstance(accepted, dict)
    for source in ("forced", "eagle"):
        assert sum(accepted.get(source, {}).values()) > 0, (
            "nothing was drafted, so nothing was compared"
        )
