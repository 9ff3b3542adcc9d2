"""Drafts of string values: what the prompt's text says behind the beginning of the value.

A prompt writes ` Zurich` where a call writes `"Zurich`: the same text, other tokens, so that a
lookup of tokens (`history_drafter.py`) finds nothing. Here the bytes of the value so far, or its
last words, are looked up at the beginnings of words in the prompt, and what follows there is cut
into tokens as the value's own continuation would be.

    prompt: ... a flight from Zurich Airport to Geneva ...
    output: {"origin": "Zu            ->  rich -> Airport -> to ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import JsonPlace
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode, Tokens
from specrt.speculative.calibration import Calibration

MAX_CANDIDATES = 2
# Bytes: how much must be known of a value, how much of it is looked up, and how much copied.
MIN_CONTEXT = 2
MAX_CONTEXT = 48
MAX_COPY = 48
# The last bytes of a prompt that are searched: bounds the work of a long one.
MAX_TEXT = 1 << 16
# Beginnings of words tried in a value, and places of each looked at in the prompt.
_MAX_STARTS = 4
_MAX_PLACES = 8
# Ends a copy: what JSON would escape.
_ENDS = re.compile(rb'["\\\x00-\x1f]')
_WORD_START = re.compile(rb"(?<![0-9A-Za-z\x80-\xff])(?=[0-9A-Za-z\x80-\xff])")


class _Copy(NamedTuple):
    """What may follow at a node.

    Attributes:
        token_ids: the copied text's tokens.
        done: how many of them lead to the node.
        length: bytes that the context and the prompt have in common so far.
    """

    token_ids: tuple[int, ...]
    done: int
    length: int


class _Values:
    """One request's prompt and output as text, and the copies at the nodes of its tree."""

    def __init__(self, prompt: bytes) -> None:
        self.prompt = prompt
        self.output = b""
        self.num_read = 0
        self.tree: DraftTree | None = None
        self.copies: dict[int, list[_Copy]] = {}


class ValueDrafter:
    """Proposes that a string value goes on as the prompt does."""

    source = "values"

    def __init__(self, calibration: Calibration, tokens: Tokens) -> None:
        """Args:
        calibration: turns lengths of agreement into acceptance rates.
        tokens: the target's.
        """
        self._calibration = calibration
        self._tokens = tokens
        self._values: dict[str, _Values] = {}

    def open(self, request: DraftRequest) -> None:
        """Keep the end of the prompt as text."""
        last = request.token_ids[: request.num_prompt_tokens][-MAX_TEXT:]
        values = _Values(b"".join(map(self._tokens.token_bytes, last))[-MAX_TEXT:])
        values.num_read = request.num_prompt_tokens
        self._values[request.request_id] = values
        self.extend(request)

    def close(self, request_id: str) -> None:
        """Drop the text."""
        self._values.pop(request_id, None)

    def extend(self, request: DraftRequest) -> None:
        """Keep the end of the output as text."""
        values = self._values[request.request_id]
        new = request.token_ids[values.num_read :]
        values.num_read = len(request.token_ids)
        text = values.output + b"".join(map(self._tokens.token_bytes, new))
        values.output = text[-2 * MAX_CONTEXT :]

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Propose the prompt's continuations of the string value that each node stands in."""
        return [self._propose(*item) if item.place.is_in_string else [] for item in frontier]

    def _propose(
        self, request: DraftRequest, tree: DraftTree, node: int, place: JsonPlace
    ) -> list[Candidate]:
        values = self._values[request.request_id]
        if values.tree is not tree:
            values.tree, values.copies = tree, {}
        copies = self._copies(values, tree, node)
        values.copies[node] = copies
        candidates: list[Candidate] = []
        for token_id, length, share in _ranked(copies):
            after = request.advance(tree.grammar_node[node], token_id)
            if after is None:
                continue
            bucket, prior = _describe(len(candidates), length, share)
            rate = self._calibration.rate(self.source, bucket, prior, place.region)
            candidates.append(Candidate(token_id, min(rate, 0.999), bucket, after))
            if len(candidates) == MAX_CANDIDATES:
                break
        candidates.sort(key=lambda candidate: -candidate.probability)
        return candidates

    def _copies(self, values: _Values, tree: DraftTree, node: int) -> list[_Copy]:
        """The copies at a node: its parent's that go on with it, or those that are found."""
        token_id = tree.token_ids[node]
        num_bytes = len(self._tokens.token_bytes(token_id))
        followed = [
            _Copy(copy.token_ids, copy.done + 1, copy.length + num_bytes)
            for copy in values.copies.get(tree.parent[node], ())
            if copy.done < len(copy.token_ids) and copy.token_ids[copy.done] == token_id
        ]
        if any(copy.done < len(copy.token_ids) for copy in followed):
            return followed
        path = b"".join(map(self._tokens.token_bytes, tree.path(node)))
        return self._find((values.output + path)[-2 * MAX_CONTEXT :], values.prompt)

    def _find(self, output: bytes, prompt: bytes) -> list[_Copy]:
        """Copies of what follows the longest context that begins with a word; none if none does."""
        value = output[_opening_quote(output) + 1 :][-MAX_CONTEXT:]
        for context in _contexts(value):
            found = []
            for end in _places(prompt, context):
                token_ids = self._cut(context, _copied(prompt, end))
                if token_ids:
                    found.append(_Copy(token_ids, 0, len(context)))
            if found:
                return found
        return []

    def _cut(self, context: bytes, copied: bytes) -> tuple[int, ...]:
        """The tokens of a copy, as they are behind the context where they can be told apart."""
        if not copied:
            return ()
        try:
            token_ids = self._tokens.encode_plain((context + copied).decode())
            size = 0
            for index, token_id in enumerate(token_ids):
                if size == len(context):
                    return tuple(token_ids[index:])
                size += len(self._tokens.token_bytes(token_id))
            return tuple(self._tokens.encode_plain(copied.decode()))
        except UnicodeDecodeError:  # the value so far ends inside a character
            return ()


