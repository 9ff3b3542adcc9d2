"""Equality and compare on a made-up generator: what they find, and what they let pass."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from specrt.bench import compare, divergence, equality
from specrt.bench.generator import Case, Generation
from specrt.request import DraftStats, EngineRequest, RequestStats, SamplingParams, TokenLogprob

VOCAB_SIZE = 8
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}},
    }
]


class FakeGenerator:
    """Emits (prompt + seed + index) mod 8; `runner_up` is `gap` behind at every position."""

    def __init__(self, sources: str = "", *, gap: float = 0.5) -> None:
        self.vocab_size = VOCAB_SIZE
        self.sources = sources
        self.gap = gap
        self.swap_at: dict[int, int] = {}  # request number -> position of the runner-up
        self.arguments = '{"a": 1}'
        self.leaked: str | None = None
        self.fails = False
        self.batch_sizes: list[int] = []

    def generate(self, requests: Sequence[EngineRequest], batch_size: int) -> list[Generation]:
        self.batch_sizes.append(batch_size)
        return [self._generate(request) for request in requests]

    def _generate(self, request: EngineRequest) -> Generation:
        sampling = request.sampling
        start = request.prompt_token_ids[0] + sampling.seed + round(sampling.temperature * 3)
        tokens = [(start + i) % VOCAB_SIZE for i in range(sampling.max_tokens)]
        logprobs = []
        for token in tokens:
            scores = dict.fromkeys(range(VOCAB_SIZE), -10.0)
            scores |= {token: -0.5, (token + 1) % VOCAB_SIZE: -0.5 - self.gap}
            top = tuple(sorted(scores.items(), key=lambda item: -item[1]))
            logprobs.append(TokenLogprob(token, -0.5, top))
        swap = self.swap_at.get(request.prompt_token_ids[0])
        if swap is not None:
            tokens[swap:] = [(t + 1) % VOCAB_SIZE for t in tokens[swap:]]
        stats = RequestStats(
            num_output_tokens=len(tokens),
            num_passes=max(1, len(tokens) // 2),
            drafts=DraftStats({"forced": {"key": 10}}, {"forced": {"key": 7}})
            if self.sources
            else DraftStats(),
        )
        error = "boom" if self.fails else None
        return Generation(tokens, "text", "stop", error, stats, logprobs)

    def calls(self, text: str) -> list[dict[str, Any]]:
        return [{"function": {"name": "f", "arguments": self.arguments}}]

    def unenforced(self, request: EngineRequest) -> list[dict[str, str]]:
        return [{"tool": "f", "pointer": "/minProperties"}]

    def leak(self) -> str | None:
        return self.leaked


def _cases(count: int) -> list[Case]:
    return [
        Case(
            f"case{i}",
            EngineRequest(
                request_id="", prompt_token_ids=[i], sampling=SamplingParams(max_tokens=1)
            ),
            TOOLS,
            "star/x",
        )
        for i in range(count)
    ]


def _compare_all(
    broken: FakeGenerator, reference: FakeGenerator | None = None, count: int = 12
) -> equality.EqualityReport:
    """`broken` serves the runs with all sources."""
    reference = reference or FakeGenerator(gap=broken.gap)
    return equality.compare_all(
        reference,
        lambda way: broken if way == equality.WAYS["all"] else FakeGenerator(way.sources),
        _cases(count),
        max_tokens=6,
        batch_size=16,
        seed=0,
    )


def test_equal_outputs_pass_in_all_runs() -> None:
    every = FakeGenerator("all")
    report = _compare_all(every)
    assert report.is_passed and report.divergences == []
    assert (report.num_requests, report.num_runs) == (12, 4 * len(equality.WAYS))
    assert report.calls == {"valid": 12 * report.num_runs}
    assert every.batch_sizes == [1, 16, 1, 16]
    assert "passed" in equality.render(report)


def test_a_different_token_is_found_with_its_gap() -> None:
    every = FakeGenerator("all", gap=0.5)
    every.swap_at = {3: 2}
    report = _compare_all(every)
    greedy = [d for d in report.divergences if d.run.temperature == 0]
    assert [(d.case, d.run.sources, d.run.batch_size, d.position) for d in greedy] == [
        ("case3", "all", 1, 2),
        ("case3", "all", 16, 2),
    ]
    assert greedy[0].token_ids == (0, 1)  # prompt 3 + seed 3 + position 2, and one more
    assert greedy[0].gap == pytest.approx(0.5)
    assert greedy[0].kind == "scores"
    assert not report.is_equal
    text = equality.render(report)
    assert "FAILED" in text and "DIFFERS: case3: all, T=0, batch 1: token 2: (0, 1)" in text


@pytest.mark.parametrize(("count", "allowed"), [(12, False), (99, False), (100, True)])
def test_one_tie_in_a_hundred_requests_is_allowed(count: int, allowed: bool) -> None:
    every = FakeGenerator("all", gap=5e-4)
    every.swap_at = {3: 2}
    report = _compare_all(every, count=count)
    greedy = [d for d in report.divergences if d.run.temperature == 0]
    assert [d.is_tie for d in greedy] == [True, True]
    report.divergences = greedy
    assert report.is_equal is allowed
    assert "tie: case3" in equality.render(report)


def test_the_gap_is_that_of_the_reference_at_the_divergence() -> None:
    reference = FakeGenerator(gap=5e-4)
    (case, *_) = _cases(1)
    request = case.sampled(SamplingParams(max_tokens=6, temperature=0.0))
    tie = divergence.closest_tie(reference, request, [0, 1], (2, 3))
    assert tie is not None and tie.kind == "scores"
    assert tie.gap == pytest.approx(5e-4, rel=1e-3)
    assert divergence.closest_tie(reference, request, [0, 1], (2, -1)) is None
    assert divergence.closest_tie(reference, request, [0, 7], (2, 3)) is None, "another prefix"


def test_a_token_at_the_edge_of_top_k_is_a_tie() -> None:
    """The second and third best are equal and top_k keeps one of them: either may be drawn."""

    class Edged(FakeGenerator):
        def _generate(self, request: EngineRequest) -> Generation:
            output = super()._generate(request)
            top = ((0, -1.0), (1, -1.5), (2, -1.5001), *((t, -9.0) for t in range(3, VOCAB_SIZE)))
            output.logprobs = [TokenLogprob(0, -1.0, top) for _ in output.token_ids]
            return output

    (case, *_) = _cases(1)
    request = case.sampled(SamplingParams(max_tokens=1, temperature=1.0, top_k=2))
    tie = divergence.closest_tie(Edged(), request, [], (1, 2))
    assert tie is not None
    assert (tie.kind, tie.gap) == ("top_k", pytest.approx(1e-4, rel=1e-2))


def test_an_output_that_ends_early_is_a_difference() -> None:
    class Short(FakeGenerator):
        def _generate(self, request: EngineRequest) -> Generation:
            output = super()._generate(request)
            del output.token_ids[4:]
            return output

    report = _compare_all(Short("all"))
    assert not report.is_equal
    assert report.divergences[0].token_ids[1] == -1
    assert report.divergences[0].position == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arguments": '{"b": 1}'}, "invalid: f: required"),
        ({"arguments": "{"}, "not_json"),
        ({"leaked": "3 held of 10"}, "slots leaked: 3 held of 10"),
        ({"fails": True}, "boom"),
    ],
)
def test_broken_calls_leaks_and_errors_fail(change: dict[str, Any], said: str) -> None:
    every = FakeGenerator("all")
    for name, value in change.items():
        setattr(every, name, value)
    report = _compare_all(every)
    assert report.is_equal and not report.is_passed
    assert said in equality.render(report)


class SlowGenerator(FakeGenerator):
    """Takes its time from a counting clock."""

    def __init__(self, sources: str, seconds: float, clock: list[float]) -> None:
        super().__init__(sources)
        self._seconds = seconds
        self._clock = clock
        self.log: list[str] = []

    def generate(self, requests: Sequence[EngineRequest], batch_size: int) -> list[Generation]:
        self._clock[0] += self._seconds * sum(r.sampling.max_tokens for r in requests)
        self.log.append(f"{requests[0].sampling.max_tokens}")
        return super().generate(requests, batch_size)


def test_compare_interleaves_and_gives_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(compare.time, "perf_counter", lambda: clock[0])
    order: list[str] = []

    class Logged(SlowGenerator):
        def generate(self, requests: Sequence[EngineRequest], batch_size: int) -> list[Generation]:
            order.append(self.sources)
            return super().generate(requests, batch_size)

    sides = {
        "plain": Logged("plain", 0.2, clock),
        "grammar": Logged("grammar", 0.1, clock),
        "eagle": Logged("eagle", 0.05, clock),
    }
    cases = _cases(4)
    requests = [c.sampled(SamplingParams(max_tokens=10)) for c in cases]
    laps, outputs = compare.measure(sides, cases, requests, rounds=2, batch_size=2)
    names = ["plain", "grammar", "eagle"]
    rotated = [names, names[1:] + names[:1], names[1:] + names[:1], names[2:] + names[:2]]
    assert order == names + sum(rotated, [])
    assert [lap.cases for lap in laps] == [("case0", "case1"), ("case2", "case3")] * 2
    summary = compare.summarise(laps, outputs, cases, rounds=2, seed=0)
    assert {k: v["ratio"] for k, v in summary["ratios"].items()} == pytest.approx(
        {"grammar / plain": 2.0, "eagle / plain": 4.0, "eagle / grammar": 2.0}
    )
    assert summary["ratios"]["eagle / plain"]["interval"] == pytest.approx((4.0, 4.0))
    assert summary["tok_per_s"] == pytest.approx({"plain": 5.0, "grammar": 10.0, "eagle": 20.0})
    assert summary["num_differing"] == 0
    speculation = summary["speculation"]["eagle"]
    assert speculation["sources"]["forced"]["rate"] == pytest.approx(0.7)
    assert speculation["acceptance_length"] == pytest.approx(2.0)
    assert speculation["acceptance_length_by_data_set"] == pytest.approx({"star": 2.0})
    text = compare.render(summary)
    assert "4.00 (4.00 to 4.00)" in text and "eagle: accepted, forced" in text
    json.dumps(summary)


def test_the_interval_covers_noisy_measurements() -> None:
    laps = [
        compare.Lap(
            ("c",),
            {"plain": 2.0 + 0.3 * math.sin(7 * i), "grammar": 1.0 + 0.2 * math.sin(5 * i)},
            {"plain": 9, "grammar": 9},
            0,
        )
        for i in range(30)
    ]
    outputs: dict[str, list[Generation]] = {"plain": [], "grammar": []}
    summary = compare.summarise(laps, outputs, [], rounds=3, seed=1)
    measured = summary["ratios"]["grammar / plain"]
    low, high = measured["interval"]
    assert low < measured["ratio"] < high
    assert low > 1.7 and high < 2.3
    assert summary == compare.summarise(laps, outputs, [], rounds=3, seed=1), (
        "the resampling is seeded"
    )


def test_compare_counts_outputs_that_differ() -> None:
    plain, other = FakeGenerator(), FakeGenerator("all")
    other.swap_at = {1: 3}
    cases = _cases(3)
    requests = [c.sampled(SamplingParams(max_tokens=10)) for c in cases]
    sides = {"plain": plain, "grammar": other}
    laps, _ = compare.measure(sides, cases, requests, rounds=1, batch_size=2)
    assert [lap.num_differing for lap in laps] == [1, 0]
