"""The sampler once more: slow, in float64, one token at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from specrt.kernels.noise import gumbel, philox4x64
from specrt.request import SamplingParams


class Expected(NamedTuple):
    """Token, support, logprobs of all tokens, and how close the support came to being another."""

    token_id: int
    support: set[int]
    logprobs: dict[int, float]
    edge_gap: float


def noise(params: SamplingParams, position: int, token_id: int) -> float:
    block = philox4x64((1 + token_id // 8, position, params.choice_index, 0), (params.seed, 0))
    bits = block[0] | block[1] << 64 | block[2] << 128 | block[3] << 192
    return gumbel(bits >> 32 * (token_id % 8) & 0xFFFFFFFF)


def reference(
    row: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    allowed: list[int],
    position: int,
) -> Expected:
    f32 = np.float32
    logit = [f32(x) for x in row]
    for token_id, bias in params.logit_bias.items():
        logit[token_id] += f32(bias)
    if params.repetition_penalty != 1.0:
        penalty = f32(params.repetition_penalty)
        for token_id in set(prompt) | set(output):
            x = logit[token_id]
            logit[token_id] = x / penalty if x > 0 else x * penalty
    for token_id in set(output):
        logit[token_id] -= f32(params.presence_penalty) + f32(params.frequency_penalty) * f32(
            output.count(token_id)
        )
    order = sorted((t for t in allowed if logit[t] > -math.inf), key=lambda t: (-logit[t], t))
    value = {t: float(logit[t]) for t in order}
    peak = value[order[0]]
    norm = peak + math.log(sum(math.exp(v - peak) for v in value.values()))
    logprobs = {t: v - norm for t, v in value.items()}
    if params.temperature == 0:
        return Expected(order[0], {order[0]}, logprobs, math.inf)
    gaps = [math.inf]
    if params.top_k:
        order = order[: params.top_k]
    weight = {t: math.exp((value[t] - peak) / params.temperature) for t in order}
    if params.top_p < 1.0:
        total, before, kept = sum(weight[t] for t in order), 0.0, []
        for t in order:
            if t != order[0]:
                gaps.append(abs(before / total - params.top_p))
            if before / total < params.top_p or t == order[0]:
                kept.append(t)
            before += weight[t]
        order = kept
    if params.min_p > 0:
        gaps += [abs(weight[t] / params.min_p - 1.0) for t in order[1:]]
        order = [t for t in order if weight[t] >= params.min_p]
    scores = {t: value[t] / params.temperature + noise(params, position, t) for t in order}
    token_id = min(order, key=lambda t: (-scores[t], t))
    return Expected(token_id, set(order), logprobs, min(gaps))
