"""From the names of draft sources to drafters."""

from __future__ import annotations

from collections.abc import Callable, Collection

from specrt.speculative.base import Drafter, Tokens
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import Pace, PassCost
from specrt.speculative.grammar_drafter import ChoicesDrafter, ForcedDrafter
from specrt.speculative.history_drafter import HistoryDrafter, SharedHistoryDrafter
from specrt.speculative.shared_outputs import SharedOutputs
from specrt.speculative.tree_builder import TreeBuilder
from specrt.speculative.value_drafter import ValueDrafter


def make_tree_builder(
    sources: Collection[str],
    tokens: Tokens,
    cost: PassCost | None = None,
    make_head_drafter: Callable[[Calibration, Pace], Drafter] | None = None,
    shared_outputs: SharedOutputs | None = None,
) -> TreeBuilder:
    """A builder with these sources.

    Args:
        sources: names from `config.DRAFT_SOURCES`; none = trees without draft nodes.
        tokens: the target's.
        cost: the price of rows; None = a fixed curve.
        make_head_drafter: makes the drafter of a neural head, asked last: what the others are sure
            of needs no pass of the head.
        shared_outputs: what requests may draft from each other; None = nothing.
    """
    calibration, pace = Calibration(), Pace()
    drafters: list[Drafter] = [
        ForcedDrafter(),
        ChoicesDrafter(calibration),
        HistoryDrafter(calibration),
        ValueDrafter(calibration, tokens),
    ]
    drafters = [d for d in drafters if d.source in sources]
    if shared_outputs is not None:
        drafters.append(SharedHistoryDrafter(calibration, shared_outputs))
    if make_head_drafter is not None:
        drafters.append(make_head_drafter(calibration, pace))
    return TreeBuilder(drafters, calibration, tokens, cost, pace)
