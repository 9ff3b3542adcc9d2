"""Calibration: estimates from prior and observations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_region_starts_from_the_others_and_ends_with_its_own() -> None:
    calibration = Calibration(prior_weight=4)
    for _ in range(200):
        calibration.observe("history", 3, True, "key")
    assert calibration.rate("history", 3, 0.1, "value") > 0.9
    for _ in range(200):
        calibration.observe("history", 3, False, "value")
    assert calibration.rate("history", 3, 0.1, "value") < 0.1
    assert calibration.rate("history", 3, 0.1, "key") > 0.9, "an own region outweighs the others"


@given(st.lists(st.booleans()), st.floats(0, 1))
def test_a_bucket_of_one_region_does_not_depend_on_its_name(
    taken: list[bool], prior: float
) -> None:
    named, unnamed = Calibration(), Calibration()
    for one in taken:
        named.observe("eagle", 1, one, "value")
        unnamed.observe("eagle", 1, one)
    assert named.rate("eagle", 1, prior, "value") == unnamed.rate("eagle", 1, prior)


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
