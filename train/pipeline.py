"""`specrt train-draft`: traces -> turns -> packs -> features -> a trained head and its card.

Everything on the way is kept in `<out>/work` and made once: a command that was killed goes on where
it was when it is given again, and ends with the same head.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from specrt import __version__
from specrt.draft_heads.checkpoint import HeadCheckpoint, load_head, save_head, vocabulary_hash
from specrt.draft_heads.config import default_capture_layers
from specrt.errors import ConfigError
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.prompt_builder import find_format
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.decoder import TargetModel
from specrt.model.loader import ModelFolder, resolve_model_folder
from specrt.model.weights import load_folder
from specrt.tokenizer import Tokenizer
from specrt.train.features import FeatureOptions, load_pack, write_features
from specrt.train.grammar_masks import GrammarMasks, walk_grammars
from specrt.train.packs import build_packs
from specrt.train.report import DataSource, model_card, summary
from specrt.train.traces import TrainingTrace, load_training_traces
from specrt.train.trainer import FitResult, fit
from specrt.train.training_options import TrainDraftOptions
from specrt.train.turn_file import Turn, load_turns
from specrt.train.turns import model_digest, place_of, regenerate, turn_recipe


def run(options: TrainDraftOptions) -> int:
    """Train a head, write it to --out, print what came out.

    Returns:
        0.

    Raises:
        ConfigError: an option, the traces, the target or the head to start from cannot be used.
    """
    assert options.traces is not None and options.out is not None
    out = Path(options.out)
    work_dir = out / "work"
    if options.turns.num_threads is not None:
        torch.set_num_threads(options.turns.num_threads)
    target = resolve_model_folder(options.turns.model_path)
    traces = load_training_traces(options.traces)
    # Before the long work: the device, the head to start from or the target may be the wrong one.
    _check_device(options.training.device)
    start = _start(options, target)
    layers = _capture_layers(target, start)
    counts = regenerate(traces, options.turns, work_dir)
    print(f"turns: {counts}")
    turns = load_turns(work_dir, options.turns.max_supervised_tokens)
    if not any(not turn.is_held for turn in turns):
        raise ConfigError(
            "--traces: no turn is left to learn from; see --max-prompt-tokens and --holdout"
        )
    result = _fit(options, target, traces, turns, work_dir, layers, start)
    _write(options, target, traces, turns, result, out)
    print(summary(result))
    print(f"wrote {out}; serve it with --speculative-draft-model-path {shlex.quote(str(out))}")
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
    head, own = load_head(Path(options.init_from), config, shared, target.folder)
    is_borrowed = own is embedding
    # --with-embeddings writes the target's, rounded.
    if not is_borrowed and not torch.equal(own, embedding.bfloat16().float()):
        raise ConfigError(
            f"--init-from: {options.init_from} has an embedding of its own; only heads that use"
            " the target's can be continued"
        )
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


def _fit(
    options: TrainDraftOptions,
    target: ModelFolder,
    traces: Sequence[TrainingTrace],
    turns: Sequence[Turn],
    work_dir: Path,
    layers: tuple[int, ...],
    start: HeadCheckpoint | None,
) -> FitResult:
    trees, left_out = build_packs(turns, options.max_pack_rows)
    if left_out:
        print(f"{left_out} turns are longer than --max-pack-rows {options.max_pack_rows}: left out")
    if all(tree.held for tree in trees):
        raise ConfigError(
            f"--max-pack-rows: no turn to learn from fits {options.max_pack_rows} tokens"
        )
    config, weights = load_folder(target.folder)
    feature_options = FeatureOptions(
        capture_layers=layers,
        model_digest=model_digest(options.turns.model_path),
        max_disk_gb=options.max_disk_gb,
    )
    paths = write_features(trees, TargetModel(config, weights), feature_options, work_dir)
    loaders = [partial(load_pack, path) for path in paths]
    tokenizer = Tokenizer(target.folder, config.vocab_size, config.eos_token_ids)
    vocabulary = Vocabulary(tokenizer.tokenizer_json(), config.vocab_size, tokenizer.eos_token_ids)
    digest = hashlib.sha256("".join(tree.digest() for tree in trees).encode()).hexdigest()
    source_of = {turn.id: turn.source.split("/")[0] for turn in turns}
    return fit(
        work_dir,
        [load for load, tree in zip(loaders, trees, strict=True) if not tree.held],
        [load for load, tree in zip(loaders, trees, strict=True) if tree.held],
        config,
        weights,
        options.training,
        token_bytes=vocabulary.token_bytes,
        capture_layers=layers,
        start=start,
        data_digest=digest,
        source_of=lambda turn_id: source_of.get(turn_id, ""),
        masks=None if options.training.unmasked else _masks(traces, turns, tokenizer, vocabulary),
    )


def _masks(
    traces: Sequence[TrainingTrace],
    turns: Sequence[Turn],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
) -> GrammarMasks:
    """What the grammar allowed in the turns."""
    by_id = {trace.trace_id: trace for trace in traces}
    tool_format = find_format(tokenizer)
    recipes: dict[str, GrammarRecipe] = {}
    for turn in turns:
        trace_id, position = place_of(turn.id)
        recipe = turn_recipe(by_id[trace_id], position, tool_format)
        if recipe is not None:
            recipes[turn.id] = recipe
    return walk_grammars(turns, recipes, vocabulary, GrammarCompiler(vocabulary))


def _write(
    options: TrainDraftOptions,
    target: ModelFolder,
    traces: Sequence[TrainingTrace],
    turns: Sequence[Turn],
    result: FitResult,
    out: Path,
) -> None:
    """Checkpoint, model card, and the numbers as JSON."""
    supervised = sum(len(turn.output_ids) for turn in turns if not turn.is_held)
    provenance = {
        "target": target.name,
        "vocabulary_sha256": vocabulary_hash(target.folder),
        "capture_layers": list(result.head.config.capture_layers),
        "supervised_tokens": supervised,
        "version": __version__,
    }
    head = result.head
    head.config = dataclasses.replace(head.config, provenance=provenance)
    embedding = None
    if options.with_embeddings:
        embedding = load_folder(target.folder)[1]["model.embed_tokens.weight"]
    save_head(out, head, embedding)
    card = model_card(
        result,
        options.training,
        target=target.name,
        licence=options.licence,
        sources=_sources(traces, turns),
        command=_command(options),
        continuations=options.turns.continuations,
        numbers={"supervised tokens": str(supervised)},
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    numbers = {
        "history": result.history,
        "best_epoch": result.best_epoch,
        "coverage": result.coverage,
        "supervised_tokens": supervised,
        "acceptance": {
            source or "all": {
                "rates": {width: counts.rates(width) for width in counts.tried},
                "tau_sim": {width: counts.tau_sim(width) for width in counts.tried},
                "tried": counts.tried,
            }
            for source, counts in result.acceptance.items()
        },
    }
    (out / "training.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def _sources(traces: Sequence[TrainingTrace], turns: Sequence[Turn]) -> list[DataSource]:
    """Training turns and their tokens by data set."""
    licences: dict[str, set[str]] = {}
    for trace in traces:
        named = licences.setdefault(trace.source.split("/")[0], set())
        named.add(trace.licence or "not stated")
    num_turns: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    for turn in turns:
        if not turn.is_held:
            name = turn.source.split("/")[0]
            num_turns[name] += 1
            num_tokens[name] += len(turn.output_ids)
    return [
        DataSource(name or "own traces", ", ".join(sorted(licences[name])), count, num_tokens[name])
        for name, count in sorted(num_turns.items())
    ]


def _command(options: TrainDraftOptions) -> str:
    """The command line without what is default; paths by their last part."""
    words = ["specrt train-draft"]
    for part in (options, options.turns, options.training):
        for spec in dataclasses.fields(part):
            value = getattr(part, spec.name)
            if dataclasses.is_dataclass(value) or value == spec.default:
                continue
            flag_name = "--" + spec.name.replace("_", "-")
            if value is True:
                words.append(flag_name)
            else:
                text = Path(value).name if isinstance(value, str) and "/" in value else str(value)
                words.append(f"{flag_name} {shlex.quote(text)}")
    return " ".join(words)
