"""`specrt bench grammar`: compile times, masks, advances and forced runs against other engines.

One run, one thread; the engines take turns tool by tool, so that a slow spell meets all. Tools and
the paths through their grammars come from recorded calls.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from specrt.bench.environment import describe, environment
from specrt.bench.grammar_engines import (
    ITEM_SEPARATOR,
    KEY_SEPARATOR,
    Action,
    Engine,
    LLGuidanceEngine,
    Path,
    Refused,
    SpecrtEngine,
    XGrammarEngine,
)
from specrt.bench.grammar_sample import follow
from specrt.bench.options import GrammarBenchOptions
from specrt.bench.report import columns, number, percentile, write_json
from specrt.bench.stock_outlines import compile_ms, get_ready
from specrt.bench.traces import Trace, load_traces
from specrt.bench.vocabulary import load_vocabulary
from specrt.grammars.base import DEAD, Grammar, ToolSpec
from specrt.grammars.compile_worker import CompileError, CompileWorker
from specrt.grammars.json_style import restyle
from specrt.grammars.schema_walk import subschemas
from specrt.grammars.vocabulary import Vocabulary

_LIST_SIZE = 20
_TREE_DEPTH = 10  # nodes on the path; with a sibling each that makes a tree of 20
_STOCK_S = 10.0
_STOCK = "outlines-core"
# figure -> (label, unit)
_FIGURES = {
    "compile_tool_ms": ("compile one tool", "ms"),
    "compile_list_ms": (f"compile {_LIST_SIZE} tools, cached", "ms"),
    "tree_new_us": ("masks of a tree, new states", "us"),
    "tree_warm_us": ("masks of a tree, warm", "us"),
    "advance_us": ("advance one token", "us"),
    "forced_us": ("forced run, warm", "us"),
}
# An object with one of these is not closed by what it lists itself.
_SAYS_MORE = {
    *("additionalProperties", "patternProperties", "unevaluatedProperties"),
    *("allOf", "anyOf", "oneOf", "$ref"),
}
Samples = dict[str, dict[str, list[float]]]  # figure -> engine -> values


class _Case(NamedTuple):
    """A tool with recorded arguments."""

    tool: ToolSpec
    arguments: str


def run(options: GrammarBenchOptions) -> int:
    """Measure, print, write the JSON.

    Returns:
        0.

    Raises:
        ConfigError: no traces, no model, or --json cannot be written.
    """
    cases = list(_cases(load_traces(options.traces), options.tools))
    vocabulary = load_vocabulary(options.model_path)
    env = environment()
    print(describe(env))
    engines: list[Engine] = [SpecrtEngine(vocabulary), LLGuidanceEngine(vocabulary)]
    try:
        engines.append(XGrammarEngine(vocabulary))
    except ImportError as error:
        print(f"without xgrammar: {error}")
    samples, notes = measure(engines, vocabulary, cases, options.rounds)
    if options.stock_tools:
        stock, note = _stock([c.tool for c in cases[: options.stock_tools]], options.model_path)
        samples["compile_tool_ms"][_STOCK] = stock
        notes.append(note)
    print(render(samples))
    print("\n".join(notes))
    if options.json is not None:
        document = {"environment": env, "options": asdict(options), "notes": notes}
        write_json(options.json, document | {"figures": summarise(samples), "samples": samples})
    return 0


def measure(
    engines: list[Engine], vocabulary: Vocabulary, cases: list[_Case], rounds: int
) -> tuple[Samples, list[str]]:
    """All figures of all engines.

    Args:
        engines: the first one's grammars say which recorded calls can be followed.
        vocabulary: the tokens.
        cases: tools with recorded arguments.
        rounds: times that a warm figure is taken.

    Returns:
        Samples by figure and engine, and remarks on what was left out.
    """
    samples: Samples = {figure: {engine.name: [] for engine in engines} for figure in _FIGURES}
    num_refused = {engine.name: 0 for engine in engines}
    num_followed = 0
    for case in cases:
        path: Path | None = None
        for engine in engines:
            try:
                grammar, seconds = _timed_compile(engine, case.tool.parameters)
                samples["compile_tool_ms"][engine.name].append(1e3 * seconds)
                if engine is engines[0]:
                    path = find_path(grammar, vocabulary, case.arguments)
                    num_followed += path is not None
                    grammar, _ = _timed_compile(engine, case.tool.parameters)  # nothing visited
                if path is not None:
                    for figure, value in _along(engine, grammar, path, rounds):
                        samples[figure][engine.name].append(1e6 * value)
            except Refused:
                num_refused[engine.name] += 1
    for start in range(0, len(cases) - _LIST_SIZE + 1, _LIST_SIZE):
        tools = _named_apart(case.tool for case in cases[start : start + _LIST_SIZE])
        for engine in engines:
            try:
                action = engine.list_compiler(tools)
                samples["compile_list_ms"][engine.name] += [
                    1e3 * _seconds(action) for _ in range(rounds)
                ]
            except Refused:
                num_refused[engine.name] += 1
    notes = [f"{len(cases)} tools, {num_followed} with a recorded call that could be followed"]
    notes += [f"{name}: refused {count}" for name, count in num_refused.items() if count]
    return samples, notes


def _along(engine: Engine, grammar: Any, path: Path, rounds: int) -> Iterator[tuple[str, float]]:
    """(figure, seconds) of what is asked along a path: per tree, per token, per node."""
    masks = engine.tree_masks(grammar, path)
    yield "tree_new_us", _seconds(masks)
    yield "tree_warm_us", _median(masks, rounds)
    num_tokens = len(path.token_ids)
    yield "advance_us", _median(engine.advances(grammar, path), rounds) / num_tokens
    forced = engine.forced_runs(grammar, path)
    forced()
    yield "forced_us", _median(forced, rounds) / num_tokens


def find_path(grammar: Grammar, vocabulary: Vocabulary, arguments: str) -> Path | None:
    """The path of recorded arguments with a sibling at each of its first nodes.

    Args:
        grammar: of the tool.
        vocabulary: its tokens.
        arguments: JSON text.

    Returns:
        None when the grammar does not take them, as with keys in another order.
    """
    text = restyle(arguments, item_separator=ITEM_SEPARATOR, key_separator=KEY_SEPARATOR)
    sample = follow(grammar, vocabulary, text.encode())
    if not sample.is_whole or len(sample.token_ids) < _TREE_DEPTH:
        return None
    state = grammar.open()
    node, siblings = state.root, []
    row = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    for token_id in sample.token_ids[:_TREE_DEPTH]:
        state.masks([node], row)
        bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")
        others = [i for i in np.flatnonzero(bits).tolist() if i != token_id]
        others = [i for i in others if i not in vocabulary.eos_token_ids]
        siblings.append(others[len(others) // 2] if others else None)
        node = state.advance(node, token_id)
        assert node != DEAD
    return Path(sample.token_ids, siblings)


def _timed_compile(engine: Engine, schema: str) -> tuple[Any, float]:
    start = time.perf_counter()
    grammar = engine.compile_tool(schema)
    return grammar, time.perf_counter() - start


def _seconds(action: Action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _median(action: Action, rounds: int) -> float:
    return statistics.median(_seconds(action) for _ in range(rounds))


def _stock(tools: list[ToolSpec], model_path: str | None) -> tuple[list[float], str]:
    """Milliseconds of each tool that came to its end, and what became of the others."""
    worker = CompileWorker(memory_bytes=8 << 30, modules=["specrt.bench.stock_outlines"])
    times, num_refused, num_stuck = [], 0, 0
    try:
        for tool in tools:
            worker.run(get_ready, model_path, deadline_s=120.0)
            try:
                value = worker.run(compile_ms, tool.parameters, model_path, deadline_s=_STOCK_S)
            except CompileError:
                num_stuck += 1
                continue
            num_refused += value is None
            times += [] if value is None else [value]
    finally:
        worker.close()
    note = f"{_STOCK}: {len(tools)} tools, {num_stuck} took more than {_STOCK_S:g} s or too much"
    return times, f"{note} memory, {num_refused} refused"


def summarise(samples: Samples) -> dict[str, dict[str, dict[str, float | None]]]:
    """Figure -> engine -> p50, p95 and the ratio of its p50 to the first engine's."""
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for figure, by_engine in samples.items():
        base: float | None = None
        for name, values in by_engine.items():
            middle = percentile(values, 0.5)
            base = middle if base is None else base
            ratio = middle / base if middle is not None and base else None
            entry = {"p50": middle, "p95": percentile(values, 0.95), "ratio": ratio}
            figures.setdefault(figure, {})[name] = entry
    return figures


