"""`specrt train-draft` from traces to a head that drafts, killed on the way or not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_heads import make_rows_free, tiny_head
from fakes import tiny_model_folder
from pages import Page, numbers_in
from safetensors.torch import load_file, save_file

from specrt.cli import main
from specrt.config import ModelConfig, SpeculativeConfig
from specrt.draft_heads.checkpoint import save_head
from specrt.engine import LLMEngine
from specrt.grammars.recipes import build_recipe
from specrt.request import EngineRequest, SamplingParams, by_source

FLAGS = ["--max-tokens", "40", "--num-threads", "1", "--epochs", "3", "--holdout", "0.3"]


def _tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"to": {"enum": ["north", "south"]}, "what": {"type": "string"}},
        "required": ["to", "what"],
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _line(number: int) -> dict[str, Any]:
    name = f"move_{number % 6}"
    call = {"name": name, "arguments": '{"to": "north", "what": "a box"}'}
    return {
        "id": f"t{number}",
        "source": f"{'ab'[number % 2]}/x",
        "licence": "MIT" if number % 2 else "CC0-1.0",
        "tools": [_tool(name)],
        "messages": [
            {"role": "user", "content": f"move box {number}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": call}],
            },
        ],
    }


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(
        tmp_path_factory.mktemp("target"), num_hidden_layers=7, max_position_embeddings=2048
    )


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "traces.jsonl"
    path.write_text("\n".join(json.dumps(_line(n)) for n in range(18)) + "\n")
    return path


def command(target: Path, traces: Path, out: Path, *more: str) -> list[str]:
    paths = ["--model-path", str(target), "--traces", str(traces), "--out", str(out)]
    return ["train-draft", *paths, *FLAGS, *more]


@pytest.fixture(scope="module")
def trained(
    target: Path, traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """(the head's folder, what was printed)."""
    out = tmp_path_factory.mktemp("out") / "head"
    argv = [sys.executable, "-m", "specrt", *command(target, traces, out)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_head_with_its_card_and_numbers(trained: tuple[Path, str], target: Path) -> None:
    out, printed = trained
    assert f"--speculative-draft-model-path {out}" in printed and "tau_sim" in printed
    config = json.loads((out / "config.json").read_text())
    assert config["specrt"]["target"] == target.name
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    card = (out / "README.md").read_text()
    assert "license:" not in card, "no one said which"
    for word in ("CC0-1.0", "MIT", "specrt train-draft", "--epochs 3", "tau_sim"):
        assert word in card
    assert str(out.parent) not in card, "a path of this machine"
    numbers = json.loads((out / "training.json").read_text())
    assert [entry["epoch"] for entry in numbers["history"]] == [1, 2, 3]
    losses = [entry["loss"] for entry in numbers["history"]]
    assert losses[-1] < losses[0]
    assert numbers["acceptance"]["all"]["tried"]
    page = Page((out / "report.html").read_text())
    assert page.needs_nothing() and str(out) not in page.text
    assert set(page.plotted()) <= set(numbers_in(numbers))
    for figure in page.figures:
        assert page.is_drawn(figure), figure
    assert "value" in numbers["regions"]
    assert set(numbers["acceptance"]) <= {"all", "a", "b"}
    assert numbers["is_finished"] and numbers["step"] == numbers["total_steps"]


def test_the_head_drafts_in_an_engine(trained: tuple[Path, str], target: Path) -> None:
    engine = LLMEngine(
        _engine_config(target, speculative="eagle", speculative_draft_model_path=str(trained[0]))
    )
    make_rows_free(engine)
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=engine.tokenizer.encode("move box 3 to the north"),
        sampling=SamplingParams(max_tokens=40, temperature=0.0),
    )
    engine.add(request)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert by_source(outputs[-1].stats.drafts.drafted).get("eagle", 0) > 0


def test_held_out_turns_take_as_many_passes_as_in_training(
    trained: tuple[Path, str], target: Path
) -> None:
    """The engine drafts chains of the head and forced text, as `train.acceptance.Walk` does."""
    out, _ = trained
    walk = json.loads((out / "training.json").read_text())["walk"]
    turns = [json.loads(line) for line in (out / "work" / "turns.jsonl").read_text().splitlines()]
    held = [turn for turn in turns if turn.get("is_held")]
    engine = LLMEngine(
        _engine_config(
            target,
            "forced",
            speculative="eagle",
            speculative_draft_model_path=str(out),
            speculative_num_steps=4,
            speculative_eagle_topk=1,
            max_tree_rows=64,
        )
    )
    make_rows_free(engine)
    passes = tokens = 0
    prompts = {trace["id"]: trace for trace in map(_line, range(18))}
    for turn in held:
        trace = prompts[turn["id"].partition("[")[0]]
        recipe = build_recipe(trace["tools"], tool_choice="required")
        # The first token is given, as in the walk.
        request = EngineRequest(
            request_id=turn["id"],
            prompt_token_ids=turn["prompt_ids"],
            sampling=SamplingParams(
                max_tokens=len(turn["output_ids"]), continuation=tuple(turn["output_ids"])
            ),
            grammar=recipe,
        )
        engine.add(request)
        lengths = []
        while engine.has_work:
            for output in engine.step():
                assert output.error is None
                lengths.append(len(output.token_ids))
        assert sum(lengths) == len(turn["output_ids"])
        passes += len(lengths)
        tokens += sum(lengths)
    assert len(held) > 2
    measured = tokens / passes
    assert measured == pytest.approx(walk["acceptance_length"], rel=0.05)


def _engine_config(target: Path, sources: str = "", **speculative: Any) -> Any:
    from specrt.config import CacheConfig, EngineConfig

    return EngineConfig(
        model=ModelConfig(model_path=str(target), num_threads=1),
        cache=CacheConfig(max_total_tokens=1024),
        speculative=SpeculativeConfig(draft_sources=sources, **speculative),
    )


def timeless(out: Path) -> Any:
    """training.json without wall times, and without a flag that decides nothing."""
    numbers = json.loads((out / "training.json").read_text())
    for entry in (*numbers["history"], *numbers["curve"]):
        assert entry.pop("seconds") > 0
    del numbers["command"], numbers["settings"]["checkpoint_minutes"]
    return numbers


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("work/turns.jsonl", signal.SIGKILL),
        ("work/features/00000.safetensors", signal.SIGTERM),
    ],
)
def test_killed_and_started_again_it_ends_with_the_same_head(
    stage: str,
    number: signal.Signals,
    trained: tuple[Path, str],
    target: Path,
    traces: Path,
    tmp_path: Path,
) -> None:
    """Killed when a file appears, and once more, or stopped, in training."""
    out = tmp_path / "head"
    argv = [sys.executable, "-m", "specrt", *command(target, traces, out)]
    argv += ["--checkpoint-minutes", "0"]
    for awaited, sent in ((stage, signal.SIGKILL), ("work/training/state.pt", number)):
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not (out / awaited).exists() and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, sent)
        assert process.wait() == (-sent if sent == signal.SIGKILL else 130)
    assert (out / "model.safetensors").exists() == (number == signal.SIGTERM)
    if number == signal.SIGTERM:
        numbers = json.loads((out / "training.json").read_text())
        assert not numbers["is_finished"] and 0 < numbers["step"] < numbers["total_steps"]
        page = Page((out / "report.html").read_text())
        assert "stopped early" in page.text and page.is_drawn("loss")
        assert "training was stopped" in (out / "README.md").read_text()
    assert subprocess.run(argv, capture_output=True).returncode == 0
    expected = trained[0]
    name = "model.safetensors"
    assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert timeless(out) == timeless(expected)


