"""eval-draft: what counts as a token of a pass, and real decoding of own and recorded calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_heads import tiny_head_folder
from fakes import tiny_model_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page, numbers_in

from specrt.bench.draft_ladder import LADDER
from specrt.bench.draft_passes import Drafted, Judged, VerifyPass, figures, read_pass
from specrt.bench.reliability import Reliability
from specrt.bench.token_kinds import TokenKind
from specrt.cli import main
from specrt.draft_tree import DraftTree

VALUE, FORCED = TokenKind("value", False), TokenKind("key", True)


def plain_pass() -> VerifyPass:
    return VerifyPass((), 1, 0, 0, ())


def drafted_pass(*sources: str) -> VerifyPass:
    return VerifyPass(sources, len(sources) + 1, 5, len(sources) + 1, ())


def test_plain_decoding_has_one_token_a_pass() -> None:
    found = figures([Drafted("a/b", [VALUE] * 4, [plain_pass() for _ in range(4)])])
    assert (found["tokens"], found["passes"], found["acceptance_length"]) == (3, 3, 1.0)


def test_the_first_token_of_a_prefill_does_not_count_but_its_drafts_do() -> None:
    passes = [drafted_pass("forced", "forced"), drafted_pass("eagle"), plain_pass()]
    found = figures([Drafted("a/b", [VALUE, FORCED, FORCED, VALUE, VALUE, VALUE], passes)])
    assert (found["tokens"], found["passes"]) == (5, 3)
    assert found["acceptance_length_unforced"] == 1.0
    # The keys: a drafted one and the first pass's bonus token. The values: eagle's, and two draws.
    assert found["by_region"]["key"] == {
        "tokens": 2,
        "drafted_share": 0.5,
        "acceptance_length": 2.0,
    }
    assert found["by_region"]["value"]["acceptance_length"] == 1.5
    assert found["by_depth"][0] == {"tried": 2, "kept": 2, "rate": 1.0}
    assert found["by_depth"][1] == {"tried": 2, "kept": 1, "rate": 0.5}
    assert found["tokens_of_a_pass"] == {1: 1, 2: 1, 3: 1}


def test_a_pass_knows_which_nodes_were_decided() -> None:
    r"""root -> a (kept) -> c (kept) -> d; root -> b -> e, which nobody asked about."""
    tree = DraftTree(9)
    a = tree.add(0, 1, 0.8, "eagle")
    b = tree.add(0, 2, 0.1, "history")
    c = tree.add(a, 3, 0.5, "eagle")
    tree.add(b, 4, 0.9, "eagle")
    tree.add(c, 5, 1.0, "forced")
    found = read_pass(tree, [a, c], [1, 3, 7])
    assert found.judged == (
        Judged("eagle", 0.8, True),
        Judged("history", 0.1, False),
        Judged("eagle", 0.5, True),
        Judged("forced", 1.0, False),
    )
    assert (found.kept, found.num_tokens, found.num_drafted, found.depth) == (
        ("eagle", "eagle"),
        3,
        5,
        3,
    )
    cut = read_pass(tree, [a, c], [1, 3])  # the output was full: nothing drawn behind c
    assert len(cut.judged) == 3 and cut.depth == 2


def test_calibration_by_tenths() -> None:
    found = Reliability.of([(0.31, True), (0.39, False), (1.0, True)])
    assert found.rows() == [
        {"estimated": pytest.approx(0.35), "observed": 0.5, "count": 2},
        {"estimated": 1.0, "observed": 1.0, "count": 1},
    ]
    assert found.error() == pytest.approx((2 * 0.15 + 0) / 3)
    assert Reliability().rows() == [] and Reliability().error() is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1))
def test_calibration_counts_every_case_whatever_the_parts(cases: list[tuple[float, bool]]) -> None:
    whole, parts = Reliability.of(cases), Reliability()
    for estimate, is_hit in cases:
        parts.add(np.array([estimate]), np.array([is_hit]))
    rows = whole.rows()
    for row, same in zip(rows, parts.rows(), strict=True):
        assert row == pytest.approx(same)
    assert sum(row["count"] for row in rows) == len(cases)
    hits = sum(row["observed"] * row["count"] for row in rows)
    assert hits == pytest.approx(sum(is_hit for _, is_hit in cases))
    assert 0 <= (whole.error() or 0) <= 1


TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "where": {"enum": ["here", "there"]}},
            "required": ["query"],
        },
    },
}


def _line(number: int, arguments: dict[str, Any]) -> str:
    call = {"name": "search", "arguments": json.dumps(arguments)}
    reply = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": call}]}
    user = {"role": "user", "content": f"find flights {number}"}
    source = f"{'ab'[number % 2]}/x"
    line = {"id": f"t{number}", "source": source, "tools": [TOOL], "messages": [user, reply]}
    return json.dumps(line)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Target, head and traces; the third recorded call breaks its schema."""
    root = tmp_path_factory.mktemp("eval")
    calls: list[dict[str, Any]] = [
        {"where": "there", "query": 'ch"eap é'},
        {"query": "flights"},
        {"query": 7},
        {"query": "", "where": "here"},
    ]
    lines = [_line(number, arguments) for number, arguments in enumerate(calls)]
    (root / "traces.jsonl").write_text("\n".join(lines))
    target = tiny_model_folder(root / "target", max_position_embeddings=1024)
    return target, tiny_head_folder(root / "head"), root / "traces.jsonl"


