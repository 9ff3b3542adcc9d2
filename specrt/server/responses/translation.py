"""From a request for a response to a chat request, and from the errors of that one back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from specrt.errors import RequestError
from specrt.server.protocol import ChatRequest, SamplingFields
from specrt.server.responses.request import ResponsesRequest
from specrt.server.responses.tools import ToolSet

# Fields with another name or another shape here.
_OWN_FIELDS = {"max_tokens", "n", "stream", "stream_options"}
# Names of the chat endpoint -> those of this one; the longer ones first.
_RENAMED = {
    "tool_choice.function.name": "tool_choice.name",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}


def chat_request(
    body: ResponsesRequest, messages: list[object], tools: ToolSet, hints: Collection[str]
) -> ChatRequest:
    """The chat request that generates the response.

    Args:
        body: the request.
        messages: the conversation.
        tools: of the request.
        hints: fields of the chat request to set if the request says something for them:
            reasoning_effort, verbosity.

    Raises:
        RequestError: text.format is malformed.
    """
    shared = SamplingFields.model_fields.keys() - _OWN_FIELDS
    fields = {name: getattr(body, name) for name in shared & body.model_fields_set}
    fields |= {
        "messages": messages,
        "tools": tools.chat_tools,
        "tool_choice": tools.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": body.response_format(),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.num_logprobs is not None,
        "top_logprobs": body.num_logprobs,
    }
    given = {
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "verbosity": body.text.verbosity if body.text is not None else None,
    }
    fields |= {name: given[name] for name in hints if given[name] is not None}
    return ChatRequest.model_validate(fields)


def rename_fields(error: RequestError, paths: Mapping[str, str]) -> None:
    """Make an error of the chat path speak of the fields of the response's request.

    Args:
        error: changed in place, so that it keeps its kind.
        paths: path of a chat field -> path of the field that it was made of.
    """
    names = {**{name: paths[name] for name in sorted(paths, key=len, reverse=True)}, **_RENAMED}
    pattern = re.compile(r"(?<![\w.\]])(?:" + "|".join(map(re.escape, names)) + r")(?![\w])")

    def renamed(text: str) -> str:
        return pattern.sub(lambda found: names[found[0]], text)

    error.message = renamed(error.message)
    error.args = (error.message,)
    if error.param is not None:
        error.param = renamed(error.param)
