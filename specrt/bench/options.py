"""What each benchmark takes on the command line: one frozen dataclass per benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrt.bench.draft_ladder import LADDER
from specrt.config import DRAFT_SOURCES, flag
from specrt.errors import ConfigError

# The ways to decode that are compared: name -> draft sources.
SIDES = {
    "plain": "",
    "grammar": ",".join(DRAFT_SOURCES),
    "eagle": ",".join((*DRAFT_SOURCES, "eagle")),
}


def _at_least(minimum: float, flag_name: str, value: float | None) -> None:
    if value is not None and value < minimum:
        raise ConfigError(f"{flag_name}: expected a number >= {minimum}, got {value}")


def _numbers(text: str) -> list[int]:
    """Comma-separated numbers; empty when a part is none."""
    parts = [part.strip() for part in text.split(",")]
    return [int(part) for part in parts] if all(map(str.isdecimal, parts)) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """`specrt bench replay`: conversations against a server, turn by turn."""

    url: str = flag("http://127.0.0.1:8000", "address of an OpenAI-compatible server")
    model: str | None = flag(None, "model name (default: the first that the server lists)")
    api_key: str | None = flag(None, "bearer token (default: none)")
    mode: Literal["own", "recorded", "both"] = flag(
        "both", "own: the model's reply is the next turn's history; recorded: the recorded one is"
    )
    traces: str | None = flag(
        None, "conversations, .jsonl or .jsonl.gz (default: the sample that ships with specrt)"
    )
    sources: str | None = flag(
        None, "comma-separated starts of `source`: replay only those (default: all)"
    )
    limit: int | None = flag(None, "conversations at most (default: all)")
    concurrency: int = flag(1, "conversations at once")
    max_tokens: int = flag(256, "tokens in one reply at most")
    temperature: float = flag(0.0, "sampling temperature")
    seed: int = flag(0, "sampling seed, sent with every request")
    tool_choice: Literal["recorded", "auto", "required", "none"] = flag(
        "recorded", "tool_choice of a turn; recorded: required where the recorded turn calls"
    )
    token_ids: bool = flag(
        False, "ask for token ids (return_token_ids), which makes the reusable share exact"
    )
    timeout: float = flag(600.0, "seconds that one reply may take")
    json: str | None = flag(None, "write everything measured to this file")

    def __post_init__(self) -> None:
        _at_least(1, "--limit", self.limit)
        _at_least(1, "--concurrency", self.concurrency)
        _at_least(1, "--max-tokens", self.max_tokens)
        _at_least(0, "--temperature", self.temperature)
        _at_least(0.001, "--timeout", self.timeout)
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url: expected http://HOST:PORT, got {self.url!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityOptions:
    """`specrt bench equality`: the same tokens with every drafter, temperature and batch."""

    model_path: str | None = flag(None, "target model (default: the embedded model)")
    traces: str | None = flag(None, "conversations, .jsonl or .jsonl.gz (default: the sample)")
    requests: int = flag(12, "requests compared")
    max_prompt_tokens: int = flag(1024, "requests with a longer prompt are left out")
    max_tokens: int = flag(96, "output tokens at most")
    batch_size: int = flag(16, "the batch that is compared with single requests")
    draft_model_path: str | None = flag(
        None, "EAGLE-3 head of the runs with one (default: the one that ships, else no such runs)"
    )
    seed: int = flag(0, "noise seed of the first request; request i takes seed + i")
    num_threads: int | None = flag(None, "CPU threads for torch (default: physical cores)")
    json: str | None = flag(None, "write everything measured to this file")

    def __post_init__(self) -> None:
        for name in ("requests", "max_prompt_tokens", "max_tokens", "batch_size"):
            _at_least(1, "--" + name.replace("_", "-"), getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """`specrt bench compare`: plain against speculative decoding, interleaved."""

    model_path: str | None = flag(None, "target model (default: the embedded model)")
    traces: str | None = flag(None, "conversations, .jsonl or .jsonl.gz (default: the sample)")
    requests: int = flag(
        12, "requests measured, each with and without speculation; at least as many as run at once"
    )
    free_chat: bool = flag(False, "what users say first in the conversations, without tools")
    rounds: int = flag(3, "times the whole is repeated")
    concurrency: str = flag(
        "1", "comma-separated numbers of requests that run at once, each measured for itself"
    )
    max_prompt_tokens: int = flag(1024, "requests with a longer prompt are left out")
    max_tokens: int = flag(96, "output tokens at most")
    temperature: float = flag(0.0, "sampling temperature")
    sides: str = flag(
        ",".join(SIDES), "comma-separated: the first is what the others are compared with"
    )
    draft_model_path: str | None = flag(
        None, "EAGLE-3 head of the eagle side (default: the one that ships for the model)"
    )
    seed: int = flag(0, "noise seed of the first request; request i takes seed + i")
    num_threads: int | None = flag(None, "CPU threads for torch (default: physical cores)")
    json: str | None = flag(None, "write everything measured to this file")

    def __post_init__(self) -> None:
        for name in ("requests", "rounds", "max_prompt_tokens", "max_tokens"):
            _at_least(1, "--" + name.replace("_", "-"), getattr(self, name))
        _at_least(0, "--temperature", self.temperature)
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ConfigError(f"--concurrency: expected numbers >= 1, got {self.concurrency!r}")
        if len(self.side_names) < 2 or not all(name in SIDES for name in self.side_names):
            raise ConfigError(
                f"--sides: expected two or more of {', '.join(SIDES)}, got {self.sides!r}"
            )

    @property
    def batch_sizes(self) -> list[int]:
        """How many requests run at once; empty when --concurrency is no list of numbers."""
        return _numbers(self.concurrency)

    @property
    def side_names(self) -> list[str]:
        """The sides in the order given, each once."""
        return list(dict.fromkeys(name.strip() for name in self.sides.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDraftOptions:
    """`specrt eval-draft`: how many tokens a pass a draft head brings on real tool calls."""

    model_path: str | None = flag(None, "target model (default: the embedded model)")
    head: str | None = flag(
        None, "folders of heads, comma-separated (default: the one that ships for the model)"
    )
    traces: str | None = flag(None, "conversations, .jsonl or .jsonl.gz (default: the sample)")
    requests: int = flag(28, "calls measured; data sets take turns")
    calls: Literal["own", "recorded"] = flag(
        "own",
        "own: the model's; recorded: those of the traces, drafted and accepted by the same code,"
        " every drawn token replaced by the recorded one",
    )
    max_tokens: int = flag(256, "output tokens of a call at most")
    max_prompt_tokens: int | None = flag(
        None, "calls behind longer prompts are left out (default: what the context holds)"
    )
    temperature: float = flag(0.0, "sampling temperature of the model's own calls")
    rows: str = flag(
        ",".join(LADDER),
        "comma-separated rows of the table, each with one source more",
        name="--draft-sources",
    )
    seed: int = flag(0, "noise seed of the first request; request i takes seed + i")
    num_threads: int | None = flag(None, "CPU threads for torch (default: physical cores)")
    json: str | None = flag(None, "write everything measured to this file")
    html: str | None = flag(None, "write a page with plots of it to this file")

    def __post_init__(self) -> None:
        for name in ("requests", "max_tokens", "max_prompt_tokens", "num_threads"):
            _at_least(1, "--" + name.replace("_", "-"), getattr(self, name))
        _at_least(0, "--temperature", self.temperature)
        if self.calls == "recorded" and self.temperature > 0:
            raise ConfigError(
                "--temperature: recorded calls are not drawn: expected 0 with --calls recorded,"
                f" got {self.temperature}"
            )
        unknown = [name for name in self.row_names if name not in LADDER]
        if unknown or not self.row_names:
            raise ConfigError(
                f"--draft-sources: expected some of {', '.join(LADDER)}, got {self.rows!r}"
            )

    @property
    def row_names(self) -> list[str]:
        """The rows in the order given, each once."""
        return list(dict.fromkeys(n.strip() for n in self.rows.split(",") if n.strip()))

    @property
    def heads(self) -> list[str | None]:
        """Folders; None = the head that ships."""
        if self.head is None:
            return [None]
        return list(dict.fromkeys(n.strip() for n in self.head.split(",") if n.strip()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarBenchOptions:
    """`specrt bench grammar`: one run against other grammar engines, on one thread."""

    model_path: str | None = flag(None, "whose tokenizer (default: the embedded model)")
    traces: str | None = flag(None, "tools of these, .jsonl or .jsonl.gz (default: the sample)")
    tools: int = flag(100, "distinct tools at most")
    stock_tools: int = flag(10, "of these, with stock outlines-core, which is slow")
    rounds: int = flag(5, "times a warm figure is taken; the median counts")
    json: str | None = flag(None, "write everything measured to this file")

    def __post_init__(self) -> None:
        for name in ("tools", "rounds"):
            _at_least(1, "--" + name, getattr(self, name))
        _at_least(0, "--stock-tools", self.stock_tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """`specrt bench host`: what a turn costs besides passes, with a tiny random model."""

    tokens: str = flag("8192,32768,131072", "comma-separated lengths of the conversation")
    turns: int = flag(5, "turns measured at each length; the median counts")
    json: str | None = flag(None, "write everything measured to this file")

    def __post_init__(self) -> None:
        _at_least(1, "--turns", self.turns)
        if not self.lengths or min(self.lengths) < 4096:
            raise ConfigError(f"--tokens: expected numbers from 4096 on, got {self.tokens!r}")

    @property
    def lengths(self) -> list[int]:
        """The lengths; empty when --tokens is no list of numbers."""
        return _numbers(self.tokens)
