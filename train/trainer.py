"""Fits a head to packs: AdamW over training-time-test loss, resumable at every step.

A run that was killed and started again ends with the same weights as an unbroken one: order and
samples are drawn from the seed and the number of the visit, and nothing else is random.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from specrt.draft_heads.checkpoint import EMBEDDING, HeadCheckpoint
from specrt.draft_heads.config import HeadConfig
from specrt.errors import ConfigError
from specrt.model.config import TargetConfig
from specrt.progress import Progress
from specrt.train.acceptance import Measured, TurnLabels, by_depth, evaluate, right_so_far
from specrt.train.draft_vocab import choose_draft_vocab, fallback_ids
from specrt.train.grammar_masks import GrammarMasks
from specrt.train.head_module import TrainableHead, Tree
from specrt.train.initialise import head_config, initial_head
from specrt.train.objective import OUTSIDE, Teacher, loss_of, masked
from specrt.train.record import FitRecord, FitResult, extend_curve
from specrt.train.segments import branch_chains, plan, trunk_chains
from specrt.train.training_options import TrainOptions
from specrt.train.training_state import TrainingState

if TYPE_CHECKING:
    from specrt.train.packs import Pack

PackLoader = Callable[[], "Pack"]
FOLDER = "training"
_BETAS = (0.9, 0.95)
_CLIP = 1.0
_WARM_UP = 0.04
# Settings that may change between the parts of one run.
_FREE = ("checkpoint_minutes", "device")


def count_tokens(packs: Sequence[PackLoader]) -> tuple[Counter[int], Counter[int]]:
    """Token id -> count, of generated tokens and of all others."""
    generated: Counter[int] = Counter()
    others: Counter[int] = Counter()
    for load in packs:
        pack = load()
        is_generated = torch.zeros(len(pack.token_ids), dtype=torch.bool)
        for first, length in pack.branches.tolist():
            is_generated[first : first + length] = True
        generated.update(pack.token_ids[is_generated].tolist())
        others.update(pack.token_ids[~is_generated].tolist())
    return generated, others


def fit(
    work_dir: Path,
    packs: Sequence[PackLoader],
    held_out: Sequence[PackLoader],
    target: TargetConfig,
    target_weights: Mapping[str, Tensor],
    options: TrainOptions,
    *,
    token_bytes: Sequence[bytes] = (),
    capture_layers: tuple[int, ...] | None = None,
    start: HeadCheckpoint | None = None,
    data_digest: str = "",
    labels: Mapping[str, TurnLabels] | None = None,
    masks: GrammarMasks | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_saved: Callable[[FitRecord], None] = lambda record: None,
) -> FitResult:
    """Train a head, or go on with one whose state is in `work_dir/training`.

    Args:
        work_dir: where the state is kept.
        packs: loaders of the packs to learn from.
        held_out: loaders of the packs to judge by; may be empty.
        target: the target's config.
        target_weights: float32, by transformers' names.
        options: see there.
        token_bytes: by token id, for the draft vocabulary; empty for special tokens.
        capture_layers: layers that the packs captured; None = the three of EAGLE-3.
        start: a head to continue instead of a new one; its draft vocabulary stays.
        data_digest: tells these packs from others, so that a state of other data is refused.
        labels: turn id -> what held-out acceptance is told apart by.
        masks: what the grammar allowed in the packs; None = everything, everywhere.
        should_stop: asked after every step; True saves the state and ends this call.
        on_saved: told of every saved state.

    Raises:
        ConfigError: there is nothing to learn from, the saved state is of another run, or `start`
            is of another target.
    """
    if not packs:
        raise ConfigError("training: expected at least one pack to learn from, got none")
    run = _Run(work_dir, packs, held_out, target, target_weights, options, masks)
    run.open(token_bytes, capture_layers, start, data_digest)
    is_finished = run.train(should_stop, on_saved)
    return run.result(is_finished, labels)


class _Visit(NamedTuple):
    """One visit to a pack: its loss, and how far its chains got, by depth."""

    loss: Tensor
    tried: list[int]
    right: list[int]


class _Run:
    def __init__(
        self,
        work_dir: Path,
        packs: Sequence[PackLoader],
        held_out: Sequence[PackLoader],
        target: TargetConfig,
        target_weights: Mapping[str, Tensor],
        options: TrainOptions,
        masks: GrammarMasks | None,
    ) -> None:
        self._masks = masks
        self._folder = work_dir / FOLDER
        self._packs, self._held_out = packs, held_out
        self._target, self._target_weights = target, target_weights
        self._options = options
        self._device = torch.device(options.device)
        self._criterion = loss_of(options.loss, options.lk_eta)
        # Per pack, by row: the target's first choice; only the generated rows are filled in.
        self._best_choices: dict[int, Tensor] = {}
        self._steps_per_epoch = math.ceil(len(packs) / options.accumulation)
        self._total_steps = options.epochs * self._steps_per_epoch

    def open(
        self,
        token_bytes: Sequence[bytes],
        capture_layers: tuple[int, ...] | None,
        start: HeadCheckpoint | None,
        data_digest: str,
    ) -> None:
        """Load the saved state, or make the first one."""
        options, target = self._options, self._target
        settings = dataclasses.asdict(options)
        settings = {name: settings[name] for name in settings if name not in _FREE}
        settings |= {"packs": len(self._packs), "held_out": len(self._held_out)}
        settings |= {"data": data_digest, "start": "" if start is None else _digest(start)}
        settings |= {"layers": list(capture_layers or ())}
        defaults = {spec.name: spec.default for spec in dataclasses.fields(options)}
        state = TrainingState.load(self._folder, settings, defaults)
        if state is None:
            given = None if start is None else start.draft_token_ids
            ids, coverage = self._draft_vocabulary(token_bytes, given)
            if start is None:
                config = head_config(target, len(ids), capture_layers)
                start = initial_head(
                    config, ids, target, self._target_weights, options.seed, options.initial_layer
                )
            state = TrainingState(
                settings=settings,
                step=0,
                draft_token_ids=ids,
                coverage=coverage,
                head=start.weights,
                optimiser={},
                loss=(0.0, 0),
                history=[],
                best={},
                best_epoch=0,
            )
        config = self._head_config(len(state.draft_token_ids), capture_layers, start)
        self._state = state
        self._head = self._make_head(config, start).load(state.head).to(self._device)
        self._head.lm_head.requires_grad_(options.train_lm_head)
        self._head.embed_tokens.requires_grad_(options.train_embedding)
        self._teacher = Teacher(target, self._target_weights, state.draft_token_ids, self._device)
        trained = [part for part in self._head.parameters() if part.requires_grad]
        self._optimiser = torch.optim.AdamW(
            trained, lr=options.learning_rate, betas=_BETAS, weight_decay=0.0
        )
        if state.optimiser:
            self._optimiser.load_state_dict(state.optimiser)

    def train(self, should_stop: Callable[[], bool], on_saved: Callable[[FitRecord], None]) -> bool:
        """Run the steps that are left; False if asked to stop before the last."""
        state, options, total = self._state, self._options, self._total_steps
        progress = Progress("training steps", total, state.step)
        last_save = time.monotonic()
        # As if the parts before had ended just now.
        self._start = last_save - (state.curve[-1]["seconds"] if state.curve else 0.0)
        while state.step < total and not self._is_stale():
            with _matmul_precision("medium" if options.bf16_matmul else "highest"):
                visits = self._step(state.step, total)
            state.step += 1
            self._record(visits)
            progress.update(state.step)
            ends_epoch = state.step % self._steps_per_epoch == 0
            if ends_epoch:
                self._end_epoch()
            stop = should_stop()
            minutes = (time.monotonic() - last_save) / 60
            if ends_epoch or stop or minutes >= options.checkpoint_minutes:
                self._save()
                on_saved(FitRecord(**self._record_so_far()))
                last_save = time.monotonic()
            if stop and state.step < total:
                progress.close()
                return False
        progress.close()
        return True

    def result(self, is_finished: bool, labels: Mapping[str, TurnLabels] | None) -> FitResult:
        """The best head so far; before an epoch has ended, the head as it is."""
        state = self._state
        if state.best:
            self._head.load(state.best)
        return FitResult(
            **self._record_so_far(),
            head=self._head.checkpoint(state.draft_token_ids),
            measured=self._evaluate(labels) if is_finished and self._held_out else None,
            is_finished=is_finished,
        )

    def _record_so_far(self) -> dict[str, Any]:
        state = self._state
        return {
            "coverage": state.coverage,
            "draft_vocab_size": len(state.draft_token_ids),
            "best_epoch": state.best_epoch,
            "history": state.history,
            "curve": state.curve,
            "step": state.step,
            "total_steps": self._total_steps,
        }

    def _record(self, visits: list[_Visit]) -> None:
        """Note what the last step did."""
        none = [0] * self._options.steps
        extend_curve(
            self._state.curve,
            step=self._state.step,
            total_steps=self._total_steps,
            seconds=time.monotonic() - self._start,
            losses=[visit.loss.item() for visit in visits],
            tried=_summed(none, *(visit.tried for visit in visits)),
            right=_summed(none, *(visit.right for visit in visits)),
        )

    def _draft_vocabulary(
        self, token_bytes: Sequence[bytes], given: Tensor | None
    ) -> tuple[Tensor, float]:
        """A new draft vocabulary, or the given one; and how much of the packs it covers."""
        generated, others = count_tokens(self._packs)
        if given is not None:
            covered = sum(generated[index] for index in given.tolist())
            return given, covered / max(1, generated.total())
        extra = fallback_ids(others, token_bytes, self._target.eos_token_ids)
        return choose_draft_vocab(generated, extra, self._options.draft_vocab_size)

    def _head_config(
        self, draft_vocab_size: int, capture_layers: tuple[int, ...] | None, start: Any
    ) -> HeadConfig:
        if start is not None and start.config.draft_vocab_size == draft_vocab_size:
            config: HeadConfig = start.config
            if config.target_hidden_size != self._target.hidden_size:
                raise ConfigError(
                    f"head to continue: expected one for a target {self._target.hidden_size} wide,"
                    f" got one for {config.target_hidden_size}"
                )
            return config
        return head_config(self._target, draft_vocab_size, capture_layers)

    def _make_head(self, config: HeadConfig, start: HeadCheckpoint | None) -> TrainableHead:
        """A head without weights but with its embedding: an own one, or the target's."""
        embedding = self._target_weights["model.embed_tokens.weight"]
        is_own = self._options.train_embedding
        if start is not None and start.embedding is not None:
            embedding, is_own = start.embedding, True
        # A copy: the target's is also what the head learns from.
        return TrainableHead(
            config, embedding.clone() if is_own else embedding, has_own_embedding=is_own
        )

    def _step(self, step: int, total: int) -> list[_Visit]:
        """One optimiser step over the next packs in order."""
        options = self._options
        epoch, index = divmod(step, self._steps_per_epoch)
        order = torch.randperm(len(self._packs), generator=self._generator(1, epoch)).tolist()
        first = index * options.accumulation
        chosen = order[first : first + options.accumulation]
        for group in self._optimiser.param_groups:
            group["lr"] = options.learning_rate * _schedule(step, total)
        self._optimiser.zero_grad(set_to_none=True)
        number = epoch * len(order) + first
        visits = []
        for offset, pack in enumerate(chosen):
            visit = self._visit(pack, self._generator(2, number + offset))
            if visit is not None:
                (visit.loss / len(chosen)).backward()  # type: ignore[no-untyped-call]
                loss = visit.loss.item()
                if not math.isfinite(loss):
                    raise ConfigError(
                        f"training: the loss is {loss} at step {step + 1}; a lower"
                        " --learning-rate may help"
                    )
                so_far, count = self._state.loss
                self._state.loss = (so_far + loss, count + 1)
                visits.append(visit._replace(loss=visit.loss.detach()))
        trained = [part for group in self._optimiser.param_groups for part in group["params"]]
        torch.nn.utils.clip_grad_norm_(trained, _CLIP)
        self._optimiser.step()
        return visits

    def _visit(self, index: int, noise: torch.Generator) -> _Visit | None:
        """Read a pack; None if it has nothing to predict."""
        options, device = self._options, self._device
        pack = self._packs[index]()
        chains = branch_chains(pack, options.steps, cross_runs=not options.serial_runs)
        if index not in self._best_choices:
            self._best_choices[index] = self._first_choices(pack)
        starts = _sample(chains, options.max_starts, noise)
        trunk = _sample(trunk_chains(pack), options.trunk_rows, noise)
        if not starts and not trunk:
            return None
        unroll = plan([*starts, *trunk]).to(device)
        hidden = pack.hidden.to(device)
        is_start = unroll.chains < len(starts)
        weights = options.decay ** unroll.depths.float() / max(1, len(starts))
        weights[~is_start] = options.trunk_weight / max(1, len(trunk))
        best = self._best_choices[index].to(device)[unroll.rows]
        best[~is_start] = self._teacher.best(hidden[unroll.rows[~is_start]])
        weights = weights * (best != OUTSIDE)
        rows, places = torch.unique(unroll.rows, return_inverse=True)
        allowed = self._allowed(pack, rows)
        logits = self._head(Tree.of(pack, device), unroll)
        if allowed is not None:
            logits = masked(logits, self._teacher.draft_part(allowed)[places])
        expected = self._teacher.distribution(hidden[rows], allowed)[places]
        loss = (self._criterion(logits, expected) * weights).sum()
        hits = (logits.detach().argmax(dim=-1) == best) & is_start
        right = right_so_far(hits, unroll, len(starts) + len(trunk), options.steps)
        return _Visit(loss, *by_depth(right[: len(starts)].cpu().numpy()))

    def _first_choices(self, pack: Pack) -> Tensor:
        found = torch.full_like(pack.token_ids, OUTSIDE)
        for first, length in pack.branches.tolist():
            rows = torch.arange(first, first + length)
            hidden = pack.hidden[rows].to(self._device)
            found[rows] = self._teacher.best(hidden, self._allowed(pack, rows)).cpu()
        return found

    def _allowed(self, pack: Pack, rows: Tensor) -> Tensor | None:
        """What the grammar leaves behind some rows: bool [n, V]; None = everything."""
        if self._masks is None:
            return None
        found = self._masks.of(pack)[rows.cpu()]
        return self._masks.allowed(found, self._teacher.vocab_size).to(self._device)

    def _end_epoch(self) -> None:
        """Judge the head and keep it if it is the best."""
        state = self._state
        total, count = state.loss
        entry: dict[str, Any] = {
            "epoch": len(state.history) + 1,
            "step": state.step,
            "seconds": time.monotonic() - self._start,
            "loss": total / max(1, count),
            "tau_sim": None,
            "acceptance": None,
        }
        if self._held_out:
            found = self._evaluate().total
            entry |= {"tau_sim": found.tau_sim(), "acceptance": found.rates()}
        state.loss = (0.0, 0)
        earlier = [past["tau_sim"] for past in state.history]
        state.history.append(entry)
        if not self._held_out or not earlier or entry["tau_sim"] > max(earlier):
            state.best_epoch = entry["epoch"]
            state.best = {name: part.clone() for name, part in self._head.weights().items()}

    def _is_stale(self) -> bool:
        patience, state = self._options.patience, self._state
        return patience is not None and len(state.history) - state.best_epoch >= patience

    def _evaluate(self, labels: Mapping[str, TurnLabels] | None = None) -> Measured:
        options = self._options
        return evaluate(
            self._head,
            self._teacher,
            self._held_out,
            options.steps,
            cross_runs=not options.serial_runs,
            max_starts=options.max_starts,
            labels=labels,
            masks=self._masks,
        )

    def _save(self) -> None:
        self._state.head = self._head.weights()
        self._state.optimiser = self._optimiser.state_dict()
        self._state.save(self._folder)

    def _generator(self, purpose: int, number: int) -> torch.Generator:
        """Noise that depends on nothing but the seed and what it is for."""
        seed = (self._options.seed * 4 + purpose) * 1_000_003 + number
        return torch.Generator().manual_seed(seed)


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Torch keeps this for the whole process; outside of a step it is as it was."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _digest(head: HeadCheckpoint) -> str:
    """SHA-256 of a head's tensors, hex."""
    digest = hashlib.sha256(head.draft_token_ids.numpy().tobytes())
    own = {} if head.embedding is None else {EMBEDDING: head.embedding}
    for name, tensor in sorted({**head.weights, **own}.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _schedule(step: int, total: int) -> float:
    """Share of the highest learning rate: linear warm-up, then a cosine to 0."""
    warm_up = max(1, round(_WARM_UP * total))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, total - warm_up)))


def _sample(items: list[Any], count: int, noise: torch.Generator) -> list[Any]:
    """At most `count` of the items, in random order."""
    return [items[i] for i in torch.randperm(len(items), generator=noise)[:count].tolist()]


def _summed(*rows: list[int]) -> list[int]:
    """Column by column."""
    return [sum(column) for column in zip(*rows, strict=True)]
