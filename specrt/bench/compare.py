"""`specrt bench compare`: plain against speculative decoding on the same requests, interleaved.

One engine per side, in one process, take turns, request group by request group, so that a slow
spell of the machine meets all. Prompts are computed beforehand: decoding is what is compared.
Every round is one more pair of measurements; their median is given beside the ratio of the sums.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specrt.bench.environment import describe, environment
from specrt.bench.equality import MAX_TIED_SHARE
from specrt.bench.generator import Case, EngineGenerator, Generation, Generator, engine_config
from specrt.bench.options import SIDES, CompareOptions
from specrt.bench.report import acceptance, columns, number, share, write_json
from specrt.bench.traces import Trace, load_traces
from specrt.errors import ConfigError
from specrt.request import EngineRequest, SamplingParams

_RESAMPLES = 2000
_MAX_TOTAL_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class Lap:
    """One group of requests, run by all sides.

    Attributes:
        cases: their names.
        wall_s: seconds by side.
        num_tokens: output tokens by side.
        num_differing: requests whose outputs differ from the first side's.
    """

    cases: tuple[str, ...]
    wall_s: dict[str, float]
    num_tokens: dict[str, int]
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
    sides = {
        side: EngineGenerator(
            engine_config(
                options.model_path,
                SIDES[side],
                num_threads=options.num_threads,
                max_total_tokens=_MAX_TOTAL_TOKENS,
                draft_model_path=options.draft_model_path if side == "eagle" else None,
            )
        )
        for side in options.side_names
    }
    first = sides[options.side_names[0]]
    if options.free_chat:
        traces = [_free_chat(trace) for trace in traces]
    count = max(options.requests, *options.batch_sizes)
    cases = first.cases(traces, count, options.max_prompt_tokens)
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
    runs = []
    is_equal = True
    for batch_size in options.batch_sizes:
        some = slice(max(options.requests, batch_size))
        laps, outputs = measure(
            sides, cases[some], requests[some], rounds=options.rounds, batch_size=batch_size
        )
        summary = summarise(laps, outputs, cases[some], rounds=options.rounds, seed=options.seed)
        print(f"\n{batch_size} at once\n{render(summary)}", flush=True)
        runs.append(
            {"batch_size": batch_size, "summary": summary, "laps": [asdict(lap) for lap in laps]}
        )
        allowed = int(len(cases[some]) * MAX_TIED_SHARE) * options.rounds * (len(sides) - 1)
        is_equal = is_equal and summary["num_differing"] <= allowed
    if options.json is not None:
        write_json(options.json, {"environment": env, "options": asdict(options), "runs": runs})
    return 0 if is_equal else 1


def _free_chat(trace: Trace) -> Trace:
    """What the user said first, and a turn to write."""
    said = next((m for m in trace.messages if m["role"] == "user"), None)
    reply = {"role": "assistant", "content": ""}
    return replace(trace, tools=[], messages=[said, reply] if said is not None else [])


def measure(
    sides: Mapping[str, Generator],
    cases: list[Case],
    requests: Sequence[EngineRequest],
    *,
    rounds: int,
    batch_size: int,
) -> tuple[list[Lap], dict[str, list[Generation]]]:
    """Run groups of `batch_size` requests on all sides, `rounds` times; who goes first rotates.

    Returns:
        The laps, and each side's outputs: the requests in order, once a round.
    """
    names = list(sides)
    warm = [_with_max_tokens(request, 1) for request in requests]
    for side in sides.values():
        side.generate(warm, batch_size)
    laps: list[Lap] = []
    kept: dict[str, list[Generation]] = {name: [] for name in names}
    for number_of_round in range(rounds):
        for start in range(0, len(requests), batch_size):
            group = requests[start : start + batch_size]
            turn = (number_of_round + start // batch_size) % len(names)
            wall_s: dict[str, float] = {}
            outputs: dict[str, list[Generation]] = {}
            for name in names[turn:] + names[:turn]:
                begin = time.perf_counter()
                outputs[name] = sides[name].generate(group, batch_size)
                wall_s[name] = time.perf_counter() - begin
                kept[name] += outputs[name]
            for error in (o.error for side in outputs.values() for o in side if o.error):
                print(f"a request failed: {error}", file=sys.stderr)
            expected = [output.token_ids for output in outputs[names[0]]]
            laps.append(
                Lap(
                    cases=tuple(case.name for case in cases[start : start + batch_size]),
                    wall_s=wall_s,
                    num_tokens={n: sum(len(o.token_ids) for o in outputs[n]) for n in names},
                    num_differing=sum(
                        output.token_ids != tokens
                        for name in names[1:]
                        for output, tokens in zip(outputs[name], expected, strict=True)
                    ),
                )
            )
    return laps, kept


def _with_max_tokens(request: EngineRequest, max_tokens: int) -> EngineRequest:
    return replace(request, sampling=replace(request.sampling, max_tokens=max_tokens))


def summarise(
    laps: list[Lap],
    outputs: Mapping[str, list[Generation]],
    cases: list[Case],
    *,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Throughput of each side, ratios with 95 % bootstrap intervals, and acceptance.

    Args:
        laps: the measurements; they are what is resampled.
        outputs: of each side, see `measure`.
        cases: where the requests come from.
        rounds: how often the requests were run; the laps of a round come together.
        seed: of the resampling.
    """
    names = list(outputs)
    source = random.Random(seed)
    samples = [[source.choice(laps) for _ in laps] for _ in range(_RESAMPLES)]
    ratios = {}
    # Every side against plain, and the last one against the one before it.
    for name, base in dict.fromkeys([(n, names[0]) for n in names[1:]] + [(names[-1], names[-2])]):
        spread = sorted(_ratio(sample, name, base) for sample in samples)
        low, high = spread[int(0.025 * _RESAMPLES)], spread[int(0.975 * _RESAMPLES)]
        size = len(laps) // rounds
        pairs = [_ratio(laps[i : i + size], name, base) for i in range(0, len(laps), size)]
        ratios[f"{name} / {base}"] = {
            "ratio": _ratio(laps, name, base),
            "interval": (low, high),
            "pairs": pairs,
            "median": statistics.median(pairs),
        }
    return {
        "tok_per_s": {name: _rate(laps, name) for name in names},
        "ratios": ratios,
        "num_requests": sum(len(lap.cases) for lap in laps),
        "num_differing": sum(lap.num_differing for lap in laps),
        "speculation": {name: _speculation(outputs[name], cases) for name in names[1:]},
    }


