"""Converted models: folders made once from a GGUF file, with a manifest that proves them whole.

manifest.json holds size, modification time and SHA-256 of the source and of each written file. A
file whose size and time are as recorded is trusted; otherwise it is hashed (half a gigabyte takes
too long for every start). A folder that fails is built again, a source that fails is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from specrt.errors import ConfigError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
# Part of the manifest: raise it when the converter writes something else for the same source.
CONVERTER_VERSION = 1


def cache_folder() -> Path:
    """Where models are kept: $SPECRT_CACHE, $XDG_CACHE_HOME/specrt or ~/.cache/specrt."""
    own = os.environ.get("SPECRT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrt"


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def converted_folder(source: Path) -> Path:
    """The transformers folder of a GGUF file; converts it on first use.

    Raises:
        ConfigError: the file is missing, damaged, or holds an unsupported model.
    """
    if not source.is_file():
        raise ConfigError(f"{source}: no such file; give the path of a .gguf file")
    source = source.resolve()
    place = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    folder = cache_folder() / "models" / f"{source.stem}-{place}"
    manifest = read_manifest(folder)
    if manifest is not None and _is_same(source, manifest["source"]) and is_whole(folder, manifest):
        return folder
    build(source, folder)
    return folder


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, or None when there is none that this converter wrote."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_ours = manifest["converter"] == CONVERTER_VERSION
        is_complete = bool(manifest["source"]["sha256"]) and bool(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if is_ours and is_complete else None


def is_whole(folder: Path, manifest: dict[str, Any]) -> bool:
    """Is every file as the manifest says? Logs the first that is not."""
    for name, record in manifest["files"].items():
        if not _is_same(folder / name, record):
            logger.warning("%s differs from its manifest; converting again", folder / name)
            return False
    return True


def build(source: Path, folder: Path) -> None:
    """Convert `source` and put the result in place of `folder` in one step.

    Raises:
        ConfigError: see gguf.convert; or the cache folder cannot be written.
    """
    from specrt.model.gguf import convert

    logger.info("converting %s (once)", source)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(
            f"{folder.parent}: cannot be written ({error}); set SPECRT_CACHE to a folder that can"
        ) from error
    try:
        made = work / "made"
        made.mkdir()
        convert(source, made)
        manifest = {
            "converter": CONVERTER_VERSION,
            "source": _record(source),
            "files": {path.name: _record(path) for path in sorted(made.iterdir())},
        }
        (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        # A folder cannot be replaced by rename: the old one steps aside first. If another process
        # was faster its folder holds the same files, so whichever stays is right.
        if folder.exists():
            folder.rename(work / "old")
        made.rename(folder)
    except OSError as error:
        if read_manifest(folder) is None:
            raise ConfigError(
                f"{folder}: cannot be written ({error}); free some space, or set SPECRT_CACHE to "
                "another folder"
            ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _record(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256(path)}


def _is_same(path: Path, record: dict[str, Any]) -> bool:
    try:
        status = path.stat()
        if status.st_size != record["size"]:
            return False
        is_unchanged: bool = status.st_mtime_ns == record["mtime_ns"]
        return is_unchanged or sha256(path) == str(record["sha256"])
    except (OSError, KeyError):
        return False
