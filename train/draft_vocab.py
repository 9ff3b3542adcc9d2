"""The tokens that a head can propose: those that are generated, then those that might be.

The lm_head is most of what drafting costs, and agents use few distinct tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from specrt.errors import ConfigError


def choose_draft_vocab(
    token_counts_generated: Mapping[int, int], extra_ids: Iterable[int], size: int = 8192
) -> tuple[Tensor, float]:
    """Choose the draft vocabulary.

    Args:
        token_counts_generated: token id -> how often the target generated it.
        extra_ids: what fills the rest, most wanted first; repeats do not count.
        size: tokens at most.

    Returns:
        int64 [<= size], ascending; and the share of generated tokens that are in it, 0 to 1.

    Raises:
        ConfigError: size is below 1, or nothing was generated.
    """
    if size < 1:
        raise ConfigError(f"--draft-vocab-size: expected at least 1, got {size}")
    total = sum(token_counts_generated.values())
    if total == 0:
        raise ConfigError("draft vocabulary: expected generated tokens to count, got none")
    ranked = by_frequency(token_counts_generated)
    chosen = list(dict.fromkeys([*ranked, *extra_ids]))[:size]
    covered = sum(token_counts_generated.get(index, 0) for index in chosen)
    return torch.tensor(sorted(chosen), dtype=torch.int64), covered / total


def fallback_ids(
    prompt_counts: Mapping[int, int], token_bytes: Sequence[bytes], end_ids: Iterable[int]
) -> list[int]:
    """Extra ids: ends of output, single bytes, digits and punctuation, then tokens of prompts.

    Args:
        prompt_counts: token id -> how often it stands in a prompt.
        token_bytes: by token id; empty for special tokens.
        end_ids: tokens that end an output.
    """
    plain = [index for index, text in enumerate(token_bytes) if _is_plain(text)]
    return [*end_ids, *plain, *by_frequency(prompt_counts)]


def by_frequency(counts: Mapping[int, int]) -> list[int]:
    """Ids with a count above 0, most frequent first, ties by id."""
    return sorted((i for i in counts if counts[i] > 0), key=lambda index: (-counts[index], index))


def _is_plain(text: bytes) -> bool:
    """One byte, or only ASCII digits, punctuation and white space."""
    ascii_only = bool(text) and all(byte < 128 for byte in text)
    return len(text) == 1 or (ascii_only and not any(chr(byte).isalpha() for byte in text))
