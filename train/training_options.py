"""What `specrt train-draft` takes on the command line. No torch here: `--help` reads this."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from specrt.config import flag
from specrt.errors import ConfigError


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """How the turns are made that a head learns from."""

    model_path: str | None = flag(None, "target model (default: the embedded model)")
    num_threads: int | None = flag(None, "CPU threads for torch (default: physical cores)")
    continuations: Literal["regenerated", "recorded", "both"] = flag(
        "regenerated", "what follows a prompt: the target's own turn, the recorded one, or each"
    )
    temperature: float = flag(0.0, "sampling temperature of the target's turns")
    max_tokens: int = flag(96, "output tokens of a turn at most")
    max_prompt_tokens: int = flag(1024, "turns with longer prompts are left out")
    max_supervised_tokens: int | None = flag(
        None, "make no more turns once they have this many output tokens (default: all turns)"
    )
    max_turns_per_trace: int = flag(4, "the first turns of each trace that are used")
    holdout: float = flag(
        0.1, "share of the traces held out to measure acceptance, whole tool lists at a time"
    )
    batch_size: int = flag(8, "turns that are generated at once")

    def __post_init__(self) -> None:
        least = dict.fromkeys(("max_tokens", "max_prompt_tokens", "batch_size"), 1)
        least |= {"max_turns_per_trace": 1, "max_supervised_tokens": 1, "temperature": 0}
        least |= {"num_threads": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                raise ConfigError(f"{_flag(name)}: expected at least {bound}, got {value!r}")
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"--holdout: expected at least 0 and below 1, got {self.holdout!r}")
        if self.continuations not in ("regenerated", "recorded", "both"):
            raise ConfigError(
                "--continuations: expected regenerated, recorded or both, got"
                f" {self.continuations!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How a head is fitted to packs."""

    epochs: int = flag(4, "visits to each pack")
    learning_rate: float = flag(6e-4, "highest learning rate of AdamW")
    accumulation: int = flag(1, "packs per optimiser step")
    steps: int = flag(4, "decisions that a chain predicts")
    decay: float = flag(0.8, "weight of each further decision")
    max_starts: int = flag(384, "chains per pack and visit, drawn at random")
    trunk_rows: int = flag(128, "prompt tokens per pack and visit that also learn, one step deep")
    trunk_weight: float = flag(1 / 3, "weight of the prompt tokens")
    serial_runs: bool = flag(
        False, "read forced runs token by token; drafting reads them in one pass, and so does this"
    )
    unmasked: bool = flag(
        False, "learn what the target would say without the grammar; drafting asks with it"
    )
    loss: Literal["ce", "lk-hybrid", "lk-alpha"] = flag(
        "ce",
        "what is minimised: cross-entropy with the target; KL and total variation by turns (LK"
        " hybrid); -log of the share of accepted tokens (LK alpha)",
    )
    lk_eta: float = flag(3.0, "with lk-hybrid, how soon total variation takes over; 0 = never")
    initial_layer: Literal["last", "random"] = flag(
        "last", "first weights of a new head: the target's last layer, or random"
    )
    train_lm_head: bool = flag(False, "train the lm_head too, which starts as the target's rows")
    train_embedding: bool = flag(
        False,
        "train the embedding too, which starts as the target's; SGLang would read the target's"
        " all the same",
    )
    draft_vocab_size: int = flag(8192, "tokens that the head can propose, at most")
    patience: int | None = flag(
        None, "stop after this many epochs without a better tau_sim (default: never)"
    )
    checkpoint_minutes: float = flag(5.0, "minutes between saved states; 0 = after every step")
    seed: int = flag(0, "of initial noise, order and samples")
    bf16_matmul: bool = flag(
        False, "round what goes into matrix products to bfloat16, where the device is faster so"
    )
    device: str = flag("cpu", "torch device")

    def __post_init__(self) -> None:
        for name, minimum in (
            ("epochs", 1),
            ("accumulation", 1),
            ("steps", 1),
            ("max_starts", 1),
            ("trunk_rows", 0),
            ("trunk_weight", 0),
            ("lk_eta", 0),
            ("draft_vocab_size", 1),
            ("checkpoint_minutes", 0),
            ("seed", 0),
        ):
            if getattr(self, name) < minimum:
                raise ConfigError(
                    f"{_flag(name)}: expected at least {minimum}, got {getattr(self, name)}"
                )
        for name in ("learning_rate", "trunk_weight", "lk_eta", "checkpoint_minutes"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(
                    f"{_flag(name)}: expected a finite number, got {getattr(self, name)}"
                )
        for name, known in (
            ("loss", ("ce", "lk-hybrid", "lk-alpha")),
            ("initial_layer", ("last", "random")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{_flag(name)}: expected one of {', '.join(known)}, got"
                    f" {getattr(self, name)!r}"
                )
        if not 0 < self.decay <= 1:
            raise ConfigError(f"--decay: expected above 0 and at most 1, got {self.decay}")
        if not self.learning_rate > 0:
            raise ConfigError(f"--learning-rate: expected above 0, got {self.learning_rate}")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"--patience: expected at least 1, got {self.patience}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDraftOptions:
    """`specrt train-draft`: a draft head from agent traces."""

    traces: str | None = flag(
        None, "conversations: JSON lines with `messages` and `tools` as in the OpenAI API, or .gz"
    )
    out: str | None = flag(None, "folder of the head; what is made on the way lies in its work/")
    init_from: str | None = flag(None, "folder of a head to continue (default: a new one)")
    max_pack_rows: int = flag(1536, "tokens of prompts and turns that are trained on together")
    max_disk_gb: float = flag(4.0, "disk that features may take, in 1e9 bytes")
    licence: str | None = flag(
        None, "SPDX identifier of the head's licence, for its model card (default: none stated)"
    )
    format: Literal["flat", "speculators"] = flag(
        "flat",
        "layout of the checkpoint: flat is read by SGLang, vLLM and llama.cpp, speculators by vLLM"
        " and the speculators library",
    )
    with_embeddings: bool = flag(
        False, "write the target's embedding into the checkpoint, for loaders that borrow nothing"
    )
    turns: TurnOptions = field(default_factory=TurnOptions)
    training: TrainOptions = field(default_factory=TrainOptions)

    def __post_init__(self) -> None:
        if self.traces is None:
            raise ConfigError("--traces: expected a .jsonl or .jsonl.gz file of conversations")
        if self.out is None:
            raise ConfigError("--out: expected the folder to write the head to")
        if self.format not in ("flat", "speculators"):
            raise ConfigError(f"--format: expected flat or speculators, got {self.format!r}")
        if self.max_pack_rows < 1 or not self.max_disk_gb > 0:
            raise ConfigError("--max-pack-rows and --max-disk-gb: expected numbers above 0")
