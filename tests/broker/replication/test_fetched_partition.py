"""A partition of a fetch session: what holds back consumers that read committed records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream_broker.replication.fetched_partition import FetchedPartition
from millstream_kafka.protocol.fetch import FetchPartition


@pytest.mark.parametrize(("now", "is_kept_back"), [(4, True), (5, True), (6, False)])
def test_a_transaction_keeps_back_what_follows_it(now: int, is_kept_back: bool) -> None:
    replica: Any = SimpleNamespace(last_stable_offset=now)
    fetched = FetchedPartition(("t", 0), FetchPartition(0))
    fetched.replica, fetched.stable = replica, 5
    assert fetched.is_kept_back() == is_kept_back
    assert fetched.is_held_back == is_kept_back, "until the next read, which then has more than was announced"
    assert fetched.stable == max(now, 5)
