"""What crosses the line between the server process and the engine process (msgpack).

The server sends commands, the engine sends events; both are tagged unions of plain data.
"""

from __future__ import annotations

import msgspec

from specrt.request import EngineRequest, RequestOutput


class Add(msgspec.Struct, tag=True, frozen=True):
    """Queue a request."""

    request: EngineRequest


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request in the next step; unknown ids are ignored."""

    request_id: str


class GetStats(msgspec.Struct, tag=True, frozen=True):
    """Ask for the engine's counters."""

    query_id: int


class FlushCache(msgspec.Struct, tag=True, frozen=True):
    """Forget every cached prefix, if nothing runs."""

    query_id: int


Command = Add | Abort | GetStats | FlushCache


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine is loaded; `info` holds what `LLMEngine.stats()` returns."""

    info: dict[str, object]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine cannot start; `is_config` = the user's flags or files are at fault."""

    message: str
    is_config: bool


class Started(msgspec.Struct, tag=True, frozen=True):
    """Requests that have left the queue: id -> time there (seconds)."""

    queue_s: dict[str, float]


class Outputs(msgspec.Struct, tag=True, frozen=True):
    """What a step added."""

    outputs: list[RequestOutput]


class Rejected(msgspec.Struct, tag=True, frozen=True):
    """The engine did not take a request."""

    request_id: str
    kind: str
    message: str
    param: str | None
    code: str | None


class Answer(msgspec.Struct, tag=True, frozen=True):
    """The answer to a query."""

    query_id: int
    value: dict[str, object]


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """The loop is alive."""


Event = Ready | Failed | Started | Outputs | Rejected | Answer | Heartbeat

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
