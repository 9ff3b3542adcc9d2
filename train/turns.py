"""Assistant turns as the target model itself writes them, under the serving prompt and grammar.

A draft head is to guess what the target says next, so it learns from the target's own turns; the
recorded conversation only leads up to them. Source: EAGLE-3 (arXiv 2503.01840), SpecForge's data
regeneration. Recorded turns, too, can be learned from: they teach what a better model would say.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specrt.bench.generator import EngineGenerator, engine_config
from specrt.bench.recorded import recorded_text, tokens_under
from specrt.bench.token_kinds import forced_tokens
from specrt.config import DRAFT_SOURCES
from specrt.errors import RequestError
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.format_detection import find_format
from specrt.grammars.prompt_builder import make_prompt_builder
from specrt.grammars.recipes import build_recipe
from specrt.grammars.tool_format import ToolFormat
from specrt.model.converted import sha256
from specrt.model.loader import resolve_model_folder
from specrt.progress import Progress
from specrt.request import EngineRequest, SamplingParams
from specrt.speculative.sources import make_tree_builder
from specrt.train.traces import TrainingTrace, split
from specrt.train.training_options import TurnOptions
from specrt.train.turn_file import Turn, TurnCounts, TurnFile

# Turns of one source in a row; they share prompts, and a file cut anywhere is still a mixture.
_RUN_LENGTH = 16
# Traces with the same tools in a row, before another tool list of the source has its turn.
_TRACES_IN_A_ROW = 4
# Turns between two points at which a killed run can go on; the KV cache starts empty at each.
_BLOCK_SIZE = 32

_Item = TypeVar("_Item")
_Output = tuple[list[int], str]  # token ids, finish reason


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn to be made: the reply to `trace.messages[:position]`."""

    trace: TrainingTrace
    position: int
    is_held: bool

    @property
    def id(self) -> str:
        """Unique in the file of traces."""
        return f"{self.trace.trace_id}[{self.position}]"

    @property
    def recorded_id(self) -> str:
        """Of the recorded reply; tells it from the target's own."""
        return f"{self.id}:recorded"


def place_of(turn_id: str) -> tuple[str, int]:
    """(trace id, message index) of a turn, the target's own or recorded."""
    trace_id, _, rest = turn_id.rpartition("[")
    return trace_id, int(rest.partition("]")[0])


