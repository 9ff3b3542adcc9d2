"""`specrt bench equality`: speculation, batch, cache and grammar engine must not change a token.

Every request runs with every set of draft sources, at temperature 0 and 1, alone and in a batch,
and with all sources again while llguidance runs every schema.
The reference is plain decoding, one request at a time. Where outputs part, the scores there are
computed anew: attention over other shapes rounds differently, so two scores closer than TIE_GAP may
change places, or a token so close to an edge of the support may cross it. Anything else is a
failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

from specrt.bench.divergence import Divergence, Key, divergences
from specrt.bench.environment import describe, environment
from specrt.bench.generator import Case, EngineGenerator, Generation, Generator, engine_config
from specrt.bench.options import EqualityOptions
from specrt.bench.report import columns, write_json
from specrt.bench.traces import load_traces
from specrt.bench.validity import check_calls
from specrt.config import DRAFT_SOURCES
from specrt.draft_heads.shipped import shipped_head
from specrt.errors import ConfigError
from specrt.model.loader import resolve_model_folder
from specrt.request import EngineRequest, SamplingParams

# Share of the requests that may have a tie.
MAX_TIED_SHARE = 0.01


class Way(NamedTuple):
    """How an engine is set up: its draft sources, and what runs schemas."""

    sources: str
    grammar_backend: Literal["auto", "llguidance"] = "auto"


_ALL = ",".join(DRAFT_SOURCES)
WAYS = {
    "none": Way(""),
    "forced,choices": Way("forced,choices"),
    "history": Way("history"),
    "values": Way("values"),
    "all": Way(_ALL),
    "all, llguidance": Way(_ALL, "llguidance"),
}
# With a draft head also:
HEAD_WAYS = {"head": Way("eagle"), "all and head": Way(f"{_ALL},eagle")}
TEMPERATURES = (0.0, 1.0)
REFERENCE = "none"
# Requests that go through every run before the next ones start, so that a prompt is still cached
# when it comes again, and the KV slots that one engine needs for it.
_GROUP_SIZE = 20
_MAX_TOTAL_TOKENS = 24_576


@dataclass(slots=True)
class EqualityReport:
    """What was found.

    Attributes:
        num_requests: requests per run.
        num_runs: ways they were run.
        divergences: every output that left the reference.
        calls: verdict -> finished calls, over all runs.
        broken_calls: the calls that break their schema.
        errors: requests that failed, and slots that leaked.
    """

    num_requests: int
    num_runs: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    broken_calls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def max_tied_requests(self) -> int:
        """Requests that may have a tie."""
        return int(self.num_requests * MAX_TIED_SHARE)

    @property
    def is_equal(self) -> bool:
        """Are all outputs the reference's, but for few enough ties?"""
        tied = {divergence.case for divergence in self.divergences}
        return all(d.is_tie for d in self.divergences) and len(tied) <= self.max_tied_requests

    @property
    def is_passed(self) -> bool:
        """Equal, no broken call, no error."""
        return self.is_equal and not self.broken_calls and not self.errors


