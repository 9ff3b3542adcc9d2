"""The heads that ship with specrt, by the name of their target."""

from __future__ import annotations

from pathlib import Path


def shipped_head(target_name: str) -> Path | None:
    """Folder of the head for a target, e.g. SmolLM2-135M-Instruct; None when there is none."""
    folder = Path(__file__).parent / "checkpoints" / target_name
    return folder if (folder / "config.json").is_file() else None
