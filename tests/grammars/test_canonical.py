from __future__ import annotations

import pytest
from grammar_walks import real_vocabulary, tiny_vocabulary

from specrt.grammars.canonical import (
    WINDOW_BYTES,
    canonical_run,
    run_after_first,
    whole_characters,
)


def never(tokens, candidates):
    return False


def always(tokens, candidates):
    return True


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b'{"a": ', b'{"a": '),
        ('"é'.encode(), '"é'.encode()),
        ('"é'.encode()[:-1], b'"'),
        ("😀".encode()[:3], b""),
        ("😀".encode()[1:] + b"abc", b""),
    ],
)
def test_forced_bytes_are_cut_to_whole_characters(data, expected):
    assert whole_characters(data) == expected


def test_run_is_the_tokenisation_when_nothing_longer_is_legal():
    vocabulary = tiny_vocabulary()
    text = b'{"name": "get_weather", "arguments": {'
    assert canonical_run(text, vocabulary, never) == vocabulary.encode(text)


def test_run_ends_before_the_first_token_that_a_longer_one_could_replace():
    vocabulary = tiny_vocabulary()
    text = b'{"name": "get_weather", "arg'
    tokens = vocabulary.encode(text)
    rests = [
        text[len(b"".join(vocabulary.token_bytes[t] for t in tokens[:i])) :]
        for i in range(len(tokens))
    ]
    first = next(i for i, rest in enumerate(rests) if len(vocabulary.extensions(rest)))
    assert 0 < first < len(tokens)
    assert canonical_run(text, vocabulary, always) == tokens[:first]


def test_candidates_begin_with_the_rest_and_go_on():
    vocabulary = tiny_vocabulary()
    asked = []
    text = b'{"na'

    def can_follow(tokens, candidates):
        done = b"".join(vocabulary.token_bytes[t] for t in tokens)
        rest = text.removeprefix(done)
        for token_id in candidates:
            assert vocabulary.token_bytes[token_id].startswith(rest)
            assert len(vocabulary.token_bytes[token_id]) > len(rest)
        asked.append(tokens)
        return False

    assert canonical_run(text, vocabulary, can_follow) == vocabulary.encode(text)
    assert asked


def test_long_text_is_forced_window_by_window():
    vocabulary = tiny_vocabulary()
    text = b'"' + b"weather in Paris, " * 40 + b'"'
    run = canonical_run(text, vocabulary, never)
    assert run == vocabulary.encode(text)[: len(run)]
    length = len(b"".join(vocabulary.token_bytes[t] for t in run))
    assert WINDOW_BYTES - 40 < length <= WINDOW_BYTES
    assert run_after_first(text, run, vocabulary) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "arguments": {"city": "',
        '"], "it\'s": "we\'re", "x": {"y": [',
        '}\n</tool_call>\n<tool_call>\n{"name": "été", "日本": "',
        '123456789.5, "  two  spaces\\n": ',
    ],
)
@pytest.mark.parametrize("can_follow", [never, always])
def test_run_after_first_is_what_would_be_found_afresh(text, can_follow):
    for vocabulary in (tiny_vocabulary(), real_vocabulary()):
        forced = text.encode()
        while run := canonical_run(forced, vocabulary, can_follow):
            inherited = run_after_first(forced, run, vocabulary)
            forced = forced[len(vocabulary.token_bytes[run[0]]) :]
            fresh = canonical_run(forced, vocabulary, can_follow)
            assert inherited is None or inherited == fresh


def test_special_tokens_in_text_stay_text():
    vocabulary = tiny_vocabulary()
    tokens = vocabulary.encode(b"<|im_end|>")
    assert len(tokens) > 1
    assert not vocabulary.special_ids & set(tokens)
