"""Training learns, and an interrupted run ends like an unbroken one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from train_fakes import TARGET, VOCAB, random_pack, target_weights

from specrt.errors import ConfigError
from specrt.train.initialise import InitialLayer, head_config, initial_head
from specrt.train.packs import Pack
from specrt.train.trainer import FOLDER, FitResult, PackLoader, count_tokens, fit
from specrt.train.training_options import TrainOptions
from specrt.train.training_state import STATE_FILE

OPTIONS = TrainOptions(
    epochs=3,
    accumulation=2,
    steps=3,
    max_starts=12,
    trunk_rows=3,
    draft_vocab_size=30,
    checkpoint_minutes=0,
    learning_rate=3e-3,
)
WEIGHTS = target_weights()


def loaders(*packs: Pack) -> list[PackLoader]:
    def loader(pack: Pack) -> PackLoader:
        return lambda: pack

    return [loader(pack) for pack in packs]


TRAIN = loaders(*(random_pack(seed) for seed in range(5)))
HELD_OUT = loaders(random_pack(10), random_pack(11))


def run(
    folder: Path,
    options: TrainOptions = OPTIONS,
    should_stop: Callable[[], bool] = lambda: False,
    train: list[PackLoader] = TRAIN,
    held_out: list[PackLoader] = HELD_OUT,
) -> FitResult:
    return fit(
        folder,
        train,
        held_out,
        TARGET,
        WEIGHTS,
        options,
        token_bytes=[b"x"] * VOCAB,  # every token may fill up the draft vocabulary
        should_stop=should_stop,
    )


def after(count: int, error: type[BaseException] | None = None) -> Callable[[], bool]:
    """True (or an error) at the count-th step of a call."""
    steps = iter(range(1, 1000))

    def should_stop() -> bool:
        is_due = next(steps) == count
        if is_due and error:
            raise error
        return is_due

    return should_stop


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without wall times, which do not come twice; they only ever grow."""
    seconds = [entry["seconds"] for entry in entries]
    assert seconds == sorted(seconds) and seconds[0] > 0
    return [{name: entry[name] for name in entry if name != "seconds"} for entry in entries]


def weights(result: FitResult) -> dict[str, torch.Tensor]:
    return result.head.weights


def test_overfitting_one_pack_raises_acceptance(tmp_path: Path) -> None:
    pack = loaders(random_pack(4))
    options = dataclasses.replace(
        OPTIONS,
        epochs=1,
        accumulation=1,
        max_starts=100,
        draft_vocab_size=VOCAB,
        learning_rate=1e-2,
        checkpoint_minutes=60,
    )
    before = run(tmp_path / "short", options, train=pack, held_out=pack)
    longer = dataclasses.replace(options, epochs=4)
    trained = run(tmp_path / "long", longer, train=pack * 60, held_out=pack)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert trained.measured.total.rates()[0] > 0.9
    assert trained.measured.total.tau_sim() > before.measured.total.tau_sim() + 1
    assert trained.history[trained.best_epoch - 1]["tau_sim"] == trained.measured.total.tau_sim()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "lk-hybrid", "train_embedding": True, "initial_layer": "random"},
        {"loss": "lk-alpha", "train_embedding": True, "train_lm_head": True},
    ],
)
def test_a_stopped_run_ends_like_an_unbroken_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = dataclasses.replace(OPTIONS, **changes)
    whole = run(tmp_path / "whole", options)
    for steps in (1, 3, 2):
        part = run(tmp_path / "parts", options, should_stop=after(steps))
        assert not part.is_finished
    last = run(tmp_path / "parts", options)
    assert whole.is_finished and last.is_finished
    assert timeless(last.history) == timeless(whole.history) and len(whole.history) == 3
    assert timeless(last.curve) == timeless(whole.curve) and len(whole.curve) == 9
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(last)[name]), name
    assert (whole.head.embedding is not None) == ("train_embedding" in changes)
    if whole.head.embedding is not None and last.head.embedding is not None:
        assert torch.equal(whole.head.embedding, last.head.embedding)


