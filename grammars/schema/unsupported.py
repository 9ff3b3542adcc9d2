"""The one way in which a schema is refused: what cannot be written exactly, and where."""

from __future__ import annotations


class UnsupportedError(Exception):
    """Something cannot be enforced exactly.

    Attributes:
        reason: why, for a user to read; says what would be accepted where that helps.
        pointer: JSON pointer of the keyword; filled in by whoever knows it.
        keyword: the keyword.
    """

    def __init__(self, reason: str, pointer: str = "", keyword: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer
        self.keyword = keyword
