"""Items as the messages of a chat completion, so that both APIs render the same prompt.

    message (user, system, developer)    a message
    message (assistant), function_call   one assistant message for all items of a turn
    function_call_output                 a tool message behind the turn that asked for it
    reasoning                            nothing: the model does not reason

A turn is what the model writes at once: text, then calls, then perhaps text again. A message behind
a message is a turn of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from openai.types.responses import (
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseInputMessageItem,
    ResponseInputText,
    ResponseOutputMessage,
    ResponseOutputText,
)

from specrt.errors import RequestError
from specrt.server.responses.items import Item
from specrt.server.responses.tools import flat_name


@dataclass(slots=True)
class _Call:
    """One call of a turn, and where it came from."""

    item: ResponseFunctionToolCallItem
    path: str


@dataclass(slots=True)
class _Group:
    """One message, or a turn of the assistant with the outputs of its calls.

    Attributes:
        role: of the message.
        path: of its (first) item.
        text: of the message; None = a turn without text.
        calls: of a turn.
        outputs: (call_id, text, path) of the tool messages behind it.
    """

    role: str
    path: str
    text: str | None = None
    calls: list[_Call] = field(default_factory=list)
    outputs: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def is_pinned(self) -> bool:
        """Truncation keeps it."""
        return self.role in ("system", "developer")


class Conversation:
    """A conversation that grows at its end."""

    def __init__(self, instructions: str | None) -> None:
        """Args: `instructions` become the first message."""
        self._groups: list[_Group] = []
        self._by_call: dict[str, _Group] = {}
        if instructions is not None:
            self._groups.append(_Group("system", "instructions", instructions))

    def add(self, items: Iterable[Item], path: str | None = None) -> None:
        """Append items.

        Args:
            items: as read.
            path: of the field that holds all of them; None = they are those of `input`.

        Raises:
            RequestError: an output answers no call.
        """
        for index, item in enumerate(items):
            self._add(item, path or f"input[{index}]")

    def _add(self, item: Item, path: str) -> None:
        match item:
            case ResponseInputMessageItem():
                self._groups.append(_Group(item.role, path, _text(item.content)))
            case ResponseOutputMessage():
                group = self._open_turn()
                if group is None or not group.calls:
                    group = self._begin(path)
                group.text = (group.text or "") + _text(item.content)
            case ResponseFunctionToolCallItem():
                group = self._open_turn() or self._begin(path)
                group.calls.append(_Call(item, path))
                self._by_call[item.call_id] = group
            case ResponseFunctionToolCallOutputItem():
                self._add_output(item, path)

    def _add_output(self, item: ResponseFunctionToolCallOutputItem, path: str) -> None:
        group = self._by_call.get(item.call_id or "")
        if group is None:
            raise RequestError(
                f"`{path}.call_id`: expected the call_id of a function_call before it, got"
                f" {item.call_id!r}; send the call too, or its response as previous_response_id",
                param=f"{path}.call_id",
                code="invalid_value",
            )
        text = item.output if isinstance(item.output, str) else _text(item.output)
        group.outputs.append((item.call_id or "", text, path))

    def _open_turn(self) -> _Group | None:
        """The turn that is last and still unanswered."""
        group = self._groups[-1] if self._groups else None
        return group if group and group.role == "assistant" and not group.outputs else None

    def _begin(self, path: str) -> _Group:
        self._groups.append(_Group("assistant", path))
        return self._groups[-1]

    @property
    def num_droppable(self) -> int:
        """Messages and turns that may be left out at the beginning."""
        return max(0, sum(not group.is_pinned for group in self._groups) - 1)

    def messages(self, num_dropped: int = 0) -> tuple[list[object], dict[str, str]]:
        """The messages of a chat completion.

        Args:
            num_dropped: messages and turns to leave out, the oldest first; instructions, system and
                developer messages stay.

        Returns:
            The messages, and path of each -> path of the item that it was made of.
        """
        messages: list[object] = []
        paths: dict[str, str] = {}
        for group in self._groups:
            if not group.is_pinned and num_dropped:
                num_dropped -= 1
                continue
            own = f"messages[{len(messages)}]"
            message: dict[str, object] = {"role": group.role, "content": group.text}
            if group.calls:
                message["tool_calls"] = [_chat_call(call.item) for call in group.calls]
            for index, call in enumerate(group.calls):
                paths[f"{own}.tool_calls[{index}].function"] = call.path
            paths[own] = group.path
            messages.append(message)
            for call_id, text, path in group.outputs:
                paths[f"messages[{len(messages)}]"] = path
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        return messages, paths


def _chat_call(item: ResponseFunctionToolCallItem) -> dict[str, object]:
    name = flat_name(item.namespace, item.name)
    return {
        "id": item.call_id,
        "type": "function",
        "function": {"name": name, "arguments": item.arguments},
    }


def _text(parts: Iterable[object]) -> str:
    return "".join(
        part.text for part in parts if isinstance(part, ResponseInputText | ResponseOutputText)
    )
