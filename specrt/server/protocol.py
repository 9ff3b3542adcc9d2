"""Requests as pydantic models, and responses as OpenAI's own types with specrt's extension.

Every field of the current API is honoured, accepted because it changes nothing here, or refused by
name (see `body.py`). JSON null is the same as an absent field. Messages, tools, tool_choice and
response_format stay raw JSON here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
)
from typing_extensions import TypedDict

from specrt.grammars.guided import GUIDED_FIELDS
from specrt.request import Counts

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 64
MAX_TOOLS = 128
MAX_STOP_TOKENS = 128
MAX_METADATA = 16

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


class PaddedStreamOptions(StreamOptions):
    """Options of a stream whose events can be padded: `include_obfuscation` evens their sizes."""

    include_obfuscation: bool | None = None  # type: ignore[assignment]


def _check_metadata(pairs: dict[str, str]) -> dict[str, str]:
    if len(pairs) > MAX_METADATA or any(len(k) > 64 or len(v) > 512 for k, v in pairs.items()):
        raise ValueError(
            f"expected at most {MAX_METADATA} pairs, keys of at most 64 and values of at most 512"
            " characters"
        )
    return pairs


Metadata = Annotated[dict[str, str], AfterValidator(_check_metadata)]


class PromptCacheOptions(StrictModel):
    """Every prefix is cached for as long as there is room, so these ask for nothing more."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


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
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool = False
    # Nothing ends the output before: no end-of-sequence token, no stop string, no stop token.
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str = Field(default="", max_length=256)
    # What the whole output must be; read by specrt.grammars.guided.
    structured_outputs: dict[str, object] | None = None
    guided_json: object = None
    guided_regex: object = None
    guided_choice: object = None
    guided_grammar: object = None
    regex: object = None
    # Accepted because they change nothing here: text never shows special tokens.
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: bool | None = None
    priority: Literal[0] | None = None
    user: str | None = None

    def guided_fields(self) -> dict[str, object]:
        """The fields that say what the whole output must be."""
        return {name: getattr(self, name) for name in GUIDED_FIELDS}


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    # Read by specrt.grammars, for the server as for the in-process LLM.
    messages: list[object]
    tools: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: object = None
    parallel_tool_calls: bool = True
    response_format: dict[str, object] | None = None
    # The older names of tools and tool_choice.
    functions: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    function_call: object = None
    stream_options: PaddedStreamOptions | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    # An extension that vLLM has too: prompt_token_ids in the response, token_ids in each choice.
    return_token_ids: bool = False
    # Variables of the chat template; so are the next two, if the template reads them.
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    verbosity: Literal["low", "medium", "high"] | None = None
    # The answer says that it is the default one.
    service_tier: Literal["auto", "default"] | None = None
    # Accepted because they change nothing here.
    metadata: Metadata | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: str | None = None
    store: Literal[False] | None = None
    add_generation_prompt: Literal[True] | None = None
    continue_final_message: Literal[False] | None = None
    echo: Literal[False] | None = None


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
    echo: bool = False
    # All that are generated are returned, so only the value of n is possible.
    best_of: int | None = None
    suffix: Literal[""] | None = None
    stream_options: PaddedStreamOptions | None = None
    # An extension that vLLM has too: prompt_token_ids and token_ids in each choice.
    return_token_ids: bool = False


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
    drafted: Counts
    accepted: Counts
    invalid_drafts: int
    tokens_of_passes: dict[str, int]
    draft_ms: float
    verify_ms: float
    accept_ms: float
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
    obfuscation: str | None = None


class TextResponse(Completion):
    """A text completion, or one event of its stream."""

    specrt: Report | None = None
    obfuscation: str | None = None