def plan_turns(traces: Sequence[TrainingTrace], options: TurnOptions) -> list[PlannedTurn]:
    """The turns in the order in which they are made.

    Sources take turns, and so do the tool lists of a source, so that the beginning of the order is
    a fair sample of the whole; turns of one trace, and a few traces with equal tools, stay
    together, since they share cached prompts.
    """
    _, held = split(traces, options.holdout)
    held_ids = {trace.trace_id for trace in held}
    by_source: dict[str, dict[str, list[TrainingTrace]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        by_source[trace.source.split("/")[0]][trace.tools_key].append(trace)
    runs = []
    for by_tools in by_source.values():
        ordered = _round_robin([_batched(group, _TRACES_IN_A_ROW) for group in by_tools.values()])
        turns = [
            PlannedTurn(trace, position, trace.trace_id in held_ids)
            for group in ordered
            for trace in group
            for position in trace.turns[: options.max_turns_per_trace]
            if options.continuations != "recorded" or position < len(trace.messages)
        ]
        runs.append(_batched(turns, _RUN_LENGTH))
    return [turn for run in _round_robin(runs) for turn in run]


def _batched(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _round_robin(lists: Iterable[Sequence[_Item]]) -> list[_Item]:
    """The first of each, then the second of each that has one, ..."""
    missing = object()
    rounds = itertools.zip_longest(*lists, fillvalue=missing)
    return [item for round_ in rounds for item in round_ if item is not missing]  # type: ignore[misc]


def regenerate(traces: Sequence[TrainingTrace], options: TurnOptions, work_dir: Path) -> TurnCounts:
    """Make the turns and write them to turns.jsonl, going on where an earlier run stopped.

    Args:
        traces: all of them, training and held-out ones.
        options: how.
        work_dir: folder of the file.

    Returns:
        What the file holds now.

    Raises:
        ConfigError: the file was made with something else, or the model cannot be used.
    """
    blocks = _batched(plan_turns(traces, options), _BLOCK_SIZE)
    limit = options.max_supervised_tokens
    file = TurnFile(work_dir, _made_with(traces, options))
    try:
        pending = blocks[file.num_blocks :]
        if pending and (limit is None or file.counts.tokens < limit):
            maker = _TurnMaker(options)
            if limit is None:
                progress = Progress("blocks of turns", len(blocks), file.num_blocks)
            else:
                progress = Progress("output tokens", limit, file.counts.tokens)
            for block in pending:
                turns, too_long, failed = maker.make(block)
                file.append(turns, too_long=too_long, failed=failed)
                progress.update(file.num_blocks if limit is None else file.counts.tokens)
                if limit is not None and file.counts.tokens >= limit:
                    break
            progress.close()
        return file.counts
    finally:
        file.close()


def model_digest(model_path: str | None) -> str:
    """SHA-256, hex, of the target's weights, config and tokenizer.

    Raises:
        ConfigError: there is no such model.
    """
    folder = resolve_model_folder(model_path).folder
    patterns = ("config.json", "tokenizer*.json", "chat_template.jinja", "*.safetensors")
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


def _made_with(traces: Sequence[TrainingTrace], options: TurnOptions) -> dict[str, Any]:
    """All that decides the content of the file. More supervised tokens only make it longer."""
    content = hashlib.sha256()
    for trace in traces:
        row = [trace.trace_id, trace.source, trace.tools, trace.messages]
        content.update(json.dumps(row).encode())
    names = (
        "continuations",
        "temperature",
        "max_tokens",
        "max_prompt_tokens",
        "max_turns_per_trace",
        "holdout",
        "batch_size",
    )
    return {
        "--model-path": model_digest(options.model_path),
        "--traces": content.hexdigest(),
        **{"--" + name.replace("_", "-"): getattr(options, name) for name in names},
    }


def turn_recipe(
    trace: TrainingTrace, position: int, tool_format: ToolFormat
) -> GrammarRecipe | None:
    """What the reply to `trace.messages[:position]` has to look like; a call where one is recorded.

    Raises:
        RequestError: a tool cannot be used.
    """
    must_call = position < len(trace.messages) and bool(trace.messages[position].get("tool_calls"))
    choice = None if not trace.tools else "required" if must_call else "auto"
    return build_recipe(trace.tools, tool_choice=choice, tool_format=tool_format.name)


class _TurnMaker:
    """Makes blocks of turns; each is a function of its turns, the model and the options alone."""

    def __init__(self, options: TurnOptions) -> None:
        self._options = options
        longest = options.max_prompt_tokens + options.max_tokens + 64  # 64: rows of draft trees
        config = engine_config(
            options.model_path,
            ",".join(DRAFT_SOURCES),
            num_threads=options.num_threads,
            max_total_tokens=longest * (options.batch_size + 4),
        )
        self._generator = EngineGenerator(config)
        self._engine = self._generator.engine
        self._format = find_format(self._engine.tokenizer)
        self._prompts = make_prompt_builder(self._engine.tokenizer, self._format)
        self._max_prompt_tokens = min(
            options.max_prompt_tokens, self._engine.context_length - options.max_tokens
        )

    def make(self, block: Sequence[PlannedTurn]) -> tuple[list[Turn], int, int]:
        """(turns, how many had too long a prompt, how many failed)."""
        ready: list[tuple[PlannedTurn, EngineRequest]] = []
        too_long = failed = 0
        for planned in block:
            try:
                request = self._request(planned)
            except (
                RequestError
            ):  # a schema that no grammar can take, a message the template refuses
                failed += 1
                continue
            if len(request.prompt_token_ids) > self._max_prompt_tokens:
                too_long += 1
            else:
                ready.append((planned, request))
        kind = self._options.continuations
        made: list[tuple[str, PlannedTurn, EngineRequest, _Output | None]] = []
        if kind != "recorded":
            outputs = self._generate([request for _, request in ready])
            for (planned, request), output in zip(ready, outputs, strict=True):
                made.append((planned.id, planned, request, output))
        if kind != "regenerated":
            for planned, request in ready:
                if planned.position < len(planned.trace.messages):
                    output = self._recorded(planned, request)
                    made.append((planned.recorded_id, planned, request, output))
        turns = []
        for turn_id, planned, request, output in made:
            if output is None:
                failed += 1
                continue
            token_ids, reason = output
            turns.append(
                Turn(
                    turn_id,
                    planned.trace.source,
                    planned.is_held,
                    request.prompt_token_ids,
                    token_ids,
                    self._forced(request.grammar, token_ids),
                    reason,
                )
            )
        return turns, too_long, failed

    def _request(self, planned: PlannedTurn) -> EngineRequest:
        trace, position = planned.trace, planned.position
        prompt = self._prompts.build(trace.messages[:position], trace.tools)
        recipe = turn_recipe(trace, position, self._format)
        if recipe is not None:
            self._engine.worker.compiler.compile(recipe)
        seed = hashlib.sha256(planned.id.encode("utf-8", "surrogatepass")).digest()[:8]
        sampling = SamplingParams(
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
            seed=int.from_bytes(seed, "big"),
        )
        return EngineRequest(
            request_id=planned.id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            grammar=recipe,
        )

    def _generate(self, requests: list[EngineRequest]) -> list[_Output | None]:
        """The target's own turns; None = it failed."""
        # Nothing of the blocks before, and no measured time, may decide the shape of a pass: where
        # two tokens tie up to rounding, the shape decides.
        self._engine.flush_cache()
        self._engine.worker.builder = make_tree_builder(DRAFT_SOURCES, self._engine.tokenizer)
        outputs = self._generator.generate(requests, self._options.batch_size)
        return [
            (output.token_ids, output.finish_reason) if output.error is None else None
            for output in outputs
        ]

    def _recorded(self, planned: PlannedTurn, request: EngineRequest) -> _Output | None:
        """The recorded turn; None where the target could not have said it."""
        called = planned.trace.messages[planned.position].get("tool_calls")
        whole = self._call(planned, request) if called else self._reply(planned, request)
        if not whole:
            return None
        output = whole[: self._options.max_tokens]
        return output, "stop" if len(output) == len(whole) else "length"

    def _call(self, planned: PlannedTurn, request: EngineRequest) -> list[int] | None:
        """A recorded call in the serving style, in the tokens that the grammar takes."""
        trace = planned.trace
        text = recorded_text(trace.messages[planned.position], trace.tools, self._format)
        if text is None or request.grammar is None:
            return None
        grammar = self._engine.worker.compiler.compile(request.grammar).open()
        tokenizer = self._engine.tokenizer
        return tokens_under(grammar, text, tokenizer, tokenizer.eos_token_ids[0])

    def _reply(self, planned: PlannedTurn, request: EngineRequest) -> list[int] | None:
        """A recorded turn without calls as the next prompt has it; None if it begins otherwise."""
        trace, before = planned.trace, request.prompt_token_ids
        try:
            after = self._prompts.build(trace.messages[: planned.position + 1], trace.tools)
        except RequestError:
            return None
        if after.token_ids[: len(before)] != before:
            return None
        ends = self._engine.worker.eos_token_ids
        rest = after.token_ids[len(before) :]
        length = next((at for at, token in enumerate(rest, 1) if token in ends), None)
        return None if length is None else rest[:length]

    def _forced(self, recipe: GrammarRecipe | None, token_ids: list[int]) -> list[bool]:
        worker = self._engine.worker
        grammar = None if recipe is None else worker.compiler.compile(recipe).open()
        return forced_tokens(grammar, token_ids, worker.eos_token_ids)
