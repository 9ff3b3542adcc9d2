"""Micro benchmarks of the grammar engine (`make bench`); `make test` skips those with `benchmark`.

`specrt bench grammar` measures the same against other engines.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from grammar_walks import real_vocabulary, tiny_vocabulary
from pytest_benchmark.fixture import BenchmarkFixture

from specrt.bench import grammar as bench
from specrt.bench.grammar_engines import LLGuidanceEngine, Path, SpecrtEngine
from specrt.bench.traces import load_traces
from specrt.grammars.base import DEAD, GrammarRecipe, ToolSpec
from specrt.grammars.compile_worker import CompileWorker
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.vocabulary import Vocabulary

TOOLS = [case.tool for case in bench._cases(load_traces(), 20)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return real_vocabulary()


@pytest.fixture(scope="module")
def worker() -> Any:
    worker = CompileWorker(modules=["specrt.grammars.prepare"])
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def followed(vocabulary: Vocabulary) -> tuple[SpecrtEngine, str, Path]:
    """A tool of the sample and the path of a recorded call."""
    engine = SpecrtEngine(vocabulary)
    for case in bench._cases(load_traces(), 100):
        grammar = engine.compile_tool(case.tool.parameters)
        path = bench.find_path(grammar, vocabulary, case.arguments)
        if path is not None and len(path.token_ids) >= 20:
            return engine, case.tool.parameters, path
    pytest.fail("no recorded call can be followed")


def test_compile_one_tool(
    benchmark: BenchmarkFixture, vocabulary: Vocabulary, worker: CompileWorker
) -> None:
    tools = itertools.cycle(TOOLS)

    def compile_next() -> object:
        schema = next(tools).parameters
        compiler = GrammarCompiler(vocabulary, worker=worker)
        return compiler.compile(GrammarRecipe(kind="json", schema=schema))

    benchmark(compile_next)


def test_compile_20_cached_tools(benchmark: BenchmarkFixture, vocabulary: Vocabulary) -> None:
    compiles = SpecrtEngine(vocabulary).list_compiler(bench._named_apart(iter(TOOLS)))
    benchmark(compiles)


def test_masks_of_a_tree_again(
    benchmark: BenchmarkFixture, followed: tuple[SpecrtEngine, str, Path]
) -> None:
    engine, schema, path = followed
    benchmark(engine.tree_masks(engine.compile_tool(schema), path))


def test_masks_of_a_tree_of_new_states(
    benchmark: BenchmarkFixture, followed: tuple[SpecrtEngine, str, Path]
) -> None:
    engine, schema, path = followed

    def fresh() -> tuple[tuple[()], dict[str, Any]]:
        actions.append(engine.tree_masks(engine.compile_tool(schema), path))
        return (), {}

    actions: list[Any] = []
    benchmark.pedantic(lambda: actions.pop()(), setup=fresh, rounds=20)


def test_advance_along_a_call(
    benchmark: BenchmarkFixture, followed: tuple[SpecrtEngine, str, Path]
) -> None:
    engine, schema, path = followed
    benchmark(engine.advances(engine.compile_tool(schema), path))


def test_forced_runs_along_a_call(
    benchmark: BenchmarkFixture, followed: tuple[SpecrtEngine, str, Path]
) -> None:
    engine, schema, path = followed
    benchmark(engine.forced_runs(engine.compile_tool(schema), path))


def small_cases() -> list[bench._Case]:
    """Forty tools with a call each, one with its keys in the wrong order."""
    cases = []
    for index in range(40):
        properties = {"first": {"type": "integer"}, f"second{index}": {"type": "boolean"}}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        arguments = {"first": index, f"second{index}": True}
        if index == 7:
            arguments = dict(reversed(arguments.items()))
        tool = ToolSpec(name=f"tool{index}", parameters=json.dumps(schema))
        cases.append(bench._Case(tool, json.dumps(arguments)))
    return cases


def test_the_bench_measures_every_figure_of_every_engine() -> None:
    vocabulary = tiny_vocabulary()
    engines = [SpecrtEngine(vocabulary), LLGuidanceEngine(vocabulary)]
    samples, notes = bench.measure(engines, vocabulary, small_cases(), 2)
    assert "40 tools, 39 with a recorded call that could be followed" in notes
    counts = {"compile_tool_ms": 40, "compile_list_ms": 2 * 2}
    for figure, by_engine in samples.items():
        assert set(by_engine) == {"specrt", "llguidance"}
        for values in by_engine.values():
            assert len(values) == counts.get(figure, 39)
            assert min(values) > 0
    table = bench.render(samples)
    assert "compile one tool (ms)" in table and "llguidance" in table
    figures = bench.summarise({"f": {"a": [1.0, 2.0, 3.0], "b": [4.0], "c": []}})["f"]
    assert figures["a"] == {"p50": 2.0, "p95": 3.0, "ratio": 1.0}
    assert figures["b"]["ratio"] == 2.0
    assert figures["c"]["ratio"] is None


def test_a_path_has_siblings_that_are_allowed() -> None:
    vocabulary = tiny_vocabulary()
    case = small_cases()[0]
    grammar = SpecrtEngine(vocabulary).compile_tool(case.tool.parameters)
    path = bench.find_path(grammar, vocabulary, case.arguments)
    assert path is not None
    text = b"".join(vocabulary.token_bytes[token_id] for token_id in path.token_ids)
    assert text == b'{"first": 0, "second0": true}'
    state = grammar.open()
    node, num_siblings = state.root, 0
    for token_id, sibling in zip(path.token_ids, path.siblings, strict=False):
        if sibling is not None:
            num_siblings += 1
            assert sibling != token_id
            assert state.advance(node, sibling) != DEAD
        node = state.advance(node, token_id)
    assert num_siblings >= 1
    assert np.array(path.siblings, dtype=object).size == 10
