"""README.md says what is there: every flag with its default, make targets, modules."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from specrt.config import EngineConfig, ServerConfig

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _rows(config: type) -> Iterator[str]:
    hints = typing.get_type_hints(config)
    for spec in dataclasses.fields(config):
        if dataclasses.is_dataclass(hints[spec.name]):
            yield from _rows(typing.cast(type, hints[spec.name]))
            continue
        default = "" if spec.default in (None, False) else f"`{spec.default}`"
        yield f"| `--{spec.name.replace('_', '-')}` | {default} | {spec.metadata['help']} |"


def test_the_flag_table_is_what_serve_takes() -> None:
    documented = re.findall(r"^\| `--[a-z-]+` \|.*\|$", README, re.MULTILINE)
    assert documented == [*_rows(ServerConfig), *_rows(EngineConfig)]


def test_every_make_target_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"serve", "test", "check", "bench"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_every_module_has_a_line_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for folder in ("specrt", "draft_heads", "grammars", "kernels", "train"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "__init__.py":
                assert f"| `{path.name}` |" in text, path
