"""Padding of stream events, so that their sizes on the wire do not tell the text."""

from __future__ import annotations

import secrets
from typing import TypeVar

from specrt.server.protocol import ChatChunk, TextResponse

STEP = 64  # sizes of padded events are multiples of this (bytes)
_Event = TypeVar("_Event", ChatChunk, TextResponse)


def obfuscated(event: _Event) -> _Event:
    """The event with random characters in `obfuscation`, up to the next multiple of STEP."""
    empty = event.model_copy(update={"obfuscation": ""})
    size = len(empty.model_dump_json(exclude_unset=True).encode())
    num_missing = -size % STEP
    padding = secrets.token_hex(num_missing // 2 + 1)[:num_missing]
    return event.model_copy(update={"obfuscation": padding})
