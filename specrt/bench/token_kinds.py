"""What the tokens of an output are, whatever drafted them: forced or not, and their region."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from specrt.errors import SpecrtError
from specrt.grammars.base import DEAD, GrammarState
from specrt.grammars.json_region import JsonPlace, Region


class TokenKind(NamedTuple):
    """What an output token is.

    Attributes:
        region: where it stands.
        is_forced: the grammar left only this token.
    """

    region: Region
    is_forced: bool


def token_kinds(
    grammar: GrammarState | None,
    token_ids: Sequence[int],
    end_token_ids: Collection[int],
    token_bytes: Callable[[int], bytes],
    trigger: str,
) -> list[TokenKind]:
    """The kind of each token.

    Args:
        grammar: at its start; it is led along the output. None = free text.
        token_ids: the output.
        end_token_ids: tokens that end it.
        token_bytes: of the model.
        trigger: what announces JSON, see `JsonPlace`.
    """
    forced = forced_tokens(grammar, token_ids, end_token_ids)
    regions = token_regions((token_bytes(token_id) for token_id in token_ids), trigger)
    return [TokenKind(region, is_forced) for region, is_forced in zip(regions, forced, strict=True)]


def token_regions(tokens: Iterable[bytes], trigger: str) -> list[Region]:
    """The region of each token of an output.

    Args:
        tokens: their bytes.
        trigger: what announces JSON, see `JsonPlace`.
    """
    place = JsonPlace.start(trigger)
    regions = []
    for data in tokens:
        regions.append(place.region_of(data))
        place = place.advance(data)
    return regions


def forced_tokens(
    grammar: GrammarState | None, token_ids: Sequence[int], end_token_ids: Collection[int]
) -> list[bool]:
    """For each token, whether the grammar left no other; False behind one that it forbids.

    Args:
        grammar: at its start; it is led along the output. None = nothing is forced.
        token_ids: the output.
        end_token_ids: tokens that end it.
    """
    forced = [False] * len(token_ids)
    if grammar is None:
        return forced
    try:
        for index, token_id in enumerate(token_ids):
            only = grammar.forced(grammar.root)
            forced[index] = only is not None or grammar.allowed(grammar.root, 1) == [token_id]
            if token_id in end_token_ids:
                break
            node = grammar.advance(grammar.root, token_id)
            if node == DEAD:
                forced[index] = False
                break
            grammar.commit(node)
    except SpecrtError:  # a limit of the grammar engine: what follows counts as a choice
        pass
    return forced
