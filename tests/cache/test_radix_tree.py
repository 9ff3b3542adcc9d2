from __future__ import annotations

import random
import time

import numpy as np
import pytest

from specrt.cache.radix_tree import EVICTION_QUANTUM, RadixNode, RadixTree


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def slots(start: int, n: int) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.int32)


def shape(tree: RadixTree) -> dict[str, list[str]]:
    """Every node's path and its children's own tokens."""

    def path(node: RadixNode) -> str:
        own = "".join(map(chr, node.token_ids))
        return own if node.parent is None else path(node.parent) + own

    return {
        path(n): sorted("".join(map(chr, c.token_ids)) for c in n.children.values())
        for n in tree.nodes()
    }


def add(tree: RadixTree, text: str, start: int, namespace: str = "") -> RadixNode:
    inserted = tree.insert(namespace, ids(text), slots(start, len(text)))
    return inserted.node


def test_match_splits_inside_a_node() -> None:
    #  root - "the cat"      match "the cow"      root - "the c" - "at"
    tree = RadixTree()
    add(tree, "the cat", 10)
    match = tree.match_prefix("", ids("the cow"))
    assert match.num_tokens == 5 and match.slots.tolist() == [10, 11, 12, 13, 14]
    assert shape(tree) == {"": ["the c"], "the c": ["at"], "the cat": []}
    assert tree.match_prefix("", ids("the cat")).slots.tolist() == list(range(10, 17))
    assert tree.num_cached_tokens == 7


def test_diverging_siblings() -> None:
    #  root - "the c" -+- "at"
    #                  +- "ow"
    tree = RadixTree()
    add(tree, "the cat", 10)
    inserted = tree.insert("", ids("the cow"), slots(30, 7))
    assert inserted.num_existing == 5
    assert inserted.slots.tolist() == [10, 11, 12, 13, 14, 35, 36]
    assert shape(tree) == {"": ["the c"], "the c": ["at", "ow"], "the cat": [], "the cow": []}
    assert tree.num_cached_tokens == 9


def test_match_is_token_exact_and_ends_where_tokens_end() -> None:
    tree = RadixTree()
    add(tree, "abcdef", 0)
    for text, expected in (("abc", 3), ("abcdefgh", 6), ("abXdef", 2), ("b", 0), ("", 0)):
        assert tree.match_length("", ids(text)) == expected
        assert tree.match_prefix("", ids(text)).num_tokens == expected


def test_namespaces_do_not_share() -> None:
    tree = RadixTree()
    add(tree, "abc", 0, "a")
    assert tree.match_length("b", ids("abc")) == 0
    assert add(tree, "abc", 5, "b") is not add(tree, "abc", 9, "a")
    assert tree.match_prefix("a", ids("abc")).slots.tolist() == [0, 1, 2]
    assert tree.match_prefix("b", ids("abc")).slots.tolist() == [5, 6, 7]


def test_unused_namespaces_leave_nothing_behind() -> None:
    tree = RadixTree()
    for salt in range(100):
        tree.lock(node := tree.match_prefix(str(salt), ids("abc")).node)
        tree.unlock(node)
        add(tree, "abc", 3 * salt, str(salt))
    tree.evict(300)
    assert not list(tree.nodes())


def test_insert_copies_what_it_keeps() -> None:
    tree = RadixTree()
    tokens, table = np.array([1, 2, 3], np.int32), slots(4, 3)
    tree.insert("", tokens, table)
    tokens[:] = 9
    table[:] = 9
    assert tree.match_prefix("", [1, 2, 3]).slots.tolist() == [4, 5, 6]


def test_lock_holds_the_whole_path_and_survives_a_split() -> None:
    #  root - "ab" -+- "cd"      a lock on abcd keeps "ab" too; ef may go
    #               +- "ef"
    tree = RadixTree()
    node = add(tree, "abcd", 0)
    tree.lock(node)
    add(tree, "abef", 10)
    assert (tree.num_locked_tokens, tree.num_evictable_tokens) == (4, 2)
    assert sorted(tree.evict(100).tolist()) == [12, 13]
    assert tree.match_length("", ids("abcd")) == 4
    tree.match_prefix("", ids("a"))
    tree.unlock(node)
    assert (tree.num_locked_tokens, tree.num_evictable_tokens) == (0, 4)
    assert sorted(tree.evict(100).tolist()) == [0, 1, 2, 3]
    with pytest.raises(AssertionError):
        tree.unlock(node)


def test_eviction_is_least_recently_used_and_a_parent_becomes_a_leaf() -> None:
    #  root -+- "ab" -+- "c"        order of use: abd, x, abc
    #        |        +- "d"
    #        +- "x"
    tree = RadixTree()
    add(tree, "abc", 0)
    add(tree, "abd", 10)
    add(tree, "x", 20)
    tree.match_prefix("", ids("abc"))
    assert tree.evict(1).tolist() == [12]
    assert tree.evict(1).tolist() == [20]
    assert tree.evict(1).tolist() == [2]
    assert sorted(tree.evict(1).tolist()) == [0, 1]
    assert tree.num_cached_tokens == 0 and not tree.evict(1).size


