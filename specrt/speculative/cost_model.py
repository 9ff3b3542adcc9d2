"""What a row costs, and which draft nodes are worth theirs.

A pass over n rows takes t(n) seconds. Without drafts B requests that draw a token in a pass commit
one token each in t(B), so a committed token is worth t(B) / B. A draft node that the walk reaches
with probability p is worth a row iff p * t(B) / B exceeds the row's own cost t(N + 1) - t(N), N
being all rows of the pass so far. While speculation commits s times as many tokens per second as
plain decoding, a token can be had for t(B) / (B * s), and a row must pay that much more.

With many requests t(B) / B is little more than a row's cost, so trees shrink to nothing and a pass
is a plain one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
# SmolLM2-135M, fp32, on two AVX2 cores: (rows, seconds). Only the ratios matter.
DEFAULT_TIMINGS = ((1, 0.028), (4, 0.035), (8, 0.043), (16, 0.059), (32, 0.086), (64, 0.145))


class PassCost:
    """The time of a pass as a function of its rows: piecewise linear, never falling."""

    def __init__(self, timings: Sequence[tuple[int, float]] = DEFAULT_TIMINGS) -> None:
        """Interpolate timings; beyond the last one the last slope goes on.

        Args:
            timings: (rows, seconds), at least two, rows ascending. A time below an earlier one is
                raised to it.

        Raises:
            ValueError: fewer than two timings, rows that do not ascend, or no time at all.
        """
        rows = [count for count, _ in timings]
        if len(rows) < 2 or any(b <= a for a, b in zip(rows, rows[1:], strict=False)):
            raise ValueError(f"expected two or more timings with ascending rows, got {timings}")
        if timings[0][1] <= 0.0:
            raise ValueError(f"expected a time above 0 s for {rows[0]} rows, got {timings[0][1]}")
        self.rows: Array = np.array(rows, dtype=np.float64)
        self.seconds: Array = np.maximum.accumulate(np.array([s for _, s in timings]))
        self._slope = float(np.diff(self.seconds)[-1] / np.diff(self.rows)[-1])

    def __str__(self) -> str:
        points = zip(self.rows, self.seconds, strict=True)
        return ", ".join(f"{rows:.0f}: {seconds * 1e3:.1f}" for rows, seconds in points)

    def times(self, first: int, count: int) -> Array:
        """Seconds of passes over first, first + 1, ... rows; float64 [count]."""
        wanted = np.arange(first, first + count, dtype=np.float64)
        beyond = np.maximum(wanted - self.rows[-1], 0.0) * self._slope
        return np.asarray(np.interp(wanted, self.rows, self.seconds) + beyond)

    def time(self, num_rows: int) -> float:
        """Seconds of one pass."""
        return float(self.times(num_rows, 1)[0])

    def row_prices(
        self, num_base_rows: int, num_decisions: int, max_rows: int, speedup: float = 1.0
    ) -> Array:
        """The probability at which each further row of a pass pays for itself.

        Args:
            num_base_rows: rows of the pass without drafts, prefill rows included.
            num_decisions: requests that draw a token in this pass (>= 1).
            max_rows: draft rows to price.
            speedup: tokens per second of speculative over plain decoding, lately (>= 1).

        Returns:
            float64 [max_rows], the price of the first, second, ... draft row.
        """
        token_seconds = self.time(num_decisions) / (num_decisions * speedup)
        return np.diff(self.times(num_base_rows, max_rows + 1)) / token_seconds


def num_worth_rows(probabilities: Sequence[float], prices: Array) -> int:
    """How many draft nodes are worth their rows.

    Args:
        probabilities: chance of each node to be reached, descending; at most len(prices) count.
        prices: see `PassCost.row_prices`.

    Returns:
        The length of the prefix with the largest gain; 0 when no prefix gains anything. Where
        prices rise, that is the last node whose probability exceeds its price.
    """
    count = min(len(probabilities), len(prices))
    gain = np.cumsum(np.asarray(probabilities[:count]) - prices[:count])
    if not count or gain.max() <= 0.0:
        return 0
    return int(gain.argmax()) + 1


def measure(
    run_pass: Callable[[int], float | None],
    row_counts: Sequence[int] = ROW_COUNTS,
    repeats: int = 3,
) -> PassCost:
    """Time passes at start-up.

    Args:
        run_pass: runs one pass over that many rows; may return its own seconds, else it is timed.
        row_counts: at least two, ascending.
        repeats: timed passes per count, after an untimed one. The quickest counts: what else the
            machine does only adds time.
    """

    def seconds(count: int) -> float:
        start = time.perf_counter()
        own = run_pass(count)
        return time.perf_counter() - start if own is None else own

    timings = []
    for count in row_counts:
        seconds(count)
        timings.append((count, min(seconds(count) for _ in range(repeats))))
    return PassCost(timings)


class Pace:
    """How much faster than plain decoding the last passes were, by the cost model's own times."""

    def __init__(self, decay: float = 0.98) -> None:
        """Remember about 1 / (1 - decay) passes."""
        self._decay = decay
        self._plain_s = 0.0
        self._spent_s = 0.0
        self._token_s = 0.0

    @property
    def speedup(self) -> float:
        """At least 1."""
        return max(1.0, self._plain_s / self._spent_s) if self._spent_s else 1.0

    def start_pass(self, cost: PassCost, base: int, decisions: int, drafts: int) -> None:
        """A pass begins: `base` rows, of which `decisions` draw a token, and `drafts` more."""
        plain_s = cost.time(decisions)
        self._token_s = plain_s / decisions
        self._plain_s *= self._decay
        self._spent_s *= self._decay
        self._spent_s += plain_s + cost.time(base + drafts) - cost.time(base)

    def spend(self, seconds: float) -> None:
        """Drafting itself took time."""
        self._spent_s += seconds

    def commit(self, num_tokens: int) -> None:
        """The pass committed tokens."""
        self._plain_s += num_tokens * self._token_s
