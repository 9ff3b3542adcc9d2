"""Calibration: estimates from prior and observations."""

from __future__ import annotations

import pytest

from specrt.speculative.calibration import Calibration


def test_without_observations_the_prior_counts() -> None:
    assert Calibration().rate("history", 3, 0.4) == pytest.approx(0.4)


def test_observations_outweigh_the_prior() -> None:
    calibration = Calibration(prior_weight=4)
    for _ in range(400):
        calibration.observe("history", 3, True)
    assert calibration.rate("history", 3, 0.1) > 0.95
    assert calibration.rate("history", 4, 0.1) == pytest.approx(0.1), "other buckets are apart"
    assert calibration.rate("choices", 3, 0.1) == pytest.approx(0.1), "other sources are apart"


def test_the_share_of_taken_candidates_is_found() -> None:
    calibration = Calibration()
    for i in range(1000):
        calibration.observe("history", 0, i % 4 == 0)
    assert calibration.rate("history", 0, 0.9) == pytest.approx(0.25, abs=0.05)


def test_old_observations_fade() -> None:
    calibration = Calibration(decay=0.9)
    for _ in range(100):
        calibration.observe("history", 0, True)
    for _ in range(30):
        calibration.observe("history", 0, False)
    assert calibration.rate("history", 0, 0.0) < 0.05


def test_a_rate_stays_a_probability() -> None:
    calibration = Calibration()
    for _ in range(10_000):
        calibration.observe("history", 0, True)
    assert 0.9 < calibration.rate("history", 0, 1.0) <= 1.0


def test_the_number_of_buckets_is_bounded() -> None:
    calibration = Calibration(max_buckets=2)
    for bucket in (1, 2, 3):
        calibration.observe("choices", bucket, True)
    assert calibration.rate("choices", 1, 0.5) == pytest.approx(0.5), "the first is forgotten"
    assert calibration.rate("choices", 2, 0.5) > 0.5
    assert calibration.rate("choices", 3, 0.5) > 0.5
