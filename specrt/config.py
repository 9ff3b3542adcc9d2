"""Configuration: one frozen dataclass per subsystem; each default, unit and help text once.

The CLI flags of `specrt serve` are made from these fields (see cli.py).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from specrt.errors import ConfigError

_Config = TypeVar("_Config")


def flag(default: Any, help: str, **metadata: Any) -> Any:
    """A field that becomes a CLI flag.

    `metadata` may hold name, metavar, aliases (a tuple of the names that other servers use) and
    spellings (what else a choice may be called, in lower case).
    """
    return field(default=default, metadata={"help": help, **metadata})


def _check(ok: bool, flag_name: str, expected: str, got: object) -> None:
    if not ok:
        raise ConfigError(f"{flag_name}: expected {expected}, got {got!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which target model, and how it is run."""

    model_path: str | None = flag(
        None, "transformers folder or .gguf file of the target model (default: the embedded model)"
    )
    served_model_name: str | None = flag(
        None,
        "names in the API, comma separated; answers carry the first (default: the model's own)",
    )
    context_length: int | None = flag(
        None, "context in tokens (default: the model's own)", aliases=("--max-model-len",)
    )
    num_threads: int | None = flag(None, "CPU threads for torch (default: physical cores)")
    tp_size: int = flag(
        1,
        "devices that share the model; tensor parallelism is not there yet, so 1",
        aliases=("--tp", "--tensor-parallel-size"),
    )

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names of --served-model-name; () = the model's own name."""
        names = (self.served_model_name or "").split(",")
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))

    def __post_init__(self) -> None:
        _check(
            self.served_model_name is None or bool(self.served_names),
            "--served-model-name",
            "a name, or several with commas between them",
            self.served_model_name,
        )
        _check(
            self.context_length is None or self.context_length >= 16,
            "--context-length",
            "an integer >= 16",
            self.context_length,
        )
        _check(
            self.num_threads is None or self.num_threads >= 1,
            "--num-threads",
            "an integer >= 1",
            self.num_threads,
        )
        _check(
            self.tp_size == 1,
            "--tp-size (--tp, --tensor-parallel-size)",
            "1, as tensor parallelism is not supported",
            self.tp_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How much memory the KV cache takes."""

    mem_fraction_static: float = flag(
        0.5,
        "share of the free memory that KV slots may take, between 0 and 1",
        aliases=("--gpu-memory-utilization",),
    )
    max_total_tokens: int | None = flag(
        None, "KV slots in tokens (default: 8 contexts, or what --mem-fraction-static allows)"
    )
    check_cache: bool = flag(
        False, "check the cache law free + cached + held == total after every step (slow)"
    )

    def __post_init__(self) -> None:
        _check(
            0.0 < self.mem_fraction_static <= 1.0,
            "--mem-fraction-static",
            "a number above 0 and at most 1",
            self.mem_fraction_static,
        )
        _check(
            self.max_total_tokens is None or self.max_total_tokens >= 16,
            "--max-total-tokens",
            "an integer >= 16",
            self.max_total_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Who runs when."""

    schedule_policy: Literal["lpm", "fcfs"] = flag(
        "lpm", "order of waiting requests: longest prefix match first, or first come first served"
    )
    max_running_requests: int = flag(32, "requests that run at once", aliases=("--max-num-seqs",))
    chunked_prefill_size: int = flag(
        256,
        "known tokens (prompt and last output) computed in one pass at most",
        aliases=("--max-num-batched-tokens",),
    )
    max_wait_admissions: int = flag(
        32, "with lpm, a request passed over this many times goes first (fairness bound)"
    )

    def __post_init__(self) -> None:
        _check(
            self.schedule_policy in ("lpm", "fcfs"),
            "--schedule-policy",
            "lpm or fcfs",
            self.schedule_policy,
        )
        for name in ("max_running_requests", "chunked_prefill_size", "max_wait_admissions"):
            value = getattr(self, name)
            _check(value >= 1, "--" + name.replace("_", "-"), "an integer >= 1", value)


DRAFT_SOURCES = ("forced", "choices", "history", "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """What drafts, and how much."""

    speculative: Literal["auto", "none", "grammar", "eagle"] = flag(
        "auto",
        "drafting: eagle = trees from an EAGLE-3 head, the grammar and the history; grammar = the"
        " last two; auto = eagle where a head is given or ships with the model",
        aliases=("--speculative-algorithm",),
        spellings={"eagle3": "eagle", "ngram": "grammar"},
    )
    speculative_draft_model_path: str | None = flag(
        None,
        "folder of the EAGLE-3 head (default: the one that ships for the embedded model)",
        aliases=("--speculative-draft-model",),
    )
    speculative_num_steps: int = flag(5, "predictions of the head on one path of a tree at most")
    speculative_eagle_topk: int = flag(
        4, "candidates of the head at a node, and nodes it reads in one of its passes, at most"
    )
    max_tree_rows: int = flag(
        32,
        "draft rows of one request in one pass at most",
        aliases=("--speculative-num-draft-tokens",),
    )
    draft_sources: str = flag(
        ",".join(DRAFT_SOURCES),
        "comma-separated draft sources beside the head: forced (text the grammar forces), choices"
        " (few tokens allowed), history (tokens that followed before, in prompt or output), values"
        " (string values that go on like the prompt's text)",
    )
    shared_history_tokens: int = flag(
        0,
        "output tokens kept so that later requests draft from them, if they come with the same API"
        " key, cache_salt and tools; 0 = none",
    )

    def __post_init__(self) -> None:
        _check(
            self.speculative in ("auto", "none", "grammar", "eagle"),
            "--speculative",
            "auto, none, grammar or eagle",
            self.speculative,
        )
        unknown = [s for s in self.sources if s not in DRAFT_SOURCES]
        _check(not unknown, "--draft-sources", f"some of {','.join(DRAFT_SOURCES)}", unknown)
        for name in ("speculative_num_steps", "speculative_eagle_topk", "max_tree_rows"):
            value = getattr(self, name)
            _check(value >= 1, "--" + name.replace("_", "-"), "an integer >= 1", value)
        _check(
            self.shared_history_tokens >= 0,
            "--shared-history-tokens",
            "an integer >= 0",
            self.shared_history_tokens,
        )
        if self.speculative_draft_model_path is not None and not self.uses_head:
            raise ConfigError(
                f"--speculative-draft-model-path: --speculative {self.speculative} uses no head;"
                " expected --speculative eagle"
            )

    @property
    def uses_head(self) -> bool:
        """May a head draft?"""
        return self.speculative in ("auto", "eagle")

    @property
    def has_shared_history(self) -> bool:
        """Do requests draft from each other's outputs?"""
        return self.speculative != "none" and self.shared_history_tokens > 0

    @property
    def has_sources(self) -> bool:
        """Does anything beside a head draft?"""
        return bool(self.sources) or self.has_shared_history

    @property
    def sources(self) -> tuple[str, ...]:
        """The draft sources beside the head that are on."""
        if self.speculative == "none":
            return ()
        return tuple(s.strip() for s in self.draft_sources.split(",") if s.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarConfig:
    """How schemas are enforced."""

    tool_strict_level: Literal["auto", "exact", "lenient"] = flag(
        "auto",
        "auto: tools with strict=true exactly, others as far as possible; exact: all so;"
        " lenient: none",
    )
    tool_call_parser: str | None = flag(
        None,
        "format of tool calls: hermes, llama3_json, mistral, deepseek_v3, deepseek_v31, kimi_k2"
        " (default: the one in which the model's chat template prints calls)",
    )
    grammar_backend: Literal["auto", "outlines", "llguidance"] = flag(
        "auto",
        "what runs a schema: auto: an automaton (outlines-core) where it is regular and small, else"
        " llguidance; outlines: automata, other schemas are refused; llguidance: always that",
    )
    open_arguments: bool = flag(
        False,
        "let calls pass arguments that a schema neither lists nor forbids (JSON Schema's default);"
        " without it, a schema has to say additionalProperties: true",
    )
    no_canonical: bool = flag(
        False, "do not narrow forced text to its canonical tokens (keeps every tokenisation)"
    )

    def __post_init__(self) -> None:
        _check(
            self.tool_strict_level in ("auto", "exact", "lenient"),
            "--tool-strict-level",
            "auto, exact or lenient",
            self.tool_strict_level,
        )
        _check(
            self.grammar_backend in ("auto", "outlines", "llguidance"),
            "--grammar-backend",
            "auto, outlines or llguidance",
            self.grammar_backend,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the API listens, and how much it takes on."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(8000, "port to listen on")
    api_key: str | None = flag(None, "bearer token that clients must send (default: none)")
    cors_origins: str | None = flag(
        None, "origins that browsers may call from, comma separated; * = all (default: none)"
    )
    max_queued_requests: int = flag(
        256, "requests that may wait beyond the running ones; more are answered 429"
    )
    request_timeout: float | None = flag(
        None, "seconds after which a request is aborted and answered 504 (default: never)"
    )
    drain_timeout: float = flag(
        30.0, "seconds that running requests get to finish after SIGTERM; a second one ends at once"
    )

    def __post_init__(self) -> None:
        _check(0 <= self.port <= 65535, "--port", "an integer from 0 to 65535", self.port)
        _check(
            self.max_queued_requests >= 0,
            "--max-queued-requests",
            "an integer >= 0",
            self.max_queued_requests,
        )
        limit = self.request_timeout
        _check(limit is None or 0 < limit < 1e9, "--request-timeout", "seconds above 0", limit)
        _check(0 <= self.drain_timeout < 1e9, "--drain-timeout", "seconds >= 0", self.drain_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine process needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)


def build(config: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Make `config`, nested ones included, from values by field name; others are ignored.

    What is absent keeps its default.

    Raises:
        ConfigError: a value is out of range.
    """
    hints = typing.get_type_hints(config)
    made: dict[str, Any] = {}
    for spec in dataclasses.fields(config):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(hints[spec.name]):
            made[spec.name] = build(typing.cast(type, hints[spec.name]), values)
        elif spec.name in values:
            made[spec.name] = values[spec.name]
    return config(**made)


def flatten(config: object) -> dict[str, object]:
    """All fields of nested config dataclasses in one dict (names are unique across them)."""
    flat: dict[str, object] = {}
    for spec in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, spec.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {spec.name: value})
    return flat
