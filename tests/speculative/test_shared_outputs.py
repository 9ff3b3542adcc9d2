"""SharedOutputs: bounded, apart by key, and never moved under a request that looks through it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specrt.draft_tree import DraftTree
from specrt.speculative.base import DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.history_drafter import SharedHistoryDrafter
from specrt.speculative.shared_outputs import BREAK, SharedOutputs


def make(request_id: str, prompt: list[int], output: list[int], key: str = "k") -> DraftRequest:
    return DraftRequest(request_id, prompt + output, len(prompt), history_key=key)


def proposed(drafter: SharedHistoryDrafter, request: DraftRequest) -> list[int]:
    tree = DraftTree(request.token_ids[-1])
    (candidates,) = drafter.propose([FrontierNode(request, tree, 0)])
    return [candidate.token_id for candidate in candidates]


def test_a_finished_output_is_drafted_from_its_first_token_on() -> None:
    drafter = SharedHistoryDrafter(Calibration(), SharedOutputs(1000))
    first = make("a", [1, 2, 3], [4, 5, 6])
    drafter.open(first)
    assert proposed(drafter, make("a", [1, 2, 3], [])) == []
    drafter.close("a")
    second = make("b", [9, 2, 3], [])
    drafter.open(second)
    assert proposed(drafter, second) == [4]
    second.token_ids += [4, 5]
    drafter.extend(second)
    assert proposed(drafter, second) == [6]
    second.token_ids += [6]
    assert proposed(drafter, second) == [], "nothing follows the last token of an output"


def test_other_keys_and_requests_without_one_see_nothing() -> None:
    outputs = SharedOutputs(1000)
    drafter = SharedHistoryDrafter(Calibration(), outputs)
    for name, key in (("a", "k"), ("b", "")):
        drafter.open(make(name, [1, 2], [3, 4], key))
        drafter.close(name)
    assert outputs.num_tokens == 5
    for name, key in (("c", "other"), ("d", "")):
        request = make(name, [1, 2], [], key)
        drafter.open(request)
        assert proposed(drafter, request) == []


def test_a_request_keeps_its_list_when_the_key_starts_a_new_one() -> None:
    outputs = SharedOutputs(1000, max_tokens_per_key=12)
    outputs.add("k", [1, 2, 3, 4])
    index = outputs.index("k")
    before = list(index.token_ids)
    for number in range(5, 30):
        outputs.add("k", [number] * 4)
    assert index.token_ids[: len(before)] == before
    assert outputs.index("k") is not index
    assert outputs.index("k").token_ids[-5:] == [29] * 4 + [BREAK]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=12)), max_size=40
    ),
    st.integers(8, 60),
)
def test_the_store_is_bounded_and_counts_what_it_holds(
    added: list[tuple[str, list[int]]], max_tokens: int
) -> None:
    outputs = SharedOutputs(max_tokens)
    for key, token_ids in added:
        outputs.add(key, token_ids)
        assert outputs.num_tokens <= max_tokens
    held = [outputs.index(key).token_ids for key in "abc"]
    assert sum(map(len, held)) == outputs.num_tokens
