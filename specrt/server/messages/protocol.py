"""Bodies of the Messages API: requests as pydantic models, responses as Anthropic's own types.

Every field of the current API is honoured, accepted because it changes nothing here, or refused by
name. JSON null is the same as an absent field. `system`, `messages` and `tools` stay raw JSON here
(see `history.py` and `tools.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from anthropic.types import Message, RawMessageDeltaEvent
from pydantic import Field

from specrt.server.protocol import (
    MAX_STOP_STRINGS,
    MAX_TOOLS,
    Report,
    StopString,
    StrictModel,
)

REFUSED = {
    "billing_policy": "there is no billing here",
    "compaction": "the server shortens no conversations; the client must",
    "container": "there are no containers here",
    "fallback_credit_token": "there are no fallback models here",
    "fallbacks": "there are no fallback models here",
    "inference_geo": "the server cannot choose where it runs",
    "output_format": "replaced by `output_config.format`",
    "betas": "betas are named in the anthropic-beta header",
    "thread": "conversations are not stored; send all messages",
    "user_profile_id": "it belongs into the anthropic-user-profile-id header",
    "workspace_id": "it belongs into the anthropic-workspace-id header",
}
REFUSED_VALUES = {
    "diagnostics.previous_message_id": "earlier prompts are not kept to compare with; send null;"
    " usage.cache_read_input_tokens tells how much of the prompt was cached",
    "mcp_servers": "the server connects to no MCP servers; the client must, and offer `tools`",
    "output_config.task_budget": "token budgets are not supported; use max_tokens",
    "service_tier": "only auto and standard_only exist here",
    "speed": "there is one speed here; send standard or leave it out",
}


class Thinking(StrictModel):
    """Whether to think; accepted in every form, see the package's docstring."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(default=None, ge=1024)
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(StrictModel):
    """Whether to call tools, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(StrictModel):
    """The JSON Schema of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, object] = Field(alias="schema")


class OutputConfig(StrictModel):
    """What the answer must be like."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    task_budget: None = None


class ThinkingEdit(StrictModel):
    """Which thinking blocks of the history to leave out; all are."""

    type: Literal["clear_thinking_20251015"]
    keep: object = None


class ContextManagement(StrictModel):
    """What to leave out of the history."""

    edits: list[ThinkingEdit] | None = None


class Metadata(StrictModel):
    """Who asks; changes nothing."""

    user_id: str | None = None


class Diagnostics(StrictModel):
    """Asks why a prefix was not cached; only what asks for nothing is taken."""

    previous_message_id: None = None


class CountTokensRequest(StrictModel):
    """Body of POST /v1/messages/count_tokens: what makes a prompt."""

    model: str
    messages: Annotated[list[object], Field(min_length=1)]
    system: str | list[object] | None = None
    tools: list[object] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    # Accepted because they change nothing here.
    cache_control: dict[str, object] | None = None
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[list[object], Field(max_length=0)] | None = None
    speed: Literal["standard"] | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountTokensRequest):
    """Body of POST /v1/messages."""

    max_tokens: int = Field(ge=0)
    stop_sequences: list[StopString] | None = Field(default=None, max_length=MAX_STOP_STRINGS)
    temperature: float = Field(default=1.0, ge=0.0, le=1.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=2**31 - 1)
    stream: bool = False
    # Accepted because they change nothing here.
    diagnostics: Diagnostics | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessagesResponse(Message):
    """A message with specrt's report."""

    specrt: Report


class MessageDelta(RawMessageDeltaEvent):
    """The event that tells why a streamed message ended, with specrt's report."""

    specrt: Report