def test_a_killed_run_goes_on_from_its_last_saved_state(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, checkpoint_minutes=60)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", options, should_stop=after(5, KeyboardInterrupt))
    saved = torch.load(tmp_path / "killed" / FOLDER / STATE_FILE, weights_only=True)
    assert saved["step"] == 3  # the end of the first epoch
    resumed, whole = run(tmp_path / "killed", options), run(tmp_path / "whole", options)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    again = run(tmp_path, should_stop=after(1, AssertionError))
    assert torch.equal(weights(again)["fc.weight"], weights(first)["fc.weight"])


def test_the_seed_decides(tmp_path: Path) -> None:
    first = run(tmp_path / "0")
    other = run(tmp_path / "1", dataclasses.replace(OPTIONS, seed=1))
    assert not torch.equal(weights(first)["fc.weight"], weights(other)["fc.weight"])


def test_other_settings_do_not_resume(tmp_path: Path) -> None:
    run(tmp_path, should_stop=after(1))
    with pytest.raises(ConfigError, match=r"decay = 0\.8, this one 0\.5"):
        run(tmp_path, dataclasses.replace(OPTIONS, decay=0.5))


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    run(tmp_path, should_stop=after(1))
    (tmp_path / FOLDER / STATE_FILE).write_bytes(b"PK")
    with pytest.raises(ConfigError, match="damaged"):
        run(tmp_path)


def test_the_lm_head_is_trained_only_on_request(tmp_path: Path) -> None:
    frozen = run(tmp_path / "frozen").head
    rows = WEIGHTS["model.embed_tokens.weight"][frozen.draft_token_ids]
    assert torch.equal(frozen.weights["lm_head.weight"], rows)
    trained = run(tmp_path / "free", dataclasses.replace(OPTIONS, train_lm_head=True)).head
    assert not torch.equal(trained.weights["lm_head.weight"], rows)


def test_an_embedding_is_trained_only_on_request_and_then_stays_the_heads_own(
    tmp_path: Path,
) -> None:
    embedding = WEIGHTS["model.embed_tokens.weight"]
    before = embedding.clone()
    options = dataclasses.replace(OPTIONS, epochs=1, train_embedding=True)
    first = run(tmp_path / "first", options).head
    assert first.embedding is not None and not torch.equal(first.embedding, before)
    assert torch.equal(embedding, before), "the target's was trained"
    frozen = dataclasses.replace(OPTIONS, epochs=1)
    more = fit(tmp_path / "more", TRAIN, HELD_OUT, TARGET, WEIGHTS, frozen, start=first).head
    assert more.embedding is not None and torch.equal(more.embedding, first.embedding)
    borrowing = dataclasses.replace(first, embedding=None)
    with pytest.raises(ConfigError, match="start"):
        fit(tmp_path / "more", TRAIN, HELD_OUT, TARGET, WEIGHTS, frozen, start=borrowing)


