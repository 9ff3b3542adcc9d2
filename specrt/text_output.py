"""Token ids to text for one request: whole characters only, cut before a stop string."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from specrt.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What a push released.

    Attributes:
        text: new text.
        num_tokens: pushed tokens that count; fewer than given when a stop string ended the output.
        is_stopped: a stop string was met.
        cut: the stop string began inside or before the last counted token's text.
    """

    text: str
    num_tokens: int
    is_stopped: bool = False
    cut: bool = False


class TextOutput:
    """Detokenises an output and watches for its stop strings.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        kept_ids: Collection[int] = (),
    ) -> None:
        """Args:
        tokenizer: ids to text.
        stop: strings that end the output.
        min_tokens: a string that is complete with these first tokens does not.
        include_stop: the string that ended the output belongs to its text.
        kept_ids: special tokens that belong to the text; the others do not.
        """
        self._detokenizer: Detokenizer = tokenizer.detokenizer(
            skipped_ids=tokenizer.special_token_ids - frozenset(kept_ids)
        )
        self._stop = tuple(s for s in stop if s)
        self._num_early = min_tokens
        self._include_stop = include_stop
        self._held = ""

    def push(self, token_ids: list[int]) -> TextPiece:
        """Take new token ids (without the one that ends the output, which has no text)."""
        if not self._stop:
            return TextPiece(self._detokenizer.push(token_ids), len(token_ids))
        released = []
        for count, token_id in enumerate(token_ids, start=1):
            self._held += self._detokenizer.push([token_id])
            self._num_early -= 1
            found = None if self._num_early >= 0 else self._find_stop()
            if found is not None:
                released.append(self._held[: found[1] if self._include_stop else found[0]])
                self._held = ""
                return TextPiece("".join(released), count, is_stopped=True, cut=True)
            keep = self._num_held()
            split = len(self._held) - keep
            released.append(self._held[:split])
            self._held = self._held[split:]
        return TextPiece("".join(released), len(token_ids))

    def flush(self) -> str:
        """The text still held back when the output ends for another reason."""
        text = self._held + self._detokenizer.flush()
        self._held = ""
        return text

    def _find_stop(self) -> tuple[int, int] | None:
        """Where the earliest stop string of the held text begins and ends."""
        found = [(i, i + len(s)) for s in self._stop if (i := self._held.find(s)) >= 0]
        return min(found, default=None)

    def _num_held(self) -> int:
        """Length of the longest tail of the held text that begins a stop string."""
        return max(
            (
                size
                for s in self._stop
                for size in range(1, min(len(s), len(self._held) + 1))
                if self._held.endswith(s[:size])
            ),
            default=0,
        )
