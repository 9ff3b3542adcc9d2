"""`specrt bench compare`: plain against speculative decoding on the same requests, interleaved.

Two engines in one process take turns, request group by request group, so that a slow spell of the
machine meets both. Prompts are computed beforehand: decoding is what is compared.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specrt.bench.environment import describe, environment
from specrt.bench.equality import MAX_TIED_SHARE
from specrt.bench.generator import Case, EngineGenerator, Generation, Generator, engine_config
from specrt.bench.options import CompareOptions
from specrt.bench.report import acceptance, columns, number, share, write_json
from specrt.bench.traces import load_traces
from specrt.errors import ConfigError
from specrt.request import EngineRequest, SamplingParams

_SIDES = ("plain", "speculative")
_RESAMPLES = 2000
_MAX_TOTAL_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class Pair:
    """One group of requests, run by both sides.

    Attributes:
        cases: their names.
        wall_s: seconds of plain and of speculative decoding.
        num_tokens: output tokens of both sides.
        num_differing: requests whose outputs differ.
    """

    cases: tuple[str, ...]
    wall_s: tuple[float, float]
    num_tokens: tuple[int, int]
    num_differing: int


def run(options: CompareOptions) -> int:
    """Measure, print, write the JSON.

    Returns:
        0, or 1 when more outputs differ than rounding explains.

    Raises:
        ConfigError: no traces, no model, or --json cannot be written.
    """
    traces = load_traces(options.traces)
    env = environment()
    print(describe(env))
    plain, speculative = (
        EngineGenerator(
            engine_config(
                options.model_path,
                sources,
                num_threads=options.num_threads,
                max_total_tokens=_MAX_TOTAL_TOKENS,
            )
        )
        for sources in ("", options.draft_sources)
    )
    cases = plain.cases(traces, options.requests, options.max_prompt_tokens)
    if not cases:
        raise ConfigError("--traces: no request fits --max-prompt-tokens")
    requests = [
        case.sampled(
            SamplingParams(
                max_tokens=options.max_tokens,
                temperature=options.temperature,
                seed=options.seed + i,
            )
        )
        for i, case in enumerate(cases)
    ]
    pairs, outputs = measure(
        plain, speculative, cases, requests, rounds=options.rounds, batch_size=options.concurrency
    )
    summary = summarise(pairs, outputs, seed=options.seed)
    print(render(summary))
    if options.json is not None:
        document = {"environment": env, "options": asdict(options), "summary": summary}
        write_json(options.json, document | {"pairs": [asdict(pair) for pair in pairs]})
    allowed = int(len(cases) * MAX_TIED_SHARE) * options.rounds
    return 0 if summary["num_differing"] <= allowed else 1


def measure(
    plain: Generator,
    speculative: Generator,
    cases: list[Case],
    requests: Sequence[EngineRequest],
    *,
    rounds: int,
    batch_size: int,
) -> tuple[list[Pair], list[Generation]]:
    """Run groups of `batch_size` requests on both sides, `rounds` times; who goes first alternates.

    Returns:
        The pairs, and the outputs of the speculative side.
    """
    sides = (plain, speculative)
    warm = [_with_max_tokens(request, 1) for request in requests]
    for side in sides:
        side.generate(warm, batch_size)
    pairs: list[Pair] = []
    kept: list[Generation] = []
    for number_of_round in range(rounds):
        for start in range(0, len(requests), batch_size):
            group = requests[start : start + batch_size]
            wall_s = [0.0, 0.0]
            outputs: list[list[Generation]] = [[], []]
            first = (number_of_round + start // batch_size) % 2
            for index in (first, 1 - first):
                begin = time.perf_counter()
                outputs[index] = sides[index].generate(group, batch_size)
                wall_s[index] = time.perf_counter() - begin
            failed = [o.error for output in outputs for o in output if o.error is not None]
            for error in failed:
                print(f"a request failed: {error}", file=sys.stderr)
            kept += outputs[1]
            pairs.append(
                Pair(
                    cases=tuple(case.name for case in cases[start : start + batch_size]),
                    wall_s=(wall_s[0], wall_s[1]),
                    num_tokens=(_num_tokens(outputs[0]), _num_tokens(outputs[1])),
                    num_differing=sum(
                        a.token_ids != b.token_ids for a, b in zip(*outputs, strict=True)
                    ),
                )
            )
    return pairs, kept


def _with_max_tokens(request: EngineRequest, max_tokens: int) -> EngineRequest:
    return replace(request, sampling=replace(request.sampling, max_tokens=max_tokens))


def _num_tokens(outputs: list[Generation]) -> int:
    return sum(len(output.token_ids) for output in outputs)


def summarise(pairs: list[Pair], outputs: list[Generation], *, seed: int) -> dict[str, Any]:
    """Throughput of both sides, their ratio with a 95 % bootstrap interval, and acceptance.

    Args:
        pairs: the measurements; they are what is resampled.
        outputs: of the speculative side.
        seed: of the resampling.
    """
    source = random.Random(seed)
    ratios = sorted(_ratio([source.choice(pairs) for _ in pairs]) for _ in range(_RESAMPLES))
    speculation = acceptance(
        {
            "drafted": output.stats.drafted,
            "accepted": output.stats.accepted,
            "passes": output.stats.num_passes,
            "tokens": len(output.token_ids),
        }
        for output in outputs
    )
    return {
        "tok_per_s": {
            side: sum(p.num_tokens[i] for p in pairs) / sum(p.wall_s[i] for p in pairs)
            for i, side in enumerate(_SIDES)
        },
        "ratio": _ratio(pairs),
        "ratio_95": (ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES)]),
        "num_pairs": len(pairs),
        "num_requests": sum(len(pair.cases) for pair in pairs),
        "num_differing": sum(pair.num_differing for pair in pairs),
        "speculation": speculation,
    }


def _ratio(pairs: Sequence[Pair]) -> float:
    """Tokens per second, speculative over plain."""
    plain = sum(p.num_tokens[0] for p in pairs) / sum(p.wall_s[0] for p in pairs)
    speculative = sum(p.num_tokens[1] for p in pairs) / sum(p.wall_s[1] for p in pairs)
    return speculative / plain


def render(summary: dict[str, Any]) -> str:
    """The summary as text."""
    low, high = summary["ratio_95"]
    rows = [
        ["requests", str(summary["num_requests"])],
        *([f"{side} tok/s", number(summary["tok_per_s"][side], 1)] for side in _SIDES),
        ["speculative / plain (95 %)", f"{summary['ratio']:.2f} ({low:.2f} to {high:.2f})"],
        ["outputs that differ", str(summary["num_differing"])],
        ["tokens per verify pass", number(summary["speculation"]["acceptance_length"])],
    ]
    for source, counts in summary["speculation"]["sources"].items():
        text = f"{counts['accepted']}/{counts['drafted']} ({share(counts['rate'])})"
        rows.append([f"accepted, {source}", text])
    return columns(rows)
