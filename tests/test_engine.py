"""The whole engine on a tiny random model: exactness, memory, aborts, isolation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import tiny_model_folder

from specrt.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from specrt.engine import LLMEngine
from specrt.errors import ContextLengthError, GrammarError
from specrt.grammars.base import GrammarRecipe, ToolSpec
from specrt.request import EngineRequest, RequestOutput, SamplingParams, by_source

WEATHER = ToolSpec(
    name="get_weather",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit", "kelvin"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 99},
                "hourly": {"type": "boolean"},
            },
            "required": ["city", "unit", "days", "hourly"],
            "additionalProperties": False,
        }
    ),
    strict=True,
)
TOOLS = GrammarRecipe(kind="tools", tools=(WEATHER,), require_call=True, parallel=False)
SOURCES = {
    "none": SpeculativeConfig(speculative="none"),
    "grammar": SpeculativeConfig(draft_sources="forced,choices"),
    "history": SpeculativeConfig(draft_sources="history"),
    "shared": SpeculativeConfig(draft_sources="", shared_history_tokens=2048),
    "all": SpeculativeConfig(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


def engine_config(folder: Path, **parts: object) -> EngineConfig:
    defaults = {
        "model": ModelConfig(model_path=str(folder), num_threads=1),
        "cache": CacheConfig(max_total_tokens=2048, check_cache=True),
    }
    return EngineConfig(**{**defaults, **parts})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, LLMEngine]:
    return {
        name: LLMEngine(engine_config(folder, speculative=spec)) for name, spec in SOURCES.items()
    }


@pytest.fixture
def engine(engines: dict[str, LLMEngine]) -> Iterator[LLMEngine]:
    engines["all"].flush_cache()
    yield engines["all"]
    assert not engines["all"].has_work


def make_requests(engine: LLMEngine, count: int, temperature: float) -> list[EngineRequest]:
    """Half tool calls, half free text, each with another prompt, seed and processors."""
    extras = [
        {},
        {"top_p": 0.8, "top_k": 20},
        {"min_p": 0.05, "frequency_penalty": 0.4},
        {"repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": {70: 1.5}},
    ]
    return [
        EngineRequest(
            request_id=f"r{i}",
            prompt_token_ids=engine.tokenizer.encode(
                f'the weather in Paris, call {i}: {{"name": "get_weather"}} the weather in'
            ),
            sampling=SamplingParams(
                max_tokens=60, temperature=temperature, seed=1000 + i, **extras[i % len(extras)]
            ),
            grammar=TOOLS if i % 2 == 0 else None,
        )
        for i in range(count)
    ]


def run(engine: LLMEngine, requests: list[EngineRequest]) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {r.request_id: [] for r in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    return outputs


def token_ids(outputs: list[RequestOutput]) -> list[int]:
    return [t for o in outputs for t in o.token_ids]


def text(outputs: list[RequestOutput]) -> str:
    return "".join(o.text for o in outputs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("source", ["grammar", "history", "shared", "all"])
def test_speculation_and_batching_change_no_token(
    engines: dict[str, LLMEngine], source: str, temperature: float
) -> None:
    plain = engines["none"]
    requests = make_requests(plain, 12, temperature)
    expected = {}
    for request in requests:  # one at a time
        expected |= {k: token_ids(v) for k, v in run(plain, [request]).items()}
    got = run(engines[source], requests)  # all at once
    assert {k: token_ids(v) for k, v in got.items()} == expected
    assert {k: token_ids(v) for k, v in run(plain, requests).items()} == expected
    if source == "shared":  # what the same requests said before
        got = run(engines[source], requests)
        assert {k: token_ids(v) for k, v in got.items()} == expected
    if source != "history":
        accepted = sum(sum(by_source(v[-1].stats.drafts.accepted).values()) for v in got.values())
        assert accepted > 0, "nothing was drafted: the comparison shows nothing"


def test_every_finished_call_is_valid(engines: dict[str, LLMEngine]) -> None:
    import jsonschema

    requests = [
        replace(r, grammar=TOOLS, sampling=replace(r.sampling, max_tokens=300))
        for r in make_requests(engines["all"], 12, 1.0)
    ]
    finished = 0
    for outputs in run(engines["all"], requests).values():
        if outputs[-1].finish_reason != "stop":
            continue
        finished += 1
        body = text(outputs).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        call = json.loads(body)
        assert call["name"] == "get_weather"
        jsonschema.validate(call["arguments"], json.loads(WEATHER.parameters))
    assert finished >= 10


def test_turns_and_retries_hit_everything_that_was_computed(engine: LLMEngine) -> None:
    (request,) = make_requests(engine, 1, 0.0)
    first = run(engine, [request])["r0"]
    prompt, output = request.prompt_token_ids, token_ids(first)
    assert first[-1].stats.num_cached_tokens == 0
    retry = run(engine, [request])["r0"]
    assert retry[-1].stats.num_cached_tokens == len(prompt) - 1
    turn = replace(request, prompt_token_ids=[*prompt, *output, 5, 6, 7])
    second = run(engine, [turn])["r0"]
    assert second[-1].stats.num_cached_tokens >= len(prompt) + len(output) - 1


def test_choices_of_one_prompt_share_it_and_differ(engine: LLMEngine) -> None:
    (request,) = make_requests(engine, 1, 1.0)
    choices = [
        replace(request, request_id=f"c{i}", sampling=replace(request.sampling, choice_index=i))
        for i in range(4)
    ]
    outputs = run(engine, choices)
    cached = sorted(v[-1].stats.num_cached_tokens for v in outputs.values())
    assert cached == [0] + [len(request.prompt_token_ids) - 1] * 3
    assert len({tuple(token_ids(v)) for v in outputs.values()}) == 4


def test_retraction_and_a_small_chunk_change_no_token(folder: Path, engines: dict) -> None:  # type: ignore[type-arg]
    requests = make_requests(engines["none"], 6, 1.0)
    expected = {k: token_ids(v) for k, v in run(engines["none"], requests).items()}
    longest = max(len(r.prompt_token_ids) for r in requests) + 60
    small = LLMEngine(
        engine_config(
            folder,
            cache=CacheConfig(max_total_tokens=longest + 40, check_cache=True),
            scheduler=SchedulerConfig(chunked_prefill_size=16),
        )
    )
    got = {k: token_ids(v) for k, v in run(small, requests).items()}
    assert small.scheduler.num_retractions > 0
    assert got == expected
    stats = small.cache.stats()
    assert stats.num_held == 0


def test_stop_string_cuts_text_and_tokens_as_plain_decoding_does(
    engines: dict[str, LLMEngine],
) -> None:
    request = make_requests(engines["none"], 2, 0.0)[1]
    whole = text(run(engines["none"], [request])["r1"])
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    stopped = replace(request, sampling=replace(request.sampling, stop=(stop,)))
    results = [run(engines[name], [stopped])["r1"] for name in SOURCES]
    assert {text(r) for r in results} == {whole.split(stop)[0]}
    assert len({tuple(token_ids(r)) for r in results}) == 1
    assert all(r[-1].finish_reason == "stop" for r in results)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_hold_every_end_back(engines: dict[str, LLMEngine], temperature: float) -> None:
    """An end-of-sequence token and a stop token that are all but certain come when they may."""
    request = make_requests(engines["none"], 2, temperature)[1]
    (eos, *_) = engines["none"].tokenizer.eos_token_ids
    for end, stops in ((eos, ()), (70, (70,))):
        for min_tokens in (0, 1, 7):
            sampling = replace(
                request.sampling,
                logit_bias={end: 100.0},
                stop_token_ids=stops,
                min_tokens=min_tokens,
            )
            results = [
                run(e, [replace(request, sampling=sampling)])["r1"] for e in engines.values()
            ]
            (ids,) = {tuple(token_ids(outputs)) for outputs in results}
            assert len(ids) == min_tokens + 1 and ids.index(end) == min_tokens
            assert all(outputs[-1].finish_reason == "stop" for outputs in results)
            # Whatever was being written, a stop token cut it.
            assert all(outputs[-1].stop_cut == bool(stops) for outputs in results)


def test_min_tokens_leave_the_end_to_the_grammar(engine: LLMEngine) -> None:
    """Where it allows nothing else it ends; where it allows more, it goes on."""
    request = make_requests(engine, 1, 0.0)[0]
    (eos, *_) = engine.tokenizer.eos_token_ids
    sampling = replace(request.sampling, min_tokens=40, logit_bias={eos: 100.0})
    expected = {"[ab]{3}": 3, "[ab]{3,}": 40}
    for regex, length in expected.items():
        grammar = GrammarRecipe(kind="regex", schema=regex, canonical=False)
        outputs = run(engine, [replace(request, grammar=grammar, sampling=sampling)])["r0"]
        assert outputs[-1].finish_reason == "stop" and token_ids(outputs)[-1] == eos
        written = token_ids(outputs)[:-1]
        assert len(text(outputs)) == 3 if length == 3 else len(written) == length
        assert set(text(outputs)) <= set("ab")


def test_logprobs_are_one_a_token_and_change_nothing(engine: LLMEngine) -> None:
    (request,) = make_requests(engine, 1, 1.0)
    plain = token_ids(run(engine, [request])["r0"])
    asked = replace(request, sampling=replace(request.sampling, logprobs=3))
    outputs = run(engine, [asked])["r0"]
    logprobs = [p for o in outputs for p in o.logprobs or []]
    assert token_ids(outputs) == plain == [p.token_id for p in logprobs]
    assert all(p.logprob <= 0 for p in logprobs)
    assert any(p.logprob == 0 for p in logprobs), "forced tokens have probability one"


def test_abort_frees_everything_but_the_computed_prefix(engine: LLMEngine) -> None:
    requests = make_requests(engine, 4, 1.0)
    for request in requests:
        engine.add(request)
    engine.step()
    engine.step()
    for request in requests:
        assert engine.abort(request.request_id)
    assert not engine.abort("r0")
    engine.step()  # tells the worker
    assert not engine.worker.requests
    assert engine.cache.stats().num_held == 0
    retry = run(engine, [requests[0]])["r0"]
    assert retry[-1].stats.num_cached_tokens == len(requests[0].prompt_token_ids) - 1


def test_one_failing_request_leaves_the_others_alone(engine: LLMEngine) -> None:
    requests = make_requests(engine, 4, 0.0)
    expected = {k: token_ids(v) for k, v in run(engine, requests).items()}
    broken = replace(
        requests[0],
        request_id="broken",
        grammar=GrammarRecipe(kind="json", schema='{"type": 7}', strict=True),
    )
    outputs = run(engine, [broken, *requests])
    assert outputs["broken"][-1].finish_reason == "error"
    assert outputs["broken"][-1].error
    assert {k: token_ids(outputs[k]) for k in expected} == expected


def test_a_grammar_that_fails_while_drafting_ends_its_own_request_only(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = make_requests(engine, 4, 0.0)
    expected = {k: token_ids(v) for k, v in run(engine, requests).items()}
    for request in requests:
        engine.add(request)
    engine.step()

    def fail(node: int) -> int | None:
        raise GrammarError("the engine gave up")

    state = engine.worker.requests["r0"].grammar
    assert state is not None
    monkeypatch.setattr(state, "forced", fail)
    outputs: dict[str, list[RequestOutput]] = {r.request_id: [] for r in requests}
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    assert outputs["r0"][-1].error == "the engine gave up"
    for key in ("r1", "r2", "r3"):
        got = token_ids(outputs[key])
        assert got == expected[key][-len(got) :] and outputs[key][-1].finish_reason != "error"


def test_too_long_is_refused_with_the_numbers(engine: LLMEngine) -> None:
    (request,) = make_requests(engine, 1, 0.0)
    with pytest.raises(ContextLengthError, match="512"):
        engine.add(replace(request, prompt_token_ids=[5] * 500))
    assert not engine.has_work
