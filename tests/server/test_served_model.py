"""The served model as it is loaded from a folder, behind the real routes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import tiny_model_folder
from server.fake_engine import says, serving

from specrt.config import EngineConfig, ModelConfig
from specrt.errors import ConfigError
from specrt.server.served_model import ServedModel, load_served_model

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> ServedModel:
    return load_served_model(EngineConfig(model=ModelConfig(model_path=str(folder))))


def test_names_and_sizes(folder: Path, model: ServedModel) -> None:
    assert (model.name, model.context_length, model.vocab_size) == ("tiny", 512, 320)
    config = ModelConfig(
        model_path=str(folder), served_model_name="mine, other", context_length=100
    )
    other = load_served_model(EngineConfig(model=config))
    assert (other.names, other.context_length) == (("mine", "other"), 100)
    with pytest.raises(ConfigError, match="--served-model-name: expected a name"):
        ModelConfig(served_model_name=" ,")


def test_missing_model_is_named(tmp_path: Path) -> None:
    config = ModelConfig(model_path=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="nothing"):
        load_served_model(EngineConfig(model=config))


async def test_chat_renders_with_the_models_tokenizer(model: ServedModel) -> None:
    engine = says('{"a": 1}')
    tool = {"name": "lookup", "parameters": {"type": "object", "properties": {"a": {}}}}
    async with serving(engine, model) as client:
        response = await client.chat(
            model="tiny", tools=[{"type": "function", "function": tool}], max_tokens=5
        )
        raw = await client.complete(model="tiny", prompt="a  <|im_end|>")
    assert response.status_code == raw.status_code == 200, response.text
    prompt = model.prompts._tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert '"name": "lookup"' in prompt and prompt.endswith("<|im_start|>assistant\n")
    assert engine.requests[1].prompt_token_ids == model.tokenizer.encode("a  <|im_end|>")
    assert model.tokenizer.token_bytes(engine.requests[1].prompt_token_ids[-1]) == b"<|im_end|>"


async def test_strict_schema_is_enforced_or_refused(model: ServedModel) -> None:
    """Strict: a 400 that names keyword and tool. Not strict: the response names what is loose."""
    engine = says('<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>')
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
        "required": ["a"],
    }
    function = {"name": "f", "parameters": schema}
    async with serving(engine, model) as client:
        strict = await client.chat(
            model="tiny", tools=[{"type": "function", "function": {**function, "strict": True}}]
        )
        assert engine.requests == []
        loose = await client.chat(model="tiny", tools=[{"type": "function", "function": function}])
        bad = await client.chat(
            model="tiny",
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "r", "schema": {"type": "no such type"}},
            },
        )
    error = strict.json()["error"]
    assert (strict.status_code, error["code"], error["param"]) == (400, "invalid_schema", "tools")
    assert "uniqueItems" in error["message"] and "'f'" in error["message"]
    report = loose.json()["specrt"]
    assert [u["keyword"] for u in report["unenforced"]] == ["uniqueItems"]
    assert [v["keyword"] for v in report["violations"]] == ["uniqueItems"]
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "response_format"
