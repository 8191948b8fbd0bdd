"""Clients see the address of a leader that was lost a moment ago, and of no other broker that is gone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord, ClusterState, PartitionRecord, TopicRecord
from millstream_broker.metadata import cache
from millstream_broker.metadata.cache import LISTED_S, Metadata

TOPIC_ID = uuid.uuid4()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cache, "monotonic", clock)
    return clock


def broker(number: int, epoch: int = 0) -> BrokerRecord:
    return BrokerRecord(number, (Listener("PLAINTEXT", "localhost", 9000 + number),), epoch=epoch)


def state(alive: Sequence[int | BrokerRecord], leader: int, before: Metadata | None = None) -> Metadata:
    partition = PartitionRecord((1, 2, 3), leader, 0, (1, 2, 3))
    topic = TopicRecord("t", TOPIC_ID, (partition,))
    records = [one if isinstance(one, BrokerRecord) else broker(one) for one in alive]
    return Metadata(ClusterState("c", {one.broker_id: one for one in records}, {"t": topic}, 3), before)


def listed(metadata: Metadata) -> list[int]:
    return [one.broker_id for one in metadata.listed_brokers()]


def test_a_lost_leader_is_listed_until_its_clients_have_found_another(clock: Clock) -> None:
    before = state((1, 2, 3), leader=2)
    assert listed(before) == [1, 2, 3]
    lost = state((1, 3), leader=2, before=before)
    elected = state((1, 3), leader=1, before=lost)
    for now in (lost, elected):
        assert (list(now.brokers), listed(now)) == ([1, 3], [1, 3, 2])
    clock.now += LISTED_S - 0.1
    later = state((1, 3), leader=3, before=elected)
    assert listed(later) == [1, 3, 2]
    clock.now += 0.1
    assert listed(later) == listed(elected) == [1, 3]
    assert listed(state((1, 3), leader=3, before=later)) == [1, 3]


@pytest.mark.usefixtures("clock")
def test_a_broker_that_hands_over_first_is_gone_at_once() -> None:
    moved = state((1, 2, 3), leader=1, before=state((1, 2, 3), leader=2))
    assert listed(state((1, 3), leader=1, before=moved)) == [1, 3]


@pytest.mark.usefixtures("clock")
def test_a_leader_that_is_back_has_its_new_address() -> None:
    lost = state((1, 3), leader=1, before=state((1, 2, 3), leader=2))
    again = broker(2, epoch=7)
    back = state((1, again, 3), leader=1, before=lost)
    assert [one for one in back.listed_brokers() if one.broker_id == 2] == [again]
    assert listed(state((1, 3), leader=1, before=back)) == [1, 3]
