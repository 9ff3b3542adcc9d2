"""pytest plugin: cases that the server refuses must be refused, and as it is written down.

A listed case passes when its call raises the listed HTTP status with an error that names the listed
field (or says the listed words); it fails when it succeeds or raises anything else. A listed case
that no longer exists fails the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_LISTED = pytest.StashKey[dict[str, dict[str, Any]]]()
_SEEN = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refused", type=Path, required=True, help="the list, a JSON file")
    parser.addoption("--client", required=True, help="whose tests these are")


def pytest_configure(config: pytest.Config) -> None:
    listed = json.loads(config.getoption("--refused").read_text(encoding="utf-8"))
    entries = listed[config.getoption("--client")]
    config.stash[_LISTED] = {case: entry for entry in entries for case in entry["cases"]}
    config.stash[_SEEN] = set()


def _case(item: pytest.Item) -> str:
    """`chat/test_completions.py::test_method_create`: one name for sync, async, loose, strict."""
    assert isinstance(item, pytest.Function)
    path = item.path.as_posix().rpartition("api_resources/")[2]
    return f"{path}::{item.originalname}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield
    entry = item.config.stash[_LISTED].get(_case(item))
    if call.when != "call" or entry is None:
        return report
    item.config.stash[_SEEN].add(_case(item))
    expected = f"{entry['status']} {entry['says']}"
    if call.excinfo is None:
        report.outcome, report.longrepr = "failed", f"succeeded; the list says: {expected}"
        return report
    error = call.excinfo.value
    status = getattr(error, "status_code", None)
    if status == entry["status"] and entry["says"] in str(error):
        report.outcome, report.wasxfail = "skipped", entry["reason"]
    else:
        report.outcome = "failed"
        report.longrepr = f"{type(error).__name__}: {error}; the list says: {expected}"
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    unseen = config.stash[_LISTED].keys() - config.stash[_SEEN]
    if unseen and not config.getoption("keyword"):
        print(f"\nlisted, but not among the tests: {', '.join(sorted(unseen))}")
        session.exitstatus = 1
