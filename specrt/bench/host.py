"""`specrt bench host`: what a turn costs besides the model's passes, by length of the conversation.

The engine runs in this process with a tiny random model behind the real tokenizer, so that a cached
prefix of 128k tokens is made in a minute. Each turn adds a reply and an answer of a fixed length;
what grows with the whole conversation shows as a difference between the columns.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specrt.bench.environment import describe, environment
from specrt.bench.generator import engine_config
from specrt.bench.options import HostOptions
from specrt.bench.report import columns, write_json
from specrt.config import DRAFT_SOURCES
from specrt.engine import LLMEngine
from specrt.grammars.format_detection import find_format
from specrt.grammars.prompt_builder import Prompt, make_prompt_builder
from specrt.messages import Add, decode_command, encode
from specrt.model.loader import resolve_model_folder
from specrt.request import EngineRequest, SamplingParams

_NUM_TOOLS = 20
_RESULT_TOKENS = 400
_FIRST_TOKENS = 1500
_OUTPUT_TOKENS = 24
# Parts of a turn, in order: name -> what is timed.
_PARTS = {
    "body_ms": "read and check the body",
    "prompt_ms": "render, splice, tokenise",
    "message_ms": "to the engine and read there",
    "engine_ms": "match, page table, drafts, sampling of the first pass",
}

Figures = dict[str, float]


def run(options: HostOptions) -> int:
    """Measure, print, write the JSON.

    Returns:
        0.

    Raises:
        ConfigError: no model, or --json cannot be written.
    """
    env = environment()
    print(describe(env))
    figures: dict[int, Figures] = {}
    with _tiny_model(max(options.lengths) + 16 * _FIRST_TOKENS) as folder:
        for length in options.lengths:
            conversation = _Conversation(folder, length)
            turns = [conversation.turn() for _ in range(options.turns + 1)][1:]
            figures[length] = {name: statistics.median(t[name] for t in turns) for name in turns[0]}
    print(_table(figures))
    if options.json is not None:
        write_json(
            options.json,
            {"environment": env, "options": asdict(options), "figures": figures},
        )
    return 0


def _table(figures: dict[int, Figures]) -> str:
    header = ["milliseconds by prompt tokens", *(str(int(f["tokens"])) for f in figures.values())]
    rows = [header]
    rows += [[text, *(f"{f[name]:.1f}" for f in figures.values())] for name, text in _PARTS.items()]
    rows.append(["in all", *(f"{sum(f[n] for n in _PARTS):.1f}" for f in figures.values())])
    rows.append(["tokens that were not cached", *(f"{f['new']:.0f}" for f in figures.values())])
    return columns(rows)


@contextmanager
def _tiny_model(context_length: int) -> Iterator[Path]:
    """A folder with the embedded model's tokenizer and one random layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    found = resolve_model_folder(None)
    config = LlamaConfig(
        vocab_size=found.config.vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=context_length,
        bos_token_id=None,
        eos_token_id=list(found.config.eos_token_ids),
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(folder)
        for path in found.folder.glob("token*.json"):
            shutil.copy(path, folder)
        for path in found.folder.glob("*.jinja"):
            shutil.copy(path, folder)
        yield folder


class _Conversation:
    """A conversation of one length and the engine that has it cached."""

    def __init__(self, folder: Path, num_tokens: int) -> None:
        self._engine = LLMEngine(
            engine_config(
                str(folder),
                ",".join(DRAFT_SOURCES),
                num_threads=None,
                max_total_tokens=num_tokens + 12 * _FIRST_TOKENS,
            )
        )
        tokenizer = self._engine.tokenizer
        self._prompts = make_prompt_builder(tokenizer, find_format(tokenizer))
        self._random = random.Random(0)
        self._tools = [self._tool(index) for index in range(_NUM_TOOLS)]
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text(_FIRST_TOKENS)},
            {"role": "user", "content": self._text(100)},
        ]
        while True:
            num_missing = num_tokens - len(self._build().token_ids)
            if num_missing < 2 * _RESULT_TOKENS:
                return
            for _ in range(max(1, num_missing // (2 * _RESULT_TOKENS))):
                self._add("assistant", 30)
                self._add("user", _RESULT_TOKENS)

    def turn(self) -> Figures:
        """One more reply and an answer to it; what the reply cost besides the model's passes."""
        body = json.dumps({"messages": self._messages, "tools": self._tools})
        clock = _Clock()
        request = json.loads(body)
        clock.lap("body_ms")
        prompt = self._prompts.build(request["messages"], request["tools"])
        clock.lap("prompt_ms")
        add = Add(self._request(prompt))
        clock.restart()
        command = decode_command(encode(add))
        clock.lap("message_ms")
        assert isinstance(command, Add)
        forward_s = self._engine.counters.forward_s
        self._engine.add(command.request)
        outputs = self._engine.step()
        clock.lap("engine_ms")
        figures = clock.laps
        figures["engine_ms"] -= 1e3 * (self._engine.counters.forward_s - forward_s)
        token_ids, text = [], ""
        while True:
            for output in outputs:
                token_ids += output.token_ids
                text += output.text
            if outputs and outputs[-1].finish_reason is not None:
                break
            outputs = self._engine.step()
        stats = outputs[-1].stats
        figures["tokens"] = float(stats.num_prompt_tokens)
        figures["new"] = float(stats.num_prompt_tokens - stats.num_cached_tokens)
        self._prompts.remember(prompt, text, [], token_ids)
        self._messages.append({"role": "assistant", "content": text})
        self._add("user", _RESULT_TOKENS)
        return figures

    def _build(self) -> Prompt:
        return self._prompts.build(self._messages, self._tools)

    def _request(self, prompt: Prompt) -> EngineRequest:
        return EngineRequest(
            request_id="host",
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(max_tokens=_OUTPUT_TOKENS, ignore_eos=True),
        )

    def _add(self, role: str, num_tokens: int) -> None:
        self._messages.append({"role": role, "content": self._text(num_tokens)})

    def _text(self, num_tokens: int) -> str:
        """Some text of about as many tokens, markup among it."""
        size = self._engine.worker.model.config.vocab_size
        token_ids = (self._random.randrange(size // 8, size // 2) for _ in range(num_tokens))
        return self._engine.tokenizer.decode(list(token_ids)).replace("\ufffd", "<")

    def _tool(self, index: int) -> dict[str, Any]:
        properties = {
            f"argument_{i}": {"type": "string", "description": self._text(12)} for i in range(6)
        }
        parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
        function = {
            "name": f"tool_{index}",
            "description": self._text(40),
            "parameters": parameters,
        }
        return {"type": "function", "function": function}


class _Clock:
    """Milliseconds of the parts of something.

    Attributes:
        laps: what was timed so far.
    """

    def __init__(self) -> None:
        self.laps: Figures = {}
        self.restart()

    def restart(self) -> None:
        """What happened since the last lap does not count."""
        self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        """The part that ends here."""
        self.laps[name] = 1e3 * (time.perf_counter() - self._start)
        self.restart()
