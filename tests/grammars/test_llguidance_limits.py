"""What llguidance's limits leave room for, and what remains of a grammar that met one."""

from __future__ import annotations

import json

import pytest
from grammar_walks import feed, real_vocabulary, takes
from llguidance import LLParserLimits

from specrt.errors import GrammarError
from specrt.grammars import llguidance_engine
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.llguidance_engine import MatcherPrototype

# At most so many words, and characters: two counts that no small automaton keeps.
WORDS = r"(\S+\s+){0,49}\S+"


def words(count: int) -> str:
    return '"' + " ".join(["word"] * count) + '"'


def test_a_pattern_beside_a_length_has_room() -> None:
    vocabulary = real_vocabulary()
    schema = {"type": "string", "pattern": f"^{WORDS}$", "maxLength": 300}
    recipe = GrammarRecipe(kind="json", schema=json.dumps(schema), strict=True, canonical=False)
    grammar = GrammarCompiler(vocabulary).compile(recipe)
    for count, is_valid in ((1, True), (50, True), (51, False), (60, False), (50, True)):
        assert takes(grammar.open(), vocabulary, words(count)) == is_valid
    assert not takes(grammar.open(), vocabulary, '"' + "w" * 301 + '"')


def test_a_spent_lexer_does_not_break_the_next_use(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = real_vocabulary()
    lark = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: /"{WORDS}"/ & /(.|\\n){{0,302}}/\n'
    few = LLParserLimits(initial_lexer_fuel=200_000, step_lexer_fuel=20_000, verbose_errors=False)
    with monkeypatch.context() as patch:
        patch.setattr(llguidance_engine, "_LIMITS", few)
        prototype = MatcherPrototype(vocabulary, lark)
        other = prototype.open()
        with pytest.raises(GrammarError, match="too many expressions"):
            feed(prototype.open(), vocabulary.encode(words(50).encode()))  # type: ignore[arg-type]
    with pytest.raises(GrammarError):
        other.mask(other.root)  # it shares the lexer
    arena = prototype.open()
    assert feed(arena, vocabulary.encode(words(50).encode())) in arena  # type: ignore[arg-type]


def test_a_run_that_is_too_long_to_see_its_end_is_walked_all_the_same() -> None:
    vocabulary = real_vocabulary()
    lark = '%llguidance {"no_forcing": true}\nstart: "[" "null" (", " "null"){9999,} "]"\n'
    arena = MatcherPrototype(vocabulary, lark).open()
    for token_id in vocabulary.encode(b"[null, null, null"):
        assert len(arena.forced_bytes(arena.root)) > 20_000
        node = arena.advance(arena.root, token_id)
        assert node in arena and not arena.is_final(node)
        arena.commit(node)
