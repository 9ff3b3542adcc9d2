"""Reliability: estimated probabilities against what came true, by tenths of the estimate."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_BINS = 10


class Reliability:
    """Counts of cases, from which a reliability diagram is drawn."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._hits = np.zeros(_BINS, dtype=np.int64)
        self._estimates = np.zeros(_BINS, dtype=np.float64)

    @classmethod
    def of(cls, cases: Iterable[tuple[float, bool]]) -> Reliability:
        """Of (estimate, came true) pairs."""
        found = cls()
        pairs = list(cases)
        estimates = np.array([estimate for estimate, _ in pairs], dtype=np.float64)
        found.add(estimates, np.array([is_hit for _, is_hit in pairs], dtype=np.bool_))
        return found

    def add(self, estimates: npt.NDArray[np.floating], hits: npt.NDArray[np.bool_]) -> None:
        """Count cases.

        Args:
            estimates: [n], probabilities, 0 to 1.
            hits: bool [n], what came true.
        """
        bins = np.minimum((estimates * _BINS).astype(np.int64), _BINS - 1)
        self._counts += np.bincount(bins, minlength=_BINS)
        self._hits += np.bincount(bins[hits], minlength=_BINS)
        self._estimates += np.bincount(bins, weights=estimates, minlength=_BINS)

    def rows(self) -> list[dict[str, float]]:
        """`estimated` (mean), `observed` (share) and `count` of each tenth; empty ones left out."""
        return [
            {
                "estimated": float(self._estimates[index] / count),
                "observed": float(self._hits[index] / count),
                "count": int(count),
            }
            for index, count in enumerate(self._counts)
            if count
        ]

    def error(self) -> float | None:
        """Expected calibration error, 0 to 1: mean |estimated - observed|; None without a case.

        Source: Guo et al., On Calibration of Modern Neural Networks (arXiv 1706.04599), section 2.
        """
        total = int(self._counts.sum())
        return float(np.abs(self._estimates - self._hits).sum() / total) if total else None
