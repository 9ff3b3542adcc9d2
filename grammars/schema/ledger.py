"""What a normal form does not enforce, and the keywords that this is due to.

A constraint that comes from a negation is given up as a whole: the keyword to name is then the
outermost `not` (or oneOf, if, ...) that it belongs to, however deep it was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from specrt.grammars.schema.document import Node
from specrt.grammars.schema.normal import Finding
from specrt.grammars.schema.terms import Choice, Literal, Nothing, Origin
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.schema_walk import join_pointer


class Ledger:
    """Takes down what is given up, or refuses to give anything up.

    Attributes:
        is_strict: is nothing given up?
        findings: what is not enforced, by pointer and keyword.
        annotations: reasons why keywords assert nothing, by pointer.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.findings: dict[tuple[str, str], Finding] = {}
        self.annotations: dict[str, str] = {}
        self._origins: dict[Literal, dict[Origin, None]] = {}

    def trace(self, literal: Literal, origin: Origin) -> None:
        """Note the keyword that a negated literal comes from."""
        self._origins.setdefault(literal, {})[origin] = None

    def annotate(self, node: Node, keyword: str, reason: str) -> None:
        """Note a keyword that asserts nothing."""
        self.annotations[join_pointer(node.pointer, keyword)] = reason

    def note(self, pointer: str, keyword: str, reason: str) -> None:
        """Note a keyword that is not enforced."""
        self.findings[pointer, keyword] = Finding(pointer, keyword, reason)

    def give_up(self, origins: Sequence[Origin], error: UnsupportedError) -> None:
        """Go on without a constraint, or refuse it if strict.

        Args:
            origins: the keywords that it comes from; at least one.
            error: why it cannot be enforced.
        """
        for origin in origins:
            inner = join_pointer(origin.node.pointer, origin.keyword)
            for pointer, keyword in self._roots(origin):
                reason = error.reason
                if pointer != inner:
                    reason = f"{origin.keyword} at {inner} cannot be negated: {reason}"
                if self.is_strict:
                    raise UnsupportedError(reason, pointer, keyword) from None
                self.note(pointer, keyword, reason)

    def give_up_literal(self, literal: Literal | Choice | Nothing, error: UnsupportedError) -> None:
        """Go on without a literal, or refuse it if strict."""
        if isinstance(literal, Literal) and literal.is_negated:
            origins = list(self._origins.get(literal, ()))
            if origins:
                self.give_up(origins, error)
                return
        if self.is_strict:
            raise error
        pointer = error.pointer
        if not pointer and not isinstance(literal, Nothing):
            pointer = literal.node.pointer
        self.note(pointer, error.keyword, error.reason)

    def _roots(self, origin: Origin) -> list[tuple[str, str]]:
        """The outermost negations that an origin belongs to, or itself."""
        found: dict[tuple[str, str], None] = {}
        seen = {origin}
        pending = [origin]
        while pending:
            one = pending.pop()
            above = self._origins.get(one.literal) if one.literal is not None else None
            if not above:
                found[join_pointer(one.node.pointer, one.keyword), one.keyword] = None
                continue
            fresh = [other for other in above if other not in seen]
            seen.update(fresh)
            pending += fresh
        return list(found)
