from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes import tiny_model_folder
from gguf_writer import write_gguf

from specrt.errors import ConfigError
from specrt.model.embedded import EMBEDDED_NAME, find_embedded
from specrt.model.loader import load_target, resolve_model_folder


def test_folder(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "tiny")
    found = resolve_model_folder(str(folder))
    assert (found.folder, found.name, found.config.num_layers) == (folder, "tiny", 2)
    loaded = load_target(str(folder))
    assert (loaded.folder, loaded.name, loaded.model.config) == (folder, "tiny", found.config)


def test_gguf_and_folder_give_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECRT_CACHE", str(tmp_path / "cache"))
    folder = tiny_model_folder(tmp_path / "tiny")
    source = write_gguf(tmp_path / "small.gguf", folder)
    loaded = load_target(str(source))
    assert loaded.name == "small"
    embedding = load_target(str(folder)).model._embedding
    assert torch.equal(loaded.model._embedding, embedding)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "which is not there"),
        ("file.bin", "which is neither"),
        ("none.gguf", "no such file"),
        (".", "config.json: no such file"),
    ],
)
def test_wrong_paths(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=message):
        resolve_model_folder(str(tmp_path / name))


def test_missing_weights_are_found_without_loading(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="neither model.safetensors"):
        resolve_model_folder(str(folder))


def test_resolving_a_folder_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from specrt.model.loader import resolve_model_folder\n"
        f"resolve_model_folder({str(tiny_model_folder(tmp_path))!r})\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_default_is_the_embedded_model() -> None:
    try:
        folder = find_embedded()
    except ConfigError as error:
        pytest.skip(f"needs the embedded model: {error}")
    found = resolve_model_folder(None)
    assert (found.folder, found.name) == (folder, EMBEDDED_NAME)
    assert (found.config.num_layers, found.config.max_positions) == (30, 8192)
