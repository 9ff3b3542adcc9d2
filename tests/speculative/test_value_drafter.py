"""ValueDrafter: string values that go on like the prompt's text, whatever its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import JsonPlace
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.value_drafter import MAX_TEXT, ValueDrafter

WORDS = ["Zu", "rich", " Zurich", " Air", "port", "Air", " in", " to", " Geneva", "Gen", "eva"]
PIECES = [*(bytes([b]) for b in range(256)), *(word.encode() for word in WORDS)]


class GreedyTokens:
    """The longest piece that fits, from the left."""

    def encode_plain(self, text: str) -> list[int]:
        rest, token_ids = text.encode(), []
        while rest:
            best = max((p for p in PIECES if rest.startswith(p)), key=len)
            token_ids.append(PIECES.index(best))
            rest = rest[len(best) :]
        return token_ids

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id]


TOKENS = GreedyTokens()


def make(prompt: str, output: str, ends: Sequence[int] = ()) -> tuple[ValueDrafter, DraftRequest]:
    token_ids = TOKENS.encode_plain(prompt)
    place = JsonPlace.start()
    request = DraftRequest(
        "r", token_ids, len(token_ids), end_token_ids=frozenset(ends), place=place
    )
    drafter = ValueDrafter(Calibration(), TOKENS)
    drafter.open(request)
    request.token_ids += TOKENS.encode_plain(output)
    request.place = place.advance(output.encode())
    drafter.extend(request)
    return drafter, request


def chain(drafter: ValueDrafter, request: DraftRequest, depth: int = 40) -> str:
    """What following the first candidates writes."""
    tree = DraftTree(request.token_ids[-1])
    node, place, text = 0, request.place, b""
    for _ in range(depth):
        (candidates,) = drafter.propose([FrontierNode(request, tree, node, place)])
        if not candidates:
            break
        best = candidates[0]
        node = tree.add(node, best.token_id, best.probability, drafter.source)
        text += PIECES[best.token_id]
        place = place.advance(PIECES[best.token_id])
    return text.decode()


def propose(drafter: ValueDrafter, request: DraftRequest) -> list[Candidate]:
    tree = DraftTree(request.token_ids[-1])
    return drafter.propose([FrontierNode(request, tree, 0, request.place)])[0]


@pytest.mark.parametrize(
    ("prompt", "output", "copied"),
    [
        ("a flight from Zurich Airport to Geneva", '{"from": "Zu', "rich Airport to Geneva"),
        ('call "Zurich Airport" now', '{"name": "Zu', "rich Airport"),  # up to a quote
        ("Zurich Airport\nGeneva", '{"name": "Zu', "rich Airport"),  # up to the end of the line
        ("Zurich Airport", '{"name": "the Air', "port"),  # the last word of the value
        ("Zurich Airport", '{"q": "say \\"Zu', "rich Airport"),  # behind an escaped quote
        ("to Geneva, to Zurich", '{"name": "to', " Zurich"),  # the last place first
        ("aZurich", '{"name": "Zu', ""),  # not inside a word
        ("Zurich", '{"name": "Z', ""),  # too little is known
        ("Zurich", '{"Zu', ""),  # a key
        ("Zurich", "Zu", ""),  # no JSON
        ("a\u00fcb", '{"name": "a\u00fc', "b"),
    ],
)
def test_a_value_goes_on_like_the_prompt(prompt: str, output: str, copied: str) -> None:
    assert chain(*make(prompt, output)) == copied


def test_other_tokens_of_the_same_text_are_found() -> None:
    drafter, request = make("fly to Zurich", '{"from": "Zu')
    assert PIECES.index(b"rich") not in request.token_ids
    assert [PIECES[c.token_id] for c in propose(drafter, request)] == [b"rich"]


def test_two_ways_to_go_on_are_two_candidates() -> None:
    drafter, request = make("Zu-eva, Zu-rich", '{"name": "Zu-')
    assert [PIECES[c.token_id] for c in propose(drafter, request)] == [b"rich", b"eva"]


def test_end_tokens_are_not_proposed() -> None:
    drafter, request = make("Zurich", '{"name": "Zu', ends=[PIECES.index(b"rich")])
    assert propose(drafter, request) == []


def test_only_the_end_of_a_long_prompt_is_searched() -> None:
    drafter, request = make("Zurich " + "x" * MAX_TEXT, '{"name": "Zu')
    assert propose(drafter, request) == []


def test_closing_forgets() -> None:
    drafter, request = make("Zurich", '{"name": "Zu')
    drafter.close("r")
    drafter.close("unknown")
    with pytest.raises(KeyError):
        propose(drafter, request)


text = st.text(st.sampled_from('Zurich Aport"\\\n\u00fc,'), max_size=40)


@settings(deadline=None)
@given(text, text)
def test_what_is_copied_stands_in_the_prompt_and_ends_no_string(prompt: str, value: str) -> None:
    value = value.replace("\\", "").replace('"', "").replace("\n", "")
    copied = chain(*make(prompt, '{"name": "' + value))
    assert copied in prompt
    assert not set(copied) & set('"\\\n')
