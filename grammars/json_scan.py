"""Where an object in JSON text ends: brackets counted, strings skipped. It checks nothing else."""

from __future__ import annotations

from typing import NamedTuple

_OUTSIDE, _STRING, _ESCAPE = range(3)


class Scan(NamedTuple):
    """How far a scan has come.

    Attributes:
        depth: brackets that are open.
        mode: outside strings, inside one, or behind a backslash in one.
    """

    depth: int = 0
    mode: int = _OUTSIDE


def scan(data: bytes, at: Scan) -> tuple[Scan, int]:
    """Go on over `data`.

    Args:
        data: the next bytes of a value that is an object or an array.
        at: where the scan stands.

    Returns:
        (where it stands then, offset behind the bracket that closes the value; -1 = it goes on).
    """
    depth, mode = at
    for offset, byte in enumerate(data):
        if mode == _STRING:
            if byte == 0x22:
                mode = _OUTSIDE
            elif byte == 0x5C:
                mode = _ESCAPE
        elif mode == _ESCAPE or byte == 0x22:
            mode = _STRING
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            depth -= 1
            if depth == 0:
                return Scan(0, _OUTSIDE), offset + 1
    return Scan(depth, mode), -1
