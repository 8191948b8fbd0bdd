"""The order in which a broker is told what waits for it, where that is more than one request may have."""

from __future__ import annotations

import pytest

from millstream_broker.controller import channels


def test_a_broker_hears_of_internal_topics_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who learns that it coordinates groups must know every other topic: it takes those it knows not for deleted."""
    monkeypatch.setattr(channels, "MAX_PARTITIONS", 3)
    waiting = {("__consumer_offsets", 0), ("__consumer_offsets", 1), *((name, 0) for name in "abcd")}
    requests = []
    while waiting:
        request = channels._some(waiting)
        requests.append({name for name, _ in request})
        waiting -= set(request)
    assert requests == [{"a", "b", "c"}, {"d", "__consumer_offsets"}], "a request is followed as a whole"
