"""Features of a tree are those of each turn alone; files on disk are made once and checked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from fakes import tiny_model_folder
from hypothesis import given
from hypothesis import strategies as st

from specrt.errors import ConfigError
from specrt.model.decoder import TargetModel
from specrt.model.weights import load_folder
from specrt.train import features as features_module
from specrt.train.features import (
    FeatureExtractor,
    FeatureOptions,
    load_pack,
    passes,
    write_features,
)
from specrt.train.packs import PackTree, build_packs
from specrt.train.turn_file import Turn

LAYERS = (1, 2)
OPTIONS = FeatureOptions(capture_layers=LAYERS, model_digest="m")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), num_hidden_layers=3)
    return TargetModel(*load_folder(folder))


def _turns(count: int, seed: int = 0) -> list[Turn]:
    """Prompts that branch at several depths."""
    rng = random.Random(seed)
    known = [[1]]
    turns = []
    for index in range(count):
        base = rng.choice(known)
        start = base[: rng.randint(1, len(base))]
        prompt = start + [rng.randrange(300) for _ in range(rng.randint(0, 30))]
        output = [rng.randrange(300) for _ in range(rng.randint(1, 12))]
        known.append(prompt)
        turns.append(
            Turn(f"t{index}", "", index % 7 == 6, prompt, output, [False] * len(output), "stop")
        )
    return turns


def _chain(token_ids: list[int]) -> PackTree:
    length = len(token_ids)
    return PackTree(
        token_ids=torch.tensor(token_ids),
        parent=torch.arange(length) - 1,
        position=torch.arange(length),
        branches=torch.tensor([[0, length]]),
        forced=torch.zeros(length, dtype=torch.bool),
        held=False,
        turn_ids=("alone",),
    )


@pytest.mark.parametrize("pass_rows", [7, 64, 256])
def test_a_tree_gives_what_each_turn_alone_gives(pass_rows: int, model: TargetModel) -> None:
    turns = _turns(24)
    by_id = {turn.id: turn for turn in turns}
    trees, _ = build_packs(turns, 300)
    alone = FeatureExtractor(model, LAYERS, 300)
    extractor = FeatureExtractor(model, LAYERS, 300, pass_rows)
    num_compared = 0
    for tree in trees:
        captured, hidden = extractor.extract(tree)
        assert captured.shape == (len(tree.token_ids), 2 * 64) and hidden.shape[1] == 64
        for turn_id, (first, length) in zip(tree.turn_ids, tree.branches.tolist(), strict=True):
            turn = by_id[turn_id]
            path = [first + length - 1]
            while tree.parent[path[0]] >= 0:
                path.insert(0, int(tree.parent[path[0]]))
            expected = alone.extract(_chain(turn.prompt_ids + turn.output_ids))
            torch.testing.assert_close(captured[path], expected[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(hidden[path], expected[1], atol=1e-4, rtol=1e-4)
            num_compared += 1
    assert num_compared == len(turns) and any(len(tree.branches) > 2 for tree in trees)


def test_hidden_gives_the_targets_logits(model: TargetModel) -> None:
    """Norm and output matrix on `hidden` are all that is left of a pass."""
    tree = _chain([1, 5, 9, 200])
    captured, hidden = FeatureExtractor(model, LAYERS, 8).extract(tree)
    extractor = FeatureExtractor(model, (), 8)
    (groups,) = passes(tree.parent.tolist())
    extractor._attention.plan([*groups])
    rows = torch.arange(4)
    logits = model.forward(tree.token_ids, tree.position, extractor._attention, rows).logits
    torch.testing.assert_close(model._lm_head(model._norm(hidden)), logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(captured[:, 64:], hidden)


@given(st.data(), st.integers(1, 60), st.integers(1, 20))
def test_passes_cover_every_row_once_behind_its_ancestors(
    data: st.DataObject, num_rows: int, max_rows: int
) -> None:
    parent = [data.draw(st.integers(max(-1, row - 4), row - 1)) for row in range(num_rows)]
    computed: set[int] = set()
    for groups in passes(parent, max_rows):
        rows = [row for group in groups for row in group.row_slots.tolist()]
        assert 0 < len(rows) <= max_rows and len(set(rows)) == len(rows)
        for group in groups:
            path = group.context_slots.tolist() + group.row_slots.tolist()
            assert set(group.context_slots.tolist()) <= computed
            assert [parent[row] for row in path] == [-1, *path[:-1]]
        assert not computed & set(rows)
        computed |= set(rows)
    assert computed == set(range(num_rows))


def _contents(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [*paths, paths[0].parent / "manifest.json"]}


def test_a_pack_comes_back_as_it_was_written(model: TargetModel, tmp_path: Path) -> None:
    trees, _ = build_packs(_turns(14), 120)
    paths = write_features(trees, model, OPTIONS, tmp_path)
    assert [path.name for path in paths] == [f"{i:05}.safetensors" for i in range(len(trees))]
    for tree, path in zip(trees, paths, strict=True):
        pack = load_pack(path)
        assert pack.digest() == tree.digest()
        captured, hidden = FeatureExtractor(model, LAYERS, 120).extract(tree)
        assert torch.equal(pack.captured, captured.to(torch.bfloat16))
        assert torch.equal(pack.hidden, hidden.to(torch.bfloat16))


def test_a_torn_foreign_or_missing_file_is_made_again_and_only_that(
    model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, _ = build_packs(_turns(30), 100)
    assert len(trees) >= 4
    paths = write_features(trees, model, OPTIONS, tmp_path)
    expected = _contents(paths)
    paths[-1].write_bytes(expected[paths[-1].name][:-100])
    paths[1].write_bytes(expected[paths[0].name])
    paths[2].unlink()
    (paths[0].parent / "99999.safetensors").write_bytes(b"of another run")
    (paths[0].parent / "00001.safetensors.new").write_bytes(b"of a killed run")
    made = []
    save = features_module._save
    monkeypatch.setattr(
        features_module, "_save", lambda path, *rest: (made.append(path), save(path, *rest))
    )
    assert write_features(trees, model, OPTIONS, tmp_path) == paths
    assert made == [paths[1], paths[2], paths[-1]]
    assert _contents(paths) == expected
    assert len(list(paths[0].parent.iterdir())) == len(expected)


def test_other_settings_or_trees_make_all_again(model: TargetModel, tmp_path: Path) -> None:
    trees, _ = build_packs(_turns(8), 200)
    (first, *_) = write_features(trees, model, OPTIONS, tmp_path)
    other = FeatureOptions(capture_layers=(0, 2), model_digest="m")
    write_features(trees, model, other, tmp_path)
    captured, _ = FeatureExtractor(model, (0, 2), 200).extract(trees[0])
    assert torch.equal(load_pack(first).captured, captured.to(torch.bfloat16))
    shorter, _ = build_packs(_turns(8, seed=1), 200)
    write_features(shorter, model, other, tmp_path)
    assert load_pack(first).digest() == shorter[0].digest()


def test_the_disk_bound_is_checked_before_anything_is_written(
    model: TargetModel, tmp_path: Path
) -> None:
    trees, _ = build_packs(_turns(30), 100)
    paths = write_features(trees, model, OPTIONS, tmp_path / "a")
    taken = sum(path.stat().st_size for path in paths)
    enough, too_little = (
        FeatureOptions(capture_layers=LAYERS, model_digest="m", max_disk_gb=share * taken / 1e9)
        for share in (1.1, 0.9)
    )
    assert write_features(trees, model, enough, tmp_path / "b")
    with pytest.raises(ConfigError, match=r"--max-disk-gb: .* tokens take 0\.00 GB, the bound is"):
        write_features(trees, model, too_little, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "00000.safetensors"
    path.write_bytes(b"x" * 40)
    with pytest.raises(ConfigError, match="00000.safetensors: expected a file of features"):
        load_pack(path)
