"""The plugin behind `make client-check`: what the list does not say fails the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "client_check"
CASES = """
import pytest

class StatusError(Exception):
    status_code = 400

@pytest.mark.parametrize("client", [1, 2])
def test_refused(client): raise StatusError("`audio`: no")
def test_refused_otherwise(): raise StatusError("`model`: no")
def test_broken(): raise ValueError("`audio`")
def test_succeeds(): pass
def test_unlisted(): pass
"""


def _run(folder: Path, *cases: str) -> str:
    """The summary of a run in which these cases are listed as refused for `audio`."""
    entry = {"status": 400, "says": "`audio`", "reason": "why not"}
    entry["cases"] = [f"test_it.py::{case}" for case in cases]
    (folder / "refused.json").write_text(json.dumps({"openai": [entry]}))
    (folder / "api_resources").mkdir(exist_ok=True)
    (folder / "api_resources" / "test_it.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-q", "-rfx", "-p", "refusals", "--client=openai"]
    command += ["--refused=refused.json", "--rootdir=.", "api_resources/test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(CHECK), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


def test_refusals_are_held_against_the_list(tmp_path: Path) -> None:
    text = _run(tmp_path, "test_refused", "test_refused_otherwise", "test_broken", "test_succeeds")
    assert "3 failed, 1 passed, 2 xfailed" in text and text.endswith("exit 1")
    assert text.count("why not") == 2
    assert "succeeded; the list says: 400 `audio`" in text
    assert "ValueError: `audio`; the list says" in text


def test_an_entry_without_a_test_fails(tmp_path: Path) -> None:
    text = _run(tmp_path, "test_refused", "test_gone")
    assert "not among the tests: test_it.py::test_gone" in text
    assert text.endswith("exit 1")
