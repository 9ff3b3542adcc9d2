"""Where two runs of the same requests part, and whether rounding can explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from specrt.bench.generator import Case, Generation, Generator
from specrt.request import EngineRequest, SamplingParams

if TYPE_CHECKING:
    from specrt.sampling import Tie

# Scores this close may change places by rounding.
TIE_GAP = 1e-3


class Key(NamedTuple):
    """One way to run all requests."""

    sources: str
    temperature: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output leaves the reference.

    Attributes:
        case: name of the request.
        run: draft sources, temperature and batch size.
        position: output tokens before the first that differs.
        token_ids: the reference's token and the other; -1 where an output ended.
        kind: what the gap is between: the two best scores, or a token and the edge of top-k, top-p
            or min-p; "unknown" when it cannot be computed.
        gap: distance in score, log-probability or probability mass.
    """

    case: str
    run: Key
    position: int
    token_ids: tuple[int, int]
    kind: str
    gap: float | None

    @property
    def is_tie(self) -> bool:
        """May rounding explain it?"""
        return self.gap is not None and self.gap < TIE_GAP


def divergences(
    reference: Generator,
    key: Key,
    cases: list[Case],
    requests: Sequence[EngineRequest],
    expected: list[Generation],
    outputs: list[Generation],
) -> list[Divergence]:
    """Compare the outputs of one run with the expected ones.

    Args:
        reference: plain decoding; asked again for the scores at a divergence.
        key: the run.
        cases: where the requests come from.
        requests: as they were run.
        expected: the reference's outputs.
        outputs: the run's outputs.
    """
    found = []
    for case, request, want, got in zip(cases, requests, expected, outputs, strict=True):
        if want.token_ids == got.token_ids:
            continue
        pair = zip(want.token_ids, got.token_ids, strict=False)
        shorter = min(len(want.token_ids), len(got.token_ids))
        position = next((i for i, (a, b) in enumerate(pair) if a != b), shorter)
        tokens = (_at(want.token_ids, position), _at(got.token_ids, position))
        tie = closest_tie(reference, request, want.token_ids[:position], tokens)
        kind, gap = (tie.kind, tie.gap) if tie is not None else ("unknown", None)
        found.append(Divergence(case.name, key, position, tokens, kind, gap))
    return found


def _at(token_ids: list[int], position: int) -> int:
    return token_ids[position] if position < len(token_ids) else -1


def closest_tie(
    reference: Generator,
    request: EngineRequest,
    prefix: list[int],
    token_ids: tuple[int, int],
) -> Tie | None:
    """How close the decision behind `prefix` was, from the reference's own scores.

    The log-probabilities of the whole vocabulary stand for the processed row: they differ from it
    by a constant, and are asked for again, since logits never leave the engine.

    Returns:
        The closest tie at any distance; None when an output ended without an end token, or the
        reference does not come to this point again.
    """
    import torch

    from specrt.sampling import TokenHistory, near_tie

    if -1 in token_ids:
        return None
    sampling = replace(request.sampling, max_tokens=len(prefix) + 1, logprobs=reference.vocab_size)
    (again,) = reference.generate([replace(request, sampling=sampling)], 1)
    if again.token_ids[: len(prefix)] != prefix or len(again.logprobs) <= len(prefix):
        return None
    row = torch.full((reference.vocab_size,), -math.inf)
    for token_id, logprob in again.logprobs[len(prefix)].top:
        row[token_id] = logprob
    # Bias and penalties are in the row already.
    draw = SamplingParams(
        max_tokens=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        choice_index=sampling.choice_index,
    )
    position = len(request.prompt_token_ids) + len(prefix)
    history = TokenHistory([], 0, draw)
    return near_tie(row, draw, history, None, position, token_ids, tolerance=math.inf)
