"""tree_stats: who drafted where, and who was right."""

from __future__ import annotations

from specrt.draft_tree import DraftTree
from specrt.request import DraftStats, by_source
from specrt.speculative.statistics import tree_stats


def test_counts_by_source_and_region() -> None:
    tree = DraftTree(0)
    first = tree.add(0, 1, 1.0, "forced", region="key")
    second = tree.add(first, 2, 0.5, "choices", region="value")
    tree.add(first, 3, 0.5, "choices", region="value")
    tree.add(second, 4, 0.5, "history", region="value")
    tree.add(second, 5, 0.5, "history", region="punctuation")
    stats = tree_stats(tree, [first, second], 3)
    assert stats.drafted == {
        "forced": {"key": 1},
        "choices": {"value": 2},
        "history": {"value": 1, "punctuation": 1},
    }
    assert stats.accepted == {
        "forced": {"key": 1},
        "choices": {"value": 1},
        "history": {"value": 0, "punctuation": 0},
    }
    assert by_source(stats.drafted) == {"forced": 1, "choices": 2, "history": 2}
    assert (stats.num_invalid, stats.tokens_of_passes) == (0, {3: 1})


def test_stats_add_up_and_a_copy_stays_as_it_is() -> None:
    total = DraftStats()
    one = DraftStats({"eagle": {"key": 2}}, {"eagle": {"key": 1}}, 1, {2: 1}, 0.5, 0.25, 0.125)
    total.add(one)
    before = total.copy()
    total.add(DraftStats({"eagle": {"value": 3}}, tokens_of_passes={2: 1, 4: 1}))
    assert before == one
    assert total.drafted == {"eagle": {"key": 2, "value": 3}}
    assert total.tokens_of_passes == {2: 2, 4: 1}
    assert (total.draft_s, total.verify_s, total.accept_s) == (0.5, 0.25, 0.125)


def test_a_tree_without_drafts_is_a_pass_all_the_same() -> None:
    assert tree_stats(DraftTree(0), [], 1) == DraftStats(tokens_of_passes={1: 1})