def test_match_length_does_not_count_as_use() -> None:
    tree = RadixTree()
    add(tree, "a", 0)
    add(tree, "b", 1)
    tree.match_length("", ids("a"))
    assert tree.evict(1).tolist() == [0]


def test_a_long_leaf_loses_only_its_tail() -> None:
    tree = RadixTree()
    tree.insert("", list(range(1000)), slots(0, 1000))
    freed = tree.evict(EVICTION_QUANTUM + 1)
    assert sorted(freed.tolist()) == list(range(1000 - 2 * EVICTION_QUANTUM, 1000))
    kept = tree.match_prefix("", list(range(1000))).slots.tolist()
    assert kept == list(range(1000 - 2 * EVICTION_QUANTUM))


def test_unlock_merges_what_was_used_together() -> None:
    #  turn after turn extends one path; no chain of nodes stays behind
    tree = RadixTree()
    node, text = None, ""
    for turn in range(20):
        text += f"turn {turn:02};"
        new = tree.insert("", ids(text), slots(0, len(text))).node
        tree.lock(new)
        if node:
            tree.unlock(node)
        node = new
    tree.unlock(new)
    assert shape(tree) == {"": [text], text: []}
    #  a fork and a colder rest are boundaries that matter
    tree.lock(half := tree.match_prefix("", ids(text[:50])).node)
    tree.unlock(half)
    assert shape(tree) == {"": [text[:50]], text[:50]: [text[50:]], text: []}
    assert tree.evict(1).tolist()[0] >= 50


def test_unlock_does_not_merge_a_node_that_another_lock_holds() -> None:
    #  root - "ab" - "cd"      one lock on ab, one on abcd; both used in the same walk
    tree = RadixTree()
    tree.lock(upper := add(tree, "ab", 0))
    tree.lock(lower := add(tree, "abcd", 0))
    tree.unlock(lower)
    assert sorted(tree.evict(100).tolist()) == [2, 3]
    tree.unlock(upper)
    assert sorted(tree.evict(100).tolist()) == [0, 1]


def test_pins_expire_move_and_count() -> None:
    tree = RadixTree()
    a, b = add(tree, "abc", 0), add(tree, "xyz", 10)
    tree.pin(a, "session", ttl_s=5.0, now=100.0)
    assert tree.num_pinned_tokens() == tree.num_locked_tokens == 3
    tree.lock(a)
    assert tree.num_pinned_tokens() == 0
    tree.unlock(a)
    tree.pin(b, "session", ttl_s=5.0, now=102.0)
    assert sorted(tree.evict(100).tolist()) == [0, 1, 2]
    tree.expire_pins(106.9)
    assert tree.num_evictable_tokens == 0
    tree.expire_pins(107.0)
    assert tree.num_evictable_tokens == 3
    tree.pin(b, "p", 9.0, 0.0)
    tree.pin(b, "q", 5.0, 0.0)
    tree.drop_oldest_pin()
    tree.unpin("p")
    tree.unpin("p")
    assert tree.num_evictable_tokens == 3


def test_candidates_do_not_pile_up_without_eviction() -> None:
    tree = RadixTree()
    add(tree, "abc", 0)
    for _ in range(5000):
        tree.match_prefix("", ids("abc"))
    assert len(tree._heap) < 200
    assert len(tree.evict(3)) == 3


def test_large_trees_are_fast() -> None:
    rng = random.Random(0)
    tree = RadixTree()
    base = np.array([rng.randrange(50_000) for _ in range(100_000)], np.int32)
    tree.insert("", base, slots(0, len(base)))
    for i in range(1000):
        prefix = base[: rng.randrange(1000, 100_000)]
        branch = np.concatenate((prefix, [60_000 + i])).astype(np.int32)
        tree.insert("", branch, slots(0, len(branch)))
    start = time.perf_counter()
    freed = 0
    while freed < 50_000:
        freed += len(tree.evict(8))
    assert time.perf_counter() - start < 1.0  # thousands of calls: no scan each


@pytest.mark.parametrize("num_tokens", [8_000, 100_000])
def test_bench_match(benchmark, num_tokens: int) -> None:  # type: ignore[no-untyped-def]
    tree = RadixTree()
    tokens = np.arange(num_tokens, dtype=np.int32)
    for end in range(500, num_tokens, 500):
        tree.insert("", np.concatenate((tokens[:end], [-1])).astype(np.int32), slots(0, end + 1))
    tree.insert("", tokens, slots(0, num_tokens))
    as_list = tokens.tolist()
    match = benchmark(tree.match_prefix, "", as_list)
    assert match.num_tokens == num_tokens