def evaluate(files: tuple[Path, Path, Path], out: Path, *more: str) -> dict[str, Any]:
    target, head, traces = files
    argv = ["eval-draft", "--model-path", str(target), "--head", str(head)]
    argv += ["--traces", str(traces), "--max-tokens", "60", "--json", str(out / "e.json")]
    assert main([*argv, "--num-threads", "1", *more]) == 0
    found: dict[str, Any] = json.loads((out / "e.json").read_text())["heads"][0]
    return found


def test_recorded_calls_are_drafted_token_by_token(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "e.html"
    found = evaluate(files, tmp_path, "--calls", "recorded", "--html", str(html))
    check_page(html.read_text(), json.loads((tmp_path / "e.json").read_text()))
    assert (found["num_requests"], found["num_left_out"], found["num_differing"]) == (3, 1, 0)
    rows = found["rows"]
    assert list(rows) == list(LADDER)
    assert rows["none"]["acceptance_length"] == 1.0
    assert rows["+ forced"]["acceptance_length"] > rows["+ mask"]["acceptance_length"]
    assert len({(row["tokens"], row["unforced_tokens"]) for row in rows.values()}) == 1
    printed = capsys.readouterr().out
    assert "1 calls left out" in printed and "+ values: region" in printed


def check_page(text: str, document: dict[str, Any]) -> None:
    """Every number plotted is in the JSON, and what the JSON has is plotted."""
    page, rows = Page(text), document["heads"][0]["rows"]
    assert page.needs_nothing()
    assert set(page.plotted()) <= set(numbers_in(document))
    names = ("acceptance_length", "acceptance_length_unforced")
    assert page.marks("ladder-0") == [(row[name],) for row in rows.values() for name in names]
    regions = [
        (row["by_region"][region]["drafted_share"],)
        for region in rows["none"]["by_region"]
        for row in rows.values()
    ]
    assert page.marks("region-0") == [mark for mark in regions if mark != (None,)]
    assert page.marks("depth-0") == [
        (depth, entry["rate"])
        for row in rows.values()
        for depth, entry in enumerate(row["by_depth"], start=1)
        if entry["rate"] is not None
    ]
    assert page.marks("calibration-0") == [
        (row["estimated"], row["observed"], row["count"])
        for found in rows["+ values"]["calibration"].values()
        for row in found
    ]
    assert page.is_drawn("source-0") and page.is_drawn("lengths-0")
    assert "3 calls, 1 left out" in page.text and "recorded" in page.text


def test_own_calls_are_the_same_whatever_drafts(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    some = "none,head tree,+ history"
    found = evaluate(files, tmp_path, "--temperature", "0.7", "--draft-sources", some)
    assert (found["num_requests"], found["num_differing"]) == (4, 0)
    assert list(found["rows"]) == some.split(",")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft-sources", "tree"], "--draft-sources: expected some of none, head chain"),
        (["--calls", "recorded", "--temperature", "1"], "--temperature: recorded calls"),
        (["--requests", "0"], "--requests: expected a number >= 1"),
        (["--max-prompt-tokens", "1"], "--max-prompt-tokens"),
        (["--head", "nowhere"], "nowhere holds no config.json"),
    ],
)
def test_bad_use_is_refused_by_name(
    flags: list[str],
    message: str,
    files: tuple[Path, Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, head, traces = files
    paths = ["--model-path", str(target), "--head", str(head), "--traces", str(traces)]
    assert main(["eval-draft", *paths, *flags]) == 2
    assert message in capsys.readouterr().err
