"""Rates and token buckets, beside a model that keeps every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.security.quotas.rates import MutationTokens, SampledRate, Windows

WINDOWS = st.builds(Windows, st.integers(1, 13), st.sampled_from([1000, 2000, 7000]))
PAUSES = st.one_of(st.integers(0, 30), st.integers(900, 1100), st.integers(0, 40_000))
STEPS = st.lists(st.tuples(PAUSES, st.integers(1, 10_000_000), st.booleans()), min_size=1, max_size=60)

LONGEST_MS = 2**31 - 1
"""The longest throttle time that a response can say."""


@dataclass
class ModelledWindow:
    start: int
    last: int
    records: list[int] = field(default_factory=list)


@dataclass
class Model:
    """Kafka's rules with a list: windows begin with a record, and count until their last record is too old."""

    windows: Windows
    kept: list[ModelledWindow] = field(default_factory=list)

    def record(self, amount: int, now: int) -> None:
        if not self.kept or now - self.kept[-1].start >= self.windows.size_ms:
            self.kept.append(ModelledWindow(now, now))
        self.kept[-1].last = now
        self.kept[-1].records.append(amount)

    def rate(self, now: int) -> tuple[Fraction, int]:
        number, size = self.windows
        is_present_kept = self.kept and now - self.kept[-1].last < number * size
        self.kept = [one for one in self.kept if now - one.last < number * size]
        if not is_present_kept:
            self.kept.append(ModelledWindow(now, now))
        elapsed = now - min(one.start for one in self.kept)
        elapsed += max(0, number - 1 - elapsed // size) * size
        elapsed = max(elapsed, 1)
        return Fraction(sum(sum(one.records) for one in self.kept) * 1000, elapsed), elapsed


@given(WINDOWS, STEPS, st.integers(1, 1_000_000))
def test_throttle_times_are_those_of_the_model(
    windows: Windows, steps: list[tuple[int, int, bool]], limit: int
) -> None:
    rate, model, now = SampledRate(windows), Model(windows), 5
    for pause, amount, measures in steps:
        now += pause
        rate.record(amount, now)
        model.record(amount, now)
        if not measures:
            continue
        expected, elapsed = model.rate(now)
        measured, over = rate.measure(now)
        assert over == elapsed
        assert abs(Fraction(measured) - expected) <= expected / 10**12
        if expected > limit:
            exact = min((expected - limit) / limit * elapsed, Fraction(LONGEST_MS))
            assert abs(rate.throttle_ms(limit, now) - exact) <= Fraction(1, 2) + exact / 10**9
        else:
            assert rate.throttle_ms(limit, now) in (0, 1)  # equal to the limit, up to the last bit


@given(st.integers(1, 10**9), st.lists(PAUSES, min_size=1, max_size=20))
def test_an_amount_taken_back_leaves_no_use(amount: int, pauses: list[int]) -> None:
    rate, now = SampledRate(Windows()), 0
    for pause in pauses:
        now += pause
        rate.record(amount, now)
        rate.record(-amount, now)
    assert rate.measure(now)[0] == 0


def test_ten_seconds_worth_passes_at_once() -> None:
    rate = SampledRate(Windows())
    rate.record(10_000, 3)
    assert rate.throttle_ms(1000, 3) == 0
    rate.record(1, 3)
    assert rate.throttle_ms(1000, 3) == 1
    rate.record(109_999, 3)  # 120 seconds' worth, of which ten pass
    assert rate.throttle_ms(1000, 3) == 110_000


@pytest.mark.parametrize("limit", [1e-300, 5e-324])
def test_a_tiny_limit_throttles_as_long_as_a_response_can_tell(limit: float) -> None:
    rate, bucket = SampledRate(Windows()), MutationTokens(Windows())
    rate.record(100, 0)
    bucket.record(100, limit, 0)
    assert rate.throttle_ms(limit, 10) == bucket.throttle_ms(limit, 10) == LONGEST_MS


def test_use_is_forgotten_after_eleven_windows() -> None:
    rate = SampledRate(Windows())
    rate.record(1_000_000, 0)
    assert rate.measure(10_999)[0] > 0
    assert rate.measure(11_000)[0] == 0


@given(WINDOWS, STEPS, st.integers(1, 1_000_000))
def test_tokens_are_those_of_the_model(
    windows: Windows, steps: list[tuple[int, int, bool]], limit: int
) -> None:
    bucket, now = MutationTokens(windows), 5
    burst = Fraction(windows.number * windows.size_ms * limit, 1000)
    tokens, filled = burst, now
    for pause, amount, measures in steps:
        now += pause
        if measures:
            left = min(burst, tokens + Fraction(limit * (now - filled), 1000))
            assert abs(Fraction(bucket.tokens(limit, now)) - left) <= (burst + abs(left)) / 10**9
            if left < -1:
                exact = min(floor(-left / limit * 1000 + Fraction(1, 2)), LONGEST_MS)
                assert abs(bucket.throttle_ms(limit, now) - exact) <= 1 + exact / 10**9
        bucket.record(amount, limit, now)
        tokens = min(burst, tokens + Fraction(limit * (now - filled), 1000)) - amount
        filled = now


def test_a_bucket_is_full_at_first_and_owes_what_exceeds_it() -> None:
    bucket = MutationTokens(Windows())
    bucket.record(110, 10, 0)
    assert bucket.throttle_ms(10, 0) == 0
    bucket.record(20, 10, 0)
    assert bucket.throttle_ms(10, 0) == 2000
    assert bucket.throttle_ms(10, 1500) == 500
    assert bucket.tokens(10, 1_000_000) == 110