@pytest.mark.parametrize("kind", ["last", "random"])
def test_first_weights(kind: InitialLayer) -> None:
    config, ids = head_config(TARGET, 30), torch.arange(30)
    one, same, other = (
        initial_head(config, ids, TARGET, WEIGHTS, seed, kind).weights for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    down = "mlp.down_proj.weight"
    is_targets = torch.equal(one[f"midlayer.{down}"], WEIGHTS[f"model.layers.6.{down}"])
    assert is_targets == (kind == "last")
    assert torch.equal(one["norm.weight"], WEIGHTS["model.norm.weight"])
    assert torch.equal(one["lm_head.weight"], WEIGHTS["model.embed_tokens.weight"][:30])
    matrices = torch.cat([one[name].flatten() for name in one if "mlp" in name or "fc" in name])
    if kind == "random":
        assert 0.018 < float(matrices.std()) < 0.022
        assert bool((one["midlayer.hidden_norm.weight"] == 1).all())


def test_a_state_from_before_there_was_a_setting_goes_on_with_its_default(tmp_path: Path) -> None:
    part = run(tmp_path, should_stop=after(4))
    path = tmp_path / FOLDER / STATE_FILE
    saved = torch.load(path, weights_only=True)
    for name in ("loss", "lk_eta", "initial_layer", "train_embedding"):
        del saved["settings"][name]
    del saved["curve"]
    torch.save(saved, path)
    with pytest.raises(ConfigError, match="loss = 'ce', this one 'lk-hybrid'"):
        run(tmp_path, dataclasses.replace(OPTIONS, loss="lk-hybrid"))
    last = run(tmp_path)
    assert last.is_finished and last.history[:1] == part.history


def test_a_head_is_continued_with_its_vocabulary(tmp_path: Path) -> None:
    first = run(tmp_path / "first")
    options = dataclasses.replace(OPTIONS, epochs=1, learning_rate=1e-9, draft_vocab_size=VOCAB)
    more = fit(tmp_path / "more", TRAIN, HELD_OUT, TARGET, WEIGHTS, options, start=first.head)
    assert torch.equal(more.head.draft_token_ids, first.head.draft_token_ids)
    torch.testing.assert_close(more.head.weights, first.head.weights, atol=1e-6, rtol=0)
    assert more.coverage == pytest.approx(first.coverage)


def test_a_state_of_other_data_is_refused(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, epochs=1)
    fit(tmp_path, TRAIN, [], TARGET, WEIGHTS, options, data_digest="a")
    with pytest.raises(ConfigError, match="data = 'a', this one 'b'"):
        fit(tmp_path, TRAIN, [], TARGET, WEIGHTS, options, data_digest="b")


@pytest.mark.parametrize("is_rounded", [True, False])
def test_matrix_products_are_rounded_on_request_and_in_steps_only(
    tmp_path: Path, is_rounded: bool
) -> None:
    pack = random_pack(0)
    seen: list[str] = []

    def load() -> Pack:
        seen.append(torch.get_float32_matmul_precision())
        return pack

    options = dataclasses.replace(OPTIONS, epochs=1, bf16_matmul=is_rounded)
    result = run(tmp_path, options, train=[load])
    assert math.isfinite(result.history[0]["loss"])
    # Counting tokens comes before the step.
    assert seen == ["highest", "medium" if is_rounded else "highest"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, epochs=20, learning_rate=1e-9, patience=2)
    result = run(tmp_path, options)
    assert result.is_finished and len(result.history) == 3 and result.best_epoch == 1


def test_without_held_out_packs_the_last_head_is_taken(tmp_path: Path) -> None:
    result = run(tmp_path, held_out=[])
    assert result.best_epoch == 3 and result.measured is None
    assert result.history[0]["tau_sim"] is None


def test_nothing_to_learn_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one pack"):
        run(tmp_path, train=[])


def test_tokens_are_counted_by_who_wrote_them() -> None:
    pack = random_pack(0)
    generated, others = count_tokens(loaders(pack))
    assert others.total() == 9 and generated.total() == len(pack.token_ids) - 9


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", 0, "--epochs: expected at least 1, got 0"),
        ("decay", 1.5, "--decay: expected above 0 and at most 1, got 1.5"),
        ("learning_rate", 0.0, "--learning-rate: expected above 0"),
        ("patience", 0, "--patience: expected at least 1"),
        ("lk_eta", -1.0, "--lk-eta: expected at least 0"),
        ("lk_eta", math.nan, "--lk-eta: expected a finite number"),
        ("loss", "l2", "--loss: expected one of ce, lk-hybrid, lk-alpha"),
        ("initial_layer", "first", "--initial-layer: expected one of last, random"),
    ],
)
def test_bad_options_are_named(field: str, value: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainOptions(**{field: value})  # type: ignore[arg-type]
