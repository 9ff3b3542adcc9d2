"""Requests as pydantic models, and responses as OpenAI's own types with specrt's extension.

Every field of the current API is honoured, accepted because it changes nothing here, or refused by
name (see `body.py`). JSON null is the same as an absent field. Messages, tools, tool_choice and
response_format stay raw JSON here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints
from typing_extensions import TypedDict

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 64
MAX_TOOLS = 128

StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class StrictModel(BaseModel):
    """A request body: unknown fields and values of the wrong JSON type are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, protected_namespaces=(), allow_inf_nan=False
    )


class StreamOptions(StrictModel):
    """What a stream carries besides the deltas."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingFields(StrictModel):
    """What both generation endpoints take, extensions of common engines included."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, le=2**31 - 1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool = False
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str = Field(default="", max_length=256)
    user: str | None = None


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    # Read by specrt.grammars, for the server as for the in-process LLM.
    messages: list[object]
    tools: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: object = None
    parallel_tool_calls: bool = True
    response_format: dict[str, object] | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    # An extension that vLLM has too: prompt_token_ids in the response, token_ids in each choice.
    return_token_ids: bool = False
    # Accepted because they change nothing here.
    metadata: dict[str, str] | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, object] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: Literal["none"] | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Prompts = list[str | list[int]]


def _prompts(value: object) -> Prompts:
    """Every form of `prompt` as a list of prompts, each a text or token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _is_token_ids(value):
            return [value]
        if all(_is_token_ids(item) for item in value):
            return value
    raise ValueError(
        "expected a string, a list of strings, a list of token ids or a list of such lists"
    )


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[Prompts, PlainValidator(_prompts), Field(max_length=MAX_PROMPTS)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None


class UnenforcedEntry(TypedDict):
    """A keyword that the grammar did not enforce; `tool` is "" for a response schema."""

    tool: str
    pointer: str
    keyword: str


class ViolationEntry(TypedDict):
    """A keyword that finished output breaks; `index` counts the calls of a choice."""

    choice: int
    tool: str
    index: int
    pointer: str
    keyword: str
    message: str


class Report(TypedDict):
    """specrt's extension of a response: what speculation did, and what was not enforced."""

    acceptance_length: float
    passes: int
    drafted: dict[str, int]
    accepted: dict[str, int]
    cached_tokens: list[int]
    unenforced: list[UnenforcedEntry]
    violations: list[ViolationEntry]


class ChatResponse(ChatCompletion):
    """A chat completion with specrt's report."""

    specrt: Report
    prompt_token_ids: list[int] | None = None


class ChatChunk(ChatCompletionChunk):
    """One event of a chat stream; the last one carries the report, the first one prompt ids."""

    specrt: Report | None = None
    prompt_token_ids: list[int] | None = None


class TextResponse(Completion):
    """A text completion, or one event of its stream."""

    specrt: Report | None = None
