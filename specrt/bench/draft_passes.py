"""What single passes drafted and kept, and the figures that this comes to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specrt.bench.reliability import Reliability
from specrt.bench.token_kinds import TokenKind
from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import REGIONS, Region


class Judged(NamedTuple):
    """A draft node whose parent was reached, so that the target decided about it.

    Attributes:
        source: which drafter made it.
        probability: that the target takes it at its parent, as the drafter estimated it.
        is_taken: did it?
    """

    source: str
    probability: float
    is_taken: bool


@dataclass(frozen=True, slots=True)
class VerifyPass:
    """One pass that drew at least one token of a request.

    Attributes:
        kept: source of each accepted token; the pass committed `num_tokens` in all.
        num_tokens: the bonus token included.
        num_drafted: draft rows.
        depth: how far the tree reached below the nodes that were reached, at most.
        judged: the nodes that the target decided about.
    """

    kept: tuple[str, ...]
    num_tokens: int
    num_drafted: int
    depth: int
    judged: tuple[Judged, ...]


def read_pass(tree: DraftTree, accepted: Sequence[int], token_ids: Sequence[int]) -> VerifyPass:
    """A pass from its tree.

    Args:
        tree: what was verified.
        accepted: the nodes that were kept, from the top.
        token_ids: what the pass committed.
    """
    judged = []
    depth = 0
    for parent in (0, *accepted)[: len(token_ids)]:  # one draw a token
        for node in tree.children(parent):
            depth = tree.depth[node]
            estimate = tree.probability[node] / max(tree.probability[parent], 1e-12)
            judged.append(Judged(tree.source[node], min(estimate, 1.0), node in accepted))
    return VerifyPass(
        kept=tuple(tree.source[node] for node in accepted),
        num_tokens=len(token_ids),
        num_drafted=len(tree) - 1,
        depth=depth,
        judged=tuple(judged),
    )


@dataclass(slots=True)
class Drafted:
    """One finished output.

    Attributes:
        source: data set of the conversation.
        kinds: of its tokens.
        passes: in order; together they committed the tokens.
    """

    source: str
    kinds: list[TokenKind]
    passes: list[VerifyPass] = field(default_factory=list)

    def counted(self) -> tuple[list[tuple[TokenKind, str | None]], list[VerifyPass]]:
        """The tokens that count, each with the source that it was drafted by, and the passes.

        A prefill yields a token anyway: its first one does not count, and its pass only if it
        verified drafts.
        """
        sources: list[str | None] = []
        for one in self.passes:
            bonus = [None] * (one.num_tokens - len(one.kept))
            sources += [*one.kept, *bonus]
        tokens = list(zip(self.kinds, sources, strict=True))[1:]
        first = self.passes[:1] if self.passes and self.passes[0].num_drafted else []
        return tokens, [*first, *self.passes[1:]]


def figures(outputs: Sequence[Drafted]) -> dict[str, Any]:
    """Acceptance of one way to draft, as plain JSON; None where nothing was measured."""
    tokens, passes = _joined(outputs)
    by_data_set: dict[str, list[Drafted]] = defaultdict(list)
    for output in outputs:
        by_data_set[output.source.split("/")[0]].append(output)
    drafted = Counter(judged.source for one in passes for judged in one.judged)
    kept = Counter(source for one in passes for source in one.kept)
    return {
        **_length(tokens, passes),
        "requests": len(outputs),
        "rows_per_pass": _ratio(sum(one.num_drafted for one in passes), len(passes)),
        "by_data_set": {
            name: _length(*_joined(some)) | {"requests": len(some)}
            for name, some in sorted(by_data_set.items())
        },
        "by_region": {region: _of_region(tokens, region) for region in REGIONS},
        "by_depth": _by_depth(passes),
        "by_source": {
            source: {"judged": drafted[source], "kept": kept[source]} for source in sorted(drafted)
        },
        "tokens_of_a_pass": dict(sorted(Counter(one.num_tokens for one in passes).items())),
        "calibration": {
            source: Reliability.of(
                (judged.probability, judged.is_taken)
                for one in passes
                for judged in one.judged
                if judged.source == source
            ).rows()
            for source in sorted(drafted)
        },
    }


def _joined(
    outputs: Iterable[Drafted],
) -> tuple[list[tuple[TokenKind, str | None]], list[VerifyPass]]:
    tokens: list[tuple[TokenKind, str | None]] = []
    passes: list[VerifyPass] = []
    for output in outputs:
        more_tokens, more_passes = output.counted()
        tokens += more_tokens
        passes += more_passes
    return tokens, passes


def _length(
    tokens: Sequence[tuple[TokenKind, str | None]], passes: Sequence[VerifyPass]
) -> dict[str, Any]:
    """Mean tokens a pass: all of them, and only those that the grammar left open."""
    num_open = sum(not kind.is_forced for kind, _ in tokens)
    return {
        "acceptance_length": _ratio(len(tokens), len(passes)),
        "acceptance_length_unforced": _ratio(num_open, len(passes)),
        "tokens": len(tokens),
        "unforced_tokens": num_open,
        "passes": len(passes),
    }


def _of_region(tokens: Sequence[tuple[TokenKind, str | None]], region: Region) -> dict[str, Any]:
    """Of a region: its tokens, and how many of them one of its own draws yields."""
    inside = [source for kind, source in tokens if kind.region == region]
    num_drawn = sum(source is None for source in inside)
    return {
        "tokens": len(inside),
        "drafted_share": _ratio(len(inside) - num_drawn, len(inside)),
        "acceptance_length": _ratio(len(inside), num_drawn),
    }


def _by_depth(passes: Sequence[VerifyPass]) -> list[dict[str, Any]]:
    """Of the passes that kept d - 1 drafts and had another below: how many kept it."""
    deepest = max((one.depth for one in passes), default=0)
    rows = []
    for depth in range(1, deepest + 1):
        tried = sum(len(one.kept) >= depth - 1 and one.depth >= depth for one in passes)
        kept = sum(len(one.kept) >= depth for one in passes)
        rows.append({"tried": tried, "kept": kept, "rate": _ratio(kept, tried)})
    return rows


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
