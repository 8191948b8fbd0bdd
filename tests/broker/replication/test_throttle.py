"""The rate at which moved replicas catch up."""

from __future__ import annotations

import pytest

from millstream_broker.replication.throttle import Throttle, is_listed


def test_the_average_is_the_rate() -> None:
    throttle = Throttle(lambda: 1000)
    now, taken = 100.0, 0
    while now < 200.0:
        now = throttle.took(250, now)
        taken += 250
    assert taken == pytest.approx(100 * 1000, rel=0.01)


def test_idle_time_is_not_saved_up() -> None:
    throttle = Throttle(lambda: 1000)
    assert throttle.took(1000, 10.0) == 11.0
    assert throttle.took(1000, 50.0) == 51.0


def test_a_changed_rate_counts_soon() -> None:
    rate = 100
    throttle = Throttle(lambda: rate)
    assert throttle.most(1 << 20) == 100
    until = throttle.took(100, 10.0)
    assert until == 11.0
    rate = 10_000
    assert throttle.took(10_000, until) == 12.0
    assert throttle.most(5_000) == 5_000


def test_a_rate_of_nothing_is_a_byte_a_second() -> None:
    throttle = Throttle(lambda: 0)
    assert throttle.most(100) == 1
    assert throttle.took(1, 0.0) == 1.0


def test_who_is_throttled() -> None:
    assert is_listed(["*"], 3, 1)
    assert is_listed(["0:1", "3:1"], 3, 1)
    assert not is_listed(["3:10", "1:3"], 3, 1)
    assert not is_listed([], 3, 1)
