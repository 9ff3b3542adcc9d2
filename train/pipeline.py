"""`specrt train-draft`: traces -> turns -> packs -> features -> a trained head and its card.

Everything on the way is kept in `<out>/work` and made once: a command that was killed goes on where
it was when it is given again, and ends with the same head.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import torch

from specrt import __version__
from specrt.bench.token_kinds import token_regions
from specrt.draft_heads.checkpoint import HeadCheckpoint, load_head, save_head, vocabulary_hash
from specrt.draft_heads.config import default_capture_layers
from specrt.draft_heads.config_writer import config_json
from specrt.errors import ConfigError
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.format_detection import find_format
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.decoder import TargetModel
from specrt.model.loader import ModelFolder, resolve_model_folder
from specrt.model.weights import load_folder
from specrt.tokenizer import Tokenizer
from specrt.train.acceptance import TurnLabels
from specrt.train.features import FeatureOptions, load_pack, write_features
from specrt.train.grammar_masks import GrammarMasks, walk_grammars
from specrt.train.numbers import command_line, data_sources, training_numbers
from specrt.train.packs import build_packs
from specrt.train.record import FitRecord, FitResult
from specrt.train.report import model_card, summary
from specrt.train.traces import TrainingTrace, load_training_traces
from specrt.train.trainer import fit
from specrt.train.training_options import TrainDraftOptions
from specrt.train.training_page import training_page
from specrt.train.turn_file import Turn, TurnCounts, load_turns
from specrt.train.turns import model_digest, place_of, regenerate, turn_recipe

NUMBERS_NAME, PAGE_NAME = "training.json", "report.html"


@dataclass(frozen=True, slots=True)
class _Job:
    """What a head is made from and for."""

    options: TrainDraftOptions
    target: ModelFolder
    traces: Sequence[TrainingTrace]
    turns: Sequence[Turn]
    counts: TurnCounts
    out: Path

    @property
    def work_dir(self) -> Path:
        return self.out / "work"


def run(options: TrainDraftOptions) -> int:
    """Train a head, write it to --out, print what came out.

    SIGINT or SIGTERM while it trains ends it after the step: the best head so far is written, and
    the same command goes on from there.

    Returns:
        0, or 130 if it was stopped.

    Raises:
        ConfigError: an option, the traces, the target or the head to start from cannot be used.
    """
    assert options.traces is not None and options.out is not None
    out = Path(options.out)
    if options.turns.num_threads is not None:
        torch.set_num_threads(options.turns.num_threads)
    target = resolve_model_folder(options.turns.model_path)
    traces = load_training_traces(options.traces)
    # Before the long work: the device, the head to start from or the target may be the wrong one.
    _check_device(options.training.device)
    start = _start(options, target)
    layers = _capture_layers(target, start)
    counts = regenerate(traces, options.turns, out / "work")
    print(f"turns: {counts}")
    turns = load_turns(out / "work", options.turns.max_supervised_tokens)
    if not any(not turn.is_held for turn in turns):
        raise ConfigError(
            "--traces: no turn is left to learn from; see --max-prompt-tokens and --holdout"
        )
    job = _Job(options, target, traces, turns, counts, out)
    result = _fit(job, layers, start)
    _write(job, result)
    print(summary(result))
    print(f"wrote {out}; serve it with --speculative-draft-model-path {shlex.quote(str(out))}")
    print(f"report: {out / PAGE_NAME}")
    if not result.is_finished:
        print("the same command goes on from here")
        return 130
    return 0


def _start(options: TrainDraftOptions, target: ModelFolder) -> HeadCheckpoint | None:
    """The head to continue."""
    if options.init_from is None:
        return None
    config, weights = load_folder(target.folder)
    embedding = weights["model.embed_tokens.weight"]
    shared = {
        "embed_tokens.weight": embedding,
        "lm_head.weight": embedding if config.tied else weights["lm_head.weight"],
    }
    head, _ = load_head(Path(options.init_from), config, shared, target.folder)
    config_json(head.config, options.format)  # refuses what the layout cannot say
    # --with-embeddings writes the target's, rounded.
    rounded = embedding.bfloat16().float()
    if head.embedding is not None and torch.equal(head.embedding, rounded):
        head.embedding = None
    return head


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"--device: {name!r} cannot be used: {first_line}") from None


def _capture_layers(target: ModelFolder, start: HeadCheckpoint | None) -> tuple[int, ...]:
    if start is not None:
        return start.config.capture_layers
    return default_capture_layers(target.config.num_layers)


def _fit(job: _Job, layers: tuple[int, ...], start: HeadCheckpoint | None) -> FitResult:
    options = job.options
    trees, left_out = build_packs(job.turns, options.max_pack_rows)
    if left_out:
        print(f"{left_out} turns are longer than --max-pack-rows {options.max_pack_rows}: left out")
    if all(tree.held for tree in trees):
        raise ConfigError(
            f"--max-pack-rows: no turn to learn from fits {options.max_pack_rows} tokens"
        )
    folder = job.target.folder
    config, weights = load_folder(folder)
    feature_options = FeatureOptions(
        capture_layers=layers,
        model_digest=model_digest(options.turns.model_path),
        max_disk_gb=options.max_disk_gb,
    )
    paths = write_features(trees, TargetModel(config, weights), feature_options, job.work_dir)
    loaders = [partial(load_pack, path) for path in paths]
    tokenizer = Tokenizer(folder, config.vocab_size, config.eos_token_ids)
    vocabulary = Vocabulary(tokenizer.tokenizer_json(), config.vocab_size, tokenizer.eos_token_ids)
    digest = hashlib.sha256("".join(tree.digest() for tree in trees).encode()).hexdigest()
    masks = None if options.training.unmasked else _masks(job, tokenizer, vocabulary)
    with _stopped_by_signals() as should_stop:
        return fit(
            job.work_dir,
            [load for load, tree in zip(loaders, trees, strict=True) if not tree.held],
            [load for load, tree in zip(loaders, trees, strict=True) if tree.held],
            config,
            weights,
            options.training,
            token_bytes=vocabulary.token_bytes,
            capture_layers=layers,
            start=start,
            data_digest=digest,
            labels=_labels(job.turns, tokenizer),
            masks=masks,
            should_stop=should_stop,
            on_saved=partial(_write_numbers, job),
        )


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """Inside, a first SIGINT or SIGTERM only makes the function return True."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for one in before:
            signal.signal(one, before[one])
        print("stopping after this step; once more to stop at once", file=sys.stderr)

    before = {}
    if threading.current_thread() is threading.main_thread():  # only there may handlers be set
        before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _labels(turns: Sequence[Turn], tokenizer: Tokenizer) -> dict[str, TurnLabels]:
    """Data set and regions of the held-out turns."""
    trigger = find_format(tokenizer).json_trigger
    return {
        turn.id: TurnLabels(
            turn.source.split("/")[0],
            token_regions(map(tokenizer.token_bytes, turn.output_ids), trigger),
        )
        for turn in turns
        if turn.is_held
    }