def render(samples: Samples) -> str:
    """The table: p50 / p95 for each engine, and how many times the first one's p50 that is."""
    figures = summarise(samples)
    names = list(dict.fromkeys(name for by_engine in figures.values() for name in by_engine))
    rows = [["p50 / p95", names[0], *(cell for name in names[1:] for cell in (name, "ratio"))]]
    for figure, (label, unit) in _FIGURES.items():
        row = [f"{label} ({unit})"]
        for name in names:
            entry = figures[figure].get(name, {"p50": None, "p95": None, "ratio": None})
            row.append(f"{number(entry['p50'])} / {number(entry['p95'])}")
            row += [] if name == names[0] else [number(entry["ratio"], 1, "x")]
        rows.append(row)
    return columns(rows)


def _cases(traces: list[Trace], limit: int) -> Iterator[_Case]:
    """Distinct tools that are called in the traces, with the arguments of their first call."""
    seen: set[tuple[str, str]] = set()
    for trace in traces:
        schemas = {t["function"]["name"]: t["function"].get("parameters") for t in trace.tools}
        for message in trace.messages:
            for call in message.get("tool_calls") or ():
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                parameters = json.dumps(_closed(schemas.get(name)))
                if not schemas.get(name) or (name, parameters) in seen:
                    continue
                seen.add((name, parameters))
                yield _Case(ToolSpec(name=name, parameters=parameters), arguments)
                if len(seen) == limit:
                    return


def _named_apart(tools: Iterator[ToolSpec]) -> list[ToolSpec]:
    """Tools of one list have different names; those of different conversations need not."""
    by_name: dict[str, ToolSpec] = {}
    for tool in tools:
        by_name.setdefault(tool.name, tool)
    return list(by_name.values())


def _closed(schema: object) -> object:
    """The schema with objects closed where it is silent, as tools' arguments are for specrt.

    All engines get the same.
    """
    copy = json.loads(json.dumps(schema))
    for _, node, _ in subschemas(copy):
        if node.get("properties") and not node.keys() & _SAYS_MORE:
            node["additionalProperties"] = False
    return copy
