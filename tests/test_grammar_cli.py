"""`specrt grammar check | explain`, on a tiny model's tokenizer."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model_folder

from specrt import cli
from specrt.grammar_check import check, finished_rows, row_check
from specrt.grammar_check.key_order import in_schema_order
from specrt.grammar_check.report import document, render
from specrt.grammar_check.row_check import BASELINE, SPECRT, CheckSettings, Miss, RowResult
from specrt.grammar_check.rows import read_rows

PAIR = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
# The ids say what must come of them.
ROWS: list[dict[str, Any]] = [
    {
        "id": "exact",
        "source": "one",
        "dialect": "",
        "schema": PAIR,
        "tests": [
            {"data": {"a": True, "b": 1}, "valid": True, "description": "keys in another order"},
            {"data": {"b": 1}, "valid": False, "description": "a is missing"},
            {"data": {"b": 1, "a": 1}, "valid": False, "description": "a is a number"},
        ],
    },
    {
        "id": "mislabelled",
        "source": "two",
        "dialect": "draft7",
        "schema": {"type": "integer"},
        "tests": [
            {"data": 1, "valid": False, "description": "the label is wrong"},
            {"data": "x", "valid": True, "description": "so is this one"},
            {"data": 12, "valid": True, "description": "fine"},
        ],
    },
    {
        "id": "refused",
        "source": "two",
        "dialect": "",
        "schema": {"type": "integer", "$ref": "http://example.com/elsewhere.json"},
        "tests": [{"data": 1, "valid": True, "description": "never counted"}],
    },
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model_folder(tmp_path_factory.mktemp("tiny")))


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def run_check(model: str, folder: Path, rows: list[dict[str, Any]], *flags: str) -> Any:
    """Exit code and the JSON document."""
    out = folder / "out.json"
    argv = ["grammar", "check", "--schemas", write_rows(folder, rows), "--model-path", model]
    code = cli.main([*argv, "--json", str(out), "--processes", "1", *flags])
    return code, json.loads(out.read_text())


def test_check_counts_what_is_accepted_and_names_what_should_not_be(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_check(model, tmp_path, ROWS, "--baseline")
    assert code == 1  # an invalid instance, by its label, is accepted
    assert found["total"] == {
        "schemas": 3,
        "refused": 1,
        "valid": 3,
        "valid_accepted": 2,
        "invalid": 3,
        "invalid_accepted": 1,
        "timeouts": 0,
    }
    assert found["sources"]["one"]["valid_accepted"] == 1
    (refusal,) = found["refusals"]
    assert (refusal["id"], refusal["pointer"], refusal["keyword"]) == ("refused", "/$ref", "$ref")
    (accepted,) = found["invalid_accepted"]
    assert (accepted["id"], accepted["instance"]) == ("mislabelled", 0)
    assert [miss["instance"] for miss in found["valid_rejected"]] == [1]
    assert found["llguidance"]["total"] == found["total"]
    text = capsys.readouterr().out
    assert "mislabelled [0] the label is wrong" in text
    assert "llguidance: schemas" in text and "$ref" in text


def test_check_of_right_labels_succeeds(model: str, tmp_path: Path) -> None:
    code, found = run_check(model, tmp_path, ROWS[:1])
    assert code == 0
    assert found["invalid_accepted"] == found["valid_rejected"] == found["unfinished"] == []


def test_lenient_flags_what_slips_through(model: str, tmp_path: Path) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tests = [
        {"data": ["a", "a"], "valid": False, "description": "twice"},
        {"data": ["a", "b"], "valid": True, "description": "once each"},
        {"data": ["a", "b"], "valid": False, "description": "a wrong label"},
    ]
    row = {"id": "loose", "source": "s", "dialect": "", "schema": schema, "tests": tests}
    code, found = run_check(model, tmp_path, [row], "--lenient")
    flags = {miss["instance"]: miss["is_flagged"] for miss in found["invalid_accepted"]}
    assert flags == {0: True, 2: False}
    assert (code, found["total"]["unflagged"], found["total"]["refused"]) == (1, 1, 0)
    code, found = run_check(model, tmp_path, [{**row, "tests": tests[:2]}], "--lenient")
    assert (code, found["total"]["unflagged"], found["total"]["invalid_accepted"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", ("line 2", "object")),
        ("{", ("line 2", "JSON")),
        (json.dumps({**ROWS[0], "id": 3}), ("line 2", "'id'")),
        (json.dumps({k: v for k, v in ROWS[1].items() if k != "tests"}), ("'tests'", "nothing")),
        (json.dumps({**ROWS[1], "tests": [{"data": 1}]}), ("tests[0]", "'valid'")),
        (json.dumps({**ROWS[1], "dialect": "draft99"}), ("'dialect'", "draft99")),
        (json.dumps(ROWS[0]), ("line 2", "twice")),
    ],
)
def test_a_row_of_another_shape_is_named(
    tmp_path: Path, line: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
    assert cli.main(["grammar", "check", "--schemas", str(path)]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in (str(path), *words)), message


def test_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["grammar", "check"]) == 2
    assert "--schemas" in capsys.readouterr().err
    assert cli.main(["grammar", "check", "--schemas", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert cli.main(["grammar", "explain"]) == 2


def test_the_dialect_goes_into_schemas_that_name_none(tmp_path: Path) -> None:
    rows = [
        {**ROWS[0], "id": "a", "dialect": "draft4"},
        {**ROWS[0], "id": "b", "dialect": "draft7", "schema": True},
        {**ROWS[0], "id": "c", "dialect": "draft7", "schema": {"$schema": "own"}},
    ]
    schemas = [row.schema for row in read_rows(write_rows(tmp_path, rows))]
    assert isinstance(schemas[0], dict)
    assert schemas[0]["$schema"] == "http://json-schema.org/draft-04/schema#"
    assert schemas[1:] == [True, {"$schema": "own"}]
    assert len(read_rows(write_rows(tmp_path, rows), 2)) == 2


def test_keys_are_put_in_the_order_of_the_schema() -> None:
    schema = {
        "allOf": [{"properties": {"b": {"$ref": "#/$defs/pair"}, "a": {}}}],
        "properties": {"d": {"items": {"$ref": "#/$defs/pair"}}},
        "$defs": {"pair": {"properties": {"y": {}, "x": {}}}},
    }
    pair = {"x": 1, "y": 2}
    value = {"z": 0, "a": 1, "b": pair, "d": [pair]}
    ordered = in_schema_order(schema, value)
    assert ordered == value
    assert list(ordered) == ["d", "b", "a", "z"]
    assert list(ordered["b"]) == list(ordered["d"][0]) == ["y", "x"]


def sleep_on_row_two(row: Any, engine: str, settings: CheckSettings) -> RowResult:
    """A row that does not come to its end."""
    if row.row_id == "mislabelled":
        time.sleep(600)
    return row_check.check_row(row, engine, settings)


def test_a_stuck_row_is_counted_and_the_others_go_on(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import test_grammar_cli as by_name  # the child imports it by this name

    monkeypatch.setattr(check, "check_row", by_name.sleep_on_row_two)
    rows = read_rows(write_rows(tmp_path, ROWS))
    settings = CheckSettings(model_path=model, backend="auto", strict=True)
    found = check.check_rows(rows, [SPECRT], settings, processes=2, work=None, row_s=1.5)
    assert [result.outcome for result in found[SPECRT]] == ["checked", "unfinished", "refused"]
    assert "longer than 1.5 s" in found[SPECRT][1].reason
    assert document(found, is_lenient=False)["total"]["timeouts"] == 1
    assert "mislabelled: it took longer" in render(found, is_lenient=False)


def test_a_killed_run_goes_on_where_it_was(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path, [{**ROWS[0], "id": str(i)} for i in range(400)])
    work = tmp_path / "work"
    argv = ["grammar", "check", "--schemas", path, "--model-path", model, "--work", str(work)]
    process = subprocess.Popen([sys.executable, "-m", "specrt", *argv], stdout=subprocess.DEVNULL)
    lines = work / "finished_rows.jsonl"
    deadline = time.monotonic() + 30
    while not (lines.exists() and lines.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = lines.read_bytes()
    whole = kept.count(b"\n")
    assert 3 <= whole < 400, "the run was too fast to be killed in the middle"
    lines.write_bytes(kept + b'{"key": "cut in the mid')

    judged: list[str] = []
    run = check._run_all

    def count(workers: Any, rows: Any, pending: Any, *rest: Any) -> Any:
        judged.extend(key for _, _, key in pending)
        return run(workers, rows, pending, *rest)

    monkeypatch.setattr(check, "_run_all", count)
    out = tmp_path / "out.json"
    assert cli.main([*argv, "--json", str(out)]) == 0
    assert len(judged) == 400 - whole
    assert json.loads(out.read_text())["total"]["valid_accepted"] == 400
    judged.clear()
    assert cli.main([*argv, "--json", str(out)]) == 0
    assert judged == []
    assert json.loads(out.read_text())["total"]["valid_accepted"] == 400
    assert cli.main([*argv, "--lenient"]) == 0  # other settings: nothing is known of them
    assert len(judged) == 400


def test_results_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    miss = Miss(instance=3, description="é", is_flagged=True)
    result = RowResult(row_id="r", source="s", invalid=4, invalid_accepted=[miss])
    store = finished_rows.FinishedRows(str(tmp_path))
    store.put("k", result)
    store.close()
    again = finished_rows.FinishedRows(str(tmp_path))
    assert again.get("k") == result
    assert again.get("other") is None
    again.close()


def test_a_result_depends_on_row_settings_and_code(tmp_path: Path) -> None:
    first, second = read_rows(write_rows(tmp_path, ROWS))[:2]
    settings = CheckSettings(model_path=None, backend="auto", strict=True)
    loose = CheckSettings(model_path=None, backend="auto", strict=False)
    keys = {
        finished_rows.row_key(first, SPECRT, settings, "f"),
        finished_rows.row_key(second, SPECRT, settings, "f"),
        finished_rows.row_key(first, SPECRT, loose, "f"),
        finished_rows.row_key(first, SPECRT, settings, "g"),
        finished_rows.row_key(first, BASELINE, settings, "f"),
    }
    assert len(keys) == 5
    assert finished_rows.row_key(first, BASELINE, loose, "f") in keys  # it is always strict


def explain(model: str, folder: Path, schema: Any, *flags: str) -> int:
    path = folder / "schema.json"
    path.write_text(json.dumps(schema), encoding="utf-8")
    return cli.main(["grammar", "explain", str(path), "--model-path", model, *flags])


def test_explain_counts_what_is_forced(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(model, tmp_path, {"const": {"a_long_key": "a long value"}}) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "free 0 0.0 %" in text and "choices of 2 to 4 0 0.0 %" in text
    assert '{"a_long_key": "a long value"}' in text
    assert explain(model, tmp_path, {"enum": [True, False]}) == 0
    assert "choices of 2 to 4 1" in " ".join(capsys.readouterr().out.split())
    assert explain(model, tmp_path, {"type": "string", "minLength": 3, "maxLength": 3}) == 0
    assert "free 3 " in " ".join(capsys.readouterr().out.split())


def test_explain_follows_an_instance(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = tmp_path / "instance.json"
    instance.write_text('{"a": true, "b": 77}')
    assert explain(model, tmp_path, PAIR, "--instance", str(instance)) == 0
    assert '{"b": 77, "a": true}' in capsys.readouterr().out
    instance.write_text('{"a": "no", "b": 77}')
    assert explain(model, tmp_path, PAIR, "--instance", str(instance)) == 1
    assert "not allowed" in capsys.readouterr().out


def test_explain_says_why_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    assert explain(model, tmp_path, schema, "--strict") == 1
    assert "uniqueItems at /properties/x/uniqueItems" in capsys.readouterr().out
    assert explain(model, tmp_path, schema) == 0
    out = capsys.readouterr().out
    assert "not enforced:" in out and "/properties/x/uniqueItems: uniqueItems" in out
    assert explain(model, tmp_path, {"type": "objekt"}) == 1
    (tmp_path / "schema.json").write_text("{")
    code = cli.main(["grammar", "explain", str(tmp_path / "schema.json"), "--model-path", model])
    assert code == 2


def test_explain_reads_standard_input_without_torch(model: str) -> None:
    code = (
        "import sys; from specrt.cli import main;"
        f"code = main(['grammar', 'explain', '-', '--model-path', {model!r}]);"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input='{"type": "null"}', capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "\nnull" in done.stdout
