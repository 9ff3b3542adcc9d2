"""What the target computes over each pack, on disk: one safetensors file a pack, made once.

A file counts as made when manifest.json has its checksum under the same settings and the same
tree; anything else is made again. So a run can be killed at any time and goes on where it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specrt.attention.base import RowGroup
from specrt.attention.torch_backend import TorchAttention
from specrt.cache.kv_store import KVStore
from specrt.errors import ConfigError
from specrt.model.converted import sha256
from specrt.model.decoder import TargetModel
from specrt.progress import Progress
from specrt.train.packs import Pack, PackTree

MANIFEST_NAME = "manifest.json"
# Rows of one pass: bounds memory, and more rows are no faster each.
PASS_ROWS = 256
_ARRAYS = ("token_ids", "parent", "position", "branches", "forced")


class FeatureExtractor:
    """Runs a target over packs; no cache slot outlives a pack."""

    def __init__(
        self,
        model: TargetModel,
        capture_layers: Sequence[int],
        max_rows: int,
        pass_rows: int = PASS_ROWS,
    ) -> None:
        """Reserve the keys and values of one pack.

        Args:
            model: the target.
            capture_layers: layers whose incoming residual stream is kept, ascending.
            max_rows: rows of the largest pack.
            pass_rows: rows of one pass at most.
        """
        config = model.config
        assert all(0 <= layer < config.num_layers for layer in capture_layers)
        self._model = model
        self._pass_rows = pass_rows
        self._layers = (*capture_layers, config.num_layers)
        store = KVStore(max_rows, config.num_layers, config.num_kv_heads, config.head_dim)
        self._attention = TorchAttention(store, config.num_heads)

    def extract(self, tree: PackTree) -> tuple[Tensor, Tensor]:
        """Captured streams, float32 [T, layers * H], and last hidden, float32 [T, H]."""
        size = self._model.config.hidden_size
        streams = torch.empty(len(tree.token_ids), len(self._layers) * size)
        none = torch.empty(0, dtype=torch.int64)
        for groups in passes(tree.parent.tolist(), self._pass_rows):
            rows = torch.from_numpy(np.concatenate([group.row_slots for group in groups])).long()
            self._attention.plan(groups)
            output = self._model.forward(
                tree.token_ids[rows], tree.position[rows], self._attention, none, self._layers
            )
            assert output.captured is not None
            streams[rows] = output.captured
        return streams[:, :-size], streams[:, -size:]


def passes(parent: Sequence[int], max_rows: int = PASS_ROWS) -> Iterator[list[RowGroup]]:
    """Cut a tree into passes over its rows; the slot of a row is its number.

    A pass takes pieces of chains whose ancestors all ran in earlier passes: within a pass, rows of
    different pieces do not see each other.

    Args:
        parent: row of each row's parent, below the row itself; -1 for a root.
        max_rows: rows of one pass at most.
    """
    starts = [row for row, above in enumerate(parent) if row == 0 or above != row - 1]
    # [next row, end] of each chain that is not done; rows below `next row` are computed.
    chains = [list(pair) for pair in zip(starts, [*starts[1:], len(parent)], strict=True)]
    computed = np.zeros(len(parent), dtype=np.bool_)
    while chains:
        groups: list[RowGroup] = []
        room = max_rows
        for chain in chains:
            first, end = chain
            above = parent[first]
            if not room:
                break
            if above >= 0 and not computed[above]:
                continue
            last = min(end, first + room)
            groups.append(
                RowGroup(
                    context_slots=_path(parent, above),
                    row_slots=np.arange(first, last, dtype=np.int32),
                    num_chain=last - first,
                    parents=np.empty(0, dtype=np.int32),
                )
            )
            room -= last - first
            chain[0] = last
        for group in groups:
            computed[group.row_slots] = True
        chains = [chain for chain in chains if chain[0] < chain[1]]
        yield groups


def _path(parent: Sequence[int], row: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Rows from the root to `row`, int32."""
    rows = []
    while row >= 0:
        rows.append(row)
        row = parent[row]
    return np.array(rows[::-1], dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOptions:
    """What features are made of.

    Attributes:
        capture_layers: layers whose incoming residual stream is kept, ascending.
        model_digest: what tells this target from others, see `turns.model_digest`.
        max_disk_gb: all files together at most, in 1e9 bytes.
    """

    capture_layers: tuple[int, ...]
    model_digest: str
    max_disk_gb: float = 4.0


def write_features(
    trees: Sequence[PackTree], model: TargetModel, options: FeatureOptions, work_dir: Path
) -> list[Path]:
    """Make the features of every tree that has none yet; files of other trees are removed.

    Args:
        trees: see `build_packs`.
        model: the target.
        options: what to make.
        work_dir: files go to its folder `features`.

    Returns:
        One file a tree, in order; read them with `load_pack`.

    Raises:
        ConfigError: they would take more disk than allowed, or cannot be written.
    """
    _check_disk(trees, model, options)
    folder = work_dir / "features"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write_missing(trees, model, options, folder)
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error}") from error


