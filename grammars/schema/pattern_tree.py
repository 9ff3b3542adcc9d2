"""The parts of a regular expression, over code points, and what can be read off them."""

from __future__ import annotations

from dataclasses import dataclass

from specrt.grammars.schema.code_points import ALL, CharacterClass, count, exactly


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a class."""

    members: CharacterClass


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; nothing at all when there are no parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`minimum` to `maximum` times; None = no bound."""

    part: Node
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of the text."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the text."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    """What follows begins (or, negative, does not begin) with a match of `part`."""

    part: Node
    is_negative: bool


Node = Characters | Sequence | Choice | Repeat | Start | End | LookAhead

EMPTY = Sequence(())
ANY_CHARACTER = Characters(exactly(ALL))
ANYTHING = Repeat(ANY_CHARACTER, 0, None)


def sequence(*parts: Node) -> Node:
    """One after the other, flat."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Sequence) else (part,))
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(*options: Node) -> Node:
    """Any one of them, each once."""
    flat: dict[Node, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Choice) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def literal(text: str) -> Node:
    """A text as it is."""
    return sequence(*(Characters(exactly(((ord(c), ord(c)),))) for c in text))


def has_assertions(node: Node) -> bool:
    """Does it hold anchors or look-aheads?"""
    match node:
        case Characters():
            return False
        case Sequence(parts) | Choice(parts):
            return any(has_assertions(part) for part in parts)
        case Repeat(part):
            return has_assertions(part)
        case _:
            return True


def lengths(node: Node) -> tuple[int, int | None]:
    """Least and greatest number of code points (None = no bound) of a node without look-aheads.

    The bounds of the larger reading of each class; an empty class counts as a character.
    """
    match node:
        case Characters():
            return 1, 1
        case Sequence(parts):
            bounds = [lengths(part) for part in parts]
            greatest = [high for _, high in bounds if high is not None]
            return (
                sum(low for low, _ in bounds),
                sum(greatest) if len(greatest) == len(bounds) else None,
            )
        case Choice(options):
            bounds = [lengths(option) for option in options]
            greatest = [high for _, high in bounds if high is not None]
            return (
                min((low for low, _ in bounds), default=0),
                max(greatest, default=0) if len(greatest) == len(bounds) else None,
            )
        case Repeat(part, minimum, maximum):
            low, high = lengths(part)
            if high == 0 or maximum == 0:
                return 0, 0
            unbounded = high is None or maximum is None
            return low * minimum, None if unbounded else (high or 0) * (maximum or 0)
        case _:
            return 0, 0


def size(node: Node) -> int:
    """Number of positions, counted repeats multiplied out."""
    match node:
        case Characters():
            return 1
        case Sequence(parts) | Choice(parts):
            return sum(size(part) for part in parts)
        case Repeat(part, minimum, maximum):
            return size(part) * max(1, minimum + 1 if maximum is None else maximum)
        case LookAhead(part):
            return size(part)
        case _:
            return 0


def nested_repeats(node: Node) -> int:
    """Greatest product of counted repeats inside each other, 1 if none is inside another."""

    def product(node: Node) -> tuple[int, int]:
        """(product of a path of repeats, the same where the path has at least two)."""
        match node:
            case Sequence(parts) | Choice(parts):
                found = [product(part) for part in parts]
                return max((p for p, _ in found), default=1), max((n for _, n in found), default=1)
            case LookAhead(part):
                return product(part)
            case Repeat(part, minimum, maximum):
                inner, nested = product(part)
                times = max(1, minimum if maximum is None else maximum)
                own = times * inner
                return own, max(nested, own if times > 1 and inner > 1 else 1)
            case _:
                return 1, 1

    return product(node)[1]


def is_nothing(node: Node, *, possible: bool) -> bool:
    """Does no text match a node without assertions?

    Args:
        node: the node.
        possible: by the larger reading of its classes.
    """
    match node:
        case Characters(members):
            return not (members.possible if possible else members.sure)
        case Sequence(parts):
            return any(is_nothing(part, possible=possible) for part in parts)
        case Choice(options):
            return all(is_nothing(option, possible=possible) for option in options)
        case Repeat(part, minimum, _):
            return minimum > 0 and is_nothing(part, possible=possible)
        case _:
            return False


def has_nothing(node: Node) -> bool:
    """Is there a class in it with no character in it for sure?"""
    match node:
        case Characters(members):
            return not members.sure
        case Sequence(parts):
            return any(has_nothing(part) for part in parts)
        case Choice(options):
            return not options or any(has_nothing(option) for option in options)
        case Repeat(part):
            return has_nothing(part)
        case _:
            return False


def possible_texts(node: Node, limit: int) -> frozenset[str] | None:
    """All texts that may match a node without assertions; None if they are more than `limit`."""
    match node:
        case Characters(members):
            if count(members.possible) > limit:
                return None
            return frozenset(
                chr(code) for first, last in members.possible for code in range(first, last + 1)
            )
        case Sequence(parts):
            return _products(parts, limit)
        case Choice(options):
            texts: frozenset[str] = frozenset()
            for option in options:
                found = possible_texts(option, limit)
                if found is None:
                    return None
                texts |= found
            return texts if len(texts) <= limit else None
        case Repeat(part, minimum, maximum) if maximum is not None and maximum <= limit:
            texts = frozenset()
            for times in range(minimum, maximum + 1):
                found = _products((part,) * times, limit)
                if found is None:
                    return None
                texts |= found
            return texts if len(texts) <= limit else None
        case _:
            return None


def _products(parts: tuple[Node, ...], limit: int) -> frozenset[str] | None:
    texts = frozenset([""])
    for part in parts:
        found = possible_texts(part, limit)
        if found is None or len(found) * len(texts) > limit:
            return None
        texts = frozenset(head + tail for head in texts for tail in found)
    return texts
