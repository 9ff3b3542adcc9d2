"""The memo of generated turns: keys, bound, order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specrt.grammars.tool_parser import ParsedCall
from specrt.grammars.turn_memo import Place, PromptDigest, TurnKey, TurnMemo, turn_key

HI = turn_key("hi", [])


def at(prompt: int) -> Place:
    return Place(prompt, PromptDigest([prompt]).value())


def test_key_ignores_null_and_whether_a_call_is_complete() -> None:
    assert turn_key(None, []) == turn_key("", []) == TurnKey("", ())
    call = ParsedCall("f", '{"a": 1}', True)
    assert turn_key(None, [call]) == TurnKey("", (("f", '{"a": 1}'),))
    assert turn_key(None, [call]) != turn_key(None, [call._replace(arguments='{"a":1}')])


def test_digest_grows_with_the_ids() -> None:
    short, long = PromptDigest([1, 2]), PromptDigest([1, 2, 3])
    assert short.extended([3]).value() == long.value() != short.value()
    assert PromptDigest().extended([1]).extended([2]).value() == short.value()
    assert PromptDigest([12]).value() != short.value()


def test_finds_by_prompt_and_message_the_latest() -> None:
    memo = TurnMemo()
    memo.remember(HI, at(5), [7])
    memo.remember(HI, at(3), [8])
    assert memo.places(HI) == [at(3), at(5)] and memo.places(turn_key("ho", [])) == []
    assert (memo.find(HI, at(5)), memo.find(HI, at(3))) == ([7], [8])
    assert memo.find(HI, at(4)) is None
    assert memo.find(turn_key("ho", []), at(5)) is None
    memo.remember(HI, at(5), [9, 9])
    assert memo.find(HI, at(5)) == [9, 9]
    assert memo.num_tokens == 3


def test_least_recently_used_turns_are_forgotten() -> None:
    memo = TurnMemo(max_tokens=4)
    memo.remember(HI, at(1), [1, 1])
    memo.remember(HI, at(2), [2, 2])
    assert memo.find(HI, at(1)) == [1, 1]
    memo.remember(turn_key("ho", []), at(3), [3])
    assert memo.find(HI, at(2)) is None and memo.places(HI) == [at(1)]
    assert memo.find(HI, at(1)) == [1, 1] and memo.num_tokens == 3
    memo.remember(turn_key("long", []), at(4), [0] * 5)
    assert memo.num_tokens == 0 and memo.places(HI) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 5)), max_size=40)
)
def test_never_holds_more_than_its_bound(turns: list[tuple[int, str, int]]) -> None:
    memo = TurnMemo(max_tokens=8)
    last: dict[tuple[int, str], list[int]] = {}
    for prompt, content, length in turns:
        last[prompt, content] = [prompt] * length
        memo.remember(turn_key(content, []), at(prompt), last[prompt, content])
        found = {key: memo.find(turn_key(key[1], []), at(key[0])) for key in last}
        assert all(ids is None or ids == last[key] for key, ids in found.items())
        assert memo.num_tokens == sum(len(ids or []) for ids in found.values()) <= 8
        for content in "abc":
            held = [at(k[0]) for k, ids in found.items() if k[1] == content and ids is not None]
            assert memo.places(turn_key(content, [])) == sorted(held)