def run(options: EqualityOptions) -> int:
    """Compare, print, write the JSON.

    Returns:
        0 when everything is equal and valid, else 1.

    Raises:
        ConfigError: no traces, no model, or --json cannot be written.
    """
    traces = load_traces(options.traces)
    env = environment()
    print(describe(env))

    def open_generator(way: Way) -> EngineGenerator:
        return EngineGenerator(
            engine_config(
                options.model_path,
                way.sources,
                num_threads=options.num_threads,
                max_total_tokens=_MAX_TOTAL_TOKENS,
                draft_model_path=options.draft_model_path if "eagle" in way.sources else None,
                check_cache=True,
                grammar_backend=way.grammar_backend,
            )
        )

    reference = open_generator(WAYS[REFERENCE])
    cases = reference.cases(traces, options.requests, options.max_prompt_tokens)
    if len(cases) < options.requests:
        raise ConfigError(
            f"--requests: the traces hold {len(cases)} requests of at most"
            f" {options.max_prompt_tokens} prompt tokens, not {options.requests}"
        )
    model = resolve_model_folder(options.model_path).name
    has_head = options.draft_model_path is not None or shipped_head(model) is not None
    report = compare_all(
        reference,
        open_generator,
        cases,
        WAYS | (HEAD_WAYS if has_head else {}),
        max_tokens=options.max_tokens,
        batch_size=options.batch_size,
        seed=options.seed,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(render(report))
    if options.json is not None:
        document = {"environment": env, "options": asdict(options), "passed": report.is_passed}
        write_json(options.json, document | asdict(report))
    return 0 if report.is_passed else 1


def compare_all(
    reference: Generator,
    open_generator: Callable[[Way], Generator],
    cases: list[Case],
    ways: Mapping[str, Way] = WAYS,
    *,
    max_tokens: int,
    batch_size: int,
    seed: int,
    group_size: int = _GROUP_SIZE,
    progress: Callable[[str], object] = lambda text: None,
) -> EqualityReport:
    """Run every case in every way and compare with `reference`, one request at a time.

    Args:
        reference: plain decoding; asked again about every divergence.
        open_generator: makes a generator that is set up as given.
        cases: the requests.
        ways: name -> how the runs are set up; `none` among them.
        max_tokens: output tokens at most.
        batch_size: size of the batched runs.
        seed: request i takes seed + i.
        group_size: requests that go through every run before the next ones start.
        progress: called before every group.
    """
    report = EqualityReport(num_requests=len(cases))
    generators = {
        name: reference if name == REFERENCE else open_generator(way) for name, way in ways.items()
    }
    keys = [
        Key(name, temperature, size)
        for name in ways
        for temperature in TEMPERATURES
        for size in (1, batch_size)
    ]
    report.num_runs = len(keys)
    for start in range(0, len(cases), group_size):
        group = cases[start : start + group_size]
        progress(f"requests {start + 1} to {start + len(group)} of {len(cases)}")
        expected: dict[float, list[Generation]] = {}
        for key in keys:
            requests = [
                case.sampled(_sampling(start + i, key.temperature, max_tokens, seed))
                for i, case in enumerate(group)
            ]
            generator = generators[key.sources]
            outputs = generator.generate(requests, key.batch_size)
            _judge(report, generator, key, group, requests, outputs)
            if key.temperature not in expected:
                expected[key.temperature] = outputs
                continue
            report.divergences += divergences(
                reference, key, group, requests, expected[key.temperature], outputs
            )
    for name, generator in generators.items():
        leak = generator.leak()
        if leak is not None:
            report.errors.append(f"{name}: slots leaked: {leak}")
    return report


def _sampling(index: int, temperature: float, max_tokens: int, seed: int) -> SamplingParams:
    """Every other sampled request also has edges that a token may fall on."""
    has_edges = temperature > 0 and index % 2 == 1
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=0.9 if has_edges else 1.0,
        top_k=50 if has_edges else 0,
        seed=seed + index,
    )


def _judge(
    report: EqualityReport,
    generator: Generator,
    key: Key,
    cases: list[Case],
    requests: Sequence[EngineRequest],
    outputs: list[Generation],
) -> None:
    """Count verdicts, broken calls and failed requests of one run."""
    for case, request, output in zip(cases, requests, outputs, strict=True):
        if output.error is not None:
            report.errors.append(f"{key}: {case.name}: {output.error}")
        checks = check_calls(
            generator.calls(output.text),
            case.tools,
            is_cut=output.finish_reason != "stop",
            unenforced=generator.unenforced(request),
        )
        for check in checks:
            report.calls[check.verdict] = report.calls.get(check.verdict, 0) + 1
            if check.verdict in ("invalid", "not_json", "unknown_tool"):
                report.broken_calls.append(f"{key}: {case.name}: {check.verdict}: {check.reason}")


def render(report: EqualityReport) -> str:
    """The report as text; every divergence with its gap."""
    tied = {d.case for d in report.divergences if d.is_tie}
    rows = [
        ["requests x runs", f"{report.num_requests} x {report.num_runs}"],
        ["outputs that differ", str(len(report.divergences))],
        ["requests with a tie (allowed)", f"{len(tied)} ({report.max_tied_requests})"],
        ["differences that are no tie", str(sum(not d.is_tie for d in report.divergences))],
        ["finished calls valid", str(report.calls.get("valid", 0))],
        ["... broken only in keywords named unenforced", str(report.calls.get("unenforced", 0))],
        ["calls that break their schema", str(len(report.broken_calls))],
        ["failed requests and leaks", str(len(report.errors))],
        ["result", "passed" if report.is_passed else "FAILED"],
    ]
    lines = [columns(rows)]
    for d in report.divergences:
        gap = d.kind if d.gap is None else f"gap {d.gap:.2e} ({d.kind})"
        word = "tie" if d.is_tie else "DIFFERS"
        run_text = f"{d.run.sources}, T={d.run.temperature:g}, batch {d.run.batch_size}"
        lines.append(f"{word}: {d.case}: {run_text}: token {d.position}: {d.token_ids}, {gap}")
    return "\n".join([*lines, *report.broken_calls, *report.errors])
