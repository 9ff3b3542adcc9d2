"""Body of POST /v1/responses.

Every field of `openai.types.responses.ResponseCreateParams` is honoured, accepted because it asks
for nothing that would be different here, or refused by name. Extensions of the chat endpoint
(`top_k`, `seed`, `stop`, ...) are taken too. Items, tools and tool_choice stay raw JSON here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types.responses import ResponseIncludable
from pydantic import Field

from specrt.errors import RequestError
from specrt.server import refused
from specrt.server.protocol import (
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    Metadata,
    PromptCacheOptions,
    SamplingFields,
    StreamOptions,
    StrictModel,
)

_LOGPROBS = "message.output_text.logprobs"

# Fields that are not served, and why.
REFUSED = {
    **refused.REFUSED,
    "access_programs": "access programs do not exist here",
    "background_options": "responses run in the foreground only",
    "conversation": "conversations are not stored; use previous_response_id, or send all items",
    "image": "this model reads only text",
    "max_tokens": "replaced by `max_output_tokens`",
    "max_completion_tokens": "replaced by `max_output_tokens`",
    "messages": "replaced by `input`",
    "prompt": "prompt templates are not stored; send `instructions` and `input`",
    "response_format": "replaced by `text.format`",
}
REFUSED_VALUES = {
    **refused.REFUSED_VALUES,
    "background": "responses run in the foreground only; send false or leave it out",
    "context_management": "conversations are not compacted here; leave it out",
    "n": "a response is one choice; leave it out",
    "prompt_cache_options.comparison_response_id": "there are no cache diagnostics; leave it out",
    "prompt_cache_options.prewarm": "a prompt is cached when it is answered; leave it out",
    "reasoning.mode": "only standard exists here",
    "service_tier": "only auto and default exist here",
    "stream_options.include_obfuscation": "streams are not padded; send false or leave it out",
}


class Reasoning(StrictModel):
    """`effort` is for the chat template, if that reads it; the rest changes nothing.

    There are no summaries: output has no reasoning items.
    """

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class TextConfig(StrictModel):
    """What the text looks like; `verbosity` is for the chat template, if that reads it."""

    format: dict[str, object] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesCacheOptions(PromptCacheOptions):
    """`comparison_response_id` and `prewarm` ask for something; not so a null and false."""

    prewarm: Literal[False] | None = None
    comparison_response_id: None = None


class ResponsesStreamOptions(StreamOptions):
    """Streams of responses always carry the usage."""

    include_usage: Literal[True] | None = None


class ResponsesRequest(SamplingFields):
    """A request for a response."""

    input: str | list[object]
    instructions: str | None = None
    tools: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: object = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    # Values about items that never occur here, and encrypted reasoning, add nothing.
    include: list[ResponseIncludable] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool = True
    previous_response_id: str | None = None
    metadata: Metadata | None = None
    stream_options: ResponsesStreamOptions | None = None
    # Only values that ask for nothing.
    background: Literal[False] | None = None
    context_management: Annotated[list[object], Field(max_length=0)] | None = None
    n: Literal[1] = 1
    # Accepted because they change nothing here; max_tool_calls counts calls of built-in tools only.
    client_metadata: dict[str, object] | None = None
    max_tool_calls: int | None = Field(default=None, ge=1)
    prompt_cache_key: str | None = None
    prompt_cache_options: ResponsesCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token; None = no logprobs."""
        if _LOGPROBS in (self.include or ()) or self.top_logprobs:
            return self.top_logprobs or 0
        return None

    def response_format(self) -> dict[str, object] | None:
        """text.format in the shape of chat completions.

        Raises:
            RequestError: it is malformed.
        """
        given = self.text.format if self.text is not None else None
        if given is None:
            return None
        kind = given.get("type")
        names = {"text": (), "json_object": (), "json_schema": _SCHEMA_FIELDS}
        if not isinstance(kind, str) or kind not in names:
            raise _format_error("type", "'text', 'json_object' or 'json_schema'", kind)
        for name in given:
            if name != "type" and name not in names[kind]:
                raise RequestError(
                    f"`text.format.{name}`: unknown field; remove it",
                    param=f"text.format.{name}",
                    code="unknown_parameter",
                )
        if kind != "json_schema":
            return {"type": kind}
        if not isinstance(given.get("name"), str) or not given["name"]:
            raise _format_error("name", "a name", given.get("name"))
        if not isinstance(given.get("description"), str | None):
            raise _format_error("description", "text", given["description"])
        schema = {name: given[name] for name in _SCHEMA_FIELDS if name in given}
        return {"type": kind, "json_schema": schema}


_SCHEMA_FIELDS = ("name", "schema", "strict", "description")


def _format_error(name: str, expected: str, got: object) -> RequestError:
    shown = "null" if got is None else repr(got)[:80]
    path = f"text.format.{name}"
    return RequestError(
        f"`{path}`: expected {expected}, got {shown}", param=path, code="invalid_value"
    )
