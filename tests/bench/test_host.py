"""bench.host: every part of a turn is timed, and only the new part is computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrt.bench import host
from specrt.bench.options import HostOptions
from specrt.errors import ConfigError


def test_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.json"
    assert host.run(HostOptions(tokens="4096", turns=1, json=str(path))) == 0
    (figures,) = json.loads(path.read_text())["figures"].values()
    assert 4096 < figures["tokens"] < 9000
    assert 0 < figures["new"] < 600, "the reply's turn was not spliced in"
    assert all(figures[name] > 0 for name in ("body_ms", "prompt_ms", "message_ms", "engine_ms"))
    assert "render, splice, tokenise" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", ["", "4096,x", "100"])
def test_lengths_that_are_none_are_refused(tokens: str) -> None:
    with pytest.raises(ConfigError, match="--tokens"):
        HostOptions(tokens=tokens)
