"""From the names of draft sources to drafters."""

from __future__ import annotations

from collections.abc import Collection

from specrt.speculative.base import Drafter
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import PassCost
from specrt.speculative.grammar_drafter import ChoicesDrafter, ForcedDrafter
from specrt.speculative.history_drafter import HistoryDrafter
from specrt.speculative.tree_builder import TreeBuilder


def make_tree_builder(sources: Collection[str], cost: PassCost | None = None) -> TreeBuilder:
    """A builder with these sources.

    Args:
        sources: names from `config.DRAFT_SOURCES`; none = trees without draft nodes.
        cost: the price of rows; None = a fixed curve.
    """
    calibration = Calibration()
    drafters: list[Drafter] = [
        ForcedDrafter(),
        ChoicesDrafter(calibration),
        HistoryDrafter(calibration),
    ]
    return TreeBuilder([d for d in drafters if d.source in sources], calibration, cost)
