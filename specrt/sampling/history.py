"""TokenHistory: which tokens a path has, as the penalties count them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specrt.request import SamplingParams


class TokenHistory:
    """Token counts of one request along one path of its tree.

    A walk down the tree pushes tokens; a walk that was only tried is rewound to its mark. Without
    penalties nothing is stored and every call returns at once.
    """

    def __init__(
        self, token_ids: Sequence[int], num_prompt_tokens: int, params: SamplingParams
    ) -> None:
        """Count the tokens so far.

        Args:
            token_ids: prompt, then output.
            num_prompt_tokens: how many of them are the prompt.
            params: which penalties are on.
        """
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self.is_active = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self._prompt_ids: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._in_prompt: set[int] = set()
        self._counts: dict[int, int] = {}  # output tokens
        self._pushed: list[int] = []
        if not self.is_active:
            return
        if params.repetition_penalty != 1.0:
            self._prompt_ids = np.unique(np.asarray(token_ids[:num_prompt_tokens], np.int64))
            self._in_prompt = set(self._prompt_ids.tolist())
        for token_id in token_ids[num_prompt_tokens:]:
            self.push(token_id)

    def push(self, token_id: int) -> None:
        """The path goes on with an output token."""
        if self.is_active:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1
            self._pushed.append(token_id)

    def mark(self) -> int:
        """The current end of the path, for `rewind`."""
        return len(self._pushed)

    def rewind(self, mark: int) -> None:
        """Forget the tokens pushed since `mark`."""
        while len(self._pushed) > mark:
            token_id = self._pushed.pop()
            if self._counts[token_id] == 1:
                del self._counts[token_id]
            else:
                self._counts[token_id] -= 1

    def penalize_inplace(self, logits: npt.NDArray[np.float32]) -> None:
        """Apply the penalties to a row of logits.

        Args:
            logits: float32 [V], modified. Tokens of prompt and path: positive logits divided and
                others multiplied by the repetition penalty; then tokens of the output: minus
                presence penalty, minus count times frequency penalty.
        """
        if not self.is_active:
            return
        if self._repetition != 1.0:
            new = [token_id for token_id in self._counts if token_id not in self._in_prompt]
            seen = np.concatenate((self._prompt_ids, np.array(new, np.int64)))
            values = logits[seen]
            logits[seen] = np.where(
                values > 0, values / self._repetition, values * self._repetition
            )
        if self._counts and (self._presence or self._frequency):
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[ids] -= self._presence + self._frequency * counts