def _speculation(outputs: list[Generation], cases: list[Case]) -> dict[str, Any]:
    """Acceptance by drafter, and tokens per pass by data set."""
    reports = [
        {
            "drafted": output.stats.drafts.drafted,
            "accepted": output.stats.drafts.accepted,
            "passes": output.stats.num_passes,
            "tokens": len(output.token_ids),
        }
        for output in outputs
    ]
    by_data_set: dict[str, list[dict[str, Any]]] = {}
    for index, report in enumerate(reports):
        data_set = cases[index % len(cases)].source.split("/")[0]
        by_data_set.setdefault(data_set, []).append(report)
    lengths = {name: acceptance(some)["acceptance_length"] for name, some in by_data_set.items()}
    return acceptance(reports) | {"acceptance_length_by_data_set": lengths}


def _rate(laps: Sequence[Lap], side: str) -> float:
    """Tokens per second."""
    return sum(lap.num_tokens[side] for lap in laps) / sum(lap.wall_s[side] for lap in laps)


def _ratio(laps: Sequence[Lap], side: str, base: str) -> float:
    return _rate(laps, side) / _rate(laps, base)


def render(summary: dict[str, Any]) -> str:
    """The summary as text."""
    rows = [["requests", str(summary["num_requests"])]]
    rows += [[f"{name} tok/s", number(rate, 1)] for name, rate in summary["tok_per_s"].items()]
    for name, measured in summary["ratios"].items():
        low, high = measured["interval"]
        rows.append([f"{name} (95 %)", f"{measured['ratio']:.2f} ({low:.2f} to {high:.2f})"])
        pairs = measured["pairs"]
        span = f"{measured['median']:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
        rows.append([f"{name}, median of {len(pairs)} rounds (all)", span])
    rows.append(["outputs that differ", str(summary["num_differing"])])
    for name, speculation in summary["speculation"].items():
        rows.append([f"{name}: tokens per pass", number(speculation["acceptance_length"])])
        for data_set, length in speculation["acceptance_length_by_data_set"].items():
            rows.append([f"{name}: ... {data_set}", number(length)])
        for source, counts in speculation["sources"].items():
            text = f"{counts['accepted']}/{counts['drafted']} ({share(counts['rate'])})"
            rows.append([f"{name}: accepted, {source}", text])
    return columns(rows)
