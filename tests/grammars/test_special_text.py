"""Special-token text that came with messages is found again after rendering, and only that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specrt.grammars.special_text import Segment, SpecialText

TOKENS = ("<s>", "<<s", "s><", "[E]")
TEXT = st.lists(st.sampled_from(["<", "s", ">", "[", "E", "]", " ", "x", "\ue000"])).map("".join)


def test_segments_begin_at_the_special_tokens_of_the_template() -> None:
    special = SpecialText(["<s>"])
    rendering = special.resolve("a<s>" + special.broken("b<s>c") + "<s>d")
    assert rendering.text == "a<s>b<s>c<s>d"
    assert rendering.segments() == [
        Segment("", "a", False),
        Segment("<s>", "b<s>c", True),
        Segment("<s>", "d", False),
    ]
    assert rendering.segments(1) == rendering.segments()[1:]
    assert rendering.segments(6, 9) == [Segment("", "s>c", False)]  # "<s>" was cut apart
    assert rendering.segments(5, 10)[0] == Segment("", "<s>c", True)
    starts = [rendering.special_starts(i) for i in (0, 1, 2, 9, 10)]
    assert starts == [[1, 9, 13], [1, 9, 13], [9, 13], [9, 13], [13]]
    assert rendering.segments(4, 4) == []


@given(TEXT, TEXT)
def test_no_message_text_becomes_a_special_token(first: str, second: str) -> None:
    special = SpecialText(TOKENS, [first, second])
    rendering = special.resolve(special.broken(first) + special.broken(second) + "[E]")
    assert rendering.text == first + second + "[E]"
    assert rendering.specials == ((len(rendering.text) - 3, len(rendering.text)),)
    assert "".join(s.special + s.text for s in rendering.segments()) == rendering.text
    for segment in rendering.segments():
        assert segment.is_literal or not any(token in segment.text for token in TOKENS)


@given(TEXT)
def test_other_text_is_not_altered(text: str) -> None:
    special = SpecialText(["<|special|>"], [text])
    assert special.broken(text) == text or text.endswith("<")
    assert special.resolve(special.broken(text)).text == text


def test_json_values_and_escapes() -> None:
    special = SpecialText(["<s>"])
    broken = special.broken_json({"a<s>": ["<s>", 1, None, {"b": "x"}]})
    assert isinstance(broken, dict)
    (key,) = broken
    assert len(key) == 5 and key != "a<s>"
    assert special.resolve(key).text == "a<s>"
    escaped = special.broken("<s>").encode("ascii", "backslashreplace").decode()
    assert special.resolve(special.spelled(escaped)).text == "<s>"
