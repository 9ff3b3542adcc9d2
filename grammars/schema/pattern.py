r"""A regular expression of a JSON Schema: searched for in a string, as ECMA-262 says.

Its anchors and look-aheads are resolved once: what is left are alternatives that stand at the start
of the text or anywhere, at its end or anywhere, each with whole-text conditions from look-aheads.
Texts that some readers find the pattern in and others do not (Python's `re` and ECMA-262 differ on
`\w`, `\d`, `\s`, `.` and `$`) are in neither of two languages: `finds` takes what all find,
`may_find` what any finds. A required pattern goes by the first, an excluded one by the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from specrt.grammars.schema.pattern_alternatives import Alternative, alternatives, is_found
from specrt.grammars.schema.pattern_parser import leading_look_aheads, parse
from specrt.grammars.schema.pattern_tree import nested_repeats, size
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_BYTES = 1024
MAX_SIZE = 100_000
MAX_NESTED_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression.

    Attributes:
        source: as the schema has it.
        alternatives: what it is, resolved.
        is_own: not from a schema: the limit on its text does not hold.

    Raises:
        UnsupportedError: it is too large, none of ECMA-262's, or not regular.
    """

    source: str
    is_own: bool = field(default=False, compare=False, repr=False)
    alternatives: tuple[Alternative, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.is_own and len(self.source.encode(errors="surrogatepass")) > MAX_BYTES:
            raise UnsupportedError(f"patterns of more than {MAX_BYTES} bytes are not supported")
        object.__setattr__(self, "alternatives", _resolved(self.source))

    @property
    def size(self) -> int:
        """Number of positions with repeats multiplied out: what an automaton must be built of."""
        return sum(
            size(alternative.body)
            + sum(size(a.body) for c in alternative.conditions for a in c.alternatives)
            for alternative in self.alternatives
        )

    @property
    def has_conditions(self) -> bool:
        """Does it have look-aheads?"""
        return any(alternative.conditions for alternative in self.alternatives)

    def finds(self, text: str) -> bool:
        """Do all readers find it in the text?"""
        return is_found(self.alternatives, text, possible=False)

    def may_find(self, text: str) -> bool:
        """Does any reader find it in the text?

        Raises:
            UnsupportedError: a look-ahead stands where it is only known what is found for sure.
        """
        refuse_loose_conditions(self)
        return is_found(self.alternatives, text, possible=True)


def refuse_loose_conditions(pattern: Pattern) -> None:
    """Refuse look-aheads that may stand anywhere: they are read as if they stood at the start.

    Raises:
        UnsupportedError: there is one.
    """
    if any(a.conditions and not a.at_start for a in pattern.alternatives):
        raise UnsupportedError(
            f"pattern {pattern.source[:80]!r}: a look-ahead that does not follow ^ at the start "
            "cannot be excluded"
        )


def split_look_aheads(pattern: Pattern) -> tuple[list[tuple[Pattern, bool]], Pattern]:
    """A pattern like `^(?=a)(?!b)c` taken apart.

    Returns:
        ([(what a look-ahead looks for, is it negative?)], the rest): found where the rest is found,
        and all but the negative ones are.

    Raises:
        UnsupportedError: it is not of that form.
    """
    groups, rest = leading_look_aheads(pattern.source)
    parts = [(Pattern(f"^(?:{text})", is_own=True), is_negative) for text, is_negative in groups]
    remaining = Pattern(f"^{rest}", is_own=True)
    if remaining.has_conditions or not groups:
        raise UnsupportedError(
            f"pattern {pattern.source[:80]!r}: a look-ahead that does not follow ^ at the start "
            "cannot be excluded"
        )
    return parts, remaining


@lru_cache(maxsize=1024)
def _resolved(source: str) -> tuple[Alternative, ...]:
    root = parse(source)
    if size(root) > MAX_SIZE or nested_repeats(root) > MAX_NESTED_REPEATS:
        raise UnsupportedError(f"pattern {source[:80]!r}: its repeats are too large")
    try:
        return tuple(alternatives(root))
    except UnsupportedError as error:
        raise UnsupportedError(f"pattern {source[:80]!r}: {error.reason}") from None
