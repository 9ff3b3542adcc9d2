"""The engine: requests in, text out, one step at a time.

`step()` is the whole loop: schedule -> execute -> commit -> detokenise. It knows no HTTP and no
process; `async_engine.py` runs it in a process of its own, `llm.py` in the caller's.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from specrt.attention.torch_backend import TorchAttention
from specrt.cache.kv_store import KVStore, bytes_per_slot
from specrt.cache.manager import CacheManager
from specrt.config import EngineConfig, SpeculativeConfig
from specrt.draft_heads.checkpoint import load_head
from specrt.draft_heads.eagle3 import Eagle3Head
from specrt.draft_heads.runner import NUM_SCRATCH_SLOTS, HeadRunner, extra_planes
from specrt.draft_heads.shipped import shipped_head
from specrt.errors import ConfigError
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.table_store import TableStore, default_folder
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.config import TargetConfig
from specrt.model.loader import LoadedModel, load_target
from specrt.model.weights import weight_shapes
from specrt.plan import RequestResult
from specrt.request import (
    DraftStats,
    EngineRequest,
    FinishReason,
    RequestOutput,
    RequestStats,
    TokenLogprob,
)
from specrt.scheduler import ScheduledRequest, Scheduler
from specrt.speculative.base import Drafter
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import Pace, PassCost, measure
from specrt.speculative.head_drafter import HeadDrafter
from specrt.speculative.shared_outputs import SharedOutputs
from specrt.speculative.sources import make_tree_builder
from specrt.speculative.tree_builder import TreeBuilder
from specrt.text_output import TextOutput
from specrt.tokenizer import Tokenizer
from specrt.worker import Worker

logger = logging.getLogger(__name__)

# Without --max-total-tokens the cache holds this many whole contexts (memory is touched on use).
DEFAULT_CONTEXTS = 8
# Generation throughput is averaged over windows of this length (seconds).
THROUGHPUT_WINDOW_S = 2.0
_WAVE_ROWS = (1, 2, 4, 8, 16, 32)


class _Live(NamedTuple):
    """A request in flight with its text so far."""

    entry: ScheduledRequest
    text: TextOutput


@dataclass(slots=True)
class EngineCounters:
    """Cumulative counts since start; seconds where named `_s`."""

    requests_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    passes_total: int = 0
    rows_total: int = 0
    decisions_total: int = 0
    draft_s: float = 0.0
    forward_s: float = 0.0
    accept_s: float = 0.0
    step_s: float = 0.0


class LLMEngine:
    """Continuous batching over one worker; synchronous and single-threaded."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model, size the cache, time the passes.

        Raises:
            ConfigError: a flag or a model file cannot be used.
        """
        self.config = config
        torch.set_num_threads(config.model.num_threads or _physical_cores())
        loaded = load_target(config.model.model_path)
        self.model_name = next(iter(config.model.served_names), loaded.name)
        target = loaded.config
        self.context_length = _context_length(config, target)
        self.tokenizer = Tokenizer(loaded.folder, target.vocab_size, target.eos_token_ids)
        vocabulary = Vocabulary(
            self.tokenizer.tokenizer_json(), target.vocab_size, self.tokenizer.eos_token_ids
        )
        head = _load_head(config.speculative, loaded)
        planes = extra_planes(head) if head is not None else {}
        slot_bytes = bytes_per_slot(
            target.num_layers, target.num_kv_heads, target.head_dim, extra=planes
        )
        num_slots = _num_slots(config, slot_bytes, self.context_length)
        self._kv_bytes = num_slots * slot_bytes
        self._weight_bytes = 4 * sum(map(math.prod, weight_shapes(target).values()))  # float32
        store = KVStore(
            num_slots + (NUM_SCRATCH_SLOTS if head is not None else 0),
            target.num_layers,
            target.num_kv_heads,
            target.head_dim,
            extra=planes,
        )
        runner = HeadRunner(head, store, num_slots) if head is not None else None
        self.cache = CacheManager(num_slots, check=config.cache.check_cache)
        is_drafting = config.speculative.has_sources or runner is not None
        self.scheduler = Scheduler(
            config.scheduler,
            self.cache,
            context_length=self.context_length,
            max_tree_rows=config.speculative.max_tree_rows if is_drafting else 0,
        )
        self.worker = Worker(
            loaded.model,
            store,
            TorchAttention(store, target.num_heads),
            GrammarCompiler(
                vocabulary,
                backend=config.grammar.grammar_backend,
                open_arguments=config.grammar.open_arguments,
                store=TableStore(default_folder()),
            ),
            None,
            self.tokenizer.eos_token_ids,
            runner,
        )
        self.worker.compiler.warm()
        self.pass_cost: PassCost | None = None
        self._head_cost: PassCost | None = None
        if is_drafting:
            self.pass_cost = measure(self.worker.time_pass)
            logger.info("milliseconds of a pass by rows: %s", self.pass_cost)
            if runner is not None:
                self._head_cost = measure(runner.time_wave, _WAVE_ROWS)
                logger.info("milliseconds of a wave of the draft head by rows: %s", self._head_cost)
            self.worker.builder = self.make_builder(config.speculative)
        self.counters = EngineCounters()
        self._drafts = DraftStats()
        self._live: dict[str, _Live] = {}
        self._window_start = time.perf_counter()
        self._window_tokens = 0
        self._last_throughput = 0.0

    def make_builder(self, options: SpeculativeConfig, *, is_masked: bool = True) -> TreeBuilder:
        """A tree builder of this engine that has learned nothing yet.

        Args:
            options: what drafts; a head that the engine has not loaded does not.
            is_masked: False lets the head propose what the grammar forbids; see `HeadDrafter`.
        """
        make_head_drafter: Callable[[Calibration, Pace], Drafter] | None = None
        if self.worker.head is not None and options.uses_head:
            make_head_drafter = functools.partial(
                HeadDrafter,
                self.worker.head,
                vocab_size=self.worker.model.config.vocab_size,
                num_steps=options.speculative_num_steps,
                topk=options.speculative_eagle_topk,
                target_cost=self.pass_cost,
                head_cost=self._head_cost,
                is_masked=is_masked,
            )
        return make_tree_builder(
            options.sources,
            self.tokenizer,
            self.pass_cost,
            make_head_drafter,
            SharedOutputs(options.shared_history_tokens) if options.has_shared_history else None,
        )

    # ---- requests ----------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            ContextLengthError: it can never fit.
            RequestError: its id is in flight.
        """
        entry = self.scheduler.add(request)
        sampling = request.sampling
        text = TextOutput(
            self.tokenizer,
            sampling.stop,
            min_tokens=sampling.min_tokens,
            include_stop=sampling.include_stop,
            kept_ids=self.worker.compiler.marker_ids(request.grammar),
        )
        self._live[request.request_id] = _Live(entry, text)
        self.counters.requests_total += 1

    def abort(self, request_id: str) -> bool:
        """End a request in this step; its computed prefix stays cached. False = not in flight."""
        live = self._live.pop(request_id, None)
        if live is None:
            return False
        self._count(live.entry)
        self.scheduler.finish(live.entry)
        return True

    @property
    def has_work(self) -> bool:
        """Is any request unfinished?"""
        return self.scheduler.has_work

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False (and nothing done) while requests are in flight."""
        if self.has_work:
            return False
        self.cache.flush()
        return True

    # ---- the loop ----------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One pass; what it added to each request that moved on."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        if plan is None:
            return []
        result = self.worker.execute(plan)
        outputs = []
        num_decisions = 0
        for entry, row in self.scheduler.commit(result):
            output = self._output(entry, row)
            num_decisions += bool(row.new_token_ids)
            if output is not None:
                outputs.append(output)
        counters = self.counters
        counters.passes_total += 1
        counters.decisions_total += num_decisions
        counters.rows_total += result.num_rows
        counters.draft_s += result.draft_s
        counters.forward_s += result.forward_s
        counters.accept_s += result.accept_s
        counters.step_s += time.perf_counter() - start
        self._measure_throughput(sum(len(o.token_ids) for o in outputs))
        return outputs

    def _output(self, entry: ScheduledRequest, row: RequestResult) -> RequestOutput | None:
        """Text and finish reason for one result; takes a finished request out."""
        request = entry.request
        text_output = self._live[request.request_id].text
        if row.error is not None:
            return self._finish(entry, [], "", None, "error", error=row.error)
        new = row.new_token_ids
        if not new:
            return None
        piece = text_output.push(new[:-1] if row.is_stopped else new)
        text, logprobs = piece.text, row.logprobs
        reason: FinishReason | None = None
        if piece.is_stopped:
            reason = "stop"
            new = new[: piece.num_tokens]
            logprobs = logprobs[: piece.num_tokens] if logprobs is not None else None
            entry_end = len(entry.token_ids) - len(row.new_token_ids) + len(new)
            return self._finish(entry, new, text, logprobs, reason, end=entry_end, cut=piece.cut)
        cut = False
        if row.is_stopped:
            reason = "stop"
            cut = new[-1] not in self.worker.eos_token_ids
        elif entry.max_new_tokens == 0:
            reason = "length"
        if reason is not None:
            return self._finish(entry, new, text + text_output.flush(), logprobs, reason, cut=cut)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=new,
            text=text,
            logprobs=logprobs,
            stats=_snapshot(entry),
        )

    def _finish(
        self,
        entry: ScheduledRequest,
        token_ids: list[int],
        text: str,
        logprobs: list[TokenLogprob] | None,
        reason: FinishReason,
        *,
        error: str | None = None,
        end: int | None = None,
        cut: bool = False,
    ) -> RequestOutput:
        self.scheduler.finish(entry, end)
        entry.stats.num_output_tokens = entry.num_output_tokens
        self._count(entry)
        del self._live[entry.request.request_id]
        return RequestOutput(
            request_id=entry.request.request_id,
            token_ids=token_ids,
            text=text,
            logprobs=logprobs,
            finish_reason=reason,
            error=error,
            stats=_snapshot(entry),
            stop_cut=cut,
        )

    # ---- statistics --------------------------------------------------------------------------

    def _count(self, entry: ScheduledRequest) -> None:
        """Add a request that ends to the totals."""
        self.counters.prompt_tokens_total += entry.stats.num_prompt_tokens
        self.counters.cached_tokens_total += entry.stats.num_cached_tokens
        self.counters.output_tokens_total += entry.stats.num_output_tokens
        self._drafts.add(entry.stats.drafts)

    def _measure_throughput(self, num_tokens: int) -> None:
        self._window_tokens += num_tokens
        elapsed = time.perf_counter() - self._window_start
        if elapsed >= THROUGHPUT_WINDOW_S:
            self._last_throughput = self._window_tokens / elapsed
            self._window_start = time.perf_counter()
            self._window_tokens = 0

    def stats(self) -> dict[str, object]:
        """Cumulative counters and gauges as plain JSON."""
        counters = {name: getattr(self.counters, name) for name in EngineCounters.__slots__}
        slots = self.cache.stats()
        caches = self.worker.compiler.counters()._asdict()
        drafts = self._drafts.copy()
        return counters | {
            "num_running": len(self.scheduler.running),
            "num_waiting": len(self.scheduler.waiting),
            "num_total_slots": slots.num_total,
            "num_free_slots": slots.num_free,
            "num_cached_slots": slots.num_cached,
            "num_held_slots": slots.num_held,
            "evicted_total": slots.evicted_total,
            "retractions_total": self.scheduler.num_retractions,
            "drafted_total": drafts.drafted,
            "accepted_total": drafts.accepted,
            "invalid_drafts_total": drafts.num_invalid,
            "tokens_of_passes_total": drafts.tokens_of_passes,
            **{
                f"grammar_cache_{name}": {
                    cache: getattr(found, name) for cache, found in caches.items()
                }
                for name in ("hits", "misses", "evictions", "entries", "bytes")
            },
            "last_gen_throughput": self._last_throughput,
            "kv_bytes": self._kv_bytes,
            "weight_bytes": self._weight_bytes,
            "context_length": self.context_length,
            "model_name": self.model_name,
        }


def _snapshot(entry: ScheduledRequest) -> RequestStats:
    stats = entry.stats
    return replace(stats, drafts=stats.drafts.copy())


def _context_length(config: EngineConfig, target: TargetConfig) -> int:
    wanted = config.model.context_length
    if wanted is None:
        return target.max_positions
    if wanted > target.max_positions:
        raise ConfigError(
            f"--context-length: {wanted} is more than the model's own context of"
            f" {target.max_positions} tokens"
        )
    return wanted


def _load_head(config: SpeculativeConfig, loaded: LoadedModel) -> Eagle3Head | None:
    """The head to draft with: the one named, or the one that ships for this model."""
    if not config.uses_head:
        return None
    path = config.speculative_draft_model_path
    folder = Path(path).expanduser() if path is not None else shipped_head(loaded.name)
    if folder is None:
        if config.speculative == "auto":
            logger.info("no draft head ships for %s: drafting without one", loaded.name)
            return None
        raise ConfigError(
            f"--speculative eagle: no draft head ships for {loaded.name}; name one with"
            " --speculative-draft-model-path, or train one: specrt train-draft"
        )
    try:
        checkpoint, embedding = load_head(folder, loaded.config, loaded.shared, loaded.folder)
    except ConfigError as error:
        if path is not None or config.speculative == "eagle":
            raise
        # Another model by the name of one that a head ships for.
        logger.info("the draft head that ships does not fit: %s; drafting without one", error)
        return None
    logger.info("draft head: %s", folder)
    return Eagle3Head(checkpoint, embedding, loaded.config.max_positions)


def _num_slots(config: EngineConfig, slot_bytes: int, context_length: int) -> int:
    """Slots of the KV cache: what was asked for, or whole contexts within the memory share."""
    allowed = int(_free_memory() * config.cache.mem_fraction_static) // slot_bytes
    wanted = config.cache.max_total_tokens
    if wanted is None:
        wanted = min(allowed, DEFAULT_CONTEXTS * context_length)
    elif wanted > allowed:
        raise ConfigError(
            f"--max-total-tokens: {wanted} tokens take {wanted * slot_bytes / 2**30:.1f} GiB, but"
            f" --mem-fraction-static {config.cache.mem_fraction_static} leaves"
            f" {allowed * slot_bytes / 2**30:.1f} GiB ({allowed} tokens)"
        )
    return wanted


def _free_memory() -> int:
    """Bytes of memory that a new process could use."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: half of the physical memory is the best portable estimate
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _physical_cores() -> int:
    """Cores this process may use; hyperthread siblings do not help matrix products."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    return max(1, min(usable, torch.get_num_threads()))
