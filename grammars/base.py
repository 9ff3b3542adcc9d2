"""The grammar seam: recipes in, integer nodes out.

A recipe says what an output must look like (which tool-call format, which schemas). The compiler
turns it into a `Grammar`, shared and immutable; each request opens a `GrammarState` on it. A node
is an int, 0 is dead. Forking and rolling back are keeping an int; nothing can get out of step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

DEAD = 0
DEFAULT_TOOL_FORMAT = "hermes"  # a file in grammars/formats


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool as the grammar sees it.

    Attributes:
        name: the function's name.
        parameters: its JSON Schema as JSON text, key order kept.
        strict: True = enforce exactly or refuse; False = enforce as far as possible.
    """

    name: str
    parameters: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarRecipe:
    """What an output must look like; equal recipes compile once.

    Attributes:
        kind: "tools" (text and/or calls in `tool_format`), "json" (one value of `schema`), "regex"
            (what the regex `schema` matches as a whole) or "lark" (llguidance's Lark `schema`).
        tool_format: name of a file in grammars/formats.
        tools: the tools that may be called (for a named tool_choice only that one).
        require_call: False = auto (text, or text then calls, or calls); True = calls only.
        parallel: may more than one call follow?
        schema: JSON text of the response schema; for "regex" (Rust syntax) and "lark" their text.
        strict: for `schema`, as ToolSpec.strict.
        canonical: narrow forced text to its canonical tokens.
        reasoning_end: any text up to and including this comes first; "" = no reasoning.
    """

    kind: Literal["tools", "json", "regex", "lark"]
    tool_format: str = DEFAULT_TOOL_FORMAT
    tools: tuple[ToolSpec, ...] = ()
    require_call: bool = False
    parallel: bool = True
    schema: str = ""
    strict: bool = False
    canonical: bool = True
    reasoning_end: str = ""


class Unenforced(NamedTuple):
    """A keyword that the grammar does not enforce (non-strict schemas only).

    Attributes:
        tool: name of the tool, "" for a response schema.
        pointer: JSON pointer of the keyword inside that schema.
        keyword: the JSON Schema keyword.
    """

    tool: str
    pointer: str
    keyword: str


class GrammarState(Protocol):
    """One request's view of a grammar. Not thread safe.

    Nodes live until the next `commit`; of those, the committed one lives on. Within one request
    equal paths from the root give equal masks and forced runs, whatever was asked in between.
    """

    root: int

    def advance(self, node: int, token_id: int) -> int:
        """The node after `token_id`, or DEAD when the node's mask forbids it. Never raises."""
        ...

    def masks(self, nodes: Sequence[int], out: npt.NDArray[np.int32]) -> None:
        """Write one token bitmask row per node.

        Args:
            nodes: n live nodes.
            out: int32 [n, ceil(vocab_size / 32)], overwritten; bit 1 = allowed. Inside a canonical
                forced run only the forced token's bit is set; every end-of-sequence id is set iff
                the node is final.
        """
        ...

    def allowed(self, node: int, limit: int) -> list[int] | None:
        """The allowed token ids in ascending order, or None when there are more than `limit`."""
        ...

    def forced(self, node: int) -> int | None:
        """The one canonical token that must come next, or None when there is a decision to take.

        A pure function of the node. An end-of-sequence token is never returned.
        """
        ...

    def is_final(self, node: int) -> bool:
        """May the output end here?"""
        ...

    def commit(self, node: int) -> None:
        """The path up to `node` is output now: `root` becomes `node`, other branches may go."""
        ...


class Grammar(Protocol):
    """A compiled recipe, shared between requests.

    Attributes:
        engine: name of the engine that runs it.
        unenforced: what it does not enforce.
    """

    engine: str
    unenforced: tuple[Unenforced, ...]

    def open(self) -> GrammarState:
        """A state at the start of the output."""
        ...
