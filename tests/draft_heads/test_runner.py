"""Head rows in slots: equal to a slow reference, whatever was cached, forked or moved before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_heads import ReferenceHead, tiny_head
from torch import Tensor

from specrt.cache.kv_store import KVStore
from specrt.draft_heads.eagle3 import Eagle3Head
from specrt.draft_heads.runner import NUM_SCRATCH_SLOTS, DraftedPath, HeadRunner, extra_planes

NUM_SLOTS = 700


class Setup:
    def __init__(self) -> None:
        self.checkpoint = tiny_head()
        self.embedding = torch.randn(320, 64, generator=torch.Generator().manual_seed(1))
        head = Eagle3Head(self.checkpoint, self.embedding, num_positions=1024)
        self.store = KVStore(NUM_SLOTS + NUM_SCRATCH_SLOTS, 1, 2, 16, extra=extra_planes(head))
        self.runner = HeadRunner(head, self.store, NUM_SLOTS)
        self.reference = ReferenceHead(self.checkpoint, self.embedding)

    def compute(self, captured: Tensor, slots: list[int]) -> None:
        """As a target pass does: new tokens in slots, features kept."""
        index = np.array(slots, np.int32)
        self.runner.forget(index)
        self.runner.keep_features(index, captured)

    def expected(
        self, tokens: list[int], captured: Tensor, drafted: list[list[int]] = ()
    ) -> list[Tensor]:
        """Outputs of the last committed row, then of the last row of each drafted segment."""
        seen: list[tuple[Tensor, Tensor]] = []
        out = torch.empty(0)
        for i in range(1, len(tokens)):
            feature = self.reference.fuse(captured[i - 1])
            out, pair = self.reference.row(tokens[i], feature, i - 1, seen)
            seen.append(pair)
        outs = [out]
        position = len(tokens)
        for segment in drafted:
            feature = outs[-1]
            for token in segment:
                out, pair = self.reference.row(token, feature, position - 1, seen)
                seen.append(pair)
                position += 1
            outs.append(out)
        return outs


@pytest.fixture
def setup() -> Setup:
    return Setup()


def random_tokens(count: int, seed: int) -> tuple[list[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, 320, (count,), generator=generator).tolist(),
        torch.randn(count, 128, generator=generator),
    )


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=1e-4)


def test_committed_rows_equal_the_reference(setup: Setup) -> None:
    tokens, captured = random_tokens(30, 2)
    slots = list(range(5, 35))
    setup.compute(captured[:-1], slots[:-1])
    setup.runner.forget(np.array(slots[-1:], np.int32))
    (out,) = setup.runner.extend([(tokens, np.array(slots, np.int32))])
    close(out, setup.expected(tokens, captured)[0])


def test_drafted_segments_share_the_feature_before_them(setup: Setup) -> None:
    tokens, captured = random_tokens(12, 3)
    slots = np.arange(40, 52, dtype=np.int32)
    setup.compute(captured, slots.tolist())
    setup.runner.forget(slots[-1:])
    (root,) = setup.runner.extend([(tokens, slots)])
    scratch = setup.runner.scratch_slots
    segments = [[7], [8, 9, 10], [11]]
    outs, taken, position = [root], 0, len(tokens)
    for segment in segments:
        path = DraftedPath(
            segment,
            position,
            np.concatenate([slots[1:], scratch[:taken]]),
            scratch[taken : taken + len(segment)],
            outs[-1],
        )
        outs += setup.runner.follow([path])
        taken += len(segment)
        position += len(segment)
    for got, expected in zip(outs, setup.expected(tokens, captured, segments), strict=True):
        close(got, expected)
    logits = setup.runner.logits(outs)
    close(torch.from_numpy(logits[2]), setup.reference.logits(outs[2]))


def test_a_long_prefix_and_a_batch_are_extended_in_pieces(setup: Setup) -> None:
    long_tokens, long_captured = random_tokens(600, 4)
    short_tokens, short_captured = random_tokens(4, 5)
    long_slots, short_slots = np.arange(600, dtype=np.int32), np.arange(650, 654, dtype=np.int32)
    setup.compute(long_captured, long_slots.tolist())
    setup.compute(short_captured, short_slots.tolist())
    outs = setup.runner.extend([(long_tokens, long_slots), (short_tokens, short_slots)])
    close(outs[0], setup.expected(long_tokens, long_captured)[0])
    close(outs[1], setup.expected(short_tokens, short_captured)[0])


def test_forks_after_a_shared_token_draft_from_their_own_path(setup: Setup) -> None:
    """Two sequences share 10 tokens and their rows, then differ in the next one."""
    tokens, captured = random_tokens(10, 6)
    shared = list(range(100, 110))
    setup.compute(captured, shared)
    for fork, next_token in enumerate((17, 18)):
        own = [200 + 10 * fork, 201 + 10 * fork]
        path = [*tokens, next_token, 19]
        more = torch.randn(1, 128, generator=torch.Generator().manual_seed(20 + fork))
        everything = torch.cat([captured, more, more])
        setup.compute(more, own[:1])
        slots = np.array([*shared, *own], np.int32)
        (warm,) = setup.runner.extend([(path, slots)])
        close(warm, setup.expected(path, everything)[0])
        setup.runner.forget(slots)  # all rows again, cold
        (cold,) = setup.runner.extend([(path, slots)])
        close(warm, cold)


def test_a_reused_slot_is_made_anew(setup: Setup) -> None:
    slots = np.arange(300, 320, dtype=np.int32)
    for seed in (7, 8):
        tokens, captured = random_tokens(20, seed)
        setup.compute(captured, slots.tolist())
        (out,) = setup.runner.extend([(tokens, slots)])
        close(out, setup.expected(tokens, captured)[0])
