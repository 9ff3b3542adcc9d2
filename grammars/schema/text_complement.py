"""All strings but some texts, and but those that begin with some: a tree of prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.pattern_tree import (
    ANY_CHARACTER,
    Characters,
    Choice,
    Node,
    Repeat,
    sequence,
)


@dataclass(slots=True)
class _Branch:
    """What is known of the texts that begin in one way."""

    is_excluded: bool = False
    is_cut: bool = False  # All texts that begin so are excluded.
    branches: dict[str, _Branch] = field(default_factory=dict)


def all_but(
    texts: Iterable[str], prefixes: Iterable[str], min_length: int, max_length: int | None
) -> Node:
    """Every string of a length but some texts, and but those that begin with some prefixes.

    Args:
        texts: no lone surrogates in them.
        prefixes: the same.
        min_length: code points.
        max_length: None = no bound.
    """
    root = _Branch()
    for text in texts:
        _grow(root, text).is_excluded = True
    for prefix in prefixes:
        _grow(root, prefix).is_cut = True
    return _node(root, min_length, max_length, {})


def _grow(branch: _Branch, text: str) -> _Branch:
    for character in text:
        branch = branch.branches.setdefault(character, _Branch())
    return branch


def _number(branch: _Branch, numbers: dict[object, int]) -> int:
    """A number that branches share exactly if they are equal."""
    inner = tuple(
        (character, _number(following, numbers))
        for character, following in sorted(branch.branches.items())
    )
    key = (branch.is_excluded, branch.is_cut, inner)
    return numbers.setdefault(key, len(numbers))


def _node(branch: _Branch, minimum: int, maximum: int | None, numbers: dict[object, int]) -> Node:
    """What may follow in a branch: `minimum` to `maximum` characters."""
    if branch.is_cut or (maximum is not None and maximum < 0):
        return Choice(())
    if not branch.branches and not branch.is_excluded:
        return Repeat(ANY_CHARACTER, max(0, minimum), maximum)
    options: list[Node] = []
    less = maximum if maximum is None else maximum - 1
    if less is None or less >= 0:
        # Characters with the same to follow share a class.
        together: dict[int, str] = {}
        for character, inner in branch.branches.items():
            number = _number(inner, numbers)
            together[number] = together.get(number, "") + character
        for same in together.values():
            node = _node(branch.branches[same[0]], max(0, minimum - 1), less, numbers)
            options.append(sequence(_one_of(cp.characters(same)), node))
        others = cp.complement(cp.characters("".join(branch.branches)))
        rest = Repeat(ANY_CHARACTER, max(0, minimum - 1), less)
        options.append(sequence(_one_of(others), rest))
    node = options[0] if len(options) == 1 else Choice(tuple(options))
    may_end = minimum <= 0 and not branch.is_excluded
    return Repeat(node, 0, 1) if may_end else node


def _one_of(members: cp.CodePoints) -> Node:
    return Characters(cp.exactly(members))
