"""Prometheus metrics: what the server sees itself, and the engine's counters at each scrape.

The engine counts since its start; its numbers are read when somebody scrapes, so a request costs
nothing for them. Acceptance length is output tokens / target passes that produced any (SGLang's
convention: the bonus token counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from specrt.request import RequestOutput

Stats = Mapping[str, object]

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_E2E_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)

_GAUGES = {
    "num_running": ("specrt_requests_running", "Requests that hold slots."),
    "num_waiting": ("specrt_requests_waiting", "Requests in the engine's queue."),
    "num_total_slots": ("specrt_slots", "KV slots (one token each)."),
    "num_free_slots": ("specrt_slots_free", "KV slots that hold nothing."),
    "num_cached_slots": ("specrt_slots_cached", "KV slots owned by the radix tree."),
    "num_held_slots": ("specrt_slots_held", "KV slots owned by requests."),
    "last_gen_throughput": ("specrt_generation_tokens_per_second", "Over the last window."),
}
_COUNTERS = {
    "prompt_tokens_total": ("specrt_prompt_tokens", "Prompt tokens."),
    "cached_tokens_total": ("specrt_cached_tokens", "Prompt tokens from the radix cache."),
    "output_tokens_total": ("specrt_generation_tokens", "Output tokens."),
    "passes_total": ("specrt_passes", "Passes of the target model."),
    "rows_total": ("specrt_rows", "Rows (prompt, output and draft tokens) in those passes."),
    "evicted_total": ("specrt_evicted_tokens", "Cached tokens evicted."),
    "retractions_total": ("specrt_retractions", "Requests that gave their slots back."),
    "draft_s": ("specrt_draft_seconds", "Time spent drafting."),
    "forward_s": ("specrt_forward_seconds", "Time spent in the target model."),
    "invalid_drafts_total": (
        "specrt_invalid_draft_tokens",
        "Draft tokens that the grammar forbids; more than 0 is a bug.",
    ),
    "accept_s": ("specrt_accept_seconds", "Time spent accepting."),
}
_BY_SOURCE = {
    "drafted_total": ("specrt_drafted_tokens", "Draft tokens verified, by source and region."),
    "accepted_total": ("specrt_accepted_tokens", "Draft tokens accepted, by source and region."),
}
_TOKENS_OF_PASSES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
# The engine's own caches: whole grammars, and schemas made ready.
_CACHE_COUNTERS = {
    "grammar_cache_hits": ("specrt_grammar_cache_hits", "Found in a cache of grammars."),
    "grammar_cache_misses": ("specrt_grammar_cache_misses", "Compiled."),
    "grammar_cache_evictions": ("specrt_grammar_cache_evictions", "Gone to make room."),
}
_CACHE_GAUGES = {
    "grammar_cache_entries": ("specrt_grammar_cache_entries", "Held in a cache of grammars."),
    "grammar_cache_bytes": ("specrt_grammar_cache_bytes", "Their size, without masks."),
}


def number(stats: Stats, name: str) -> float:
    """A number out of the engine's statistics; 0 when it is not there."""
    value = stats.get(name, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def hit_rate(stats: Stats) -> float:
    """Share of all prompt tokens that came from the radix cache."""
    total = number(stats, "prompt_tokens_total")
    return number(stats, "cached_tokens_total") / total if total else 0.0


def acceptance_length(stats: Stats) -> float:
    """Mean output tokens per decision pass of a request, the bonus token included."""
    total = number(stats, "decisions_total")
    return number(stats, "output_tokens_total") / total if total else 0.0


class _EngineCollector(Collector):
    """Turns the engine's latest statistics into metrics."""

    def __init__(self) -> None:
        self.stats: Stats = {}
        self.is_up = False

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("specrt_engine_up", "Is the engine healthy?", float(self.is_up))
        stats = self.stats
        if not stats:
            return
        yield GaugeMetricFamily(
            "radix_cache_hit_rate",
            "Share of all prompt tokens that came from the radix cache.",
            hit_rate(stats),
        )
        yield GaugeMetricFamily(
            "specrt_acceptance_length",
            "Mean output tokens per decision pass.",
            acceptance_length(stats),
        )
        for key, (name, text) in _GAUGES.items():
            if key in stats:
                yield GaugeMetricFamily(name, text, number(stats, key))
        for key, (name, text) in _COUNTERS.items():
            if key in stats:
                yield CounterMetricFamily(name, text, number(stats, key))
        for key, (name, text) in _BY_SOURCE.items():
            yield _by_source(name, text, stats.get(key))
        yield _tokens_of_passes(stats.get("tokens_of_passes_total"))
        for key, (name, text) in _CACHE_COUNTERS.items():
            yield _filled(CounterMetricFamily(name, text, labels=["cache"]), stats.get(key))
        for key, (name, text) in _CACHE_GAUGES.items():
            yield _filled(GaugeMetricFamily(name, text, labels=["cache"]), stats.get(key))


def _by_source(name: str, text: str, counts: object) -> Metric:
    """A counter with one sample per draft source and region of the output."""
    family = CounterMetricFamily(name, text, labels=["source", "region"])
    if isinstance(counts, Mapping):
        for source, by_region in counts.items():
            for region, count in by_region.items():
                family.add_metric([str(source), str(region)], float(count))
    return family


def _tokens_of_passes(counts: object) -> Metric:
    """The acceptance lengths of single passes as a histogram."""
    passes = {int(n): float(c) for n, c in counts.items()} if isinstance(counts, Mapping) else {}
    buckets = [
        (str(float(edge)), sum(count for n, count in passes.items() if n <= edge))
        for edge in _TOKENS_OF_PASSES
    ]
    buckets.append(("+Inf", sum(passes.values())))
    family = HistogramMetricFamily(
        "specrt_tokens_of_pass", "Tokens that a pass committed for a request, the bonus included."
    )
    family.add_metric([], buckets, sum(n * count for n, count in passes.items()))
    return family


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, values: object
) -> CounterMetricFamily | GaugeMetricFamily:
    """A family with one sample per label."""
    if isinstance(values, Mapping):
        for label, value in values.items():
            family.add_metric([str(label)], float(value))
    return family


class ServerMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ttft_s = Histogram(
            "specrt_time_to_first_token_seconds",
            "Arrival of the request to its first output.",
            buckets=_TTFT_S,
            registry=self.registry,
        )
        self.itl_s = Histogram(
            "specrt_inter_token_latency_seconds",
            "Time between two output tokens; tokens of one step share its time evenly.",
            buckets=_ITL_S,
            registry=self.registry,
        )
        self.e2e_s = Histogram(
            "specrt_e2e_request_latency_seconds",
            "Arrival of the request to the end of its answer.",
            buckets=_E2E_S,
            registry=self.registry,
        )
        self._requests = Counter(
            "specrt_requests",
            "HTTP requests by route and status; 499 = the client went away.",
            ["route", "status"],
            registry=self.registry,
        )
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

    def count_request(self, route: str, status: int) -> None:
        """Count one HTTP request that has been answered."""
        self._requests.labels(route, str(status)).inc()

    def observe_output(self, output: RequestOutput, elapsed_s: float, is_first: bool) -> None:
        """Count the time that one engine output took since the one before it, or since arrival."""
        if is_first:
            self.ttft_s.observe(elapsed_s)
            return
        num_tokens = len(output.token_ids)
        for _ in range(num_tokens):
            self.itl_s.observe(elapsed_s / num_tokens)

    def render(self, stats: Stats | None, *, is_up: bool) -> bytes:
        """The text of /metrics.

        Args:
            stats: the engine's statistics; None keeps the last ones (it does not answer).
            is_up: is the engine healthy?
        """
        if stats is not None:
            self._engine.stats = stats
        self._engine.is_up = is_up
        return generate_latest(self.registry)
