"""Hostile schemas end in a SchemaError or in a grammar that works, soon and in little memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from grammar_walks import takes, tiny_vocabulary
from hostile_runs import growth_of_many, run_named
from hostile_schemas import HOSTILE, NASTY_NAMES, closed

from specrt.grammars.base import GrammarRecipe
from specrt.grammars.compile_worker import CompileWorker
from specrt.grammars.compiler import GrammarCompiler

GUARD_S = 20.0  # far above the norm: against hanging, not a measurement
MEMORY_BYTES = 4 << 30  # address space, most of it never touched
MANY = 2_000
MAX_GROWTH = 150 << 20


@pytest.fixture(scope="module")
def worker() -> Iterator[CompileWorker]:
    worker = CompileWorker(deadline_s=GUARD_S, memory_bytes=MEMORY_BYTES, modules=["hostile_runs"])
    yield worker
    worker.close()


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "tool"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_or_works(
    worker: CompileWorker, name: str, strict: bool
) -> None:
    outcome = worker.run(run_named, name, strict)
    assert outcome == "works" or outcome.startswith(("refused: ", "ended: "))


@pytest.mark.parametrize(
    "name",
    [
        "recursive tree",
        "enum of 2,000",
        "100 optional properties",
        "nasty names",
        "nasty enum",
        "anyOf, 6 deep",
        "objects, 20 deep",
        "maxLength 64",
        "true",
        "all types",
    ],
)
def test_what_is_odd_but_honest_works(worker: CompileWorker, name: str) -> None:
    assert worker.run(run_named, name, True) == "works"


@pytest.mark.parametrize(
    "name",
    [
        "remote reference",
        "file reference",
        "reference to nowhere",
        "reference to itself",
        "no finite value",
        "false",
        "a list",
        "minimum above maximum",
        "const with a lone surrogate",
        "arrays, 2,000 deep",
        "a pattern of 100 kB",
        "back-reference",
        "a type that is none",
    ],
)
def test_what_cannot_work_is_refused(worker: CompileWorker, name: str) -> None:
    assert worker.run(run_named, name, True).startswith("refused: ")


@pytest.mark.parametrize("name", NASTY_NAMES)
def test_a_nasty_name_is_a_name(name: str) -> None:
    vocabulary = tiny_vocabulary()
    schema = closed({name: {"const": name}, "b": {"type": "null"}})
    recipe = GrammarRecipe(kind="json", schema=json.dumps(schema), strict=True, canonical=False)
    state = GrammarCompiler(vocabulary).compile(recipe).open()
    text = json.dumps({name: name, "b": None}, ensure_ascii=False)
    assert takes(state, vocabulary, text)
    assert not takes(state, vocabulary, text.replace("null", "1"))
    assert not takes(state, vocabulary, '{"b": null}')


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_many_distinct_schemas_leave_the_memory_flat(worker: CompileWorker) -> None:
    growth, num_working = worker.run(growth_of_many, MANY, MANY // 4, deadline_s=300.0)
    assert num_working == MANY
    assert growth < MAX_GROWTH
