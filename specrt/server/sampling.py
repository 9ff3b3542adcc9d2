"""From the fields of a request to the engine's sampling parameters."""

from __future__ import annotations

import secrets

from specrt.errors import ContextLengthError, RequestError
from specrt.request import SamplingParams
from specrt.server.protocol import SamplingFields

_SEED_MASK = 2**64 - 1


def resolve_max_tokens(
    wanted: int | None,
    num_prompt_tokens: int,
    context_length: int,
    *,
    num_slots: int | None,
    param: str,
) -> int:
    """Output tokens at most: what was asked for, or all that context and cache leave.

    Args:
        wanted: from the request; None = as many as fit.
        num_prompt_tokens: length of the prompt.
        context_length: prompt and output together at most (tokens).
        num_slots: tokens that the engine's cache holds, if known; the engine itself refuses what
            does not fit there.
        param: the field that holds the prompt, for the error.

    Raises:
        ContextLengthError: prompt, or prompt and wanted output, do not fit.
    """
    room = context_length - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but the context holds {context_length}"
            " with at least one output token; shorten the prompt",
            param=param,
        )
    if wanted is not None and wanted > room:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {wanted}, together"
            f" {num_prompt_tokens + wanted}, but the context holds {context_length}; shorten the"
            f" prompt, or ask for at most {room} tokens",
            param=param,
        )
    if wanted is not None:
        return wanted
    # The last output token needs no slot.
    return room if num_slots is None else max(1, min(room, num_slots + 1 - num_prompt_tokens))


def resolve_seed(seed: int | None) -> int:
    """The request's seed as 64 bits without sign; a random one when there is none."""
    return secrets.randbits(64) if seed is None else seed & _SEED_MASK


def parse_logit_bias(bias: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    """Token ids as integers.

    Raises:
        RequestError: a key is not a token id of this vocabulary.
    """
    parsed = {}
    for key, value in (bias or {}).items():
        if not (key.isascii() and key.isdecimal() and int(key) < vocab_size):
            raise RequestError(
                f"`logit_bias`: expected token ids from 0 to {vocab_size - 1}, got {key[:40]!r}",
                param="logit_bias",
                code="invalid_value",
            )
        parsed[int(key)] = value
    return parsed


def _check_ends(fields: SamplingFields, max_tokens: int, vocab_size: int) -> None:
    """
    Raises:
        RequestError: min_tokens can never be reached, or a stop token does not exist.
    """  # noqa: D205, D415
    if fields.min_tokens > max_tokens:
        raise RequestError(
            f"`min_tokens`: expected at most the {max_tokens} tokens that the output may have, got"
            f" {fields.min_tokens}",
            param="min_tokens",
            code="invalid_value",
        )
    for index, token_id in enumerate(fields.stop_token_ids or ()):
        if not 0 <= token_id < vocab_size:
            path = f"stop_token_ids[{index}]"
            raise RequestError(
                f"`{path}`: expected a token id from 0 to {vocab_size - 1}, got {token_id}",
                param=path,
                code="invalid_value",
            )


def sampling_params(
    fields: SamplingFields,
    *,
    max_tokens: int,
    seed: int,
    choice_index: int,
    logprobs: int | None,
    vocab_size: int,
) -> SamplingParams:
    """The parameters of one choice.

    Args:
        fields: the request.
        max_tokens: resolved, see `resolve_max_tokens`.
        seed: resolved, the same for all choices.
        choice_index: which of the n choices.
        logprobs: alternatives a token; None = no logprobs.
        vocab_size: token ids are below it.

    Raises:
        RequestError: a logit_bias key or a stop token is no token id, or the output cannot be as
            long as it must.
    """
    _check_ends(fields, max_tokens, vocab_size)
    stop = fields.stop if fields.stop is not None else ()
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=max(fields.top_k, 0),
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=parse_logit_bias(fields.logit_bias, vocab_size),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop=fields.include_stop_str_in_output,
        min_tokens=fields.min_tokens,
        ignore_eos=fields.ignore_eos,
        seed=seed,
        choice_index=choice_index,
        logprobs=logprobs,
    )
