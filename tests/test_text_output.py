"""Detokenising with stop strings: whole characters, held-back prefixes, exact cuts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specrt.text_output import TextOutput


class ByteDetokenizer:
    """Token ids are bytes; half characters are held back."""

    def __init__(self) -> None:
        self._bytes = b""

    def push(self, token_ids: list[int]) -> str:
        self._bytes += bytes(token_ids)
        for size in range(len(self._bytes), -1, -1):
            try:
                text = self._bytes[:size].decode()
            except UnicodeDecodeError:
                continue
            self._bytes = self._bytes[size:]
            return text
        return ""

    def flush(self) -> str:
        text, self._bytes = self._bytes.decode(errors="replace"), b""
        return text


class ByteTokenizer:
    """The part of Tokenizer that TextOutput needs."""

    special_token_ids = frozenset[int]()

    def detokenizer(self, *, skipped_ids: frozenset[int]) -> ByteDetokenizer:
        return ByteDetokenizer()


def run(
    text: str, stop: tuple[str, ...], sizes: list[int], **options: Any
) -> tuple[str, int, bool]:
    """Push the bytes of `text` in pieces; text out, tokens counted, stopped."""
    output = TextOutput(ByteTokenizer(), stop, **options)  # type: ignore[arg-type]
    data, out, count = list(text.encode()), "", 0
    position = 0
    for size in [*sizes, len(data)]:
        piece = output.push(data[position : position + size])
        position += size
        out += piece.text
        count += piece.num_tokens
        if piece.is_stopped:
            return out, count, True
        if position >= len(data):
            break
    return out + output.flush(), count, False


def test_text_is_cut_before_the_stop_string_and_tokens_end_with_it() -> None:
    assert run("one END two", ("END",), [3, 3]) == ("one ", 7, True)


def test_a_prefix_of_a_stop_string_is_held_and_released_at_the_end() -> None:
    output = TextOutput(ByteTokenizer(), ("END",))  # type: ignore[arg-type]
    assert output.push(list(b"abc EN")).text == "abc "
    assert output.flush() == "EN"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    assert run("a-b+c", ("+", "-"), []) == ("a", 2, True)


def test_the_stop_string_can_stay() -> None:
    assert run("one END two", ("END",), [3, 3], include_stop=True) == ("one END", 7, True)
    assert run("one EN", ("END",), [3, 3], include_stop=True) == ("one EN", 6, False)


def test_a_stop_string_among_the_first_tokens_does_not_end_the_output() -> None:
    assert run("a-b-c", ("-",), [1], min_tokens=1) == ("a", 2, True)
    assert run("a-b-c", ("-",), [1], min_tokens=2) == ("a-b", 4, True)
    assert run("a-b-c", ("-",), [4], min_tokens=4) == ("a-b-c", 5, False)
    # One that begins among them and ends behind them does.
    assert run("a--c", ("--",), [1], min_tokens=2) == ("a", 3, True)


@given(
    st.text(alphabet="abé€ ", max_size=30),
    st.lists(st.text(alphabet="abé€ ", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(1, 5), max_size=12),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_chunking_gives_the_same_text_and_count(
    text: str, stop: list[str], sizes: list[int], min_tokens: int, include_stop: bool
) -> None:
    stops, options = tuple(stop), {"min_tokens": min_tokens, "include_stop": include_stop}
    singly = [1] * len(text.encode())
    assert run(text, stops, sizes, **options) == run(text, stops, singly, **options)


@given(st.text(alphabet="abc", max_size=20), st.text(alphabet="abc", min_size=1, max_size=3))
def test_matches_a_plain_search(text: str, stop: str) -> None:
    out, _, stopped = run(text, (stop,), [2, 1, 3])
    assert out == text.split(stop)[0]
    assert stopped == (stop in text)
