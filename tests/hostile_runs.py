"""What the hostile tests do in a process of their own, which may be killed."""

from __future__ import annotations

import json
import random
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from grammar_walks import ids_of, mask_of, tiny_vocabulary
from hostile_schemas import HOSTILE, small_schemas

from specrt.errors import GrammarError, SchemaError
from specrt.grammars.base import DEAD, GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler

NUM_TOKENS = 40
CACHE_BYTES = 32 << 20


@lru_cache(maxsize=1)
def shared_compiler() -> GrammarCompiler:
    """One for all schemas, as in a server."""
    return GrammarCompiler(tiny_vocabulary())


def schema_text(schema: Any) -> str:
    """JSON text of a schema however deep, as a client could send it."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        return json.dumps(schema)
    finally:
        sys.setrecursionlimit(usual)


def json_recipe(text: str) -> GrammarRecipe:
    """A strict response schema."""
    return GrammarRecipe(kind="json", schema=text, strict=True)


def tool_recipe(text: str) -> GrammarRecipe:
    """A tool that is not strict, beside an honest one."""
    honest = '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}'
    tools = (ToolSpec(name="hostile", parameters=text), ToolSpec(name="honest", parameters=honest))
    return GrammarRecipe(kind="tools", tools=tools)


def run_named(name: str, strict: bool) -> str:
    """`compile_and_walk` of one of the corpus."""
    text = schema_text(HOSTILE[name]())
    return compile_and_walk(json_recipe(text) if strict else tool_recipe(text))


def compile_and_walk(
    recipe: GrammarRecipe, num_tokens: int = NUM_TOKENS, compiler: GrammarCompiler | None = None
) -> str:
    """What became of a recipe.

    Args:
        recipe: to compile.
        num_tokens: of the walk at most.
        compiler: None = the shared one.

    Returns:
        "works" after a walk of random allowed tokens; "refused: ..." by the compiler; "ended: ..."
        when a limit was reached on the way.
    """
    vocabulary = tiny_vocabulary()
    try:
        grammar = (compiler or shared_compiler()).compile(recipe)
    except SchemaError as error:
        return f"refused: {error.message}"
    state, rng = grammar.open(), random.Random(0)
    node = state.root
    try:
        for _ in range(num_tokens):
            forced = state.forced(node)
            ids = ids_of(mask_of(state, node, vocabulary))
            assert ids, "a mask without a bit"
            assert forced is None or ids == [forced]
            eos = set(vocabulary.eos_token_ids)
            assert (eos <= set(ids)) if state.is_final(node) else not eos & set(ids)
            token_id = rng.choice(ids)
            node = state.advance(node, token_id)
            assert node != DEAD, "the mask allows what is not taken"
            state.commit(node)
            if token_id in eos:
                break
    except GrammarError as error:
        return f"ended: {error}"
    return "works"


def growth_of_many(count: int, warm_up: int) -> tuple[int, int]:
    """Compile and walk distinct schemas one after the other.

    Args:
        count: schemas in all.
        warm_up: after so many the caches, which are small here, are full.

    Returns:
        (bytes of memory that the process grew by after the warm-up, schemas that worked).
    """
    compiler = GrammarCompiler(tiny_vocabulary(), max_bytes=CACHE_BYTES)
    num_working = before = 0
    for index, schema in enumerate(small_schemas(count)):
        if index == warm_up:
            before = resident_bytes()
        recipe = json_recipe(json.dumps(schema))
        num_working += compile_and_walk(recipe, 8, compiler) == "works"
    return resident_bytes() - before, num_working


def resident_bytes() -> int:
    """Memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