def _opening_quote(text: bytes) -> int:
    """Where the string that a text ends in begins: the last quote that is not escaped, or -1."""
    at = text.rfind(b'"')
    while at > 0:
        before = text[:at]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return at
        at = text.rfind(b'"', 0, at)
    return at


def _contexts(value: bytes) -> Iterator[bytes]:
    """The value from the beginning of a word on, the longest first."""
    starts = [match.start() for match in _WORD_START.finditer(value)][-_MAX_STARTS:]
    for start in starts:
        if len(value) - start >= MIN_CONTEXT:
            yield value[start:]


def _places(prompt: bytes, context: bytes) -> Iterator[int]:
    """Where the context ends in the prompt, from the last place on; it begins a word there."""
    at = len(prompt)
    for _ in range(_MAX_PLACES):
        at = prompt.rfind(context, 0, at + len(context) - 1)
        if at < 0:
            return
        if _WORD_START.match(prompt, at):
            yield at + len(context)


def _copied(prompt: bytes, start: int) -> bytes:
    """What follows in the prompt: whole words of one line, up to a quote."""
    copied = prompt[start : start + MAX_COPY]
    end = _ENDS.search(copied)
    if end is not None:
        return copied[: end.start()]
    if len(copied) < MAX_COPY:
        return copied
    words = [match.start() for match in _WORD_START.finditer(copied)]
    return copied[: words[-1]].rstrip(b" ") if words and words[-1] else b""


def _ranked(copies: Sequence[_Copy]) -> list[tuple[int, int, float]]:
    """(next token, longest agreement, share of the copies) of each; longest, then latest, first."""
    lengths: dict[int, list[int]] = {}
    for copy in copies:
        if copy.done < len(copy.token_ids):
            lengths.setdefault(copy.token_ids[copy.done], []).append(copy.length)
    total = sum(map(len, lengths.values()))
    ranked = [(token_id, max(some), len(some) / total) for token_id, some in lengths.items()]
    return sorted(ranked, key=lambda item: -item[1])


def _describe(place: int, length: int, share: float) -> tuple[int, float]:
    """The statistics key of a candidate and its acceptance before any observation.

    Args:
        place: 0 for the node's first candidate.
        length: bytes of agreement.
        share: of the copies, those that go on so.
    """
    place = min(place, 1)
    size = min(length, 32).bit_length()
    bucket = (place * 8 + size) * 4 + int(3.99 * share)
    prior = length / (length + 2) * share * (0.5 if place else 1.0)
    return bucket, prior
