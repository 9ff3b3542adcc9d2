"""The rows of `specrt eval-draft`: each drafts with one thing more than the one before."""

from __future__ import annotations

from dataclasses import dataclass

from specrt.config import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to draft.

    Attributes:
        sources: beside the head, comma-separated, as `--draft-sources` has them.
        has_head: does the head draft?
        topk: candidates of the head at a node; 1 = a chain; None = the default.
        is_masked: is the head asked only for what the grammar allows?
    """

    sources: str = ""
    has_head: bool = True
    topk: int | None = None
    is_masked: bool = True

    def config(self, draft_model_path: str | None) -> SpeculativeConfig:
        """The engine's options, all others at their defaults."""
        topk = {} if self.topk is None else {"speculative_eagle_topk": self.topk}
        return SpeculativeConfig(
            speculative="eagle" if self.has_head else "grammar",
            speculative_draft_model_path=draft_model_path if self.has_head else None,
            draft_sources=self.sources,
            **topk,
        )


LADDER = {
    "none": Rung(has_head=False),
    "head chain": Rung(topk=1, is_masked=False),
    "head tree": Rung(is_masked=False),
    "+ mask": Rung(),
    "+ forced": Rung("forced"),
    "+ choices": Rung("forced,choices"),
    "+ history": Rung("forced,choices,history"),
    "+ values": Rung("forced,choices,history,values"),
}
