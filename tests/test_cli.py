"""The command line: flags from dataclasses, exit codes, and a --help that loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from specrt import __version__, cli
from specrt.config import EngineConfig, ServerConfig, build, flag, flatten
from specrt.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    count: int = flag(3, "how many, 50% at least")
    share: float = flag(0.5, "which share")
    name: str | None = flag(None, "what it is called")
    is_loud: bool = flag(False, "be loud")
    mode: Literal["left", "right"] = flag("left", "which way", aliases=("--way", "--side"))


def _parse(*argv: str) -> dict[str, Any]:
    parser = cli._Parser(prog="try")
    cli.add_flags(parser, _Options)
    return vars(parser.parse_args(argv))


def test_flags_have_the_types_of_their_fields() -> None:
    argv = ["--count", "7", "--share=0.25", "--name", "x", "--is-loud", "--mode", "right"]
    options = build(_Options, _parse(*argv))
    assert options == _Options(count=7, share=0.25, name="x", is_loud=True, mode="right")
    assert build(_Options, _parse()) == _Options()


def test_aliases_are_the_flag_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert build(_Options, _parse("--side", "right")).mode == "right"
    assert build(_Options, _parse("--mode", "right", "--way=left")).mode == "left"
    with pytest.raises(SystemExit):
        _parse("--side", "up")
    assert "--side" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--count", "many"], ["--mode", "up"], ["--is-loud=yes"], ["--cou", "3"], ["extra"]]
)
def test_values_of_the_wrong_type_and_abbreviations_are_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        _parse(*argv)
    assert stop.value.code == 2
    assert argv[0].split("=")[0] in capsys.readouterr().err


def test_help_gives_defaults_that_say_something() -> None:
    parser = cli._Parser(prog="try")
    cli.add_flags(parser, _Options)
    text = " ".join(parser.format_help().split())
    assert "how many, 50% at least (default: 3)" in text
    assert "which way; also --way, --side (default: left)" in text
    assert "--way {" not in text
    assert "be loud --mode" in text and "what it is called --is-loud" in text


def test_every_config_field_is_a_serve_flag() -> None:
    parser = cli._Parser(prog="try")
    cli.add_flags(parser, ServerConfig)
    cli.add_flags(parser, EngineConfig)
    for name in [*flatten(ServerConfig()), *flatten(EngineConfig())]:
        assert "--" + name.replace("_", "-") in parser.format_help()
    values = vars(parser.parse_args(["--port", "9", "--speculative", "none", "--check-cache"]))
    engine = build(EngineConfig, values)
    assert (engine.speculative.speculative, engine.cache.check_cache) == ("none", True)
    assert build(ServerConfig, values).port == 9
    assert build(EngineConfig, vars(parser.parse_args([]))) == EngineConfig()


def _fake_app(monkeypatch: pytest.MonkeyPatch, serve: Any) -> None:
    app = types.ModuleType("specrt.server.app")
    app.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specrt.server.app", app)


def test_serve_hands_both_configs_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def serve(*configs: Any) -> int:
        seen.extend(configs)
        return 7

    _fake_app(monkeypatch, serve)
    argv = ["serve", "--port", "8123", "--model-path", "m", "--schedule-policy", "fcfs"]
    assert cli.main(argv) == 7
    server, engine = seen
    assert (server.port, server.host) == (8123, "127.0.0.1")
    assert (engine.model.model_path, engine.scheduler.schedule_policy) == ("m", "fcfs")


def test_recipes_of_other_servers_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def serve(*configs: Any) -> int:
        seen.extend(configs)
        return 0

    _fake_app(monkeypatch, serve)
    argv = ["serve", "--max-model-len", "4096", "--gpu-memory-utilization", "0.9"]
    argv += ["--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--tp", "1"]
    switches = ["--enable-prefix-caching", "--enable-radix-attention", "--enable-chunked-prefill"]
    argv += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model", "head"]
    argv += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "2"]
    argv += ["--speculative-num-draft-tokens", "8"]
    assert cli.main(argv + switches) == 0
    server, engine = seen
    drafting = engine.speculative
    assert (drafting.speculative, drafting.speculative_draft_model_path) == ("eagle", "head")
    assert (drafting.speculative_num_steps, drafting.speculative_eagle_topk) == (3, 2)
    assert drafting.max_tree_rows == 8
    assert (engine.model.context_length, engine.cache.mem_fraction_static) == (4096, 0.9)
    scheduler = engine.scheduler
    assert (scheduler.max_running_requests, scheduler.chunked_prefill_size) == (8, 512)
    notices = capsys.readouterr().err.splitlines()
    assert notices == [f"specrt serve: {name}: not needed, it is always on" for name in switches]


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*configs: Any) -> int:
        raise KeyboardInterrupt

    _fake_app(monkeypatch, serve)
    assert cli.main(["serve"]) == 130


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", "--port", "70000"], "--port: expected an integer from 0 to 65535, got 70000"),
        (
            ["serve", "--tensor-parallel-size", "2"],
            "--tensor-parallel-size): expected 1, as tensor",
        ),
        (["serve", "--tp", "4"], "--tp-size (--tp, --tensor-parallel-size): expected 1"),
        (["serve", "--max-queued-requests", "-1"], "--max-queued-requests: expected an integer"),
        (["serve", "--request-timeout", "nan"], "--request-timeout: expected seconds above 0"),
        (["serve", "--drain-timeout", "-1"], "--drain-timeout: expected seconds >= 0, got -1.0"),
        (["serve", "--speculative-num-steps", "0"], "--speculative-num-steps: expected an integer"),
        (
            ["serve", "--speculative", "none", "--speculative-draft-model", "x"],
            "--speculative none uses no head",
        ),
        (["serve", "--draft-sources", "forced,magic"], "magic"),
        (["bench", "--concurrency", "0"], "--concurrency: expected a number >= 1, got 0"),
        (["bench", "equality", "--requests", "0"], "--requests"),
        (["bench", "--traces", "/nowhere.jsonl"], "--traces: cannot read /nowhere.jsonl"),
        (["chat", "--tools", "/nowhere.json"], "--tools: cannot read /nowhere.json"),
    ],
)
def test_a_config_error_is_one_line_and_exit_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert err.startswith(f"specrt {argv[0]}")


def test_a_config_error_at_start_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(*configs: Any) -> int:
        raise ConfigError("no such model")

    _fake_app(monkeypatch, serve)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == "specrt serve: error: no such model\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", "--model", "x"], "--model (did you mean --model-path?)"),
        (["serve", "--prot=1"], "--prot (did you mean --port?); see specrt serve --help"),
        (["bench", "--ur", "x"], "--ur (did you mean --url?); see specrt bench replay --help"),
        (["bench", "equality", "--zzz"], "unknown argument: --zzz; see specrt bench equality"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "COMMAND"),
    ],
)
def test_bad_use_is_exit_2_with_a_hint(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err


def test_log_level_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECRT_LOG", "chatty")
    assert cli.main(["serve"]) == 2
    assert "SPECRT_LOG: expected one of debug, info" in capsys.readouterr().err


_HELP = """
import sys
from specrt.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers", "fastapi", "openai", "llguidance"} & set(sys.modules)
assert code == 0, code
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["serve", "--help"],
        ["bench", "--help"],
        ["bench", "replay", "--help"],
        ["bench", "equality", "--help"],
        ["bench", "compare", "--help"],
        ["chat", "--help"],
    ],
    ids=" ".join,
)
def test_help_answers_without_heavy_imports(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELP, *argv], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    expected = __version__ if argv == ["--version"] else "usage: specrt"
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["-m", "specrt", "serve", "--help"], "usage: specrt serve"),
        (["serve.py", "--help"], "usage: specrt serve"),
        (["-m", "specrt", "--version"], f"specrt {__version__}"),
    ],
)
def test_module_and_script_are_the_same_program(command: list[str], usage: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(usage)
