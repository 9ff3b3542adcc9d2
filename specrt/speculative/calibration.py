"""Online estimates of how often a kind of draft token is accepted.

Per (source, bucket, region of the output) a Beta posterior whose counts fade, shared by all
requests. Its prior is what the bucket's other regions say. Deterministic: an estimate is a function
of the observations in their order.
"""

from __future__ import annotations


class Calibration:
    """Conditional acceptance: how often the target takes a candidate whose parent was reached."""

    def __init__(
        self, prior_weight: float = 6.0, decay: float = 0.995, max_buckets: int = 8192
    ) -> None:
        """Make an estimator without observations.

        Args:
            prior_weight: how many observations the prior is worth.
            decay: factor on a region's counts per observation; 0.995 remembers about 200.
            max_buckets: buckets remembered; beyond it the one that was observed first is dropped.
        """
        self._prior_weight = prior_weight
        self._decay = decay
        self._max_buckets = max_buckets
        # (source, bucket) -> region -> (taken, seen)
        self._counts: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}

    def rate(self, source: str, bucket: int, prior: float, region: str = "") -> float:
        """The estimated acceptance.

        Args:
            source: name of the drafter.
            bucket: the drafter's statistics key.
            prior: acceptance to assume without observations, 0 to 1.
            region: where the candidate stands.
        """
        counts = self._counts.get((source, bucket))
        if not counts:
            return prior
        others = [count for name, count in counts.items() if name != region]
        if others:
            prior = self._posterior(prior, sum(c[0] for c in others), sum(c[1] for c in others))
        return self._posterior(prior, *counts.get(region, (0.0, 0.0)))

    def _posterior(self, prior: float, taken: float, seen: float) -> float:
        return (prior * self._prior_weight + taken) / (self._prior_weight + seen)

    def observe(self, source: str, bucket: int, taken: bool, region: str = "") -> None:
        """Count one candidate whose parent was reached."""
        key = (source, bucket)
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= self._max_buckets:
                del self._counts[next(iter(self._counts))]
            counts = self._counts[key] = {}
        before = counts.get(region, (0.0, 0.0))
        counts[region] = (before[0] * self._decay + taken, before[1] * self._decay + 1.0)
