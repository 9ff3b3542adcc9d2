"""System prompt and messages of a Messages request, as a chat request has them.

Nothing that differs between two requests of the same conversation comes through: no cache_control,
no thinking, no billing line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from specrt.grammars.tools import check_depth
from specrt.server.messages.call_memo import CallMemo
from specrt.server.messages.fields import Fields, check_fields, check_object, refuse, wrong

ChatMessage = dict[str, object]

CALL_PREFIX = "toolu_"  # of the id that a call has in a chat completion

# The line that Claude Code writes in front of its system prompt, with a hash of the request in it.
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")

_BLOCKS: dict[str, tuple[Fields, Collection[str]]] = {
    "text": (
        {"type": str, "text": str, "cache_control": dict, "citations": list},
        ("text",),
    ),
    "tool_use": (
        {
            "type": str,
            "id": str,
            "name": str,
            "input": dict,
            "cache_control": dict,
            "caller": dict,
        },
        ("id", "name", "input"),
    ),
    "tool_result": (
        {
            "type": str,
            "tool_use_id": str,
            "content": (str, list),
            "is_error": bool,
            "cache_control": dict,
        },
        ("tool_use_id",),
    ),
    "thinking": ({"type": str, "thinking": str, "signature": str}, ("thinking",)),
    "redacted_thinking": ({"type": str, "data": str}, ("data",)),
}
# SDKs echo these of blocks that they read; null says nothing.
_ALWAYS_NULL = ("toolset_name", "parsed_output")
_ROLE_BLOCKS = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}


def chat_messages(
    system: str | Sequence[object] | None, messages: Sequence[object], calls: CallMemo
) -> list[ChatMessage]:
    """The messages of a chat request with the same prompt.

    Args:
        system: the system prompt.
        messages: the conversation.
        calls: knows how generated arguments were written.

    Raises:
        RequestError: something is malformed or not served; the message names the block.
    """
    history = _History(calls)
    if system:
        history.add_system(system, "system")
    for index, message in enumerate(messages):
        history.add(message, f"messages[{index}]")
    history.check_end(f"messages[{len(messages) - 1}]")
    return history.messages


class _History:
    """Messages so far."""

    def __init__(self, calls: CallMemo) -> None:
        self.messages: list[ChatMessage] = []
        self._calls = calls
        self._unanswered: set[str] = set()

    def add(self, value: object, path: str) -> None:
        message = check_object(value, path, "an object with role and content")
        check_fields(message, path, {"role": str, "content": (str, list)}, ("role", "content"))
        role, content = message["role"], message["content"]
        if role not in _ROLE_BLOCKS:
            raise wrong(f"{path}.role", f"one of {', '.join(_ROLE_BLOCKS)}", role)
        assert isinstance(content, str | list)
        if role == "system":
            self.add_system(content, f"{path}.content")
        elif role == "user":
            self._add_user(content, f"{path}.content")
        else:
            self._add_assistant(content, f"{path}.content")

    def add_system(self, content: str | Sequence[object], path: str) -> None:
        texts = [_BILLING.sub("", text, count=1) for text in _texts(content, path, "system")]
        texts = [text for text in texts if text]
        if texts:
            self._unanswered = set()
            self.messages.append({"role": "system", "content": _parts(texts)})

    def _add_user(self, content: str | Sequence[object], path: str) -> None:
        texts: list[str] = []
        if not content and not isinstance(content, str):
            raise wrong(path, "text or at least one block", content)
        for block, where in _read_blocks(content, path, "user"):
            if block["type"] == "text":
                texts.append(str(block["text"]))
            elif texts:
                raise refuse(where, "tool_result blocks come before all others; move it")
            else:
                self._add_result(block, where)
        if texts:
            self._unanswered = set()
            self.messages.append({"role": "user", "content": _parts(texts)})

    def _add_result(self, block: dict[str, object], path: str) -> None:
        call_id, content = str(block["tool_use_id"]), block.get("content")
        if call_id not in self._unanswered:
            raise wrong(
                f"{path}.tool_use_id",
                "the id of a tool_use block in the assistant message before it, each once",
                call_id,
            )
        self._unanswered.remove(call_id)
        assert content is None or isinstance(content, str | list)
        texts = _texts(content or "", f"{path}.content", "system")
        if block.get("is_error"):
            texts = ["Error: ", *texts]
        chat_id = call_id.removeprefix(CALL_PREFIX)
        self.messages.append({"role": "tool", "tool_call_id": chat_id, "content": _parts(texts)})

    def _add_assistant(self, content: str | Sequence[object], path: str) -> None:
        texts: list[str] = []
        calls: list[dict[str, object]] = []
        uses: list[dict[str, object]] = []
        for block, where in _read_blocks(content, path, "assistant"):
            if block["type"] == "text":
                texts.append(str(block["text"]))
            elif block["type"] == "tool_use":
                calls.append(self._call(block, where))
                uses.append(block)
        message: ChatMessage = {"role": "assistant", "content": _parts(texts)}
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        self._unanswered = {str(block["id"]) for block in uses}

    def _call(self, block: dict[str, object], path: str) -> dict[str, object]:
        check_depth(block["input"], f"{path}.input")
        if block.get("caller") not in (None, {"type": "direct"}):
            raise wrong(f"{path}.caller", "{'type': 'direct'}", block["caller"])
        if not block["name"]:
            raise wrong(f"{path}.name", "the name of a tool", block["name"])
        call_id = str(block["id"])
        arguments = self._calls.arguments(call_id, block["input"])
        function = {"name": block["name"], "arguments": arguments}
        chat_id = call_id.removeprefix(CALL_PREFIX)
        return {"id": chat_id, "type": "function", "function": function}

    def check_end(self, path: str) -> None:
        """Refuse a conversation that ends with the assistant."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            raise refuse(
                f"{path}.role",
                "the answer cannot continue a last message of the assistant (prefill is not"
                " supported); end with a user message",
            )


def _read_blocks(
    content: str | Sequence[object], path: str, role: str
) -> list[tuple[dict[str, object], str]]:
    """The checked blocks of a content, each with its path."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, path)]
    return [
        (_read_block(value, f"{path}[{index}]", role), f"{path}[{index}]")
        for index, value in enumerate(content)
    ]


def _read_block(value: object, path: str, role: str) -> dict[str, object]:
    block = check_object(value, path, "a content block (an object with a type)")
    kind = block.get("type")
    if not isinstance(kind, str):
        raise wrong(f"{path}.type", f"one of {', '.join(_ROLE_BLOCKS[role])}", kind)
    if kind not in _BLOCKS:
        raise refuse(
            f"{path}.type", f"{kind} blocks are not supported: the model reads and writes only text"
        )
    if kind not in _ROLE_BLOCKS[role]:
        raise wrong(f"{path}.type", f"one of {', '.join(_ROLE_BLOCKS[role])} here", kind)
    fields, required = _BLOCKS[kind]
    said = {k: v for k, v in block.items() if v is not None or k not in _ALWAYS_NULL}
    check_fields(said, path, fields, required)
    return said


def _texts(content: str | Sequence[object], path: str, role: str) -> list[str]:
    return [str(block["text"]) for block, _ in _read_blocks(content, path, role)]


def _parts(texts: Sequence[str]) -> object:
    """One text as it is, several as parts: the same prompt as for a chat request's parts."""
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]