def _write_missing(
    trees: Sequence[PackTree], model: TargetModel, options: FeatureOptions, folder: Path
) -> list[Path]:
    made_with = {"layers": list(options.capture_layers), "model": options.model_digest}
    paths = [folder / f"{index:05}.safetensors" for index in range(len(trees))]
    known = _read_manifest(folder, made_with)
    files: dict[str, dict[str, str]] = {}
    missing: list[tuple[Path, PackTree]] = []
    for path, tree in zip(paths, trees, strict=True):
        record = known.get(path.name, {})
        is_same = record.get("tree") == tree.digest() and path.is_file()
        if is_same and sha256(path) == record.get("sha256"):
            files[path.name] = record
        else:
            missing.append((path, tree))
    for path in folder.iterdir():  # what other packs or a killed run left behind
        if re.fullmatch(r"\d{5}\.safetensors(\.new)?", path.name) and path.name not in files:
            path.unlink()
    _write_manifest(folder, made_with, files)
    extractor = FeatureExtractor(
        model, options.capture_layers, max((len(tree.token_ids) for tree in trees), default=1)
    )
    progress = Progress("packs", len(trees), len(files))
    for path, tree in missing:
        _save(path, tree, *extractor.extract(tree))
        files[path.name] = {"tree": tree.digest(), "sha256": sha256(path)}
        _write_manifest(folder, made_with, files)
        progress.update(len(files))
    if missing:
        progress.close()
    return paths


def load_pack(path: Path) -> Pack:
    """Read a file of `write_features`.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["pack"])
            tensors = {name: file.get_tensor(name) for name in (*_ARRAYS, "captured", "hidden")}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected a file of features, got {error}") from error
    return Pack(**tensors, held=about["held"], turn_ids=tuple(about["turn_ids"]))


def _save(path: Path, tree: PackTree, captured: Tensor, hidden: Tensor) -> None:
    tensors = {name: getattr(tree, name) for name in _ARRAYS}
    tensors["captured"] = captured.to(torch.bfloat16).contiguous()
    tensors["hidden"] = hidden.to(torch.bfloat16).contiguous()
    # One entry: with several their order, and so the bytes, would differ between runs.
    about = json.dumps({"held": tree.held, "turn_ids": tree.turn_ids})
    new = path.with_name(path.name + ".new")
    save_file(tensors, new, metadata={"pack": about})
    os.replace(new, path)


def _check_disk(trees: Sequence[PackTree], model: TargetModel, options: FeatureOptions) -> None:
    """Refuse what would not fit, before anything is computed."""
    width = (len(options.capture_layers) + 1) * model.config.hidden_size
    num_rows = sum(len(tree.token_ids) for tree in trees)
    num_branches = sum(len(tree.branches) for tree in trees)
    # bfloat16 streams; three int64 and a bool a row; two int64 and a name a branch; headers.
    need = num_rows * (2 * width + 25) + 64 * num_branches + 1024 * len(trees)
    if need > options.max_disk_gb * 1e9:
        raise ConfigError(
            f"--max-disk-gb: the features of {num_rows} tokens take {need / 1e9:.2f} GB, the bound"
            f" is {options.max_disk_gb:g} GB; raise it, or lower --max-supervised-tokens"
        )


def _read_manifest(folder: Path, made_with: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Records by file name; none if the manifest is absent, broken or of other settings."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        files = manifest["files"] if manifest["made_with"] == made_with else {}
        return {str(name): dict(record) for name, record in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_manifest(
    folder: Path, made_with: dict[str, Any], files: dict[str, dict[str, str]]
) -> None:
    new = folder / (MANIFEST_NAME + ".new")
    content = {"made_with": made_with, "files": dict(sorted(files.items()))}
    new.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(new, folder / MANIFEST_NAME)