def _masks(job: _Job, tokenizer: Tokenizer, vocabulary: Vocabulary) -> GrammarMasks:
    """What the grammar allowed in the turns."""
    by_id = {trace.trace_id: trace for trace in job.traces}
    tool_format = find_format(tokenizer)
    recipes: dict[str, GrammarRecipe] = {}
    for turn in job.turns:
        trace_id, position = place_of(turn.id)
        recipe = turn_recipe(by_id[trace_id], position, tool_format)
        if recipe is not None:
            recipes[turn.id] = recipe
    return walk_grammars(job.turns, recipes, vocabulary, GrammarCompiler(vocabulary))


def _write(job: _Job, result: FitResult) -> None:
    """Checkpoint, model card, and the numbers with their page."""
    options, target = job.options, job.target
    sources = data_sources(job.traces, job.turns)
    supervised = sum(source.tokens for source in sources)
    provenance = {
        "target": target.name,
        "vocabulary_sha256": vocabulary_hash(target.folder),
        "capture_layers": list(result.head.config.capture_layers),
        "architecture": target.config.architecture,
        "steps": options.training.steps,
        "supervised_tokens": supervised,
        "version": __version__,
    }
    head = result.head
    head.config = dataclasses.replace(head.config, provenance=provenance)
    embedding = None
    if options.with_embeddings:
        embedding = load_folder(target.folder)[1]["model.embed_tokens.weight"]
    save_head(job.out, head, embedding, options.format)
    card = model_card(
        result,
        options.training,
        target=target.name,
        licence=options.licence,
        sources=sources,
        command=command_line(options),
        continuations=options.turns.continuations,
        numbers={"supervised tokens": str(supervised)},
    )
    _replace(job.out / "README.md", card)
    _write_numbers(job, result)


def _write_numbers(job: _Job, record: FitRecord) -> None:
    """training.json and its page, as far as the run has come."""
    numbers = training_numbers(
        record,
        job.options,
        target=job.target.name,
        counts=job.counts,
        sources=data_sources(job.traces, job.turns),
    )
    text = json.dumps(numbers, indent=1) + "\n"
    _replace(job.out / NUMBERS_NAME, text)
    _replace(job.out / PAGE_NAME, training_page(json.loads(text)))


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial_path = path.with_name(path.name + ".partial")
    partial_path.write_text(text, encoding="utf-8")
    os.replace(partial_path, path)
