"""Bytes by topic stay correct after aborted scrapes."""

from __future__ import annotations

from typing import cast

from millstream_broker.observability.metrics import Sums
from millstream_broker.replication.replica import Replica


class OfTopic:
    topic = "flights"


REPLICA = cast(Replica, OfTopic())


def test_a_scrape_that_is_broken_off_counts_nothing_twice() -> None:
    sums = Sums()
    sums.add(REPLICA, 100)
    sums.over(["flights"])
    sums.add(REPLICA, 200)  # the reader goes away
    sums.add(REPLICA, 250)
    sums.over(["flights"])
    assert sums.by_topic == {"flights": 250}
    sums.add(REPLICA, 250)
    sums.over(["flights"])
    assert sums.by_topic == {"flights": 250}
