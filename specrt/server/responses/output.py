"""The response object: OpenAI's type, filled from the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai.types import CompletionUsage
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel

from specrt.server.responses.request import ResponsesRequest
from specrt.server.responses.tools import ToolSet

OutputItem = ResponseOutputMessage | ResponseFunctionToolCall


def to_json(message: BaseModel) -> str:
    """As it goes over the wire: the fields that were set, by the names of the API."""
    return message.model_dump_json(exclude_unset=True, by_alias=True)


def begin_response(
    response_id: str, created: int, model: str, body: ResponsesRequest, tools: ToolSet
) -> Response:
    """A response in progress: everything but output, usage and specrt's report.

    `store` and the report (`specrt`) are extra fields of OpenAI's own type: events would not show
    the fields of a type derived from it.
    """
    given_format = body.text.format if body.text is not None else None
    reasoning = body.reasoning.model_dump(exclude_unset=True) if body.reasoning else {}
    fields: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": float(created),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {
            "format": given_format or {"type": "text"},
            "verbosity": (body.text.verbosity if body.text else None) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": tools.served,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }
    # Not validated: tools are shown as they came.
    return Response.construct(**fields)


def response_usage(usage: CompletionUsage) -> ResponseUsage:
    """The usage of a chat completion in the names of responses."""
    details = usage.prompt_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=(details.cached_tokens if details else None) or 0, cache_write_tokens=0
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=usage.total_tokens,
    )


def with_output(response: Response, output: Sequence[OutputItem], **changes: object) -> Response:
    """A copy with this output, and with other fields changed."""
    return response.model_copy(update={"output": list(output), **changes})
