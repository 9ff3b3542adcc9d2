"""From a Messages request to the chat request that gives the same prompt and the same output."""

from __future__ import annotations

from dataclasses import dataclass

from specrt.server.messages.call_memo import CallMemo
from specrt.server.messages.fields import refuse
from specrt.server.messages.history import ChatMessage, chat_messages
from specrt.server.messages.protocol import CountTokensRequest, MessagesRequest
from specrt.server.messages.tools import chat_tool_choice, chat_tools
from specrt.server.protocol import ChatRequest


@dataclass(frozen=True, slots=True)
class PromptFields:
    """What a request makes of the prompt and of the shape of the output, as chat fields.

    Attributes:
        messages: system prompt and conversation.
        tools: the tools; None for none.
        tool_choice: as a chat request has it; None where it need not be said.
        parallel_tool_calls: may there be several calls?
        response_format: as a chat request has it; None for text.
    """

    messages: list[ChatMessage]
    tools: list[dict[str, object]] | None
    tool_choice: object
    parallel_tool_calls: bool
    response_format: dict[str, object] | None


def prompt_fields(body: CountTokensRequest, calls: CallMemo) -> PromptFields:
    """Read what makes the prompt.

    Raises:
        RequestError: a field is malformed or not served.
    """
    messages = chat_messages(body.system, body.messages, calls)
    tools = body.tools or []
    declared = chat_tools(tools)
    choice = body.tool_choice
    response_format: dict[str, object] | None = None
    if body.output_config is not None and body.output_config.format is not None:
        if tools and (choice is None or choice.type != "none"):
            raise refuse(
                "output_config.format",
                "a format cannot be combined with tools that may be called; send tool_choice"
                ' {"type": "none"} to get JSON, or leave the format out to get calls',
            )
        schema = body.output_config.format.json_schema
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        }
    return PromptFields(
        messages=messages,
        tools=declared or None,
        tool_choice=chat_tool_choice(choice, tools),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        response_format=response_format,
    )


def chat_request(body: MessagesRequest, calls: CallMemo) -> ChatRequest:
    """The chat request; a max_tokens of 0 becomes 1.

    Raises:
        RequestError: a field is malformed or not served.
    """
    prompt = prompt_fields(body, calls)
    if body.max_tokens == 0 and body.stream:
        raise refuse("stream", "max_tokens 0 fills the cache and writes nothing to stream")
    fields: dict[str, object] = {
        "model": body.model,
        "messages": prompt.messages,
        "tools": prompt.tools,
        "tool_choice": prompt.tool_choice,
        "parallel_tool_calls": prompt.parallel_tool_calls,
        "response_format": prompt.response_format,
        "max_tokens": max(body.max_tokens, 1),
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences or None,
    }
    return ChatRequest.model_validate(
        {name: value for name, value in fields.items() if value is not None}
    )
