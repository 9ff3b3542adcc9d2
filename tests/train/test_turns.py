"""Turns on disk: the same bytes however often their making was interrupted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import EOS_TOKEN_ID, tiny_model_folder

from specrt.errors import ConfigError
from specrt.grammars.formats import load_format
from specrt.grammars.tool_parser import parse_message
from specrt.tokenizer import Tokenizer
from specrt.train import turns as turns_module
from specrt.train.traces import TrainingTrace
from specrt.train.training_options import TurnOptions
from specrt.train.turn_file import TURNS_NAME, TurnFile, load_turns
from specrt.train.turns import place_of, plan_turns, regenerate


def _tools(name: str) -> list[dict[str, Any]]:
    parameters = {
        "type": "object",
        "properties": {"to": {"enum": ["north", "south"]}, "fast": {"type": "boolean"}},
        "required": ["to", "fast"],
        "additionalProperties": False,
    }
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


def _trace(number: int, source: str, tool: str) -> TrainingTrace:
    call = {"name": tool, "arguments": '{"to": "north", "fast": true}'}
    messages = [
        {"role": "user", "content": f"move {number}"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "It is done."},
    ]
    return TrainingTrace(f"t{number}", source, _tools(tool), messages)


TRACES = [_trace(n, f"{'ab'[n % 2]}/x", f"move_{n % 5}") for n in range(8)]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TurnOptions:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    return TurnOptions(model_path=str(folder), num_threads=1, max_tokens=60, holdout=0.2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_BLOCK_SIZE", 4)


@pytest.fixture(scope="module")
def unbroken(options: TurnOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns_module, "_BLOCK_SIZE", 4)
        counts = regenerate(TRACES, options, out)
    assert counts.turns == 16 and counts.failed == counts.too_long == 0
    return out


def _tokenizer(options: TurnOptions) -> Tokenizer:
    assert options.model_path is not None
    return Tokenizer(Path(options.model_path), 320, (EOS_TOKEN_ID,))


def test_a_turn_is_what_the_server_would_say(unbroken: Path, options: TurnOptions) -> None:
    tokenizer = _tokenizer(options)
    turns = load_turns(unbroken)
    assert [turn.id for turn in turns] == [p.id for p in plan_turns(TRACES, options)]
    assert 0 < sum(turn.is_held for turn in turns) < len(turns)
    for turn in turns:
        prompt, text = tokenizer.decode(turn.prompt_ids), tokenizer.decode(turn.output_ids)
        assert prompt.endswith("<|im_start|>assistant\n") and "move_" in prompt
        assert len(turn.forced) == len(turn.output_ids) <= 60
        assert (turn.output_ids[-1] == EOS_TOKEN_ID) == (turn.finish_reason == "stop")
        if turn.id.endswith("[1]"):  # had to call: all up to the first choice is forced
            assert text.startswith('<tool_call>\n{"name": "move_')
            assert all(turn.forced[:5]) and not all(turn.forced)


def test_recorded_turns_are_the_next_prompts_tokens(options: TurnOptions, tmp_path: Path) -> None:
    recorded = dataclasses.replace(options, continuations="recorded", max_tokens=200)
    regenerate(TRACES, recorded, tmp_path)
    tokenizer = _tokenizer(options)
    by_id = {turn.id: turn for turn in load_turns(tmp_path)}
    first, second = by_id["t0[1]:recorded"], by_id["t0[3]:recorded"]
    whole = first.prompt_ids + first.output_ids
    assert second.prompt_ids[: len(whole)] == whole
    parsed = parse_message(load_format("hermes"), tokenizer.decode(first.output_ids[:-1]))
    assert parsed.calls[0].name == "move_0"
    assert json.loads(parsed.calls[0].arguments) == {"to": "north", "fast": True}
    assert first.finish_reason == "stop" and any(first.forced) and not all(first.forced)
    assert tokenizer.decode(second.output_ids[:-1]) == "It is done."


def test_both_kinds_of_turns_follow_one_prompt(options: TurnOptions, tmp_path: Path) -> None:
    both = dataclasses.replace(options, continuations="both")
    counts = regenerate(TRACES, both, tmp_path)
    turns = {turn.id: turn for turn in load_turns(tmp_path)}
    assert counts.turns == len(turns) == 32
    tokenizer = _tokenizer(options)
    for planned in plan_turns(TRACES, both):
        own, recorded = turns[planned.id], turns[planned.recorded_id]
        assert own.prompt_ids == recorded.prompt_ids and own.is_held == recorded.is_held
        assert (
            place_of(own.id) == place_of(recorded.id) == (planned.trace.trace_id, planned.position)
        )
    assert "north" in tokenizer.decode(turns["t0[1]:recorded"].output_ids)


def test_recorded_calls_are_written_in_the_order_of_the_schema(
    options: TurnOptions, tmp_path: Path
) -> None:
    turned = _trace(0, "a/x", "move_0")
    turned.messages[1]["tool_calls"][0]["function"]["arguments"] = '{"fast": true, "to": "north"}'
    unknown = _trace(1, "a/x", "move_0")
    unknown.messages[1]["tool_calls"][0]["function"]["name"] = "fly"
    recorded = dataclasses.replace(options, continuations="recorded", max_tokens=200)
    counts = regenerate([turned, unknown], recorded, tmp_path)
    texts = [_tokenizer(options).decode(turn.output_ids) for turn in load_turns(tmp_path)]
    assert any('{"to": "north", "fast": true}' in text for text in texts)
    assert not any("fly" in text for text in texts) and counts.failed == 1


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.3, 0.55, 0.8, 0.999])
def test_a_killed_run_ends_in_the_same_bytes(
    kept: float, unbroken: Path, options: TurnOptions, tmp_path: Path
) -> None:
    expected = (unbroken / TURNS_NAME).read_bytes()
    (tmp_path / TURNS_NAME).write_bytes(expected[: int(kept * len(expected))])
    regenerate(TRACES, options, tmp_path)
    assert (tmp_path / TURNS_NAME).read_bytes() == expected


def test_a_limit_ends_a_file_that_a_higher_limit_continues(
    unbroken: Path, options: TurnOptions, tmp_path: Path
) -> None:
    limited = dataclasses.replace(options, max_supervised_tokens=30)
    counts = regenerate(TRACES, limited, tmp_path)
    whole = (unbroken / TURNS_NAME).read_bytes()
    part = (tmp_path / TURNS_NAME).read_bytes()
    assert counts.turns == 4 and counts.tokens >= 30 and whole.startswith(part) and part != whole
    assert regenerate(TRACES, limited, tmp_path) == counts
    assert load_turns(unbroken, max_tokens=30) == load_turns(tmp_path)
    regenerate(TRACES, options, tmp_path)
    assert (tmp_path / TURNS_NAME).read_bytes() == whole


def test_long_prompts_and_impossible_requests_are_counted(
    options: TurnOptions, tmp_path: Path
) -> None:
    bad = dataclasses.replace(TRACES[0], trace_id="bad", tools=_tools("move_0"))
    bad.tools[0]["function"].update(strict=True, parameters={"type": "object", "$ref": "#/gone"})
    long = dataclasses.replace(
        TRACES[1], messages=[{"role": "user", "content": "x " * 2000}, TRACES[1].messages[3]]
    )
    counts = regenerate([bad, long, TRACES[2]], options, tmp_path)
    assert (counts.turns, counts.failed, counts.too_long) == (2, 2, 1)


def test_a_file_made_with_something_else_is_refused(
    unbroken: Path, options: TurnOptions, tmp_path: Path
) -> None:
    (tmp_path / TURNS_NAME).write_bytes((unbroken / TURNS_NAME).read_bytes())
    hotter = dataclasses.replace(options, temperature=0.5)
    with pytest.raises(ConfigError, match=r"--temperature: 0.0 there, 0.5 now\); use another --o"):
        regenerate(TRACES, hotter, tmp_path)
    with pytest.raises(ConfigError, match=r"\(--traces: '"):
        regenerate(TRACES[:-1], options, tmp_path)
    (tmp_path / TURNS_NAME).write_text("mine\n")
    with pytest.raises(ConfigError, match="no file of turns"):
        regenerate(TRACES, options, tmp_path)
    assert (tmp_path / TURNS_NAME).read_text() == "mine\n"


def test_a_file_broken_in_the_middle_is_refused(tmp_path: Path) -> None:
    TurnFile(tmp_path, {"a": 1}).close()
    with (tmp_path / TURNS_NAME).open("a") as file:
        file.write('{"id": "t"}\n{"block_end": {}}\n')
    with pytest.raises(ConfigError, match="turns.jsonl, line 2: expected a turn"):
        TurnFile(tmp_path, {"a": 1})


def test_any_beginning_of_the_plan_is_a_mixture() -> None:
    traces = [_trace(n, "big/x", "one") for n in range(200)]
    traces += [_trace(1000 + n, "small/x", f"tool_{n}") for n in range(40)]
    plan = plan_turns(traces, TurnOptions())
    assert len(plan) == len({turn.id for turn in plan}) == 480
    for end in range(32, 160, 32):
        names = [turn.trace.source for turn in plan[:end]]
        assert names.count("big/x") == names.count("small/x") == end // 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("temperature", -1.0), ("holdout", 1.0), ("continuations", "other")],
)
def test_options_out_of_range(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}: expected"):
        TurnOptions(**{name: value})  # type: ignore[arg-type]