def test_an_existing_head_is_continued(
    trained: tuple[Path, str], target: Path, traces: Path, tmp_path: Path
) -> None:
    """Its own embedding, if it has one, stays."""
    shutil.copytree(trained[0], tmp_path / "first", ignore=shutil.ignore_patterns("work"))
    tensors = load_file(tmp_path / "first" / "model.safetensors")
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    tensors["embed_tokens.weight"] = (1.01 * embedding).bfloat16()
    save_file(tensors, tmp_path / "first" / "model.safetensors")
    out = tmp_path / "more"
    assert main(command(target, traces, out, "--init-from", str(tmp_path / "first"))) == 0
    written = load_file(out / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, tensors["embed_tokens.weight"])
    first = json.loads((trained[0] / "training.json").read_text())["history"]
    more = json.loads((out / "training.json").read_text())["history"]
    assert more[0]["loss"] < first[0]["loss"], "it began anew"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epochs", "0"], "--epochs: expected at least 1"),
        (["--traces", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--init-from", "nowhere"], "nowhere holds no config.json"),
        (["--model-path", "nowhere"], "--model-path"),
        (["--max-disk-gb", "0.000001"], "--max-disk-gb"),
        (["--max-prompt-tokens", "3"], "no turn is left"),
        (["--max-pack-rows", "5"], "--max-pack-rows: no turn to learn from fits 5 tokens"),
        (["--learning-rate", "inf"], "--learning-rate: expected a finite number"),
        (["--trunk-weight", "nan"], "--trunk-weight: expected a finite number"),
        (["--device", "foo"], "--device: 'foo' cannot be used"),
        (["--out", "/dev/null"], "--out: cannot write to /dev/null"),
        (["--init-from", "EAGLE-3.1"], "--format flat: norm_output"),
    ],
)
def test_bad_use_is_refused_by_name(
    flags: list[str],
    message: str,
    target: Path,
    traces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if flags[-1] == "EAGLE-3.1":
        newer = tiny_head(capture_layers=(2, 3, 4), norm_output=True)
        save_head(tmp_path / "newer", newer, layout="speculators")
        flags = ["--init-from", str(tmp_path / "newer")]
    assert main(command(target, traces, tmp_path / "out", *flags)) == 2
    assert message in capsys.readouterr().err


def test_a_target_with_too_few_layers_is_refused_before_the_work(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tiny_model_folder(tmp_path / "small", max_position_embeddings=2048)
    assert main(command(small, traces, tmp_path / "out")) == 2
    assert "expected a target of 7 layers or more, got 2" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_work_of_another_start_is_not_taken_for_this_one(
    trained: tuple[Path, str],
    target: Path,
    traces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "head"
    assert main(command(target, traces, out, "--init-from", str(trained[0]))) == 0
    assert main(command(target, traces, out)) == 2
    assert "start" in capsys.readouterr().err
    other = tmp_path / "other"
    more = ("--seed", "7", "--licence", "MIT", "--format", "speculators")
    assert main(command(target, traces, other, *more)) == 0
    assert "license: MIT" in (other / "README.md").read_text()
    config = json.loads((other / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == target.name
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    assert main(command(target, traces, out, "--init-from", str(other))) == 2


def test_held_out_turns_without_a_decision_leave_acceptance_open(
    target: Path, traces: Path, tmp_path: Path
) -> None:
    out = tmp_path / "head"
    assert main(command(target, traces, out, "--max-tokens", "1")) == 0
    assert json.loads((out / "training.json").read_text())["best_epoch"] >= 0
